"""Runs every scenario of the driver contract on a driver: as it is, where it must pass, and with each defect planted.

A defect that passes its scenario is a fault of the suite, or of an endpoint that the suite cannot see through.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Any, Final

import pytest

from strandline.errors import InvalidUsage, StrandlineError
from strandline.materialize.driver import Driver
from strandline.materialize.protocol.task import NOTHING
from strandline.testing.checking.defects import DEFECTS, Defect
from strandline.testing.checking.endpoint import CheckedEndpoint, Planted, sound
from strandline.testing.contracts.drivers import driver_contract
from strandline.testing.contracts.drivers.world import TWO, World
from strandline.wiring.loop import LoopThread

Scenario = Callable[[Any], Coroutine[Any, Any, None]]
Opening = Callable[[int], Callable[[], Driver]]
"""Returns how drivers are opened to the endpoint of a number, which is empty."""

_FAILED: Final = (AssertionError, StrandlineError, pytest.fail.Exception)


class Outcome(Enum):
    """What became of a scenario."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """One scenario: its name, the ``defect`` that was planted (empty: none), and why it did not pass."""

    scenario: str
    defect: str
    outcome: Outcome
    why: str = ""

    @property
    def good(self) -> bool:
        """Whether this is what is wanted: sound it passes, and fails with a defect."""
        return self.outcome is Outcome.SKIPPED or (self.outcome is Outcome.FAILED) == bool(self.defect)


@dataclass(frozen=True, slots=True)
class _Step:
    """``many``: the scenario makes endpoints itself.  ``keeps``: only for those that keep a checkpoint."""

    run: Scenario
    many: bool = False
    keeps: bool = False


SCENARIOS: Final = {
    step.run.__name__: step
    for step in (
        _Step(driver_contract.follow),
        _Step(driver_contract.put_back),
        _Step(driver_contract.second_row),
        _Step(driver_contract.replaced),
        _Step(driver_contract.previewed),
        _Step(driver_contract.older_apply),
        _Step(driver_contract.finish),
        _Step(driver_contract.hostile_names),
        _Step(driver_contract.backfill, keeps=True),
        _Step(driver_contract.empty_everywhere, many=True),
        _Step(driver_contract.crash_everywhere, many=True),
        _Step(driver_contract.zombie_everywhere, many=True, keeps=True),
        _Step(driver_contract.backfill_everywhere, many=True, keeps=True),
    )
}


def check(opening: Opening) -> Iterator[Result]:
    """Yield the result of every scenario, one after the other; each has endpoints of its own.

    Raises:
        InvalidUsage: the endpoint cannot be read back.
    """
    numbers = count(1)
    loop = LoopThread()
    try:
        keeps = _keeps(opening(next(numbers)), loop)

        def make(planted: Planted = sound) -> CheckedEndpoint:
            return CheckedEndpoint(opening(next(numbers)), loop, planted, keeps=keeps)

        for name, step in SCENARIOS.items():
            if step.keeps and not keeps:
                yield Result(name, "", Outcome.SKIPPED, "this endpoint keeps no checkpoint")
            else:
                yield _tried(name, "", step, make)
        for defect in DEFECTS:
            if defect.keeps is not None and defect.keeps != keeps:
                why = "only of endpoints that keep a checkpoint" if defect.keeps else "only of those that keep none"
                yield Result(defect.scenario, defect.mistake, Outcome.SKIPPED, why)
            elif not defect.previews and not asyncio.run(opening(next(numbers))().preview(TWO)):
                yield Result(defect.scenario, defect.mistake, Outcome.SKIPPED, "its Apply has nothing to do")
            else:
                yield _tried(defect.scenario, defect.mistake, SCENARIOS[defect.scenario], _with(defect, make))
    finally:
        loop.stop()


def _with(defect: Defect, make: Callable[[Planted], CheckedEndpoint]) -> Callable[[], CheckedEndpoint]:
    return lambda: make(defect(set()))


def _keeps(open: Callable[[], Driver], loop: LoopThread) -> bool:  # noqa: A002
    """Return whether an endpoint keeps a checkpoint, by having it keep one."""
    endpoint = CheckedEndpoint(open, loop, keeps=True)
    world = World(endpoint)

    async def fill() -> None:
        world.write_round()
        runtime = world.runtime()
        await runtime.advance()
        await runtime.close()

    asyncio.run(fill())
    try:
        return endpoint.checkpoint(world.spec.name) != NOTHING
    except InvalidUsage as error:
        raise InvalidUsage(
            f"{error}; the suite of endpoints that are only pushed to is `push_contract` in "
            "strandline.testing.contracts.drivers"
        ) from error


def _tried(name: str, defect: str, step: _Step, make: Callable[[], CheckedEndpoint]) -> Result:
    try:
        asyncio.run(step.run(make if step.many else make()))
    except _FAILED as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Result(name, defect, Outcome.FAILED, lines[0])
    return Result(name, defect, Outcome.PASSED)


def described(name: str) -> str:
    """Return what a scenario does, in a sentence.

    >>> described("follow")
    'Advance through the history, and check after each step.'
    """
    return (inspect.getdoc(SCENARIOS[name].run) or "").partition("\n")[0]
