"""What docs/statements.md shows is true."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.algebra import types
from strandline.client import Transaction, Updates
from strandline.controller.language import statements, unsupported
from strandline.controller.language.showing import Show, Shown, Subscribe
from strandline.errors import DefinitionError
from strandline.options import PLACE, TEXT, option
from strandline.sources.kinds import ConnectionKind
from strandline.sources.reader import ReaderKind, SourceReader
from strandline.testing.kinds import TablesReader
from strandline.testing.lists.list_source import Upstream
from strandline.wiring import registry

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "statements.md").read_text()
EXAMPLES = "\n".join(re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL))


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How a server of the page is reached."""

    servers: str | None = option(TEXT, "Brokers.", default=None)
    sasl: str | None = option(TEXT, "How to log in.", default=None)
    host: str | None = option(TEXT, "A host.", default=None)
    user: str | None = option(TEXT, "A user.", default=None)
    password: str | None = option(PLACE, "A password.", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Server):
    """What the page says of sources."""

    topic: str | None = option(TEXT, "A topic.", default=None)
    publication: str | None = option(TEXT, "A publication.", default=None)
    format: str | None = option(TEXT, "An encoding.", default=None)
    key: str | None = option(TEXT, "Columns.", default=None)
    key_format: str | None = option(TEXT, "An encoding.", default=None)
    envelope: str | None = option(TEXT, "An envelope.", default=None)
    include_timestamp: str | None = option(TEXT, "A column.", default=None)
    include_offset: str | None = option(TEXT, "A column.", default=None)


@pytest.fixture
def upstreams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an upstream in memory, which stays empty, be read in the place of each server; what is there is checked."""

    async def nothing(*_: object) -> SourceReader:
        return TablesReader(Upstream())

    monkeypatch.setitem(cast("Any", registry.READERS), "files", replace(registry.READERS["files"], ask=None))
    for name, tables in (("kafka", False), ("postgres", True)):
        made = ReaderKind(name, Read, nothing, connections={"connection": ConnectionKind(name, Server)}, tables=tables)
        there = registry.READERS.get(name)
        kind = made if there is None or not there.connections else replace(there, open=nothing, ask_table=None)
        monkeypatch.setitem(cast("Any", registry.READERS), name, kind)
        if name not in registry.CONNECTIONS:
            monkeypatch.setitem(cast("Any", registry.CONNECTIONS), name, ConnectionKind(name, Server))


def test_the_page_lists_the_column_types_that_are_refused_and_why() -> None:
    """Else an author learns of it from a refusal, or believes that a type is kept."""
    rows = dict(re.findall(r"^\| `([A-Z]+[^`]*)` \| ([^|`]*) \|$", PAGE.split("| refused type |")[1], re.MULTILINE))
    for written, reason in rows.items():
        with pytest.raises(DefinitionError, match=re.escape(f"cannot be kept: {reason}")):
            types.parse("c", f"array<{written}>")
    assert sorted(rows.values()) == sorted(types.REFUSED.values())


@pytest.mark.spark
@pytest.mark.usefixtures("upstreams")
def test_the_examples_of_the_page_run_as_they_stand(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a reader copies a statement that is refused, or does something else."""
    monkeypatch.setenv("KAFKA_PASSWORD", "canary-4711")
    (tmp_path / "pg").write_text("canary-4711")
    script = (
        EXAMPLES.replace("/run/secrets", str(tmp_path))
        .replace("/tmp/visits/", f"{tmp_path}/")
        .replace(":memory:", f"{tmp_path}/dashboard.duckdb")
    )
    answers, shown, updates = [], dict[Shown, Any](), list[Any]()
    with strandline.open("memory://", spark=spark) as env:
        transaction: Transaction | None = None
        for text in statements.split(script):
            match statements.parse(text):
                case statements.Query(text=query):
                    env.tick(wait=True)
                    answers.append(sorted(tuple(row) for row in env.query(query).collect()))
                case Show(what):
                    shown[what] = [tuple(row) for row in env.query(text).collect()]
                    assert [tuple(row.values()) for row in env.answer(text)[0].to_pylist()] == shown[what]
                case Subscribe(what):
                    with closing(env.subscribe(what)) as events:
                        updates.append(next(events))
                case statements.Bracket(word="BEGIN"):
                    transaction = env.begin()
                case statements.Bracket():
                    assert transaction is not None
                    transaction.commit()
                    transaction = None
                case statement:
                    (transaction or env).execute(statement)
        assert env.verify("sales").ok
        assert env.collection("clicks").schema.names == ("user_id", "page", "clicked_at", "offset")
        assert env.status()["problems"] == {}
        customers = [(1, "Leiden"), (3, "Bern")]
        views = [("daily", "following"), ("sales", "following")]
        assert answers == [[("Bern", 1), ("Leiden", 1)], [(1,)], [("Bern",)], [(1,), (2,)], customers, views]
        assert shown[Shown.COLUMNS] == [("id", "int", None), ("city", "string", None)]
        assert shown[Shown.PLAN][0] == ("imports: customers, orders",)
        assert statements.parse(shown[Shown.CREATE][0][1]).query == "SELECT city, amount FROM sales"
        assert isinstance(updates[0], Updates)
        assert [(row["id"], int(row["amount"])) for row in env.query("SELECT * FROM orders").collect()] == [(7, 5)]


def test_the_page_shows_each_kind_of_statement() -> None:
    """Else there is a statement that only readers of the code know."""
    shown = {type(statements.parse(text)) for text in statements.split(EXAMPLES)}

    assert shown == set(statements.Statement.__args__)  # type: ignore[attr-defined]


def test_the_page_names_each_statement_that_is_refused_and_no_other() -> None:
    """Else a reader finds a word on the page that runs, or none for the word that does not."""
    table = PAGE[PAGE.index("| refused |") :]
    named = {word for line in table.splitlines() for word in re.findall(r"`([^`]+)`", line.split("|")[1])}
    for text in named:
        with pytest.raises(DefinitionError, match="is not supported"):
            statements.parse(f"{text} t" if text != "CREATE OR REPLACE TABLE" else f"{text} t (a INT)")

    assert {text for text in named if " " not in text} == unsupported.STATEMENTS.keys() - {"START"}
