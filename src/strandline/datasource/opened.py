"""A location opened by a process of Spark's: its stores, its catalog, and handles of its collections.

No JVM of ours runs there.  What such a process writes are holds: a frame's lease, a stream's hold.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from strandline.controller.location.catalog import KEY, Catalog, CatalogStore
from strandline.controller.location.items import Collected
from strandline.controller.readers import leased, plain
from strandline.datasource.options import Place
from strandline.datasource.rows.planning import HereReader
from strandline.errors import ConfigError
from strandline.instance.instance import unopened
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.register import Register
from strandline.wiring.loop import LoopThread
from strandline.wiring.stores import Stores, stores

T = TypeVar("T")
EPOCH: Final = 1
"""Of every hold of a stream: its name is in one checkpoint alone, so every reader of that checkpoint may move it."""


@dataclass(frozen=True, slots=True)
class Door:
    """An open location, for plain calls."""

    stores: Stores
    client: PersistClient
    _loop: LoopThread

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Return what ``call`` returns, or raise what it raises."""
        return self._loop.run(call)

    @property
    def counting(self) -> HereReader:
        """What counts errors."""
        return HereReader(self.stores.parts)

    async def catalog(self) -> Catalog:
        """Return the newest catalog.  Raises `ConfigError` if no environment was ever opened there."""
        have = self.stores
        catalog = await CatalogStore(Register(KEY, have.clock, have.ids, have.consensus)).read()
        if not catalog.epoch:
            raise ConfigError(f"nothing was stored at location {have.location!r} yet; open it for writing to make one")
        return catalog

    async def leased(self, item: Collected, lease: str) -> ReadHandle:
        """Return a handle under ``lease``, which may be another process's.  Raises `Unavailable`."""
        return _there(await leased(self.client, item, item.keep_history or "", lease), item)

    async def plain(self, item: Collected) -> ReadHandle:
        """Return a handle that holds nothing.  Raises `Unavailable`."""
        return _there(await plain(self.client, item, item.keep_history or ""), item)


@contextmanager
def opened(place: Place) -> Iterator[Door]:
    """Open a location that another process writes.

    Raises `ConfigError`, one sentence: it is not there, or cannot be used; `Unavailable`: a store does not answer.
    """
    with ExitStack() as opened:
        have = stores(place.location, place.consensus, dict(place.storage), opened)
        loop = LoopThread()
        opened.callback(loop.stop)
        yield Door(have, PersistClient(have.clock, have.ids, have.blob, have.consensus, grace_ms=None), loop)


def _there(handle: ReadHandle | None, item: Collected) -> ReadHandle:
    if handle is None:
        raise unopened(item.name)
    return handle
