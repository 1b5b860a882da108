"""Problems: what stands in the way of an environment's items, kept where whoever asks can read it.

Only the process that writes meets them.  Others, and whoever comes when it has ended, read what it told last, in a
register of the location.  They are for people: nothing is decided by them, so a store that takes no note stops nothing.

Source: design page "environment" (`status`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from strandline.errors import StoreError, Unavailable
from strandline.persist.register import Register

KEY: Final = "problems"


class Board:
    """The problems of a location, by the name of what has them."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._told: dict[str, str] | None = None

    async def read(self) -> dict[str, str]:
        """Return what was told last."""
        return _decode(await self._register.read())

    async def tell(self, problems: Mapping[str, str]) -> None:
        """Let others read ``problems``; whoever tells the same as before writes nothing."""
        wanted = dict(problems)
        if wanted == self._told:
            return
        with suppress(StoreError, Unavailable):  # it is told again with the next tick
            await self._register.update(lambda body: None if _decode(body) == wanted else msgspec.json.encode(wanted))
            self._told = wanted


def _decode(body: bytes | None) -> dict[str, str]:
    return {} if body is None else msgspec.json.decode(body, type=dict[str, str])
