"""A call is done once, whatever the store answers, and even if the state has forgotten its writer."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from strandline.errors import Indeterminate, InvalidUsage
from strandline.persist.shard import machine
from strandline.persist.shard.state import WRITERS_MAX, mark_swept
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync
from streams_in_use import opened, read, resolved


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.DONE])
def test_a_call_is_done_once_whatever_becomes_of_its_attempts(place, outcome):
    """Damage: a write is lost or doubled when the store stutters."""
    write, reader = opened(place, "n")
    place.plan.append(outcome)
    write.write([("a", 1, 1)])
    resolved(write.seal(2))
    run_sync(place.consensus.land())
    resolved(write.seal(3))
    assert read(reader, 2) == [("a", 1)]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("sealed_meanwhile", [False, True])
def test_awaiting_a_call_of_unknown_outcome_again_returns_its_outcome(place, monkeypatch, late, sealed_meanwhile):
    """Damage: a client in doubt whether it wrote cannot find out, or gets a wrong answer."""
    write, reader = opened(place, "n")
    other, _ = opened(place, "n")
    monkeypatch.setattr(machine, "CAS_RETRIES_MAX", 2)
    call = write.write([("a", 5, 1)])
    place.plan.extend([Outcome.LOST, Outcome.LATE if late else Outcome.LOST])
    with pytest.raises(Indeterminate):
        resolved(call)
    run_sync(place.consensus.land())
    if sealed_meanwhile:
        resolved(other.seal(6))
    if sealed_meanwhile and not late:
        with pytest.raises(InvalidUsage, match="sealed up to"):
            resolved(call)
    else:
        resolved(call)
    resolved(write.seal(7))
    assert read(reader, 6) == ([("a", 1)] if late or not sealed_meanwhile else [])


@pytest.mark.parametrize("sealed", [False, True])
def test_a_lost_race_after_many_writers_is_no_doubt(place, sealed):
    """Damage: after 65 short processes no process can write to a stream, for ever."""
    for _ in range(WRITERS_MAX + 1):
        write, _ = opened(place, "n")
        resolved(write.write([("many", 5, 1)]))
    (one, _), (two, reader) = opened(place, "n"), opened(place, "n")
    resolved(one.seal(6) if sealed else one.write([("one", 5, 1)]))
    call = two.write([("two", 5, 1)])
    if sealed:
        with pytest.raises(InvalidUsage, match="sealed up to"):
            resolved(call)
    else:
        resolved(call)
    resolved(two.seal(6))
    assert read(reader, 5) == [("many", WRITERS_MAX + 1), *([] if sealed else [("one", 1), ("two", 1)])]


@pytest.mark.parametrize("outcome", [Outcome.LATE, Outcome.LOST, None])
def test_an_attempt_in_doubt_after_many_writers_is_found_by_what_it_wrote(place, monkeypatch, outcome):
    """Damage: one lost answer, and a client of a busy stream can never write again; or it writes twice."""
    write, reader = opened(place, "n")
    monkeypatch.setattr(machine, "CAS_RETRIES_MAX", 1)
    call = write.write([("a", 5, 1)])
    if outcome is None:  # it is cancelled while it waits for the answer, and lands
        with monkeypatch.context() as patched:
            patched.setattr(place.consensus, "compare_and_set", cancelled_after(place.consensus.compare_and_set))
            with pytest.raises(asyncio.CancelledError):
                resolved(call)
    else:
        place.plan.append(outcome)
        with pytest.raises(Indeterminate):
            resolved(call)
    run_sync(place.consensus.land())
    monkeypatch.undo()
    for _ in range(WRITERS_MAX + 1):
        other, _ = opened(place, "n")
        resolved(other.write([("many", 5, 1)]))
    resolved(call)
    resolved(write.seal(6))
    assert read(reader, 5) == [("a", 1), ("many", WRITERS_MAX + 1)]


def cancelled_after(call):
    """Run the call, and cancel it before it gets the answer."""

    async def cancelled(*given):
        await call(*given)
        raise asyncio.CancelledError

    return cancelled


def test_a_write_that_waited_until_its_parts_were_swept_is_staged_again(place, monkeypatch):
    """Damage: a client that could not write for a day can never write again; or names parts that are gone."""
    write, reader = opened(place, "n")
    call = write.write([("x" * 20_000, 5, 1)])
    place.clock.now += 1_000
    with monkeypatch.context() as patched:
        patched.setattr(machine, "CAS_RETRIES_MAX", 2)
        place.plan.extend([Outcome.LOST] * 2)
        with pytest.raises(Indeterminate):
            resolved(call)
    other, _ = opened(place, "n")
    place.clock.now += 10**8
    run_sync(other._writer.commit(partial(mark_swept, before_ms=place.clock.now)))
    for key in [key for key in place.objects if "/parts/" in key]:
        del place.objects[key]
    resolved(call)
    resolved(write.seal(6))
    assert read(reader, 5) == [("x" * 20_000, 1)]
