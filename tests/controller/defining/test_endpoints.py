"""The endpoints of a project: names that are not known are refused before anything changes.  Over lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.controller.core import Core
from strandline.controller.defining.apply import apply
from strandline.controller.defining.project.files import load
from strandline.controller.location.config import Config, Mode
from strandline.errors import DefinitionError
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.endpoints import Endpoint, MemoryDriver, MemorySession
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.simulation.kernel import run_sync

TABLE = "CREATE TABLE t (k INT)"


def core() -> Core:
    """Open a location in memory whose only drivers are called memory and duckdb."""
    assembly = list_assembly(
        HandClock(1_000),
        CountingIds(),
        MemoryBlob(),
        MemoryConsensus(),
        drivers=lambda *_: MemoryDriver(Endpoint(), MemorySession),
    )
    object.__setattr__(assembly, "endpoints", ("memory", "duckdb"))
    return run_sync(Core.open(assembly, Config(), Mode.FULL))


def refused(root: Path, endpoints: str, into: str | None) -> str:
    """Apply a project with these endpoints and a materialization; return what is said against it."""
    for name, text in {
        "strandline.yml": f"location: data\nendpoints: {endpoints}",
        "tables/t.sql": TABLE,
        **(
            {}
            if into is None
            else {"materializations/m.yml": f"into: {into}\ncollections: [{{collection: t, key: [k]}}]"}
        ),
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    opened = core()
    with pytest.raises(DefinitionError) as said:
        run_sync(apply(opened, load(root)))
    assert not opened.catalog.items, "nothing was created"
    return str(said.value)


def test_an_endpoint_that_no_one_defines_is_named_with_the_projects_own(tmp_path: Path) -> None:
    """Damage: a misspelt endpoint is answered by a list of drivers, and not of the endpoints that were meant."""
    endpoints = "{warehouse: {driver: memory}, files: {driver: duckdb}}"
    said = refused(tmp_path, endpoints, "nowhere")
    assert said == (
        "materializations/m.yml: there is no endpoint 'nowhere'; the project's endpoints are: warehouse, files; "
        "the drivers are: memory, duckdb"
    )
    assert "did you mean 'warehouse'?" in refused(tmp_path, endpoints, "warehose")


def test_an_endpoint_that_nothing_uses_yet_needs_a_driver_that_there_is(tmp_path: Path) -> None:
    """Damage: a misspelt driver is found out only once a materialization uses it, in another file."""
    said = refused(tmp_path, "{unused: {driver: duckbd}}", None)
    assert said.startswith("strandline.yml: endpoint 'unused': there is no driver 'duckbd'; did you mean 'duckdb'?")


def test_a_driver_may_be_named_where_an_endpoint_may(tmp_path: Path) -> None:
    """Damage: the short form, without an endpoint of a name, is refused."""
    opened: Any = core()
    (tmp_path / "strandline.yml").write_text("location: data")
    for name, text in {
        "tables/t.sql": TABLE,
        "materializations/m.sql": "CREATE MATERIALIZATION m INTO memory AS t KEY (k)",
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    assert run_sync(apply(opened, load(tmp_path))).created == ("t", "m")
