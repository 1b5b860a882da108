"""Sources and materializations in an instance: what defining one does to the catalog and to a project.  Over lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.apply import apply
from strandline.controller.defining.creating import create
from strandline.controller.defining.project.files import load
from strandline.controller.language.statements import Drop, parse
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Materialization, SharedSource, Source, SourceTable
from strandline.errors import DefinitionError
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.endpoints import Endpoint, MemoryDriver, MemorySession
from strandline.testing.kinds import Kinds
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_source import Upstream
from strandline.testing.simulation.kernel import run_sync
from strandline.wiring.registry import Readers

COLUMNS = "(partition STRING, offset BIGINT, value BIGINT)"
X, Y = "CREATE INSTANCE X REPLICAS ()", "CREATE INSTANCE y REPLICAS ()"
HERE = "CREATE CONNECTION here TO lists (server = one)"
SOURCE = f"CREATE SOURCE s IN INSTANCE X {COLUMNS} FROM list (connection = here)"
BANK = "CREATE SOURCE bank IN INSTANCE x FROM tables (connection = here)"
ACCOUNTS = f"CREATE TABLE accounts {COLUMNS} FROM SOURCE bank (REFERENCE 'a')"
OUT = "CREATE MATERIALIZATION out IN INSTANCE x INTO memory AS s KEY (partition, offset)"


class Place:
    """A location in memory, with a server to read from and an endpoint; no replica is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._blob, self._consensus, self._clock = MemoryBlob(), MemoryConsensus(), HandClock(1_000)
        Kinds({"one": Upstream()}).install(monkeypatch.setitem)

    def open(self) -> Core:
        """Open it as a fresh process would."""
        self._clock.now += 1
        assembly = list_assembly(
            self._clock,
            CountingIds(f"at-{self._clock.now}"),
            self._blob,
            self._consensus,
            drivers=lambda *_: MemoryDriver(Endpoint(), MemorySession),
        )
        nothing = cast("Any", None)
        object.__setattr__(assembly, "connectors", Readers(self._clock, assembly.engine, nothing, nothing))
        return run_sync(Core.open(assembly, Config(), Mode.FULL))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a location of its own."""
    return Place(monkeypatch)


def do(core: Core, *texts: str) -> None:
    """Run definitions."""
    for text in texts:
        match parse(text):
            case Drop() as statement:
                run_sync(definitions.drop(core, statement))
            case statement:
                run_sync(create(core, cast("Any", statement)))


def places(core: Core) -> dict[str, str]:
    """Return the instance of each source and materialization, by name."""
    kinds = Source | SharedSource | Materialization
    return {name: item.instance for name, item in core.catalog.items.items() if isinstance(item, kinds)}


def test_sources_and_materializations_keep_the_instance_that_they_name(place: Place) -> None:
    """Damage: after a restart a source is read from two processes, or an endpoint is written from two."""
    core = place.open()
    do(core, X, HERE, SOURCE, BANK, ACCOUNTS, OUT)
    do(core, f"CREATE SOURCE o {COLUMNS} FROM list (connection = here)", "CREATE SOURCE p FROM tables (server = one)")
    do(core, "CREATE MATERIALIZATION m INTO memory AS s TO t KEY (offset)")
    assert places(core) == {"s": "x", "bank": "x", "out": "x", "o": "", "p": "", "m": ""}
    assert isinstance(core.catalog.find("accounts"), SourceTable), "it runs where its source does, and says nothing"
    there = core.catalog.items
    run_sync(core.close())
    assert place.open().catalog.items == there


def test_an_instance_is_dropped_after_the_sources_and_materializations_in_it(place: Place) -> None:
    """Damage: a source or an endpoint is left without the processes that run it, and stands still for ever."""
    core = place.open()
    do(core, X, Y, HERE, SOURCE, BANK, ACCOUNTS, OUT)
    for last in ("MATERIALIZATION out", "TABLE accounts", "SOURCE bank", "SOURCE s"):
        with pytest.raises(DefinitionError, match=r"'X' is used by .*\bs; drop that first"):
            do(core, "DROP INSTANCE x")
        do(core, f"DROP {last}")
    do(core, "DROP INSTANCE x", "DROP INSTANCE y")
    assert set(core.catalog.items) == {"here"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"CREATE SOURCE t\nIN INSTANCE xx {COLUMNS} FROM list (server = one)",
            "2:13 there is no instance 'xx'; did you mean 'x'?",
        ),
        ("CREATE SOURCE t IN INSTANCE here FROM tables (server = one)", "1:29 there is no instance 'here'"),
        ("CREATE SOURCE t IN INSTANCE s FROM tables (sever = one)", "1:29 there is no instance 's'"),
        (
            "CREATE MATERIALIZATION t\n IN INSTANCE `Xx` INTO memory AS s KEY (offset)",
            "2:14 there is no instance 'Xx'; did you mean 'x'?",
        ),
        ("CREATE MATERIALIZATION t IN INSTANCE s INTO memory AS none", "1:38 there is no instance 's'"),
    ],
)
def test_an_instance_that_is_not_there_is_refused_where_it_is_named(place: Place, text: str, said: str) -> None:
    """Damage: a source is defined that nothing runs; or its author looks for the mistake."""
    core = place.open()
    do(core, X, HERE, SOURCE)
    before = core.catalog
    with pytest.raises(DefinitionError) as refused:
        do(core, text)
    position = refused.value.position
    assert position is not None
    assert f"{position.line}:{position.column} {refused.value.message}".startswith(said)
    assert core.catalog == before, "a refused definition changes nothing"


def test_a_connection_that_is_replaced_leaves_its_sources_in_their_instance(place: Place) -> None:
    """Damage: a new password moves a source into the process of the environment, beside the replicas."""
    core = place.open()
    do(core, X, HERE, SOURCE, BANK)
    do(core, HERE.replace("CREATE", "CREATE OR REPLACE"), "CREATE OR REPLACE INSTANCE x REPLICAS ()")
    assert places(core) == {"s": "x", "bank": "x"}


def test_a_project_makes_instances_first_and_refuses_another_one(place: Place, tmp_path: Path) -> None:
    """Damage: a project cannot be applied to a new location; or a source is moved to other processes unasked."""
    core = place.open()
    files = {
        "strandline.yml": "location: data\ninstances: {x: {}, y: {}}",
        "connections/here.sql": HERE,
        "sources/s.yml": f"from: list\nconnection: here\ncolumns: {COLUMNS[1:-1]}\ninstance: X",
        "sources/o.sql": f"CREATE SOURCE o {COLUMNS} FROM list (connection = here)",
        "sources/bank.sql": BANK,
        "tables/accounts.sql": ACCOUNTS,
        "materializations/out.yml": "into: memory\ninstance: x\ncollections: [{collection: s, key: [offset]}]",
    }

    def applied(name: str = "", text: str = "") -> tuple[str, ...]:
        for each, there in (files | ({name: text} if name else {})).items():
            path = tmp_path / each
            path.parent.mkdir(exist_ok=True)
            path.write_text(there)
        return run_sync(apply(core, load(tmp_path))).created

    assert applied() == ("x", "y", "here", "bank", "o", "s", "accounts", "out")
    assert places(core) == {"s": "x", "bank": "x", "out": "x", "o": ""}
    there = core.catalog
    assert applied() == ()
    assert applied("sources/s.yml", f"{files['sources/s.yml']}\nkeep_history: 3 hours") == ()
    assert places(core)["s"] == "x", "what may change leaves it in its instance"
    assert applied("sources/s.yml", files["sources/s.yml"]) == ()
    for name, before, after, said in (
        ("sources/s.yml", "instance: X", "instance: y", "'s': it was created with instance 'x'; put the"),
        ("sources/s.yml", "\ninstance: X", "", "'s': it was created with instance 'x'; put the"),
        ("sources/bank.sql", " IN INSTANCE x", "", "'bank': it was created with instance 'x'; put the"),
        ("sources/o.sql", "o (", "o IN INSTANCE y (", "'o': it was created with no instance; put the"),
        ("materializations/out.yml", "instance: x", "instance: Y", "'out': it was created with instance 'x'; put the"),
    ):
        assert before in files[name]
        with pytest.raises(DefinitionError, match=f"{name}: {said}"):
            applied(name, files[name].replace(before, after))
        assert core.catalog == there
