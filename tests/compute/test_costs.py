"""A step's cheaper way is found by what the ways took, and a dear one is tried again in time."""

from __future__ import annotations

from strandline.compute.sides import COLD, KNOWN_MIN, ROWS_MIN, SHARE_MAX, Costs

HELD = 1_000_000
CHANGED = 100_000


def known(changes_ms: float, anew_ms: float) -> Costs:
    """Return costs of a stage that was computed once, and brought on by changes until that is known."""
    costs = Costs()
    costs.note(anew=True, rows=HELD, ms=anew_ms * COLD)
    for _ in range(KNOWN_MIN):
        costs.note(anew=False, rows=CHANGED, ms=changes_ms)
    return costs


def anew(costs: Costs, changed: int = CHANGED, held: int = HELD, times: int = 1, *, small: bool = False) -> bool:
    """Return whether it is better to compute anew."""
    return costs.prefer_anew(changed, held, times=times, small=small)


def test_the_way_that_took_less_is_taken() -> None:
    """Damage: a tick takes ten times as long as computing anew, and so does the next one."""
    assert anew(known(25_000, 500))
    assert anew(known(25_000, 500), small=True)
    assert not anew(known(200, 500))


def test_changes_cost_by_their_number_and_computing_anew_by_the_inputs_and_the_times() -> None:
    """Damage: after one large window every small one is computed anew; or one of a hundred times, a hundred times."""
    costs = known(1_000, 500)
    assert anew(costs)
    assert not anew(costs, CHANGED // 4)
    assert not anew(costs, held=HELD * 4)
    assert not anew(costs, times=4)


def test_a_window_of_few_rows_is_never_computed_anew() -> None:
    """Damage: what a wave costs in any case is taken for the cost of a hundred rows."""
    assert not anew(known(25_000, 1), ROWS_MIN - 1)


def test_where_nothing_is_known_a_large_share_of_the_inputs_is_computed_anew() -> None:
    """Damage: the first load of a tenth of a table costs what computing all ten times does."""
    limit = int(HELD * SHARE_MAX)
    assert anew(Costs(), limit + 1)
    assert not anew(Costs(), limit)
    assert not anew(Costs(), limit + 1, small=True)
    assert not anew(Costs(), limit + 1, times=2)


def test_the_first_steps_decide_nothing() -> None:
    """Damage: the step that arranges its inputs, and takes ten times as long as the next ones, is the last."""
    costs = Costs()
    costs.note(anew=True, rows=HELD, ms=100)
    costs.note(anew=False, rows=CHANGED, ms=10_000)
    assert not anew(costs, small=True)
    assert anew(costs)
    costs.note(anew=False, rows=CHANGED, ms=10)
    costs.note(anew=False, rows=CHANGED, ms=10)
    assert not anew(costs, small=True)


def test_what_was_dear_once_is_tried_again_in_time() -> None:
    """Damage: an hour in which the machine was busy decides how a view is maintained for ever."""
    costs, steps = known(5_000, 500), 0
    while anew(costs):
        costs.note(anew=True, rows=HELD, ms=500)
        steps += 1
        assert steps < 100
    assert steps > 10
