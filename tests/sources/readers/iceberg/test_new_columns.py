"""Columns that an Iceberg table gets: the collection is at every time what the table was, the new columns too."""

from __future__ import annotations

import asyncio
from collections import Counter

import pyarrow as pa
import pytest
from iceberg_lake import IcebergLake
from pyiceberg.types import DoubleType
from table_place import SCHEMA, TablePlace, table

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.errors import SourceError
from strandline.sources.reader import ColumnsAdded
from strandline.sources.readers.iceberg.kind import KIND
from strandline.sources.readers.tabular import Noted
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.testing.lists.list_engine import listed

WIDER = Schema((*SCHEMA, Column("w", "double")))


class Source(IcebergLake, TablePlace):
    """An Iceberg table, and what a source holds of it, as the core brings it on."""

    def __init__(self, root):
        IcebergLake.__init__(self, root / "t")
        TablePlace.__init__(self, KIND, {"path": str(self.root)})
        self.create(table([1, 2]))
        self.held, self.upper, self.at = Counter(), NOTHING_READ, None

    def add(self, **more):
        """Add the column upstream."""
        with self.stored().update_schema() as update:
            update.add_column("w", DoubleType(), **more)

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
        rows = self.stored().scan().to_arrow().to_pylist()
        return Counter(_said({name: row[name] for name in self.schema.names if name in row}) for row in rows)


def _said(row):
    """A row without the columns that are NULL."""
    return tuple(sorted((name, value) for name, value in row.items() if value is not None))


def wider(ids, value):
    """Rows with these ids and the new column."""
    return table(ids).append_column("w", pa.array([value] * len(ids), pa.float64()))


@pytest.fixture
def source(tmp_path):
    """A source of a table with two rows."""
    return Source(tmp_path)


def test_a_column_that_upstream_gets_is_added_with_its_first_values(source):
    """Damage: values of a new column are lost, or rows from before it, or with it, cannot go."""

    async def body():
        source.evolving = True
        await source.tick()
        source.stored().append(table([3]))
        source.add()
        source.stored().append(wider([4, 5], 1.5))
        await source.tick()
        assert source.schema == WIDER
        assert source.held == source.upstream()
        source.stored().overwrite(wider([4], 2.5), "id == 4")
        source.stored().delete("id == 2 OR id == 5")
        source.at = None
        assert (await source.tick()).notices() == ()
        assert source.held == source.upstream()

    asyncio.run(body())


def test_a_column_that_is_added_late_by_hand_gets_the_values_that_it_has_upstream(source):
    """Damage: rows that were read without a column keep NULL in it, or go with a value that they never had here."""

    async def body():
        await source.tick()
        source.add()
        source.stored().append(wider([4, 5], 1.5))
        (notice,) = (await source.tick()).notices()
        assert "ALTER SOURCE `s` ADD COLUMNS (`w` double)" in notice
        assert source.held == source.upstream()
        source.schema, source.at = WIDER, None
        source.stored().append(table([6]))
        source.stored().delete("id == 4")
        await source.tick()
        assert source.held == source.upstream()
        source.stored().delete("id == 5 OR id == 1")
        assert (await source.tick()).notices() == ()
        assert source.held == source.upstream()

    asyncio.run(body())


def test_a_planted_reader_that_corrects_nothing_is_noticed(source, monkeypatch):
    """Damage: the test above would let a reader pass whose rows go otherwise than they came."""
    monkeypatch.setattr(Noted, "corrected", lambda *_: frozenset())
    with pytest.raises(AssertionError):
        test_a_column_that_is_added_late_by_hand_gets_the_values_that_it_has_upstream(source)


def test_a_default_is_what_rows_from_before_the_column_have(source, monkeypatch):
    """Damage: rows of older files have a default upstream and NULL here, and go with a value that they never had."""
    monkeypatch.setattr("pyiceberg.schema.Schema.check_format_version_compatibility", lambda *_: None)

    async def body():
        source.evolving = True
        await source.tick()
        source.add(default_value=7.5)
        source.stored().append(wider([4], 1.5))
        await source.tick()
        assert source.held == source.upstream()
        assert source.held[("id", 1), ("kind", "a"), ("w", 7.5)] == 1
        source.stored().delete("id == 1")
        await source.tick()
        assert source.held == source.upstream()

    asyncio.run(body())


def test_a_default_of_a_column_that_is_here_first_comes_with_it(source, monkeypatch):
    """Damage: rows from before the column keep NULL here, and go with a default that they never had."""
    monkeypatch.setattr("pyiceberg.schema.Schema.check_format_version_compatibility", lambda *_: None)

    async def body():
        await source.tick()
        source.schema, source.at = WIDER, None
        source.stored().append(table([3]))
        await source.tick()
        source.add(default_value=7.5)
        source.stored().append(wider([4], 1.5))
        await source.tick()
        assert source.held == source.upstream()
        source.stored().delete("id == 1 OR id == 3")
        source.at = None
        await source.tick()
        assert source.held == source.upstream()

    asyncio.run(body())


@pytest.mark.parametrize("evolving", [False, True])
def test_the_snapshot_read_last_may_expire_while_a_column_comes(source, evolving):
    """Damage: an expiry that a source without the option goes on from stops one that gets its columns by itself."""

    async def body():
        source.evolving = evolving
        await source.tick()
        source.stored().append(table([3]))
        await source.tick()
        before = source.stored().metadata.current_snapshot_id
        source.add()
        source.stored().append(wider([4], 1.5))
        await source.at.upstream_frontier()
        source.stored().maintenance.expire_snapshots().by_id(before).commit()
        await source.tick()
        assert source.held == source.upstream()

    asyncio.run(body())


def test_a_column_that_is_here_first_is_null_until_it_comes_and_stops_the_source_when_it_goes(source):
    """Damage: a column that is added here first stops the source; or one that upstream drops is NULL from then on."""

    async def body():
        await source.tick()
        source.schema, source.at = WIDER, None
        source.stored().append(table([3]))
        await source.tick()
        assert source.held == source.upstream()
        source.add()
        source.stored().append(wider([4], 1.5))
        await source.tick()
        assert source.held == source.upstream()
        with source.stored().update_schema() as update:
            update.delete_column("w")
        source.stored().append(table([5]))
        for at in (source.at, None):
            source.at = at
            with pytest.raises(SourceError, match="it has no column `w`"):
                await source.tick()

    asyncio.run(body())


def test_columns_that_a_source_began_without_are_no_news_until_it_is_to_have_all(source):
    """Damage: a source that leaves columns out is always warned; or one that is to have all never gets their values."""

    async def body():
        source.add()
        source.stored().append(wider([4], 1.5))
        assert (await source.tick()).notices() == ()
        source.evolving, source.at = True, None
        source.stored().append(wider([5], 2.5))
        await source.tick()
        assert source.schema == WIDER
        assert source.held == source.upstream()

    asyncio.run(body())


def test_a_column_whose_type_does_not_hold_what_the_table_has_is_refused(source):
    """Damage: ALTER SOURCE takes a column by which the source stands still for good."""

    async def body():
        await source.tick()
        source.add()
        with pytest.raises(SourceError, match="column `w` is double there, which int does not hold"):
            await source.ask(Column("w", "int"))
        for can in (Column("w", "double"), Column("later", "int")):
            await source.ask(can)

    asyncio.run(body())
