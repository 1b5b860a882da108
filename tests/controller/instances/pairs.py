"""Two replicas that obey and run nothing: what is said to each of them is all there is to see."""

from __future__ import annotations

import asyncio
from functools import partial

from strandline.algebra.schema import Column, Schema
from strandline.controller.instances.replicas import Replicas
from strandline.errors import Disconnected
from strandline.instance.carriers.buffer import QueueCarrier, pair
from strandline.instance.commands import Advance, RunMaterialization
from strandline.instance.protocol.codec import decode, encode
from strandline.instance.protocol.messages import (
    Frontiers,
    Hello,
    InitializationComplete,
    Reconciled,
    Schedule,
    Welcome,
)
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.persist.shard.patience import Deadline
from strandline.store.clock import SystemClock
from strandline.wiring.loop import RunningTask

OUT = RunMaterialization(
    MaterializationSpec("m", (Binding("t", "t", ("a",), Schema((Column("a", "int"),)), backfill=0),), {}),
    "log-m",
    "endpoint",
    {},
    (),
    False,
)


class Skipping(SystemClock):
    """A clock that can be moved on."""

    ahead_ms = 0

    def now_ms(self) -> int:
        """Return the time, moved on."""
        return super().now_ms() + self.ahead_ms


class Pair:
    """Two replicas that only say that they obey, unless one is held back; and what each was told to begin."""

    def __init__(self) -> None:
        self.clock = Skipping()
        self.held: dict[str, asyncio.Event] = {}
        self.begun: list[str] = []
        self.ends: dict[str, QueueCarrier] = {}
        self.serving: list[asyncio.Task[None]] = []
        self.replicas = Replicas(
            "x", Hello(1, 1, ""), self.dial, partial(RunningTask, self.clock), self.clock, lambda: None
        )

    async def dial(self, address: str) -> QueueCarrier:
        """Connect to one."""
        ours, theirs = pair()
        self.ends[address] = theirs
        self.serving.append(asyncio.get_running_loop().create_task(self._serve(address, theirs)))
        return ours

    async def _serve(self, address: str, end: QueueCarrier) -> None:
        while True:
            try:
                frame = await end.receive(None)
            except Disconnected:
                return
            assert frame is not None
            match decode(frame):
                case Hello():
                    await end.send(encode(Welcome(f"{address}1")))
                case Schedule():
                    self.begun.append(address)
                case InitializationComplete():
                    if address in self.held:
                        await self.held[address].wait()
                    await end.send(encode(Reconciled(0, {}, 0, 0)))
                case Advance(turn=turn):
                    await end.send(encode(Frontiers(advanced=turn)))

    async def bring(self, ahead_ms: int = 0) -> None:
        """Bring all on, so much later."""
        self.clock.ahead_ms += ahead_ms
        self.replicas.aim(Advance(1))
        await self.replicas.arrive(Deadline(self.clock, 0.2))

    async def begin(self) -> None:
        """Connect to both, and have something run in one of them."""
        await self.replicas.follow({"a": "a:1", "b": "b:1"})
        await self.bring()
        self.replicas.start("m", OUT, alone=True)
        await self.bring()
        assert self.begun == ["a:1"]
        self.begun.clear()
