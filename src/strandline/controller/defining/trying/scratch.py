"""Scratch: a copy of a catalog in memory, on which definitions are made and nothing is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandline.controller.assembly import Assembly
from strandline.controller.commanded import Plans, runs_in
from strandline.controller.core import Core
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.config import Config
from strandline.controller.location.items import Item
from strandline.controller.writing import Writing
from strandline.instance.problems import Problems
from strandline.persist.client import PersistClient


class Scratch:
    """A `Ground` over a copy of the catalog that ``core`` has seen last; it changes nothing of the environment."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.before = core.catalog
        self.catalogs = _Copy(core.catalog)
        self.writing = _Unopened(core, self.catalogs)
        self.problems = Problems(core.assembly.clock)

    @property
    def assembly(self) -> Assembly:
        """See `Ground`."""
        return self._core.assembly

    @property
    def client(self) -> PersistClient:
        """See `Ground`."""
        return self._core.client

    @property
    def config(self) -> Config:
        """See `Ground`."""
        return self._core.config

    @property
    def catalog(self) -> Catalog:
        """The copy as it is now."""
        return self.catalogs.current

    def require_writing(self) -> _Unopened:
        """See `Ground`: a trial needs no environment that writes."""
        return self.writing


class _Copy:
    """`Catalogs` in memory."""

    def __init__(self, catalog: Catalog) -> None:
        self.current = catalog

    async def change(self, epoch: int, edit: Callable[[Catalog], Catalog]) -> Catalog:
        """See `Catalogs`."""
        assert epoch == self.current.epoch, "a trial is of one generation"
        self.current = edit(self.current)
        return self.current


class _Unopened:
    """`Opening` that opens nothing: what is asked of it is answered as the environment would."""

    def __init__(self, core: Core, catalogs: _Copy) -> None:
        self._core = core
        self._catalogs = catalogs
        self.epoch = catalogs.current.epoch
        self.plans = Plans() if core.writing is None else core.writing.plans.copy()

    @property
    def _writing(self) -> Writing | None:
        return self._core.writing

    @property
    def location(self) -> str:
        """See `Opening`."""
        return "" if self._writing is None else self._writing.location

    def now(self) -> int:
        """See `Opening`."""
        return self._core.assembly.clock.now_ms() if self._writing is None else self._writing.now()

    def created(self, imports: Iterable[str]) -> int | None:
        """See `Opening`: what is not there yet can be read at no time."""
        read, there = list(imports), self._core.catalog.items
        known = all(there.get(each) == self._catalogs.current.items.get(each) for each in read)
        return self._writing.created(read) if known and self._writing is not None else None

    def reads_under(self, name: str) -> int | None:
        """See `Opening`."""
        return None if self._writing is None else self._writing.reads_under(name)

    async def start(self, item: Item) -> None:
        """See `Opening`: it is open once the environment has this catalog."""
        assert runs_in(item) in self._catalogs.current.items, "only what the catalog has is opened"

    async def stop(self, item: Item) -> None:
        """See `Opening`: it goes on until the environment has this catalog."""

    async def place(self) -> None:
        """See `stop`."""

    async def reconcile(self) -> None:
        """See `stop`."""
