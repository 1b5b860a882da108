"""Rows of this process become a frame of Spark's, however many there are and whatever their types."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from strandline.algebra.schema import DIFF, TIME
from strandline.engine.frames.rows import Local, dataframe

pytestmark = pytest.mark.spark

STRUCT = pa.struct([("x", pa.int32()), ("at", pa.timestamp("us"))])
KINDS = [STRUCT, pa.list_(pa.int32()), pa.list_(STRUCT), pa.map_(pa.string(), STRUCT), pa.int64()]


def test_no_rows_of_any_type_are_a_frame(spark: SparkSession) -> None:
    """Damage: a view with a struct cannot be read once its last row has gone."""
    schema = pa.schema([*((f"c{n}", kind) for n, kind in enumerate(KINDS)), (TIME, pa.int64()), (DIFF, pa.int64())])
    for none in (schema.empty_table(), pa.Table.from_batches([], schema)):
        for origin in (0, 5):
            found = dataframe(Local(none, plain=False), spark, origin)
            assert found.columns == schema.names
            assert found.collect() == []
