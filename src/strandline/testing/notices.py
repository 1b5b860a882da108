"""Notices between the processes of a simulation: lost, doubled, damaged, late, out of order, as the run chooses.

Whatever code does with notices has to give the same answers over this as over none at all; only sooner, sometimes.

Source: craft page "reliability" (F2 messages); design page "persist" (notification is unreliable by design).
"""

from __future__ import annotations

from typing import Final

import msgspec

from strandline.persist.notify import Notice, Subscription
from strandline.testing.choices import FAULT
from strandline.testing.simulation import WAIT, IoPoint, Simulation

HOP_MS: Final = 2
"""How long a notice that is not late takes."""
LOOKS: Final = 8
"""How often a wait that is not late looks for one; the kernel has no other way to be woken."""


class SimNotices:
    """What carries notices from each `SimNotifier` to the subscriptions of all."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.listening: list[SimSubscription] = []
        self.carried = 0
        self.heard = 0

    def publish(self, notice: Notice) -> None:
        """Carry a notice to whoever listens for its shard; to each of them it may be lost or damaged on its own."""
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
    """What one reader is told of one shard."""

    def __init__(self, notices: SimNotices, shard: str) -> None:
        self.shard = shard
        self.flying: list[Notice] = []
        self._notices = notices
        notices.listening.append(self)

    async def next(self, timeout_s: float) -> Notice | None:
        """Wait, and return any notice that is under way, or None; it may stay under way, to come again."""
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
