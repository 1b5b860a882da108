"""What stands in the way of an environment's items, and what they wait for: published where others can read it.

Only the process that writes meets *problems* (an item does not go on) and *notices* (nothing is wrong yet, such as a
file that is still being written).  A tick publishes them at its end, and while it runs long what each item waits for.
Other processes, also later ones, read what it published last, in registers of the location.
It is for operators.  No code decides by them, so a store that fails to keep one stops nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec

from strandline.errors import StoreError, Unavailable
from strandline.persist.handles.register import Register
from strandline.problem import text_alone

PROBLEMS: Final = "problems"
CASES: Final = "cases"
"""What problems tell of, in a register of its own: processes of earlier versions read and write texts alone.

A reader takes the cases of a problem only if they tell what its text does, so those of one that is gone may stay."""
NOTICES: Final = "notices"
NOTICE_CASES: Final = "notice-cases"
"""What notices tell of, by place in their list: kept as `CASES` are, for the same reason."""
REPLICAS: Final = "replicas"
T = TypeVar("T")


class Published(Generic[T]):
    """What is published about items, by their names; ``kind`` is the type of what is published about one."""

    def __init__(self, register: Register, kind: type[T]) -> None:
        self._register = register
        # With the epoch of the environment that published it; without, as an earlier version did.
        self._decoder = msgspec.json.Decoder(tuple[int, dict[str, kind]] | dict[str, kind])  # type: ignore[valid-type]
        self._published: dict[str, T] | None = None  # what is durable for sure, published here
        self._doubtful = False  # whether a change that was sent from here may still land
        self._turns = 0

    async def read(self) -> dict[str, T]:
        """Return what was published last."""
        return self._decode(await self._register.read())[1]

    async def publish(self, found: Mapping[str, T], epoch: int, stale: Callable[[], bool] = lambda: False) -> None:
        """Let other processes read what was ``found`` under ``epoch``; publishing the same again writes nothing.

        It is not published once it is ``stale``, or a newer environment has published something.  Two coroutines may
        publish: what was published last is what is read.
        """
        wanted = dict(found)
        if wanted == self._published:
            return
        self._turns += 1
        turn, doubtful = self._turns, self._doubtful
        self._published, self._doubtful = None, True
        encoded = msgspec.json.encode((epoch, wanted), enc_hook=text_alone)

        said = False

        def change(body: bytes | None) -> bytes | None:
            nonlocal said
            known = self._decode(body)
            said = not (stale() or turn != self._turns or known[0] > epoch)
            if not said or (known == (epoch, wanted) and not doubtful):
                return None
            return encoded  # in doubt, the same again: so that what was sent before can no longer land

        with suppress(StoreError, Unavailable):  # the next tick publishes it again
            await self._register.update(change)
            if turn == self._turns:
                self._published, self._doubtful = (wanted, False) if said else (None, doubtful)

    def _decode(self, body: bytes | None) -> tuple[int, dict[str, T]]:
        found = (0, {}) if body is None else self._decoder.decode(body)
        return found if isinstance(found, tuple) else (0, found)
