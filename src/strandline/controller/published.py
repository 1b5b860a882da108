"""Boards: what stands in the way of an environment's items, and what they wait for, kept where others can read it.

Only the process that writes meets *problems* (an item does not go on) and *notices* (nothing is wrong yet, such as a
file that is still being written).  Other processes, also later ones, read what it published last, in registers of the
location.  Boards are for operators.  No code decides by them, so a store that fails to keep one stops nothing.

Source: design page "environment" (`status`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec

from strandline.errors import StoreError, Unavailable
from strandline.persist.handles.register import Register

PROBLEMS: Final = "problems"
NOTICES: Final = "notices"
T = TypeVar("T")


class Board(Generic[T]):
    """What is published about items, by their names; ``kind`` is the type of what is published about one."""

    def __init__(self, register: Register, kind: type[T]) -> None:
        self._register = register
        self._decoder = msgspec.json.Decoder(dict[str, kind])  # type: ignore[valid-type]
        self._told: dict[str, T] | None = None

    async def read(self) -> dict[str, T]:
        """Return what was published last."""
        return self._decode(await self._register.read())

    async def tell(self, found: Mapping[str, T]) -> None:
        """Let other processes read what was ``found``; publishing the same again writes nothing."""
        wanted = dict(found)
        if wanted == self._told:
            return
        with suppress(StoreError, Unavailable):  # the next tick publishes it again
            encoded = msgspec.json.encode(wanted)
            await self._register.update(lambda body: None if self._decode(body) == wanted else encoded)
            self._told = wanted

    def _decode(self, body: bytes | None) -> dict[str, T]:
        return {} if body is None else self._decoder.decode(body)
