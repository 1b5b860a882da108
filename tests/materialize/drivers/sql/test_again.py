"""A transaction that another session got in the way of is made as often as is said, and no oftener."""

from __future__ import annotations

import pytest

from strandline.errors import Unavailable
from strandline.materialize.drivers.sql.connection import ATTEMPTS_MAX, OutcomeUnknownError, begun_anew
from strandline.testing.doubles import HandClock
from strandline.testing.simulation.kernel import run_sync


@pytest.mark.parametrize("in_the_way", [0, 1, ATTEMPTS_MAX - 1, ATTEMPTS_MAX])
def test_a_transaction_is_made_until_nothing_is_in_its_way_or_too_often(in_the_way: int) -> None:
    """Damage: an endpoint that two programs write to stands still, or one that is locked is asked for ever."""
    made: list[int] = []

    async def attempt() -> str:
        made.append(len(made))
        if len(made) <= in_the_way:
            raise OutcomeUnknownError("deadlock detected")
        return "committed"

    clock = HandClock()
    if in_the_way < ATTEMPTS_MAX:
        assert run_sync(begun_anew(attempt, "PostgreSQL (h)", clock, again=True)) == "committed"
        assert clock.now == sum(50 * 2**pause for pause in range(in_the_way))
    else:
        with pytest.raises(Unavailable, match=r"PostgreSQL \(h\) is busy .*: deadlock detected"):
            run_sync(begun_anew(attempt, "PostgreSQL (h)", clock, again=True))
    assert len(made) == min(in_the_way + 1, ATTEMPTS_MAX)


def test_a_transaction_that_must_be_looked_up_is_made_once() -> None:
    """Damage: rows that were written, and not reported, are written again."""
    made: list[str] = []

    async def attempt() -> None:
        made.append("once")
        raise OutcomeUnknownError("the connection was lost")

    with pytest.raises(OutcomeUnknownError):
        run_sync(begun_anew(attempt, "PostgreSQL (h)", HandClock(), again=False))
    assert made == ["once"]
