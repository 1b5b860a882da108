"""Upstreams in memory whose records get fields: for the list engine.

    CREATE SOURCE s (k BIGINT, v STRING) USING growing (evolve 'add');
    CREATE SOURCE bank USING growing_tables;
    CREATE TABLE t (k BIGINT, v STRING) FROM SOURCE bank (REFERENCE 't')

A table is a partition, whose records have the key ``k`` if it is among ``keyed``.  A record is taken to have just the
columns that it has a value of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from strandline.algebra.messages import GONE, KEPT, ORDER
from strandline.algebra.schema import DIFF, TIME, Column
from strandline.errors import DefinitionError, SourceError
from strandline.frontier import Offsets
from strandline.persist.handles.contents import Rows
from strandline.sources.reader import Keyed, Plain, ReaderKind, Records, Surroundings
from strandline.sources.reclock import Slice
from strandline.wiring import registry

KEY: Final = ("k",)
TYPES: Final[Mapping[type, str]] = {int: "bigint", str: "string", float: "double"}


@dataclass
class Growing:
    """The upstream, which survives every crash of a reader: the records.

    ``keyed``: the tables whose records have a key; a record with nothing else deletes its row.  ``reads``: what was
    read, in order.
    """

    records: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    keyed: frozenset[str] = frozenset()
    reads: list[tuple[str, int]] = field(default_factory=list)
    refused: frozenset[str] = frozenset()
    """Columns that no table may be defined with."""
    unread: frozenset[str] = frozenset()
    """Columns that no table may get once it is read."""
    shared: bool = False
    """Whether several processes may read it at once."""

    def say(self, table: str, *records: Mapping[str, Any]) -> None:
        """Append records."""
        self.records.setdefault(table, []).extend(records)

    def install(self, setitem: Callable[[Any, str, Any], None]) -> None:
        """Put the kinds ``growing`` and ``growing_tables`` over this upstream into the registry."""

        async def opened(_: GrowingOptions, around: Surroundings) -> GrowingReader:
            return GrowingReader(self, around)

        async def ask(_: GrowingOptions, around: Surroundings) -> None:
            names = {name for schema in around.schemas.values() for name in schema.names}
            if unread := self.unread & names:
                raise SourceError(f"rows were read without column {min(unread)!r}")

        def check(_: GrowingOptions, __: str, schema: Any) -> None:
            if named := self.refused & {*schema.names}:
                raise DefinitionError(f"upstream has no column {min(named)!r}")

        one = ReaderKind("growing", GrowingOptions, opened, ask_wider=ask, shared=lambda _: self.shared)
        setitem(registry.READERS, "growing", one)
        tables = ReaderKind("growing_tables", GrowingOptions, opened, tables=True, check_table=check, ask_wider=ask)
        setitem(registry.READERS, "growing_tables", tables)


@dataclass(frozen=True, slots=True)
class GrowingOptions:
    """It takes none."""


class GrowingReader:
    """A `SourceReader` of a `Growing` upstream."""

    bounded = False

    def __init__(self, upstream: Growing, around: Surroundings) -> None:
        self._upstream = upstream
        self._around = around
        self._notices: dict[str, str] = {}

    def records(self, table: str) -> Records:
        """See `SourceReader.records`."""
        return Keyed(KEY) if table in self._upstream.keyed else Plain()

    async def snapshot(self, table: str) -> Offsets | None:
        """See `SourceReader.snapshot`: tables are read from their first record."""
        return None

    async def upstream_frontier(self) -> Offsets:
        """See `SourceReader.upstream_frontier`."""
        return Offsets({table: len(self._upstream.records.get(table, ())) for table in self._around.schemas})

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """See `SourceReader.read`."""
        said = self._upstream.records.get(table, [])
        wanted = [(n, each.time) for each in slices for n in range(each.lower[table], each.upper[table])]
        if any(n >= len(said) for n, _ in wanted):
            raise SourceError(f"table {table!r} has {len(said)} records only")
        found = {name: Column(name, TYPES[type(value)]) for n, _ in wanted for name, value in said[n].items()}
        if notice := self._around.gained(table, tuple(found.values())):
            self._notices[table] = notice
        self._upstream.reads += [(table, n) for n, _ in wanted]
        schema, keyed = self._around.schemas[table], table in self._upstream.keyed
        rows = [{**dict.fromkeys(schema.names), **said[n], TIME: time, DIFF: 1} for n, time in wanted]
        if keyed:
            pairs = zip(rows, wanted, strict=True)
            rows = [{**row, ORDER: n, GONE: {*said[n]} == {*KEY}, KEPT: None} for row, (n, _) in pairs]
        names = (*schema.names, *((ORDER, GONE, KEPT) if keyed else ()), TIME, DIFF)
        with self._around.engine.arrivals(schema, keyed=keyed) as into:
            into.add(pa.table({name: [row[name] for row in rows] for name in names}))
            return into.rows()

    async def commit(self, resume: Offsets) -> None:
        """See `SourceReader.commit`."""

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """See `SourceReader.likely_small`."""
        return True

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return tuple(self._notices.values())

    async def close(self) -> None:
        """See `SourceReader.close`."""
