"""When the PostgreSQL reader looks at its server, and what is true of what it read before the look.  Over lists."""

from __future__ import annotations

import asyncio
import re
from contextlib import nullcontext
from dataclasses import replace
from itertools import count

import msgspec
import pytest
from tests.sources.readers.postgres.test_reader_over_lists import Place, rows

from strandline.errors import SourceError, Unavailable
from strandline.frontier import Offsets
from strandline.sources.readers.postgres import kind, statements
from strandline.sources.readers.postgres.ledger import SlotNote, TableNote
from strandline.sources.readers.postgres.reader import PARTITION
from strandline.sources.readers.postgres.server import SlotStanding
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.clock import SystemClock


@pytest.fixture
def place():
    """A keyed table."""
    return Place()


def test_a_range_counts_as_read_once_the_look_after_its_peek_was_made(place):
    """Damage: the connection breaks after a peek, and what a change of the publication hid is missing for good."""

    async def body():
        database, reader = place.database, await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        await rows(place, reader, Slice(1, NOTHING_READ, begun))
        before = database.published("t")
        database.leave("t")
        await place.produce()
        database.join("t")
        upper = Offsets({PARTITION: database.at})  # as an earlier process has bound it
        look, looks = reader.server.standing, count()

        async def breaks(tables):
            match next(looks):
                case 0:
                    return replace(await look(tables), published={("public", "t"): before})
                case 1:
                    raise Unavailable("the connection is lost")
                case _:
                    return await look(tables)

        reader.server.standing = breaks
        later = Slice(2, begun, upper)
        with pytest.raises(Unavailable):
            await rows(place, reader, later)
        with pytest.raises(SourceError, match="strandline anew"):
            await rows(place, reader, later)

    asyncio.run(body())


def test_a_slot_that_is_being_made_still_counts_as_none(place):
    """Damage: a source that starts anew while its slot waits for a transaction says for good that it was dropped."""

    async def body():
        database, first, second = place.database, await place.reader(), await place.reader()

        async def waits():
            database.slot = SlotStanding("pgoutput", "d", 0)  # a server shows it like this until it is made
            raise Unavailable("the slot waits for transactions")

        first.server.create_slot = waits
        with pytest.raises(Unavailable, match="waits"):
            await first.upstream_frontier()
        for each in (first, second):
            with pytest.raises(Unavailable, match="the slot waits|slot 's' is being made"):
                await each.upstream_frontier()
        database.slot = None  # the session that made it has ended
        await second.upstream_frontier()
        assert database.slot.confirmed
        assert second._ledger.slot.made

    asyncio.run(body())


def test_a_table_that_is_rewritten_is_read_no_further(place):
    """Damage: rows that a statement gave other values stay as they were, since no change says so."""

    async def body():
        database, reader = place.database, await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        await rows(place, reader, Slice(1, NOTHING_READ, begun))
        for columns, rewrites in (((), True), (("v", "n"), False), (("v",), False), ((), True)):
            database.alter("t", *columns, rewrites=rewrites)  # one after the other, each is harmless
            await place.produce()
            later = Slice(2, begun, await reader.upstream_frontier())
            assert await rows(place, reader, later)
            begun = later.upper
        database.alter("t", "n", rewrites=True)
        await place.produce()
        for each in (reader, await place.reader()):
            later = Slice(3, begun, await each.upstream_frontier())
            with pytest.raises(SourceError, match="column 'n' was altered and the rows were rewritten"):
                await rows(place, each, later)

    asyncio.run(body())


def test_a_note_of_an_earlier_version_takes_up_how_the_table_is_kept(place):
    """Damage: after an upgrade every table stops, or none ever does."""

    async def body():
        database, reader = place.database, await place.reader()
        begun = (await reader.snapshot("public.t")).join(await reader.upstream_frontier())
        await rows(place, reader, Slice(1, NOTHING_READ, begun))
        note = (await place.ledger()).tables["public.t"]
        columns = tuple(msgspec.structs.replace(column, number=0, version=0) for column in note.columns)
        await (await place.ledger()).write(msgspec.structs.replace(note, columns=columns, file=0))
        database.alter("t", "n", rewrites=True)
        await place.produce()
        reader = await place.reader()
        later = Slice(2, begun, await reader.upstream_frontier())
        assert await rows(place, reader, later)
        assert (await place.ledger()).tables["public.t"].file == database.shapes["t"].file
        database.alter("t", "n", rewrites=True)
        await place.produce()
        with pytest.raises(SourceError, match="strandline anew"):
            await rows(place, reader, Slice(3, later.upper, await reader.upstream_frontier()))

    asyncio.run(body())


def test_an_earlier_version_refuses_the_notes_of_a_table_that_left(place):
    """Damage: one step back reads a table on, from which changes are missing."""
    known = msgspec.json.Decoder(SlotNote | TableNote)

    async def body():
        ledger = await place.ledger()
        for left, why in (("", nullcontext()), ("it left", pytest.raises(msgspec.ValidationError))):
            note = TableNote("t", ("id",), (), "id INT", left=left)
            await ledger.write(note)
            assert (await place.ledger()).tables == {"t": note}
            with why:
                for record in await ledger._shard.contents():
                    known.decode(record.data)

    asyncio.run(body())


@pytest.mark.parametrize("ends", [True, False])
def test_a_slot_that_is_read_for_a_moment_is_dropped_all_the_same(place, monkeypatch, ends):
    """Damage: DROP SOURCE leaves a slot behind whenever a peek was under way."""
    monkeypatch.setattr(kind, "RELEASE_SECONDS_MAX", 0.2)
    monkeypatch.setattr(kind, "AGAIN_SECONDS", 0.01)

    async def body():
        reader = await place.reader()
        await reader.upstream_frontier()
        drop, tries = reader.server.drop_slot, count()

        async def busy():
            if not ends or next(tries) < 3:
                raise statements.refused("pg", "its slot", "55006", 'slot "s" is active for PID 7')
            await drop()

        reader.server.drop_slot = busy
        left = await kind.released(reader.server, reader._ledger.slot, (), "pg", SystemClock())
        assert re.search("^$" if ends else "'s' is left on pg.*for PID 7", left)
        assert (place.database.slot is None) == ends

    asyncio.run(body())
