"""Whichever process of a promotion ends, and at whichever of its durable writes: one version or the other, whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Final

import pytest
from promoted import ONE, TWO, Cut, Location, Process, latest, project, switch

from strandline.bench.environment import TICK_MS
from strandline.compute.sink.actor import Sink
from strandline.controller.core import Core
from strandline.controller.defining.apply import apply
from strandline.controller.defining.creating import create
from strandline.controller.language.statements import parse
from strandline.controller.location.config import Mode
from strandline.controller.location.items import View
from strandline.controller.preparing.preparation import ask, promotion, withdraw
from strandline.errors import ConfigError, DefinitionError, InvalidUsage, StoreError, StrandlineError, Unavailable
from strandline.persist.fsck import check_location
from strandline.testing.doubles import Crash, HandClock
from strandline.testing.simulation.kernel import run_sync

TIMEOUT_S: Final = 2.0
"""For how long a promotion is waited for: some 20 looks, each of which lets the other processes go on."""
CUTS: Final = ("before", "after", "lost", "stalled")
PARTS: Final = 8


def readied(location: Location, ticks: int) -> tuple[Process, Process]:
    """Let a process write for so many ticks, and another one prepare the next version; return both."""
    old = location.run(ONE)
    for _ in range(ticks):
        location.tick(old)
    following = location.prepare(TWO)
    for _ in range(2):
        location.tick(old)
        run_sync(following.preparation.tick())
    return old, following


@cache
def prepared() -> Location:
    """Return a location whose next version is prepared; the processes that wrote it have ended."""
    location = Location()
    for each in readied(location, ticks=10):
        location.end(each)
    return location


class Promotion:
    """A promotion with its three processes: the one that writes, the one that prepares, and the one that asks."""

    def __init__(self, *, again: bool = False) -> None:
        """``again``: the process that writes is started again whenever it ends."""
        self.location = prepared().copy()
        self.old = self.location.run(ONE)
        self.location.tick(self.old)
        self.following = self.location.prepare(TWO)
        run_sync(self.following.preparation.tick())
        self.again = again
        self.old_goes_on = True
        self.steps = self.taken()

    def go_on(self) -> None:
        """Have the process that writes tick."""
        if self.old_goes_on:
            self.old_goes_on = self.location.ticks(self.old)
        if self.old.writes.ended and self.again:
            self.again = False
            with suppress(ConfigError, DefinitionError):  # another process writes; or another version stands there
                self.old = self.location.run(ONE)
                self.old_goes_on = True

    def step(self) -> bool:
        """Have the process that writes tick, and the other one do its next thing; return whether it had one to do."""
        self.go_on()
        return next(self.steps, False)

    def taken(self) -> Iterator[bool]:
        """Take the steps of the process that prepares, as `run --read-only` does; the one that writes ticks between."""
        process = self.following
        for step in self.following_steps(process):
            try:
                step()
            except Crash:
                self.location.end(process)
            except StoreError:
                pass
            except StrandlineError:
                self.location.end(process)
            yield True
            if process.writes.ended:
                return

    def following_steps(self, process: Process) -> list[Callable[[], object]]:
        """Return what the process that prepares does once it is asked."""
        location = self.location

        def promote() -> None:
            if process.preparation.version.asked:
                core = run_sync(process.preparation.promote())
                if core is not None:
                    process.core = core
                    run_sync(apply(core, project(TWO)))
            else:
                run_sync(process.preparation.tick())

        def tick() -> None:
            if process.core.writing is not None:
                location.tick(process, healthy=False)

        return [lambda: run_sync(process.preparation.tick()), promote, tick, tick, tick]

    def ask(self) -> str:
        """Ask for the promotion, and return what is said."""
        asking = self.location.open(Mode.READ)
        run_sync(asking.core.look())

        class Waiting(HandClock):
            async def sleep(_, seconds: float) -> None:  # noqa: N805 - this one's name is taken
                _.now += round(seconds * 1000)
                self.step()

        asking.core.assembly = replace(asking.core.assembly, clock=Waiting())
        try:
            run_sync(promotion(asking.core, force=False, timeout_s=TIMEOUT_S))
        except (InvalidUsage, Unavailable) as error:
            return str(error)
        finally:
            self.location.end(asking)
        return "promoted"

    def finish(self) -> None:
        """Let all go on to where it ends by itself."""
        said = self.ask()
        assert (said == "promoted") == self.location.promoted, said
        while self.step():
            pass
        self.go_on()

    def meanwhile(self) -> None:
        """Have the process that prepares do all that it does, while the one that writes stands still."""
        self.old_goes_on = False
        for _ in self.steps:
            pass
        self.old_goes_on = True

    # ---- afterwards --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """End all processes; then the location opens, and is of one version, whole; and another promotion finishes."""
        location = self.location
        for each in (self.old, self.following):
            location.end(each)
        was = location.promoted
        fresh = location.run(TWO if was else ONE)
        for _ in range(2):
            location.tick(fresh)
        first = run_sync(switch(fresh.core, location.times))
        assert (first < len(location.times)) == was
        self.old, self.old_goes_on = fresh, True
        if was:
            assert "no next version is prepared" in self.ask()
        else:
            self.following = location.prepare(TWO)
            for _ in range(3):
                run_sync(self.following.preparation.tick())
                location.tick(fresh)
            self.steps = self.taken()
            assert self.ask() == "promoted"
            while self.step():
                pass
            assert not self.old_goes_on, "two versions write"
            fresh = self.following
        for _ in range(3):
            location.tick(fresh)
        core = fresh.core
        assert location.promoted
        assert run_sync(switch(core, location.times)) < len(location.times)
        assert list(latest(core)) == []
        assert [v.seed for v in core.catalog.items.values() if isinstance(v, View) and v.seed] == []
        assert core.catalog.dropped == ()
        assert location.left(fresh) == set()
        assert run_sync(core.versions.read()).views == {}
        assert run_sync(check_location(core.client, core.engine)).harmful == ()


def cut(whose: str, how: str, at: int, *, again: bool = False) -> bool:
    """Have a promotion with a fault at one write of a process, and look at what it leaves.

    Returns whether there was that write.
    """
    found = Promotion(again=again)
    process = getattr(found, whose)
    process.writes.count(Cut(at, how, found.go_on if whose == "following" else found.meanwhile))
    found.finish()
    there = len(process.writes.made) >= at
    if there:
        found.check()
    return there


def enumerated(whose: str, how: str, part: int, *, again: bool = False) -> None:
    """Have one promotion for each of one in `PARTS` of the writes of a process."""
    at = part + 1
    while cut(whose, how, at, again=again):
        at += PARTS
    assert at > 2 * PARTS, "there are so many writes at least"


@pytest.mark.drawn(8)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("how", CUTS)
def test_the_process_that_takes_over_may_end_at_each_of_its_writes(how: str, part: int) -> None:
    """Damage: a crash leaves half a version, two writers, rows of both versions at one time, or shards of no item."""
    enumerated("following", how, part)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("how", CUTS)
def test_the_process_that_is_replaced_may_end_at_each_of_its_writes(how: str, part: int) -> None:
    """Damage: what the version before still writes while it is replaced is lost, or stands beside what is new."""
    enumerated("old", how, part)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("how", ["before", "after"])
def test_a_writer_that_a_supervisor_starts_again_is_no_promotion(how: str, part: int) -> None:
    """Damage: `promote` says that the new version writes, and it was the old one that began another generation."""
    enumerated("old", how, part, again=True)


def test_what_a_promoted_view_goes_on_from_is_not_released_while_it_takes_over() -> None:
    """Damage: the version before, which keeps no history, releases it meanwhile; and the view stands still for ever."""
    location, old, following = unkept()
    catalog_is_written = Cut(how="stalled", meanwhile=lambda: [location.tick(old) for _ in range(3)])
    following.writes.count(catalog_is_written, "write catalog")
    take_over(following)
    for _ in range(3):
        location.tick(following)
    (run,) = following.core.require_writing().instance._views.dataflows.runs_of("totals")[-1:]
    assert run.sink.counters.audits == 0, "it was computed anew"


def test_a_writer_that_was_replaced_by_a_process_that_died_releases_nothing() -> None:
    """Damage: it goes on beside the new version that no process runs yet, which then can never go on."""
    location, old, following = unkept()
    following.writes.count(Cut(how="after"), "write catalog")
    with pytest.raises(Crash):
        run_sync(following.preparation.promote())
    location.end(following)
    while location.ticks(old):
        assert len(location.times) < 40, "it learns that it was replaced"
    location.clock.now += 100 * TICK_MS  # all leases are over
    location.end(old)
    fresh = location.run(TWO)
    for _ in range(3):
        location.tick(fresh)


def test_a_view_whose_first_step_fails_keeps_what_it_goes_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: one failed step after a promotion, and the view stands still for ever."""
    location, old, following = unkept()
    for _ in range(2):
        location.tick(old)  # it comes further than what was prepared
    take_over(following)
    with monkeypatch.context() as patched:

        async def unanswered(*_: object) -> None:
            raise Unavailable("the store does not answer")

        patched.setattr(Sink, "adopt", unanswered)
        for _ in range(3):
            location.tick(following, healthy=False)
    assert "does not answer" in following.core.health.problems()["totals"]
    for _ in range(2):
        location.tick(following, healthy=False)
    assert following.core.health.problems() == {}


def test_a_promotion_that_was_withdrawn_is_not_made_and_one_that_was_begun_is_not_withdrawn() -> None:
    """Damage: `promote` says that it has given up, and a moment later the new version writes."""
    withdrawn: list[bool] = []
    for at in range(1, 22):
        found = Promotion()
        asking = found.location.open(Mode.READ).core
        run_sync(asking.look())
        asked = run_sync(ask(asking, force=False)).asked
        given_up: list[bool] = []

        def give_up(said: list[bool] = given_up, asking: Core = asking, asked: str = asked) -> None:
            said.append(run_sync(withdraw(asking, asked)))

        found.following.writes.count(Cut(at, "stalled", give_up))
        while found.step():
            pass
        assert given_up == [not found.location.promoted]
        withdrawn += given_up
    assert withdrawn == sorted(withdrawn, reverse=True)
    assert {*withdrawn} == {True, False}


def test_a_version_that_waited_while_another_was_promoted_is_refused() -> None:
    """Damage: a process that slept for an hour wakes up, and puts an older version in place of a newer one."""
    found = Promotion()
    slept = found.location.prepare(TWO)
    run_sync(slept.preparation.tick())
    found.finish()
    with pytest.raises(ConfigError, match="another version was promoted while this one was prepared"):
        run_sync(slept.preparation.promote())
    found.location.end(slept)
    found.check()


def test_a_promotion_waits_for_a_view_that_is_replaced_since_it_was_asked_for() -> None:
    """Damage: the process that prepares the next version ends, and the promotion is not made."""
    location = Location()
    old, following = readied(location, ticks=4)
    run_sync(ask(old.core, force=False))
    run_sync(following.preparation.tick())
    text = "CREATE OR REPLACE MATERIALIZED VIEW over AS SELECT grp, n + 1 AS n FROM wide"
    run_sync(create(old.core, parse(text)))  # type: ignore[arg-type]
    for _ in range(2):
        assert run_sync(following.preparation.promote()) is None
        assert "'over' waits to be replaced" in following.preparation.waiting
    assert "__next_over" in location.catalog().items, "it goes on"
    location.tick(old)
    run_sync(following.preparation.tick())
    assert not following.preparation.waiting
    take_over(following)
    assert location.promoted


def test_a_promotion_of_what_is_no_longer_prepared_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: `promote` waits for its timeout, and asks whether a process runs that does run."""
    location = Location()
    old, following = readied(location, ticks=4)
    asking = location.open(Mode.READ).core
    query = TWO["totals"].split(" AS ", 1)[1]
    slept: list[float] = []

    async def replaced_meanwhile(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            await create(old.core, parse(f"CREATE OR REPLACE MATERIALIZED VIEW totals AS {query}"))  # type: ignore[arg-type]
            await following.preparation.tick()

    monkeypatch.setattr(location.clock, "sleep", replaced_meanwhile)
    with pytest.raises(Unavailable, match="has changed since it was asked for"):
        run_sync(promotion(asking, force=False, timeout_s=60))
    assert len(slept) < 10


def test_no_version_is_promoted_over_a_view_that_waits_to_be_replaced() -> None:
    """Damage: the promotion takes a replacement away that its author waits for, in silence."""
    location = Location()
    old, following = readied(location, ticks=4)
    text = "CREATE OR REPLACE MATERIALIZED VIEW over AS SELECT grp, n + 1 AS n FROM wide"
    run_sync(create(old.core, parse(text)))  # type: ignore[arg-type]
    waiting = "'over' waits to be replaced.*DROP MATERIALIZED VIEW `__next_over`"
    with pytest.raises(InvalidUsage, match=waiting):
        run_sync(ask(old.core, force=True))
    run_sync(following.core.look())
    with pytest.raises(ConfigError, match=waiting):
        following.preparation.version.promoted(following.core.catalog)
    assert "__next_over" in location.catalog().items, "it goes on"
    location.tick(old)
    placed = location.catalog().one("over", View, "view")
    assert "n + 1" in placed.sql
    for _ in range(2):
        location.tick(old)
        run_sync(following.preparation.tick())
    run_sync(ask(old.core, force=False))
    take_over(following)
    assert location.promoted


def take_over(process: Process) -> None:
    """Have the process that prepares promote its version, asked or not."""
    core = run_sync(process.preparation.promote())
    assert core is not None
    process.core = core


def unkept() -> tuple[Location, Process, Process]:
    """Return a location that keeps no history, with a process that writes and one that has prepared a version."""
    location = Location()
    location.keep_history = "0"
    return location, *readied(location, ticks=4)
