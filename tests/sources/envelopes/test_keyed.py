"""The keyed envelope, through ingestion and a real shard: each time holds what the newest records say."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.algebra.messages import NOTHING_KEPT, key_of
from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.errors import DefinitionError
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Half
from strandline.persist.handles.read import contents
from strandline.sources import envelopes
from strandline.sources.envelopes import envelope_of, sort_of
from strandline.sources.ingest import PERIOD_MS, Ingestion
from strandline.sources.reader import Keyed
from strandline.sources.remap import RemapShard
from strandline.sources.steps import Advanced, OutputShard
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, Crash, Fuse, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.upstreams.keyed_log import KEY, SCHEMA, KeyedLog, KeyedLogReader, Said


@pytest.fixture(autouse=True, scope="module", params=["looked up", "pruned", "read"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """How the rows that are held of a step's keys are found."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "looked up":
            patch.setattr(ListEngine, "lookup", nothing)
        if request.param == "pruned":
            patch.setattr(envelopes, "PRUNE_ROWS_MIN", 0)
        yield request.param


async def nothing(*_: object, **__: object) -> None:
    """Look nothing up."""


class Place:
    """A location in memory, an upstream, and the incarnations of one ingestion."""

    def __init__(self):
        self.clock, self.upstream = HandClock(), KeyedLog()
        self.blob, self.consensus = MemoryBlob(), MemoryConsensus()
        self.opened = 0

    def client(self, fuse=None):
        self.opened += 1
        fuse = fuse or Fuse()
        ids = CountingIds(f"p{self.opened}")
        return PersistClient(self.clock, ids, fuse.guard(self.blob), fuse.guard(self.consensus))

    async def open(self, fuse=None):
        fuse = fuse or Fuse()
        client = self.client(fuse)
        remap = await RemapShard.open(await client.records("remap", 1), 1)
        data = await client.writer("data", 1, schema=SCHEMA.ddl, sort=sort_of(Keyed(KEY)))
        engine = ListEngine(fuse.guard(self.blob))
        reader = fuse.guard(KeyedLogReader(self.upstream, engine))
        return await Ingestion.open(self.clock, engine, reader, remap, [OutputShard("", SCHEMA, data)], name="s")

    async def tick(self, ingestion, time, *, step=True):
        self.clock.now += PERIOD_MS
        await ingestion.tick(time)
        if step:
            await ingestion.catch_up("")

    async def updates(self):
        """All updates that are durable, of both halves."""
        reader = await self.client().reader("data", SCHEMA, "data")
        if reader is None:
            return []
        upper = reader.state.upper.at
        rows = await ListEngine(self.blob).read(contents(reader.state, SCHEMA, 0, upper, advance=0, half=Half.BOTH))
        return listed(rows).rows

    async def at(self, time):
        """The rows and the errors at ``time``."""
        found = Counter()
        for row in await self.updates():
            if row[TIME] <= time:
                found[tuple(row[name] for name in (*SCHEMA.names, ERROR))] += row[DIFF]
        found = {row: count for row, count in found.items() if count}
        assert all(count > 0 for count in found.values()), found
        rows = Counter({row[:-1]: n for row, n in found.items() if row[-1] is None})
        return rows, Counter({row[-1]: n for row, n in found.items() if row[-1] is not None})


def meaning(messages):
    """What a list of messages says in the end, told once more and naively: rows by key, and how many errors."""
    rows, errors, lone = {}, {}, 0
    for said in messages:
        if said.key is None:
            lone += 1
            continue
        before = rows.pop(said.key, None)
        errors.pop(said.key, None)
        if said.gone:
            continue
        if said.bad or (said.same and before is None):
            errors[said.key] = True
        else:
            rows[said.key] = (*said.key, said.v, before[3] if said.same else said.note)
    return Counter(rows.values()), len(errors) + lone


def run(body):
    """Run the coroutine function ``body`` at a fresh place."""
    asyncio.run(body(Place()))


ONE, TWO = (1, "a"), (1, None)


def test_insert_update_delete_and_a_key_that_comes_back():
    """Damage: a collection of an upserted topic has two rows of a key, or one that upstream deleted."""

    async def body(place):
        ingestion = await place.open()
        story = [
            ([Said(ONE, "x"), Said(TWO, "y")], {(1, "a", "x", None), (1, None, "y", None)}),
            ([Said(ONE, "z")], {(1, "a", "z", None), (1, None, "y", None)}),
            ([Said(ONE, gone=True), Said((9, "b"), gone=True)], {(1, None, "y", None)}),
            ([Said(ONE, "x"), Said(TWO, gone=True)], {(1, "a", "x", None)}),
            ([Said(ONE, gone=True), Said((2, "a"), "x")], {(2, "a", "x", None)}),  # a row whose key changes
            ([], {(2, "a", "x", None)}),
        ]
        for time, (messages, rows) in enumerate(story, start=1):
            place.upstream.say(*messages)
            await place.tick(ingestion, 1000 * time)
            assert (await place.at(1000 * time))[0] == Counter(rows)
        for time, (_, rows) in enumerate(story, start=1):
            assert (await place.at(1000 * time))[0] == Counter(rows), "what was stays as it was"

    run(body)


def test_the_last_record_of_a_time_counts_and_no_other_leaves_a_trace():
    """Damage: what was never there at any time is in the history, and every view computes it."""

    async def body(place):
        ingestion = await place.open()
        place.upstream.say(Said(ONE, "x"), Said(ONE, "y"), Said(ONE, "z"), Said(TWO, "x"), Said(TWO, gone=True))
        await place.tick(ingestion, 1000)
        place.upstream.say(Said(ONE, "z"), Said(ONE, "y"), Said(ONE, "z"))  # upstream delivers at least once
        await place.tick(ingestion, 2000)
        (update,) = await place.updates()
        assert (update["v"], update[TIME], update[DIFF]) == ("z", 1000, 1)

    run(body)


def test_an_undecodable_value_takes_its_row_away_until_upstream_says_the_key_again():
    """Damage: a row that upstream replaced is read as right; or its error stays for ever."""

    async def body(place):
        ingestion = await place.open()
        place.upstream.say(Said(ONE, "x"), Said(TWO, "y"))
        await place.tick(ingestion, 1000)
        place.upstream.say(Said(ONE, bad=True), Said(TWO, bad=True))
        await place.tick(ingestion, 2000)
        rows, errors = await place.at(2000)
        assert not rows
        assert sorted(map(str, map(key_of, errors))) == ["{'k': '1', 'p': 'a'}", "{'k': '1', 'p': None}"]
        assert {json.loads(error)["file"] for error in errors} == {"0@2", "0@3"}
        place.upstream.say(Said(ONE, bad=True), Said(TWO, gone=True))
        await place.tick(ingestion, 3000)
        rows, errors = await place.at(3000)
        assert not rows
        assert [json.loads(error)["file"] for error in errors] == ["0@4"], "the newest error stands in its place"
        place.upstream.say(Said(ONE, "z"))
        await place.tick(ingestion, 4000)
        assert await place.at(4000) == (Counter({(1, "a", "z", None): 1}), Counter())
        assert (await place.at(1000))[0].total() == 2

    run(body)


def test_an_error_without_a_key_stays_until_it_is_dismissed():
    """Damage: a message under no key is dropped silently, or takes a row of another key with it."""

    async def body(place):
        ingestion = await place.open()
        place.upstream.say(Said(ONE, "x"), Said(None))
        await place.tick(ingestion, 1000)
        place.upstream.say(Said(ONE, "y"), Said((None, None), "z"))  # a key of NULLs is a key
        await place.tick(ingestion, 2000)
        rows, errors = await place.at(2000)
        assert rows == Counter([(1, "a", "y", None), (None, None, "z", None)])
        ((error, count),) = errors.items()
        assert (count, key_of(error)) == (1, None)

    run(body)


def test_a_value_that_upstream_left_out_is_the_one_that_is_there():
    """Damage: an update of a row with a large value replaces it by NULL, or by that of another version."""

    async def body(place):
        ingestion = await place.open()
        place.upstream.say(Said(ONE, "x", "long"), Said(ONE, "y", same=True))
        await place.tick(ingestion, 1000)
        assert (await place.at(1000))[0] == Counter([(1, "a", "y", "long")])
        place.upstream.say(Said(ONE, "z", same=True))
        await place.tick(ingestion, 2000)
        place.upstream.say(Said(ONE, "z", "other"), Said(ONE, "w", same=True))
        await place.tick(ingestion, 3000)
        assert (await place.at(2000))[0] == Counter([(1, "a", "z", "long")])
        assert (await place.at(3000))[0] == Counter([(1, "a", "w", "other")])
        place.upstream.say(Said(ONE, gone=True), Said(ONE, "v", same=True))
        await place.tick(ingestion, 4000)
        rows, errors = await place.at(4000)
        assert not rows
        assert [json.loads(error)["reason"] for error in errors] == [NOTHING_KEPT]

    run(body)


def test_batches_are_sorted_by_the_key():
    """Damage: a large window reads all of a large collection, though its keys lie together."""

    async def body(place):
        ingestion = await place.open()
        place.upstream.say(Said(ONE, "x"))
        await place.tick(ingestion, 1000)
        reader = await place.client().reader("data", SCHEMA, "data")
        assert {batch.sort for batch in reader.state.batches if batch.parts} == {KEY}

    run(body)


def test_a_key_that_rows_cannot_have_is_refused_by_name():
    """Damage: the source starts, and every step fails in Spark."""
    with pytest.raises(DefinitionError, match="'other'"):
        envelope_of(Keyed(("other",)), SCHEMA, ListEngine(MemoryBlob()), None)


KEYS = st.sampled_from([(1, "a"), (1, None), (2, "a"), (None, None)])
MESSAGES = st.one_of(
    st.builds(Said, KEYS, st.sampled_from("xyz"), st.sampled_from(["long", "other", None])),
    st.builds(Said, KEYS, gone=st.just(True)),
    st.builds(Said, KEYS, bad=st.just(True)),
    st.builds(Said, KEYS, st.sampled_from("xyz"), same=st.just(True)),
    st.just(Said(None)),
)
HISTORIES = st.lists(st.lists(MESSAGES, max_size=4), min_size=1, max_size=5)


@pytest.mark.property
@settings(deadline=None)
@given(HISTORIES, st.data())
def test_how_bindings_are_grouped_into_steps_changes_no_update(history, data):
    """Damage: law D: what a collection holds depends on how often its source could step."""

    async def durable(pauses):
        place = Place()
        ingestion = await place.open()
        for time, (messages, pause) in enumerate(zip(history, pauses, strict=True), start=1):
            place.upstream.say(*messages)
            await place.tick(ingestion, 1000 * time, step=not pause)
        await ingestion.catch_up("")
        found = Counter()
        for row in await place.updates():
            found[tuple(row.values())] += 1
        for time in range(1, len(history) + 1):
            rows, errors = await place.at(1000 * time)
            told = meaning([said for messages in history[:time] for said in messages])
            assert (rows, errors.total()) == told
        return found

    several = data.draw(st.lists(st.booleans(), min_size=len(history), max_size=len(history)))
    each, some, once = (asyncio.run(durable(p)) for p in ([False] * len(history), several, [True] * len(history)))
    assert each == some == once


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_moment_changes_nothing(after):
    """Damage: a process that dies in a step withdraws a row twice, or leaves two of one key."""
    steps = [
        [Said(ONE, "x", "long"), Said(TWO, "y")],
        [Said(ONE, "z", same=True), Said(TWO, bad=True)],
        [Said(TWO, "y"), Said(ONE, gone=True), Said(None)],
    ]

    async def body(at):
        place = Place()
        ingestion = await place.open()
        crashed = False
        fuse = Fuse(at, after=after)
        for time, messages in enumerate(steps, start=1):
            place.upstream.say(*messages)
            if time == 2:
                try:
                    await place.tick(await place.open(fuse), 1000 * time)
                except Crash:
                    crashed = True
                ingestion = await place.open()
            await place.tick(ingestion, 1000 * time + 1)
        rows, errors = await place.at(4000)
        assert (rows, errors.total()) == meaning([said for messages in steps for said in messages])
        return crashed

    count = 0
    while asyncio.run(body(count + 1)):
        count += 1
    assert count > 10


def test_two_ingesters_of_one_source_make_each_update_once():
    """Damage: two incarnations that overlap withdraw a row twice."""

    async def body(place):
        first, second = await place.open(), await place.open()
        for time, v in enumerate("xyz", start=1):
            place.upstream.say(Said(ONE, v))
            await place.tick(first, 1000 * time, step=False)
            await place.tick(second, 1000 * time, step=False)
            assert isinstance(await first.step(""), Advanced)
            await second.catch_up("")
            assert await place.at(1000 * time) == (Counter([(1, "a", v, None)]), Counter())

    run(body)
