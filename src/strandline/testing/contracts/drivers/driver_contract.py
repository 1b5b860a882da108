"""The contract of a materialization driver, as a test suite for every driver, with the real runtime and recovery log.

Subclass it in a test module and give it a fixture ``make_endpoint``: a function that returns an `EndpointUnderTest`,
another and empty one each time.

    class TestMyDriver(DriverContract):
        @pytest.fixture
        def make_endpoint(self, tmp_path):
            numbers = itertools.count()
            return lambda: MyEndpoint(tmp_path / str(next(numbers)))

The scenarios are separate functions, so that tests can show that planted defects fail them.

Laws: M1, M2, M3.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pyarrow as pa
import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import AsOfError, ConfigError, DefinitionError, FencedError, Unavailable
from strandline.frontier import EMPTY
from strandline.materialize.driver import require_all
from strandline.materialize.protocol.fsm import QUIET_TIMES_MAX
from strandline.materialize.protocol.task import NOTHING, Binding, MaterializationSpec
from strandline.testing.contracts.drivers.coming_and_going import ComingAndGoingContract
from strandline.testing.contracts.drivers.handing_over import HandingOverContract
from strandline.testing.contracts.drivers.losing import Loses, lost
from strandline.testing.contracts.drivers.odd_values import odd_values
from strandline.testing.contracts.drivers.world import (
    EndpointUnderTest,
    MakeEndpoint,
    World,
    advance_through,
    row,
    write_history,
)
from strandline.testing.hostile import HOSTILE, PATHS
from strandline.testing.simulation.crashes import Crash, CrashPlan, PausePlan


class DriverContract(ComingAndGoingContract, HandingOverContract):
    """The tests for every driver."""

    def test_tables_follow_their_collections(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: users read contents that were never true."""
        asyncio.run(follow(make_endpoint()))

    def test_names_reach_the_endpoint_as_they_are(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a column's name runs as SQL, or two names reach one table."""
        asyncio.run(hostile_names(make_endpoint()))

    def test_a_key_that_went_can_come_back(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a row that was deleted once is refused, or stays away, for ever."""
        asyncio.run(put_back(make_endpoint()))

    def test_a_transaction_without_rows_is_committed_and_recovered(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: the task of an empty view starts from nothing for ever; or rows stay of a view that is empty now."""
        asyncio.run(empty_everywhere(make_endpoint))

    def test_a_crash_at_any_point_loses_nothing_and_repeats_nothing(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a row is missing or duplicated after a restart."""
        asyncio.run(crash_everywhere(make_endpoint))

    def test_a_second_row_of_a_key_is_refused_until_one_of_them_goes(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: of two rows of one key the last one wins; or the task stands still for ever."""
        asyncio.run(second_row(make_endpoint()))

    def test_a_zombie_commits_nothing(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a process that was presumed dead overwrites its successor's rows."""
        asyncio.run(replaced(make_endpoint()))

    def test_a_zombie_that_wakes_inside_a_transaction_commits_nothing(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: the same, at the moments when only the endpoint can refuse the zombie."""
        if not make_endpoint().fences:
            pytest.skip("this endpoint cannot fence: a zombie may write until its next write to the log")
        asyncio.run(zombie_everywhere(make_endpoint))

    def test_a_preview_says_what_apply_would_do_and_does_none_of_it(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: an operator who asks what a backfill would do has done it."""
        asyncio.run(previewed(make_endpoint()))

    def test_a_bumped_backfill_begins_anew(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: rows of the old contents stay for ever."""
        endpoint = make_endpoint()
        if endpoint.checkpoint("m") is None:
            pytest.skip("this endpoint's tables are emptied by its own Apply")
        asyncio.run(backfill(endpoint))

    def test_a_backfill_that_dies_at_any_point_is_finished(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a table stays empty, or holds rows of before and after at once."""
        if make_endpoint().checkpoint("m") is None:
            pytest.skip("this endpoint's tables are emptied by its own Apply")
        asyncio.run(backfill_everywhere(make_endpoint))

    def test_an_endpoint_that_is_ahead_of_a_restored_location_is_refused_until_a_backfill(
        self, make_endpoint: MakeEndpoint
    ) -> None:
        """Damage: after a restore the endpoint keeps, for ever and silently, rows that the location has lost."""
        if make_endpoint().checkpoint("m") is None:
            pytest.skip("this endpoint keeps no checkpoint: what it was sent is not known")
        asyncio.run(restored(make_endpoint()))

    def test_a_value_is_stored_as_it_is_or_refused_until_its_row_goes(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a task stops with a raw error, for ever; or a date arrives as another one."""
        endpoint = make_endpoint()
        if getattr(endpoint, "unholdable", None) is None:
            pytest.skip("this endpoint does not say which values it cannot hold")
        asyncio.run(odd_values(endpoint))

    @pytest.mark.parametrize("everything", [True, False], ids=["everything", "the last transaction"])
    def test_what_an_endpoint_loses_is_noticed_by_the_next_transaction(
        self, everything: bool, make_endpoint: MakeEndpoint
    ) -> None:
        """Damage: the task writes on beside rows that are gone, and its backfill is refused."""
        endpoint = make_endpoint()
        if not isinstance(endpoint, Loses):
            pytest.skip("what this endpoint holds cannot be taken away by a test")
        asyncio.run(lost(endpoint, everything=everything))

    def test_what_slept_through_a_backfill_does_not_undo_it(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a process that sleeps in its Apply wakes after a backfill, and drops the rows of that."""
        asyncio.run(older_apply(make_endpoint()))

    def test_collections_that_are_complete_are_finished_once(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a collection that will never change again keeps its task busy, or is never finished."""
        asyncio.run(finish(make_endpoint()))


async def restored(endpoint: EndpointUnderTest) -> None:
    """Restore the location to an earlier time than its endpoint."""
    world = World(endpoint)
    runtime = world.runtime()
    first, second, *_ = write_history(world)
    await advance_through(world, runtime, (first,))
    restore = world.backup()
    await advance_through(world, runtime, (second,))
    await runtime.close()
    restore()
    with pytest.raises(ConfigError, match="restored from a backup"):
        await world.runtime(epoch=2).advance()
    world.bump_all(1)
    await world.runtime(epoch=3).advance()
    world.check(second)


async def follow(endpoint: EndpointUnderTest) -> None:
    """Advance through the history, and check after each step."""
    world = World(endpoint)
    runtime = world.runtime()
    for upper in write_history(world):
        world.seal(upper)
        assert await runtime.advance()
        assert runtime.status.position == upper
        world.check(upper)
        world.check_committed()
        assert not await runtime.advance()
    await runtime.close()


async def _refusal(endpoint: EndpointUnderTest, binding: Binding) -> str:
    """Return why a binding is refused, as a whole or for a column; empty: it is not."""
    spec = MaterializationSpec("m", (binding,))
    try:
        require_all(spec, await endpoint.driver().validate(spec))
    except DefinitionError as error:
        return str(error)
    return ""


async def hostile_names(endpoint: EndpointUnderTest) -> None:
    """Fill tables whose names and columns are `HOSTILE`; then change a row of each, delete one and leave one.

    Names that the endpoint cannot have are refused before anything is made, as a table's and as a column's.  The names
    of `PATHS` that it can have are columns of the first table beside them.
    """
    refused = frozenset(getattr(endpoint, "unnameable", ()))
    plain = Schema((Column("k", "string"),))
    for name in HOSTILE:
        for binding in (
            Binding(f"of {name}", name, ("k",), plain),
            Binding("v", "t", ("k",), Schema((*plain, Column(name, "string")))),
        ):
            said = await _refusal(endpoint, binding)
            assert bool(said) == (name in refused), said
            assert not said or repr(name) in said, "the message names it"
    paths = []
    for name in PATHS:
        said = await _refusal(endpoint, Binding("v", "t", ("k",), Schema((*plain, Column(name, "string")))))
        assert not said or (repr(name) if name else "empty") in said, "the message names it"
        paths += [] if said else [name]
    names = tuple(name for name in HOSTILE if name not in refused)
    own = [(*names, *paths) if place == 0 else names for place in range(len(names))]
    schemas = [Schema(tuple(Column(each, "string") for each in columns)) for columns in own]
    keys = [(names[0], columns[len(names)] if len(columns) > len(names) else names[1]) for columns in own]
    bindings = tuple(
        Binding(f"of {name}", name, key, schema) for name, key, schema in zip(names, keys, schemas, strict=True)
    )
    world = World(endpoint, MaterializationSpec("'; --", bindings), dict.fromkeys((*names, *paths), pa.string()))
    runtime = world.runtime()
    filled = [[{name: f"{name} {i} {n}" for name in columns} for n in range(3)] for i, columns in enumerate(own)]
    for feed, rows in zip(world.feeds, filled, strict=True):
        feed.write(1, *((each, 1) for each in rows))
    await advance_through(world, runtime, (3,))
    world.check(3)
    for feed, (changed, deleted, _) in zip(world.feeds, filled, strict=True):
        feed.write(3, (changed, -1), ({**changed, names[-1]: "%s"}, 1), (deleted, -1))
    await advance_through(world, runtime, (5,))
    world.check(5)
    world.check_committed()
    await runtime.close()


async def put_back(endpoint: EndpointUnderTest) -> None:
    """Delete keys and insert them again: in the next transaction, by another runtime, and within one window."""
    world = World(endpoint)
    _, people = world.feeds
    runtime = world.runtime()
    first, second, third = (row(1, None, s) for s in ("first", "second", "third"))
    same, other = row(2, None, "same"), row(3, None, "other")
    people.write(1, (first, 1), (same, 1), (other, 1))
    people.write(3, (first, -1))
    people.write(6, (second, 1))
    people.write(8, (second, -1), (same, -1))
    people.write(9, (third, 1), (same, 1), (other, -1))
    people.write(12, (other, 1))
    for upper in (3, 5, 7, 11, 13):
        await advance_through(world, runtime, (upper,))
        world.check(upper)
        world.check_committed()
        if upper == 11:
            await runtime.close()
            runtime = world.runtime()
    await runtime.close()


async def empty_everywhere(make_endpoint: MakeEndpoint) -> None:
    """Crash a runtime at every point of a transaction without rows; then let a row come and go."""
    world = World(make_endpoint())
    at, alive = 0, True
    while alive:
        at += 1
        for plan in (CrashPlan(at), CrashPlan(at, after=True)):
            world.bump(2 * at + plan.late)  # as if it were the first transaction of an empty collection
            alive = await empty_once(world, plan)
    assert at > 1
    only = row(1, None, "only")
    world.feeds[0].write(world.upper, (only, 1))
    await advance_through(world, world.runtime(), (world.upper + 1,))
    world.check(world.upper)
    if world.endpoint.checkpoint(world.spec.name) is not None:  # else its Apply empties the tables of a backfill
        world.feeds[0].write(world.upper, (only, -1))
        world.bump(2 * at + 2)
        await advance_through(world, world.runtime(), (world.upper + 1,))
        world.check(world.upper)
        world.check_committed()


async def empty_once(world: World, plan: CrashPlan) -> bool:
    """Crash as in ``plan`` in a transaction that has nothing to store; return whether that point was reached."""
    world.seal(world.upper + 2)
    with suppress(Crash):
        await world.runtime(plan).advance()
    successor = world.runtime()
    while await successor.advance():
        pass
    recovered = world.runtime()
    await recovered.open()
    assert recovered.status.checkpoint == world.upper, "a transaction without rows moves the checkpoint, too"
    whole = NOTHING.advance(world.spec.state_keys, world.upper)
    assert world.endpoint.checkpoint(world.spec.name) in {None, whole}
    world.check(world.upper)
    return plan.happened


async def second_row(endpoint: EndpointUnderTest) -> None:
    """Give a key a second row: the stored one once more, a new one twice at once, another one; take it away again.

    Each time it comes in a later transaction than what is stored.  At the end both rows go, and another one is stored.
    """
    world = World(endpoint)
    _, people = world.feeds
    runtime = world.runtime()
    one, two, new, last = row(1, None, "one"), row(1, None, "two"), row(3, None, "new"), row(1, None, "last")
    people.write(1, (one, 1), (row(2, None, "other"), 1))
    await advance_through(world, runtime, (3,))
    ways = (
        (1, ((one, 1),), ((one, -1),)),
        (3, ((new, 2),), ((new, -1),)),
        (1, ((two, 1),), ((one, -1), (two, -1), (last, 1))),
    )
    for key, comes, goes in ways:
        stored = world.upper
        people.write(stored, *comes)
        world.seal(stored + 2)
        for again in (runtime, runtime, world.runtime()):
            said = rf"'people' into 'People': (a second|more than one) row has the key \(k = {key}\)"
            with pytest.raises(DefinitionError, match=said):
                await again.advance()
            world.check(stored)
            world.check_committed()
            runtime = again
        people.write(stored + 3, *goes)
        await advance_through(world, runtime, (stored + 5,))
        world.check(stored + 5)
    await runtime.close()


async def previewed(endpoint: EndpointUnderTest) -> None:
    """Ask what Apply would do: to no table, to tables that are there, and for a backfill."""
    world = World(endpoint)
    driver = endpoint.driver()
    uppers = write_history(world)
    said = await driver.preview(world.spec)
    assert await driver.preview(world.spec) == said, "the first preview has done it"
    assert (await driver.apply(world.spec, {})).action == "; ".join(said)
    assert not await driver.preview(world.spec)
    await advance_through(world, world.runtime(), uppers[:2])
    if endpoint.checkpoint(world.spec.name) is not None:  # else its tables are emptied by its own Apply
        world.bump(1)
    said = await driver.preview(world.spec)
    assert await driver.preview(world.spec) == said
    world.check(uppers[1])
    await advance_through(world, world.runtime(), uppers[2:])
    world.check(uppers[-1])


async def crash_everywhere(make_endpoint: MakeEndpoint) -> None:
    """Crash a runtime at every point of its work, before its effect and after; let another one continue.

    All rounds use one endpoint, so each runtime starts from what the previous crash left.
    """
    world = World(make_endpoint())
    labels: set[str] = set()
    at, alive = 0, True
    while alive:
        at += 1
        for plan in (CrashPlan(at), CrashPlan(at, after=True)):
            alive = await crash_once(world, plan)
            labels |= {label.rpartition(".")[2] for label in plan.points}
    assert labels >= {"head", "compare_and_set", "apply", "open", "upper", "changes", "hold", "send", "receive"}
    assert at > len(labels)


async def crash_once(world: World, plan: CrashPlan) -> bool:
    """Crash as in ``plan`` during a busy, a quiet and a busy transaction; return whether that point was reached."""
    runtime = world.runtime(plan)
    with suppress(Crash):
        for step in (world.write_round, lambda: world.seal(world.upper + QUIET_TIMES_MAX), world.write_round):
            step()
            await runtime.advance()
    getattr(world.endpoint, "died", lambda: None)()
    world.check_committed()
    world.write_round()
    successor = world.runtime()
    while await successor.advance():
        world.check(successor.status.position)
    assert successor.status.position == world.upper, plan.points[-1]
    world.check(world.upper)
    return plan.happened


async def replaced(endpoint: EndpointUnderTest) -> None:
    """Let a successor take over between two transactions; the older runtime must notice, and stay stopped."""
    world = World(endpoint)
    uppers = write_history(world)
    older, newer = world.runtime(epoch=1), world.runtime(epoch=2)
    await advance_through(world, older, uppers[:1])
    await advance_through(world, newer, uppers[1:2])
    world.seal(uppers[2])
    # Its successor has moved the holds, so its history may be compacted: that stops it as well.
    for refusal in ((FencedError, AsOfError), FencedError, FencedError):
        with pytest.raises(refusal):
            await older.advance()
        world.check(uppers[1])
    assert await newer.advance()
    world.check(uppers[2])


async def zombie_everywhere(make_endpoint: MakeEndpoint) -> None:
    """Pause a runtime before every point of a transaction while a successor does the same one and the next."""
    world = World(make_endpoint())
    at = 1
    while await zombie_once(world, at, epoch=2 * at):
        at += 1
    assert at > 1


async def zombie_once(world: World, at: int, epoch: int) -> bool:
    """Pause at point ``at``; return whether there is one."""
    met, reached = False, 0

    async def meanwhile() -> None:
        nonlocal met, reached
        met = True
        successor = world.runtime(epoch=epoch + 1)
        while await successor.advance():
            pass
        world.write_over()
        await successor.advance()
        world.check(world.upper)
        reached = world.reached()

    zombie = world.runtime(PausePlan(at, meanwhile), epoch)
    world.write_over()
    with suppress(FencedError, AsOfError):
        try:
            await zombie.advance()
        except Unavailable:  # of an endpoint that cannot say yet who fenced a session off; its loop tries again
            await zombie.advance()
    assert world.reached() >= reached, "the zombie has taken the endpoint back"
    world.check_committed()
    # No runtime is blocked: a new one continues from what is committed.
    survivor = world.runtime(epoch=epoch + 1)
    while await survivor.advance():
        pass
    world.check(world.upper)
    return met


async def backfill(endpoint: EndpointUnderTest) -> None:
    """Bump a binding's counter in the middle of the history."""
    world = World(endpoint)
    uppers = write_history(world)
    await advance_through(world, world.runtime(), uppers[:2])
    world.bump(1)
    await advance_through(world, world.runtime(), uppers[2:])
    world.check(uppers[-1])


async def backfill_everywhere(make_endpoint: MakeEndpoint) -> None:
    """Raise a binding's counter repeatedly; crash each runtime that refills it at another point of its work."""
    world = World(make_endpoint())
    world.write_round()
    await world.runtime().advance()
    at, alive = 0, True
    while alive:
        at += 1
        for plan in (CrashPlan(at), CrashPlan(at, after=True)):
            former, before = world.spec.state_keys, world.upper
            world.bump(2 * at + plan.late)
            world.write_round()
            with suppress(Crash):
                await world.runtime(plan).advance()
            alive = plan.happened
            committed, tables = world.held()
            assert committed is not None
            if not committed.time(world.spec.state_keys):  # readers see all old rows and no new ones
                assert committed.time(former) == before
                assert tables == [world.truth(index, before) for index in range(len(tables))]
            successor = world.runtime()
            while await successor.advance():
                pass
            world.check(world.upper)
    assert at > 1


async def older_apply(endpoint: EndpointUnderTest) -> None:
    """Fill a table anew; then let Apply come once more as it was before that."""
    world, driver = World(endpoint), endpoint.driver()
    uppers = write_history(world)
    await advance_through(world, world.runtime(epoch=1), uppers[:1])
    older = world.spec
    world.bump(1)
    if endpoint.checkpoint(older.name) is None and not await driver.preview(world.spec):
        return  # rows that are there are no matter of its Apply
    successor = world.runtime(epoch=2)
    await advance_through(world, successor, uppers[1:3])
    with suppress(FencedError):
        await driver.apply(older, {})
    world.check(uppers[2])
    await advance_through(world, successor, uppers[3:])
    world.check(uppers[-1])


async def finish(endpoint: EndpointUnderTest) -> None:
    """Close both collections."""
    world = World(endpoint)
    uppers = write_history(world)
    runtime = world.runtime()
    for feed in world.feeds:
        feed.seal(EMPTY)
    assert await runtime.advance()
    assert not await runtime.advance()
    world.check(uppers[-1])
