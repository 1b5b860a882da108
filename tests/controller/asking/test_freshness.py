"""A first load, a first result and staleness are shown apart.  Over lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest

from strandline.controller.asking.status import progress, status
from strandline.controller.core import Core
from strandline.controller.defining.creating import create
from strandline.controller.language.statements import parse
from strandline.controller.location.config import Config, Mode
from strandline.errors import Unavailable
from strandline.frontier import told
from strandline.instance.beginnings import Beginning
from strandline.persist.handles.contents import Rows
from strandline.sources.kinds import SnapshotProgress
from strandline.sources.reclock import Slice
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing import kinds
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.kinds import Kinds, TablesReader
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_source import Upstream
from strandline.testing.simulation.kernel import run_sync
from strandline.wiring import registry
from strandline.wiring.registry import Readers

DEFINITIONS = (
    "CREATE SOURCE bank FROM tables (server = one)",
    "CREATE TABLE accounts (partition STRING, offset BIGINT, value BIGINT) FROM SOURCE bank (REFERENCE 'a')",
    "CREATE MATERIALIZED VIEW v AS SELECT a.value AS value FROM accounts a",
    "CREATE TABLE t (k STRING)",
)


@pytest.fixture
def upstream() -> Upstream:
    """Return an upstream with a row."""
    made = Upstream()
    made.produce("a", 1)
    return made


@pytest.fixture
def clock() -> HandClock:
    """Return the clock of the location."""
    return HandClock(1_000)


@pytest.fixture
def reader_class() -> type[TablesReader]:
    """Return the class of the source's reader."""
    return TablesReader


@pytest.fixture
def core(
    upstream: Upstream, clock: HandClock, reader_class: type[TablesReader], monkeypatch: pytest.MonkeyPatch
) -> Core:
    """Return an environment with a source of tables, a view over one of them, and a table."""
    monkeypatch.setattr(kinds, "TablesReader", reader_class)
    Kinds({"one": upstream}).install(monkeypatch.setitem)
    assembly = list_assembly(clock, CountingIds("p"), MemoryBlob(), MemoryConsensus())
    nothing = cast("Any", None)
    object.__setattr__(assembly, "connectors", Readers(clock, assembly.engine, nothing, nothing))
    opened = run_sync(Core.open(assembly, Config(), Mode.FULL))
    for text in DEFINITIONS:
        run_sync(create(opened, cast("Any", parse(text))))
    return opened


def found(core: Core, name: str) -> dict[str, Any]:
    """Return the status of a collection."""
    return cast("dict[str, Any]", run_sync(status(core))["collections"][name])


def test_a_source_snapshots_a_view_hydrates_and_then_they_follow(core: Core, upstream: Upstream) -> None:
    """Damage: "behind" means a first load of a day, or a view that was never computed, or one second."""
    upstream.down = True
    run_sync(core.tick())
    assert [found(core, name)["phase"] for name in ("accounts", "v", "t")] == ["snapshotting", "hydrating", "following"]
    assert found(core, "accounts")["first"] == {"rows": 0, "about": None, "ms": None}
    assert found(core, "accounts")["lag"] == {"ms": None, "rows": 0}
    assert [found(core, name)["updates"] for name in ("accounts", "v")] == [0, 0]
    here, core.writing = core.writing, None
    assert found(core, "accounts")["first"] is None, "another process that cannot be asked may know"
    core.writing = here
    assert progress(core)["first"]["accounts"] == {"phase": "snapshotting", "rows": 0, "about": None}
    upstream.down = False
    run_sync(core.tick())
    assert [found(core, name)["phase"] for name in ("accounts", "v")] == ["following", "following"]
    assert found(core, "accounts")["first"] is None
    assert progress(core)["first"] == {}


def test_what_is_not_rows_upstream_is_not_called_rows(
    core: Core, upstream: Upstream, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a table is 40 000 rows behind, and it is one row: bytes of PostgreSQL's log were counted."""
    monkeypatch.setitem(cast("Any", registry.READERS), "tables", replace(registry.READERS["tables"], counts="bytes"))
    run_sync(core.tick())
    upstream.produce("a", 2)
    run_sync(core.ingest(step=False))
    lag = found(core, "accounts")["lag"]
    assert (lag["rows"], lag["bytes"] > 0) == (None, True)
    assert told({**lag, "ms": None}) == f"{lag['bytes']} bytes"
    assert "bytes" not in found(core, "v")["lag"], "what a view has not seen are rows"
    assert [registry.READERS[name].counts for name in ("postgres", "files", "kafka")] == ["bytes", "files", "messages"]


def test_lag_is_in_time_and_in_rows(core: Core, upstream: Upstream, clock: HandClock) -> None:
    """Damage: a dashboard shows yesterday's numbers, and `status` shows that all is well."""
    run_sync(core.tick())
    upstream.produce("a", 2, 3)
    run_sync(core.ingest())  # the views do not step
    clock.now += 60_000
    assert found(core, "v")["lag"]["rows"] == 2
    assert found(core, "v")["lag"]["ms"] >= 60_000
    run_sync(core.tick())
    assert found(core, "v")["lag"] == {"ms": 0, "rows": 0}
    upstream.produce("a", 4)
    run_sync(core.ingest(step=False))  # it is bound and not read
    assert found(core, "accounts")["lag"]["rows"] == 1
    assert found(core, "accounts")["source"] == "bank"
    assert found(core, "accounts")["durable_records"] == 3


class Reporting(TablesReader):
    """A reader in the middle of a snapshot.  Not a patched `TablesReader`: Python remembers what a class can do."""

    meanwhile: ClassVar[Callable[[], object]]

    def snapshots(self) -> tuple[SnapshotProgress, ...]:
        """See `ReportsSnapshots`."""
        return (SnapshotProgress("a", 7, 10),)

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """See `SourceReader.read`."""
        type(self).meanwhile()
        raise Unavailable("not yet")


@pytest.mark.parametrize("reader_class", [Reporting])
def test_a_reader_says_how_far_its_snapshot_is(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a snapshot of a day shows no sign of life."""
    seen: list[Beginning] = []
    monkeypatch.setattr(Reporting, "meanwhile", lambda: seen.extend(core.beginnings()), raising=False)
    run_sync(core.tick())
    (accounts,) = [each for each in seen if each.name == "accounts"]
    assert (accounts.verb, accounts.rows, accounts.about) == ("snapshotting", 7, 10)
    assert accounts.since_ms is not None
    assert found(core, "accounts")["first"] == {"rows": 7, "about": 10, "ms": None}


def test_sources_and_connections_are_listed(core: Core) -> None:
    """Damage: a source without a collection of its own is nowhere, and its problem neither."""
    run_sync(create(core, cast("Any", parse("CREATE CONNECTION here TO lists (server = one)"))))
    told = run_sync(status(core))
    assert told["sources"]["bank"] == {
        "connector": "tables",
        "connections": [],
        "tables": ["accounts"],
        "notices": [],
        "notice_cases": [],
        "waiting": None,
        "problem": None,
        "cases": [],
    }
    assert told["connections"] == {"here": {"to": "lists", "used_by": []}}
