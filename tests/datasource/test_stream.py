"""A stream over a collection that goes on, is compacted and forgets, killed anywhere: each update comes once.

`Query` does what Spark's micro-batches do with a source: it writes offsets before it plans a batch, commits after the
batch's rows are kept, and tells the source of a commit only with the batch after.  A kill forgets all but its logs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest

from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.controller.location.catalog import KEY, CatalogStore, Holder
from strandline.controller.location.items import Collected, Table
from strandline.datasource.opened import Door, Place
from strandline.datasource.pinned import Pinned
from strandline.datasource.rows import scan
from strandline.datasource.stream import Offset, Stream
from strandline.engine.frames import inline
from strandline.engine.parts.merge import Rewriter
from strandline.engine.parts.part_store import PartStore
from strandline.engine.parts.scan import Scanner
from strandline.engine.parts.staging import Stager
from strandline.errors import AsOfError, DefinitionError
from strandline.frontier import EMPTY, TIME_MAX, Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Contents, StageRequest
from strandline.persist.handles.read import SinceHandle
from strandline.persist.handles.register import Register
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.batch import NOTHING, InlinePart, Staged
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.wiring.loop import LoopThread
from strandline.wiring.stores import Stores

TABLE: Final = Table("t", (("k", "int"), ("name", "string")), "s-t")
WIDE: Final = Table("t", (*TABLE.columns, ("more", "string")), "s-t")
"""The same table, after it got a column."""
NARROW: Final = ("k", "name")
PLACE: Final = Place("/nowhere", None, ())


class Here:
    """Merges parts in this process, as the engine does with few rows."""

    def __init__(self, parts: PartStore) -> None:
        session: Any = None  # these merges are small
        self._rewriter = Rewriter(parts, Scanner(session, parts), Stager(session, parts))

    async def merge(self, contents: Contents, request: StageRequest) -> Staged:
        return self._rewriter.merge(contents, request)

    async def verify(self, contents: Contents) -> int:
        return self._rewriter.verify(contents)


class World:
    """A location with one table, the environment that writes it, and all that was ever written."""

    def __init__(self, root: Path, loop: LoopThread) -> None:
        self.loop = loop
        self.parts = PartStore(root)
        self.stores = Stores("/nowhere", HandClock(), CountingIds(), MemoryBlob(), MemoryConsensus(), self.parts)
        self.client = self._client(Here(self.parts))
        self.time = 10
        self.history: list[tuple[int, str, int, int]] = []
        self.table: Collected = TABLE
        self.writer: WriteHandle
        self.hold: SinceHandle
        self.put(TABLE)

    def _client(self, merger: Here | None) -> PersistClient:
        have = self.stores
        return PersistClient(have.clock, have.ids, have.blob, have.consensus, merger, grace_ms=None)

    def put(self, *items: Collected) -> None:
        """Let the location have these collections, and be the writer of the last."""

        async def succeed() -> None:
            have = self.stores
            catalogs = CatalogStore(Register(KEY, have.clock, have.ids, have.consensus))
            holder = Holder("d", "h", 1, 1, 1, reentrant=True)
            await catalogs.succeed(lambda _: holder, lambda catalog: catalog.having({i.name: i for i in items}))
            for item in items:
                self.table = item
                self.writer = await self.client.writer(item.shard, 1, schema=item.schema.ddl, widens=True)
                self.hold = await self.client.since(item.shard, "history", 1)

        self.loop.run(succeed())

    def append(self, *changes: tuple[int, str, int]) -> None:
        """Write changes at the next time; a column that was added holds the name once more."""
        self.time += 1
        self.history += [(k, name, self.time, diff) for k, name, diff in changes]
        columns = inline.update_schema(self.table.schema)
        rows = [{"k": k, "name": n, "more": n, ERROR: None, TIME: self.time, DIFF: diff} for k, n, diff in changes]
        data = inline.encode(pa.Table.from_pylist(rows, schema=columns))
        at, upper = self.writer.state.upper, Frontier(self.time + 1)
        diffs = sum(diff for _, _, diff in changes)
        staged = Staged(at, upper, (InlinePart(data, len(rows)),), len(rows), diffs, NOTHING, plain=False)
        self.loop.run(self.writer.compare_and_append([staged] if rows else [], at, upper))

    def forget(self) -> None:
        """Release all history but the newest time, as an environment does that keeps none."""
        self.loop.run(self.hold.downgrade(Frontier(self.time)))

    def door(self) -> Door:
        """Return the location as another process opens it."""
        return Door(self.stores, self._client(None), self.loop)


@dataclass
class Query:
    """A query of Spark's: ``offsets`` and ``commits`` are its checkpoint, ``rows`` what its sink has.

    ``columns``: those that it chooses; None: all that the table has whenever it is started.
    """

    world: World
    make: Callable[[Door, Pinned], Stream] = Stream
    columns: tuple[str, ...] | None = None
    offsets: list[dict[str, Any]] = field(default_factory=list)
    commits: int = 0
    rows: list[tuple[int, Counter[tuple[Any, ...]]]] = field(default_factory=list)

    def run(self, chance: random.Random, batches: int) -> None:
        """Begin, or go on from the checkpoint; make some batches, and be killed somewhere, perhaps."""
        world, door = self.world, self.world.door()
        pinned = pinned_of(world, f"lease-{chance.random()}", self.columns)
        run = world.loop.run
        handle = run(door.leased(pinned.item, pinned.lease))
        assert handle is not None
        stream, first = self.make(door, pinned), True
        for _ in range(batches):
            if self.commits == len(self.offsets):
                start = self.offsets[-1] if self.offsets else _plain(run(stream.begin(None)))
                end = _plain(run(stream.reached(_offset(start))))
                if end == start:
                    return
                self.offsets.append(end)
                if not first and len(self.offsets) > 1:
                    run(stream.commit(_offset(self.offsets[-2])))
            if chance.random() < KILLED:
                return
            first = False
            start = self.offsets[-2] if len(self.offsets) > 1 else _plain(run(stream.begin(None)))
            shares = run(stream.shares(_offset(start), _offset(self.offsets[-1])))
            world.forget()
            if chance.random() < KILLED:
                return
            found: Counter[tuple[Any, ...]] = Counter()
            for share in shares:
                for table in scan.given(world.parts, share, pinned.look):
                    for row in table.to_pylist():
                        found[(*(row[name] for name in pinned.names), row[TIME])] += row[DIFF]
            self.rows = [*self.rows[: self.commits], (len(self.offsets), found)]
            if chance.random() < KILLED:
                return
            self.commits = len(self.offsets)

    @property
    def received(self) -> Counter[tuple[Any, ...]]:
        """What its sink has, batch by batch: a batch that is made again replaces itself."""
        found: Counter[tuple[Any, ...]] = Counter()
        for _, batch in self.rows[: self.commits]:
            found.update(batch)
        return found


KILLED: Final = 0.2
SEEDS: Final = 40


def pinned_of(world: World, lease: str, columns: tuple[str, ...] | None = None) -> Pinned:
    """Return what a stream is loaded with now."""
    names = columns or world.table.schema.names
    return Pinned(PLACE, world.table, names, None, lease, 0, 1, whole=True, forgiven=False)


def _plain(offset: Offset) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(offset)
    return found


def _offset(found: dict[str, Any]) -> Offset:
    return msgspec.convert(found, Offset)


def _calm() -> random.Random:
    """Return chances by which nothing is killed."""
    calm = random.Random(1)
    calm.random = lambda: 0.9  # type: ignore[method-assign]
    return calm


@contextmanager
def worlds(root: Path) -> Iterator[World]:
    """Make a world, and end its thread."""
    loop = LoopThread()
    try:
        yield World(root, loop)
    finally:
        loop.stop()


def follow(root: Path, seed: int, make: Callable[[Door, Pinned], Stream] = Stream) -> int:
    """Run a query over a table that changes, killed now and then; return how often it was started.

    The table gets a column meanwhile.  The query is refused then, and goes on with the columns of before.
    """
    chance = random.Random(seed)
    with worlds(root) as world:
        query, there = Query(world, make), Counter[tuple[int, str]]()

        def change() -> None:
            changes = []
            for _ in range(chance.randrange(4)):
                row = chance.randrange(4), chance.choice("ab")
                diff = 1 if not there[row] else chance.choice([1, -1])
                there[row] += diff
                changes.append((*row, diff))
            world.append(*changes)
            if chance.random() < 0.5:
                world.forget()

        for _ in range(3):
            change()
        starts, widened = 0, chance.randrange(1, 25)
        for each in range(25):
            starts += 1
            if each == widened:
                world.put(WIDE)
                change()
                with pytest.raises(DefinitionError, match="`more` string came"):
                    query.run(_calm(), 1)
                query.columns = NARROW
            query.run(chance, 4)
            change()
        while query.commits < len(query.offsets) or query.offsets[-1]["upper"] <= world.time:
            starts += 1
            query.run(chance, 4)
            if not chance.randrange(3):
                world.append((9, "last", 1))
                there[9, "last"] += 1
        start = query.offsets[0]["start"]
        expected: Counter[tuple[Any, ...]] = Counter()
        for k, name, time, diff in world.history:
            expected[k, name, max(time, start)] += diff
        found = query.received
        for key in expected.keys() | found.keys():
            assert found[key] == expected[key], f"{key}: {found[key]} of {expected[key]}"
        holds = {name: hold for name, hold in world.writer.state.criticals.items() if name != "history"}
        assert list(holds) == [query.offsets[0]["hold"]], "a hold was left behind"
        read = [_offset(each).needed for each in query.offsets]
        assert holds[query.offsets[0]["hold"]].since >= Frontier([start, *read][-2]), "what was read is held for ever"
        return starts


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_update_comes_once_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    """Damage: after a kill a stream counts a change twice, or never."""
    assert follow(tmp_path, seed) > 20


class Hasty(Stream):
    """Planted: it lets go what a batch reads once the batch is planned, before Spark has committed it."""

    async def shares(self, start: Offset, end: Offset) -> list[Any]:
        found = await super().shares(start, end)
        await self.commit(end)
        return found


def test_a_planted_hold_that_ends_before_the_commit_is_caught(tmp_path: Path) -> None:
    """Damage: the test above could not fail: here what was not committed cannot be read again after a kill."""
    with pytest.raises(AsOfError, match="cannot go on from there"):
        for seed in range(SEEDS):
            follow(tmp_path / str(seed), seed, Hasty)


def test_a_collection_that_was_dropped_ends_the_stream_and_its_hold(tmp_path: Path) -> None:
    """Damage: a stream waits for ever, or goes on with another collection's rows; the old one is never freed."""
    with worlds(tmp_path) as world:
        world.append((1, "a", 1))
        query, calm = Query(world), _calm()
        query.run(calm, 1)
        world.loop.run(world.client.look(TABLE.shard))
        assert len(world.client.state_of(TABLE.shard).criticals) == 2
        world.put(Table("t", TABLE.columns, "s-other"))
        with pytest.raises(DefinitionError, match="dropped and created again"):
            query.run(calm, 1)
        world.loop.run(world.client.look(TABLE.shard))
        assert list(world.client.state_of(TABLE.shard).criticals) == ["history"]
        world.put()
        with pytest.raises(DefinitionError, match="'t', which this stream reads, was dropped"):
            query.run(calm, 1)


def test_a_collection_that_was_renamed_is_held_and_the_error_has_its_new_name(tmp_path: Path) -> None:
    """Damage: a consumer reads that its table was dropped, and what keeps its changes readable is let go."""
    with worlds(tmp_path) as world:
        world.append((1, "a", 1))
        query, calm = Query(world), _calm()
        query.run(calm, 1)
        world.put(Table("renamed", TABLE.columns, TABLE.shard))
        world.table = TABLE  # as the stream knows it
        with pytest.raises(DefinitionError, match="'t', which this stream reads, is called 'renamed' now"):
            query.run(calm, 1)
        world.loop.run(world.client.look(TABLE.shard))
        assert len(world.client.state_of(TABLE.shard).criticals) == 2
        world.put(TABLE)
        world.append((2, "b", 1))
        query.run(calm, 2)
        assert sorted(row for (row, _, _), count in query.received.items() if count > 0) == [1, 2]


def test_a_closed_collection_is_read_to_its_end(tmp_path: Path) -> None:
    """Damage: a stream of a collection that no longer changes asks for changes for ever."""
    with worlds(tmp_path) as world:
        world.append((1, "a", 1))
        world.append((1, "a", -1), (2, "b", 2))
        world.loop.run(world.writer.compare_and_append([], world.writer.state.upper, EMPTY))
        query, calm = Query(world), _calm()
        query.run(calm, 4)
        assert query.offsets[-1]["upper"] == TIME_MAX
        assert sorted(query.received.items()) == [((1, "a", 11), 1), ((1, "a", 12), -1), ((2, "b", 12), 2)]


def test_a_stream_whose_table_got_a_column_does_not_go_on_as_if_nothing_were(tmp_path: Path) -> None:
    """Damage: a consumer gets the withdrawal of a row that it never got, and values that were written never come."""
    with worlds(tmp_path) as world:
        world.append((1, "a", 1))
        query, calm = Query(world), _calm()
        query.run(calm, 1)
        world.put(WIDE)
        world.append((2, "b", 1))
        refusal = (
            "the columns that this stream reads of 't' are not those of before: `more` string came, and what was "
            "written there before 12 is not in what the stream has given; begin a new stream, with another "
            "checkpoint, or choose the columns of before: .option('columns', 'k,name')"
        )
        with pytest.raises(DefinitionError) as refused:
            query.run(calm, 1)
        assert str(refused.value) == refusal
        query.columns = ("name", "k")
        query.run(calm, 1)
        assert query.rows[-1][1] == {("b", 2, 12): 1}, "it goes on with the columns of before, in whatever order"
        query.columns = ("k",)
        with pytest.raises(DefinitionError, match="`name` string left, and what the stream has given with it"):
            query.run(calm, 1)
        world.loop.run(world.client.look(TABLE.shard))
        assert query.offsets[0]["hold"] in world.client.state_of(TABLE.shard).criticals, "it could not go on"


def test_a_running_stream_goes_on_with_its_columns_and_a_batch_made_again_has_them_too(tmp_path: Path) -> None:
    """Damage: a batch that Spark makes again after a kill has other columns than the sink may have got already."""
    with worlds(tmp_path) as world:
        world.append((1, "a", 1))
        run, door = world.loop.run, world.door()
        running = Stream(door, pinned_of(world, "running"))
        begun = run(running.begin(None))
        first = run(running.reached(begun))
        run(running.shares(begun, first))
        world.put(WIDE)
        world.append((2, "b", 1))
        second = run(running.reached(first))
        assert (second.upper, second.columns) == (13, {"k": "int", "name": "string"})
        run(running.shares(first, second))
        again = Stream(world.door(), pinned_of(world, "again"))
        for start, end in ((begun, first), (first, second)):
            with pytest.raises(DefinitionError, match="`more` string came"):
                run(again.shares(start, end))


def test_a_stream_that_gave_nothing_yet_and_an_older_checkpoint_have_the_columns_of_now(tmp_path: Path) -> None:
    """Damage: a stream is refused that lost nothing; or none goes on after Strandline was upgraded."""
    with worlds(tmp_path) as world:
        world.append((1, "a", 1))
        run = world.loop.run
        begun = run(Stream(world.door(), pinned_of(world, "before")).begin(None))
        world.put(WIDE)
        stream = Stream(world.door(), pinned_of(world, "now"))
        wide = {"k": "int", "name": "string", "more": "string"}
        assert run(stream.reached(begun)).columns == wide
        older = {"shard": TABLE.shard, "hold": begun.hold, "start": 11, "upper": 12}
        assert _plain(run(stream.reached(_offset(older)))) == older, "nothing came, and Spark would see another offset"
        world.append((2, "b", 1))
        end = run(stream.reached(_offset(older)))
        assert (end.upper, end.columns) == (13, wide)
        assert run(stream.shares(_offset(older), _offset(older | {"upper": 13})))


class Forgetful(Stream):
    """Planted: its offsets do not say with which columns they were given."""

    async def reached(self, offset: Offset, most: int = TIME_MAX) -> Offset:
        return msgspec.structs.replace(await super().reached(offset, most), columns={})


def test_a_planted_offset_without_columns_is_caught(tmp_path: Path) -> None:
    """Damage: the drawn test above could not see that a stream goes on with other columns."""
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        follow(tmp_path, 0, Forgetful)
