"""Columns that a table gets upstream, over a server in memory: what is held is what upstream has, new columns too."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from msgspec import structs

from strandline.algebra.messages import GONE, KEPT, ORDER
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.errors import SourceError
from strandline.persist.client import PersistClient
from strandline.sources.reader import ColumnsAdded, Keyed, Surroundings
from strandline.sources.readers.postgres import added, slot
from strandline.sources.readers.postgres.kind import opened, require_wider
from strandline.sources.readers.postgres.ledger import Ledger
from strandline.sources.readers.postgres.options import PostgresOptions
from strandline.sources.readers.postgres.pgoutput import Identity
from strandline.sources.readers.postgres.tables import Reading
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.postgres.list_postgres import ListDatabase, ListServer, delete, insert, update

TABLE = "public.t"
SCHEMA = Schema((Column("id", "int"), Column("v", "string")))
HISTORIES = 60
BOTH = pytest.mark.parametrize("identity", [Identity.DEFAULT, Identity.FULL], ids=["keyed", "full"])


class Place:
    """A table upstream, and what a source holds of it, as the core brings it on."""

    def __init__(self, identity, *, evolving=True):
        self.database, self.schema, self.evolving = ListDatabase(), SCHEMA, evolving
        self.database.create("t", identity, id="*integer", v="text")
        self.blob, self.consensus, self.processes = MemoryBlob(), MemoryConsensus(), count()
        self.engine = ListEngine(self.blob)
        self.held, self.newest = Counter(), {}
        self.upper, self.time = NOTHING_READ, 0
        self.reader = None

    async def open(self):
        """Open the source as a fresh process would."""
        client = PersistClient(HandClock(), CountingIds(f"p{next(self.processes)}"), self.blob, self.consensus)
        ledger = await Ledger.open(await client.records("ledger", 1), 1)
        around = Surroundings(
            HandClock(), {TABLE: self.schema}, self.engine, None, None, 1, None,
            frozenset({TABLE} if self.evolving else {}), {TABLE: "ALTER TABLE `t`"},
        )  # fmt: skip
        options = PostgresOptions(user="u", publication="p")
        self.reader = await opened(
            ListServer(self.database), self.engine, ledger, around.schemas, options, "s",
            evolving=around.evolving, gained=around.gained,item="s")  # fmt: skip

    def add(self, *columns):
        """Add columns here."""
        self.schema = self.with_columns(columns)
        self.reader = None

    def with_columns(self, names):
        """The columns here, and these."""
        return Schema((*self.schema, *(Column(name, "string") for name in names)))

    async def ask(self, *columns):
        """Ask whether columns can be added, as ALTER TABLE does."""
        client = PersistClient(HandClock(), CountingIds(f"p{next(self.processes)}"), self.blob, self.consensus)
        ledger = await Ledger.open(await client.records("ledger", 1), 1)
        await require_wider(ListServer(self.database), ledger, {TABLE: self.with_columns(columns)}, "p")

    async def tick(self):
        """Bind how far upstream can be read, and make it durable; a column that upstream got comes first."""
        self.time += 1
        bound = None
        for _ in range(9):
            if self.reader is None:
                await self.open()
            try:
                begins = await self.reader.snapshot(TABLE) if self.upper == NOTHING_READ else NOTHING_READ
                bound = bound or (await self.reader.upstream_frontier()).join(begins)
                found = await self.reader.read([Slice(self.time, self.upper, bound)], table=TABLE, locate=True)
            except ColumnsAdded as new:
                self.add(*(column.name for column in new.columns))
            else:
                return self.take(listed(found).rows, bound)
        raise AssertionError("the columns that were added are said to be lacking again")

    def take(self, rows, upper):
        kind = self.reader.records(TABLE)
        for row in sorted(rows, key=lambda row: row.get(ORDER) or 0):
            assert not row.get(ERROR)
            said = {name: row.get(name) for name in self.schema.names}
            if not isinstance(kind, Keyed):
                self.held[_row(said)] += row[DIFF]
                continue
            before = self.newest.pop(row["id"], {})
            if not row[GONE]:
                self.newest[row["id"]] = said | {name: before.get(name) for name in row[KEPT] or ()}
        assert {row[TIME] for row in rows} <= {self.time}
        if isinstance(kind, Keyed):
            self.held = Counter(map(_row, self.newest.values()))
        self.upper = upper

    def upstream(self):
        """What upstream has now, of the columns that are here."""
        names = [column.name for column in self.database.tables["t"].columns]
        rows = self.database.contents(self.database.at)["t"]
        return Counter(_row(_said(dict(zip(names, row, strict=True)), self.schema)) for row in rows)


def _said(row, schema):
    found = {name: None if row.get(name) is None else row[name].decode() for name in schema.names}
    return found | {"id": int(found["id"])}


def _row(said):
    """A row without the columns that are NULL: those from before a column was added are none."""
    return tuple(sorted((name, value) for name, value in said.items() if value is not None))


@BOTH
def test_a_column_that_upstream_gets_comes_with_its_first_value(identity):
    """Damage: the first values of a new column are lost, or rows from before it cannot go any longer."""

    async def body():
        place = Place(identity)
        database = place.database
        database.commit(insert("t", (b"1", b"a")), insert("t", (b"2", b"b")))
        await place.tick()
        database.commit(insert("t", (b"3", b"c")))
        database.add_column("t", "w")
        database.commit(insert("t", (b"4", b"d", b"x")), update("t", (b"1", b"a", None), (b"1", b"a", b"y")))
        await place.tick()
        assert place.schema.names == ("id", "v", "w")
        assert place.held == place.upstream()
        note = place.reader._ledger.tables[TABLE]
        assert ([column.name for column in note.columns], note.others) == (["id", "v", "w"], ()), "it is no other one"
        database.commit(delete("t", (b"2", b"b", None)), delete("t", (b"4", b"d", b"x")))
        await place.open()
        await place.tick()
        assert place.held == place.upstream()
        assert place.reader.notices() == ()

    asyncio.run(body())


def history(seed, identity, *, evolving=True):
    """Drive a random history; return the place, each of whose ticks held what upstream had."""

    async def body():
        chance = random.Random(seed)
        place = Place(identity, evolving=evolving)
        database, numbers = place.database, count(1)
        for _ in range(chance.randrange(4, 14) if evolving else 20):
            rows = list(database.contents(database.at)["t"])
            width = len(database.tables["t"].columns)
            match chance.choice(["add", "insert", "insert", "update", "update", "delete", "tick", "tick", "crash"]):
                case "add" if width < 6:
                    filled = identity is Identity.FULL and chance.random() < 0.3
                    database.add_column(
                        "t", f"c{width}", default=b"d" if filled else None, rewrites=filled and chance.random() < 0.5
                    )
                case "insert":
                    more = (chance.choice([None, b"x", b"y"]) for _ in range(width - 2))
                    database.commit(insert("t", (str(next(numbers)).encode(), b"a", *more)))
                case "update" if rows:
                    old = chance.choice(rows)
                    at = chance.randrange(1, width)
                    database.commit(update("t", old, (*old[:at], chance.choice([None, b"z"]), *old[at + 1 :])))
                case "delete" if rows:
                    database.commit(delete("t", chance.choice(rows)))
                case "tick":
                    await place.tick()
                    assert place.held == place.upstream()
                    if not evolving and chance.random() < 0.5:
                        proposed = re.findall(r"ADD COLUMNS \(`(\w+)` string", str(place.reader.notices()))
                        await place.ask(*proposed)
                        place.add(*proposed)
                case "crash":
                    place.reader = None
        await place.tick()
        assert place.held == place.upstream()
        return place

    return asyncio.run(body())


@BOTH
def test_what_is_held_is_what_upstream_has_whatever_columns_came(identity):
    """Damage: a value of a column that was added is lost, or the count of a row becomes negative."""
    places = [history(seed, identity) for seed in range(HISTORIES)]
    assert sum(len(place.schema.columns) > len(SCHEMA.columns) for place in places) > HISTORIES / 3
    assert sum(bool(place.reader.notices()) for place in places) > 0 or identity is Identity.DEFAULT


def test_a_column_that_a_notice_proposes_can_be_added_by_hand_at_any_time():
    """Damage: the statement that a notice proposes makes a table without a key stop, or its rows go otherwise."""
    places = [history(seed, Identity.FULL, evolving=False) for seed in range(HISTORIES)]
    assert sum(len(place.schema.columns) > len(SCHEMA.columns) for place in places) > HISTORIES / 10


@pytest.mark.parametrize("planted", ["default", "first values"])
def test_a_planted_mistake_is_noticed(planted, monkeypatch):
    """Damage: the test above would let a reader pass that takes a column with a default, or takes columns too late."""
    if planted == "default":
        monkeypatch.setattr(ListDatabase, "published", _unfilled(ListDatabase.published))
    else:
        monkeypatch.setattr(added.Lacked, "settle", _late(added.Lacked.settle))
    with pytest.raises(AssertionError):
        for seed in range(HISTORIES):
            history(seed, Identity.FULL)


def _unfilled(published):
    def without(database, name):
        found = published(database, name)
        return replace(found, shape=replace(found.shape, filled=frozenset()))

    return without


def _late(settle):
    async def after(lacked, reading, *bounds):
        if reading.passed:
            reading.passed.clear()
        else:
            await settle(lacked, reading, *bounds)

    return after


@BOTH
def test_a_column_that_the_table_does_not_take_is_said_and_can_be_added_by_hand(identity):
    """Damage: an operator does not learn of a column; or one that is added in time makes the table stop."""

    async def body():
        place = Place(identity, evolving=False)
        place.database.commit(insert("t", (b"1", b"a")))
        await place.tick()
        place.database.add_column("t", "w")
        place.database.commit(insert("t", (b"2", b"b", None)))
        await place.tick()
        (notice,) = place.reader.notices()
        assert "ALTER TABLE `t` ADD COLUMN" in notice
        place.add("w")
        place.database.commit(insert("t", (b"3", b"c", b"x")), delete("t", (b"1", b"a", None)))
        await place.tick()
        assert place.held == place.upstream()
        assert place.reader.notices() == ()

    asyncio.run(body())


def test_a_column_that_is_added_after_values_of_it_were_passed_over_is_refused_where_rows_have_no_key():
    """Damage: a row that was stored without the value of a column stays when upstream deletes it, with count −1."""

    async def body():
        for identity in (Identity.FULL, Identity.DEFAULT):
            place = Place(identity, evolving=False)
            await place.tick()
            place.database.add_column("t", "w")
            place.database.commit(insert("t", (b"1", b"a", b"x")))
            await place.tick()
            (notice,) = place.reader.notices()
            assert ("ADD COLUMN" in notice) == (identity is Identity.DEFAULT)
            if identity is Identity.FULL:
                with pytest.raises(SourceError, match="'public.t' cannot get the column w any longer"):
                    await place.ask("w")
            else:
                await place.ask("w")
            place.add("w")
            place.database.commit(insert("t", (b"2", b"b", b"y")))
            if identity is Identity.FULL:
                with pytest.raises(SourceError, match="'public.t' cannot get the column w any longer"):
                    await place.tick()
                continue
            await place.tick()
            assert place.held == Counter({(("id", 1), ("v", "a")): 1, (("id", 2), ("v", "b"), ("w", "y")): 1})
            (notice,) = place.reader.notices()
            assert "have NULL in it, whatever upstream has" in notice
            place.database.commit(update("t", (b"1", b"a", b"x"), (b"1", b"b", b"x")))
            await place.tick()
            assert place.held == place.upstream()

    asyncio.run(body())


def test_a_large_value_that_no_change_says_stays_null_and_the_notice_says_so():
    """Damage: an operator waits for a row to get its value by an update, and PostgreSQL does not send it."""

    async def body():
        place = Place(Identity.DEFAULT, evolving=False)
        await place.tick()
        place.database.add_column("t", "w")
        place.database.commit(insert("t", (b"1", b"a", b"large")))
        await place.tick()
        place.add("w")
        place.database.commit(update("t", (b"1", b"a", b"large"), (b"1", b"b", b"large"), kept=[2]))
        await place.tick()
        assert place.held == Counter({(("id", 1), ("v", "b")): 1})
        (notice,) = place.reader.notices()
        assert "until a change says its value; a large value that stays as it was, PostgreSQL does not send" in notice
        place.database.commit(update("t", (b"1", b"b", b"large"), (b"1", b"b", b"said")))
        await place.tick()
        assert place.held == place.upstream()

    asyncio.run(body())


def test_a_column_that_was_there_at_the_snapshot_is_taken_with_it_and_else_is_no_news():
    """Damage: a table that is to have all columns begins without some; or one that leaves some out is always warned."""

    async def body():
        for evolving in (True, False):
            place = Place(Identity.FULL, evolving=evolving)
            place.database.add_column("t", "w", default=b"x")
            place.database.commit(insert("t", (b"1", b"a", b"x")))
            await place.tick()
            assert (place.schema.names == ("id", "v", "w")) == evolving
            assert place.held == place.upstream()
            assert place.reader.notices() == ()
        place.evolving = True
        await place.open()
        await place.tick()
        (notice,) = place.reader.notices()
        assert "cannot get it here" in notice

    asyncio.run(body())


def test_upstream_is_asked_what_a_table_lacks_only_when_that_may_be_other_columns(monkeypatch):
    """Damage: each read of a table that leaves a column out asks the catalog of a busy database."""
    asked, tables = [], ListServer.tables

    async def counted(server, only):
        asked.append(only)
        return await tables(server, only)

    monkeypatch.setattr(ListServer, "tables", counted)

    async def body():
        place = Place(Identity.FULL, evolving=False)
        place.database.add_column("t", "w")
        for tick in range(4):
            place.database.commit(insert("t", (str(tick).encode(), b"a", None)))
            asked.clear()
            await place.tick()
        assert asked == []
        place.database.add_column("t", "x")
        place.database.commit(insert("t", (b"9", b"a", None, None)))
        await place.tick()
        assert asked == [[("public", "t")]]

    asyncio.run(body())


@BOTH
def test_a_column_that_goes_or_gets_another_name_before_it_was_read_is_never_another_one(identity):
    """Damage: values that rows have in a column are NULL, because it had another name when they came."""

    async def body():
        place = Place(identity)
        await place.tick()
        place.database.add_column("t", "w")
        place.database.commit(insert("t", (b"1", b"a", b"x")))
        place.database.rename_column("t", "w", "y")
        if identity is Identity.DEFAULT:
            await place.tick()
            assert "have NULL in it, whatever upstream has" in place.reader.notices()[0]
            return
        await place.tick()
        assert place.schema == SCHEMA
        assert "cannot get it here" in place.reader.notices()[0]
        assert place.held == place.upstream()

    asyncio.run(body())


@BOTH
def test_a_column_that_was_added_and_goes_stops_the_table(identity):
    """Damage: a column that was dropped upstream is NULL from then on, as if each row had said so."""

    async def body():
        place = Place(identity)
        await place.tick()
        place.database.add_column("t", "w")
        place.database.commit(insert("t", (b"1", b"a", b"x")))
        await place.tick()
        for name in ("y", "w"):
            place.database.rename_column("t", "w" if name == "y" else "y", name)
            place.database.commit(insert("t", (b"2" if name == "y" else b"3", b"a", b"x")))
        for _ in range(2):
            with pytest.raises(SourceError, match="column 'w' is gone upstream"):
                await place.tick()
            await place.open()

    asyncio.run(body())


@BOTH
@pytest.mark.parametrize("first", [b"x", None], ids=["a value", "none"])
@pytest.mark.parametrize("goes", ["renamed", "dropped", "dropped later", "beside"])
def test_a_column_that_gets_the_name_of_another_between_two_looks_is_never_that_one(identity, goes, first):
    """Damage: the values of one column stand in another, and without a key the row's count becomes negative."""
    taken_for_another(identity, goes, first)


def taken_for_another(identity, goes, first):
    """Have a column go, whose value ``first`` row 1 has, and another come by its name."""

    async def body():
        place = Place(identity)
        database = place.database
        database.commit(insert("t", (b"0", b"q")))
        await place.tick()
        if goes == "dropped later":
            place.evolving = False
            await place.open()
        database.add_column("t", "w")
        if goes == "dropped later":  # than a look that saw it
            await place.tick()
            place.evolving, place.reader = True, None
        database.commit(insert("t", (b"1", b"a", first)))
        if goes in {"renamed", "beside"}:
            database.rename_column("t", "w", "y")
        if goes == "beside":
            database.add_column("t", "z")
        if goes in {"dropped", "dropped later"}:
            database.drop_column("t", "w")
        database.add_column("t", "w")
        width = len(database.tables["t"].columns)
        database.commit(insert("t", (b"2", *(b"new",) * (width - 1))))
        for _ in range(3):
            await place.tick()
            database.idle()
        assert place.reader.notices()
        assert ("w" in place.schema.names) == (identity is Identity.DEFAULT)
        assert [row for row in place.held if ("id", 1) in row] == [(("id", 1), ("v", "a"))]
        for row in database.contents(database.at)["t"]:
            database.commit(update("t", row, (row[0], b"again", *row[2:])))
        await place.tick()
        assert place.held == place.upstream()
        for row in database.contents(database.at)["t"]:
            database.commit(delete("t", row))
        await place.tick()
        assert not +place.held
        assert not -place.held

    asyncio.run(body())


@pytest.mark.parametrize("planted", ["renamed", "dropped", "dropped later"])
def test_a_reader_that_takes_one_column_for_another_is_noticed(planted, monkeypatch):
    """Damage: the test above would let a reader pass that knows a column by its name alone."""
    if planted == "renamed":
        monkeypatch.setattr(added, "doubted", lambda note, *_: note)
        monkeypatch.setattr(Reading, "_refuse_other", lambda *_: None)
    else:
        monkeypatch.setattr(slot, "_others", _undoubted(slot._others))
    for identity in (Identity.FULL, Identity.DEFAULT):
        with pytest.raises(AssertionError):
            taken_for_another(identity, planted, b"x")


def _undoubted(others):
    def after(note, shape, flushed):
        before = {other.number for other in note.others or ()}
        return tuple(
            other if other.number in before else structs.replace(other, doubt=0, blank=other.late)
            for other in others(note, shape, flushed)
        )

    return after


@BOTH
def test_columns_that_were_renamed_before_they_were_declared_stop_the_table(identity):
    """Damage: a value stands in the column that has the name now, and not in the one that had it when it came."""

    async def body():
        place = Place(identity, evolving=False)
        await place.tick()
        place.database.add_column("t", "w")
        place.database.commit(insert("t", (b"1", b"a", b"x")))
        place.database.rename_column("t", "w", "y")
        place.database.add_column("t", "w")
        for name in ("y", "w"):
            with pytest.raises(SourceError, match="not known before the next tick"):
                await place.ask(name)
        await place.ask("y", "w")
        place.add("y", "w")
        with pytest.raises(SourceError, match="column 'w' is another one in this change than upstream has now"):
            await place.tick()

    asyncio.run(body())


def test_one_of_two_columns_that_were_renamed_cannot_be_added_where_rows_have_no_key():
    """Damage: a row goes with a value in a column in which the row here has none, and its count becomes negative."""

    async def body():
        place = Place(Identity.FULL, evolving=False)
        await place.tick()
        place.database.add_column("t", "w")
        place.database.commit(insert("t", (b"1", b"a", b"x")))
        place.database.rename_column("t", "w", "y")
        place.database.add_column("t", "w")
        await place.tick()
        assert all("cannot get it here" in notice for notice in place.reader.notices())
        place.add("y")
        with pytest.raises(SourceError, match="cannot get the column y"):
            await place.tick()

    asyncio.run(body())


def test_columns_that_come_together_are_taken_though_others_went_before():
    """Damage: a table does not get its columns, because of one that was dropped before the table was read here."""

    async def body():
        place = Place(Identity.FULL)
        place.database.add_column("t", "gone")
        place.database.drop_column("t", "gone")
        await place.tick()
        place.database.add_column("t", "w")
        place.database.add_column("t", "y")
        place.database.commit(insert("t", (b"1", b"a", b"x", b"z")))
        await place.tick()
        assert place.schema.names == ("id", "v", "w", "y")
        assert place.held == place.upstream()

    asyncio.run(body())


def test_a_column_that_upstream_lacks_is_waited_for():
    """Damage: a column that was added here first is never read, or stops the table for good."""

    async def body():
        place = Place(Identity.FULL, evolving=False)
        await place.tick()
        place.add("w")
        place.database.commit(insert("t", (b"1", b"a")))
        with pytest.raises(SourceError, match="has no column w in the publication"):
            await place.tick()
        place.database.add_column("t", "w")
        place.database.commit(insert("t", (b"2", b"a", b"x")), delete("t", (b"1", b"a", None)))
        await place.tick()
        assert place.held == place.upstream()

    asyncio.run(body())
