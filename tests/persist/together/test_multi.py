"""One write to several collections is atomic, on every Consensus."""

from __future__ import annotations

import numpy as np
import pytest

from strandline.errors import AsOfError, FencedError, Indeterminate, InvalidUsage
from strandline.frontier import Frontier
from strandline.persist.handles.updates import RowCodec, ValueCodec
from strandline.persist.shard import machine
from strandline.persist.shard.trace import FAN
from strandline.persist.together.multi import open_multi
from strandline.persist.together.stream import StreamClient
from strandline.persist.together.transactions import MULTI, TOKEN_LIFE_MS, Transactions, open_transactions
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync


def codecs(place):
    """One collection of text, one of rows."""
    return {
        "words": ValueCodec(place.blob, "text", str.encode, bytes.decode),
        "table": RowCodec(place.engine, place.schema),
    }


def multi(place, epoch=1, only=("words", "table")):
    """Open both in a process of its own."""
    return run_sync(open_multi(place.client(), epoch, {n: c for n, c in codecs(place).items() if n in only}))


def write(handle, word, at=0, **options):
    """Write one word to each."""
    changes = {name: [(word if name == "words" else {"k": word}, 1)] for name in handle._members}
    return run_sync(handle.write(changes, at=at, **options))


def read(handle, as_of):
    """The contents of both, without waiting."""
    words, table = (run_sync(handle.reader(name).snapshot(as_of, timeout_s=0)) for name in ("words", "table"))
    return sorted((u.value, u.diff) for u in words), sorted((u.value["k"], u.diff) for u in table)


def test_a_write_is_whole_and_sealed_in_all_collections_when_it_returns(place):
    """Damage: a reader sees an order without its customer."""
    handle = multi(place)
    time = write(handle, "a", at=7)
    assert (time, handle.upper) == (7, Frontier(8))
    assert read(handle, 7) == ([("a", 1)], [("a", 1)])
    assert read(handle, 6) == ([], [])
    later = write(handle, "b")
    assert later == 8, "the time asked for is the earliest"
    assert read(multi(place), 8) == ([("a", 1), ("b", 1)],) * 2


def test_sealing_seals_all_of_them(place):
    """Damage: a collection without writes holds back readers of both for ever."""
    handle = multi(place)
    run_sync(handle.seal(20))
    assert read(handle, 19) == ([], [])
    with pytest.raises(AsOfError):
        read(handle, 20)
    run_sync(handle.seal(0))
    assert handle.upper == Frontier(20)
    assert write(handle, "a", at=3) == 20


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.DONE])
@pytest.mark.parametrize("call", range(4))
def test_a_write_happens_once_and_whole_whatever_becomes_of_a_call(place, outcome, call):
    """Damage: one collection has the write and the other has not, or has it twice."""
    handle = multi(place)
    place.plan.extend([Outcome.DONE] * call + [outcome])
    time = write(handle, "a", at=5)
    run_sync(place.consensus.land())
    run_sync(handle.seal(time + 3))
    assert read(handle, time + 2) == ([("a", 1)], [("a", 1)])


@pytest.mark.parametrize("late", [False, True])
def test_a_write_of_unknown_outcome_is_asked_for_again_by_its_token(place, monkeypatch, late):
    """Damage: the retry of a program is a second write."""
    handle = multi(place)
    monkeypatch.setattr(machine, "CAS_RETRIES_MAX", 2)
    place.plan.extend([Outcome.LOST, Outcome.LATE if late else Outcome.LOST])
    with pytest.raises(Indeterminate):
        write(handle, "a", at=5, token="one")
    run_sync(place.consensus.land())
    again = multi(place)
    time = write(again, "a", at=9, token="one")
    assert time == (5 if late else 9)
    assert read(again, 9 if late is False else 5) == ([("a", 1)], [("a", 1)])


def test_two_concurrent_writes_are_at_different_times_and_leave_nothing_behind(place):
    """Damage: under contention a write is lost, or its refused parts fill the disk."""
    one, two = multi(place), multi(place)
    place.plan.append(Outcome.LOST)
    place.clock.meanwhile.append(lambda: two.write({"words": [("b", 1)]}, at=5))
    assert write(one, "a" * 20_000, at=5) == 6
    assert read(one, 6) == ([("a" * 20_000, 1), ("b", 1)], [("a" * 20_000, 1)])
    named = {p.key for s in (one._members[n].writer.state for n in one._members) for p in s.parts if hasattr(p, "key")}
    assert {key for key in place.objects if "/parts/" in key} == named


def test_a_write_with_one_bad_value_is_refused_whole(place):
    """Damage: half of the write is stored."""
    handle = multi(place)
    for changes in ({"words": [("a", 1)], "other": []}, {"words": [("a", 1)], "table": [({"nonsense": 1}, 1)]}):
        with pytest.raises(InvalidUsage, match="other|nonsense"):
            run_sync(handle.write(changes))
    run_sync(handle.seal(5))
    assert read(handle, 4) == ([], [])


def test_an_empty_or_cancelled_write_is_a_write_of_nothing(place):
    """Damage: a program that has nothing to write to one collection cannot use the handle."""
    handle = multi(place)
    time = run_sync(handle.write({"words": [("a", 1), ("a", -1)], "table": []}))
    assert read(handle, time) == ([], [])


def test_a_stream_cannot_be_written_with_others_nor_the_other_way_round(place):
    """Damage: a stream's seal passes a committed write, which is then in no read for ever."""
    text = codecs(place)["words"]
    streams = StreamClient(place.client(), 1)
    run_sync(streams.create_or_load("words", text))
    with pytest.raises(InvalidUsage, match="owner 'stream'"):
        multi(place)
    multi(place, only=("table",))
    with pytest.raises(InvalidUsage, match="owner 'multi'"):
        run_sync(streams.create_or_load("table", codecs(place)["table"]))


def test_an_older_epoch_is_fenced(place):
    """Damage: an environment that was replaced goes on writing."""
    old = multi(place)
    new = multi(place, epoch=2)
    with pytest.raises(FencedError):
        write(old, "a")
    assert read(new, write(new, "b")) == ([("b", 1)], [("b", 1)])


@pytest.mark.parametrize(("at", "diff"), [(5.5, 1), ("5", 1), (-1, 1), (5, 1.5), (5, None)])
def test_an_invalid_time_or_diff_is_refused_and_never_committed(place, at, diff):
    """Damage: one number makes all transactions of the location unreadable, those of the environment too."""
    handle = multi(place)
    with pytest.raises(InvalidUsage, match="(time|diff) "):
        run_sync(handle.write({"words": [("a", diff)]}, at=at))
    with pytest.raises(InvalidUsage, match="time 7.5"):
        run_sync(handle.seal(7.5))
    time = write(multi(place), "b", at=np.int64(9))
    assert (type(time), read(multi(place), 9)) == (int, ([("b", 1)], [("b", 1)]))


@pytest.mark.parametrize("applier", ["itself", "an environment"])
def test_a_collection_that_is_written_often_stays_in_few_batches(place, applier):
    """Damage: the state of each collection, and so every write, open and read, grows with every write."""
    multi(place)
    handle = multi(place)
    for n in range(4 * FAN):
        with pytest.MonkeyPatch.context() as patched:
            if applier == "an environment":
                patched.setattr(handle._transactions, "apply", nothing_applied)
            write(handle, f"{n}")
        if applier == "an environment":
            run_sync(open_transactions(place.client(place.engine), 1, MULTI))
    both = multi(place)
    for name in both._members:
        assert len(both._members[name].writer.state.batches) <= 2 * FAN
    assert [len(each) for each in read(both, both.upper.at - 1)] == [4 * FAN] * 2


async def nothing_applied():
    """The writer dies before it applies."""


def test_a_write_without_a_token_is_never_too_late(place):
    """Damage: as soon as one process writes far ahead, the others' fresh writes are refused as late retries."""
    one, two = multi(place), multi(place)
    ahead = 2 * TOKEN_LIFE_MS
    assert write(one, "a", at=ahead) == ahead
    assert write(two, "b") == ahead + 1
    three = multi(place)
    place.clock.meanwhile.append(lambda: two.write({"words": [("c", 1)]}, at=2 * ahead))
    place.plan.append(Outcome.LOST)
    assert write(three, "d") == 2 * ahead + 1
    assert run_sync(three._transactions._known(three._transactions._log.state)).tokens == {}
    assert read(three, 2 * ahead + 1)[1] == [("a", 1), ("b", 1), ("d", 1)]


def test_programs_and_the_environment_have_epochs_and_times_of_their_own(place):
    """Damage: a program that writes collections together fences the environment, or moves its times far ahead."""
    tables = run_sync(open_transactions(place.client(), 3))
    handle = multi(place, epoch=7)
    write(handle, "a", at=10**15)
    assert tables.upper == run_sync(tables._log.refresh()) == Frontier(0)
    run_sync(tables.advance(20))
    assert write(multi(place, epoch=7), "b") == 10**15 + 1
    with pytest.raises(InvalidUsage, match="owner 'multi'"):
        run_sync(tables.register(handle._members["table"].writer.shard, place.schema.ddl))


def test_the_past_is_kept_until_it_is_released(place):
    """Damage: history that no reader needs is kept for ever; or history that a reader needs is merged away."""
    handle = multi(place)
    for time, word in enumerate("abc", 5):
        write(handle, word, at=time)
    assert read(multi(place), 5) == ([("a", 1)], [("a", 1)])
    run_sync(handle.allow_compaction(7))
    assert read(multi(place), 7) == ([("a", 1), ("b", 1), ("c", 1)],) * 2
    with pytest.raises(AsOfError):
        read(multi(place), 6)
    with pytest.raises(InvalidUsage, match=r"time 7\.5"):
        run_sync(handle.allow_compaction(7.5))
    new = multi(place, epoch=2)
    with pytest.raises(FencedError):
        run_sync(handle.allow_compaction(8))
    assert read(new, 7) == ([("a", 1), ("b", 1), ("c", 1)],) * 2


def parts(place, shard):
    """The objects of a shard's parts."""
    return [key for key in place.objects if key.startswith(f"{shard}/parts/")]


@pytest.mark.parametrize("dies", ["", "forget", "close_shard"])
def test_what_is_dropped_is_closed_and_deleted_and_the_others_go_on(place, monkeypatch, dies):
    """Damage: dropping one collection stops all of them; or its parts are kept for ever."""
    process = place.client(grace_ms=0)
    handle = run_sync(open_multi(process, 1, codecs(place)))
    write(handle, "a" * 20_000)
    shard = handle._members["words"].writer.shard
    assert parts(place, shard)
    with monkeypatch.context() as patched:
        if dies:
            patched.setattr(handle._transactions if dies == "forget" else process, dies, killed)
            with pytest.raises(KeyboardInterrupt):
                run_sync(handle.drop("words"))
        else:
            run_sync(handle.drop("words"))
    with pytest.raises(InvalidUsage, match="'words' is not a collection"):
        run_sync(handle.drop("words"))
    others = run_sync(open_multi(place.client(grace_ms=0), 1, {"table": codecs(place)["table"]}))
    assert parts(place, shard) == []
    time = write(others, "b")
    assert [u.value["k"][:1] for u in run_sync(others.reader("table").snapshot(time))] == ["a", "b"]
    anew = multi(place)
    assert anew._members["words"].writer.shard != shard
    assert read(anew, write(anew, "c"))[0] == [("c", 1)]


async def killed(*_given):
    """The process dies here."""
    raise KeyboardInterrupt


def test_a_handle_that_has_a_dropped_collection_open_gets_an_error_and_loses_nothing(place):
    """Damage: a write is acknowledged, but its collection is closed, so no reader ever sees it."""
    one, two = multi(place), multi(place)
    write(one, "a", at=5)
    run_sync(two.drop("words"))
    with pytest.raises(InvalidUsage, match="not registered"):
        write(one, "b")
    time = run_sync(one.write({"table": [({"k": "c"}, 1)]}))
    assert [u.value["k"] for u in run_sync(one.reader("table").snapshot(time))] == ["a", "c"]


def test_a_collection_that_is_dropped_while_it_is_opened_is_opened_anew_by_its_name(place, monkeypatch):
    """Damage: the same, for a process that opens the collection at the moment of the drop."""
    two = multi(place)
    old = two._members["words"].writer.shard
    register = Transactions.register

    async def dropped_meanwhile(self, shard, schema, **options):
        if "words" in two._members:
            await two.drop("words")
        return await register(self, shard, schema, **options)

    monkeypatch.setattr(Transactions, "register", dropped_meanwhile)
    one = multi(place)
    monkeypatch.undo()
    assert one._members["words"].writer.shard != old
    assert old not in run_sync(one._transactions.shards())
    assert read(one, write(one, "a")) == ([("a", 1)], [("a", 1)])
