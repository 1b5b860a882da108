"""`strandline driver spec` and `strandline backfill`, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import pytest

from strandline.cli import endpoints
from strandline.cli.app import main
from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.output import Output
from strandline.materialize.drivers.duckdb import kind as duckdb
from strandline.wiring.registry import DRIVERS


def test_a_driver_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: options are guessed, or read in the code."""
    assert main(["driver", "spec", "duckdb", "--json"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert told["options"] == duckdb.KIND.spec.config_schema
    assert told["resource"] == duckdb.KIND.spec.resource_schema
    assert main(["driver", "spec", "duckdb"]) == Exit.OK
    assert '"path"' in capsys.readouterr().out


@pytest.mark.parametrize(("called", "kind"), [("Parquet", "files"), ("csv", "files"), ("PostgreSQL", "postgres")])
def test_an_endpoint_is_found_by_the_name_that_the_documents_use(
    called: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage: a reader of the documents asks for Parquet, and gets the answer that there is no such endpoint."""
    assert main(["driver", "spec", called, "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["endpoint"] == kind


def test_an_endpoint_that_is_not_known_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: a typing error prints a traceback."""
    assert main(["driver", "spec", "duckbd"]) != Exit.OK
    known = ", ".join(map(repr, DRIVERS))
    assert capsys.readouterr().err == f"strandline: there is no endpoint 'duckbd'; there is {known}\n"


class Openers:
    """Gives an environment, and remembers how it was opened."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.asked: list[tuple[Any, ...]] = []

    def project(self, root: Path) -> Path:
        return root

    def changing(self, project: Path, note: object, *, whole: bool) -> Openers:
        self.opened.append("changing")
        return self

    def looking(self, project: Path) -> Openers:
        self.opened.append("looking")
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def backfill(self, name: str, collection: str | None, *, apply: bool) -> dict[str, Any]:
        self.asked.append((name, collection, apply))
        tables = [{"collection": "orders", "table": "Orders", "backfill": 2}]
        return {"name": name, "applied": apply, "tables": tables, "actions": ["table 'Orders' is filled"]}


@pytest.mark.parametrize(("apply", "last"), [(False, "nothing is changed; --apply does it"), (True, "done: the next")])
def test_a_backfill_is_said_before_it_is_done(apply: bool, last: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: asking what a backfill would do does it, or takes the location from the process that runs."""
    openers: Any = Openers()
    endpoints.backfill(openers, Path(), "out", "orders", Output(json=False), apply=apply)
    assert openers.opened == ["changing" if apply else "looking"]
    assert openers.asked == [("out", "orders", apply)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "Orders: filled again from the start of orders (backfill 2)",
        "endpoint: table 'Orders' is filled",
    ]
    assert lines[2].startswith(last)


class Syncing(Openers):
    """Gives an environment that another process writes, or none."""

    def __init__(self, writer: str | None) -> None:
        super().__init__()
        self.writer = writer

    def reading(self, project: Path, note: object) -> Syncing:
        self.opened.append("reading")
        return self

    def written_by(self) -> str | None:
        return self.writer

    def sync_now(self, name: str, timeout: float) -> int:
        self.asked.append((name, timeout))
        return 7


@pytest.mark.parametrize(("writer", "opened"), [("host-1", ["reading"]), (None, ["reading", "changing"])])
def test_a_sync_is_done_by_the_process_that_writes_or_else_here(
    writer: str | None, opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage: a sync takes the location from the process that runs, or waits for one that does not run."""
    openers: Any = Syncing(writer)
    endpoints.sync(openers, Path(), "out", 5.0, Output(json=False))
    assert openers.opened == opened
    assert openers.asked == [("out", 5.0)]
    assert capsys.readouterr().out.splitlines() == ["out: all before 7 is there"]
