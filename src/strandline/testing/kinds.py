"""Kinds of upstreams in memory: a connector of one collection, one of many tables, and the connection that both use.

    CREATE CONNECTION here TO lists (server = one);
    CREATE SOURCE s (partition STRING, offset BIGINT, value BIGINT) FROM list (connection = here);
    CREATE SOURCE bank FROM tables (connection = here);
    CREATE TABLE a (partition STRING, offset BIGINT, value BIGINT) FROM SOURCE bank (REFERENCE 'a')

Tests put them into the registry (`install`).  A table is a partition of the upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from strandline.algebra.schema import Schema
from strandline.errors import DefinitionError, SourceError, Unavailable
from strandline.frontier import Offsets
from strandline.options import ANY_TEXT, PLACE, TEXT, option
from strandline.persist.handles.contents import Rows
from strandline.sources.kinds import ConnectionKind, Discovered, Discovery
from strandline.sources.reader import ReaderKind, SourceReader, Surroundings
from strandline.sources.reclock import Slice
from strandline.testing.lists.list_source import SCHEMA, ListReader, Upstream
from strandline.wiring import registry


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConnection:
    """How an upstream in memory is reached."""

    server: str = option(TEXT, "The upstream's name.")
    password: str | None = option(PLACE, "Where its password is.", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions(ListConnection):
    """The options of a source, of which a reader in memory heeds none."""

    topic: str | None = option(TEXT, "What is read.", default=None)
    format: str | None = option(TEXT, "How messages are encoded.", default=None)
    key: str | None = option(TEXT, "The columns of the key.", default=None)
    key_format: str | None = option(TEXT, "How keys are encoded.", default=None)
    envelope: str | None = option(TEXT, "What messages mean.", default=None)
    include_offset: str | None = option(TEXT, "A column for offsets.", default=None)
    publication: str | None = option(ANY_TEXT, "Which tables are read.", default=None)


CONNECTION: Final = ConnectionKind("lists", ListConnection)


class TablesReader(ListReader):
    """A `SourceReader` of an upstream whose partitions are tables, but for those that are ``missing`` there."""

    def __init__(self, upstream: Upstream, missing: Collection[str] = ()) -> None:
        super().__init__(upstream)
        self._missing = missing

    async def snapshot(self, table: str) -> Offsets | None:
        """See `SourceReader.snapshot`: a table that is there is read from its first message."""
        if self.upstream.down:
            raise Unavailable("the upstream does not answer")
        if table in self._missing:
            raise SourceError(f"upstream has no table {table!r} now")
        return await super().snapshot(table)

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """See `SourceReader.read`."""
        own = [
            Slice(each.time, Offsets({table: each.lower[table]}), Offsets({table: each.upper[table]}))
            for each in slices
        ]
        return await super().read(own, table=table, locate=locate)


class Kinds:
    """The kinds over some upstreams, by the name of their server."""

    def __init__(self, upstreams: Mapping[str, Upstream]) -> None:
        self.upstreams = upstreams
        self.opened: list[SourceReader] = []
        self.missing: set[str] = set()
        used = {"connection": CONNECTION}
        self.one = ReaderKind("list", ListOptions, self._one, connections=used)
        self.tables = ReaderKind(
            "tables",
            ListOptions,
            self._tables,
            connections=used,
            tables=True,
            check_table=self._check_table,
            ask_table=self._ask_table,
            discovery=Discovery(ListConnection, self._discover),
        )

    def install(
        self, setitem: Callable[[Any, str, object], None], *, one: str = "list", tables: str = "tables"
    ) -> None:
        """Put them into the registry under these names, by pytest's ``monkeypatch.setitem``."""
        setitem(cast("Any", registry.READERS), one, self.one)
        setitem(cast("Any", registry.READERS), tables, self.tables)
        setitem(cast("Any", registry.CONNECTIONS), CONNECTION.name, CONNECTION)

    async def _one(self, options: ListOptions, _: Surroundings) -> SourceReader:
        return self._opened(ListReader(self._upstream(options)))

    async def _tables(self, options: ListOptions, _: Surroundings) -> SourceReader:
        return self._opened(TablesReader(self._upstream(options), self.missing))

    def _opened(self, reader: SourceReader) -> SourceReader:
        self.opened.append(reader)
        return reader

    def _upstream(self, options: ListConnection) -> Upstream:
        if options.server not in self.upstreams:
            raise Unavailable(f"there is no server {options.server!r}")
        return self.upstreams[options.server]

    def _check_table(self, options: ListOptions, reference: str, _: Schema) -> None:
        if reference.startswith("no"):
            raise DefinitionError(f"option 'reference' is {reference!r}: upstream has no such table")

    async def _ask_table(self, options: ListOptions, reference: str, _: Schema) -> None:
        await TablesReader(self._upstream(options), self.missing).snapshot(reference)

    async def _discover(self, options: ListConnection) -> Sequence[Discovered]:
        return [Discovered(name, SCHEMA) for name in sorted(self._upstream(options).partitions)]
