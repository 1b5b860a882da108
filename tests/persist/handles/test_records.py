"""Record shards: small records in, the same records out, once, and their bounds kept."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import CorruptionError, InvalidUsage, Unavailable
from strandline.frontier import EMPTY, MINIMUM, Frontier
from strandline.persist.handles import records
from strandline.persist.handles.read import SinceHandle
from strandline.persist.handles.records import Record, consolidate, digest
from strandline.persist.shard.batch import INLINE_PART_BYTES_MAX, NOTHING, BlobPart, InlinePart
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch
from strandline.testing.simulation.kernel import run_sync

records_of = st.lists(st.builds(Record, st.binary(max_size=3), st.integers(0, 3), st.integers(-2, 2)), max_size=12)


def shard(place, epoch=1, client=None):
    """Open the record shard."""
    return run_sync((client or place.client()).records("log", epoch))


def append(log, records, lower, upper, **options):
    """Append."""
    new = EMPTY if upper is None else Frontier(upper)
    return run_sync(log.append(records, Frontier(lower), new, **options))


@pytest.mark.parametrize("size", [1, INLINE_PART_BYTES_MAX + 1])
def test_what_is_appended_is_read_by_others_inline_or_not(place, size):
    """Damage: a source loses a binding, and reads its rows twice."""
    log = shard(place)
    record = Record(b"x" * size, 1, 2)
    assert append(log, [record], 0, 3) == Appended(Frontier(3))
    assert run_sync(shard(place).contents()) == [record]
    (part,) = log.state.batches[0].parts
    assert isinstance(part, InlinePart if size == 1 else BlobPart)
    assert log.state.digest == digest([record])


def test_records_that_cancel_are_never_written(place):
    """Damage: a record that is inserted and withdrawn at one time costs a part."""
    log = shard(place)
    append(log, [Record(b"a", 0, 1), Record(b"a", 0, -1)], 0, 1)
    assert (log.state.batches[0].parts, log.state.digest) == ((), NOTHING)


@pytest.mark.parametrize(("lower", "upper", "time"), [(2, 5, 1), (2, 5, 5), (2, 5, 9), (2, None, 1)])
def test_a_record_outside_the_bounds_is_refused(place, lower, upper, time):
    """Damage: an update appears at a time that readers consider complete."""
    log = shard(place)
    append(log, [], 0, 2)
    with pytest.raises(InvalidUsage, match=f"a record at {time} does not lie in"):
        append(log, [Record(b"a", time, 1)], lower, upper)


def test_the_last_append_may_hold_any_later_time(place):
    """Damage: a collection cannot be sealed together with its last records."""
    log = shard(place)
    assert append(log, [Record(b"a", 10**12, 1)], 0, None) == Appended(EMPTY)


def test_the_part_of_a_refused_append_is_deleted_and_of_a_fenced_one_left(place):
    """Damage: each lost race leaks an object; or a fenced zombie deletes what it may have appended."""
    log = shard(place)
    big = [Record(b"x" * (INLINE_PART_BYTES_MAX + 1), 0, 1)]
    append(shard(place), [], 0, 1)
    before = set(place.objects)
    assert append(log, big, 0, 1) == UpperMismatch(Frontier(1))
    assert set(place.objects) == before
    shard(place, epoch=2)
    assert append(log, [Record(big[0].data, 1, 1)], 1, 2) == Fenced(2)
    assert len(set(place.objects) - before) == 1


def test_the_same_token_is_the_same_append_after_a_restart(place):
    """Damage: an item is assigned twice."""
    append(shard(place), [Record(b"a", 0, 1)], 0, 1, token="one")
    again = shard(place)
    assert append(again, [Record(b"a", 0, 1)], 0, 1, token="one") == Appended(Frontier(1))
    assert run_sync(again.contents()) == [Record(b"a", 0, 1)]


def test_contents_of_a_version_are_those_of_that_version(place):
    """Damage: a decision uses an upper and records of different versions."""
    log = shard(place)
    append(log, [Record(b"a", 0, 1)], 0, 1)
    state = log.state
    append(log, [Record(b"b", 1, 1)], 1, 2)
    assert run_sync(log.contents(state)) == [Record(b"a", 0, 1)]
    assert run_sync(log.contents()) == [Record(b"a", 0, 1), Record(b"b", 1, 1)]


def test_refreshing_shows_what_others_appended(place):
    """Damage: two processes assign the same item."""
    one, two = shard(place), shard(place)
    append(one, [Record(b"a", 0, 1)], 0, 1)
    assert two.upper == MINIMUM
    assert run_sync(two.refresh()) == Frontier(1)
    assert run_sync(two.contents()) == [Record(b"a", 0, 1)]


@pytest.mark.parametrize(
    "record", [Record("text", 0, 1), Record(b"a", 0.0, 1), Record(b"a", 0, 1.0), Record(b"a", 0, 2**64)]
)
def test_a_record_that_could_not_be_read_again_is_not_written(place, record):
    """Damage: after the commit the shard can no longer be opened."""
    log = shard(place)
    before = list(place.objects)
    with pytest.raises(InvalidUsage, match="is no record"):
        append(log, [record], 0, 1)
    assert (log.upper, list(place.objects)) == (MINIMUM, before)


@pytest.mark.parametrize("size", [1, INLINE_PART_BYTES_MAX])
def test_a_part_that_holds_no_records_is_named(place, size, monkeypatch):
    """Damage: bytes of another program raise an error that names neither the shard nor the part."""
    log = shard(place)
    with monkeypatch.context() as patched:
        patched.setattr(records, "_encoder", msgspec.json.Encoder())
        append(log, [Record(b"a" * size, 0, 1)], 0, 1)
    (part,) = log.state.batches[0].parts
    named = "kept in the state" if isinstance(part, InlinePart) else part.key
    with pytest.raises(CorruptionError, match=f"shard 'log': part '{named}' does not hold records"):
        run_sync(log.contents())


def test_a_missing_part_is_named(place):
    """Damage: the operator does not learn which object to restore."""
    log = shard(place)
    append(log, [Record(b"x" * (INLINE_PART_BYTES_MAX + 1), 0, 1)], 0, 1)
    key = log.state.batches[0].parts[0].key
    del place.objects[key]
    with pytest.raises(CorruptionError, match=key):
        run_sync(shard(place).contents())


@given(records_of, records_of)
def test_the_digest_is_a_homomorphism_blind_to_times(left, right):
    """Damage: a certificate holds for other contents, or fails for the same ones."""
    assert digest(left + right) == digest(left) + digest(right)
    assert digest(consolidate(left)) == digest(left)
    assert digest([Record(r.data, r.time + 1, r.diff) for r in left]) == digest(left)
    assert digest([Record(r.data, r.time, -r.diff) for r in left]) + digest(left) == NOTHING


@given(records_of)
def test_consolidation_keeps_every_sum_and_nothing_else(records):
    """Damage: the same contents are stored in two forms."""
    net = consolidate(records)
    assert all(r.diff for r in net)
    assert len({(r.data, r.time) for r in net}) == len(net)
    for key in {(r.data, r.time) for r in records}:
        assert sum(r.diff for r in net if (r.data, r.time) == key) == sum(
            r.diff for r in records if (r.data, r.time) == key
        )
    assert consolidate(reversed(records)) == net


def test_what_was_merged_and_collected_meanwhile_is_read_as_what_took_its_place(place):
    """Damage: a slow process calls a sound shard damaged, and stops (found by a seed)."""
    log, data = shard(place), b"x" * (INLINE_PART_BYTES_MAX + 1)
    wanted = [Record(data + b"%d" % time, time, 1) for time in range(3)]
    for record in wanted:
        append(log, [record], record.time, record.time + 1)
    slow = shard(place)
    other = place.client(grace_ms=0)
    shard(place, client=other)
    run_sync(run_sync(other.compactor("log")).whole())
    for batch in slow.state.batches:
        for part in batch.parts:
            run_sync(place.blob.delete(part.key))
    found = run_sync(slow.contents())
    assert [(record.data, record.diff) for record in found] == [(record.data, 1) for record in wanted]
    (part,) = slow.state.batches[0].parts
    run_sync(place.blob.delete(part.key))
    with pytest.raises(CorruptionError, match="is missing"):
        run_sync(shard(place).contents())


def test_a_hold_that_could_not_be_registered_is_registered_by_the_next_release(place, monkeypatch):
    """Damage: a store that is away for a moment keeps a record shard from ever letting go of its past."""
    log = shard(place)
    append(log, [Record(b"a", 0, 1)], 0, 2)

    async def away(_):
        raise Unavailable("the store does not answer")

    with monkeypatch.context() as patched, pytest.raises(Unavailable):
        patched.setattr(SinceHandle, "register", away)
        run_sync(log.release("mine", Frontier(1)))
    run_sync(log.release("mine", Frontier(1)))
    assert log.state.since == Frontier(1)
