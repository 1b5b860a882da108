"""The catalog: which items a location holds, in which shards, and which process may write.

A collection's ``keep_history`` is the interval of its KEEP HISTORY FOR, as it was written; None: the environment's.

One value in one register (`persist/handles/register.py`), changed by compare-and-set, so a definition is there whole or
not at all.  ``epoch`` is the generation of the environment that writes: every change requires to be of the current one,
so an environment that was succeeded cannot change anything.

Shard ids are fresh for every item ever created: a dropped name that is used again is another collection.

Source: design pages "environment" (catalog) and "persist" (names; modes and locks).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Final, TypeAlias

import msgspec

from strandline.algebra.schema import Column, Schema
from strandline.controller.location import on_error
from strandline.errors import CorruptionError, DefinitionError, FencedError
from strandline.persist.handles.register import Register, refuse_future_json
from strandline.store.seal import refuse_future

KEY: Final = "catalog"
FORMAT: Final = 1
ERRORS_SUFFIX: Final = "_errors"
"""Behind a source's name: under which name its errors are read."""


class _Item(msgspec.Struct, frozen=True, dict=True, tag_field="kind"):
    name: str
    columns: tuple[tuple[str, str], ...]
    shard: str

    @cached_property
    def schema(self) -> Schema:
        """The item's columns."""
        return Schema(tuple(Column(name, kind) for name, kind in self.columns))

    @property
    def shards(self) -> tuple[str, ...]:
        """All shards that are the item's: its own, and those that it keeps besides."""
        return (self.shard,)


class Table(_Item, frozen=True, tag="table"):
    """A collection written by INSERT, UPDATE and DELETE."""

    keep_history: str | None = None


class Source(_Item, frozen=True, tag="source"):
    """A collection fed from outside.  ``remap`` and ``progress`` are the reader's own shards."""

    connector: str
    options: dict[str, str]
    remap: str
    progress: str
    keep_history: str | None = None

    @property
    def forgiven(self) -> bool:
        """Whether its errors keep nothing from being read."""
        return on_error.continues(self.options)

    @property
    def shards(self) -> tuple[str, ...]:
        """Its own, and its reader's."""
        return (self.shard, self.remap, self.progress)


class View(_Item, frozen=True, tag="view"):
    """A materialized view.

    ``stages`` maps the name of each internal stage to its shard; ``shard`` is the last one's.
    ``conf`` is the Spark configuration that changes answers, as it was when the view was defined.  ``checked`` is the
    fingerprint of the plan that a check has found right, and ``distrusted`` says what one has found wrong: such a view
    is recomputed whole until it is defined anew (`controller/asking/selfcheck.py`).
    """

    sql: str
    imports: tuple[str, ...]
    stages: dict[str, str]
    conf: dict[str, str]
    checked: str = ""
    distrusted: str = ""
    keep_history: str | None = None

    @property
    def shards(self) -> tuple[str, ...]:
        """Its own, and those of its internal stages, which other views may use too."""
        return (self.shard, *self.stages.values())


class BoundTable(msgspec.Struct, frozen=True):
    """One collection of a materialization: where it goes, and by which key.

    ``backfill`` counts how often its table was asked for anew (`controller/asking/backfill.py`).
    """

    collection: str
    table: str
    key: tuple[str, ...]
    backfill: int = 0


class Materialization(msgspec.Struct, frozen=True, tag_field="kind", tag="materialization"):
    """A task that keeps an endpoint's tables equal to collections.

    Secrets in ``options`` are references, never values.
    """

    name: str
    endpoint: str
    options: dict[str, str]
    bindings: tuple[BoundTable, ...]
    id: str

    @property
    def endpoint_options(self) -> dict[str, str]:
        """The options without those that are not the endpoint's."""
        return on_error.others(self.name, self.options, on_error.MaterializationOptions)


Collected: TypeAlias = Table | Source | View
Item: TypeAlias = Table | Source | View | Materialization


class Holder(msgspec.Struct, frozen=True):
    """The environment that writes: its deployment, host and process, and when it opened the location.

    ``process_started_ms`` counts from ``boot``, a start of the host; where that is empty (not every system names its
    starts, and the first versions did not ask), it is by the host's clock.
    """

    deployment: str
    host: str
    pid: int
    process_started_ms: int
    opened_ms: int
    reentrant: bool
    boot: str = ""

    def __str__(self) -> str:
        return f"deployment {self.deployment!r}, process {self.pid} on host {self.host!r}"


class Catalog(msgspec.Struct, frozen=True):
    """All items by name, and the current generation.

    ``dropped`` are the shards that no item has and that are not closed yet (`controller/location/dropped.py`).
    """

    format: int = FORMAT
    epoch: int = 0
    holder: Holder | None = None
    items: dict[str, Item] = {}
    dropped: tuple[str, ...] = ()

    def having(self, items: dict[str, Item]) -> Catalog:
        """Return the catalog with these ``items``; shards of the old items that none of them keeps are `dropped`."""
        given_up = shards_of(self.items) - shards_of(items)
        return msgspec.structs.replace(self, items=items, dropped=(*self.dropped, *sorted(given_up)))

    def with_item(self, item: Item) -> Catalog:
        """Return the catalog with ``item``, in the place of what had its name."""
        return self.having({**self.items, item.name.lower(): item})

    def with_changed(self, before: Item, after: Item) -> Catalog:
        """Return the catalog with ``after`` for ``before``; the same catalog if ``before`` is no longer in it."""
        return self.with_item(after) if self.items.get(before.name.lower()) == before else self

    def without(self, name: str) -> Catalog:
        """Return the catalog without the item called ``name``."""
        return self.having({known: item for known, item in self.items.items() if known != name.lower()})

    def closed(self, shards: AbstractSet[str]) -> Catalog:
        """Return the catalog once ``shards``, which were dropped, are closed."""
        return msgspec.structs.replace(self, dropped=tuple(s for s in self.dropped if s not in shards))

    def collection(self, name: str) -> Collected:
        """Return the table, source or view called ``name`` (names are compared without case).

        Raises `DefinitionError` with candidates if there is none.
        """
        found = self.find(name)
        if found is None or isinstance(found, Materialization):
            raise unknown("collection", name, (n for n, i in self.items.items() if not isinstance(i, Materialization)))
        return found

    def find(self, name: str) -> Item | None:
        """Return the item called ``name``, or None."""
        return self.items.get(name.lower())

    def dependents(self, name: str) -> list[str]:
        """Return the names of items that read ``name``."""
        return sorted(
            item.name
            for item in self.items.values()
            if (isinstance(item, View) and name.lower() in item.imports)
            or (isinstance(item, Materialization) and any(b.collection == name.lower() for b in item.bindings))
        )

    def of_kind(self, kind: type[Item]) -> list[Item]:
        """Return all items of one class, in the order they were created."""
        return [item for item in self.items.values() if isinstance(item, kind)]


def shards_of(items: Mapping[str, Item]) -> frozenset[str]:
    """Return every shard that one of ``items`` keeps."""
    return frozenset(s for item in items.values() if not isinstance(item, Materialization) for s in item.shards)


def unknown(kind: str, name: str, known: Iterable[str]) -> DefinitionError:
    """Return the error for a name that nothing has.

    >>> str(unknown("view", "delay", ["delays", "routes"]))
    "there is no view 'delay'; did you mean 'delays'?"
    """
    close = difflib.get_close_matches(name.lower(), sorted(known), n=3)
    hint = f"; did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    return DefinitionError(f"there is no {kind} {name!r}{hint}")


_decoder = msgspec.json.Decoder(Catalog)


class CatalogStore:
    """The durable catalog of a location."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._settled = True  # whether what became of the last change is known
        self.current = Catalog()

    async def read(self) -> Catalog:
        """Fetch the newest catalog."""
        self.current = _decode(await self._register.read())
        return self.current

    async def settle(self, epoch: int) -> None:
        """Learn what became of a change whose outcome was unknown; where every one is known, do nothing.

        Such a change may still be under way, and reading would not show it.  So this writes the catalog as it is, once
        more: from then on the change has happened, or is refused.

        Raises `FencedError` if a newer generation than ``epoch`` has taken over.
        """
        if not self._settled:
            await self.change(epoch, lambda catalog: catalog)

    async def confirm(self, epoch: int) -> None:
        """Fetch the newest catalog.  Raises `FencedError` if a newer generation than ``epoch`` has taken over."""
        if (await self.read()).epoch != epoch:
            raise _fenced(epoch, self.current)

    async def change(self, epoch: int, edit: Callable[[Catalog], Catalog]) -> Catalog:
        """Replace the catalog by ``edit(catalog)``, under ``epoch``.

        Raises:
            FencedError: a newer generation has taken over.
            whatever ``edit`` raises; then nothing changed.
        """

        def step(body: bytes | None) -> bytes:
            before = _decode(body)
            if before.epoch != epoch:
                raise _fenced(epoch, before)
            after = msgspec.json.encode(edit(before))
            self._settled = False
            return after

        self.current = _decode(await self._register.update(step))
        self._settled = True
        return self.current

    async def succeed(self, admit: Callable[[Catalog], Holder]) -> Catalog:
        """Begin a new generation for the holder that ``admit`` returns; it raises to refuse."""

        def step(body: bytes | None) -> bytes:
            before = _decode(body)
            after = msgspec.structs.replace(before, epoch=before.epoch + 1, holder=admit(before))
            self._settled = False
            return msgspec.json.encode(after)

        self.current = _decode(await self._register.update(step))
        self._settled = True
        return self.current

    async def leave(self, epoch: int, holder: Holder) -> None:
        """Take ``holder`` out of the catalog, if it holds the location in generation ``epoch``.

        A `succeed` that had no answer may still be under way: then the catalog is written as it is, which refuses it.
        """

        def step(body: bytes | None) -> bytes | None:
            before = _decode(body)
            if (before.epoch, before.holder) == (epoch, holder):
                return msgspec.json.encode(msgspec.structs.replace(before, holder=None))
            return None if self._settled else msgspec.json.encode(before)

        self.current = _decode(await self._register.update(step))


def _fenced(epoch: int, catalog: Catalog) -> FencedError:
    return FencedError(
        f"fenced: this environment is generation {epoch}, the location belongs to "
        f"generation {catalog.epoch} ({catalog.holder})"
    )


def _decode(body: bytes | None) -> Catalog:
    if body is None:
        return Catalog()
    try:
        found = _decoder.decode(body)
    except msgspec.ValidationError as error:
        refuse_future_json("the catalog is kept", body, FORMAT)
        raise CorruptionError(f"the catalog cannot be read by this version of strandline: {error}") from error
    refuse_future("the catalog is kept", found.format, FORMAT)
    return found
