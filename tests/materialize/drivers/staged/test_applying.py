"""A transaction is applied at most once, by any process and at any time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.materialize.drivers.staged.late import SCENARIOS, applied_while_a_successor_goes_on
from tests.materialize.drivers.staged.memory_lake import MemoryFormat, MemoryLake

from strandline.materialize.drivers.staged.table import Lake, Snapshot


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_late_apply_changes_nothing(scenario: Callable[[Lake], None]) -> None:
    """Damage: a process that was presumed dead stores rows twice, or takes its successor's back."""
    scenario(MemoryLake())


def test_a_commit_without_the_check_of_the_version_is_caught() -> None:
    """Damage: a format whose commit does not depend on what was seen passes these scenarios."""

    class Planted(MemoryFormat):
        def _next(self, seen: Snapshot, **changes: Any) -> bool:
            newest = self.stored.newest
            assert newest is not None
            return super()._next(Snapshot(newest.number, seen.shape, seen.owner, 0, ()), **changes)

    with pytest.raises(AssertionError):
        applied_while_a_successor_goes_on(MemoryLake(form=Planted))
