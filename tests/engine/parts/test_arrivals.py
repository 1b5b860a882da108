"""Records that a reader made have their own times and diffs, few or many."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from strandline.algebra.messages import GONE, KEPT, ORDER
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.engine.frames.rows import dataframe, unwrap
from strandline.engine.parts.aside import Arrivals
from strandline.store.memory import MemoryBlob
from strandline.testing.lists.list_engine import ListEngine

SCHEMA = Schema(
    (Column("id", "int"), Column("n", "decimal(10,2)"), Column("at", "timestamp"), Column("tags", "array<string>"))
)
AT = datetime(2024, 2, 29, 12, tzinfo=UTC)


def table(first, count, *, keyed, bad=False):
    """Some records."""
    ids = list(range(first, first + count))
    columns = {
        "id": pa.array(ids, pa.int32()),
        "n": pa.array([Decimal("1.50")] * count, pa.decimal128(10, 2)),
        "at": pa.array([AT] * count, pa.timestamp("us", "UTC")),
        "tags": pa.array([["a", None]] * count, pa.list_(pa.string())),
        ERROR: pa.array(["{}" if bad else None] * count, pa.string()),
        TIME: pa.array([1000 + n for n in ids], pa.int64()),
        DIFF: pa.array([1] * count, pa.int64()),
    }
    if keyed:
        columns |= {
            ORDER: pa.array(ids, pa.int64()),
            GONE: pa.array([n % 2 == 0 for n in ids], pa.bool_()),
            KEPT: pa.array([["n"] if n % 3 == 0 else None for n in ids], pa.list_(pa.string())),
        }
    return pa.table(columns)


def expected(tables, *, bad):
    """The same, over lists."""
    engine = ListEngine(MemoryBlob())
    with engine.arrivals(SCHEMA, keyed=ORDER in tables[0].column_names) as into:
        for each in tables:
            into.add(each)
        rows = into.rows().rows
    assert all((ERROR in row) == bad for row in rows)
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.spark
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "taken back"])
@pytest.mark.parametrize("bad", [True, False], ids=["errors", "no errors"])
@pytest.mark.parametrize("held", [1 << 20, 1], ids=["in memory", "in a file"])
def test_records_keep_their_times_and_columns(spark, keyed, bad, held):
    """Damage: a record gets another time, or loses what it says of its key, where there are many."""
    tables = [table(0, 5, keyed=keyed), table(5, 4, keyed=keyed, bad=bad)]
    with Arrivals(spark, SCHEMA, keyed=keyed, held_bytes_max=held) as into:
        for each in tables:
            into.add(each)
        frame = unwrap(into.rows())
        assert frame.plain == (not keyed)
        found = dataframe(frame, spark).toArrow().to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == expected(tables, bad=bad)


@pytest.mark.spark
def test_nothing_arrives_as_nothing(spark):
    """Damage: a step without changes fails."""
    with Arrivals(spark, SCHEMA, keyed=True) as into:
        assert dataframe(unwrap(into.rows()), spark).toArrow().num_rows == 0


@pytest.mark.spark
def test_withdrawals_are_not_taken_for_insertions(spark):
    """Damage: a frame says that it is plain, and its withdrawals become rows."""
    with Arrivals(spark, SCHEMA, keyed=False) as into:
        into.add(table(0, 2, keyed=False).set_column(6, DIFF, pa.array([1, -1], pa.int64())))
        assert not unwrap(into.rows()).plain
