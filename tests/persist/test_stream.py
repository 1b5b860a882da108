"""The stream client: calls take effect in their order, once, and are durable when they are resolved."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from strandline.errors import (
    AsOfError,
    CollectionError,
    DefinitionError,
    FencedError,
    Indeterminate,
    InvalidUsage,
    Stopped,
    StoreError,
    Unavailable,
)
from strandline.frontier.antichain import EMPTY, Frontier
from strandline.persist import machine, trace
from strandline.persist.batch import INLINE_SHARD_BYTES_MAX
from strandline.persist.client import PersistClient
from strandline.persist.holds import LEASE_MS
from strandline.persist.line import RUN_CALLS_MAX, UNTOLD_MAX
from strandline.persist.state import WRITERS_MAX, mark_swept
from strandline.persist.stream import StreamClient, read_stream
from strandline.persist.updates import RowCodec, Update, ValueCodec
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.reading import ReadingBlob, ReadingConsensus
from strandline.store.unreliable import Outcome
from strandline.testing.choices import Listed, Seeded
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.list_engine import ListEngine
from strandline.testing.simulation import Fate, IoPoint, SimBlob, SimClock, SimConsensus, SimIds, Simulation, run_sync


def words(place):
    """A codec of text."""
    return ValueCodec(place.blob, "text", str.encode, bytes.decode)


def rows(place):
    """The codec of rows."""
    return RowCodec(ListEngine(place.blob), place.schema)


def client(place, epoch=1):
    """A process."""
    return StreamClient(place.client(), epoch)


def opened(place, *names, process=None, codec=words):
    """Open collections; return their writers and readers, in turn."""
    process = process or client(place)
    return [each for n in names for each in run_sync(process.create_or_load(n, codec(place)))]


def resolved(call):
    """Await a call."""

    async def wait():
        return await call

    return run_sync(wait())


def read(reader, as_of):
    """What is there at ``as_of``, without waiting."""
    return sorted(((u.value, u.diff) for u in run_sync(reader.snapshot(as_of, timeout_s=0))), key=str)


def versions(place, writer):
    """How often the shard has changed."""
    return len(place.versions[writer._writer.shard])


def as_rows(*words):
    """Rows of the place's schema."""
    return [{"k": word} for word in words]


# ---- what calls do


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


def test_a_write_at_a_sealed_time_is_refused_whole_and_the_calls_behind_it_go_on(place):
    """Damage: what was complete changes, half a write is there, or one mistake blocks a client for ever."""
    write, reader = opened(place, "n")
    resolved(write.seal(5))
    late, good = write.write([("late", 4, 1), ("also", 9, 1)]), write.write([("good", 5, 1)])
    resolved(write.seal(10))
    with pytest.raises(InvalidUsage, match=r"nothing is written at \[4\] any more: it is sealed up to \[5\]"):
        resolved(late)
    resolved(good)
    assert read(reader, 9) == [("good", 1)]


class Cursed:
    """Raises whatever is asked of it."""

    def __arrow_array__(self, **_):
        raise KeyError("k")


def numbers(place):
    """A codec of small numbers, whose functions refuse in ways of their own."""
    raised = {"key": KeyError("no such thing"), "own": RuntimeError("not today")}

    def encode(n):
        if n in raised:
            raise raised[n]
        return n if isinstance(n, str) else bytearray(n.to_bytes(4, "big"))

    return ValueCodec(place.blob, "number", encode, lambda data: int.from_bytes(data, "big"))


@pytest.mark.parametrize("bad", [2**40, -1, "key", "own", None, "text"])
def test_what_is_no_value_is_refused_and_the_calls_behind_it_go_on(place, bad):
    """Damage: one bad value blocks a client for ever, or is stored and cannot be read."""
    process = client(place)
    write, reader = opened(place, "n", codec=numbers, process=process)
    call = write.write([(1, 1, 1), (bad, 1, 1)])
    write.write([(7, 1, 1)])
    resolved(write.seal(2))
    with pytest.raises(InvalidUsage, match="codec 'value:number'"):
        resolved(call)
    assert read(reader, 1) == [(7, 1)]


@pytest.mark.parametrize(
    "bad",
    [{"nonsense": 1}, {1: "a"}, {"k": 2**70}, {"k": 1}, {"k": Cursed()}, {"k": "\ud800"}, "k", None, {"k": object()}],
)
def test_what_is_no_row_is_refused_and_the_calls_behind_it_go_on(place, bad):
    """Damage: one bad row blocks a client for ever, all its collections, and its end."""
    process = client(place)
    write, reader = opened(place, "n", codec=rows, process=process)
    call = write.write([({"k": "beside"}, 1, 1), (bad, 1, 1)])
    write.write([({"k": "good"}, 1, 1)])
    resolved(write.seal(2))
    with pytest.raises(InvalidUsage, match="column|row"):
        resolved(call)
    assert read(reader, 1) == [({"k": "good"}, 1)]


@pytest.mark.parametrize("codec", [words, rows])
@pytest.mark.parametrize(
    ("time", "diff"),
    [(-1, 1), (2**63 - 1, 1), (5.0, 1), ("5", 1), (None, 1), (True, 1), (5, 1.5), (5, None), (5, False), (5, 2**41)],
)
def test_what_is_no_time_or_diff_is_refused_at_once_and_never_stored(place, codec, time, diff):
    """Damage: a write that was acknowledged makes the collection unreadable for everybody, for ever."""
    write, reader = opened(place, "n", codec=codec)
    good, bad = ("good", "bad") if codec is words else as_rows("good", "bad")
    with pytest.raises(InvalidUsage, match=f"'n': (time|diff) {time if diff == 1 else diff!r}|'n': time '5'"):
        write.write([(good, 5, 1), (bad, time, diff)])
    resolved(write.write([(good, 5, 1)]))
    for step in (write.seal, write.allow_compaction):
        with pytest.raises(InvalidUsage, match="'n': time 7.5"):
            step(7.5)
    resolved(write.seal(8))
    assert read(reader, 7) == [(good, 1)]


@pytest.mark.parametrize("codec", [words, rows])
def test_numbers_of_other_types_are_times_and_diffs_if_they_are_whole(place, codec):
    """Damage: what a data frame holds cannot be written, or only until somebody reads it."""
    write, reader = opened(place, "n", codec=codec)
    (a,) = ("a",) if codec is words else as_rows("a")
    resolved(write.write([(a, np.int64(5), np.int32(2))]))
    resolved(write.seal(np.int64(6)))
    assert read(reader, np.int64(5)) == [(a, 2)]
    with pytest.raises(AsOfError, match="no whole number"):
        read(reader, 5.5)


def test_a_schema_that_cannot_be_kept_is_told_and_the_calls_behind_go_on(place, monkeypatch):
    """Damage: one collection of a type that has no order blocks all collections of a client."""
    process = client(place)
    write, _, text, reader = *opened(place, "n", codec=rows, process=process), *opened(place, "text", process=process)

    async def refuse(*_, **__):
        raise DefinitionError("column 'k': a map has no order")

    monkeypatch.setattr(ListEngine, "local", refuse)
    call = write.write([({"k": "a"}, 1, 1)])
    text.write([("a", 1, 1)])
    resolved(text.seal(2))
    with pytest.raises(DefinitionError, match="column 'k'"):
        resolved(call)
    assert read(reader, 1) == [("a", 1)]


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
    """Damage: a client that has nothing to say is told an error, or costs a version."""
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


@pytest.mark.parametrize("lease", [True, False])
def test_another_process_reads_and_fences_nobody(place, lease):
    """Damage: whoever only wants to read has to write, under an epoch, and stops the writer."""
    write, _ = opened(place, "n", process=client(place, epoch=3))
    reader = run_sync(read_stream(place.client(), "n", words(place), lease=lease))
    resolved(write.write([("a", 1, 1)]))
    resolved(write.seal(2))
    assert read(reader, 1) == [("a", 1)]
    resolved(write.write([("b", 2, 1)]))
    resolved(write.seal(3))
    assert read(reader, 2) == [("a", 1), ("b", 1)]
    run_sync(reader.close())


def test_a_reader_with_a_lease_holds_what_it_may_still_read(place):
    """Damage: who reads slowly is told that it came too late; or a reader that left is waited for."""
    write, _ = opened(place, "n")
    reader = run_sync(read_stream(place.client(), "n", words(place), lease=True))
    resolved(write.write([("a", 1, 1), ("a", 2, -1)]))
    resolved(write.seal(4))
    resolved(write.allow_compaction(3))
    assert read(reader, 1) == [("a", 1)]
    run_sync(reader.allow_compaction(2))
    with pytest.raises(AsOfError):
        read(reader, 1)
    assert read(reader, 2) == []
    run_sync(reader.close())
    resolved(write.allow_compaction(4))
    with pytest.raises(AsOfError):
        read(run_sync(read_stream(place.client(), "n", words(place), lease=False)), 2)


def test_a_reader_without_a_lease_writes_nothing(place):
    """Damage: an audit changes what it looks at."""
    write, _ = opened(place, "n")
    resolved(write.write([("a", 1, 1)]))
    resolved(write.seal(2))
    blob, consensus = ReadingBlob(place.blob), ReadingConsensus(place.consensus)
    process = PersistClient(place.clock, CountingIds("reader"), blob, consensus)
    assert read(run_sync(read_stream(process, "n", words(place), lease=False)), 1) == [("a", 1)]


def test_what_nobody_created_is_not_read_and_nothing_is_read_as_something_else(place):
    """Damage: a mistyped name is an empty collection; or bytes are decoded by a codec that never wrote them."""
    assert run_sync(read_stream(place.client(), "n", words(place), lease=False)) is None
    opened(place, "n")
    with pytest.raises(InvalidUsage, match="cannot be opened as"):
        run_sync(read_stream(place.client(), "n", ValueCodec(place.blob, "other", str.encode, str), lease=False))


@pytest.mark.parametrize("codec", [words, rows])
def test_what_is_there_less_than_no_times_is_an_error_at_that_time(place, codec):
    """Damage: a mistake of whoever writes is read as data; or it spoils times at which all is well."""
    value, other = ("tea", "coffee") if codec is words else as_rows("tea", "coffee")
    write, reader = opened(place, "n", codec=codec)
    resolved(write.write([(other, 1, 1), (value, 2, -1), (value, 3, 1)]))
    resolved(write.seal(4))
    with pytest.raises(CollectionError, match="at time 2 there are -1 of .*tea"):
        read(reader, 2)
    assert [count for _, count in read(reader, 1)] == [count for _, count in read(reader, 3)] == [1]


def test_a_listener_is_told_each_update_once(place):
    """Damage: who follows a stream misses or doubles what comes."""
    write, reader = opened(place, "n")
    resolved(write.write([("a", 1, 1), ("b", 2, 1), ("c", 3, 1)]))

    async def follow():
        told, listen = [], reader.listen(0)
        for upper in (2, 4):
            await write.seal(upper)
            updates, frontier = await anext(listen)
            told.append(([u.value for u in updates], frontier.at))
        await listen.aclose()
        return told

    assert run_sync(follow()) == [(["a"], 2), (["b", "c"], 4)]


# ---- what calls are refused


def test_a_collection_is_opened_as_what_it_was_created(place):
    """Damage: bytes are read by another codec than wrote them."""
    opened(place, "n")
    with pytest.raises(InvalidUsage, match="'n' holds"):
        opened(place, "n", codec=rows)


def test_a_stream_is_not_appended_to_and_an_appended_shard_is_no_stream(place):
    """Damage: an append passes what is unsealed, which is then in no read for ever."""
    write, _ = opened(place, "n")
    with pytest.raises(InvalidUsage, match="owner 'stream'"):
        place.writer(write._writer.shard, schema="")
    plain = place.writer("plain")
    with pytest.raises(InvalidUsage, match="cannot be opened"):
        run_sync(place.client().writer(plain.shard, 1, schema=place.schema.ddl, owner="stream"))


def test_an_older_epoch_is_fenced_and_does_nothing(place):
    """Damage: an environment that was succeeded goes on writing."""
    old, _ = opened(place, "n")
    new, reader = opened(place, "n", process=client(place, epoch=2))
    calls = [old.write([("a", 1, 1)]), old.seal(2)]
    for call in calls:
        with pytest.raises(FencedError, match="epoch 2"):
            resolved(call)
    resolved(new.seal(3))
    assert read(reader, 2) == []


def test_a_dropped_collection_is_closed_and_its_name_means_another_one(place):
    """Damage: who has the old one open writes into the new one, or into nothing without being told."""
    process = client(place)
    old, reader = opened(place, "n", process=process)
    resolved(old.write([("a", 1, 1)]))
    assert run_sync(process.drop("n"))
    assert not run_sync(process.drop("n"))
    with pytest.raises(InvalidUsage, match=r"sealed up to \[\]"):
        resolved(old.write([("b", 2, 1)]))
    with pytest.raises(AsOfError):
        read(reader, 5)
    new, reader = opened(place, "n", codec=rows)
    resolved(new.seal(3))
    assert read(reader, 2) == []


def test_who_drops_slowly_does_not_drop_what_was_created_anew(place, monkeypatch):
    """Damage: a living collection loses its name, and with it all that was acknowledged."""
    opened(place, "n")
    slow, new = client(place), []
    drop_name = slow._names.drop

    async def overtaken(*given):
        await client(place).drop("n")
        write, reader = await client(place).create_or_load("n", words(place))
        write.write([("a", 1, 1)])
        await write.seal(2)
        new.append(reader)
        await drop_name(*given)

    monkeypatch.setattr(slow._names, "drop", overtaken)
    assert run_sync(slow.drop("n"))
    _, reader = opened(place, "n")
    assert read(reader, 1) == read(new[0], 1) == [("a", 1)]


def collecting(place, grace_ms=0):
    """A process that collects garbage."""
    return place.client(place.engine, grace_ms=grace_ms)


def parts_of(place):
    """The parts that are there."""
    return [key for key in place.objects if "/parts/" in key]


@pytest.mark.parametrize("grace_ms", [0, 1_000])
def test_what_is_dropped_is_deleted(place, grace_ms):
    """Damage: a location keeps for ever all that was ever dropped in it."""
    one = collecting(place, grace_ms)
    process = StreamClient(one, 1)
    write, _ = opened(place, "n", process=process)
    for n in range(3):
        write.write([("x" * 20_000, n, 1)])
    resolved(write.seal(2))
    assert len(parts_of(place)) >= 2
    run_sync(process.drop("n"))
    shard = write._writer.shard
    if grace_ms:
        assert parts_of(place), "who holds nothing may still be reading"
        assert not run_sync(gc(one, shard)).parts
        place.clock.now += grace_ms
        assert run_sync(gc(one, shard)).parts
    assert parts_of(place) == []
    assert len(place.versions[shard]) == 3, "and what older versions held inline"
    assert run_sync(gc(one, shard)).nothing


async def gc(process, shard):
    """Collect as `strandline gc --apply` does; what it would do is what it does."""
    expected = await (await process.collector(shard)).preview()
    done = await (await process.collector(shard)).collect()
    assert (expected.parts, expected.doomed) == (done.parts, done.doomed)
    return done


@pytest.mark.parametrize("dies", [False, True])
def test_what_is_dropped_stays_while_a_lease_holds_it_and_no_longer(place, dies):
    """Damage: a query loses its rows in the middle; or one reader that crashed keeps them for ever."""
    one = collecting(place)
    process = StreamClient(one, 1)
    write, _ = opened(place, "n", process=process)
    write.write([("x" * 20_000, 1, 1)])
    resolved(write.seal(2))
    shard = write._writer.shard
    leased = run_sync(place.client().leased_reader(shard, words(place).schema, "n"))
    run_sync(process.drop("n"))
    assert not run_sync(gc(one, shard)).parts
    assert run_sync(words(place).read(run_sync(leased.snapshot(1)))) == [Update("x" * 20_000, 1, 1)]
    if dies:
        place.clock.now += LEASE_MS + 1
    else:
        run_sync(leased.close())
    assert run_sync(gc(one, shard)).parts == 1
    assert parts_of(place) == []
    with pytest.raises(AsOfError):
        run_sync(leased.refresh()), run_sync(leased.snapshot(1))


def test_who_does_not_collect_drops_and_deletes_nothing(place):
    """Damage: parts are deleted under readers that the collector of the location spares."""
    process = client(place)
    write, _ = opened(place, "n", process=process)
    resolved(write.write([("x" * 20_000, 1, 1)]))
    run_sync(process.drop("n"))
    assert len(parts_of(place)) == 1


def test_an_older_client_drops_nothing(place):
    """Damage: an environment that was succeeded throws away what its successor writes."""
    old = client(place)
    new, reader = opened(place, "n", process=client(place, epoch=2))
    with pytest.raises(FencedError):
        run_sync(old.drop("n"))
    resolved(new.write([("a", 1, 1)]))
    resolved(new.seal(2))
    assert read(reader, 1) == [("a", 1)]


# ---- when the store does not answer


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
def test_awaiting_a_call_of_unknown_outcome_again_tells_what_became_of_it(place, monkeypatch, late, sealed_meanwhile):
    """Damage: a client that is not told whether it wrote has no way to learn it, or learns something wrong."""
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
    """Damage: after 65 short processes nobody can write to a stream any more, for ever."""
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
    """Do it, and be cancelled before it is told."""

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


# ---- stopping


def test_stopping_finishes_what_was_called_and_refuses_what_comes(place):
    """Damage: the last writes of a process that ends in order are lost."""
    process = client(place)
    write, reader = opened(place, "n", process=process)
    calls = [write.write([("a", 1, 1)]), write.seal(2)]
    run_sync(process.stop())
    assert all(call.done for call in calls)
    assert read(reader, 1) == [("a", 1)]
    for refused in (lambda: write.write([("b", 2, 1)]), lambda: write.seal(9), process.clone):
        with pytest.raises(Stopped):
            refused()
    with pytest.raises(Stopped):
        opened(place, "m", process=process)
    run_sync(process.stop())


@pytest.mark.parametrize("leave", ["stop", "async with"])
def test_who_stops_is_told_what_was_refused_and_nobody_awaited(place, leave):
    """Damage: a program ends well, and what it wrote last is not there."""

    async def run(process, *steps):
        async with process:
            write, _ = await process.create_or_load("n", words(place))
            calls = [step(write) for step in steps]
            if leave == "stop":
                await process.stop()
        return calls

    run_sync(run(client(place), lambda write: write.seal(5)))
    late = [lambda write, n=n: write.write([(f"late {n}", n, 1)]) for n in range(3)]
    with pytest.raises(InvalidUsage, match=r"nothing is written at \[0\]") as told:
        run_sync(run(client(place), *late, lambda write: write.write([("good", 5, 1)])))
    assert told.value.__notes__ == ["3 calls that nobody awaited were refused; this is one of them"]
    old = client(place)
    write, reader = opened(place, "n", process=old)
    write.write([("late", 1, 1)])
    run_sync(old._line.drive())
    opened(place, "n", process=client(place, epoch=2))
    write.write([("lost", 6, 1)])
    with pytest.raises(FencedError, match="epoch 2"):
        run_sync(old.stop())
    run_sync(old.stop())
    resolved(opened(place, "n", process=client(place, epoch=2))[0].seal(7))
    assert read(reader, 6) == [("good", 1)]


def test_who_stops_is_not_told_again_what_somebody_awaited(place):
    """Damage: a program that handles its refusals cannot end well."""
    process = client(place)
    write, _ = opened(place, "n", process=process)
    write.seal(5)
    with pytest.raises(InvalidUsage):
        resolved(write.write([("late", 1, 1)]))
    run_sync(process.close())


def test_an_error_in_the_block_is_not_replaced_by_what_leaving_it_tells(place):
    """Damage: the error that ended a program is hidden behind another."""

    async def run():
        async with client(place) as process:
            write, _ = await process.create_or_load("n", words(place))
            write.seal(5), write.write([("late", 1, 1)])
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as told:
        run_sync(run())
    assert "could not be closed in order: shard" in told.value.__notes__[0]


def test_only_the_newest_refusals_are_kept_for_who_stops(place):
    """Damage: a program that knows that some of its writes are late grows for ever, or never learns it is fenced."""
    process = client(place)
    write, _ = opened(place, "n", process=process)
    write.seal(5)
    for _ in range(UNTOLD_MAX + 9):
        write.write([("late", 1, 1)])
    run_sync(process._line.drive())
    assert len(process._line._untold) == UNTOLD_MAX
    opened(place, "n", process=client(place, epoch=2))
    write.write([("lost", 6, 1)])
    with pytest.raises(FencedError):
        run_sync(process.stop())


def test_the_last_clone_to_leave_stops_and_all_clones_share_one_order(place):
    """Damage: one user of a client stops the others, or nobody stops it."""
    one = client(place)
    two = one.clone()
    a, reader = opened(place, "n", process=one)
    b, _ = opened(place, "n", process=two)
    calls = [a.write([("a", 1, 1)]), b.seal(2), a.write([("b", 2, 1)])]
    run_sync(one.close())
    run_sync(one.close())
    assert not calls[0].done, "a clone is still there"
    run_sync(two.close())
    assert [call.refusal for call in calls] == [None] * 3
    assert read(reader, 1) == [("a", 1)]
    with pytest.raises(Stopped):
        a.seal(3)


# ---- several who await, scheduled by the simulator

ACTORS = 4


def together(seed, fates):
    """Actors of one process share a client and await calls at once; return what each was told, and what is there."""
    simulation = Simulation(Seeded(random.Random(seed)), fates, calm_after=400)
    blob, consensus, ids = MemoryBlob(), MemoryConsensus(), SimIds()
    codec = ValueCodec(SimBlob(blob), "text", str.encode, bytes.decode)
    process = StreamClient(PersistClient(SimClock(simulation), ids, SimBlob(blob), SimConsensus(consensus)), 1)
    opening = Simulation(Listed([]))
    told = []

    async def open_it():
        told.append(await process.create_or_load("n", codec))

    opening.spawn("open", lambda _: open_it())
    opening.drive()
    write, _ = told.pop()

    async def act(name):
        for n in range(3):
            soon = write.upper.at  # which another actor may seal first
            calls = [write.write([(f"{name}.{n}", 500 if n else soon, 1)]), write.seal(soon + 1)]
            for call in calls[:: 1 if n % 2 else -1]:
                while not call.done:
                    with suppress(Indeterminate, Unavailable, InvalidUsage):
                        await call
            if calls[0].refusal is None:
                told.append(f"{name}.{n}")

    for number in range(ACTORS):
        simulation.spawn(f"a{number}", lambda crashes, name=f"a{number}": None if crashes else act(name))
    simulation.drive()
    after = StreamClient(PersistClient(HandClock(), CountingIds("after"), blob, consensus), 2)
    last, reader = run_sync(after.create_or_load("n", ValueCodec(blob, "text", str.encode, bytes.decode)))
    resolved(last.seal(999))
    return told, read(reader, 998)


@pytest.mark.parametrize("seed", range(60))
def test_all_who_await_at_once_are_told_and_when_one_is_gone_the_next_drives(seed):
    """Damage: of two who wait one waits for ever; one that is cancelled takes others' writes along, or repeats them."""
    fates = (Fate.DONE,) if seed % 3 == 0 else tuple(Fate)
    told, there = together(seed, fates)
    values = [value for value, diff in there for _ in range(diff)]
    assert len(set(values)) == len(values), "nothing is done twice"
    assert set(told) <= set(values), "what was acknowledged is there"
    if seed % 3 == 0:
        assert sorted(told) == values
        assert len(told) > 2 * ACTORS, "all got something done"


def test_who_is_cancelled_while_it_drives_leaves_the_line_to_the_next(place):
    """Damage: a request that is cancelled blocks all others for ever."""
    write, reader = opened(place, "n")
    first, second = write.write([("a", 1, 1)]), write.seal(2)

    place.consensus.compare_and_set = lambda request: IoPoint("a store that takes its time", (), lambda: None)
    driver = first.__await__()
    next(driver)
    driver.close()
    del place.consensus.compare_and_set
    resolved(second)
    assert read(reader, 1) == [("a", 1)]


def test_updates_are_tuples_or_updates(place):
    """Damage: a program that imports less is refused."""
    write, reader = opened(place, "n")
    write.write([Update("a", 1), ("b", 1, 2)])
    resolved(write.seal(2))
    assert read(reader, 1) == [("a", 1), ("b", 2)]
