"""Transactions that another session has got in the way of, begun anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from strandline.errors import Unavailable
from strandline.materialize.drivers.sql.connection import OutcomeUnknownError
from strandline.store.clock import Clock

T = TypeVar("T")

ATTEMPTS_MAX: Final = 8
PAUSE_FIRST_S: Final = 0.05


async def begun_anew(attempt: Callable[[], Awaitable[T]], place: object, clock: Clock, *, again: bool) -> T:
    """Return what ``attempt`` returns; if ``again``, make it up to `ATTEMPTS_MAX` times, each pause twice as long.

    ``place``: what messages call the database.  Raises as `Database.run`.
    """
    attempts, pause = ATTEMPTS_MAX if again else 1, PAUSE_FIRST_S
    while True:
        attempts -= 1
        try:
            return await attempt()
        except OutcomeUnknownError as error:
            if not again:
                raise
            if not attempts:
                raise Unavailable(f"{place} is busy with the same rows or tables: {error}") from error
        await clock.sleep(pause)
        pause *= 2
