"""Which batches are merged, how many there can be, and which output may replace them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from strandline.errors import CorruptionError, InvalidUsage
from strandline.frontier import EMPTY, MINIMUM, TIME_MAX, Frontier
from strandline.persist.shard.batch import INLINE_SHARD_BYTES_MAX, NOTHING, Batch, BlobPart, Digest, InlinePart, Staged
from strandline.persist.shard.invariants import check
from strandline.persist.shard.state import ShardState
from strandline.persist.shard.trace import (
    FAN,
    LARGE_BYTES,
    LARGE_UPDATES,
    Merge,
    Merged,
    Plan,
    Stale,
    apply_merge,
    due,
    everything,
)


def batch(lower, rows=1, *, inline=0, since=0):
    """A batch of ``[lower, lower + 1)``; of no rows: without parts."""
    part = InlinePart(b"x" * inline, rows) if inline else BlobPart(f"k{lower}", 1, rows, 0, "")
    parts = (part,) if rows else ()
    sums = Digest(rows, rows)
    return Batch(Frontier(lower), Frontier(lower + 1), Frontier(since), parts, rows, rows, sums, plain=True)


def shard(*sizes, since=0, **options):
    """A shard with one batch of each size."""
    batches = tuple(batch(at, rows, **options) for at, rows in enumerate(sizes))
    digest = sum((b.digest for b in batches), NOTHING)
    return ShardState("s", seqno=7, since=Frontier(since), upper=Frontier(len(sizes)), batches=batches, digest=digest)


def carried_out(plan, rows=None):
    """The merge, as if consolidation left ``rows``."""
    total = sum(b.rows for b in plan.inputs)
    rows = total if rows is None else rows
    parts = (BlobPart(f"m{plan.inputs[0].lower}-{plan.inputs[-1].upper}", 1, rows, 0, ""),) if rows else ()
    digest = sum((b.digest for b in plan.inputs), NOTHING)
    lower, upper = plan.inputs[0].lower, plan.inputs[-1].upper
    diffs = sum(b.diffs for b in plan.inputs)
    return Merge(plan.inputs, Staged(lower, upper, parts, rows, diffs, digest, plain=False, since=plan.since))


def test_as_many_batches_of_a_tier_as_fan_in_become_one():
    """Damage: parts pile up; or every append rewrites the shard."""
    assert due(shard(*[1] * (FAN - 1))) is None
    assert due(shard(*[1] * FAN)).inputs == shard(*[1] * FAN).batches
    large = shard(10**6, *[1] * FAN)
    assert due(large).inputs == large.batches[1:]


def many(lower, *prefixes, inline=0):
    """A batch of one row each part: one in Blob below each of ``prefixes``, and some that are inline."""
    stored = tuple(BlobPart(f"{prefix}/part-{n}", 1, 1, 0, "") for n, prefix in enumerate(prefixes))
    parts = (*stored, *[InlinePart(b"x", 1)] * inline)
    return replace(batch(lower, len(parts)), parts=parts)


@pytest.mark.parametrize("made_of", [many(0, *"abcdefgh"), many(0, inline=FAN), many(0, *"abcd", inline=4)])
def test_a_batch_of_many_writes_is_merged_once(made_of):
    """Damage: a stream's seal makes one batch of a thousand parts, and no merge ever joins them."""
    assert len(made_of.parts) == FAN
    state = replace(shard(1), batches=(made_of,), digest=made_of.digest)
    plan = due(state)
    assert plan.inputs == everything(state).inputs == (made_of,)
    merged, outcome = apply_merge(state, carried_out(plan))
    assert outcome == Merged()
    assert (due(merged), everything(merged)) == (None, None)


def test_a_batch_of_few_writes_waits_for_others():
    """Damage: every seal rewrites its batch; or `compact --apply` reports that there is nothing to merge."""
    few = many(0, "a", "b", inline=1)
    state = replace(shard(1), batches=(few,), digest=few.digest)
    assert due(state) is None
    assert everything(state).inputs == (few,)
    several = tuple(replace(few, lower=Frontier(at), upper=Frontier(at + 1)) for at in range(3))
    assert due(replace(state, batches=several[:2])) is None
    assert due(replace(state, batches=several)).inputs == several


def test_what_was_staged_as_one_is_not_joined_for_its_parts():
    """Damage: a bulk load, or a merge that Spark wrote in many parts of the right size, is rewritten for ever."""
    bulk = many(0, *["x"] * (3 * FAN))
    state = replace(shard(1), batches=(bulk,), digest=bulk.digest)
    assert (due(state), everything(state)) == (None, None)


def test_small_batches_before_a_large_one_count_as_it_does():
    """Damage: small batches between large ones stay for ever."""
    mixed = shard(1, 1, 10**6, 1, 1, 10**6, 1, 10**6, 3)
    assert due(mixed).inputs == mixed.batches[:8]


def test_the_last_batch_is_left_alone_while_it_is_empty():
    """Damage: an idle shard's merges are stale whenever its clock ticks."""
    idle = shard(*[1] * FAN, 0)
    assert due(idle).inputs == idle.batches[:-1]
    assert due(shard(*[1] * (FAN - 1), 0)) is None
    closed = replace(idle, upper=EMPTY, batches=(*idle.batches[:-1], replace(idle.batches[-1], upper=EMPTY)))
    assert due(closed).inputs == closed.batches


def test_a_merge_that_takes_long_is_left_to_others_and_small_ones_are_not():
    """Damage: a commit stands still for minutes; or the small batches of a large shard are never merged."""
    large = shard(*[LARGE_UPDATES] * FAN)
    assert due(large).inputs == large.batches
    assert due(large, small=True) is None
    both = shard(*[LARGE_UPDATES] * FAN, *[1] * FAN)
    assert due(both, small=True).inputs == both.batches[FAN:]
    assert not due(both, small=True).large
    few_updates = tuple(
        replace(each, parts=(replace(each.parts[0], size=LARGE_BYTES),)) for each in shard(1, 1).batches
    )
    assert Plan(few_updates, MINIMUM, 0).large, "bytes take long, too"


def test_nothing_is_due_where_nothing_was_appended():
    """Damage: upkeep of a fresh shard fails, and each commit reports it."""
    assert (due(shard()), everything(shard())) == (None, None)


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(-3, 3)), max_size=20), st.integers(0, 20))
def test_merges_end_whatever_is_held_how_often(written, since):
    """Damage: a batch whose rows are held several times, or less than once, is merged again and again."""
    batches = tuple(replace(batch(at, rows), diffs=rows * often) for at, (rows, often) in enumerate(written))
    state = shard(*[rows for rows, _ in written], since=since)
    state = replace(state, batches=batches)
    for _ in range(2 * len(batches) + 2):
        plan = due(state)
        if plan is None:
            return
        state, outcome = apply_merge(state, carried_out(plan))
        assert isinstance(outcome, Merged)
    pytest.fail(f"still due: {due(state)}")


@given(st.lists(st.one_of(st.integers(0, 20), st.integers(0, 10**6)), max_size=120), st.integers(1, 9))
def test_batches_are_few_whatever_is_appended(sizes, keep):
    """Damage: the state, and every plan of a read, grow with the number of appends."""
    state, written = shard(), 0
    for at, rows in enumerate(sizes):
        new = batch(at, rows)
        before = state
        digest = state.digest + new.digest
        state = replace(state, batches=(*state.batches, new), upper=new.upper, digest=digest)
        while plan := due(state):
            before = state
            state, outcome = apply_merge(state, carried_out(plan, sum(b.rows for b in plan.inputs) // keep))
            assert isinstance(outcome, Merged)
            written += state.batches[0].rows
            after = replace(state, seqno=before.seqno + 1)
            check(before, after)
    tiers = max((b.rows.bit_length() // 3 for b in state.batches), default=0) + 1
    assert len(state.batches) <= (FAN - 1) * tiers + 1


def test_what_is_rewritten_grows_as_the_logarithm():
    """Damage: appends to an old shard become slower and slower."""
    state, rewritten, most = shard(), 0, 0
    rng = random.Random(7)
    for at in range(20_000):
        new = batch(at, rng.choice((0, 10, 10, 10)))
        state = replace(state, batches=(*state.batches, new), upper=new.upper)
        while plan := due(state):
            merge = carried_out(plan)
            state, _ = apply_merge(state, merge)
            rewritten += merge.output.rows
        most = max(most, len(state.batches))
    appended = sum(b.rows for b in state.batches)
    assert rewritten <= 7 * appended
    assert most <= 49


def test_inline_parts_beyond_the_budget_are_moved_to_blob():
    """Damage: a state full of inline parts makes every further append write an object of its own."""
    fat = INLINE_SHARD_BYTES_MAX // 4
    small = tuple(batch(n, 8 ** (9 - n), inline=fat) for n in range(1, 5))
    state = replace(shard(8**9), batches=(batch(0, 8**9), *small, batch(5, 1)))
    plan = due(state)
    assert (plan.inputs, plan.inline_bytes_max) == (small, 0)
    assert due(replace(state, batches=(batch(0, 8**9), *small[:3]))) is None


def test_a_merge_is_to_since_or_where_its_inputs_are_already():
    """Damage: a merge undoes what was advanced; or advances what is still held."""
    assert due(shard(*[1] * FAN, since=3)).since == Frontier(3)
    advanced = shard(*[1] * FAN)
    advanced = replace(advanced, batches=(replace(advanced.batches[0], since=Frontier(9)), *advanced.batches[1:]))
    assert due(advanced).since == Frontier(9)
    unreadable = replace(shard(*[1] * FAN), since=EMPTY)
    plan = due(unreadable)
    assert plan.since == Frontier(TIME_MAX - 1)
    ahead = shard(*[1] * FAN, since=FAN)  # it was opened to be read later than it is known
    assert due(ahead).since == Frontier(FAN - 1), "what is appended next begins at the upper, and must be told apart"
    assert apply_merge(unreadable, carried_out(plan))[1] == Merged()


def test_a_closed_shard_is_not_merged():
    """Damage: DROP of a view with many batches ends in a broken law, because its shard is compacted after it is closed.

    Found by the world of the whole system.
    """
    state = shard(*[1] * FAN)
    merge = carried_out(due(state))
    closed = replace(state, since=EMPTY, upper=EMPTY)
    assert closed.tombstone
    assert due(closed) is None
    assert everything(closed) is None
    after, outcome = apply_merge(closed, merge)  # the merge was in flight when the shard was closed
    assert (after, type(outcome)) == (closed, Stale)


def test_a_requested_merge_of_all_batches_is_made_only_if_it_changes_something():
    """Damage: each `compact` rewrites a shard that is compacted already."""
    state = shard(5, 0, 3, 0, since=1)
    plan = everything(state)
    assert (plan.inputs, plan.since) == (state.batches[:3], Frontier(1))
    after, _ = apply_merge(state, carried_out(plan))
    assert [(b.lower.at, b.upper.at) for b in after.batches] == [(0, 3), (3, 4)]
    assert everything(after) is None
    assert everything(replace(after, since=Frontier(4))).since == Frontier(2)
    assert everything(shard(0, 0)) is None


def test_a_result_lands_once_and_only_in_the_place_of_its_inputs():
    """Damage: a late compactor brings back what another one has merged; or two apply the same work."""
    state = shard(*[1] * FAN)
    merge = carried_out(due(state))
    after, outcome = apply_merge(state, merge)
    assert (outcome, len(after.batches), after.digest) == (Merged(), 1, state.digest)
    assert apply_merge(after, merge) == (after, Merged())
    other = Merge(merge.inputs, replace(merge.output, parts=(BlobPart("other", 1, FAN, 0, ""),)))
    assert apply_merge(after, other) == (after, Stale("not all of " + bounds(merge.inputs) + " are still in the trace"))
    grown = replace(state, batches=(replace(state.batches[0], diffs=5), *state.batches[1:]))
    assert isinstance(apply_merge(grown, merge)[1], Stale)


def bounds(inputs):
    """How they are named."""
    return " ".join(f"[{b.lower.at}, {b.upper.at})" for b in inputs)


@pytest.mark.parametrize("change", [{"diffs": 9}, {"digest": Digest(1, 2)}])
def test_a_result_that_does_not_add_up_is_corruption(change):
    """Damage: a compaction that lost a row, or read a damaged one, makes it permanent."""
    state = shard(*[1] * FAN)
    merge = carried_out(due(state))
    with pytest.raises(CorruptionError, match="were expected"):
        apply_merge(state, Merge(merge.inputs, replace(merge.output, **change)))


def test_everything_may_cancel():
    """Damage: a shard whose rows were all withdrawn keeps empty parts."""
    state = shard(*[1] * FAN)
    state = replace(state, batches=tuple(replace(b, diffs=0, digest=NOTHING) for b in state.batches), digest=NOTHING)
    plan = due(state)
    empty = Staged(MINIMUM, Frontier(FAN), (), 0, 0, NOTHING, plain=True, since=plan.since)
    after, _ = apply_merge(state, Merge(plan.inputs, empty))
    assert [b.parts for b in after.batches] == [()]
    check(state, replace(after, seqno=8))


def test_a_merge_cannot_go_behind_what_one_of_its_inputs_was_advanced_to():
    """Damage: times that were added up once are distinct again, by whatever order the parts came in."""
    output = Staged(Frontier(0), Frontier(2), (), 0, 0, NOTHING, plain=False, since=Frontier(3))
    for since in ((3, 4), (4, 3), (4, 4)):
        inputs = tuple(batch(at, 0, since=each) for at, each in enumerate(since))
        with pytest.raises(InvalidUsage, match="cannot undo"):
            Merge(inputs, output)
    Merge((batch(0, 0, since=3), batch(1, 0, since=2)), output)
