"""Problems: what stands in the way of each item, by its name.  One item's failure is its own, and stops no other.

Source: design page "environment" (`status`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from strandline.errors import FencedError, reason


class Problems(dict[str, str]):
    """What stands in the way of each item; an item that goes on is not in it."""

    def note(self, name: str, problem: str) -> None:
        """Take note of the ``problem`` of an item; empty: it has none."""
        if problem:
            self[name] = problem
        else:
            self.pop(name, None)

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Make what fails inside the problem of the item ``name`` alone, a bug of ours included, fencing excepted."""
        try:
            yield
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - one item's failure never stops another
            self.note(name, reason(error))
