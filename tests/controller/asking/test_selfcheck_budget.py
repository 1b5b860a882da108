"""What the self-check may cost: a small share of the time that passes, whatever the checks take."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from strandline.controller.asking import selfcheck
from strandline.controller.asking.selfcheck import FIRST_CHECKS, PARTS, SHARE, SelfCheck
from strandline.controller.asking.verification import Sample, Verification
from strandline.controller.core import Core
from strandline.controller.location.items import View
from strandline.errors import AsOfError, FencedError, Unavailable
from strandline.instance.problems import Problems
from strandline.instance.reports import ViewStatus
from strandline.testing.doubles import HandClock
from strandline.testing.simulation.kernel import run_sync

TICK_MS = 1_000
COST_MS = 700


class World:
    """An environment of two views that are trusted, whose checks take their time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, checked: str = "plan") -> None:
        self.clock = HandClock()
        self.asked: list[tuple[str, Sample | None]] = []
        self.error: Exception | None = None
        views = {n: View(n, (("k", "string"),), n, "SELECT", (), {}, {}, checked=checked) for n in ("v", "w")}
        self.rows = 0
        instance = SimpleNamespace(report=lambda: SimpleNamespace(views=self._statuses(views)))
        catalogs = SimpleNamespace(change=self._change)
        self.core = SimpleNamespace(
            assembly=SimpleNamespace(clock=self.clock),
            catalog=SimpleNamespace(collection=views.__getitem__, items=views),
            catalogs=catalogs,
            problems=Problems(self.clock),
            require_writing=lambda: SimpleNamespace(instance=instance, epoch=1),
        )
        self.changes = 0
        monkeypatch.setattr(selfcheck, "verify", self._verify)
        self.checks = SelfCheck(cast("Core", self.core))

    def _statuses(self, views: Iterable[str]) -> dict[str, ViewStatus]:
        return dict.fromkeys(views, ViewStatus("plan", self.rows))

    async def _verify(self, core: Core, name: str, as_of: int | None, sample: Sample | None) -> Verification:
        self.asked.append((name, sample))
        self.clock.now += COST_MS
        if self.error is not None:
            raise self.error
        return Verification(name, 1, 0, 0, pa.table({}))

    async def _change(self, *_: Any) -> None:
        self.changes += 1

    def ticks(self, count: int) -> None:
        """Let so many ticks pass."""
        for _ in range(count):
            self.clock.now += TICK_MS
            run_sync(self.checks.turn())
            run_sync(self.checks.settle())


def test_checks_take_no_more_than_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a view that is dear to recompute makes every tick slow."""
    world = World(monkeypatch)
    world.ticks(2_000)
    spent = COST_MS * len(world.asked)
    assert 0.7 * SHARE <= spent / world.clock.now <= 1.05 * SHARE


def test_views_and_their_parts_are_checked_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: one view is checked all the time, and the others never."""
    world = World(monkeypatch)
    world.ticks(4_000)
    for name in ("v", "w"):
        parts = [sample.part for each, sample in world.asked if each == name and sample is not None]
        assert parts[: PARTS + 2] == [*range(PARTS), 0, 1]


def test_a_new_plan_is_checked_after_each_of_its_first_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a rule that is wrong only for changes is found hours later."""
    world = World(monkeypatch, checked="")
    for change in range(1, FIRST_CHECKS + 1):
        world.rows = change
        world.ticks(1)
    assert world.asked == [("v", None), ("w", None)] * FIRST_CHECKS
    assert world.changes == 2


def test_a_check_that_cannot_be_made_is_a_problem_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a check ends the process that it was to watch."""
    world = World(monkeypatch, checked="")
    world.rows, world.error = 1, Unavailable("the store is away")
    world.ticks(1)
    assert world.core.problems == dict.fromkeys(("v", "w"), "the self-check failed: the store is away")
    world.ticks(1)
    assert len(world.asked) == 2, "nothing has changed since"
    world.rows = 2
    world.error = FencedError("another environment has taken over")
    with pytest.raises(FencedError):
        world.ticks(1)


def test_a_check_that_could_not_read_its_view_does_not_vouch_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a plan that was never compared is trusted for ever."""
    world = World(monkeypatch, checked="")
    world.error = AsOfError("nothing is complete yet")
    for change in range(1, FIRST_CHECKS + 2):
        world.rows = change
        world.ticks(1)
    assert (len(world.asked), world.changes, world.core.problems) == (2 * (FIRST_CHECKS + 1), 0, {})
