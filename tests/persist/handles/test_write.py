"""Write handles: three outcomes, and one append for each request, even if coroutines share the handle."""

from __future__ import annotations

import pytest

from strandline.errors import FencedError, Indeterminate, InvalidUsage
from strandline.frontier import EMPTY, MINIMUM, Frontier
from strandline.persist.handles.write import Written
from strandline.persist.shard.batch import INLINE_SHARD_BYTES_MAX
from strandline.persist.shard.machine import CAS_RETRIES_MAX
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync


def test_what_was_appended_is_what_is_read(place):
    """Law P3.  Damage: an acknowledged row is not there."""
    writer = place.writer()
    place.append(writer, 0, 2, [["a", 0, 1], ["b", 1, 2]])
    place.append(writer, 2, 3, [["a", 2, -1]])
    assert place.snapshot(1) == [["a", 1, 1], ["b", 1, 2]]
    assert place.snapshot(2) == [["b", 2, 2]]


def test_several_staged_batches_are_one_append(place):
    """Damage: a reader sees the part of one worker without that of another."""
    writer = place.writer()
    staged = [place.stage("s", 0, 2, [[name, at, 1]]) for at, name in enumerate("ab")]
    assert run_sync(writer.compare_and_append(staged, MINIMUM, Frontier(2))) == Appended(Frontier(2))
    assert len(place.state().batches) == 1
    assert place.snapshot(1) == [["a", 1, 1], ["b", 1, 1]]


def test_an_empty_append_touches_no_blob(place):
    """Damage: an idle tick costs a write to the object store for each shard."""
    writer = place.writer()
    objects = dict(place.objects)
    place.append(writer, 0, 9)
    assert place.objects == objects


def test_closing_is_final(place):
    """Damage: a sealed collection grows."""
    writer = place.writer()
    assert place.append(writer, 0, None, [["a", 0, 1]]) == Appended(EMPTY)
    assert place.append(writer, 0, 9) == UpperMismatch(EMPTY)
    assert place.snapshot(10**6) == [["a", 10**6, 1]]


def test_opening_under_a_newer_epoch_fences_the_older(place):
    """Damage: two environments write one shard."""
    old = place.writer(epoch=1)
    place.writer(epoch=2)
    assert place.append(old, 0, 1) == Fenced(2)
    with pytest.raises(FencedError, match="has admitted epoch 2, this writer has 1"):
        place.writer(epoch=1)
    assert place.state().upper == MINIMUM


def test_equal_epochs_share(place):
    """Damage: replicas of one generation fence each other."""
    one, two = place.writer(epoch=3), place.writer(epoch=3)
    assert place.append(one, 0, 1) == Appended(Frontier(1))
    assert place.append(two, 1, 2) == Appended(Frontier(2))


def test_a_token_is_recognised_after_a_restart_of_its_writer(place):
    """Damage: a restart after an unknown outcome appends the same rows again."""
    writer = place.writer()
    place.plan.extend([Outcome.LOST] * (CAS_RETRIES_MAX - 1) + [Outcome.LATE])
    with pytest.raises(Indeterminate):
        place.append(writer, 0, 1, [["a", 0, 1]], token="job-7")
    run_sync(place.consensus.land())
    assert place.append(place.writer(), 0, 1, [["a", 0, 1]], token="job-7") == Appended(Frontier(1))
    assert place.snapshot(0) == [["a", 0, 1]]


def test_an_append_whose_answer_was_lost_finds_it_though_others_used_the_handle(place):
    """Damage: an append that landed returns a mismatch, and its caller deletes parts that the shard names."""
    writer = place.writer()

    async def others():
        await writer.refresh()
        for at in range(1, 4):
            assert await writer.compare_and_append([], Frontier(at), Frontier(at + 1)) == Appended(Frontier(at + 1))

    place.plan.append(Outcome.DONE_UNREPORTED)
    place.clock.meanwhile.append(others)
    assert place.append(writer, 0, 1, [["a", 0, 1]]) == Appended(Frontier(1))
    assert place.state().upper == Frontier(4)


def test_a_handle_needs_as_many_memories_as_appends_at_a_time(place):
    """Damage: the state grows by an entry for each append."""
    writer = place.writer()
    for at in range(20):
        place.append(writer, at, at + 1)
    assert len(place.state().writers) == 1


def test_an_append_that_failed_keeps_its_memory(place):
    """Damage: the next append overwrites the token that a retry will look for."""
    writer = place.writer()
    place.plan.extend([Outcome.LOST] * (CAS_RETRIES_MAX - 1) + [Outcome.LATE])
    with pytest.raises(Indeterminate):
        place.append(writer, 0, 1, token="x")
    run_sync(place.consensus.land())
    run_sync(writer.refresh())
    assert place.append(writer, 1, 2, token="y") == Appended(Frontier(2))
    assert place.append(writer, 0, 1, token="x") == Appended(Frontier(1))


def test_stage_prefixes_are_never_given_twice(place):
    """Damage: a late upload overwrites another batch's part."""
    writers = [place.writer() for _ in range(2)]
    given = [writer.stage_prefix() for writer in writers for _ in range(3)]
    assert len(set(given)) == 6
    assert all(prefix.startswith("s/parts/") and prefix.endswith("/") for prefix in given)


def test_inline_room_shrinks_to_nothing_and_no_further(place):
    """Damage: the state grows until every commit is slow."""
    writer = place.writer()
    assert writer.inline_room == INLINE_SHARD_BYTES_MAX
    at = 0
    while writer.inline_room:
        staged = place.stage("s", at, at + 1, [["x" * 10_000, at, 1]])
        run_sync(writer.compare_and_append([staged], Frontier(at), Frontier(at + 1)))
        at += 1
    assert writer.inline_room == 0
    assert writer.state.inline_bytes >= INLINE_SHARD_BYTES_MAX


def test_a_history_starts_at_as_of_even_if_a_reader_holds_the_beginning(place):
    """Damage: a materialization that is created before its view's first step makes that step fail for ever."""
    hold = run_sync(place.client().since("s", "task", 1))
    writer = place.writer()
    assert run_sync(writer.open_at(5)) == Frontier(5)
    assert place.state().since == Frontier(5)
    assert run_sync(hold.downgrade(Frontier(3))) == Frontier(5)


def redundantly(place, writer, lower, upper, *batches):
    """Append definite data."""

    async def trim(staged, low, high):
        return await place.engine.trim(staged, place.schema, low, high)

    return run_sync(writer.append(batches, Frontier(lower), Frontier(upper), trim))


def test_definite_data_that_two_writers_append_is_stored_once(place):
    """Damage: two replicas of one ingestion double every row; or the slower one can never go on."""
    one, other = place.writer(), place.writer()
    rows = [[f"k{at}", at, 1] for at in range(6)]
    first = place.stage("s", 0, 4, rows[:4])
    assert redundantly(place, one, 0, 4, first) == Written(Frontier(4), ())
    early, across, late = (place.stage("s", a, b, rows[a:b], inline=0) for a, b in ((0, 2), (2, 5), (5, 6)))
    assert redundantly(place, other, 0, 6, early, across, late) == Written(Frontier(6), (early,))
    assert place.snapshot(5) == [[f"k{at}", 5, 1] for at in range(6)]
    again = place.stage("s", 3, 6, rows[3:])
    assert redundantly(place, one, 3, 6, again) == Written(Frontier(6), (again,))


def test_a_shard_gets_another_schema_from_its_newest_writer_only(place):
    """Damage: a zombie takes back a column that its successor has added."""
    old, new = place.writer(epoch=1), place.writer(epoch=2)
    run_sync(new.evolve("`k` string, `n` int"))
    with pytest.raises(FencedError):
        run_sync(old.evolve("`k` string"))
    assert place.state().schema == "`k` string, `n` int"
    with pytest.raises(InvalidUsage, match="cannot become"):
        run_sync(new.evolve("`k` int, `n` int"))


def test_a_handle_that_widens_appends_only_under_its_own_columns(place):
    """Damage: a writer that does not know of a column withdraws rows as they never were."""

    def opened(schema):
        return place.writer(schema=schema, widens=True)

    narrow = opened("`k` string")
    assert place.append(narrow, 0, 1) == Appended(Frontier(1))
    wide = opened("`k` string, `n` int")
    assert place.state().schema == "`k` string, `n` int"
    with pytest.raises(InvalidUsage, match="open it again"):
        place.append(narrow, 1, 2)
    for other in ("`k` string", "`k` string, `m` int", "`n` int, `k` string, `m` int"):
        with pytest.raises(InvalidUsage, match="cannot be opened with"):
            opened(other)
    assert place.append(wide, 1, 2) == Appended(Frontier(2))
    place.writer(epoch=2, schema="`k` string, `n` int", widens=True)
    with pytest.raises(FencedError):
        opened("`k` string, `n` int, `m` int")
    assert place.state().schema == "`k` string, `n` int", "one that is fenced changes nothing"


def test_definite_data_leaves_no_gap(place):
    """Damage: times that were never written count as complete."""
    with pytest.raises(InvalidUsage, match="leaves a gap after"):
        redundantly(place, place.writer(), 2, 4)


def test_a_gap_counts_only_on_a_state_fetched_after_the_call(place):
    """Damage: a replica is refused because its process had a stale state."""
    stale, other = place.writer(), place.writer()
    place.append(other, 0, 5)
    assert redundantly(place, stale, 5, 7, place.stage("s", 5, 7, [["a", 5, 1]])) == Written(Frontier(7), ())
    assert place.snapshot(6) == [["a", 6, 1]]


def test_a_fenced_writer_of_definite_data_gets_fenced(place):
    """Damage: a zombie concludes that another writer appended its rows."""
    writer = place.writer()
    place.writer(epoch=2)
    assert redundantly(place, writer, 0, 4) == Fenced(2)


def test_of_writers_that_open_a_shard_at_once_one_made_it(place):
    """Damage: two ingesters of a new source each take all that they read for read the first time."""
    made = []

    async def open_another():
        made.append((await place.client().writer("s", 1, schema=place.schema.ddl)).made)

    place.plan.append(Outcome.LOST)
    place.clock.meanwhile.append(open_another)
    client = place.client()
    made += [place.writer(client=client).made for _ in range(2)]
    assert made == [True, False, False]


def test_a_process_makes_a_shard_once(place):
    """Damage: a source that is opened anew in one process forgets what it has read."""
    client = place.client()
    assert [place.writer(client=client).made for _ in range(2)] == [True, False]


def test_a_shard_whose_making_was_not_answered_may_be_that_of_another(place):
    """Damage: a process takes another one's shard for its own, because an answer was lost."""
    place.plan.append(Outcome.DONE_UNREPORTED)
    assert not place.writer().made
