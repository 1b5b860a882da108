"""A carrier inside one process: two queues, and no socket.

Contract suite: `strandline.testing.contracts.carrier_contract`.
"""

from __future__ import annotations

from typing import Final

from strandline.instance.carriers.buffer import Buffer, check_length

BUFFER_BYTES: Final = 8 << 20
"""A sender waits while the other end has not received this many bytes."""


class QueueCarrier:
    """One end of a connection inside a process; `pair` makes both."""

    def __init__(self, outgoing: Buffer, incoming: Buffer) -> None:
        self._outgoing, self._incoming = outgoing, incoming

    async def send(self, frame: bytes) -> None:
        """See `Carrier.send`.  It waits while the other end is behind by `BUFFER_BYTES`."""
        check_length(frame)
        await self._outgoing.put(frame)

    async def receive(self, seconds: float | None) -> bytes | None:
        """See `Carrier.receive`."""
        return await self._incoming.take(seconds)

    async def close(self) -> None:
        """See `Carrier.close`.  The other end still receives all that was sent."""
        self._outgoing.end("the connection was closed")
        self._incoming.end("the connection was closed")

    def cut(self) -> None:
        """Cut the connection, as a failure does: frames that were not received are lost."""
        self._outgoing.end("the connection was cut", drop=True)
        self._incoming.end("the connection was cut", drop=True)


def pair() -> tuple[QueueCarrier, QueueCarrier]:
    """Return the two ends of a new connection."""
    there, back = Buffer(BUFFER_BYTES), Buffer(BUFFER_BYTES)
    return QueueCarrier(there, back), QueueCarrier(back, there)
