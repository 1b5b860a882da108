"""Pruning: which stored rows may have a key, by the bounds that parts keep of their columns.

The rows of a part ascend by its leading column, and row groups keep the least and greatest value of each.  So where the
keys of a change lie close together, a large window need not read the rest of a collection: not even parts are opened
that end before the least key or begin after the greatest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.schema import quote
from strandline.engine.frames.rows import Frame, Local, dataframe
from strandline.engine.parts.footers import Described

SHARE_MAX: Final = 0.5
"""If a larger share of the rows may have the keys, all are read: the keys do not lie together."""
Value: TypeAlias = int | str | date


@dataclass(frozen=True, slots=True)
class Reach:
    """Values of ``column`` from ``least`` to ``greatest``, and with ``nulls`` NULL."""

    column: str
    least: Value
    greatest: Value
    nulls: bool

    @property
    def condition(self) -> Column:
        """For Spark, whose Parquet reader passes over row groups by it."""
        column = F.col(quote(self.column))
        within = column.between(F.lit(self.least), F.lit(self.greatest))
        return within | column.isNull() if self.nulls else within

    def share(self, parts: Sequence[Described]) -> float:
        """Return the share of the rows that lie in row groups which may have such a value."""
        groups = [group for part in parts for group in _groups(part.metadata)]
        rows = sum(group.num_rows for group in groups)
        return sum(group.num_rows for group in groups if self._meets(group)) / rows if rows else 0.0

    def meets(self, part: Described) -> bool:
        """Tell whether the part may hold such a value."""
        return any(self._meets(group) for group in _groups(part.metadata))

    def _meets(self, group: pq.RowGroupMetaData) -> bool:
        known = _statistics(group, self.column)
        if known is None or type(known.min) is not type(self.least):
            return True
        if self.nulls and (not known.has_null_count or known.null_count):
            return True
        least: Any = known.min
        greatest: Any = known.max
        return bool(least <= self.greatest and greatest >= self.least)


def reach(
    column: str, kind: pa.DataType, keys: Sequence[tuple[Frame, str]], session: SparkSession, *, nulls: bool
) -> Reach | None:
    """Return how far the values in the columns of ``keys`` reach; None if there are none, or they have no such order.

    NULL is reached if ``nulls``.  A job runs for each frame that is not here.
    """
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind)):
        return None
    found = [_ends(frame, name, session) for frame, name in keys]
    if any(each.type != kind for each in found):
        return None
    ends = pc.min_max(pa.chunked_array(found, kind))
    if not ends["min"].is_valid:
        return None
    return Reach(column, ends["min"].as_py(), ends["max"].as_py(), nulls)


def _ends(frame: Frame, name: str, session: SparkSession) -> pa.Array:
    """Return the least and the greatest value of a column."""
    if isinstance(frame, Local):
        ends = pc.min_max(frame.table[name])
        return pa.array([ends["min"].as_py(), ends["max"].as_py()], frame.table[name].type)
    column = F.col(quote(name))
    table = dataframe(frame, session).agg(F.min(column).alias("least"), F.max(column).alias("greatest")).toArrow()
    return pa.concat_arrays([*table["least"].chunks, *table["greatest"].chunks])


def _groups(metadata: pq.FileMetaData) -> list[pq.RowGroupMetaData]:
    return [metadata.row_group(n) for n in range(metadata.num_row_groups)]


def _statistics(group: pq.RowGroupMetaData, column: str) -> pq.Statistics | None:
    """Return what a row group says of a column; None if it says nothing."""
    at = next((n for n in range(group.num_columns) if group.column(n).path_in_schema.lower() == column.lower()), None)
    found = None if at is None else group.column(at).statistics
    return found if found is not None and found.has_min_max else None
