"""What tests of sources that read the tables of a lake share: rows, a location, and readers of a table there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import pyarrow as pa

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.frontier import Offsets
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.sources.reader import ReaderKind, SourceReader, Surroundings
from strandline.sources.reclock import Slice
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed

SCHEMA = Schema((Column("id", "bigint"), Column("kind", "string")))


def table(ids: Iterable[int], kind: str = "a") -> pa.Table:
    """Return rows with these ids."""
    found = list(ids)
    return pa.table({"id": pa.array(found, pa.int64()), "kind": pa.array([kind] * len(found), pa.string())})


class TablePlace:
    """A location, and readers of one table there; ``numbers`` are for rows that no other has."""

    table = ""

    def __init__(self, kind: ReaderKind[Any], options: Mapping[str, str], schema: Schema = SCHEMA) -> None:
        self.kind, self.options, self.schema, self.evolving = kind, dict(options), schema, False
        self.engine, self.blob, self.consensus = ListEngine(MemoryBlob()), MemoryBlob(), MemoryConsensus()
        self.clock, self.processes, self.numbers = HandClock(1_700_000_000_000), count(), count(1)

    async def reader(self) -> SourceReader:
        """Open a reader, in a process of its own."""
        return await self.kind.open(self._options, self._around(self.schema))

    async def ask(self, *added: Column) -> None:
        """Ask whether columns can be added, as ALTER SOURCE does."""
        assert self.kind.ask_wider is not None
        await self.kind.ask_wider(self._options, self._around(Schema((*self.schema, *added))))

    @property
    def _options(self) -> Any:
        return understood("s", self.kind.options, self.options)

    def _around(self, schema: Schema) -> Surroundings:
        ids = CountingIds(f"p{next(self.processes)}")
        client = PersistClient(self.clock, ids, self.blob, self.consensus)

        def progress() -> Any:
            return client.records("known", 1)

        return Surroundings(
            self.clock, {"": schema}, self.engine, None, None, 1, progress,
            frozenset({""} if self.evolving else {}), {"": "ALTER SOURCE `s`"},
        )  # fmt: skip

    def fresh(self) -> pa.Table:
        """Return three rows that were not there yet."""
        start = next(self.numbers) * 10
        return table(range(start, start + 3))


async def read(reader: SourceReader, lower: Offsets, upper: Offsets, time: int = 7) -> Counter[tuple[Any, ...]]:
    """Return how often each row comes, less how often it goes, in a slice."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in listed(await reader.read([Slice(time, lower, upper)], table="", locate=False)).rows:
        assert row.pop(TIME) == time
        diff = row.pop(DIFF)
        found[tuple(row.values())] += diff
    return Counter({row: diff for row, diff in found.items() if diff})
