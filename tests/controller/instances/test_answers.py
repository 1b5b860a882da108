"""What a replica answers to a peek is compared with what it may be; what does not fit counts as no answer."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from tests.controller.instances.apart import Site, site
from tests.controller.instances.test_peeks import BY_GROUP, KEY, Peer, asked, come, ended, never, opened, right

from strandline.controller.asking import peeking
from strandline.errors import ProtocolViolation
from strandline.instance.indexes.keys import packed, unpacked
from strandline.instance.protocol.messages import Peek
from strandline.persist.shard.patience import Deadline
from strandline.store.clock import SystemClock

KEPT = pa.schema([("a", pa.int32()), ("b", pa.string())])
ROW = pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]})


def damaged() -> pa.Table:
    """Return a table whose text is no text, which only a full validation finds."""
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0])), pa.py_buffer(b"\xff")]
    )
    return pa.Table.from_arrays([ROW["a"], text], schema=KEPT)


@pytest.mark.parametrize(
    "rows",
    [
        ROW.select(["a"]),
        ROW.select(["b", "a"]),
        ROW.append_column("c", pa.array([1])),
        ROW.rename_columns(["a", "c"]),
        pa.table({"a": [1], "b": ["x"]}),
        damaged(),
    ],
    ids=["fewer", "order", "more", "name", "type", "text"],
)
def test_rows_of_another_form_are_refused(rows: pa.Table) -> None:
    """Damage: columns of another collection, or bytes that end the process that reads them, are handed on."""
    assert unpacked(packed(ROW), KEPT).equals(ROW)
    with pytest.raises(ProtocolViolation):
        unpacked(packed(rows), KEPT)


def _scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by one with each peek that reads the collection."""
    counted: list[int] = []
    scan = peeking.scanned

    async def scanned(*given: object) -> pa.Table:
        counted.append(1)
        return await scan(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(peeking, "scanned", scanned)
    monkeypatch.setattr(peeking, "ANSWER_S", 60.0)  # after that the controller reads the rows itself
    return counted


def test_an_answer_that_does_not_fit_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a replica of another version, or a stranger in its place, answers with other columns, and is believed."""
    scans = _scans(monkeypatch)

    async def body(at: Site) -> None:
        await at.execute(BY_GROUP)
        time = await at.tick(2)
        wanted = await right(at.core, "totals", time, grp=1)
        assert await asked(at.core, "totals", {"grp": 1}, as_of=time) == wanted
        assert not scans, "an answer that fits is taken"
        running = at.core.require_writing().running

        async def answer(*_: object) -> bytes:
            return packed(pa.table({"grp": [1], "other": ["x"]}))

        monkeypatch.setattr(running, "peek", answer)
        assert await asked(at.core, "totals", {"grp": 1}, as_of=time) == wanted
        assert scans

    async def inside() -> None:
        async with asyncio.timeout(150), site("a") as at:
            await body(at)

    asyncio.run(inside())


def test_a_replica_that_is_no_longer_trusted_answers_nothing() -> None:
    """Damage: rows of a replica that was found to be wrong are handed on, as it answers a moment later."""

    async def body() -> None:
        async with asyncio.timeout(150):
            replicas, peers = await opened(a=never, b=never)
            waiting = asyncio.get_running_loop().create_task(
                replicas.peek(Peek("u", "i", KEY, 3), Deadline(SystemClock(), 120))
            )
            await come(lambda: all(peer.peeks for peer in peers.values()))
            replicas.bar("a", "it is wrong")
            wrong, sound = pa.table({"a": [7]}), pa.table({"a": [1]})
            await _answer(peers["a"], wrong)
            await SystemClock().sleep(0.05)
            assert not waiting.done()
            await _answer(peers["b"], sound)
            rows = await waiting
            assert rows is not None
            assert unpacked(rows).equals(sound)
            await ended(replicas, peers)

    asyncio.run(body())


async def _answer(peer: Peer, rows: pa.Table) -> None:
    await peer.answer(peer.peeks[0], rows)
