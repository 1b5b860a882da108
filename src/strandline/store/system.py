"""The machine's clock and random numbers; no other module of `store` reads them."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from typing import Final

from strandline.errors import InvalidUsage

ID_BYTES: Final = 16
"""128 random bits: no two of 10**15 names are equal, with a chance of 1 in 10**8 that one pair is."""

_KIND: Final = re.compile(r"[a-z][a-z0-9-]*")


class SystemClock:
    """The `Clock` of this machine."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        """Wait for about ``seconds`` without blocking other tasks."""
        await asyncio.sleep(seconds)


class SystemIds:
    """`Ids` that cannot be guessed: ``<kind>-<32 hexadecimal digits>``."""

    def fresh(self, kind: str) -> str:
        """Return a new name that starts with ``kind``."""
        if _KIND.fullmatch(kind) is None:
            raise InvalidUsage(f"{kind!r} cannot start a name: lower-case ASCII letters, digits and hyphens only")
        return f"{kind}-{secrets.token_hex(ID_BYTES)}"
