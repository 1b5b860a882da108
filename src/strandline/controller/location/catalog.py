"""The catalog: which items a location holds, in which shards, and which process may write.

One value in one register (`persist/handles/register.py`), changed by compare-and-set, so a definition is there whole or
not at all.  ``epoch`` is the generation of the environment that writes: every change requires to be of the current one,
so an environment that was succeeded cannot change anything.  ``writes`` is the epoch under which replicas of instances
write.  It rises less often: a replica goes on when the controller that commands it is restarted.

Shard ids are fresh for every item ever created: a dropped name that is used again is another collection.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

import msgspec

from strandline.algebra.schema import SUCCESSOR
from strandline.controller.location import on_error
from strandline.controller.location.items import (
    SUBSCRIBED,
    Assigned,
    Collected,
    Connection,
    Fed,
    IndexItem,
    InstanceItem,
    Item,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    Table,
    View,
    connections_of,
)
from strandline.errors import DefinitionError, FencedError
from strandline.persist.handles.register import Register, decode_json

KEY: Final = "catalog"
FORMAT: Final = 7
FORMAT_OF_SHARED: Final = 2
"""The first format that knows connections and shared sources; a catalog without them is kept in the first of all."""
FORMAT_OF_LEFT: Final = 3
"""The first format that knows sources that are `left`.  An earlier version would forget them, so a catalog is kept in
this one while it has some."""
FORMAT_OF_INSTANCES: Final = 4
"""The first format that knows instances and indexes.  An earlier version would run the items of an instance itself,
beside the replicas, so a catalog is kept in this one while it has some."""
FORMAT_OF_REPLACED: Final = 5
"""The first format that knows views whose query is replaced, and columns that a table or a source has got since.
An earlier version would let a replica of the former query write on, so a catalog stays in it once a view was."""
FORMAT_OF_ENDED: Final = 6
"""The first format that knows logs of dropped materializations that are to be taken over.  An earlier version would
forget them, so a catalog is kept in this one while it has some."""
FORMAT_OF_UNBOUND: Final = 7
"""The first format that knows views that were dropped from a materialization.  An earlier version would forget the
counters of their tables, so a catalog is kept in this one while it has such a materialization."""
assert FORMAT_OF_SHARED < FORMAT_OF_LEFT < FORMAT_OF_INSTANCES < FORMAT_OF_REPLACED
assert FORMAT_OF_REPLACED < FORMAT_OF_ENDED < FORMAT_OF_UNBOUND <= FORMAT
I = TypeVar("I", bound=Item)  # noqa: E741 - a kind of item
ERRORS_SUFFIX: Final = "_errors"
"""Behind a source's name: under which name its errors are read."""


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

    def is_process(self, other: Holder) -> bool:
        """Return whether both are environments of one process."""
        return (self.host, self.pid, self.boot) == (other.host, other.pid, other.boot)


class Left(msgspec.Struct, frozen=True):
    """A source that was dropped, and for which upstream may still keep something.

    ``options``: its connections' and its own, as they were.  ``progress``: its reader's own shard, which knows what
    upstream keeps, and so is dropped only once upstream has let it go.
    """

    name: str
    connector: str
    options: dict[str, str]
    progress: str


class Catalog(msgspec.Struct, frozen=True):
    """All items by name, and the current generation.

    ``dropped`` are the shards that no item has and that are not closed yet, ``left`` the sources whose upstream was not
    released yet, and ``ended`` the recovery logs of dropped materializations that were not taken over yet
    (`controller/location/dropped.py`).  ``writes``: the epoch under which replicas write, 0 until the
    first generation that knows of it; it is never above ``epoch``, so that the environment can close what replicas
    wrote.  ``replaced``: how often views that go on got other queries; none is written further beyond the epoch of its
    writers (`View.fence`).  ``unfenced``: a replica is to be fenced that writes under ``epoch`` itself; the next
    generation does it.  ``promoted``: the token of the last promotion that was made here; empty: none was.  ``root``:
    the directory of the project that was applied last, from which paths of items were seen; empty: none was.
    ``defined``: the names of the items that a project's files have defined; clients have made the others.
    """

    format: int = 1
    epoch: int = 0
    holder: Holder | None = None
    items: dict[str, Item] = {}
    dropped: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()
    writes: int = 0
    unfenced: bool = False
    promoted: str = ""
    root: str = ""
    replaced: int = 0
    ended: tuple[str, ...] = ()
    defined: tuple[str, ...] = ()

    def having(self, items: dict[str, Item]) -> Catalog:
        """Return the catalog with these ``items``; shards of the old items that none of them keeps are `dropped`.

        Sources that none of them is are `left`, and the logs of such materializations `ended`.
        """
        kept_shards = shards_of(items)
        left = tuple(
            Left(item.name, item.connector, self.source_options(item), item.progress)
            for item in self.items.values()
            if isinstance(item, Source | SharedSource) and item.progress not in kept_shards
        )
        given_up = shards_of(self.items) - kept_shards - {each.progress for each in left}
        dropped = (*self.dropped, *sorted(given_up))
        ended = (*self.ended, *sorted(_logs(self.items) - _logs(items)))
        defined = tuple(name for name in self.defined if name in items)
        changed = msgspec.structs.replace(
            self, items=items, dropped=dropped, left=(*self.left, *left), ended=ended, defined=defined
        )
        return _formatted(changed)

    def with_defined(self, names: Iterable[str]) -> Catalog:
        """Return the catalog in which a project's files define the items called ``names`` that there are, too."""
        defined = {name.lower() for name in names}.union(self.defined) & self.items.keys()
        return msgspec.structs.replace(self, defined=tuple(sorted(defined)))

    def returned(self, before: Catalog) -> Catalog:
        """Return the catalog with the items of ``before`` again, in the place of those that have come since.

        What those keep is given up no longer.  Nothing of it may have been brought to its end meanwhile.
        """
        after = self.having(before.items)
        shards, logs = shards_of(before.items), _logs(before.items)
        return _formatted(
            msgspec.structs.replace(
                after,
                dropped=tuple(each for each in after.dropped if each not in shards),
                left=tuple(each for each in after.left if each.progress not in shards),
                ended=tuple(each for each in after.ended if each not in logs),
                defined=before.defined,
                root=before.root,
            )
        )

    def with_item(self, item: Item) -> Catalog:
        """Return the catalog with ``item``, in the place of what had its name."""
        return self.having({**self.items, item.name.lower(): item})

    def with_changed(self, before: Item, after: Item) -> Catalog:
        """Return the catalog with ``after`` for ``before``; the same catalog if ``before`` is no longer in it."""
        return self.with_item(after) if self.items.get(before.name.lower()) == before else self

    def without(self, name: str) -> Catalog:
        """Return the catalog without the item called ``name``."""
        return self.lacking({name.lower()})

    def lacking(self, names: AbstractSet[str]) -> Catalog:
        """Return the catalog without the items with these names, in lower case, and what was to replace them."""
        return self.having(
            {key: item for key, item in self.items.items() if not {key, key.removeprefix(SUCCESSOR)} & names}
        )

    def closed(self, shards: AbstractSet[str]) -> Catalog:
        """Return the catalog once ``shards``, which were dropped, are closed."""
        return msgspec.structs.replace(self, dropped=tuple(s for s in self.dropped if s not in shards))

    def released(self, progress: AbstractSet[str]) -> Catalog:
        """Return the catalog once upstream keeps nothing more for the sources with these shards."""
        left = tuple(each for each in self.left if each.progress not in progress)
        gone = tuple(each.progress for each in self.left if each.progress in progress)
        return _formatted(msgspec.structs.replace(self, dropped=(*self.dropped, *gone), left=left))

    def taken_over(self, logs: AbstractSet[str]) -> Catalog:
        """Return the catalog once ``logs``, of dropped materializations, were taken over."""
        return _formatted(msgspec.structs.replace(self, ended=tuple(each for each in self.ended if each not in logs)))

    def with_writes_raised(self, epoch: int) -> Catalog:
        """Return the catalog with ``epoch``, the present or next generation, as the one that replicas write under.

        A replica that goes on under an earlier epoch is fenced at each shard that a replica of this one writes to.  If
        replicas write under ``epoch`` already, the next generation raises it.
        """
        assert epoch >= self.writes, "replicas write under no epoch that is to come"
        return msgspec.structs.replace(self, writes=epoch, unfenced=epoch == self.writes)

    def collection(self, name: str) -> Collected:
        """Return the table, source or view called ``name`` (names are compared without case).

        Raises `DefinitionError` with candidates if there is none.
        """
        match found := self.find(name):
            case SharedSource():
                tables = [table.name for table in self.fed_by(name)]
                hint = f"; its tables are: {', '.join(tables)}" if tables else "; CREATE TABLE … FROM SOURCE makes one"
                raise DefinitionError(f"source {found.name!r} is no collection{hint}")
            case None | Connection() | InstanceItem() | IndexItem() | Materialization():
                raise unknown("collection", name, (n for n, i in self.items.items() if isinstance(i, Collected)))
            case _:
                return found

    def one(self, name: str, wanted: type[I], kind: str) -> I:
        """Return the item of class ``wanted``, a ``kind`` in words, called ``name``.

        Raises `DefinitionError` with candidates if there is none.
        """
        found = self.find(name)
        if not isinstance(found, wanted):
            raise unknown(kind, name, (n for n, i in self.items.items() if isinstance(i, wanted)))
        return found

    def find(self, name: str) -> Item | None:
        """Return the item called ``name``, or None."""
        return self.items.get(name.lower())

    def dependents(self, name: str) -> list[str]:
        """Return the names of items that cannot be without ``name``: that read it, are fed, connected or run by it."""
        return sorted(item.name for item in self.items.values() if name.lower() in needs(item))

    def downstream(self, name: str) -> AbstractSet[str]:
        """Return the names of what cannot be without ``name``, directly or not, and that one, in lower case."""
        found: set[str] = set()
        reached = [name.lower()]
        while reached:
            each = reached.pop()
            if each not in found:
                found.add(each)
                reached += [reader.lower() for reader in self.dependents(each)]
        return found

    def fed_by(self, source: str) -> list[SourceTable]:
        """Return the tables of a shared source, in the order they were created."""
        tables = (item for item in self.items.values() if isinstance(item, SourceTable))
        return [table for table in tables if table.source == source.lower()]

    def sources_of(self, connector: str) -> list[Source | SharedSource]:
        """Return all sources of a connector, in the order they were created."""
        sources = (item for item in self.items.values() if isinstance(item, Source | SharedSource))
        return [source for source in sources if source.connector == connector]

    def source_options(self, item: Fed | SharedSource) -> dict[str, str]:
        """Return the options of a source, its connections' and its own; of its table, that table's before the source's.

        The options by which connections are named are left out.
        """
        if isinstance(item, SourceTable):
            source = self.items.get(item.source)
            return {**(self.source_options(source) if isinstance(source, SharedSource) else {}), **item.options}
        named = connections_of(item.options)
        shared = [self.items.get(name.lower()) for name in named.values()]
        options = [each.options for each in shared if isinstance(each, Connection)]
        own = {name: text for name, text in item.options.items() if name not in named}
        return {name: text for each in (*options, own) for name, text in each.items()}

    def forgives(self, item: Item | None) -> bool:
        """Return whether errors of ``item`` keep nothing from being read."""
        return isinstance(item, Fed) and on_error.continues(self.source_options(item))

    def of_kind(self, kind: type[I]) -> list[I]:
        """Return all items of one class, in the order they were created."""
        return [item for item in self.items.values() if isinstance(item, kind)]


def _formatted(catalog: Catalog) -> Catalog:
    """Return the catalog in the first format that knows all that it has, or in the one that it was in before."""
    wanted = [catalog.format if catalog.format < FORMAT_OF_LEFT else 1]
    if any(isinstance(item, Connection | SharedSource | SourceTable) for item in catalog.items.values()):
        wanted.append(FORMAT_OF_SHARED)
    if catalog.left:
        wanted.append(FORMAT_OF_LEFT)
    if any(isinstance(item, InstanceItem | IndexItem) for item in catalog.items.values()):
        wanted.append(FORMAT_OF_INSTANCES)
    if catalog.replaced or any(map(_has_changed, catalog.items.values())):
        wanted.append(FORMAT_OF_REPLACED)
    if catalog.ended:
        wanted.append(FORMAT_OF_ENDED)
    if any(isinstance(item, Materialization) and item.backfills for item in catalog.items.values()):
        wanted.append(FORMAT_OF_UNBOUND)
    return msgspec.structs.replace(catalog, format=max(wanted))


def _has_changed(item: Item) -> bool:
    """Return whether an item got columns, or is a successor, or a view that has had another query or wider inputs."""
    match item:
        case Table() | Source() | SourceTable():
            return item.grown > 0
        case View():
            return bool(item.replaces or item.narrowed or item.apart)
        case _:
            return False


def _logs(items: Mapping[str, Item]) -> frozenset[str]:
    """Return the recovery log of every materialization."""
    return frozenset(item.log for item in items.values() if isinstance(item, Materialization))


def shards_of(items: Mapping[str, Item]) -> frozenset[str]:
    """Return every shard that one of ``items`` keeps."""
    return frozenset(s for item in items.values() if isinstance(item, Collected | SharedSource) for s in item.shards)


def made_of(item: Item) -> list[str]:
    """Return the names, in lower case, of what an item reads, is fed or connected by."""
    match item:
        case View():
            return [*item.imports]
        case IndexItem():
            return [item.collection]
        case Materialization():
            return [bound.collection for bound in item.bindings]
        case SourceTable():
            return [item.source]
        case Source() | SharedSource():
            return sorted(name.lower() for name in connections_of(item.options).values())
        case _:
            return []


def needs(item: Item) -> AbstractSet[str]:
    """Return the names of what an item cannot be without: what it is made of, and the instance that runs it."""
    found = {*made_of(item)}
    if isinstance(item, View):
        found.update(item.reads)  # a successor needs also what those stand for that it reads
    if isinstance(item, Assigned) and item.instance:
        found.add(item.instance)
    return found


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
    """The durable catalog of a location.

    ``seen``: how this process sees each catalog that it reads; what it writes is what it has seen.
    """

    def __init__(self, register: Register, seen: Callable[[Catalog], Catalog] = lambda catalog: catalog) -> None:
        self._register = register
        self._seen = seen
        self._settled = True  # whether what became of the last change is known
        self.current = Catalog()

    async def read(self) -> Catalog:
        """Fetch the newest catalog; if it is the same as before, it is the same object."""
        found = await self.newest()
        if found != self.current:
            self.current = found
        return self.current

    async def newest(self) -> Catalog:
        """Return the newest catalog, and leave the current one as it is: a change may be under way here."""
        return self._decoded(await self._register.read())

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
            before = self._decoded(body)
            if before.epoch != epoch:
                raise _fenced(epoch, before)
            after = msgspec.json.encode(edit(before))
            self._settled = False
            return after

        self.current = self._decoded(await self._register.update(step))
        self._settled = True
        return self.current

    async def succeed(
        self, admit: Callable[[Catalog], Holder], edit: Callable[[Catalog], Catalog] = lambda catalog: catalog
    ) -> Catalog:
        """Begin a new generation for the holder that ``admit`` returns, which changes the catalog by ``edit`` at once.

        Replicas write under its epoch from then on if theirs was never raised, the holder before was of another
        deployment, or one of them is `Catalog.unfenced`.  Else they go on as before, unless ``edit`` raises it.

        Either raises to refuse.
        """

        def step(body: bytes | None) -> bytes:
            before = self._decoded(body)
            kept = before.lacking({name for name in before.items if name.startswith(SUBSCRIBED)})
            edited, holder = edit(kept), admit(before)
            after = msgspec.structs.replace(edited, epoch=before.epoch + 1, holder=holder)
            moved = before.holder is not None and before.holder.deployment != holder.deployment
            if after.writes < after.epoch and (moved or before.unfenced or not before.writes):
                after = after.with_writes_raised(after.epoch)
            self._settled = False
            return msgspec.json.encode(after)

        self.current = self._decoded(await self._register.update(step))
        self._settled = True
        return self.current

    async def leave(self, epoch: int, holder: Holder) -> None:
        """Take ``holder`` out of the catalog, if it holds the location in generation ``epoch``.

        A `succeed` that had no answer may still be under way: then the catalog is written as it is, which refuses it.
        """

        def step(body: bytes | None) -> bytes | None:
            before = self._decoded(body)
            if (before.epoch, before.holder) == (epoch, holder):
                return msgspec.json.encode(msgspec.structs.replace(before, holder=None))
            return None if self._settled else msgspec.json.encode(before)

        self.current = self._decoded(await self._register.update(step))

    def _decoded(self, body: bytes | None) -> Catalog:
        return self._seen(_decode(body))


def _fenced(epoch: int, catalog: Catalog) -> FencedError:
    return FencedError(
        f"fenced: this environment is generation {epoch}, the location belongs to "
        f"generation {catalog.epoch} ({catalog.holder})"
    )


def _decode(body: bytes | None) -> Catalog:
    return Catalog() if body is None else decode_json("the catalog", body, _decoder, FORMAT)
