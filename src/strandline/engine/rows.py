"""What `persist.plane.Rows` is here: a lazy Spark frame, or a small Arrow table that needs no Spark job at all.

Both hold an update frame (columns, perhaps ``__error``, ``__time``, ``__diff``) or, after `multiset`, plain
rows.  ``plain`` promises that every diff is +1.  A read of inline parts alone stays in Arrow until something needs
Spark, so that the common small read costs microseconds.

Source: design page "the house planned" (`Engine` over opaque `Rows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from strandline.errors import InvalidUsage
from strandline.persist.plane import Rows


@dataclass(frozen=True, slots=True)
class Local:
    """Rows in this process."""

    table: pa.Table
    plain: bool

    @property
    def names(self) -> list[str]:
        """Column names, in order."""
        return list(self.table.column_names)


@dataclass(frozen=True, slots=True)
class Distributed:
    """Rows that a Spark job gives when it is run."""

    dataframe: DataFrame
    plain: bool

    @property
    def names(self) -> list[str]:
        """Column names, in order."""
        return list(self.dataframe.columns)


Frame: TypeAlias = Local | Distributed


def wrap(frame: Frame) -> Rows:
    """Return the frame as what the other rooms may hold and hand on."""
    return Rows(frame)


def unwrap(rows: Rows) -> Frame:
    """Return the frame again."""
    frame = cast("object", rows)
    if not isinstance(frame, Local | Distributed):
        raise InvalidUsage(f"these rows are not of this engine: {type(frame).__name__}")
    return frame


def dataframe(frame: Frame, session: SparkSession) -> DataFrame:
    """Return the frame as a lazy DataFrame of ``session``."""
    match frame:
        case Local(table, _):
            # Named types, because Spark would take a time without zone for one with.
            return session.createDataFrame(table, schema=from_arrow_schema(table.schema))
        case Distributed(lazy, _):
            return lazy
