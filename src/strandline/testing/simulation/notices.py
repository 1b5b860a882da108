"""Notices between the processes of a simulation, which the run may lose, repeat, damage, delay and reorder.

Code that uses notices must give the same answers with this as without notices; notices may only reduce latency.
"""

from __future__ import annotations

from typing import Final

import msgspec

from strandline.persist.notices.notify import Notice, Subscription
from strandline.testing.simulation.choices import FAULT
from strandline.testing.simulation.kernel import WAIT, IoPoint, Simulation

HOP_MS: Final = 2
"""The latency of a notice that is not late."""
LOOKS: Final = 8
"""How often a wait polls for a notice; the kernel has no other way to wake it."""


class SimNotices:
    """Carries notices from each `SimNotifier` to all subscriptions."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.listening: list[SimSubscription] = []
        self.carried = 0
        self.heard = 0

    def publish(self, notice: Notice) -> None:
        """Carry a notice to the subscribers of its shard; each may lose it, or get it damaged, independently."""
        for subscription in self.listening:
            if subscription.shard == notice.shard:
                self.carried += 1
                match self.simulation.choose(FAULT + "notice.publish", 4):
                    case 0:
                        subscription.flying.append(notice)
                    case 1:
                        pass  # lost
                    case 2:
                        subscription.flying.append(msgspec.structs.replace(notice, diff=_damaged(notice.diff)))
                    case _:
                        subscription.flying.append(msgspec.structs.replace(notice, diff=b""))

    async def subscribe(self, shard: str) -> Subscription:
        """Listen for the versions of ``shard``."""
        return SimSubscription(self, shard)


class SimSubscription:
    """The notices of one shard for one reader."""

    def __init__(self, notices: SimNotices, shard: str) -> None:
        self.shard = shard
        self.flying: list[Notice] = []
        self._notices = notices
        notices.listening.append(self)

    async def next(self, timeout_s: float) -> Notice | None:
        """Wait, and return any notice in flight, or None; it may stay in flight and come again."""
        late = self._notices.simulation.choose(FAULT + "notice.late", 2)
        for _ in range(1 if late else LOOKS):
            waits = HOP_MS if self.flying and not late else round(timeout_s * 1000) // (1 if late else LOOKS)
            notice = await IoPoint("notice.next", (self.shard,), self._take, WAIT, delay_ms=waits)
            if notice is not None:
                return notice
        return None

    def close(self) -> None:
        """Stop listening."""
        self._notices.listening.remove(self)

    def _take(self) -> Notice | None:
        if not self.flying:
            return None
        choose = self._notices.simulation.choose
        at = choose(FAULT + "notice.order", len(self.flying))
        again = choose(FAULT + "notice.again", 2)
        self._notices.heard += 1
        return self.flying[at] if again else self.flying.pop(at)


def _damaged(diff: bytes) -> bytes:
    return diff[:-1] + bytes([diff[-1] ^ 1]) if diff else diff
