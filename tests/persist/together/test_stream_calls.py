"""Calls to a stream take effect in their order, once, and are durable when they are resolved."""

from __future__ import annotations

from itertools import pairwise

import pytest

from strandline.errors import AsOfError, Indeterminate, InvalidUsage, StoreError
from strandline.frontier import EMPTY, Frontier
from strandline.persist.handles.updates import Update
from strandline.persist.shard import machine, trace
from strandline.persist.shard.batch import INLINE_SHARD_BYTES_MAX
from strandline.persist.together.unsealed import RUN_CALLS_MAX
from strandline.store.unreliable import Outcome
from streams_in_use import as_rows, client, opened, read, resolved, rows, versions, words


@pytest.mark.parametrize("codec", [words, rows])
def test_what_is_written_is_durable_at_once_and_read_once_it_is_sealed(place, codec):
    """Damage: an acknowledged write is lost by a crash, or read before its time is complete."""
    a, b = ("a", "b") if codec is words else as_rows("a", "b")
    write, reader = opened(place, "n", codec=codec)
    resolved(write.write([(a, 5, 1), (b, 7, 2), (a, 5, 1)]))
    with pytest.raises(AsOfError):
        read(reader, 5)
    again, reader = opened(place, "n", codec=codec)
    resolved(again.seal(6))
    assert read(reader, 5) == [(a, 2)]
    resolved(again.seal(8))
    assert read(reader, 7) == [(a, 2), (b, 2)]


def test_a_write_called_before_a_seal_is_applied_before_it_resolved_or_not(place):
    """Damage: a time is sealed without the update that was written before, which can never come back."""
    write, reader = opened(place, "n")
    call = write.write([("a", 5, 1)])
    resolved(write.seal(6))
    assert call.done
    resolved(call)
    assert read(reader, 5) == [("a", 1)]


def test_calls_that_are_pending_together_share_one_commit(place, monkeypatch):
    """Damage: a thousand small writes cost a thousand times what one costs."""
    monkeypatch.setattr(trace, "FAN", 10**6)  # a merge is a commit of its own
    write, reader = opened(place, "n")
    before = versions(place, write)
    for n in range(50):
        write.write([(f"{n:02}", n, 1)])
    write.seal(50)
    resolved(write.allow_compaction(3))
    assert versions(place, write) == before + 1
    assert len(read(reader, 49)) == 50
    assert write._writer.state.since == Frontier(3)
    for n in range(RUN_CALLS_MAX + 1):
        write.write([("x", 50 + n, 1)])
    resolved(write.seal(51))
    assert versions(place, write) == before + 3, "a run is bounded"


def test_what_is_sealed_together_becomes_one_part(place):
    """Damage: the state, and every read, grow with the number of writes, for ever."""
    write, reader = opened(place, "n")
    for n in range(600):
        write.write([(f"{n:03}", 5, 1)])
        if n % 3 == 0:
            resolved(write.write([(f"{n:03}+", 6, 1)]))
    resolved(write.seal(8))
    assert len(list(write._writer.state.parts)) == 1
    assert len(read(reader, 7)) == 800


def test_what_is_kept_in_the_state_is_bounded_also_for_many_calls_in_one_commit(place):
    """Damage: the state of a stream grows to megabytes, and every commit and every reader pays for it."""
    write, reader = opened(place, "n")
    for n in range(60):
        write.write([(f"{n:05}" * 2_000, 5, 1)])
    resolved(write.allow_compaction(0))
    assert 0 < write._writer.state.inline_bytes <= INLINE_SHARD_BYTES_MAX
    resolved(write.seal(6))
    assert len(read(reader, 5)) == 60


def test_calls_over_several_collections_take_effect_in_their_order(place):
    """Damage: a collection says that another one is written, and it is not."""
    process = client(place)
    data, _, marks, read_marks = opened(place, "data", "marks", process=process)
    calls = [data.write([("a", 1, 1)]), marks.write([("a is there", 1, 1)]), marks.seal(2), data.seal(2)]
    for done in range(len(calls)):  # the store goes away after each commit in turn, and comes back
        place.plan.extend([Outcome.DONE] * (done > 0) + [Outcome.LOST] * 5)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(machine, "CAS_RETRIES_MAX", 2)
            with pytest.raises((Indeterminate, StoreError)):
                resolved(calls[-1])
        place.plan.clear()
        settled = [call.done for call in calls]
        assert all(one or not two for one, two in pairwise(settled)), "a prefix of the calls is done"
        if all(settled[:3]):
            break
    resolved(calls[-1])
    assert read(read_marks, 1) == [("a is there", 1)]
    assert all(call.done for call in calls)


@pytest.mark.parametrize("codec", [words, rows])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_write_that_straddles_a_seal_is_cut(place, codec, fresh):
    """Damage: updates beyond the seal are read too early, twice or never."""
    values = list("abcd") if codec is words else as_rows(*"abcd")
    write, reader = opened(place, "n", codec=codec)
    resolved(write.write([(value, time, 1) for time, value in enumerate(values, 3)]))
    if fresh:
        write, reader = opened(place, "n", codec=codec)
    write.write([(values[0], 4, -1), (values[3], 9, 1)])
    resolved(write.seal(4))
    assert read(reader, 3) == [(values[0], 1)]
    resolved(write.seal(5))
    resolved(write.seal(10))
    assert read(reader, 4) == [(values[1], 1)]
    assert read(reader, 9) == [*((value, 1) for value in values[1:3]), (values[3], 2)]
    parts = [part.key for part in write._writer.state.parts if hasattr(part, "key")]
    assert set(parts) <= set(place.objects)


def test_a_write_that_cancels_out_or_holds_nothing_is_done_and_changes_nothing(place):
    """Damage: a client with nothing to write gets an error, or costs a version."""
    write, _ = opened(place, "n")
    before = versions(place, write)
    resolved(write.write([]))
    resolved(write.write([("a", 3, 1), ("a", 3, -1)]))
    assert versions(place, write) == before


def test_sealing_to_the_end_closes_the_collection(place):
    """Damage: a stream that has ended looks like one that is late."""
    write, reader = opened(place, "n")
    write.write([("a", 70, 1)])
    resolved(write.seal(None))
    assert write.upper == EMPTY
    assert read(reader, 10**9) == [("a", 1)]
    with pytest.raises(InvalidUsage, match=r"sealed up to \[\]"):
        resolved(write.write([("b", 80, 1)]))


def test_two_clients_write_and_seal_one_collection(place):
    """Damage: what one of them wrote is lost when the other seals; or both fail each other for ever."""
    one, reader, two, _ = opened(place, "n") + opened(place, "n")
    resolved(one.write([("a", 5, 1), ("b", 9, 1)]))
    resolved(two.write([("c", 6, 1)]))
    resolved(two.seal(7))
    resolved(one.seal(6))  # behind: nothing to do
    resolved(one.write([("d", 8, 1)]))
    resolved(one.seal(10))
    assert read(reader, 6) == [("a", 1), ("c", 1)]
    assert read(reader, 9) == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]


def test_updates_are_tuples_or_updates(place):
    """Damage: a program that imports less is refused."""
    write, reader = opened(place, "n")
    write.write([Update("a", 1), ("b", 1, 2)])
    resolved(write.seal(2))
    assert read(reader, 1) == [("a", 1), ("b", 2)]
