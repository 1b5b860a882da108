"""The recovery log: fenced, sealed, and right whatever becomes of a call."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import product
from typing import Any

import pytest

from strandline.errors import CorruptionError, FencedError, Indeterminate, InvalidUsage, StoreError, Unavailable
from strandline.materialize.log import ENDED, Record, RecoveryLog, decode, encode, peek, register_of
from strandline.materialize.protocol.task import NOTHING, Extent, Progress
from strandline.persist.handles.register import KEEP_VERSIONS, Register
from strandline.store.memory import MemoryConsensus
from strandline.store.protocols import Committed, CompareAndSet, Mismatch, Versioned
from strandline.store.unreliable import AT_ONCE, UnreliableConsensus
from strandline.testing.doubles import CountingIds, HandClock

KEY = "log/m"


def at(time: int) -> Progress:
    """Return some progress."""
    checkpoint = NOTHING.advance(("t.v0",), time)
    return Progress(checkpoint, checkpoint, Extent(NOTHING, NOTHING, time))


def log(consensus: Any, owner: str = "a", epoch: int = 1) -> RecoveryLog:
    """Return a handle."""
    return RecoveryLog(HandClock(), CountingIds(owner), consensus, KEY, epoch)


def test_the_next_opener_finds_the_last_record() -> None:
    """Damage: a task loses its position."""

    async def body() -> None:
        consensus = MemoryConsensus()
        first = log(consensus)
        assert (await first.open()).progress == Progress()
        await first.write(at(5), {"a": [1, None]})
        found = await log(consensus, "b", 2).open()
        assert (found.progress, found.state, found.epoch) == (at(5), {"a": [1, None]}, 2)

    asyncio.run(body())


def test_what_was_sent_is_known_after_the_log_goes_back() -> None:
    """Damage: a commit of an earlier session comes late, and the endpoint is taken for one of another history."""

    async def body() -> None:
        consensus = MemoryConsensus()
        handle = log(consensus)
        await handle.open()
        await handle.write(at(5), {})
        await handle.write(at(2), {})
        assert (await log(consensus, "b", 2).open()).sent == 5
        handle = log(consensus, "c", 3)
        await handle.open()
        await handle.write(at(4), {})
        assert handle.record.sent == 5
        await handle.write(at(7), {})
        assert handle.record.sent == 0, "progress says it"

    asyncio.run(body())


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_older_opener_writes_nothing_more(epoch: int) -> None:
    """Damage: a zombie's checkpoint replaces its successor's (law M3)."""

    async def body() -> None:
        consensus = MemoryConsensus()
        older, newer = log(consensus), log(consensus, "b", epoch)
        await older.open()
        await newer.open()
        with pytest.raises(FencedError):
            await older.write(at(9), {})
        await newer.write(at(5), {})
        with pytest.raises(InvalidUsage):
            await older.write(at(9), {})
        assert (await log(consensus, "c", epoch).open()).progress == at(5)

    asyncio.run(body())


def test_a_lower_epoch_cannot_open() -> None:
    """Damage: an old generation that wakes up takes the task from the new one."""

    async def body() -> None:
        consensus = MemoryConsensus()
        newer = log(consensus, epoch=2)
        await newer.open()
        with pytest.raises(FencedError, match="epoch 2"):
            await log(consensus, "b", 1).open()
        await newer.write(at(5), {})

    asyncio.run(body())


def test_no_process_opens_or_writes_the_log_of_a_dropped_task() -> None:
    """Damage: a process that was cut off goes on with a task whose table another task has by now (law M3)."""

    async def body() -> None:
        consensus = MemoryConsensus()
        task = log(consensus, epoch=7)
        await task.open()
        await task.write(at(5), {})
        for _ in range(2):  # a DROP that is repeated
            assert (await log(consensus, "drop", ENDED).fence()).progress == at(5)
        with pytest.raises(FencedError):
            await task.write(at(9), {})
        with pytest.raises(FencedError, match="its materialization was dropped"):
            await log(consensus, "b", 8).open()

    asyncio.run(body())


def test_a_dropped_task_is_over_though_its_log_cannot_be_read() -> None:
    """Damage: a record that is broken keeps every materialization from being started, for ever."""

    async def body() -> None:
        consensus = MemoryConsensus()
        await register_of(KEY, HandClock(), CountingIds("x"), consensus).update(lambda _: b"broken")
        with pytest.raises(CorruptionError):
            await log(consensus).open()
        await log(consensus, "b", ENDED).fence()
        with pytest.raises(FencedError, match="is over"):
            await log(consensus, "c", 7).open()

    asyncio.run(body())


def test_a_task_that_never_ran_before_it_was_dropped_does_not_begin() -> None:
    """Damage: a process that hears of a materialization late begins it after the DROP."""

    async def body() -> None:
        consensus = MemoryConsensus()
        assert (await log(consensus, "drop", ENDED).fence()).progress == Progress()
        with pytest.raises(FencedError, match="its materialization was dropped"):
            await log(consensus, "b", 1).open()

    asyncio.run(body())


OUTCOMES = list(product(range(len(AT_ONCE)), repeat=4))


async def write_through(outcomes: tuple[int, ...]) -> None:
    """Open and write twice while calls fare as ``outcomes`` say; each record must be there once."""
    place = MemoryConsensus()
    todo = list(outcomes)
    writer = log(UnreliableConsensus(place, lambda _site, _n: todo.pop(0) if todo else 0))
    await writer.open()
    await writer.write(at(3), {})
    await writer.write(at(5), {"n": 1})
    assert (await log(place, "b").open()).progress == writer.record.progress == at(5)
    head = await place.head(KEY)
    assert head is not None
    assert head.seqno == 3, "each record is written once"


@pytest.mark.parametrize("outcomes", OUTCOMES)
def test_a_write_that_returns_is_durable_whatever_became_of_its_calls(outcomes: tuple[int, ...]) -> None:
    """Damage: a commit counts as failed, or as done, because an answer was lost."""
    asyncio.run(write_through(outcomes))


def test_a_planted_guess_at_an_unknown_outcome_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the test above accepts a log that treats a lost answer as success."""

    async def trusting(self: Register, request: CompareAndSet, token: str) -> bool:
        with suppress(StoreError):
            await self._consensus.compare_and_set(request)
        return True

    monkeypatch.setattr(Register, "_install", trusting)
    with pytest.raises((AssertionError, FencedError)):
        for outcomes in OUTCOMES:
            asyncio.run(write_through(outcomes))


class LateConsensus(MemoryConsensus):
    """The first compare-and-set after `arm` is reported unknown and takes effect just before the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False
        self.late: list[CompareAndSet] = []

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        if self.armed:
            self.armed = False
            self.late.append(request)
            raise Indeterminate("the answer is on its way")
        while self.late:
            await super().compare_and_set(self.late.pop())
        return await super().compare_and_set(request)


def test_a_write_that_lands_late_is_recognised_by_its_token() -> None:
    """Damage: the writer finds its own record, treats it as another's, and stops for ever."""

    async def body() -> None:
        consensus = LateConsensus()
        writer = log(consensus)
        await writer.open()
        consensus.armed = True
        await writer.write(at(5), {})
        await writer.write(at(7), {})
        assert (await log(consensus, "b").open()).progress == at(7)

    asyncio.run(body())


def test_a_late_write_of_a_fenced_writer_changes_nothing() -> None:
    """Damage: a zombie's last write arrives after its successor has read the log."""

    async def body() -> None:
        consensus = LateConsensus()
        older = log(consensus)
        await older.open()
        newer = log(consensus, "b", 2)
        await newer.open()
        consensus.armed = True
        with pytest.raises(FencedError):
            await older.write(at(9), {})
        await newer.write(at(5), {})
        assert (await log(consensus, "c", 2).open()).progress == at(5)

    asyncio.run(body())


def test_a_store_that_never_answers_is_unavailable() -> None:
    """Damage: the task hangs, or treats a lost answer as success."""

    async def body() -> None:
        consensus = MemoryConsensus()
        silent: list[int] = []
        writer = log(UnreliableConsensus(consensus, lambda _site, _n: silent[0] if silent else 0))
        await writer.open()
        silent.append(2)
        with pytest.raises(Unavailable, match="cannot be read"):
            await writer.write(at(5), {})
        silent.clear()
        await writer.write(at(7), {})

    asyncio.run(body())


def test_old_versions_are_forgotten() -> None:
    """Damage: the log of a task that runs for a year fills the disk."""

    async def body() -> None:
        consensus = MemoryConsensus()
        writer = log(consensus)
        await writer.open()
        for time in range(1, 3 * KEEP_VERSIONS):
            await writer.write(at(time), {})
            assert len(await consensus.scan(KEY, 0, 10 * KEEP_VERSIONS)) <= 2 * KEEP_VERSIONS

    asyncio.run(body())


def test_damaged_bytes_are_refused() -> None:
    """Damage: a task goes on from a place where it never was."""

    async def stored() -> bytes:
        consensus = MemoryConsensus()
        writer = log(consensus)
        await writer.open()
        await writer.write(at(5), {"a": 1})
        head = await consensus.head(KEY)
        assert head is not None
        return head.data

    async def read(key: str, data: bytes) -> Progress:
        consensus = MemoryConsensus()
        await consensus.compare_and_set(CompareAndSet(key, None, Versioned(1, data)))
        return (await peek(register_of(key, HandClock(), CountingIds(), consensus))).progress

    data = asyncio.run(stored())
    assert asyncio.run(read(KEY, data)) == at(5)
    damaged = [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(len(data))]
    for wrong in (*damaged, *(data[:i] for i in range(len(data)))):
        with pytest.raises(CorruptionError):
            asyncio.run(read(KEY, wrong))
    with pytest.raises(CorruptionError):
        asyncio.run(read("log/other", data))


@pytest.mark.parametrize("body", [b"", b"[]", encode(Record()).replace(b'"format":1', b'"format":9')])
def test_what_is_no_record_of_this_format_is_refused(body: bytes) -> None:
    """Damage: a newer version's log counts as empty."""
    with pytest.raises(CorruptionError, match=KEY):
        decode(KEY, body)
