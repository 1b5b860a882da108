"""Expired tokens and unregistered shards are forgotten, and nothing else, even after an outage of days."""

from __future__ import annotations

from functools import partial

import pytest

from strandline.errors import InvalidUsage
from strandline.frontier import Frontier
from strandline.persist.fsck import held_by_transactions
from strandline.persist.handles.records import consolidate
from strandline.persist.shard.machine import CAS_RETRIES_MAX
from strandline.persist.together.transactions import TIDY_EVERY, TOKEN_LIFE_MS, CommittedAt, Ledger
from strandline.persist.upkeep.collect import LEAKED_AFTER_MS
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync
from transactions_in_use import commit, content, opened, transactions


def test_the_log_consolidates_to_registrations_and_tokens(place):
    """Damage: the log of transactions grows by every row that was ever written."""
    txns = opened(place, "x")
    for time in range(5, 9):
        commit(place, txns, time, str(time), x="a")
        run_sync(txns.apply())
    run_sync(txns.advance(10))
    kept = consolidate(r for r in run_sync(txns._log.contents()))
    sums = {}
    for record in kept:
        sums[record.data] = sums.get(record.data, 0) + record.diff
    assert sum(1 for n in sums.values() if n) == 1 + 4


def test_a_shard_that_was_forgotten_is_refused_and_stands_still(place):
    """Case unregistered.  Damage: a dropped table takes rows, and its upper costs every tick a write."""
    txns = opened(place, "x", "y")
    commit(place, txns, 5, "one", x="a", y="b")
    run_sync(txns.forget("y"))
    assert content(place, "y", 5) == [("b", 1)], "what was committed before is applied"
    with pytest.raises(InvalidUsage, match="'y' is not registered"):
        commit(place, txns, 9, "two", x="c", y="d")
    upper = place.state("y").upper
    run_sync(txns.advance(20))
    assert (place.state("x").upper, place.state("y").upper) == (Frontier(21), upper)
    run_sync(txns.forget("y"))
    run_sync(txns.register("y", place.schema.ddl))
    assert commit(place, txns, 25, "three", y="e") == CommittedAt(25)
    run_sync(txns.apply())
    assert content(place, "y", 25) == [("b", 1), ("e", 1)]


def test_a_commit_to_a_shard_that_another_process_forgot_meanwhile_is_refused(place):
    """Case unregistered.  Damage: the commit was checked against a version that was gone, and is never applied."""
    one, two = opened(place, "x", "y"), transactions(place)
    time = one.upper.at + 3
    run_sync(two.forget("y"))
    assert "y" in run_sync(one.shards())
    with pytest.raises(InvalidUsage, match="'y' is not registered"):
        commit(place, one, time, "one", x="a", y="b")
    run_sync(one.advance(time + 1))
    assert content(place, "x", time) == []


def test_a_shard_that_another_process_forgot_is_registered_again(place):
    """Damage: a table is opened for writing, and every write to it is refused."""
    one, two = opened(place, "x"), transactions(place)
    run_sync(two.forget("x"))
    run_sync(one.register("x", place.schema.ddl))
    assert commit(place, one, one.upper.at, "one", x="a") == CommittedAt(one.upper.at - 1)


def test_forgetting_applies_transactions_that_others_commit_at_the_last_moment(place):
    """Damage: a transaction that was acknowledged is in one table, and never in the one that left."""
    one, two = opened(place, "x", "y"), transactions(place)
    time = one.upper.at + 1
    place.plan.append(Outcome.LOST)
    staged = {s: [place.stage(s, time, time + 1, [["k", time, 1]])] for s in "xy"}
    place.clock.meanwhile.append(lambda: two.commit(time, staged, token="other"))
    run_sync(one.forget("y"))
    run_sync(one.advance(time))
    assert [content(place, s, time) for s in "xy"] == [[("k", 1)]] * 2


def test_a_retry_in_time_is_the_same_commit_and_one_too_late_is_an_error(place):
    """Damage: a token is forgotten to save space, and its retry is a second commit."""
    txns = opened(place, "x")
    token = "a@1000"
    last = 1_000 + TOKEN_LIFE_MS - 1
    assert commit(place, txns, 1_005, token, x="a") == CommittedAt(1_005)
    run_sync(txns.advance(last - 1))
    assert commit(place, txns, last, token, x="a") == CommittedAt(1_005)
    assert commit(place, transactions(place), last, token, x="a") == CommittedAt(1_005)
    for process in (txns, transactions(place)):
        run_sync(process.advance(last))
        process._tidied_at -= TIDY_EVERY  # the first to tidy after its life withdraws it
        run_sync(process.advance(last + 1))
        with pytest.raises(InvalidUsage, match="too late: tokens are kept for 15 minutes"):
            commit(place, process, last + 9, token, x="a")
    assert content(place, "x", last) == [("a", 1)]


def test_a_token_without_a_date_is_the_same_commit_for_ever(place):
    """Damage: a retry a year later is a second commit."""
    txns = opened(place, "x")
    commit(place, txns, 5, "order-7", x="a")
    run_sync(txns.advance(10 * TOKEN_LIFE_MS))
    assert commit(place, transactions(place), 10 * TOKEN_LIFE_MS + 1, "order-7", x="a") == CommittedAt(5)


def test_what_is_live_is_bounded_however_long_it_goes_on(place):
    """Damage: the log of transactions grows with every statement that was ever executed."""
    txns = opened(place, "x")
    step = TOKEN_LIFE_MS // 10
    for n in range(1, 5 * TIDY_EVERY):
        time = n * step
        commit(place, txns, time, f"t{n}@{time}", x="a")
        run_sync(txns.apply())
    known = run_sync(txns._known(txns._log.state))
    assert len(known.tokens) <= 11 + TIDY_EVERY
    assert len(known.writes) <= 2
    assert place.state("transactions").since > Frontier(10 * step), "its past may be compacted"
    assert Ledger().after(run_sync(txns._log.contents()), txns.upper) == known, "read from scratch it is the same"


def test_a_failure_to_release_the_past_fails_no_commit(place):
    """Damage: a durable commit is reported as failed, because housekeeping after it failed."""
    txns = opened(place, "x")
    txns._tidied_at -= TIDY_EVERY
    place.plan.extend([Outcome.DONE, *[Outcome.LOST] * CAS_RETRIES_MAX])
    assert commit(place, txns, 5, "one", x="a") == CommittedAt(5)


def staged_with_a_part(place, writer, time):
    """A batch in a Blob object that says when it was begun."""
    rows = [["a", time, 1]]
    return place.stage(writer.shard, time, time + 1, rows, inline=0, prefix=writer.stage_prefix())


def test_what_was_committed_before_an_outage_of_days_can_be_applied_after_a_sweep(place):
    """Damage: an acknowledged transaction can never be applied, and the location can no longer be opened."""
    client = place.client()
    txns = transactions(place, client=client)
    writer = run_sync(txns.register("x", place.schema.ddl))
    leaked = [staged_with_a_part(place, writer, 3) for _ in range(2)]
    place.clock.now += 1
    staged = staged_with_a_part(place, writer, 5)
    place.clock.now += 1
    leaked.append(staged_with_a_part(place, writer, 3))
    assert run_sync(txns.commit(5, {"x": [staged]}, token="one")) == CommittedAt(5)  # and the writer dies
    place.clock.now += LEAKED_AFTER_MS + 3_600_000
    sweeper = place.client()
    run_sync(sweeper.leased_reader("x", place.schema, "x"))
    swept = run_sync(run_sync(sweeper.collector("x")).sweep(partial(held_by_transactions, sweeper)))
    assert swept == sorted(part.key for batch in leaked[:2] for part in batch.parts)
    transactions(place, epoch=2)
    assert content(place, "x", 5) == [("a", 1)]
    assert len(run_sync(run_sync(place.client().collector("x")).sweep(nothing))) == 1


async def nothing(_):
    """The held parts of a log without transactions."""
    return ()


def swept_around(place, sweeper, shard, meanwhile):
    """Sweep ``shard``; run ``meanwhile`` between the sweep's read of the transactions and its mark."""

    async def asked(mark_ms):
        held = await held_by_transactions(sweeper, mark_ms)
        await meanwhile()
        return held

    run_sync(sweeper.leased_reader(shard, place.schema, shard))  # brings the shard's time forward
    return run_sync(run_sync(sweeper.collector(shard)).sweep(asked))


def test_a_sweep_that_sleeps_between_its_looks_leaves_what_is_committed_meanwhile(place):
    """Damage: a laptop that is closed during `fsck --apply` deletes a committed transaction when it is opened again."""
    txns = transactions(place)
    writer = run_sync(txns.register("x", place.schema.ddl))
    leaked = staged_with_a_part(place, writer, 3)
    place.clock.now += LEAKED_AFTER_MS
    staged = staged_with_a_part(place, writer, 5)
    place.clock.now += 1

    async def meanwhile():
        place.clock.now += LEAKED_AFTER_MS // 2
        assert await txns.commit(5, {"x": [staged]}, token="one") == CommittedAt(5)
        place.clock.now += LEAKED_AFTER_MS
        await place.client().leased_reader("x", place.schema, "x")

    assert swept_around(place, place.client(), "x", meanwhile) == [part.key for part in leaked.parts]
    run_sync(txns.apply())
    assert content(place, "x", 5) == [("a", 1)]


def test_a_commit_that_sleeps_between_its_check_and_its_write_is_refused_if_it_was_swept(place):
    """Damage: a process that is suspended for days during a commit commits deleted parts: acknowledged, and lost."""
    txns = transactions(place)
    writer = run_sync(txns.register("x", place.schema.ddl))
    staged = staged_with_a_part(place, writer, 5)
    append, swept = txns._log.append, []

    async def after_days(*arguments, **options):
        place.clock.now += LEAKED_AFTER_MS + 1
        sweeper = place.client()
        await sweeper.leased_reader("x", place.schema, "x")  # brings the shard's time forward
        swept.extend(await (await sweeper.collector("x")).sweep(partial(held_by_transactions, sweeper)))
        return await append(*arguments, **options)

    txns._log.append = after_days
    with pytest.raises(InvalidUsage, match="stage them again"):
        run_sync(txns.commit(5, {"x": [staged]}, token="one"))
    assert swept == [part.key for part in staged.parts]
    assert run_sync(txns.find("one")) is None
    txns._log.append = append
    commit(place, txns, 5, "one", x="b")
    run_sync(txns.apply())
    assert content(place, "x", 5) == [("b", 1)]


def test_a_part_of_any_age_is_committed_unless_it_may_be_swept(place):
    """Damage: with a wrong clock, appends of existing parts are refused, and a slow writer never succeeds."""
    txns = transactions(place)
    writer = run_sync(txns.register("x", place.schema.ddl))
    staged = staged_with_a_part(place, writer, 5)
    place.clock.now += 3 * LEAKED_AFTER_MS
    assert run_sync(txns.commit(5, {"x": [staged]}, token="one")) == CommittedAt(5)
    sweeper = place.client()
    run_sync(sweeper.leased_reader("x", place.schema, "x"))
    held = partial(held_by_transactions, sweeper)
    assert run_sync(run_sync(sweeper.collector("x")).sweep(held)) == []
    assert run_sync(txns.commit(5, {"x": [staged]}, token="one")) == CommittedAt(5), (
        "asked again, it is the same commit"
    )
    run_sync(txns.apply())
    assert content(place, "x", 5) == [("a", 1)]
