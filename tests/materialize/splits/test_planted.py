"""Mistakes in splits that the contract must catch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from strandline.errors import StrandlineError
from strandline.frontier import Frontier
from strandline.materialize import log, splits
from strandline.materialize.protocol.task import Checkpoint, KeyRange
from strandline.materialize.runtime import Task
from strandline.materialize.wire import tuples
from strandline.testing.contracts.drivers.splits_contract import (
    asleep_everywhere,
    crashed_everywhere,
    divided_and_joined,
)
from strandline.testing.endpoints import MemoryEndpoint, StagingSession

Patch = pytest.MonkeyPatch


def _all_rows_for_all(patch: Patch) -> None:
    patch.setattr(tuples, "within", lambda range_, hashes: [True] * len(hashes))


def _holds_of_one(patch: Patch) -> None:
    async def hold(self: splits.Shared, range_: KeyRange, frontier: Frontier) -> None:
        await self.feed.hold(frontier)

    patch.setattr(splits.Shared, "hold", hold)


def _unsettled(patch: Patch) -> None:
    async def settle(self: Task, upto: int | None = None) -> int:
        return upto or 0

    patch.setattr(Task, "settle", settle)


def _position_of_the_first(patch: Patch) -> None:
    patch.setattr(Checkpoint, "common", staticmethod(lambda checkpoints: checkpoints[0]))
    _unsettled(patch)


def _log_that_no_one_opened(patch: Patch) -> None:
    async def lay_out(self: log.RecoveryLog, layout: Any, progress: Any, state: Any, greatest: Any = {}) -> None:  # noqa: B006
        found = log.decode(self._key, await self._register.read() or b"")
        await self._register.update(
            lambda _: log.encode(replace(found, layout=layout, progress=progress, state=state, greatest=greatest))
        )
        self._record = replace(found, layout=layout, progress=progress, state=state, greatest=greatest)

    patch.setattr(log.RecoveryLog, "lay_out", lay_out)


PLANTED: dict[str, tuple[Callable[[Patch], None], Callable[[Any], Coroutine[Any, Any, None]]]] = {
    "each split has all rows": (_all_rows_for_all, divided_and_joined),
    "history goes when the first split needs it no longer": (_holds_of_one, crashed_everywhere),
    "splits change while a transaction is under way": (_unsettled, divided_and_joined),
    "what is joined goes on from where the first split was": (_position_of_the_first, crashed_everywhere),
    "splits are changed by a runtime that has lost the log": (_log_that_no_one_opened, asleep_everywhere),
}


@pytest.mark.parametrize(("plant", "scenario"), PLANTED.values(), ids=PLANTED)
def test_a_planted_mistake_is_caught(plant: Callable[[Patch], None], scenario: Callable[[Any], Any]) -> None:
    """Damage: a mistake of this kind loses rows, and no test fails."""
    with Patch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, StrandlineError)):
            asyncio.run(asyncio.wait_for(scenario(MemoryEndpoint(StagingSession)), 120))
