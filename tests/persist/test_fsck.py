"""A check of a location finds and names every planted damage, and reports nothing else as damaged."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from strandline.frontier import Frontier
from strandline.persist.fsck import Fault, Finding, check_location, check_shard, shards_of
from strandline.persist.handles.location import Pair, agree
from strandline.persist.handles.records import Record
from strandline.persist.handles.register import Register
from strandline.persist.handles.updates import ValueCodec
from strandline.persist.shard import machine
from strandline.persist.shard.batch import BlobPart
from strandline.persist.shard.evolution import evolve
from strandline.persist.shard.trace import Merged
from strandline.persist.together.stream import StreamClient
from strandline.persist.together.transactions import LOGS, open_transactions
from strandline.persist.upkeep.collect import LEAKED_AFTER_MS
from strandline.store.protocols import Versioned
from strandline.store.seal import Kind
from strandline.testing.doubles import CountingIds
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.simulation.kernel import run_sync


def filled(place):
    """A location with a shard of rows, one of records and two registers."""
    writer = place.writer(client=place.client(rollup_every=6))
    for at in range(9):
        staged = place.stage("s", at, at + 1, [[f"k{at}", at, 1]], inline=0 if at % 2 else 1 << 14)
        run_sync(writer.compare_and_append([staged], Frontier(at), Frontier(at + 1)))
    log = run_sync(place.client().records("log", 1))
    for at, size in enumerate((3, 20_000, 5)):
        run_sync(log.append([Record(b"x" * size, at, 1)], Frontier(at), Frontier(at + 1)))
    for key, kind in (("catalog", Kind.REGISTER), ("materialization/m", Kind.CHECKPOINT)):
        register = Register(key, place.clock, CountingIds("c"), place.consensus, kind=kind)
        run_sync(register.update(lambda _: b"words"))
    return writer


def checked(place):
    """Check the location in a process of its own."""
    return run_sync(check_location(place.client(), place.engine))


def test_a_sound_location_is_called_sound(place):
    """Damage: an operator restores a sound location."""
    writer = filled(place)
    run_sync(writer._machine.commit(lambda state: evolve(state, "`k` string, `n` int")))
    pair = Pair(place.client().blob, place.consensus, "blob", "consensus")
    run_sync(agree(pair, place.clock, CountingIds("l"), writes=True))  # the location's mark is no stray
    findings = checked(place)
    assert (findings.found, findings.shards, findings.parts) == ((), 2, 12)
    assert findings.bytes > 20_000
    assert run_sync(shards_of(place.consensus)) == ["log", "s"]


def test_every_missing_object_is_found(place):
    """Damage: a part that is gone is found by the first read, months later."""
    filled(place)
    newest = {shard: place.state(shard).rollups[-1].key for shard in ("s", "log")}
    for key in sorted(place.objects):
        kept = place.objects.pop(key)
        (finding,) = (f for f in checked(place).found if key in f.what)
        needed = "/rollup/" in key and key == newest[finding.shard]
        assert finding.fault is (Fault.DAMAGED if needed else Fault.DANGLING), key
        place.objects[key] = kept
    assert checked(place).found == ()


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d + b"x", lambda d: d[:9] + bytes([d[9] ^ 4]) + d[10:]])
def test_every_damaged_object_is_found(place, damage):
    """Damage: a flipped bit is found by the first read, months later; or never."""
    filled(place)
    for key in sorted(place.objects):
        kept = place.objects[key]
        place.objects[key] = damage(kept)
        assert {f.fault for f in checked(place).found} == {Fault.DAMAGED}, key
        place.objects[key] = kept
    for shard in ("s", "log"):
        for index, version in enumerate(place.versions[shard]):
            place.versions[shard][index] = Versioned(version.seqno, damage(version.data))
            assert {f.fault for f in checked(place).harmful} == {Fault.DAMAGED}, (shard, version.seqno)
            place.versions[shard][index] = version


def test_parts_that_were_exchanged_are_found(place):
    """Damage: a misdirected write gives one shard the rows of another, and every checksum is right."""
    writer = filled(place)
    one, other = (p.key for b in writer.state.batches[1:4:2] for p in b.parts if isinstance(p, BlobPart))
    place.objects[one], place.objects[other] = place.objects[other], place.objects[one]
    assert {f.key for f in checked(place).found} == {one, other}


def test_leaks_and_strays_are_distinguished_from_damage(place):
    """Damage: a leak gives an alarm; or is never reported."""
    writer = filled(place)
    leaked = f"{writer.stage_prefix()}part"
    run_sync(place.blob.set(leaked, b"leaked"))
    run_sync(place.blob.set("nobody/parts/1-b/part", b"stray"))
    place.clock.now += LEAKED_AFTER_MS + 1
    place.append(writer, 9, 10)
    fresh = f"{writer.stage_prefix()}part"
    run_sync(place.blob.set(fresh, b"on its way"))
    findings = checked(place)
    assert findings.harmful == ()
    assert {(f.shard, f.key) for f in findings.found} == {("s", leaked), ("", "nobody/parts/1-b/part")}


@pytest.mark.parametrize("log", LOGS)
def test_the_parts_of_a_transaction_are_no_leak(place, log):
    """Damage: the rows of a committed transaction are swept before they are applied."""
    client = place.client()
    transactions = run_sync(open_transactions(client, 1, log))
    writer = run_sync(transactions.register("t", place.schema.ddl))
    staged = place.stage("t", 5, 6, [["a", 5, 1]], inline=0, prefix=writer.stage_prefix())
    run_sync(transactions.commit(5, {"t": [staged]}, token="x"))
    place.clock.now += LEAKED_AFTER_MS + 1
    run_sync(writer.admit())
    assert [f for f in checked(place).found if f.shard == "t"] == []
    (part,) = staged.parts
    run_sync(place.client().writer("t", 2, schema=place.schema.ddl, owner=log))  # advances the walltime
    assert [f for f in checked(place).found if f.shard == "t"] == []
    assert run_sync(check_shard(place.client(), "t", place.engine, held=())).found == (
        Finding(Fault.LEAKED, "t", part.key, f"{part.key} is named by nothing"),
    )


def test_a_dropped_shard_is_reported_as_sound(place):
    """Damage: every collection that was ever dropped is reported as damaged."""
    writer = filled(place)
    for client in (place.client(), place.client(place.engine, grace_ms=0)):  # closed only, and emptied
        run_sync(client.close_shard("s", writer.epoch))
        assert checked(place).harmful == ()


def test_a_state_that_breaks_a_law_is_found(place, monkeypatch):
    """Damage: a durable effect of a bug stays unnoticed."""
    writer = filled(place)
    monkeypatch.setattr(machine, "check", lambda before, after: None)
    run_sync(writer._machine.commit(lambda state: (broken(state), None)))
    assert [f.fault for f in checked(place).found] == [Fault.UNLAWFUL]


def broken(state):
    """A state with a gap in it."""
    return replace(state, batches=(*state.batches[:2], *state.batches[3:]))


# ---- codecs, transactions, and a writer that lives


@pytest.mark.parametrize("words", ["", "order v2", "`k` string"])
def test_values_are_checked_by_their_codec_even_if_its_words_look_like_columns(place, words):
    """Damage: a sound stream is reported as damaged, or the check fails, because of the codec's schema text."""
    client = place.client()
    codec = ValueCodec(client.blob, "text", str.encode, bytes.decode, words=words)
    writer, _ = run_sync(StreamClient(client, 1).create_or_load("n", codec))
    for n, size in enumerate((3, 20_000, 4)):
        call = writer.write([("x" * size, n, 1)])
    writer.seal(2)
    run_sync(settled(call))
    findings = checked(place)
    assert (findings.found, findings.parts) == ((), 3)
    other = place.client(place.engine)
    assert run_sync(run_sync(other.compactor(writer._writer.shard)).whole()) == Merged()
    assert checked(place).found == ()


async def settled(call):
    """Await a call."""
    await call


def committed(place):
    """A table, and a transaction that is committed and not applied; its part in Blob."""
    client = place.client()
    transactions = run_sync(open_transactions(client, 1))
    writer = run_sync(transactions.register("t", place.schema.ddl))
    staged = place.stage("t", 5, 6, [["a", 5, 1]], inline=0, prefix=writer.stage_prefix())
    run_sync(transactions.commit(5, {"t": [staged]}, token="x"))
    return transactions, staged.parts[0].key


def test_committed_and_unapplied_writes_are_checked_too(place):
    """Damage: an acknowledged INSERT is gone, and every check reports a sound location."""
    transactions, key = committed(place)
    assert checked(place).found == ()
    kept = place.objects.pop(key)
    assert [(f.fault, f.shard, f.key) for f in checked(place).found] == [(Fault.DANGLING, "t", key)]
    place.objects[key] = kept[:-1]
    assert [(f.fault, f.shard, f.key) for f in checked(place).found] == [(Fault.DAMAGED, "t", key)]
    place.objects[key] = kept
    run_sync(transactions.apply())
    assert checked(place).found == ()


def test_an_applied_and_compacted_write_that_is_not_tidied_is_not_reported_missing(place):
    """Damage: a sound location gives an alarm after each compaction of a table."""
    transactions, key = committed(place)
    run_sync(transactions.apply())
    compactor = run_sync(place.client(place.engine).compactor("t"))
    assert run_sync(compactor.whole()) == Merged()
    del place.objects[key]
    assert checked(place).found == ()


class Collecting:
    """A Blob that a concurrent writer changes by ``go`` right before call number ``at``."""

    def __init__(self, place, at, go):
        self.place, self.left, self.go = place, at, go

    def __getattr__(self, name):
        call = getattr(self.place.blob, name)

        async def after_all(*asked):
            self.left -= 1
            if not self.left:
                await self.go()
            return await call(*asked)

        return after_all


@pytest.mark.parametrize("merge", [False, True])
def test_parts_that_a_writer_collects_meanwhile_are_not_reported_missing(place, merge):
    """Damage: a check of a busy location gives a false alarm, and the operator restores sound data."""
    at = 0
    while True:
        at += 1
        here = type(place)()
        writer = filled(here)
        living = here.client(here.engine, grace_ms=0)

        async def collect(here=here, writer=writer, living=living):
            if merge:
                assert await (await living.compactor("s")).whole() == Merged()
            await writer.refresh()
            await writer._machine.roll_up()
            assert (await (await living.collector("s")).collect()).rollups

        client = here.client()
        client.blob = Collecting(here, at, collect)
        found = run_sync(check_location(client, ListEngine(client.blob))).found
        if client.blob.left > 0:
            break
        assert found == (), at
    assert at > 20
