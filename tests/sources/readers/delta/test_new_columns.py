"""Columns that a Delta table gets: the collection is at every time what the table was, the new columns too."""

from __future__ import annotations

import asyncio
from collections import Counter

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from table_place import SCHEMA, TablePlace, table

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.errors import SourceError
from strandline.sources.reader import ColumnsAdded
from strandline.sources.readers.delta.kind import KIND
from strandline.sources.readers.tabular import Noted
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.testing.lists.list_engine import listed

FEED = {"delta.enableChangeDataFeed": "true"}
WIDER = Schema((*SCHEMA, Column("w", "double")))
FEEDS = pytest.mark.parametrize("feed", [None, FEED], ids=["files", "feed"])


class Source(TablePlace):
    """A Delta table, and what a source holds of it, as the core brings it on."""

    def __init__(self, root, feed=None):
        self.root = root / "t"
        super().__init__(KIND, {"path": str(self.root)})
        write_deltalake(str(self.root), table([1, 2]), configuration=feed)
        self.held, self.upper, self.at = Counter(), NOTHING_READ, None

    def write(self, rows, **options):
        write_deltalake(str(self.root), rows, **{"mode": "append", "schema_mode": "merge", **options})

    def delta(self):
        return DeltaTable(str(self.root))

    async def tick(self):
        """Read what there is as a fresh process, or as the one before; first take the columns that are new."""
        for _ in range(3):
            try:
                reader = self.at or await self.reader()
                await reader.commit(self.upper)
                upper = await reader.upstream_frontier()
                found = listed(await reader.read([Slice(7, self.upper, upper)], table="", locate=False)).rows
            except ColumnsAdded as added:
                self.schema, self.at = Schema((*self.schema, *added.columns)), None
            else:
                break
        for row in found:
            diff, _ = row.pop(DIFF), row.pop(TIME)
            self.held[_said(row)] += diff
        self.upper, self.at = upper, reader
        self.held = Counter({row: n for row, n in self.held.items() if n})
        return reader

    def upstream(self):
        """What the table has, of the columns that are here."""
        rows = self.delta().to_pyarrow_table().to_pylist()
        return Counter(_said({name: row[name] for name in self.schema.names if name in row}) for row in rows)


def _said(row):
    """A row without the columns that are NULL."""
    return tuple(sorted((name, value) for name, value in row.items() if value is not None))


def wider(ids, value):
    """Rows with these ids and the new column."""
    return table(ids).append_column("w", pa.array([value] * len(ids), pa.float64()))


@FEEDS
def test_a_column_that_upstream_gets_is_added_with_its_first_values(tmp_path, feed):
    """Damage: values of a new column are lost, or rows from before it, or with it, cannot go."""

    async def body():
        source = Source(tmp_path, feed)
        source.evolving = True
        await source.tick()
        source.write(table([3]))
        source.write(wider([4, 5], 1.5))
        await source.tick()
        assert source.schema == WIDER
        assert source.held == source.upstream()
        source.delta().update({"w": "2.5"}, predicate="id <= 4")
        source.delta().delete("id = 2 OR id = 5")
        source.at = None
        await source.tick()
        source.delta().optimize.compact()
        source.delta().delete("id = 1")
        assert (await source.tick()).notices() == ()
        assert source.held == source.upstream()

    asyncio.run(body())


@FEEDS
def test_a_column_that_is_added_late_by_hand_gets_the_values_that_it_has_upstream(tmp_path, feed):
    """Damage: rows that were read without a column keep NULL in it, or go with a value that they never had here."""

    async def body():
        source = Source(tmp_path, feed)
        await source.tick()
        source.write(wider([4, 5], 1.5))
        (notice,) = (await source.tick()).notices()
        assert "ALTER SOURCE `s` ADD COLUMNS (`w` double)" in notice
        assert source.held == source.upstream()
        source.schema, source.at = WIDER, None
        source.write(table([6]))
        source.delta().delete("id = 4")
        await source.tick()
        assert source.held == source.upstream()
        source.delta().delete("id = 5")
        assert (await source.tick()).notices() == ()
        assert source.held == source.upstream()

    asyncio.run(body())


def test_a_planted_reader_that_corrects_nothing_is_noticed(tmp_path, monkeypatch):
    """Damage: the test above would let a reader pass whose rows go otherwise than they came."""
    monkeypatch.setattr(Noted, "corrected", lambda *_: frozenset())
    with pytest.raises(AssertionError):
        test_a_column_that_is_added_late_by_hand_gets_the_values_that_it_has_upstream(tmp_path, None)


def test_a_column_that_is_here_first_is_null_until_it_comes_and_stops_the_source_when_it_goes(tmp_path):
    """Damage: a column that is added here first stops the source; or one that upstream drops is NULL from then on."""

    async def body():
        source = Source(tmp_path)
        await source.tick()
        source.schema, source.at = WIDER, None
        source.write(table([3]))
        await source.tick()
        assert source.held == source.upstream()
        source.write(wider([4], 1.5))
        await source.tick()
        assert source.held == source.upstream()
        source.write(table([5]), mode="overwrite", schema_mode="overwrite")
        for at in (source.at, None):
            source.at = at
            with pytest.raises(SourceError, match="it has no column `w`"):
                await source.tick()

    asyncio.run(body())


def test_columns_that_a_source_began_without_are_no_news_until_it_is_to_have_all(tmp_path):
    """Damage: a source that leaves columns out is always warned; or one that is to have all never gets their values."""

    async def body():
        source = Source(tmp_path)
        source.write(wider([4], 1.5))
        assert (await source.tick()).notices() == ()
        source.evolving, source.at = True, None
        source.write(wider([5], 2.5))
        await source.tick()
        assert source.schema == WIDER
        assert source.held == source.upstream()

    asyncio.run(body())


def test_a_column_whose_type_does_not_hold_what_the_table_has_is_refused(tmp_path):
    """Damage: ALTER SOURCE takes a column by which the source stands still for good."""

    async def body():
        source = Source(tmp_path)
        await source.tick()
        source.write(wider([3], 1.5))
        with pytest.raises(SourceError, match="column `w` is double there, which int does not hold"):
            await source.ask(Column("w", "int"))
        for can in (Column("w", "double"), Column("later", "int")):
            await source.ask(can)

    asyncio.run(body())
