"""Compaction changes no read, and leaves nothing behind."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from strandline.errors import CorruptionError, Determinate
from strandline.frontier import Frontier
from strandline.persist.handles.records import Record, consolidate
from strandline.persist.shard import trace
from strandline.persist.shard.batch import BlobPart
from strandline.persist.shard.machine import CAS_RETRIES_MAX
from strandline.persist.shard.state import Appended
from strandline.persist.shard.trace import FAN, Merged, Stale, due
from strandline.persist.upkeep import compact
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync


def filled(place, count, client=None, *, inline=1 << 14):
    """A shard to which ``count`` batches were appended; returns its writer."""
    writer = place.writer(client=client)
    for at in range(count):
        staged = place.stage("s", at, at + 1, [["a", at, 1], [f"k{at % 3}", at, 1]], inline=inline)
        answer = run_sync(writer.compare_and_append([staged], Frontier(at), Frontier(at + 1)))
        assert answer == Appended(Frontier(at + 1))
    return writer


def parts_stored(place):
    """Which parts lie in Blob."""
    return {key for key in place.objects if "/parts/" in key}


def parts_named(place):
    """Which parts the newest version names."""
    return parts_named_in(place.state())


def parts_named_in(state):
    """Which parts a version names."""
    return {part.key for part in state.parts if isinstance(part, BlobPart)}


def compactor(place, merger=None):
    """A compactor in a process of its own."""
    return run_sync(place.client(merger or place.engine).compactor("s"))


@pytest.mark.parametrize("inline", [0, 1 << 14])
def test_appends_keep_the_trace_short_and_reads_as_they_were(place, inline):
    """Damage: reads become slower with every append; or compaction changes what was read."""
    plain, there = type(place)(), place
    for where, merger in ((plain, None), (there, place.engine)):
        filled(where, 3 * FAN + 2, where.client(merger), inline=inline)
    assert len(there.state().batches) < FAN <= len(plain.state().batches)
    for as_of in range(3 * FAN + 2):
        assert there.snapshot(as_of) == plain.snapshot(as_of)
    assert there.state().digest == plain.state().digest


def test_history_without_a_hold_is_added_up(place):
    """Damage: a collection that changes all the time grows for ever."""
    client = place.client(place.engine)
    hold = run_sync(client.since("s", "h", 1))
    writer = place.writer(client=client)
    for at in range(10 * FAN):
        rows = [["counter", at, 1], *([["counter", at, -1]] if at else [])]
        place.append(writer, at, at + 1, [[f"v{at}", at, 1], *([[f"v{at - 1}", at, -1]] if at else []), *rows])
        run_sync(hold.downgrade(Frontier(at)))
    state = place.state()
    assert sum(b.rows for b in state.batches) < 6 * FAN
    assert place.snapshot(10 * FAN - 1) == [["counter", 79, 1], ["v79", 79, 1]]


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("live", [20, 300])
def test_history_without_a_hold_is_at_most_twice_the_live_rows(place, live, window):
    """Damage: the shard keeps every old version of rows that change often, and each read scans them."""
    client = place.client()
    records, hold = run_sync(client.records("log", 1)), run_sync(client.since("log", "h", 1))
    moves_every, kept = 16, []
    for at in range(live * 8):
        old, new = b"%d-%d" % (at % live, at // live - 1), b"%d-%d" % (at % live, at // live)
        changed = [Record(new, at, 1), *([Record(old, at, -1)] if at >= live else [])]
        run_sync(records.append(changed, Frontier(at), Frontier(at + 1)))
        if at % moves_every == moves_every - 1:
            run_sync(hold.downgrade(Frontier(max(0, at - window))))
            kept.append(sum(batch.rows for batch in records.state.batches))
    assert max(kept) <= 2 * live + FAN + 2 * (window + moves_every)
    assert len(consolidate(replace(r, time=0) for r in run_sync(records.contents()))) == live


def test_a_past_in_which_nothing_cancels_is_left_as_it_is(place):
    """Damage: each time since moves, a shard that only grows is written anew."""
    client = place.client()
    records, hold = run_sync(client.records("log", 1)), run_sync(client.since("log", "h", 1))
    for at in range(FAN - 1):
        run_sync(records.append([Record(b"%d" % at, at, 1)], Frontier(at), Frontier(at + 1)))
        run_sync(hold.downgrade(Frontier(at)))
    assert client.metrics.compactions == 0


def test_no_commit_waits_for_a_large_merge_that_is_done_apart(place, monkeypatch):
    """Damage: one append in some hundreds takes as long as rewriting the shard, and all other work waits for it."""
    monkeypatch.setattr(trace, "LARGE_UPDATES", 3 * FAN)
    client = place.client(merges_apart=True)
    records = run_sync(client.records("log", 1))
    wanted = []
    for at in range(FAN * FAN + FAN):
        wanted.append(Record(b"%d" % at, at, 1))
        run_sync(records.append([wanted[-1]], Frontier(at), Frontier(at + 1)))
    assert max(batch.rows for batch in records.state.batches) <= 3 * FAN, "small merges are done as before"
    assert client.metrics.large_compactions == 0
    assert due(records.state).large
    run_sync(client.merge())
    assert (due(records.state), client.metrics.large_compactions) == (None, 1)
    assert run_sync(records.contents()) == wanted


def test_a_large_merge_that_fails_is_a_problem_and_is_made_up_for(place, monkeypatch):
    """Damage: a shard is never merged again, and `status` says that all is well."""
    monkeypatch.setattr(trace, "LARGE_UPDATES", FAN - 1)
    client = place.client(merges_apart=True)
    records = run_sync(client.records("log", 1))
    for at in range(FAN):
        run_sync(records.append([Record(b"%d" % at * 20_000, at, 1)], Frontier(at), Frontier(at + 1)))
    (missing, *_) = parts_named_in(records.state)
    body = place.objects.pop(missing)
    run_sync(client.merge())
    assert "merge failed" in client.problems()["log"]
    place.objects[missing] = body
    for _ in range(2):
        run_sync(client.merge())
    assert (client.problems(), len(records.state.batches)) == ({}, 1)


def test_a_record_shard_compacts_itself(place):
    """Damage: the transactions of a year are read at every start."""
    records = run_sync(place.client().records("log", 1))
    wanted = []
    for at in range(5 * FAN):
        wanted.append(Record(b"%d" % at, at, 1))
        run_sync(records.append([wanted[-1]], Frontier(at), Frontier(at + 1)))
    assert len(records.state.batches) < 2 * FAN
    assert run_sync(records.contents()) == wanted
    again = run_sync(place.client().records("log", 1))
    assert run_sync(again.contents()) == wanted


def test_compaction_keeps_cut_and_retimed_parts_as_they_are(place):
    """Damage: compaction brings back what an append cut off."""
    writer = place.writer()
    whole = place.stage("s", 0, 3, [["a", 0, 1], ["b", 1, 1], ["c", 2, 1]])
    trimmed = run_sync(place.engine.trim(whole, place.schema, Frontier(1), Frontier(2)))
    run_sync(writer.compare_and_append([trimmed], Frontier(0), Frontier(3)))
    assert run_sync(compactor(place).whole()) == Merged()
    assert place.snapshot(2) == [["b", 2, 1]]
    (batch,) = place.state().batches
    assert [part.window for part in batch.parts] == [None]


def test_a_result_that_came_too_late_is_deleted_at_once(place):
    """Damage: two compactors of one shard fill the store with unused outputs."""
    filled(place, FAN, inline=0)
    one, other = compactor(place), compactor(place)
    plan = replace(due(place.state()), inline_bytes_max=0)
    assert run_sync(one.carry_out(plan)) == Merged()
    stored = parts_stored(place)
    assert isinstance(run_sync(other.carry_out(plan)), Stale)
    assert parts_stored(place) == stored


@pytest.mark.parametrize("outcome", [Outcome.DONE_UNREPORTED, Outcome.LATE, Outcome.LOST, Outcome.REFUSED])
def test_whatever_becomes_of_the_commit_the_result_is_there_once(place, outcome):
    """Damage: a merge whose answer was lost is deleted under the shard; or is applied twice."""
    filled(place, FAN, inline=0)
    place.plan.append(outcome)
    assert run_sync(compactor(place).carry_out(due(place.state()))) == Merged()
    run_sync(place.consensus.land())
    assert len(place.state().batches) == 1
    assert parts_named(place) <= parts_stored(place)


def test_a_result_of_unknown_fate_is_left_alone(place):
    """Damage: it lands a moment after its parts were deleted."""
    filled(place, FAN, inline=0)
    place.plan.extend([Outcome.LOST] * (CAS_RETRIES_MAX - 1) + [Outcome.LATE])
    with pytest.raises(Exception, match="may or may not"):
        run_sync(compactor(place).carry_out(due(place.state())))
    run_sync(place.consensus.land())
    assert len(place.state().batches) == 1
    assert parts_named(place) <= parts_stored(place)


def test_a_result_that_landed_unreported_and_was_merged_again_is_left_alone(place):
    """Damage: a reader that holds the version in between loses its parts during a read (found by a seed)."""
    writer = filled(place, FAN, inline=0)
    one, other = compactor(place), compactor(place)
    named = set()

    async def go_on():
        named.update(parts_named(place))
        staged = place.stage("s", FAN, FAN + 1, [["b", FAN, 1]], inline=0)
        await writer.compare_and_append([staged], Frontier(FAN), Frontier(FAN + 1))
        assert await other.whole() == Merged()

    plan = replace(due(place.state()), inline_bytes_max=0)
    place.plan.append(Outcome.DONE_UNREPORTED)
    place.clock.meanwhile.append(go_on)
    assert isinstance(run_sync(one.carry_out(plan)), Stale)
    assert named
    assert named <= parts_stored(place)


def test_a_result_that_never_happened_is_deleted(place):
    """Damage: an hour without Consensus fills the store with unused outputs."""
    filled(place, FAN, inline=0)
    stored = parts_stored(place)
    place.plan.extend([Outcome.REFUSED] * CAS_RETRIES_MAX)
    with pytest.raises(Exception, match="no commit"):
        run_sync(compactor(place).carry_out(replace(due(place.state()), inline_bytes_max=0)))
    assert parts_stored(place) == stored


def test_compaction_that_fails_does_not_fail_the_append_and_is_tried_by_the_next_one(place):
    """Damage: a shard whose store fails now and then takes no appends; or is never compacted again."""

    class Stuttering:
        def __init__(self):
            self.fails = 1

        async def merge(self, contents, request):
            self.fails -= 1
            if self.fails >= 0:
                raise Determinate("not now")
            return await place.engine.merge(contents, request)

    filled(place, FAN + 1, place.client(Stuttering()))
    assert len(place.state().batches) == 1


def test_a_damaged_part_stops_compaction_and_not_appends(place):
    """Damage: every append fails because of an old part; or each one reads the damaged parts again."""
    merges = []

    class Watched:
        async def merge(self, contents, request):
            merges.append(contents)
            return await place.engine.merge(contents, request)

    client = place.client(Watched())
    writer = filled(place, FAN - 2, client, inline=0)
    place.objects[min(parts_stored(place))] = b"damaged"
    for at in range(FAN - 2, FAN + 4):
        place.append(writer, at, at + 1, [["x", at, 1]])
    assert len(merges) <= 7
    (problem,) = client.problems().values()
    assert problem.startswith("merge failed: ")
    assert "damaged" in problem
    with pytest.raises(CorruptionError):
        run_sync(compactor(place).whole())


def test_a_writer_without_an_engine_does_not_compact_rows(place):
    """Damage: a writer without an engine fails at its eighth append."""
    filled(place, 3 * FAN)
    assert len(place.state().batches) == 3 * FAN
    assert run_sync(place.client(place.engine).compactor("nowhere")) is None


def test_nothing_is_done_for_appends_of_nothing(place):
    """Damage: an idle shard compacts at every tick."""
    merges = []

    class Watched:
        async def merge(self, contents, request):
            merges.append(contents)
            raise AssertionError

    writer = place.writer(client=place.client(Watched()))
    for at in range(4 * FAN):
        place.append(writer, at, at + 1)
    assert (merges, len(place.state().batches)) == ([], 1)


def test_a_shard_that_only_moves_its_upper_is_not_looked_at_again(place, monkeypatch):
    """Damage: a tick of a thousand idle shards goes over all of their batches."""
    looks = []
    monkeypatch.setattr(compact, "due", lambda state, **how: looks.append(state) or due(state, **how))
    writer = place.writer(client=place.client(place.engine))
    place.append(writer, 0, 1, [["a", 0, 1]])
    place.append(writer, 1, 2)
    looks.clear()
    for at in range(2, 2 * FAN):
        place.append(writer, at, at + 1)
    assert looks == []
    place.append(writer, 2 * FAN, 2 * FAN + 1, [["b", 2 * FAN, 1]])
    assert looks
