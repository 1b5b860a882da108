"""The kernel is deterministic, honest about crashes and late effects, and finds what it was built to find."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from strandline.errors import Determinate, Indeterminate, InvalidUsage
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import Committed, CompareAndSet, Mismatch, Versioned
from strandline.testing.contracts.blob_contract import BlobContract, OpenBlob
from strandline.testing.contracts.consensus_contract import ConsensusContract, OpenConsensus, step
from strandline.testing.simulation.exploration import Listed, Seeded, every_list
from strandline.testing.simulation.kernel import (
    CLEANUP_POINTS_MAX,
    PAUSES_MS,
    READ,
    START_MS,
    Fate,
    IoPoint,
    Simulation,
    StepBudgetExceeded,
    run_sync,
)
from strandline.testing.simulation.places import SimBlob, SimClock, SimConsensus, SimIds

T = TypeVar("T")
CALM = Listed(())


def run_alone(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run one actor in fair weather and return its result."""
    simulation = Simulation(CALM)
    simulation.spawn("alone", lambda _: coroutine)
    simulation.drive()
    return simulation.results["alone"]  # type: ignore[return-value]


class TestSimBlob(BlobContract):
    @pytest.fixture
    def open_blob(self) -> OpenBlob:
        return partial(SimBlob, MemoryBlob())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run_alone(coroutine)


class TestSimConsensus(ConsensusContract):
    @pytest.fixture
    def open_consensus(self) -> OpenConsensus:
        return partial(SimConsensus, MemoryConsensus())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run_alone(coroutine)


# --- A world in small: actors that add to one counter, exactly once each time ----------------------------------------

TIMES = 3
ACTORS = ("ann", "bob", "cid")


async def add_naively(consensus: SimConsensus, name: str) -> None:
    """Add `TIMES` times; after an unknown outcome try again."""
    for number in range(TIMES):
        while True:
            try:
                head = await consensus.head("counter")
                seen = [] if head is None else head.data.decode().split()
                if await consensus.compare_and_set(request(head, [*seen, f"{name}{number}"])) == Committed():
                    break
            except (Indeterminate, Determinate):
                continue


async def add_by_witness(consensus: SimConsensus, name: str) -> None:
    """Add `TIMES` times; before each try look whether it is there: also after a crash, since the names are fixed."""
    for number in range(TIMES):
        while True:
            try:
                head = await consensus.head("counter")
                seen = [] if head is None else head.data.decode().split()
                if f"{name}{number}" in seen:
                    break
                await consensus.compare_and_set(request(head, [*seen, f"{name}{number}"]))
            except (Indeterminate, Determinate):
                continue


def request(head: Versioned | None, entries: list[str]) -> CompareAndSet:
    """Return the request that makes ``entries`` the counter's next content."""
    return step("counter", None if head is None else head.seqno, " ".join(entries).encode())


OUTCOMES = (Fate.DONE, Fate.DONE_UNREPORTED, Fate.LATE, Fate.LOST, Fate.REFUSED)


def count(add, choose, fates=tuple(Fate), actors=ACTORS) -> tuple[list[str], Simulation]:
    """Let all actors add under these choices; return what was counted."""
    place = MemoryConsensus()
    simulation = Simulation(choose, fates, calm_after=400, steps_max=2_000)
    for name in actors:
        simulation.spawn(name, lambda _, name=name: add(SimConsensus(place), name))
    simulation.drive()
    head = run_sync(place.head("counter"))
    return ([] if head is None else head.data.decode().split()), simulation


WANTED = sorted(f"{name}{number}" for name in ACTORS for number in range(TIMES))


def test_a_naive_retry_counts_twice_in_some_seeds() -> None:
    """Damage: the simulation cannot see the fault that it was built for, and every green run means nothing."""
    wrong = 0
    for seed in range(300):
        counted, _ = count(add_naively, Seeded(random.Random(seed)), OUTCOMES)
        assert set(counted) == set(WANTED)
        wrong += len(counted) > len(WANTED)
    assert 20 <= wrong <= 280, wrong


def test_a_writer_that_looks_for_its_witness_counts_once_in_every_seed_under_every_fault() -> None:
    """Damage: the kernel invents effects that no store has, and right code looks wrong."""
    crashes = 0
    for seed in range(300):
        counted, simulation = count(add_by_witness, Seeded(random.Random(seed)))
        assert sorted(counted) == WANTED, seed
        crashes += sum(step.fate is not None and step.fate.crash for step in simulation.trace)
    assert crashes > 100, "the seeds must do some work"


def test_all_interleavings_of_two_naive_actors_are_searched_and_the_fault_is_found() -> None:
    """Damage: a bounded search misses what lies within its bounds."""

    async def add_once(consensus: SimConsensus, name: str) -> None:
        for _ in range(2):
            try:
                head = await consensus.head("counter")
                seen = [] if head is None else head.data.decode().split()
                if await consensus.compare_and_set(request(head, [*seen, name])) == Committed():
                    return
            except Indeterminate:
                continue

    runs, contents, lists = 0, set(), set()
    for choose in every_list():
        counted, simulation = count(add_once, choose, (Fate.DONE, Fate.LATE), ("a", "b"))
        runs += 1
        contents.add(" ".join(counted))
        lists.add(tuple(simulation.choices))
    assert runs == len(lists), "no run is made twice"
    assert {"a b", "b a", "a a", "b b", "a", "b"} <= contents
    assert runs > 1_000


HASHES = """
import random, sys
sys.path.insert(0, sys.argv[1])
from test_kernel import Seeded, add_by_witness, count
print(" ".join(count(add_by_witness, Seeded(random.Random(seed)))[1].trace_hash() for seed in range(40)))
"""


def test_the_same_seed_gives_the_same_trace_in_any_process_under_any_hash_seed() -> None:
    """Damage: a failing seed cannot be replayed, so the bug it found stays."""
    here = [count(add_by_witness, Seeded(random.Random(seed)))[1].trace_hash() for seed in range(40)]
    assert len(set(here)) == 40
    for hash_seed in ("1", "2"):
        process = subprocess.run(
            [sys.executable, "-c", HASHES, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert process.stdout.split() == here


def test_the_choices_of_a_run_replay_it() -> None:
    """Damage: a failure found by a seed cannot be shrunk or kept as an example."""
    for seed in range(40):
        counted, first = count(add_by_witness, Seeded(random.Random(seed)))
        again, second = count(add_by_witness, Listed(first.choices))
        assert (again, second.trace_hash(), second.choices) == (counted, first.trace_hash(), first.choices)


def test_every_fate_is_met_at_every_site_it_may_befall() -> None:
    """Damage: a kind of failure is silently never tried."""
    met: set[tuple[str, Fate]] = set()
    for seed in range(300):
        met |= count(add_by_witness, Seeded(random.Random(seed)))[1].coverage()
    assert met == {("consensus.head", fate) for fate in READ} | {("consensus.compare_and_set", fate) for fate in Fate}


# --- One fate at a time ----------------------------------------------------------------------------------------------


class Scripted:
    """Choices by label: each label's answers in order, then 0."""

    def __init__(self, **answers: list[int]) -> None:
        self._answers = {
            label.replace("__", ":").replace("_dot_", "."): iter(given) for label, given in answers.items()
        }

    def __call__(self, label: str, n: int) -> int:
        value = next(self._answers.get(label, iter(())), 0)
        assert value < n
        return value


SET = "fault__blob_dot_set"


def told(fate: Fate, *, land: list[int] | None = None) -> tuple[list[str], list[str], Simulation]:
    """Let one actor set a blob under one fate; return what it and its next incarnations saw, and what is stored."""
    seen: list[str] = []
    place = MemoryBlob()

    async def actor(incarnation: int) -> None:
        seen.append(f"begins {incarnation}")
        blob = SimBlob(place)
        try:
            await blob.set(f"k{incarnation}", b"data")
            seen.append("done")
        except (Determinate, Indeterminate) as error:
            seen.append(type(error).__name__)
        seen.append(f"sees {await blob.list('')}")

    choose = Scripted(**{SET: [list(Fate).index(fate)], "fault__land": land or []})
    simulation = Simulation(choose)
    simulation.spawn("a", actor)
    simulation.drive()
    return seen, run_sync(place.list("")), simulation


@pytest.mark.parametrize(
    ("fate", "seen", "stored"),
    [
        (Fate.DONE, ["begins 0", "done", "sees ['k0']"], ["k0"]),
        (Fate.DONE_UNREPORTED, ["begins 0", "Indeterminate", "sees ['k0']"], ["k0"]),
        (Fate.LATE, ["begins 0", "Indeterminate", "sees []"], ["k0"]),
        (Fate.LOST, ["begins 0", "Indeterminate", "sees []"], []),
        (Fate.REFUSED, ["begins 0", "Determinate", "sees []"], []),
        (Fate.CRASH_BEFORE, ["begins 0", "begins 1", "done", "sees ['k1']"], ["k1"]),
        (Fate.CRASH_AFTER, ["begins 0", "begins 1", "done", "sees ['k0', 'k1']"], ["k0", "k1"]),
        (Fate.CRASH_LATE, ["begins 0", "begins 1", "done", "sees ['k1']"], ["k0", "k1"]),
        (Fate.PAUSE, ["begins 0", "done", "sees ['k0']"], ["k0"]),
    ],
)
def test_each_fate_has_its_effect_and_its_report(fate: Fate, seen: list[str], stored: list[str]) -> None:
    """Damage: code is tested against failures that no store has, and not against those that stores have."""
    got_seen, got_stored, _ = told(fate)
    assert (got_seen, got_stored) == (seen, stored)


def test_late_io_may_land_before_its_issuers_next_step() -> None:
    """Damage: only effects that come at the very end are tried, and a retry never meets its own first try."""
    seen, _, simulation = told(Fate.LATE, land=[1])
    assert seen[-1] == "sees ['k0']"
    assert [(step.site, step.fate) for step in simulation.trace] == [
        ("blob.set", Fate.LATE),
        ("blob.set", None),
        ("blob.list", Fate.DONE),
    ]


def test_a_crash_runs_no_io_of_the_actors_cleanup() -> None:
    """Damage: a crash is gentler than a real one, and what only a finally block undoes looks safe."""
    place = MemoryBlob()

    async def actor(incarnation: int) -> None:
        if incarnation == 1:
            return
        blob = SimBlob(place)
        try:
            await blob.set("lock", b"")
        finally:
            await blob.delete("lock")
            await blob.set("cleaned", b"")

    choose = Scripted(**{SET: [list(Fate).index(Fate.CRASH_AFTER)]})
    simulation = Simulation(choose)
    simulation.spawn("a", actor)
    simulation.drive()
    assert run_sync(place.list("")) == ["lock"]


@pytest.mark.parametrize("began", [0, 1])
def test_a_crash_reaches_an_asynchronous_generator_that_is_waited_for(began: int) -> None:
    """Damage: what the generator holds is never let go in the simulation, or its reader's cleanup ends the run."""
    place, let_go = MemoryBlob(), []

    async def listen(blob: SimBlob) -> AsyncGenerator[int, None]:
        try:
            for n in range(2):
                await blob.set(f"k{n}", b"")
                yield n
        finally:
            let_go.append("generator")
            await blob.set("cleaned", b"")

    async def actor(incarnation: int) -> None:
        if incarnation == 1:
            return
        heard = listen(SimBlob(place))
        try:
            while True:
                await anext(heard)
        finally:
            await heard.aclose()
            let_go.append("reader")

    fates = [list(Fate).index(fate) for fate in (*[Fate.DONE] * began, Fate.CRASH_AFTER)]
    simulation = Simulation(Scripted(**{SET: fates}))
    simulation.spawn("a", actor)
    simulation.drive()
    assert let_go == ["generator", "reader"]
    assert run_sync(place.list("")) == ["k0", "k1"][: began + 1]


def test_an_actor_that_goes_on_after_its_crash_is_refused() -> None:
    """Damage: code that swallows what ends a process looks as if it survived."""

    async def actor(_: int) -> None:
        for _ in range(1 + CLEANUP_POINTS_MAX + 1):
            with suppress(BaseException):
                await SimBlob(MemoryBlob()).set("k", b"")

    simulation = Simulation(Scripted(**{SET: [list(Fate).index(Fate.CRASH_BEFORE)]}))
    simulation.spawn("a", actor)
    with pytest.raises(InvalidUsage, match="does not end when it crashes"):
        simulation.drive()


def test_an_actor_that_does_not_come_back_ends_the_run() -> None:
    """Damage: a process that is gone for good cannot be part of a world."""
    simulation = Simulation(Scripted(**{SET: [list(Fate).index(Fate.CRASH_BEFORE)]}))
    place = MemoryBlob()
    simulation.spawn("a", lambda incarnation: SimBlob(place).set("k", b"") if incarnation == 0 else None)
    simulation.drive()
    assert run_sync(place.list("")) == []


@pytest.mark.parametrize("pause", range(len(PAUSES_MS)))
def test_a_paused_actor_finds_that_the_world_went_on(pause: int) -> None:
    """Damage: a zombie that wakes after its lease is never tried."""
    place = MemoryConsensus()
    woke: list[int] = []

    async def zombie(_: int) -> None:
        assert await SimConsensus(place).compare_and_set(step("k", None, b"zombie")) == Mismatch()
        woke.append(simulation.now_ms - START_MS)

    async def other(_: int) -> None:
        assert await SimConsensus(place).compare_and_set(step("k", None, b"other")) == Committed()

    choose = Scripted(fault__consensus_dot_compare_and_set=[list(Fate).index(Fate.PAUSE)], pause=[pause])
    simulation = Simulation(choose)
    simulation.spawn("zombie", zombie)
    simulation.spawn("other", other)
    simulation.drive()
    assert woke[0] >= PAUSES_MS[pause]


def test_sleepers_wake_in_the_order_of_their_times_and_time_jumps_when_all_sleep() -> None:
    """Damage: back-off and leases are tried in an order that no clock shows, or cost a step for every millisecond."""
    woke: list[tuple[str, int]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await SimClock(simulation).sleep(seconds)
        woke.append((name, simulation.now_ms - START_MS))

    simulation = Simulation(CALM)
    for name, seconds in (("slow", 900.0), ("quick", 0.5), ("middle", 60.0)):
        simulation.spawn(name, lambda _, name=name, seconds=seconds: sleeper(name, seconds))
    simulation.drive()
    assert [name for name, _ in woke] == ["quick", "middle", "slow"]
    assert [at // 100 for _, at in woke] == [5, 600, 9000]
    assert simulation.steps == 3


def test_a_skewed_clock_may_step_back() -> None:
    """Damage: the clock that is never to be trusted is always right in the tests."""
    simulation = Simulation(CALM)
    clock = SimClock(simulation, skew_ms=500)
    assert clock.now_ms() == START_MS + 500
    clock.skew_ms = -500
    assert clock.now_ms() == START_MS - 500


def test_names_are_never_given_twice_and_are_part_of_the_trace() -> None:
    """Damage: two actors of one run share a key, or a replay names things anew."""
    ids = SimIds()
    assert [ids.fresh("part"), ids.fresh("part"), ids.fresh("writer")] == ["part-1", "part-2", "writer-3"]


def test_many_requests_whose_call_is_not_reported_may_have_happened_in_part() -> None:
    """Damage: the tick's advance of all idle shards is believed to be atomic."""
    place = MemoryConsensus()

    async def actor(_: int) -> None:
        with pytest.raises(Indeterminate):
            await SimConsensus(place).compare_and_set_many([step(key, None) for key in "abc"])

    site = "consensus_dot_compare_and_set_many"
    answers = {f"fault__{site}": [list(Fate).index(Fate.DONE_UNREPORTED)], f"{site}_dot_some": [1, 0, 1]}
    simulation = Simulation(Scripted(**answers))
    simulation.spawn("a", actor)
    simulation.drive()
    assert run_sync(place.list_keys()) == ["b"]


# --- Ends ------------------------------------------------------------------------------------------------------------


def test_a_run_that_does_not_end_is_an_error_that_names_its_budget_and_the_stuck_actors() -> None:
    """Damage: a livelock hangs the tests instead of failing them."""
    ended: list[str] = []

    async def forever(_: int) -> None:
        try:
            while True:
                await SimClock(simulation).sleep(1)
        finally:
            ended.append("cleaned up")
            await SimClock(simulation).sleep(1)

    simulation = Simulation(CALM, steps_max=500)
    simulation.spawn("spinner", forever)
    with pytest.raises(StepBudgetExceeded, match=r"500 steps: spinner at clock\.sleep"):
        simulation.drive()
    assert ended == ["cleaned up"], "no coroutine outlives its run"


def test_once_calm_nothing_unusual_happens_and_all_that_was_late_has_landed() -> None:
    """Damage: a system that never recovers passes, since its faults never stop."""
    for seed in range(100):
        place = MemoryConsensus()
        simulation = Simulation(Seeded(random.Random(seed)), calm_after=20, steps_max=500)
        for name in ACTORS:
            simulation.spawn(name, lambda _, name=name, place=place: add_by_witness(SimConsensus(place), name))
        simulation.drive()
        after = simulation.trace[20:]
        assert {step.fate for step in after} <= {Fate.DONE, None}
        landed = [step.fate is None for step in after]
        assert landed == sorted(landed, reverse=True), "late I/O lands first"


def test_an_error_of_an_actor_ends_the_run_and_says_what_replays_it() -> None:
    """Damage: a law is broken and the run goes on, or cannot be replayed."""

    async def actor(_: int) -> None:
        await SimBlob(MemoryBlob()).get("k")
        raise AssertionError("the law is broken")

    simulation = Simulation(Scripted(fault__blob_dot_get=[4]))
    simulation.spawn("a", actor)
    with pytest.raises(AssertionError, match="the law is broken") as caught:
        simulation.drive()
    assert caught.value.__notes__ == ["replayed by Listed([4, 0, 0])"]


def test_a_usage_error_reaches_its_actor() -> None:
    """Damage: a wrong call passes unseen in simulation, and fails on the real store."""

    async def actor(_: int) -> None:
        with pytest.raises(InvalidUsage):
            await SimConsensus(MemoryConsensus()).truncate("unknown", 0)

    run_alone(actor(0))


def test_awaiting_anything_else_is_refused() -> None:
    """Damage: an actor waits for the machine, and the run depends on it."""

    async def actor(_: int) -> None:
        await asyncio.sleep(0)  # noqa: TID251 what must not be awaited

    with pytest.raises(InvalidUsage, match="not simulated"):
        Simulation(CALM).spawn("a", actor)


def test_a_site_has_one_set_of_fates() -> None:
    """Damage: a change is taken for a read, and is never lost."""

    async def actor(_: int) -> None:
        await IoPoint("a.site", (), lambda: None, READ)
        await IoPoint("a.site", (), lambda: None)

    simulation = Simulation(CALM)
    simulation.spawn("a", actor)
    with pytest.raises(InvalidUsage, match=r"a\.site"):
        simulation.drive()


def test_run_sync_returns_what_a_coroutine_returns_unless_it_suspends() -> None:
    """Damage: a test believes that it ran what it only began."""

    async def nested() -> int:
        blob = MemoryBlob()
        await blob.set("k", b"four")
        return len(await blob.get("k") or b"")

    async def suspends() -> None:
        await IoPoint("a.site", (), lambda: None)

    assert run_sync(nested()) == 4
    with pytest.raises(InvalidUsage, match="suspends"):
        run_sync(suspends())


def test_an_actor_that_refuses_to_die_is_named() -> None:
    """Damage: a test hangs on code that catches everything."""
    mercy: list[bool] = []

    async def immortal(_: int) -> None:
        while True:
            try:
                await SimBlob(MemoryBlob()).set("k", b"")
            except BaseException:
                if mercy:
                    raise

    simulation = Simulation(Scripted(**{SET: [list(Fate).index(Fate.CRASH_AFTER)]}))
    coroutine = immortal(0)
    simulation.spawn("a", lambda _: coroutine)
    with pytest.raises(InvalidUsage, match="immortal"):
        simulation.drive()
    mercy.append(True)
    coroutine.close()
