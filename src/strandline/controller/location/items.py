"""Items: what a catalog holds, each with its definition and its shards.

A *collection* can be read: a table, a source, a table that a source feeds, a view.  The others are a connection
(options under a name), an instance (processes that run items), an index (how a collection is kept in memory), a source
whose tables are collections and it is none, and a materialization.

An item's ``instance`` is the name, in lower case, of the one that runs it; empty: the process of the environment does.
A table of a source runs where its source does.

A collection's ``keep_history`` is the interval of its KEEP HISTORY FOR, as it was written; None: the environment's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final, TypeAlias

import msgspec

from strandline.algebra.schema import SUCCESSOR, Column, Schema
from strandline.controller.location import on_error
from strandline.frontier import Refresh

SUBSCRIBED: Final = "__subscribed_"
"""How the names of views begin that belong to a subscription; no user can give such a name."""
CONNECTION: Final = "connection"
"""The option of a source that names a connection; one that ends in ``_connection`` names another."""


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
    """A collection written by INSERT, UPDATE and DELETE.

    ``grown``: how many columns it has got since it was created, which are its last ones.  ``comments``: of those
    columns that have one, by the column's name in lower case.
    """

    keep_history: str | None = None
    grown: int = 0
    comments: dict[str, str] = {}


class Source(_Item, frozen=True, tag="source"):
    """A collection fed from outside.  ``remap`` and ``progress`` are the reader's own shards.

    ``grown``: see `Table`.  ``starts``: how often it was opened anew because someone asked for it, or because its
    connection was defined again.  ``comments``: see `Table`.
    """

    connector: str
    options: dict[str, str]
    remap: str
    progress: str
    keep_history: str | None = None
    instance: str = ""
    grown: int = 0
    starts: int = 0
    comments: dict[str, str] = {}

    @property
    def shards(self) -> tuple[str, ...]:
        """Its own, and its reader's."""
        return (self.shard, self.remap, self.progress)


class SharedSource(msgspec.Struct, frozen=True, tag_field="kind", tag="shared source"):
    """A source that is no collection: `SourceTable`s are, which it feeds all at the same times.

    ``remap`` and ``progress`` are the reader's own shards.  ``starts``: see `Source`.
    """

    name: str
    connector: str
    options: dict[str, str]
    remap: str
    progress: str
    instance: str = ""
    starts: int = 0

    @property
    def shards(self) -> tuple[str, ...]:
        """Its reader's."""
        return (self.remap, self.progress)


class SourceTable(_Item, frozen=True, tag="source table"):
    """A collection that a shared source feeds.

    ``reference`` is what upstream calls it.  ``source`` is in lower case.  ``options`` are those that every source
    has; what they do not say, the source's say.  ``grown``, ``comments``: see `Table`.
    """

    source: str
    reference: str
    options: dict[str, str] = {}
    keep_history: str | None = None
    grown: int = 0
    comments: dict[str, str] = {}


class View(_Item, frozen=True, tag="view"):
    """A materialized view.

    ``stages`` maps the name of each internal stage to its shard; ``shard`` is the last one's.
    ``conf`` is the Spark configuration that changes answers, as it was when the view was defined.  ``checked`` is the
    fingerprint of the plan that a check has found right, and ``distrusted`` says what one has found wrong: such a view
    is recomputed whole until it is defined anew (`controller/asking/selfcheck.py`).  ``refresh``: its schedule; None:
    it follows each time.  ``seed``: the shard in which it was prepared, until its own holds the same rows.
    ``audits``: how often replicas were asked to recompute it in full, whatever its shards' certificates say.
    ``apart``: what the names of its internal stages hold besides, so that it shares none of them with a view that reads
    another collection under the same name.  ``narrowed``: by the name of a table that has got columns since, those that
    the query sees of it.  ``begins``: the first time at which it can be read: before, another query had this name, and
    its history is gone.  Of a successor: where the view that it is to replace was when that was asked for.  ``fence``:
    how far beyond the epoch of its writers it is written: what runs a query of before is fenced at its shard.
    ``query_from``: before that time its history is of the queries that had this name before.
    """

    sql: str
    imports: tuple[str, ...]
    stages: dict[str, str]
    conf: dict[str, str]
    checked: str = ""
    distrusted: str = ""
    keep_history: str | None = None
    refresh: Refresh | None = None
    seed: str = ""
    instance: str = ""
    audits: int = 0
    apart: str = ""
    narrowed: dict[str, tuple[str, ...]] = {}
    begins: int = 0
    fence: int = 0
    query_from: int = 0

    @property
    def replaces(self) -> str:
        """The name of the view that it is to replace, in lower case; empty: none."""
        return self.name.removeprefix(SUCCESSOR) if self.name.startswith(SUCCESSOR) else ""

    @property
    def reads(self) -> dict[str, str]:
        """The names of the items that it reads, by the names that stand for them in its query."""
        return {name.removeprefix(SUCCESSOR): name for name in self.imports}

    @property
    def schedule(self) -> Refresh | None:
        """Its schedule as a statement says it: without its creation."""
        return None if self.refresh is None else self.refresh.clause

    @property
    def awaits_creation(self) -> bool:
        """Whether it has a schedule and waits for its inputs: it has no creation yet."""
        return self.refresh is not None and self.refresh.created is None

    @property
    def shards(self) -> tuple[str, ...]:
        """Its own, and those of its internal stages, which other views may use too."""
        return (self.shard, *self.stages.values(), *([self.seed] if self.seed else []))


class BoundTable(msgspec.Struct, frozen=True):
    """One collection of a materialization: where it goes, and by which key.

    ``key`` is empty only where changes are pushed (`MaterializationOptions.delta`).  ``backfill`` counts how often its
    table was asked for anew (`controller/asking/verification.py`).
    """

    collection: str
    table: str
    key: tuple[str, ...]
    backfill: int = 0


LOGS: Final = "materialization/"
"""What the keys of recovery logs begin with, and the names of the holds of their tasks."""


class LeftTable(msgspec.Struct, frozen=True):
    """A table that a dropped view has left at the endpoint of its materialization.

    ``name``, ``columns`` and ``shard``: those of the collection, which may be gone.  ``bound``: how it was bound.
    ``empties``: its rows are being taken out, else they stay; the counter of ``bound`` is one that was never used then.
    ``stuck``: the endpoint cannot take them out.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    shard: str
    bound: BoundTable
    empties: bool = False
    stuck: bool = False

    @property
    def schema(self) -> Schema:
        """The columns that its rows have."""
        return Schema(tuple(Column(name, kind) for name, kind in self.columns))


class Materialization(msgspec.Struct, frozen=True, tag_field="kind", tag="materialization"):
    """A task that keeps an endpoint's tables equal to collections.

    Secrets in ``options`` are references, never values.  ``location``: the id of the location that it was created in,
    by which endpoints tell it from one of the same name elsewhere; the first versions did not note it.  ``left``: what
    views that were dropped from it have left.  ``backfills``: the counter with which a table begins that is bound or
    emptied from now on; it is above those of all that were dropped, so the endpoint takes none for one of before.
    ``fence``: how far beyond the epoch of its writers its log is opened, which is more each time that it lets a table
    go: what runs it as it was before writes nothing more once the log is (`instance/tasks.py`).
    """

    name: str
    endpoint: str
    options: dict[str, str]
    bindings: tuple[BoundTable, ...]
    id: str
    instance: str = ""
    location: str = ""
    left: tuple[LeftTable, ...] = ()
    backfills: int = 0
    fence: int = 0

    @property
    def log(self) -> str:
        """The Consensus key of its task's recovery log."""
        return f"{LOGS}{self.id}"

    @property
    def written(self) -> tuple[BoundTable, ...]:
        """The tables that its task writes to: what it binds, and what it empties."""
        return (*self.bindings, *(left.bound for left in self.left if left.empties))

    def claimed(self, other: Materialization, tables: Iterable[str]) -> list[BoundTable]:
        """Return which of ``tables``, by names without case, ``other`` writes to at the same place."""
        named = {each.lower() for each in tables}
        return [each for each in other.written if each.table.lower() in named] if self._is_at(other) else []

    def _is_at(self, other: Materialization) -> bool:
        return (self.endpoint, self.endpoint_options) == (other.endpoint, other.endpoint_options)

    def has_left(self, other: Materialization) -> bool:
        """Return whether ``other`` writes to a table that this one has let go."""
        taken = {each.table.lower() for each in other.written}
        return self._is_at(other) and any(each.bound.table.lower() in taken for each in self.left)

    @property
    def endpoint_options(self) -> dict[str, str]:
        """The options without those that are not the endpoint's."""
        return on_error.others(self.name, self.options, on_error.MaterializationOptions)

    @property
    def scheduled(self) -> bool:
        """Whether it may wait although its collections have moved."""
        return bool(self.common_options.every or self.common_options.within)

    @property
    def common_options(self) -> on_error.MaterializationOptions:
        """The options that are not the endpoint's."""
        return on_error.common_to_all(self.name, self.options, on_error.MaterializationOptions)


class Connection(msgspec.Struct, frozen=True, tag_field="kind", tag="connection"):
    """Options that sources share: how a system is reached.  Secrets in them are references, never values.

    ``system`` is the kind of connection: what it is made TO.
    """

    name: str
    system: str
    options: dict[str, str]


class InstanceItem(msgspec.Struct, frozen=True, tag_field="kind", tag="instance"):
    """An instance: processes that run the same items, called its replicas.

    ``replicas``: the address of each, ``host:port``, by its name in lower case.  Without any, its items wait.
    """

    name: str
    replicas: dict[str, str]


class IndexItem(msgspec.Struct, frozen=True, tag_field="kind", tag="index"):
    """An index: a collection that is kept in memory, and by which columns its rows are found there.

    ``collection`` is in lower case, ``key`` as the collection names its columns.  All replicas of its instance hold it.
    """

    name: str
    collection: str
    key: tuple[str, ...]
    instance: str = ""


Collected: TypeAlias = Table | Source | SourceTable | View
"""What can be read."""
Kept: TypeAlias = Collected | SharedSource
"""What has shards."""
Fed: TypeAlias = Source | SourceTable
"""What is fed from outside: it has an error half that is its own."""
Assigned: TypeAlias = Source | SharedSource | View | IndexItem | Materialization
"""What an instance may run."""
Item: TypeAlias = Kept | Connection | InstanceItem | IndexItem | Materialization


def made_with(item: Table | Fed) -> Schema:
    """Return the columns that a table or a source was created with, without those that it has got since."""
    return Schema(item.schema.columns[: len(item.schema.columns) - item.grown])


def begins_of(item: Collected) -> int:
    """Return the first time at which a collection can be read, whatever its shard holds."""
    return item.begins if isinstance(item, View) else 0


def kind_of(item: Item) -> str:
    """Return what kind of item it is, in the catalog's own words.

    >>> kind_of(Connection("pg", "postgres", {}))
    'connection'
    """
    return str(type(item).__struct_config__.tag)


def connections_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the connections that a source's options name, by the option that names each.

    >>> connections_of({"connection": "broker", "registry_connection": "Schemas", "topic": "t"})
    {'connection': 'broker', 'registry_connection': 'Schemas'}
    """
    return {name: text for name, text in options.items() if name == CONNECTION or name.endswith(f"_{CONNECTION}")}
