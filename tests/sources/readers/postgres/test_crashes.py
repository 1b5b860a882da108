"""The PostgreSQL reader through random crashes of itself and of its server; bugs that are planted in it are noticed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest
from tests.sources.readers.postgres import test_looks_over_lists as looks
from tests.sources.readers.postgres import test_reader_over_lists as laws
from tests.sources.readers.postgres.test_reader_over_lists import SCHEMA, Place, rows

from strandline.algebra.messages import GONE
from strandline.algebra.schema import DIFF
from strandline.errors import SourceError, Unavailable
from strandline.sources.readers.postgres import slot
from strandline.sources.readers.postgres.log import Log
from strandline.sources.readers.postgres.pgoutput import Identity
from strandline.sources.readers.postgres.reader import PARTITION, PostgresReader
from strandline.sources.readers.postgres.server import Published, SlotStanding
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.testing.postgres.list_postgres import delete, insert, update

SEEDS: Final = 40


def histories(place):
    """Law: whatever happens, a durable table has exactly the rows that upstream had, or says that it cannot."""
    for seed in range(SEEDS):
        identity = next(iter(place.database.tables.values())).identity
        place.__init__(identity)
        asyncio.run(history(place, seed))


@pytest.mark.property
@pytest.mark.parametrize("identity", [Identity.DEFAULT, Identity.FULL])
def test_any_crash_leaves_each_table_with_exactly_its_rows(identity, monkeypatch):
    """Damage: after a crash, a step back of the slot or a lost connection a row is missing or doubled."""
    monkeypatch.setattr("strandline.sources.readers.postgres.log.CHUNK_ROWS", 3)
    monkeypatch.setattr("strandline.sources.readers.postgres.log.CHUNK_BYTES", 150)
    histories(Place(identity))


async def history(place, seed):
    """One random history; it ends with an assertion if a durable table has other rows than upstream."""
    chance, database = random.Random(seed), place.database
    place.schemas = {"public.t": SCHEMA, "public.u": SCHEMA}
    held = {table: {} for table in place.schemas}
    durable, bound, time = dict.fromkeys(held), [], 0
    reader, told = await place.reader(step_changes=chance.choice([1, 5, 1000])), 0
    known = NOTHING_READ
    for _ in range(120):
        database.breaks_after = chance.choice([None, None, None, 2, 8])
        match chance.randrange(10):
            case 0 | 1:
                change(chance, database)
            case 9 if chance.random() < 0.2:
                away = chance.choice("tu")
                database.leave(away)
                change(chance, database)
                database.join(away)
            case 2:
                database.idle()
            case 3:
                await reader.close()
                reader = await place.reader(step_changes=chance.choice([1, 5, 1000]))
            case 4 if told:
                slot = database.slot
                database.slot = SlotStanding(slot.plugin, slot.database, chance.randint(told // 2, slot.confirmed))
            case 5 | 6:
                time += 1
                begun = [await reader.snapshot(table) for table in held if durable[table] is None]
                try:
                    offsets = await reader.upstream_frontier()
                except Unavailable:
                    continue
                for each in begun:
                    offsets = offsets.join(each)
                if known <= offsets != known:
                    bound.append((time, known, offsets))
                    known = offsets
            case 7 | 8 if bound:
                table = chance.choice(list(held))
                try:
                    await step(place, chance, reader, table, held, durable, bound)
                except Unavailable:
                    pass
                except SourceError:
                    assert database.entries[table.removeprefix("public.")] > 3, "it was away"
                    held[table], durable[table] = {}, None
                done = min((durable[each] or NOTHING_READ for each in held), key=lambda o: o[PARTITION])
                await reader.commit(done)
                told = max(told, done[PARTITION])
    for table, found in held.items():
        if durable[table] is not None:
            name = table.removeprefix("public.")
            contents = database.contents(durable[table][PARTITION])[name]
            assert Counter(found.values()) == Counter((int(i), int(n), v.decode()) for i, n, v in contents)
    assert durable


async def step(place, chance, reader, table, held, durable, bound):
    """Make durable what is bound of a table, or some of it."""
    if durable[table] is None:
        begun = await reader.snapshot(table)
        first = next(((time, upper) for time, _, upper in bound if begun <= upper), None)
        if first is None:
            return
        slices = [Slice(first[0], NOTHING_READ, first[1])]
    else:
        slices = [Slice(*each) for each in bound if durable[table] <= each[1]]
        if not slices:
            return
        slices = slices[: chance.randint(1, len(slices))]
    for row in await rows(place, reader, *slices, table=table):
        take(held[table], row)
    durable[table] = slices[-1].upper


def take(rows, row):
    """Take a record into the rows of a table."""
    key = row["id"]
    if GONE in row:
        rows.pop(key, None)
        if not row[GONE]:
            rows[key] = (key, row["n"], row["v"])
    elif row[DIFF] > 0:
        rows[key] = (key, row["n"], row["v"])
    else:
        assert rows.pop(key) == (key, row["n"], row["v"])


def change(chance, database):
    """Commit some changes of both tables."""
    changes = []
    contents = {name: list(rows) for name, rows in database.contents(database.at).items()}
    for _ in range(chance.randint(1, 4)):
        name = chance.choice("tu")
        fresh = (str(chance.randrange(1000, 10**6)).encode(), str(chance.randrange(9)).encode(), b"v")
        if not contents[name] or chance.random() < 0.4:
            changes.append(insert(name, fresh))
            contents[name].append(fresh)
            continue
        old = contents[name].pop(chance.randrange(len(contents[name])))
        if chance.random() < 0.3:
            changes.append(delete(name, old))
        else:
            new = fresh if chance.random() < 0.3 else (old[0], *fresh[1:])
            changes.append(update(name, old, new))
            contents[name].append(new)
    database.commit(*changes)


# ---- planted bugs ----------------------------------------------------------------------------------------------------
def _every_change_is_given(patch):
    right = Log.changes
    patch.setattr(Log, "changes", lambda self, table, _, upper: right(self, table, self.lower, upper))


async def _nothing(*_, **__):
    pass


def _once(patch):
    """Let a source look at the publication before it takes changes, and not afterwards."""
    gather = PostgresReader._gather

    async def unseen(self, *args):
        seen = self._standing
        self._standing = _nothing
        try:
            await gather(self, *args)
        finally:
            self._standing, self._looked = seen, self._log.upper

    patch.setattr(PostgresReader, "_gather", unseen)


def _read_unseen(patch):
    """Let a range count as read though the look after its peek failed."""
    gather = PostgresReader._gather

    async def counted(self, *args):
        try:
            await gather(self, *args)
        finally:
            self._looked = self._log.upper

    patch.setattr(PostgresReader, "_gather", counted)


async def _dropped_unasked(server, note, _, place, *__):
    try:
        await server.drop_slot()
    except Unavailable as error:
        return f"replication slot {note.name!r} is left on {place} ({error})"
    return ""


def _cuts_one(patch):
    """Let what is pending of one table alone be put aside where all of it should be."""
    patch.setattr(Log, "_cut_all", lambda self: self._cut(next(iter(self._readings.values()))))


PLANTED: Final[dict[str, tuple[Callable[[Any], None], Callable[[Any], None]]]] = {
    "a table that left its publication and came back is read on": (
        lambda patch: patch.setattr(slot, "followed", lambda note, *_: note),
        histories,
    ),
    "any entry of a table is as good as the one it had": (
        lambda patch: patch.setattr(Published, "goes_on", lambda *_: True),
        histories,
    ),
    "a table is read on though a statement gave its rows other values": (
        lambda patch: patch.setattr(slot, "rewritten", lambda *_: ""),
        looks.test_a_table_that_is_rewritten_is_read_no_further,
    ),
    "how a table is kept is not noted anew": (
        lambda patch: patch.setattr(slot, "shaped", lambda note, *_: note),
        looks.test_a_table_that_is_rewritten_is_read_no_further,
    ),
    "a snapshot is begun with though the publication was altered since": (
        lambda patch: patch.setattr(PostgresReader, "_refuse_left", _nothing),
        histories,
    ),
    "the publication is looked at before changes are taken alone": (
        _once,
        laws.test_a_publication_that_is_seen_late_stops_the_table,
    ),
    "a range counts as read before the look after its peek": (
        _read_unseen,
        looks.test_a_range_counts_as_read_once_the_look_after_its_peek_was_made,
    ),
    "of a step of many bytes the changes of one table alone are put aside": (_cuts_one, histories),
    "half of what a peek sent stays": (lambda patch: patch.setattr(Log, "abandon", Log.begin), histories),
    "a cancelled peek may still add": (
        lambda patch, right=Log.begin: patch.setattr(Log, "begin", lambda self: (right(self), self._add)[1]),
        laws.test_a_peek_that_was_cancelled_adds_nothing_afterwards,
    ),
    "what lies before a slice is given with it": (_every_change_is_given, histories),
    "a snapshot that the slot has left behind is kept": (
        lambda patch: patch.setattr(PostgresReader, "_is_late", lambda *_: False),
        laws.test_a_snapshot_that_the_slot_has_left_behind_makes_room_for_another,
    ),
    "a server that lost log is read on": (
        lambda patch: patch.setattr(slot, "check_log", lambda *_: None),
        partial(laws.test_a_server_that_lost_log_that_was_read_is_a_definite_error, what="confirmed"),
    ),
    "a dropped source takes any slot of its name with it": (
        lambda patch: patch.setattr(laws, "released", _dropped_unasked),
        partial(laws.test_the_slot_of_a_dropped_source_is_dropped_if_it_is_its_own, made=True),
    ),
    "a dropped source takes a slot with it that a living source made": (
        lambda patch: patch.setattr(laws, "released", _dropped_unasked),
        laws.test_a_slot_that_another_source_has_made_by_the_same_name_is_left_to_it,
    ),
}
"""Mistakes, and the law that must notice each."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_noticed(name, monkeypatch):
    """Damage: the laws of this reader pass though it breaks them."""
    plant, law = PLANTED[name]
    place = Place(Identity.FULL)
    plant(monkeypatch)
    monkeypatch.setattr("strandline.sources.readers.postgres.log.CHUNK_ROWS", 3)
    monkeypatch.setattr("strandline.sources.readers.postgres.log.CHUNK_BYTES", 150)
    with pytest.raises((AssertionError, KeyError, SourceError, pytest.fail.Exception)):
        law(place)
