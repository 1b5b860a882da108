"""The contract of an endpoint that is given changes (delta bindings), as a test suite for every driver of one.

Subclass it in a test module and give it a fixture ``make_endpoint``: a function that returns a `PushEndpointUnderTest`,
another and empty one each time.

The collections have the same kind of rows and are pushed in four ways: the last row of each key (*latest*), changes
with their diffs (*changes*), likewise apart by time (*timed*), and rows that only come (*added*).  The suite takes what
was pushed as a consumer does: it drops what carries the identity of an earlier record, and folds the rest.

The scenarios are separate functions, so that tests can show that planted defects fail them.

Laws: M1, M2, M3.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any, Protocol, TypeAlias

import pytest

from strandline.algebra.schema import DIFF, TIME
from strandline.errors import AsOfError, DefinitionError, FencedError
from strandline.materialize.driver import Driver, require_all
from strandline.materialize.protocol.fsm import QUIET_TIMES_MAX
from strandline.materialize.protocol.task import Binding, Checkpoint, MaterializationSpec, canonical, contents
from strandline.testing.contracts.drivers.driver_contract import crash_once, empty_once, zombie_once
from strandline.testing.contracts.drivers.world import KEYED, World, advance_through, row
from strandline.testing.feed import ListFeed
from strandline.testing.simulation.crashes import Crash, CrashPlan

LATEST = Binding("latest", "latest", ("k", "f"), KEYED, delta=True)
CHANGES = Binding("changes", "changes", (), KEYED, delta=True, diffs=True)
TIMED = Binding("timed", "timed", ("k",), KEYED, delta=True, times=True, diffs=True)
ADDED = Binding("added", "added", (), KEYED, delta=True)
FOUR = MaterializationSpec("m", (LATEST, CHANGES, TIMED, ADDED))
COMERS = (LATEST, ADDED)
"""The views that come and go; see `PushedComingAndGoing`."""

Row: TypeAlias = dict[str, Any]
MakePushed: TypeAlias = "Callable[[], PushEndpointUnderTest]"


@dataclass(frozen=True, slots=True)
class Pushed:
    """One record as a consumer gets it.

    ``identity``: its task, transaction and ordinal, in whatever form they come.  ``key``: None if it has none.
    ``value``: None if the row of the key is gone.  Both are JSON objects, as Python has them.
    """

    identity: tuple[Hashable, ...]
    key: Mapping[str, Any] | None
    value: Mapping[str, Any] | None


class PushEndpointUnderTest(Protocol):
    """One endpoint, which a driver's author provides to the suite.

    ``exactly_once``: no record comes twice.  Otherwise it may, with the same identity.  ``stride``: every which point
    of a runtime's work is tried; 1, but for an endpoint that takes long to open.
    """

    exactly_once: bool
    stride: int

    def driver(self) -> Driver:
        """Return one more driver to the endpoint."""
        ...

    def pushed(self, resource: str) -> list[Pushed]:
        """Return all records of a resource, in the order in which a consumer gets them."""
        ...

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return the endpoint's checkpoint of materialization ``name``; None if it keeps none."""
        ...


class PushWorld(World):
    """Four collections that are pushed in the four ways; see `World`."""

    def __init__(self, endpoint: PushEndpointUnderTest) -> None:
        self.pushing = endpoint
        # A key's rows lie in two batches, and yet there are few of them: each is a point to crash at.
        super().__init__(_Rowless(endpoint), FOUR, batch_rows=3)

    def write_round(self) -> None:
        """Insert, change, delete or leave each of a few keys; of what is only added, a row comes or two."""
        self._rounds += 1
        draw = Random(self._rounds)
        for binding, feed in self.collections:
            if binding.resource == ADDED.resource:
                self._add(draw.randint(0, 2))
                continue
            present = {each["k"]: each for each in self.rows_before(binding, self.upper)}
            for k in (None, 1, 2, 3):
                old, new = present.get(k), draw.choice((None, "p", "q"))
                if old is not None and old["s"] != new:
                    feed.write(self.upper, (old, -1))
                if new is not None and (old is None or old["s"] != new):
                    feed.write(self.upper, (row(k, math.nan if k == 2 else 1.5, new), 1))
        self.seal(self.upper + 1)

    def write_over(self) -> None:
        """Give the one row of each collection another value; of what is only added, a row comes."""
        self._rounds += 1
        for binding, feed in self.collections:
            if binding.resource == ADDED.resource:
                self._add(1)
                continue
            for old in self.rows_before(binding, self.upper):
                feed.write(self.upper, (old, -1))
            feed.write(self.upper, (row(9, 1.5, f"round {self._rounds}"), 1))
        self.seal(self.upper + 1)

    def _add(self, times: int) -> None:
        if times:
            self._feed(ADDED).write(self.upper, (row(self._rounds % 3, 0.5, "added"), times))

    def rows_before(self, binding: Binding, time: int) -> list[Row]:
        """Return the rows of a collection, which has one per ``k``."""
        keyed = Binding(binding.collection, binding.resource, ("k",), binding.schema)
        return list(contents(keyed, self._feed(binding).before(time)).values())

    def _feed(self, binding: Binding) -> ListFeed:
        (found,) = (feed for _, feed in self.collections if feed.name == binding.collection)
        return found

    def records(self, binding: Binding) -> list[Pushed]:
        """Return the records that come to a collection's changes."""
        return distinct(self.pushing, binding)

    def check(self, time: int) -> None:
        """Check law M2: what was pushed comes to exactly the changes before ``time``."""
        for binding, feed in zip(self.spec.bindings, self.feeds, strict=True):
            records = self.records(binding)
            changes = feed.timed_before(time)
            if binding.resource == LATEST.resource:
                check_latest(binding, records, time, feed.before(time))
            elif binding.resource == TIMED.resource:
                check_timed(records, changes)
            else:
                check_sums(records, changes)

    def check_committed(self) -> None:
        """Check law M2 at the endpoint's own checkpoint, if it keeps one."""
        checkpoint = self.pushing.checkpoint(self.spec.name)
        if checkpoint is not None:
            self.check(checkpoint.time(self.spec.state_keys))


class PushedComingAndGoing(PushWorld):
    """Four collections of which one is pushed at a time of those that come and go (`COMERS`), and the others always.

    ``empties``: what a view left in its resource is gone once one comes back to it; else its rows come there anew.
    """

    def __init__(self, endpoint: PushEndpointUnderTest, *, empties: bool) -> None:
        super().__init__(endpoint)
        self._empties = empties
        self._counter = count(1)
        self.here, self.away = COMERS
        self.swap()

    def swap(self, *, cut_off: bool = False) -> None:
        """Drop the view that is there, whose records stay, and add the other one under a counter that it never had.

        ``cut_off``: a transaction may be committed that is not at the endpoint yet, and its records still come there.
        """
        self.here, self.away = self.away, self.here
        self._skipped = 0 if self._empties else self._pushed(self.here)
        self._left = None if cut_off else self._pushed(self.away)
        stay = (each for each in FOUR.bindings if each not in COMERS)
        self.spec = replace(FOUR, bindings=(*stay, replace(self.here, backfill=next(self._counter))))
        self.feeds = [self._feed(each) for each in self.spec.bindings]

    def _pushed(self, binding: Binding) -> int:
        return len(distinct(self.pushing, binding))

    def records(self, binding: Binding) -> list[Pushed]:
        """See `PushWorld.records`: of the view that has come, those since then."""
        return super().records(binding)[self._skipped if binding.resource == self.here.resource else 0 :]

    def check(self, time: int) -> None:
        """See `PushWorld.check`; the view that was dropped has its records, and no others."""
        super().check(time)
        pushed = self._pushed(self.away)
        self._left = pushed if self._left is None else self._left
        assert pushed == self._left, f"{self.away.resource!r} is pushed on"

    def check_committed(self) -> None:
        """See `PushWorld.check_committed`; the view that has come is judged once it was pushed."""
        checkpoint = self.pushing.checkpoint(self.spec.name)
        if checkpoint is not None and checkpoint.of(self.spec.bindings[-1].state_key) is not None:
            super().check_committed()


class _Rowless:
    """A `PushEndpointUnderTest` as an `EndpointUnderTest`: nothing can be read in its resources."""

    fences = True

    def __init__(self, inner: PushEndpointUnderTest) -> None:
        self._inner = inner

    def driver(self) -> Driver:
        return self._inner.driver()

    def checkpoint(self, name: str) -> Checkpoint | None:
        return self._inner.checkpoint(name)

    def rows(self, table: str) -> list[Row]:
        raise AssertionError(f"{table!r} is checked by what was pushed")


def distinct(endpoint: PushEndpointUnderTest, binding: Binding) -> list[Pushed]:
    """Return the records of a resource without repetitions, which must be allowed and equal what they repeat."""
    seen: dict[tuple[Hashable, ...], Pushed] = {}
    for record in endpoint.pushed(binding.resource):
        assert record.identity not in seen or not endpoint.exactly_once, f"{record} came twice"
        first = seen.setdefault(record.identity, record)
        assert canonical(first) == canonical(record), "two records have one identity: a consumer drops one of them"
        assert (record.key is None) == (not binding.key)
    return list(seen.values())


def check_latest(binding: Binding, records: Iterable[Pushed], time: int, changes: Iterable[tuple[Row, int]]) -> None:
    """Fold the last row of each key: no record is needless, and the rows of the collection are left."""
    table: dict[str, Row] = {}
    for record in records:
        assert record.key is not None
        key = canonical({name: read(record.key)[name] for name in binding.key})
        if record.value is None:
            assert table.pop(key, None) is not None, f"{key} goes, and was never there"
            continue
        value = read(record.value)
        assert key == canonical({name: value[name] for name in binding.key})
        assert canonical(table.get(key)) != canonical(value), f"{value} came, and was there"
        table[key] = value
    truth = contents(binding, changes).values()
    assert sorted(map(canonical, table.values())) == sorted(map(canonical, truth)), f"at {time}"


def check_sums(records: Iterable[Pushed], changes: Iterable[tuple[Row, int, int]]) -> None:
    """Add up changes; a record without a diff is a row that came."""
    found: Counter[str] = Counter()
    for record in records:
        assert record.value is not None
        value = read(record.value)
        diff = value.pop(DIFF, 1)
        assert diff
        found[canonical(value)] += diff
    truth: Counter[str] = Counter()
    for row_, _, diff in changes:
        truth[canonical(row_)] += diff
    assert {each: n for each, n in found.items() if n} == {each: n for each, n in truth.items() if n}


def check_timed(records: Iterable[Pushed], changes: Iterable[tuple[Row, int, int]]) -> None:
    """Compare changes one by one: each at its own time, those of a key in the order of times."""
    found: Counter[tuple[int, str]] = Counter()
    before: dict[str, int] = {}
    for record in records:
        assert record.value is not None
        value = read(record.value)
        time, diff = value.pop(TIME), value.pop(DIFF)
        key = canonical(record.key)
        assert before.get(key, 0) <= time, "a change comes after a later one of its key"
        before[key] = time
        assert (time, canonical(value)) not in found, "a change comes in two pieces"
        found[time, canonical(value)] = diff
    truth: Counter[tuple[int, str]] = Counter()
    for row_, time, diff in changes:
        truth[time, canonical(row_)] += diff
    assert dict(found) == {each: n for each, n in truth.items() if n}


def read(value: Mapping[str, Any]) -> Row:
    """Return a JSON object as a row of `KEYED`, with the types that its columns have."""
    found = dict(value)
    if found.get("f") is not None:
        found["f"] = float(found["f"])
    return {name: found[name] for name in (*KEYED.names, *sorted(found.keys() - set(KEYED.names))) if name in found}


class PushContract:
    """The tests for every endpoint of changes."""

    def test_what_is_pushed_comes_to_the_collections(self, make_endpoint: MakePushed) -> None:
        """Damage: a consumer's copy was never true."""
        asyncio.run(follow(make_endpoint()))

    def test_a_key_that_went_can_come_back(self, make_endpoint: MakePushed) -> None:
        """Damage: a consumer keeps a row that was deleted, or misses one that came back."""
        asyncio.run(put_back(make_endpoint()))

    def test_a_transaction_without_rows_is_committed_and_recovered(self, make_endpoint: MakePushed) -> None:
        """Damage: the task of an empty view starts from nothing for ever."""
        asyncio.run(empty_everywhere(make_endpoint()))

    def test_a_crash_at_any_point_loses_nothing_and_repeats_only_what_says_so(self, make_endpoint: MakePushed) -> None:
        """Damage: a consumer misses a change, or counts one twice and cannot know."""
        asyncio.run(crash_everywhere(make_endpoint()))

    def test_a_zombie_pushes_nothing_that_a_consumer_would_take(self, make_endpoint: MakePushed) -> None:
        """Damage: a process that was presumed dead undoes what its successor pushed."""
        asyncio.run(replaced(make_endpoint()))
        asyncio.run(zombie_everywhere(make_endpoint()))

    def test_a_preview_says_what_apply_would_do_and_does_none_of_it(self, make_endpoint: MakePushed) -> None:
        """Damage: an operator who asks what would be created has created it."""
        asyncio.run(previewed(make_endpoint()))

    def test_a_bumped_backfill_pushes_everything_anew(self, make_endpoint: MakePushed) -> None:
        """Damage: a consumer that lost its copy cannot get it again; or takes the rows for repetitions."""
        asyncio.run(backfill(make_endpoint()))

    def test_a_crash_while_views_come_and_go_changes_nothing_else(self, make_endpoint: MakePushed) -> None:
        """Damage: consumers of a view that stays get its changes twice, or those of one that went go on."""
        asyncio.run(come_and_go(make_endpoint()))

    def test_contents_are_refused_with_the_option_that_pushes_changes(self, make_endpoint: MakePushed) -> None:
        """Damage: a table's rows are pushed one by one, and no consumer can tell which of them are left."""
        asyncio.run(refused(make_endpoint()))


async def follow(endpoint: PushEndpointUnderTest) -> None:
    """Advance through busy and quiet times, and check after each step."""
    world = PushWorld(endpoint)
    runtime = world.runtime()
    for step in range(8):
        if step in {3, 6}:
            world.seal(world.upper + QUIET_TIMES_MAX)
        else:
            world.write_round()
        assert await runtime.advance()
        assert runtime.status.position == world.upper
        world.check(world.upper)
        world.check_committed()
        assert not await runtime.advance()
    await runtime.close()


async def put_back(endpoint: PushEndpointUnderTest) -> None:
    """Delete keys and insert them again: in the next transaction, by another runtime, and within one window."""
    world = PushWorld(endpoint)
    feeds = world.feeds[: FOUR.bindings.index(ADDED)]
    runtime = world.runtime()
    first, second, third = (row(1, None, s) for s in ("first", "second", "third"))
    same, nan = row(2, math.nan, "same"), row(None, math.nan, "null and nan")
    for feed in feeds:
        feed.write(1, (first, 1), (same, 1), (nan, 1))
        feed.write(3, (first, -1))
        feed.write(6, (second, 1), (nan, -1))
        feed.write(8, (second, -1), (same, -1), (nan, 1))
        feed.write(9, (third, 1), (same, 1))
    for upper in (3, 5, 7, 11):
        await advance_through(world, runtime, (upper,))
        world.check(upper)
        world.check_committed()
        if upper == 7:
            await runtime.close()
            runtime = world.runtime()
    await runtime.close()


async def empty_everywhere(endpoint: PushEndpointUnderTest) -> None:
    """Crash a runtime at every point of a transaction without rows; then let a row come."""
    world = PushWorld(endpoint)
    points = count(1, endpoint.stride)
    alive = True
    while alive:
        at = next(points)
        world.bump(at)  # as if it were the first transaction of an empty collection
        alive = await empty_once(world, CrashPlan(at, after=True))
    assert next(points) > 1 + 2 * endpoint.stride
    world.write_over()
    await world.runtime().advance()
    world.check(world.upper)


async def replaced(endpoint: PushEndpointUnderTest) -> None:
    """Let a successor take over between two transactions; the older runtime must notice, and stay stopped."""
    world = PushWorld(endpoint)
    older, newer = world.runtime(epoch=1), world.runtime(epoch=2)
    for runtime in (older, newer):
        world.write_over()
        await runtime.advance()
    before = world.upper
    world.write_over()
    # Its successor has moved the holds, so its history may be compacted: that stops it as well.
    for refusal in ((FencedError, AsOfError), FencedError, FencedError):
        with pytest.raises(refusal):
            await older.advance()
        world.check(before)
    assert await newer.advance()
    world.check(world.upper)


async def crash_everywhere(endpoint: PushEndpointUnderTest) -> None:
    """Crash a runtime after every point of its work; let another one continue.

    Nothing is done between a point and the next one, so a crash before that would be the same.
    """
    world = PushWorld(endpoint)
    points = count(1, endpoint.stride)
    while await crash_once(world, CrashPlan(next(points), after=True)):
        pass
    assert next(points) > 1 + 2 * endpoint.stride


async def zombie_everywhere(endpoint: PushEndpointUnderTest) -> None:
    """Pause a runtime before every point of a transaction while a successor does the same one and the next."""
    world = PushWorld(endpoint)
    points = count(1, endpoint.stride)
    alive = True
    while alive:
        at = next(points)
        alive = await zombie_once(world, at, epoch=2 * at)
    assert next(points) > 1 + 2 * endpoint.stride


async def previewed(endpoint: PushEndpointUnderTest) -> None:
    """Ask what Apply would do, before it and after."""
    driver = endpoint.driver()
    said = await driver.preview(FOUR)
    assert await driver.preview(FOUR) == said, "the first preview has done it"
    assert (await driver.apply(FOUR, {})).action == "; ".join(said)
    assert not await driver.preview(FOUR)


async def backfill(endpoint: PushEndpointUnderTest) -> None:
    """Bump the counter of the first binding: a consumer takes every row once more, and nothing else twice."""
    world = PushWorld(endpoint)
    world.write_over()
    await world.runtime().advance()
    before = distinct(endpoint, LATEST)
    assert before
    world.bump(1)
    world.write_round()
    await advance_through(world, world.runtime(), (world.upper,))
    again = [read(each.value) for each in distinct(endpoint, LATEST)[len(before) :] if each.value is not None]
    rows = world.rows_before(LATEST, world.upper)
    assert rows
    assert sorted(map(canonical, again)) == sorted(map(canonical, rows))
    check_sums(distinct(endpoint, CHANGES), world.feeds[FOUR.bindings.index(CHANGES)].timed_before(world.upper))


async def come_and_go(endpoint: PushEndpointUnderTest) -> None:
    """Have one view go and another one come, and crash after every point of the work that follows; then the reverse.

    Its successor finds the same views, or the other one back, while what the crash has cut off is still to be finished.
    """
    verdicts = await endpoint.driver().validate(FOUR)
    world = PushedComingAndGoing(endpoint, empties=all(each.empties for each in verdicts))
    points = count(1, endpoint.stride)
    alive = True
    while alive:
        at = next(points)
        for again in (False, True):
            world.swap()
            alive = await _come_and_go_once(world, CrashPlan(at, after=True), again=again)
    assert next(points) > 1 + 2 * endpoint.stride


async def _come_and_go_once(world: PushedComingAndGoing, plan: CrashPlan, *, again: bool) -> bool:
    world.write_round()
    with suppress(Crash):
        await world.runtime(plan).advance()
    getattr(world.endpoint, "died", lambda: None)()
    world.check_committed()
    if again:
        world.swap(cut_off=True)
    world.write_round()
    successor = world.runtime()
    while await successor.advance():
        pass
    assert successor.status.position == world.upper, plan.points[-1]
    world.check(world.upper)
    return plan.happened


async def refused(endpoint: PushEndpointUnderTest) -> None:
    """Ask whether a standard binding can be pushed."""
    standard = MaterializationSpec("m", (Binding("v", "v", ("k",), KEYED),))
    driver = endpoint.driver()
    with pytest.raises(DefinitionError, match=r"'v' cannot be materialized into 'v': column 's': .*option delta"):
        require_all(standard, await driver.validate(standard))
    require_all(FOUR, await driver.validate(FOUR))
