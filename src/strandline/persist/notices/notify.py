"""Notices: messages to readers that a shard has a new version, so that they need not poll.

A notice names a shard and a seqno, and carries that version's diff if it is small.  A reader at the version before
applies the diff and has the new state without asking Consensus; any other reader takes the notice as a hint to fetch.

Notices are *unreliable by design*: one may come late, twice, after its successor, or never.  So only latency may depend
on them, and every wait for one times out and polls (`persist/handles/read.py`).  They must be *true*: a version is
published only once it is known to be committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

import msgspec

from strandline.store.clock import Clock

NOTICES_WAITING_MAX: Final = 64
"""Notices kept for a subscription.  If it falls further behind, the oldest are dropped and the reader fetches."""
DIFF_BYTES_MAX: Final = 256 << 10
"""A larger diff is not carried."""


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    """Version ``seqno`` of ``shard`` is committed; ``diff`` is what Consensus holds for it, or empty: fetch it."""

    shard: str
    seqno: int
    diff: bytes


def notice_of(shard: str, seqno: int, diff: bytes) -> Notice:
    """Return the notice of a version; without its diff if that is large."""
    return Notice(shard, seqno, diff if len(diff) <= DIFF_BYTES_MAX else b"")


class Subscription(Protocol):
    """Notices of one shard, from the moment of subscribing."""

    async def next(self, timeout_s: float) -> Notice | None:
        """Return the next notice; None after ``timeout_s``, or earlier if the reader should fetch."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Notifier(Protocol):
    """Publishes and delivers notices.  Neither method fails: losing a notice is always allowed."""

    def publish(self, notice: Notice) -> None:
        """Pass the notice to all subscribers, without waiting for any of them."""
        ...

    async def subscribe(self, shard: str) -> Subscription:
        """Listen for the versions of ``shard`` that are published from now on."""
        ...


class Polling:
    """The `Notifier` that delivers nothing: each wait for a notice takes its full timeout."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def publish(self, notice: Notice) -> None:
        """Do nothing."""

    async def subscribe(self, shard: str) -> Subscription:
        """Return a subscription that only waits."""
        return _Waiting(self._clock)


class _Waiting:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def next(self, timeout_s: float) -> Notice | None:
        await self._clock.sleep(timeout_s)
        return None

    def close(self) -> None:
        """Nothing was opened."""


class LocalNotifier:
    """The `Notifier` of one process and one event loop."""

    def __init__(self) -> None:
        self._listening: dict[str, list[_Mailbox]] = {}

    def publish(self, notice: Notice) -> None:
        """Deliver the notice to the subscribers of its shard in this process."""
        for mailbox in self._listening.get(notice.shard, ()):
            mailbox.put(notice)

    async def subscribe(self, shard: str) -> Subscription:
        """Listen for the versions of ``shard`` that this process commits or receives notices of."""
        mailbox = _Mailbox(self, shard)
        self._listening.setdefault(shard, []).append(mailbox)
        return mailbox

    def wake_all(self) -> None:
        """Make all subscribers fetch: notices may have been missed."""
        for mailboxes in self._listening.values():
            for mailbox in mailboxes:
                mailbox.wake()

    def leave(self, shard: str, mailbox: _Mailbox) -> None:
        """Remove a subscriber."""
        self._listening[shard].remove(mailbox)
        if not self._listening[shard]:
            del self._listening[shard]


class _Mailbox:
    def __init__(self, notifier: LocalNotifier, shard: str) -> None:
        self._notifier = notifier
        self._shard = shard
        self._waiting: deque[Notice] = deque(maxlen=NOTICES_WAITING_MAX)
        self._woken = asyncio.Event()

    def put(self, notice: Notice) -> None:
        self._waiting.append(notice)
        self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    async def next(self, timeout_s: float) -> Notice | None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return None
        notice = self._waiting.popleft() if self._waiting else None
        if not self._waiting:
            self._woken.clear()
        return notice

    def close(self) -> None:
        self._notifier.leave(self._shard, self)
