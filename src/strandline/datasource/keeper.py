"""The keeper of leases: what a program's frames read stays readable for as long as the program has the frames.

A frame's lease is taken where Spark plans it, in a process that ends.  Here, where the frame itself is, the lease is
beaten while the frame lives and ended when Python collects it, or at the program's exit.  A program that is killed, or
that cannot open the location itself (a Connect client elsewhere), leaves leases that end by themselves.
"""

from __future__ import annotations

import concurrent.futures.thread as _pools  # noqa: F401  # see `Keeper`
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from pyspark.sql import DataFrame

from strandline.controller.location.items import Collected
from strandline.datasource.opened import Door, opened
from strandline.datasource.options import Asked, Place
from strandline.engine.frames import held
from strandline.errors import StrandlineError
from strandline.persist.handles.read import ReadHandle
from strandline.persist.shard.holds import BEAT_MS
from strandline.store.system import SystemClock
from strandline.wiring.loop import LoopThread

BEATS_S: Final = BEAT_MS / 1000


@dataclass(slots=True)
class _Kept:
    """The collection that a lease holds, and its item at the first beat: another one may have the name since."""

    place: Place
    collection: str
    item: Collected | None = None

    async def handle(self, door: Door, lease: str) -> ReadHandle:
        """Return a handle on the item, under ``lease``."""
        if self.item is None:
            self.item = (await door.catalog()).collection(self.collection)
        return await door.leased(self.item, lease)


class Keeper:
    """The leases of this process.  Its thread does all that waits for a store."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._views: dict[tuple[int, str], DataFrame] = {}
        self._loop = LoopThread()
        self._loop.repeat(SystemClock(), BEATS_S, self._beat)
        # Pools of threads end before `atexit`, and what their module registers when it is imported runs last of these.
        threading._register_atexit(self.close)  # type: ignore[attr-defined]  # noqa: SLF001

    def keep(self, frame: DataFrame, lease: str, asked: Asked) -> DataFrame:
        """Return ``frame`` for a caller: its lease ends when neither it nor a frame derived from it is used."""
        self._kept[lease] = _Kept(asked.place, asked.collection)
        return held.hand_out(frame, _usable, partial(self._let_go, lease))

    def keep_views(self, frames: Mapping[str, DataFrame]) -> None:
        """Hold what is behind temporary views, of which Python keeps no frame."""
        self._views.update({(id(frame.sparkSession), name): frame for name, frame in frames.items()})

    def close(self) -> None:
        """End all leases, and the thread."""

        async def end() -> None:
            for lease in list(self._kept):
                self._end(lease)

        self._loop.run(end())
        self._loop.stop()

    def _let_go(self, lease: str) -> None:
        """End a lease soon: this may be any thread, in the middle of anything."""
        self._loop.soon(partial(self._end, lease))

    def _end(self, lease: str) -> None:
        kept = self._kept.pop(lease, None)
        if kept is not None:
            with suppress(StrandlineError), opened(kept.place) as door:
                door.run(_ended(door, kept, lease))

    async def _beat(self) -> None:
        for lease, kept in list(self._kept.items()):
            with suppress(StrandlineError), opened(kept.place) as door:
                door.run(_beaten(door, kept, lease))


@cache
def keeper() -> Keeper:
    """Return this process's keeper."""
    return Keeper()


def _usable() -> None:
    """A frame of ours may always be used: what is gone is an error where it is read."""


async def _ended(door: Door, kept: _Kept, lease: str) -> None:
    await (await kept.handle(door, lease)).close()


async def _beaten(door: Door, kept: _Kept, lease: str) -> None:
    await (await kept.handle(door, lease)).beat()
