"""Every transition of a shard's state does what it says, at the empty frontiers too."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from strandline.errors import Indeterminate, InvalidUsage
from strandline.frontier import EMPTY, MINIMUM, Frontier
from strandline.persist.shard.batch import NOTHING, Digest, InlinePart, Staged
from strandline.persist.shard.invariants import check
from strandline.persist.shard.state import (
    WRITERS_MAX,
    Append,
    Appended,
    Certificate,
    Critical,
    Downgraded,
    Fenced,
    OpaqueMismatch,
    Rollup,
    ShardState,
    UpperMismatch,
    add_rollup,
    admit,
    append,
    compare_and_downgrade,
    describe,
    expire_critical,
    open_at,
    register_critical,
)

FRESH = ShardState("s")
TOMBSTONE = ShardState("s", since=EMPTY, upper=EMPTY)


def staged(lower, upper, n=1):
    """A batch of ``n`` rows."""
    part = InlinePart(b"x" * n, n)
    return Staged(Frontier(lower), Frontier(upper), (part,), n, n, Digest(n, n), plain=True)


def request(lower, upper, *batches, token="t", writer="w", epoch=1, **options):
    """A request to append."""
    new = EMPTY if upper is None else Frontier(upper)
    return Append(writer, token, epoch, batches, Frontier(lower), new, **options)


def appended(state, *args, **options):
    """Append, which must succeed; return the state after it."""
    after, answer = append(state, request(*args, **options))
    assert answer == Appended(after.upper)
    return after


def held(**sinces):
    """A state with these critical readers, their tokens 7."""
    return ShardState("s", criticals={name: Critical(Frontier(at), 7) for name, at in sinces.items()})


# ---- append


def test_a_batch_of_several_staged_ones_has_an_order_if_all_of_them_have_it():
    """Damage: a reader searches unsorted rows for a key, and misses some."""
    apart = [replace(staged(0, 2, n), sort=("k",)) for n in (1, 2)]
    for second, sort in ((apart[1], ("k",)), (replace(apart[1], sort=()), ())):
        state, _ = append(FRESH, Append("w", "t", 0, (apart[0], second), Frontier(0), Frontier(2)))
        assert state.batches[0].sort == sort


def test_an_append_moves_the_upper_and_sums_its_batches_up_in_one():
    """Damage: rows, diffs or the digest of a shard are not those of its parts, and every later check is void."""
    after = appended(FRESH, 0, 4, staged(0, 2, 3), staged(1, 4, 5))
    (batch,) = after.batches
    assert (batch.lower, batch.upper, batch.since) == (MINIMUM, Frontier(4), MINIMUM)
    assert (batch.rows, batch.diffs, batch.digest, len(batch.parts)) == (8, 8, Digest(8, 8), 2)
    assert (after.upper, after.digest, after.epoch) == (Frontier(4), Digest(8, 8), 1)


def test_the_same_token_again_is_the_same_append_even_by_another_writer():
    """Damage: a caller that restarted after an unknown outcome appends its rows a second time."""
    first = appended(FRESH, 0, 1, staged(0, 1), token="a", writer="w1")
    for writer in ("w1", "w2"):
        assert append(first, request(0, 1, staged(0, 1), token="a", writer=writer)) == (first, Appended(Frontier(1)))


def test_a_token_is_found_though_others_moved_on_and_fenced_its_writer():
    """Damage: an append that landed is reported as refused, and its parts are deleted under the shard."""
    state = appended(FRESH, 0, 1, staged(0, 1), token="a")
    state = appended(state, 1, 5, token="b", writer="other", epoch=9)
    assert append(state, request(0, 1, staged(0, 1), token="a")) == (state, Appended(Frontier(1)))


def test_an_append_at_another_upper_is_refused_with_the_actual_one():
    """Damage: a writer with a stale view overwrites what happened since."""
    state = appended(FRESH, 0, 3)
    for lower, upper in ((0, 4), (2, 4), (4, 5)):
        assert append(state, request(lower, upper, token="x")) == (state, UpperMismatch(Frontier(3)))


def test_an_older_epoch_is_fenced_an_equal_one_admitted_a_newer_one_raises_it():
    """Damage: a zombie writes after its successor took over; or replicas of one generation fence each other."""
    state, holds = admit(FRESH, 5)
    assert holds == 5
    assert append(state, request(0, 1, epoch=4)) == (state, Fenced(5))
    assert appended(state, 0, 1, epoch=5).epoch == 5
    assert appended(state, 0, 1, epoch=6).epoch == 6


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request(0, 0), "must advance"),
        (Append("w", "t", 1, (), Frontier(0), Frontier(0)), "must advance"),
        (request(0, 2, owner="transactions"), "may only be appended"),
    ],
)
def test_an_append_that_could_never_succeed_is_a_usage_error(bad, message):
    """Damage: rows outside their batch's bounds become part of the shard."""
    with pytest.raises(InvalidUsage, match=message):
        append(FRESH, bad)


@pytest.mark.parametrize("expected", range(4))
def test_staged_rows_are_appended_within_the_window_of_their_append_alone(expected):
    """Damage: rows land at times that readers were told are complete, or beyond what the writer vouches for."""
    state = appended(FRESH, 0, expected, token="before") if expected else FRESH
    for new, lower, upper in itertools.product(range(expected + 1, 6), range(5), range(1, 7)):
        if lower >= upper:
            continue
        wanted = request(expected, new, staged(lower, upper))
        if expected <= lower and upper <= new:
            assert append(state, wanted)[1] == Appended(Frontier(new))
        else:
            with pytest.raises(InvalidUsage, match="does not fit"):
                append(state, wanted)


def test_a_shard_with_an_owner_takes_appends_of_no_other_room():
    """Damage: a direct append moves a table's upper past a committed transaction, whose rows are then lost."""
    state, _ = describe(FRESH, "k string", "transactions")
    with pytest.raises(InvalidUsage, match="'transactions', not by 'a plain writer'"):
        append(state, request(0, 1))
    assert appended(state, 0, 1, owner="transactions").upper == Frontier(1)


def test_an_empty_new_upper_closes_the_shard_for_good():
    """Damage: a sealed collection grows."""
    state = appended(FRESH, 0, None, staged(0, 9))
    assert state.upper == EMPTY
    assert append(state, request(0, 9, token="x")) == (state, UpperMismatch(EMPTY))


def test_empty_appends_coalesce_and_a_batch_with_parts_ends_the_run():
    """Damage: an idle shard's state grows by an entry a second."""
    state = FRESH
    for at in range(5):
        state = appended(state, at, at + 1, token=str(at))
    assert [(b.lower.at, b.upper.at) for b in state.batches] == [(0, 5)]
    state = appended(state, 5, 6, staged(5, 6), token="x")
    state = appended(appended(state, 6, 7, token="y"), 7, 8, token="z")
    assert [(b.lower.at, b.upper.at) for b in state.batches] == [(0, 5), (5, 6), (6, 8)]


def test_no_more_writers_are_remembered_than_there_is_room_for():
    """Damage: the state grows with every restart."""
    state = FRESH
    for n in range(WRITERS_MAX + 10):
        state = appended(state, n, n + 1, token=f"t{n}", writer=f"w{n}", epoch=n // 9)
    assert sorted(state.writers) == sorted(f"w{n}" for n in range(10, WRITERS_MAX + 10))
    assert state.forgotten == Frontier(10)


def test_whether_a_forgotten_append_landed_is_said_to_be_unknown():
    """Damage: an append that landed is reported as refused, and its parts are deleted under the shard."""
    state = FRESH
    for n in range(WRITERS_MAX + 1):
        state = appended(state, n, n + 1, token=f"t{n}", writer=f"w{n}")
    with pytest.raises(Indeterminate, match="not remembered"):
        append(state, request(0, 1, token="t0"))
    assert append(state, request(1, 2, token="t1")) == (state, Appended(Frontier(2)))
    assert append(state, request(1, 2, token="x")) == (state, UpperMismatch(Frontier(WRITERS_MAX + 1)))


def test_a_certificate_names_the_digest_after_its_append():
    """Damage: a sink trusts a shard that does not hold what it desired."""
    state = appended(FRESH, 0, 1, staged(0, 1, 3), certify="plan")
    assert state.certificate == Certificate("plan", Frontier(1), Digest(3, 3))
    assert appended(state, 1, 2, staged(1, 2), token="u").certificate == state.certificate


# ---- epochs and descriptions


def test_admitting_is_monotone():
    """Damage: a late request of an old generation lowers the fence."""
    state, _ = admit(FRESH, 5)
    assert admit(state, 3) == (state, 5)
    assert admit(state, 5) == (state, 5)


def test_a_shard_is_described_once():
    """Damage: a shard of rows is opened as one of records, and read as garbage."""
    state, _ = describe(FRESH, "a int", "")
    assert describe(state, "a int", "") == (state, None)
    for schema, owner in (("b int", ""), ("a int", "records")):
        with pytest.raises(InvalidUsage, match="is registered with schema 'a int'"):
            describe(state, schema, owner)


# ---- holds


def test_since_is_the_meet_of_all_holds_and_never_goes_back():
    """Damage: a time that a reader holds is compacted away."""
    state = held(a=0, b=4)
    state, answer = compare_and_downgrade(state, "a", 7, 7, Frontier(9))
    assert (answer, state.since) == (Downgraded(Frontier(9)), Frontier(4))
    assert compare_and_downgrade(state, "a", 7, 7, Frontier(2)) == (state, Downgraded(Frontier(9)))


def test_a_hold_moves_only_with_its_token():
    """Damage: the owner of an older epoch releases what its successor needs."""
    state = held(a=3)
    assert compare_and_downgrade(state, "a", 6, 8, Frontier(5)) == (state, OpaqueMismatch(7, Frontier(3)))
    after, answer = compare_and_downgrade(state, "a", 7, 8, Frontier(1))
    assert (after.criticals["a"], answer) == (Critical(Frontier(3), 8), Downgraded(Frontier(3)))


def test_a_hold_expires_only_with_its_token_and_since_stays():
    """Damage: a fenced zombie drops its successor's hold, and the history it needs is collected."""
    state = held(a=0, b=4)
    assert expire_critical(state, "a", 6) == (state, OpaqueMismatch(7, Frontier(0)))
    after, answer = expire_critical(state, "a", 7)
    assert (answer, after.since, list(after.criticals)) == (None, MINIMUM, ["b"])
    assert expire_critical(after, "a", 7) == (after, None)


def test_a_hold_that_is_not_registered_cannot_be_moved():
    """Damage: a typing error holds nothing, silently."""
    with pytest.raises(InvalidUsage, match="no critical reader 'x'"):
        compare_and_downgrade(FRESH, "x", 0, 1, Frontier(1))


def test_a_reader_is_registered_once_where_since_is():
    """Damage: a restart takes the hold back to a time that is gone, or forward past what it needs."""
    state = ShardState("s", since=Frontier(6))
    state, first = register_critical(state, "a")
    assert first == Critical(Frontier(6), 0)
    state, _ = compare_and_downgrade(state, "a", 0, 1, Frontier(8))
    assert register_critical(state, "a") == (state, Critical(Frontier(8), 1))


def test_an_empty_hold_lets_go_of_everything():
    """Damage: a dropped collection keeps its history for ever."""
    state, answer = compare_and_downgrade(held(a=0), "a", 7, 7, EMPTY)
    assert (state.since, answer) == (EMPTY, Downgraded(EMPTY))


# ---- the beginning and the end


def test_a_fresh_shard_starts_its_history_at_as_of_and_holds_move_along():
    """Damage: a hold that was taken before the first step makes that step break a law, for ever."""
    state, since = open_at(held(a=0, b=9), 3, 5)
    assert (since, state.since, state.epoch) == (Frontier(5), Frontier(5), 3)
    assert {name: c.since.at for name, c in state.criticals.items()} == {"a": 5, "b": 9}
    assert open_at(state, 3, 5) == (state, Frontier(5))


def test_a_shard_with_a_history_keeps_it_and_a_fenced_writer_starts_none():
    """Damage: a restarted view hides times that its readers hold."""
    grown = appended(FRESH, 0, 1)
    assert open_at(grown, 3, 5) == (grown, MINIMUM)
    fenced, _ = admit(FRESH, 4)
    assert open_at(fenced, 3, 5) == (fenced, MINIMUM)


def test_nothing_changes_a_tombstone():
    """Damage: maintenance of a dropped shard never converges."""
    assert append(TOMBSTONE, request(0, 1)) == (TOMBSTONE, UpperMismatch(EMPTY))
    assert register_critical(TOMBSTONE, "r") == (TOMBSTONE, Critical(EMPTY, 0))
    assert compare_and_downgrade(TOMBSTONE, "nobody", 99, 5, Frontier(2)) == (TOMBSTONE, Downgraded(EMPTY))
    assert expire_critical(TOMBSTONE, "nobody", 99) == (TOMBSTONE, None)
    assert describe(TOMBSTONE, "a int", "x") == (TOMBSTONE, None)
    assert admit(TOMBSTONE, 9) == (TOMBSTONE, 0)
    assert open_at(TOMBSTONE, 9, 3) == (TOMBSTONE, EMPTY)


def test_a_rollup_is_named_once_and_only_if_it_is_the_newest():
    """Damage: a slow writer's old rollup becomes the one that every open starts from."""
    state, named = add_rollup(FRESH, Rollup(8, "b"))
    assert named
    assert add_rollup(state, Rollup(8, "b")) == (state, True)
    assert add_rollup(state, Rollup(8, "c")) == (state, False)
    assert add_rollup(state, Rollup(7, "a")) == (state, False)


def test_an_unreadable_shard_is_still_written_and_its_readers_get_nothing():
    """Damage: dropping the readers of a collection stops its writer."""
    state = ShardState("s", since=EMPTY)
    assert register_critical(state, "r")[1] == Critical(EMPTY, 0)
    after = appended(state, 0, 1, staged(0, 1))
    check(state, replace(after, seqno=1))


def test_the_digest_of_an_empty_append_is_nothing():
    """Damage: idle time changes what a shard is certified to hold."""
    assert appended(FRESH, 0, 1).digest == NOTHING
