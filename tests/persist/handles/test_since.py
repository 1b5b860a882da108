"""Critical readers: a hold belongs to its newest owner, and only goes forward."""

from __future__ import annotations

import pytest

from strandline.errors import FencedError
from strandline.frontier import EMPTY, Frontier
from strandline.persist.shard.state import compare_and_downgrade
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync


def hold(place, epoch=1, reader="r", client=None):
    """Register or take over."""
    return run_sync((client or place.client()).since("s", reader, epoch))


def test_a_hold_keeps_since_back_until_it_moves(place):
    """Damage: history that a reader needs is compacted away."""
    one, two = hold(place, reader="one"), hold(place, reader="two")
    assert run_sync(one.downgrade(Frontier(5))) == Frontier(5)
    assert place.state().since == Frontier(0)
    run_sync(two.downgrade(Frontier(3)))
    assert place.state().since == Frontier(3)
    run_sync(two.downgrade(EMPTY))
    assert place.state().since == Frontier(5)


def test_a_hold_never_goes_back(place):
    """Damage: a restart asks for times that are gone, and believes it holds them."""
    one = hold(place)
    run_sync(one.downgrade(Frontier(5)))
    assert run_sync(one.downgrade(Frontier(2))) == Frontier(5)
    assert (one.since, hold(place, epoch=2).since) == (Frontier(5), Frontier(5))


def test_a_newer_epoch_takes_over_and_the_older_is_fenced(place):
    """Damage: a zombie releases history that its successor reads."""
    old, new = hold(place, 1), hold(place, 2)
    with pytest.raises(FencedError, match="is epoch 2's, not 1's"):
        run_sync(old.downgrade(Frontier(9)))
    with pytest.raises(FencedError):
        run_sync(old.expire())
    with pytest.raises(FencedError):
        hold(place, 1)
    assert run_sync(new.downgrade(Frontier(4))) == Frontier(4)


@pytest.mark.parametrize("outcome", [Outcome.DONE_UNREPORTED, Outcome.LATE, Outcome.LOST, Outcome.REFUSED])
def test_a_downgrade_whose_answer_was_lost_is_recognised(place, outcome):
    """Damage: an owner concludes that it is fenced, and stops."""
    one = hold(place)
    place.plan.append(outcome)
    assert run_sync(one.downgrade(Frontier(5))) == Frontier(5)
    run_sync(place.consensus.land())
    assert place.state().since == Frontier(5)
    place.plan.append(outcome)
    assert hold(place, 2).since == Frontier(5)


def test_taking_over_succeeds_though_an_older_epoch_was_faster(place):
    """Damage: the newest owner gets `FencedError` because of an owner that it fences."""
    hold(place, 1)
    machine = place.writer()._machine
    place.plan.extend([Outcome.LOST])

    def second_takes_over():
        return machine.commit(lambda state: compare_and_downgrade(state, "r", 1, 2, Frontier(3)))

    place.clock.meanwhile.append(second_takes_over)
    third = hold(place, 3)
    assert third.since == Frontier(3)
    assert place.state().criticals["r"].opaque == 3


def test_an_expired_hold_holds_nothing_and_can_be_taken_anew(place):
    """Damage: a dropped reader keeps history for ever; or coming back it holds what is gone."""
    one, two = hold(place, reader="one"), hold(place, reader="two")
    run_sync(two.downgrade(Frontier(7)))
    run_sync(one.expire())
    run_sync(one.expire())
    assert place.state().since == Frontier(0)  # deliberately: the next downgrade moves it
    run_sync(two.downgrade(Frontier(8)))
    assert place.state().since == Frontier(8)
    assert hold(place, reader="one").since == Frontier(8)


def test_a_hold_that_two_coroutines_move_stands_where_it_was_moved_furthest(place):
    """Damage: a coroutine gets a since before the one that was released, and reads history that is gone."""
    shared = hold(place)

    async def meanwhile():
        del shared._machine.maintain
        await shared.downgrade(Frontier(5))

    shared._machine.maintain = meanwhile
    assert run_sync(shared.downgrade(Frontier(3))) == Frontier(3)
    assert shared.since == Frontier(5)


def test_a_release_that_was_overtaken_leaves_the_successors_hold(place):
    """Damage: a zombie's retry releases the history that its successor's endpoint reads; that stops for good."""
    zombie, heir = place.client(), place.client()
    hold(place, 1, client=zombie)
    successors = []

    async def succeeded():
        successors.append(await heir.since("s", "r", 2))
        await successors[0].downgrade(Frontier(5))

    place.plan.append(Outcome.LOST)
    place.clock.meanwhile.append(succeeded)
    run_sync(zombie.release("s", "r", 1))
    assert run_sync(successors[0].downgrade(Frontier(6))) == Frontier(6)
    run_sync(heir.release("s", "r", 3))
    assert place.state("s").criticals == {}
