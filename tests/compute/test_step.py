"""A step reads exactly what it needs of the past, or says that it is gone."""

from __future__ import annotations

import pytest
from workshop import Workshop

from strandline.errors import AsOfError
from strandline.frontier import Frontier
from strandline.testing.simulation.kernel import run_sync


def let_go(shop: Workshop, since: int) -> None:
    """Give up the input's times before ``since``."""
    run_sync(run_sync(shop.client.since("t", "reader", 1)).downgrade(Frontier(since)))


def test_a_step_whose_input_has_released_what_it_needs_says_so_and_appends_nothing() -> None:
    """Damage: all that an input holds looks new to a view that stood still, and is added to it once more."""
    shop = Workshop()
    run = shop.copy("v")
    shop.write(("a", 1))
    shop.step()
    shop.write(("b", 1))
    let_go(shop, shop.upper - 1)
    with pytest.raises(AsOfError, match="'t' cannot be read at 0"):
        shop.step()
    assert run.sink.writer.state.upper == Frontier(1)


def test_one_step_below_where_it_goes_on_is_all_that_a_step_needs() -> None:
    """Damage: inputs keep more of their past than any step needs; or a step goes wrong."""
    shop = Workshop()
    run = shop.copy("v")
    shop.write(("a", 1), ("gone", 1))
    shop.step()
    shop.write(("b", 1), ("gone", -1))
    let_go(shop, run.needed.at or 0)
    shop.step()
    assert (run.needed, shop.contents()) == (Frontier(1), {"a": 1, "b": 1})


def test_a_first_step_waits_for_a_time_at_which_all_inputs_can_be_read() -> None:
    """Damage: a new view begins at a time that one of its inputs has forgotten, and finds that input empty there."""
    shop = Workshop()
    shop.copy("v")
    for name in "abc":
        shop.write((name, 1))
    let_go(shop, 2)
    run = shop.runs["v"]
    assert run_sync(run.step(Frontier(2))) is None
    assert run.standing(Frontier(2)).startswith("it waits for 't', which cannot be read before")
    shop.step()
    assert shop.contents() == {"a": 1, "b": 1, "c": 1}


def test_a_first_step_that_had_happened_after_all_is_gone_on_from() -> None:
    """Damage: a view is empty at the times between its first step, which came late, and the one that tried it again.

    Found by single faults in scripts over whole environments, and by the small world of the sink.
    """
    shop = Workshop()
    late, again = shop.copy("v"), shop.copy("v", client=shop.process())
    shop.write(("a", 1))
    run_sync(late.step(Frontier(1)))
    shop.write(("b", 1), upper=5)
    run_sync(next(iter(again._inputs.values())).refresh())
    run_sync(again.step(Frontier(5)))
    assert [shop.contents(at=time) for time in (0, 1, 3, 4)] == [{"a": 1}, {"a": 1}, {"a": 1}, {"a": 1, "b": 1}]
