"""The ground that definitions are made on: an environment that writes, or a scratch copy of its catalog.

Both run the same code.  So what a trial accepts the environment accepts, and what one refuses the other refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from strandline.controller.assembly import Assembly
from strandline.controller.commanded import Plans
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.config import Config
from strandline.controller.location.items import Item
from strandline.instance.problems import Problems
from strandline.persist.client import PersistClient


class Catalogs(Protocol):
    """Where a catalog is changed."""

    async def change(self, epoch: int, edit: Callable[[Catalog], Catalog]) -> Catalog:
        """Replace the catalog by ``edit`` of it; see `CatalogStore.change`."""
        ...


class Opening(Protocol):
    """What is to run for the items of a catalog; see `Writing`.  A trial runs nothing."""

    @property
    def epoch(self) -> int:
        """The generation of the environment."""
        ...

    @property
    def plans(self) -> Plans:
        """The plans of views that are known."""
        ...

    @property
    def location(self) -> str:
        """The mark of the location; empty: it has none."""
        ...

    def now(self) -> int:
        """Return the time that it is for the collections."""
        ...

    def created(self, imports: Iterable[str]) -> int | None:
        """Return the time at which a view over ``imports`` is created now; None: they can be read at no time yet."""
        ...

    def reads_under(self, name: str) -> int | None:
        """Return the epoch under which the source ``name`` is read; None: this process may not ask its upstream."""
        ...

    async def start(self, item: Item) -> None:
        """Open an item of the catalog."""
        ...

    async def stop(self, item: Item) -> None:
        """Take an item out of ticks."""
        ...

    async def place(self) -> None:
        """Have the instances of the catalog be those that items may run in."""
        ...

    async def reconcile(self) -> None:
        """Have run what the catalog holds, and nothing else."""
        ...


class Ground(Protocol):
    """What definitions are made on; see `Core`."""

    @property
    def assembly(self) -> Assembly:
        """All that touches the world."""
        ...

    @property
    def client(self) -> PersistClient:
        """What knows the shards."""
        ...

    @property
    def config(self) -> Config:
        """How the environment runs."""
        ...

    @property
    def problems(self) -> Problems:
        """Where the items' problems are noted."""
        ...

    @property
    def catalogs(self) -> Catalogs:
        """Where the catalog is changed."""
        ...

    @property
    def catalog(self) -> Catalog:
        """The catalog as it is now."""
        ...

    @property
    def writing(self) -> Opening | None:
        """What runs; None: this is an environment that only reads."""
        ...

    def require_writing(self) -> Opening:
        """Return what runs.  Raises `InvalidUsage` in an environment that only reads."""
        ...
