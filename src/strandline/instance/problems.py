"""Problems: what stands in the way of each item, by its name.  One item's failure is its own, and stops no other.

Beside them stands what is being done for which item, and since when: a call that does not return is no failure yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from strandline.errors import FencedError, reason
from strandline.persist.shard.patience import PATIENCE_S, Deadline
from strandline.store.clock import Clock

LONG_S: Final = 15.0
"""How long something may be under way until that is published: far less than a store that is away may be asked for."""
assert LONG_S < PATIENCE_S / 2


@dataclass(frozen=True, slots=True)
class UnderWay:
    """What is being done for an item: since when (milliseconds), and until when that is nothing to speak of."""

    since_ms: int
    short: Deadline


class Problems(dict[str, str]):
    """What stands in the way of each item; an item that goes on is not in it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.under_way: dict[str, UnderWay] = {}

    def note(self, name: str, problem: str) -> None:
        """Take note of the ``problem`` of an item; empty: it has none."""
        if problem:
            self[name] = problem
        else:
            self.pop(name, None)

    def long_since(self, begun_ms: int | None) -> int | None:
        """Return ``begun_ms`` if what was begun then takes long by now; else None, as if nothing was begun."""
        return begun_ms if begun_ms is not None and self._clock.now_ms() - begun_ms >= 1000 * LONG_S else None

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Make what fails inside the problem of the item ``name`` alone, a bug of ours included, fencing excepted."""
        try:
            with self.waiting(name):
                yield
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - one item's failure never stops another
            self.note(name, reason(error))

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Count what is inside as under way for the item ``name``."""
        mine = UnderWay(self._clock.now_ms(), Deadline(self._clock, LONG_S))
        self.under_way.setdefault(name, mine)
        try:
            yield
        finally:
            if self.under_way.get(name) is mine:  # else something else was begun for it before
                del self.under_way[name]
