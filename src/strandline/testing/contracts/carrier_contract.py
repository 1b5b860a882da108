"""The contract of `Carrier`, as a test suite that every carrier runs.

Subclass it in a test module and give it a fixture ``open_place``: a context manager of a `Place`, entered in the event
loop of the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeAlias

import pytest

from strandline.errors import Disconnected, ProtocolViolation
from strandline.instance.protocol.carrier import FRAME_BYTES_MAX, Carrier
from strandline.store.clock import SystemClock

BIG: Final = bytes(range(256)) * 20_000
"""5 MB: more than any intermediate buffer holds."""
SOON_S: Final = 120.0
"""How long a test waits for what must happen, on a machine that does other work, too."""


class Place(Protocol):
    """Where connections are made."""

    async def connect(self) -> tuple[Carrier, Carrier]:
        """Return the ends of a new connection: a controller's and a replica's."""
        ...

    def cut(self, end: Carrier) -> None:
        """Cut the connection of ``end`` as a failure does."""
        ...


OpenPlace: TypeAlias = Callable[[], AbstractAsyncContextManager[Place]]


class CarrierContract:
    """The tests for every carrier."""

    def run(self, open_place: OpenPlace, body: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
        """Run one test's coroutine in a place of its own."""

        async def inside() -> None:
            async with open_place() as place:
                await body(place)

        asyncio.run(inside())

    def test_frames_arrive_in_order_and_each_once(self, open_place: OpenPlace) -> None:
        """Damage: a replica compacts before it creates, or creates twice."""
        frames = [b"", b"\x00", *(f"frame {number}".encode() * (number % 50) for number in range(500))]

        async def body(place: Place) -> None:
            for sender, receiver in _both_ways(await place.connect()):
                for frame in frames:
                    await sender.send(frame)
                assert [await receiver.receive(SOON_S) for _ in frames] == frames
                assert await receiver.receive(0) is None

        self.run(open_place, body)

    def test_large_frames_arrive_whole(self, open_place: OpenPlace) -> None:
        """Damage: rows of a peek are cut off, or a large command breaks the connection."""

        async def body(place: Place) -> None:
            ends = await place.connect()
            for sender, receiver in _both_ways(ends):
                for frame in (BIG, b"small", BIG[:-1]):
                    await _passes(sender, receiver, frame)
            await _passes(*ends, bytes(FRAME_BYTES_MAX))

        self.run(open_place, body)

    def test_a_frame_that_is_too_long_is_refused_and_costs_nothing_else(self, open_place: OpenPlace) -> None:
        """Damage: one mistaken command ends all that runs, or fills the memory of the other end."""

        async def body(place: Place) -> None:
            for sender, receiver in _both_ways(await place.connect()):
                with pytest.raises(ProtocolViolation, match="longer than"):
                    await sender.send(bytes(FRAME_BYTES_MAX + 1))
                await _passes(sender, receiver, b"next")

        self.run(open_place, body)

    def test_after_a_close_the_other_end_receives_what_was_sent_and_then_hears_of_it(
        self, open_place: OpenPlace
    ) -> None:
        """Damage: the reason of a refusal is lost with the connection, or an end waits for ever."""

        async def body(place: Place) -> None:
            for which in (0, 1):
                ends = await place.connect()
                closing, other = ends[which], ends[1 - which]
                for number in range(20):
                    await closing.send(b"%d" % number)
                await closing.close()
                assert [await other.receive(SOON_S) for _ in range(20)] == [b"%d" % number for number in range(20)]
                for _ in range(2):
                    with pytest.raises(Disconnected):
                        await other.receive(SOON_S)
                with pytest.raises(Disconnected):
                    await other.send(b"late")
                await other.close()

        self.run(open_place, body)

    def test_a_closed_end_sends_and_receives_nothing_more(self, open_place: OpenPlace) -> None:
        """Damage: a loop that waits for a frame outlives its connection."""

        async def body(place: Place) -> None:
            for which in (0, 1):
                end = (await place.connect())[which]
                waiting = asyncio.get_running_loop().create_task(end.receive(None))
                assert not (await asyncio.wait([waiting], timeout=0.02))[0]
                await end.close()
                await end.close()
                for call in (waiting, end.receive(None), end.send(b"late")):
                    with pytest.raises(Disconnected):
                        await call

        self.run(open_place, body)

    def test_receiving_gives_up_in_time_and_loses_no_frame(self, open_place: OpenPlace) -> None:
        """Damage: a loop that polls stands still; or a frame that comes as it gives up is lost."""

        async def body(place: Place) -> None:
            for sender, receiver in _both_ways(await place.connect()):
                assert await receiver.receive(0) is None
                assert await receiver.receive(0.01) is None
                waiting = asyncio.get_running_loop().create_task(receiver.receive(None))
                await asyncio.wait([waiting], timeout=0.01)
                waiting.cancel()
                await asyncio.wait([waiting])
                sending = asyncio.get_running_loop().create_task(_send_slowly(sender, 50))
                received: list[bytes] = []
                while len(received) < 50:
                    frame = await receiver.receive(0.001)
                    received += [] if frame is None else [frame]
                assert received == [b"%d" % number for number in range(50)]
                await sending

        self.run(open_place, body)

    def test_both_ends_send_many_frames_at_once(self, open_place: OpenPlace) -> None:
        """Damage: each end waits for the other one to receive."""

        async def body(place: Place) -> None:
            ends = await place.connect()
            frames = [b"%d," % number * 1000 for number in range(1000)]
            async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
                for end in ends:
                    group.create_task(_send_all(end, frames))
                    group.create_task(_expect_all(end, frames))

        self.run(open_place, body)

    def test_a_slow_receiver_holds_the_sender_back(self, open_place: OpenPlace) -> None:
        """Damage: a replica that answers faster than its controller listens fills the memory."""
        frames = [b"%03d" % number * 400_000 for number in range(100)]

        async def body(place: Place) -> None:
            for sender, receiver in _both_ways(await place.connect()):
                sending = asyncio.get_running_loop().create_task(_send_all(sender, frames))
                assert not (await asyncio.wait([sending], timeout=0.2))[0], "120 MB were sent, and none received"
                await _expect_all(receiver, frames)
                await sending

        self.run(open_place, body)

    def test_both_ends_hear_of_a_cut_and_a_new_connection_knows_nothing_of_the_old(self, open_place: OpenPlace) -> None:
        """Damage: a controller waits for a dead replica, or a replica obeys a command of the connection before."""

        async def body(place: Place) -> None:
            for which in (0, 1):
                ends = await place.connect()
                await _passes(*ends, b"before")
                for end in ends:
                    await end.send(b"under way")
                place.cut(ends[which])
                for end in ends:
                    with pytest.raises(Disconnected):
                        await _all_received(end)
                    await end.close()
                for sender, receiver in _both_ways(await place.connect()):
                    await _passes(sender, receiver, b"after")

        self.run(open_place, body)

    def test_connections_do_not_mix(self, open_place: OpenPlace) -> None:
        """Damage: a replica answers another controller than the one that asked; or one that leaves ends the others."""

        async def body(place: Place) -> None:
            one, two = await place.connect(), await place.connect()
            await one[0].send(b"one")
            await two[0].send(b"two")
            assert await two[1].receive(SOON_S) == b"two"
            assert await one[1].receive(SOON_S) == b"one"
            await one[0].close()
            await _passes(*two, b"still")

        self.run(open_place, body)


def _both_ways(ends: tuple[Carrier, Carrier]) -> tuple[tuple[Carrier, Carrier], tuple[Carrier, Carrier]]:
    return ends, (ends[1], ends[0])


async def _passes(sender: Carrier, receiver: Carrier, frame: bytes) -> None:
    sending = asyncio.get_running_loop().create_task(sender.send(frame))
    received = await receiver.receive(SOON_S)
    assert received is not None
    assert (len(received), received == frame) == (len(frame), True)
    await sending


async def _send_all(sender: Carrier, frames: list[bytes]) -> None:
    for frame in frames:
        await sender.send(frame)


async def _send_slowly(sender: Carrier, many: int) -> None:
    clock = SystemClock()
    for number in range(many):
        await sender.send(b"%d" % number)
        await clock.sleep(0.001)  # about as long as the receiver waits


async def _all_received(receiver: Carrier) -> None:
    while await receiver.receive(SOON_S) is not None:
        pass


async def _expect_all(receiver: Carrier, frames: list[bytes]) -> None:
    for frame in frames:
        assert await receiver.receive(SOON_S) == frame
