"""While a tick runs long, everybody can learn what it waits for, and since when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.bench.environment import Place, _define, over_lists
from strandline.controller.asking import status
from strandline.controller.core import Core
from strandline.controller.health import PROBLEMS, Published
from strandline.controller.location.config import Config, Mode
from strandline.errors import CorruptionError, Indeterminate, Unavailable
from strandline.instance.problems import LONG_S
from strandline.persist.handles.register import Register
from strandline.persist.shard.patience import ATTEMPTS_MAX
from strandline.store.memory import MemoryConsensus
from strandline.store.protocols import Committed, CompareAndSet, Mismatch
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.simulation.kernel import run_sync
from strandline.wiring.loop import RunningTask, side_by_side

ITEMS = {"items", "events", "totals", "matched", "highest"}
BEGUN = "2023-11-14T22:13:21+00:00"
SHORT_MS = round(LONG_S * 1000) - 1


class Endless(HandClock):
    """A clock by which no time passes: a caller waits for as long as what it waits for takes."""

    async def sleep(self, seconds: float) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()


class Held:
    """A tick under way that waits for one call."""

    def __init__(self, core: Core, place: Place) -> None:
        self.core = core
        self.place = place
        self.said: list[dict[str, str]] = []
        core.health.overdue = lambda waits: self.said.append(dict(waits))
        self._changes = 0

    async def published(self) -> dict[str, str | None]:
        """Return the problems and waits that `status` shows in another process."""
        other = await Core.open(self.place.assembly, Config(), Mode.READ)
        found = await status.status(other)
        return {**found["problems"], **found["waiting"]}

    async def after(self, milliseconds: int) -> dict[str, str | None]:
        """Let time pass; return what is published then."""
        self.place.clock.now += milliseconds
        await self.core.watch()
        return await self.published()


@asynccontextmanager
async def holding(where: Callable[[Core], tuple[Any, str]], of: str = "") -> AsyncIterator[Held]:
    """Hold a tick at the first call of a method (with something of the item ``of``); then it ends without a problem."""
    place = over_lists()
    beside = partial(RunningTask, Endless())
    place = replace(place, assembly=replace(place.assembly, together=side_by_side, beside=beside))
    core = await Core.open(place.assembly, Config(), Mode.FULL)
    await _define(core)
    await core.tick()
    owner, name = where(core)
    call, reached, gate = getattr(owner, name), asyncio.Event(), asyncio.Event()

    async def held(*arguments: Any, **options: Any) -> Any:
        if not of or core.catalog.items[of].shard in {writer.shard for writer, _, _ in arguments[0]}:
            reached.set()
            await gate.wait()
        return await call(*arguments, **options)

    setattr(owner, name, held)
    place.clock.now += 1_000
    ticking = asyncio.create_task(core.tick())  # noqa: TID251 - the test is the scheduler
    await reached.wait()
    found = Held(core, place)
    yield found
    gate.set()
    await ticking
    assert await found.published() == {}
    assert core.health.waits(core.require_writing().instance) == {}
    await core.close()


def test_a_tick_that_waits_for_a_step_names_every_item() -> None:
    """Damage: a job hangs for five minutes, and `status` shows views that stand still as if all were well."""

    async def scenario() -> None:
        async with holding(lambda core: (core.writing.instance._views.dataflows.runs_of("matched")[-1], "step")) as at:
            assert await at.after(SHORT_MS) == {}
            found = await at.after(1)
            assert found.keys() == ITEMS
            assert found == at.said[-1]
            assert found["matched"] == f"it waits for what was begun for it at {BEGUN}"
            assert found["events"] == f"it waits for the end of the tick that began at {BEGUN}"

    asyncio.run(scenario())


def test_a_tick_that_waits_for_a_source_names_what_reads_it_too() -> None:
    """Damage: an operator looks at the view that nothing is wrong with."""

    async def scenario() -> None:
        async with holding(lambda core: (core.writing.instance._sources.open["events"].ingestion, "tick")) as at:
            found = await at.after(SHORT_MS + 1)
            assert found["events"] == f"it waits for what was begun for it at {BEGUN}"
            assert found["matched"] == f"it waits for its turn in the tick that began at {BEGUN}"
            assert found["items"] == f"it waits for the end of the tick that began at {BEGUN}"

    asyncio.run(scenario())


def test_a_move_of_many_views_at_once_is_waited_for_by_each() -> None:
    """Damage: a tick that changes nothing hangs over its one write, and no view says so."""

    async def scenario() -> None:
        async with holding(lambda core: (core.client, "advance_many"), of="totals") as at:
            found = await at.after(SHORT_MS + 1)
            assert found["totals"] == f"it waits for what was begun for it at {BEGUN}"

    asyncio.run(scenario())


def test_before_a_tick_has_a_time_every_item_waits() -> None:
    """Damage: the definitions cannot be read for minutes, and nothing seems to stand still."""

    async def scenario() -> None:
        async with holding(lambda core: (core.catalogs, "settle")) as at:
            found = await at.after(SHORT_MS + 1)
            assert found.keys() == ITEMS | {"catalog"}

    asyncio.run(scenario())


def test_what_is_published_changes_only_when_something_else_is_waited_for() -> None:
    """Damage: a tick that waits for a store writes to it every few seconds."""

    async def scenario() -> None:
        async with holding(lambda core: (core.client, "advance_many")) as at:
            await at.after(SHORT_MS + 1)
            before = await at.place.assembly.consensus.head(PROBLEMS)
            await at.after(60_000)
            assert await at.place.assembly.consensus.head(PROBLEMS) == before

    asyncio.run(scenario())


def test_a_clock_that_is_set_back_hides_no_long_tick_for_longer() -> None:
    """Damage: after a clock was set back by an hour, no tick runs long for an hour."""

    async def scenario() -> None:
        async with holding(lambda core: (core.client, "advance_many")) as at:
            assert await at.after(SHORT_MS) == {}
            assert await at.after(-3_600_000) == {}
            assert (await at.after(1)).keys() == ITEMS | {"transactions"}

    asyncio.run(scenario())


def test_ticks_that_are_short_write_nothing_more() -> None:
    """Damage: every tick pays for a report that no caller needs."""
    place = over_lists()
    core = run_sync(Core.open(place.assembly, Config(), Mode.FULL))
    run_sync(_define(core))
    run_sync(core.tick())
    before = run_sync(place.assembly.consensus.head(PROBLEMS))
    for _ in range(5):
        place.clock.now += 60_000
        run_sync(core.watch())
        run_sync(core.tick())
    assert run_sync(place.assembly.consensus.head(PROBLEMS)) == before
    run_sync(core.close())


def test_a_board_that_cannot_be_written_is_said_all_the_same() -> None:
    """Damage: the store that is silent keeps what is published, too, so no reader learns of the outage."""

    async def scenario() -> None:
        async with holding(lambda core: (core.client, "advance_many")) as at:
            for error in (Unavailable("away"), CorruptionError("a byte is flipped")):

                async def fail(change: object, error: Exception = error) -> None:
                    raise error

                register = at.core.health.published_problems._register
                at.core.health.published_problems._register = type("Failing", (), {"update": staticmethod(fail)})()
                assert await at.after(SHORT_MS + 1) == {}
                assert at.said[-1].keys() == ITEMS | {"transactions"}
                at.core.health.published_problems._register = register

    asyncio.run(scenario())


# ---- what is published -----------------------------------------------------------------------------------------------


class LateConsensus(MemoryConsensus):
    """While ``late``, changes are not answered, and happen at `land`."""

    late = False

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Coroutine[Any, Any, Committed | Mismatch]] = []

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Install it, or keep it for later."""
        if not self.late:
            return await super().compare_and_set(request)
        self.sent.append(super().compare_and_set(request))
        raise Indeterminate("no answer yet")

    async def land(self) -> None:
        """Let what was sent happen."""
        for each in self.sent:
            await each


def published(consensus: MemoryConsensus, owner: str = "a") -> Published[str]:
    """What is published, as one process has it."""
    return Published(Register(PROBLEMS, HandClock(), CountingIds(owner), consensus), str)


def test_what_was_published_without_an_answer_is_not_read_once_it_is_over() -> None:
    """Damage: a problem that is gone is read by others until another one comes."""
    consensus = MemoryConsensus()
    ours, under_way = published(consensus), []

    async def hang(request: CompareAndSet) -> Committed | Mismatch:
        under_way.append(request)
        raise Indeterminate("no answer")

    run_sync(ours.publish({}, 1))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ours._register, "_consensus", SimpleNamespace(head=consensus.head, compare_and_set=hang))
        run_sync(ours.publish({"v": "stuck"}, 1))
    run_sync(ours.publish({"v": "it waits for its turn"}, 1, stale=lambda: True))
    run_sync(ours.publish({}, 1))
    for request in under_way:
        run_sync(consensus.compare_and_set(request))
    assert run_sync(published(consensus).read()) == {}


def test_a_process_that_finds_published_what_it_would_publish_writes_nothing() -> None:
    """Damage: each process that comes to an environment writes an object that says what is there."""
    consensus = MemoryConsensus()
    run_sync(published(consensus).publish({"t": "stuck"}, 1))
    there = run_sync(consensus.head(PROBLEMS))
    run_sync(published(consensus, "b").publish({"t": "stuck"}, 1))
    assert there is not None
    assert run_sync(consensus.head(PROBLEMS)) == there


@pytest.mark.parametrize("successor", [False, True])
def test_what_lands_late_hides_nothing_that_was_published_after_it(successor: bool) -> None:
    """Damage: a problem that is over, or one that is not, is shown wrongly until there is another one."""
    consensus = LateConsensus()
    ours = published(consensus)
    run_sync(ours.publish({"t": "stuck"}, 1))
    consensus.late = True
    run_sync(ours.publish({}, 1))
    assert len(consensus.sent) == ATTEMPTS_MAX
    consensus.late = False
    later = published(consensus, "b") if successor else ours
    run_sync(later.publish({"t": "stuck"}, 2 if successor else 1))
    run_sync(consensus.land())
    assert run_sync(published(consensus).read()) == {"t": "stuck"}


def test_an_environment_that_was_succeeded_publishes_nothing() -> None:
    """Damage: a process that was paused for an hour says of all items that they stand still."""
    consensus = MemoryConsensus()
    old, new = published(consensus), published(consensus, "b")
    run_sync(old.publish({}, 1))
    run_sync(new.publish({}, 2))
    run_sync(old.publish({"t": "it waits for its turn"}, 1))
    assert run_sync(published(consensus).read()) == {}


def test_what_is_stale_before_it_is_sent_is_not_published() -> None:
    """Damage: `status` says that items wait for a tick that has ended."""
    consensus = MemoryConsensus()
    ours = published(consensus)
    run_sync(ours.publish({}, 1))
    run_sync(ours.publish({"t": "it waits for its turn"}, 1, stale=lambda: True))
    run_sync(ours.publish({}, 1))
    assert run_sync(published(consensus).read()) == {}


def test_of_two_that_tell_at_once_the_later_is_published() -> None:
    """Damage: a tick ends while it is published what it waits for, and that stays."""

    class Slow(MemoryConsensus):
        """Holds the first change until the second has been made."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.turn = asyncio.Event(), asyncio.Event()

        async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
            if not self.first.is_set():
                self.first.set()
                await self.turn.wait()
            return await super().compare_and_set(request)

    async def scenario() -> None:
        consensus = Slow()
        ours = published(consensus)

        async def after() -> None:
            await consensus.first.wait()
            await ours.publish({}, 1)
            consensus.turn.set()

        await side_by_side([ours.publish({"t": "it waits"}, 1), after()])
        assert await published(consensus).read() == {}
        await ours.publish({"t": "it waits"}, 1)
        assert await published(consensus).read() == {"t": "it waits"}

    asyncio.run(scenario())


def test_a_board_of_an_earlier_version_is_read() -> None:
    """Damage: after an upgrade `status` fails until the first tick."""
    consensus = MemoryConsensus()
    register = Register(PROBLEMS, HandClock(), CountingIds("old"), consensus)
    run_sync(register.update(lambda _: b'{"t": "stuck"}'))
    assert run_sync(published(consensus).read()) == {"t": "stuck"}
