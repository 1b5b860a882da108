"""Peeks of a replica: each is answered once, beside everything else, over the connection that asked.

A peek is owed one answer: rows, an error, or that it was cancelled.  When its connection ends, nothing is owed any
longer: a controller that connects again asks again for what it still wants to know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

import pyarrow as pa

from strandline.errors import reason
from strandline.instance.indexes.keys import packed
from strandline.instance.protocol.carrier import FRAME_BYTES_MAX
from strandline.instance.protocol.messages import Peek, PeekResponse
from strandline.store.beside import Beside, Running

Find: TypeAlias = Callable[[Peek], Awaitable[pa.Table]]

ANSWER_BYTES_MAX: Final = FRAME_BYTES_MAX - (64 << 10)
"""More rows than this are not sent: the controller reads them itself."""


class Peeks:
    """The peeks of one connection that are owed an answer, by their uuids."""

    def __init__(self, beside: Beside, send: Callable[[PeekResponse], Awaitable[None]]) -> None:
        self._beside = beside
        self._send = send
        self._held: dict[str, Peek] = {}
        self._owed: dict[str, Running] = {}

    def hold(self, peek: Peek) -> None:
        """Answer ``peek`` when what runs has been compared with what is to run: see `release`."""
        self._held[peek.uuid] = peek

    def release(self, find: Find) -> None:
        """Answer the peeks that were held."""
        held, self._held = self._held, {}
        for peek in held.values():
            self.ask(peek, find)

    def ask(self, peek: Peek, find: Find) -> None:
        """Answer ``peek`` with the rows that ``find`` returns; a repetition of one that is owed is ignored."""
        if peek.uuid not in self._owed:
            self._owed[peek.uuid] = self._beside(lambda: self._answer(peek, find))

    async def cancel(self, uuids: Iterable[str]) -> None:
        """Answer those that are still owed an answer that they were cancelled."""
        for uuid in uuids:
            held, running = self._held.pop(uuid, None), self._owed.pop(uuid, None)
            if running is not None:
                await running.cancel()
            if running is not None or held is not None:
                await self._send(PeekResponse(uuid, cancelled=True))

    async def end(self) -> None:
        """Answer none: the connection has ended."""
        self._held.clear()
        while self._owed:
            _, running = self._owed.popitem()
            await running.cancel()

    async def _answer(self, peek: Peek, find: Find) -> None:
        answer = await _answered(peek, find)
        if self._owed.pop(peek.uuid, None) is not None:  # else it was cancelled, and is answered
            await self._send(answer)


async def _answered(peek: Peek, find: Find) -> PeekResponse:
    try:
        rows = packed(await find(peek))
    except Exception as error:  # noqa: BLE001 - it is the answer
        return PeekResponse(peek.uuid, error=reason(error))
    if len(rows) > ANSWER_BYTES_MAX:
        return PeekResponse(
            peek.uuid, error=f"the rows take {len(rows)} bytes, and {ANSWER_BYTES_MAX} are sent at most"
        )
    return PeekResponse(peek.uuid, rows)
