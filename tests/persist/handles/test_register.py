"""Registers: every change is applied once, whatever the outcomes of its attempts."""

from __future__ import annotations

import pytest

from strandline.errors import CorruptionError, Indeterminate, Unavailable
from strandline.persist.handles.register import KEEP_VERSIONS, RETRIES_MAX, Register
from strandline.store.unreliable import Outcome
from strandline.testing.doubles import CountingIds
from strandline.testing.simulation.kernel import run_sync


def register(place, owner="a", key="catalog"):
    """A process's register."""
    return Register(key, place.clock, CountingIds(owner), place.consensus)


def add(word):
    """A change that adds a word."""
    return lambda body: (body or b"") + word


def test_a_fresh_register_holds_nothing_and_then_what_was_written(place):
    """Damage: the catalog is not what it was before a restart."""
    assert run_sync(register(place).read()) is None
    assert run_sync(register(place).update(add(b"a"))) == b"a"
    assert run_sync(register(place, "b").update(add(b"b"))) == b"ab"
    assert run_sync(register(place, "c").read()) == b"ab"


def test_a_change_to_none_leaves_it_alone(place):
    """Damage: a read changes the register."""
    run_sync(register(place).update(add(b"a")))
    assert run_sync(register(place).update(lambda body: None)) == b"a"
    assert len(place.versions["catalog"]) == 1


def test_an_exception_of_the_change_leaves_it_alone(place):
    """Damage: a refused statement is half in the catalog."""
    with pytest.raises(ZeroDivisionError):
        run_sync(register(place).update(lambda body: 1 / 0))
    assert place.versions == {}


@pytest.mark.parametrize("outcomes", [(o,) for o in Outcome] + [(Outcome.LATE, Outcome.LOST), (Outcome.REFUSED,) * 5])
def test_a_change_is_made_once_whatever_becomes_of_its_attempts(place, outcomes):
    """Damage: a statement is executed twice, or acknowledged and lost."""
    place.plan.extend(outcomes)
    assert run_sync(register(place).update(add(b"a"))) == b"a"
    run_sync(place.consensus.land())
    assert run_sync(register(place).read()) == b"a"


@pytest.mark.parametrize("outcome", [Outcome.DONE_UNREPORTED, Outcome.LOST, Outcome.LATE])
def test_a_change_and_a_concurrent_one_are_both_made_once(place, outcome):
    """Damage: of two statements at once, one is lost or done twice."""
    place.plan.append(outcome)
    place.clock.meanwhile.append(lambda: register(place, "b").update(add(b"b")))
    run_sync(register(place).update(add(b"a")))
    run_sync(place.consensus.land())
    assert sorted(run_sync(register(place, "c").read())) == sorted(b"ab")


def test_what_stays_unknown_is_said(place):
    """Damage: a statement is reported as failed and happens later."""
    place.plan.extend([Outcome.LATE, *[Outcome.LOST] * (RETRIES_MAX - 1)])
    with pytest.raises(Indeterminate, match="may or may not"):
        run_sync(register(place).update(add(b"a")))
    place.plan.extend([Outcome.REFUSED] * RETRIES_MAX)
    with pytest.raises(Unavailable):
        run_sync(register(place).update(add(b"a")))


def test_a_truncated_witness_is_not_a_refusal(place):
    """Damage: a change that was made is made again, because its witness was cleared away."""
    place.plan.append(Outcome.DONE_UNREPORTED)

    async def others():
        for word in (b"b", b"c"):
            await register(place, "b").update(add(word))
        await place.consensus.truncate("catalog", 2)

    place.clock.meanwhile.append(others)
    with pytest.raises(Indeterminate):
        run_sync(register(place).update(add(b"a")))
    assert run_sync(register(place, "c").read()) == b"abc"


def test_old_versions_are_forgotten_and_enough_are_kept(place):
    """Damage: a catalog that changes for a year fills the disk; or the witness of a change is gone at once."""
    changing = register(place)
    for _ in range(3 * KEEP_VERSIONS):
        run_sync(changing.update(lambda body: b"a" if body != b"a" else b"b"))
        kept = len(place.versions["catalog"])
        assert min(KEEP_VERSIONS, place.versions["catalog"][-1].seqno + 1) <= kept <= 2 * KEEP_VERSIONS


def test_another_registers_bytes_are_refused(place):
    """Damage: one task's recovery log is read as another's."""
    run_sync(register(place).update(add(b"a")))
    place.versions["other"] = place.versions["catalog"]
    with pytest.raises(CorruptionError, match="other"):
        run_sync(register(place, key="other").read())
