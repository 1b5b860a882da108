"""A source of PostgreSQL that stops goes on by each way out that its problem names.  Over lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest
from tests.controller.ways.site import Case, Site, take, ways_of

from strandline.problem import Way
from strandline.sources.reader import Surroundings
from strandline.sources.readers.postgres import slot
from strandline.sources.readers.postgres.added import COLUMN_LATE
from strandline.sources.readers.postgres.kind import opened
from strandline.sources.readers.postgres.ledger import Ledger
from strandline.sources.readers.postgres.options import PostgresOptions
from strandline.sources.readers.postgres.pgoutput import Identity
from strandline.sources.readers.postgres.reader import PostgresReader
from strandline.sources.readers.postgres.server import SlotStanding
from strandline.sources.readers.postgres.tables import COLUMN_LACKING, KEY_LACKING, TABLE_LEFT, TABLE_STOPPED
from strandline.store.memory import MemoryBlob
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.postgres.list_postgres import ListDatabase, ListServer, insert

DEFINITION: Final = (
    "CREATE SOURCE bank FROM postgres (host = 'h', user = 'u', database = 'd', publication = 'p')",
    "CREATE TABLE a (id INT, n INT, v STRING) FROM SOURCE bank (REFERENCE 'public.t')",
    "CREATE TABLE b (id INT, n INT, v STRING) FROM SOURCE bank (REFERENCE 'public.u')",
    "CREATE MATERIALIZED VIEW v AS SELECT a.id AS id FROM a",
)


@dataclass
class Server:
    """A database of two tables, and readers of it."""

    database: ListDatabase = field(default_factory=ListDatabase)
    slots: set[str] = field(default_factory=set)
    """Of which sources there is, or was, a slot: each has one of its own."""

    def __post_init__(self) -> None:
        for name in "tu":
            self.database.create(name, Identity.DEFAULT, id="*integer", n="text", v="text")
        self.database.commit(insert("t", (b"1", b"1", b"at first")))

    async def reader(self, given: Surroundings) -> PostgresReader:
        """Open a reader."""
        shard = await given.progress()
        if self.slots and shard.shard not in self.slots:
            self.database = replace(self.database, slot=None)
        self.slots.add(shard.shard)
        ledger = await Ledger.open(shard, given.epoch)
        options, engine = PostgresOptions(user="u", publication="p"), ListEngine(MemoryBlob())
        more: Any = {"item": given.name, "collections": given.collections, "gained": given.gained}
        return await opened(ListServer(self.database), engine, ledger, given.schemas, options, "s", **more)


def begin(site: Site) -> None:
    """Define a source of two tables, and a view over one."""
    site.execute(*DEFINITION)


def harmed(harm: Callable[[ListDatabase], object]) -> Callable[[Site], object]:
    """Return what harms the database."""
    return lambda site: harm(site.upstream.database)


def grows(*ids: int) -> Callable[[Site], None]:
    """Return what asserts the rows of the view, once another row has come; the other table goes on, too."""

    def then(site: Site) -> None:
        site.upstream.database.commit(insert("t", (b"9", b"9", None)), insert("u", (b"9", b"9", None)))
        site.clean()
        assert site.rows("v") == [(n,) for n in (*ids, 9)]
        assert [row[0] for row in site.rows("b")] == [9]

    return then


def drop_slot(database: ListDatabase) -> None:
    """Drop the slot, and go on."""
    database.slot = None
    database.commit(insert("t", (b"2", b"2", None)))


def lose_slot(database: ListDatabase) -> None:
    """Have the server invalidate the slot."""
    assert database.slot is not None
    database.slot = replace(database.slot, lost="wal_removed")


def move_slot(database: ListDatabase) -> None:
    """Have another session confirm what was not read."""
    database.commit(insert("t", (b"2", b"2", None)))
    database.slot = SlotStanding("pgoutput", "d", database.at)


def go_back(database: ListDatabase) -> None:
    """Have the server lose log that was read."""
    database.at -= 50


def elsewhere(database: ListDatabase) -> None:
    """Have another cluster answer."""
    database.system = "2"


def unpublish(database: ListDatabase) -> None:
    """Take a table out of the publication, and put it in again: changes were left out."""
    database.leave("t")
    database.commit(insert("t", (b"2", b"2", None)))
    database.join("t")


def partly(database: ListDatabase) -> None:
    """Have the publication leave out deletes."""
    database.unpublished = ("delete",)


def alone(site: Site) -> None:
    """Define a source without tables."""
    site.execute(DEFINITION[0])


def late(columns: str, prepare: Callable[[ListDatabase], object] = lambda _: None) -> Callable[[Site], None]:
    """Return what defines a table, of ``columns``, of one that upstream has got."""

    def harm(site: Site) -> None:
        database = site.upstream.database
        database.create("w", Identity.DEFAULT, id="*integer", n="text")
        prepare(database)
        declare(columns)(site)

    return harm


def declare(columns: str) -> Callable[[Site], None]:
    """Return what defines the table."""
    return lambda site: site.execute(f"CREATE TABLE c ({columns}) FROM SOURCE bank (REFERENCE 'public.w')")


def redeclare(columns: str) -> Callable[[Site], None]:
    """Return what drops the table, and defines it with other columns."""

    def mend(site: Site) -> None:
        site.execute("DROP TABLE c")
        declare(columns)(site)

    return mend


def identity_full(database: ListDatabase) -> None:
    """Do ALTER TABLE … REPLICA IDENTITY FULL."""
    database.tables["w"] = replace(database.tables["w"], identity=Identity.FULL)


def lose_column(database: ListDatabase) -> None:
    """Drop a declared column, and change a row."""
    database.drop_column("t", "v")
    database.commit(insert("t", (b"2", b"2")))


def taken(site: Site) -> None:
    """Define the source while another's slot has its name."""
    site.upstream.database.slot = SlotStanding("pgoutput", "d", 100)
    begin(site)


def other_plugin(database: ListDatabase) -> None:
    """Have another slot in the place of the source's."""
    assert database.slot is not None
    database.slot = replace(database.slot, plugin="test_decoding")


def renamed(site: Site) -> None:
    """Drop the source, and create it with another name for its slot."""
    site.execute("DROP MATERIALIZED VIEW v", "DROP TABLE a", "DROP TABLE b", "DROP SOURCE bank")
    begin(site)


WHOLE: Final = "id INT, n STRING"


def keyless(site: Site) -> None:
    """Define a source of three tables, of which one has no key."""
    begin(site)
    site.upstream.database.create("w", Identity.FULL, id="integer", n="text")
    declare(WHOLE)(site)


def late_column(site: Site) -> None:
    """Add a column after a row came with a value in it."""
    database = site.upstream.database
    database.add_column("w", "z")
    database.commit(insert("w", (b"1", b"a", b"x")))
    site.tick()
    site.execute("ALTER TABLE c ADD COLUMN z STRING")
    database.commit(insert("w", (b"2", b"b", b"y")))


def two_there(site: Site) -> None:
    """Assert that the table has both rows."""
    assert [row[0] for row in site.rows("c")] == [1, 2]


CASES: Final = [
    Case(
        slot.SLOT_TAKEN,
        "bank",
        lambda _: None,
        taken,
        {
            slot.SLOT_TAKEN.ways[0].what: harmed(lambda database: setattr(database, "slot", None)),
            slot.SLOT_TAKEN.ways[1].what: renamed,
        },
        grows(1),
    ),
    Case(slot.SLOT_OTHER, "bank", begin, harmed(other_plugin), {slot.SLOT_OTHER.ways[0].what: renamed}, grows(1)),
    Case(
        slot.UNPUBLISHED,
        "c",
        begin,
        late(WHOLE, lambda database: database.leave("w")),
        {slot.UNPUBLISHED.ways[0].what: harmed(lambda database: database.join("w"))},
        grows(1),
    ),
    Case(
        slot.KINDS,
        "c",
        alone,
        late(WHOLE, partly),
        {slot.KINDS.ways[0].what: harmed(lambda database: setattr(database, "unpublished", ()))},
    ),
    Case(
        KEY_LACKING,
        "c",
        begin,
        late("n STRING"),
        {KEY_LACKING.ways[0].what: redeclare(WHOLE), KEY_LACKING.ways[1].what: harmed(identity_full)},
        grows(1),
    ),
    Case(
        COLUMN_LACKING,
        "c",
        begin,
        late(f"{WHOLE}, z INT"),
        {
            COLUMN_LACKING.ways[0].what: redeclare(WHOLE),
            COLUMN_LACKING.ways[1].what: harmed(lambda database: database.add_column("w", "z")),
        },
        grows(1),
    ),
    Case(
        TABLE_STOPPED,
        "a",
        begin,
        harmed(lose_column),
        {TABLE_STOPPED.ways[0].what: harmed(lambda database: database.add_column("t", "v"))},
        grows(1, 2),
    ),
    Case(COLUMN_LATE, "c", keyless, late_column, then=two_there),
    Case(slot.SLOT_LOST, "bank", begin, harmed(lose_slot), then=grows(1)),
    Case(slot.SLOT_MOVED, "a", begin, harmed(move_slot), then=grows(1, 2)),
    Case(slot.SERVER_BACK, "bank", begin, harmed(go_back), then=grows()),
    Case(
        slot.OTHER_DATABASE,
        "bank",
        begin,
        harmed(elsewhere),
        {slot.OTHER_DATABASE.ways[0].what: lambda site: setattr(site.upstream.database, "system", "1")},
        grows(1),
    ),
    Case(TABLE_LEFT, "a", begin, harmed(unpublish), then=grows(1, 2)),
    Case(slot.SLOT_DROPPED, "bank", begin, harmed(drop_slot), then=grows(1, 2)),
]


@pytest.mark.parametrize(("case", "way"), ways_of(CASES))
def test_a_source_of_postgres_goes_on_by_what_its_problem_advises(
    case: Case, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a slot that was dropped costs all views and endpoints above it, by hand; or neighbours stand, too."""
    server = Server()
    site = Site(tmp_path, doubles={"postgres": server.reader}, upstream=server)
    take(case, way, site, monkeypatch)
    site.env.close()
