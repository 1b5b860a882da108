"""What `contents.Rows` is here: a lazy Spark frame, a plan of one, or a small Arrow table without a job.

Each holds an update frame (columns, perhaps ``__error``, ``__time``, ``__diff``) or, after `multiset`, plain
rows.  ``plain`` promises that every diff is +1.  A read of inline parts alone stays in Arrow until something needs
Spark, so that the common small read costs microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from strandline.algebra.nodes import Node
from strandline.algebra.schema import DIFF, TIME, quote
from strandline.errors import InvalidUsage
from strandline.persist.handles.contents import Rows


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
    """Rows that a Spark job gives when it is run.

    The DataFrame's times count from ``origin``, and none is before it.  Spark compiles a literal into a plan's code, so
    a plan that names no absolute time is compiled once and not at every step.
    """

    dataframe: DataFrame
    plain: bool
    origin: int = 0

    @property
    def names(self) -> list[str]:
        """Column names, in order."""
        return list(self.dataframe.columns)


@dataclass(frozen=True, slots=True)
class Planned:
    """Rows that a plan gives of small tables in this process, in which no time is before ``origin``.

    The times that ``node`` names count from there.  ``distributed`` has Spark analyse it (it blocks).  ``behind``: the
    same rows, made of what other plans give.
    """

    node: Node
    tables: Mapping[str, pa.Table]
    origin: int
    distributed: Callable[[], Distributed]
    behind: Behind | None = None

    plain: ClassVar[bool] = False

    @property
    def names(self) -> list[str]:
        """Column names, in order."""
        return [*self.node.names, TIME, DIFF]


@dataclass(frozen=True, slots=True)
class Behind:
    """What ``node`` gives of the rows of the plans ``of``, by the names of its frames, once these have been run."""

    node: Node
    of: Mapping[str, Planned]


Frame: TypeAlias = Local | Distributed | Planned


def wrap(frame: Frame) -> Rows:
    """Return the frame as what the other rooms may hold and hand on."""
    return Rows(frame)


def unwrap(rows: Rows) -> Frame:
    """Return the frame again."""
    frame = cast("object", rows)
    if not isinstance(frame, Local | Distributed | Planned):
        raise InvalidUsage(f"these rows belong to another engine: {type(frame).__name__}")
    return frame


def dataframe(frame: Frame, session: SparkSession, origin: int = 0) -> DataFrame:
    """Return the frame as a lazy DataFrame of ``session``, its times counting from ``origin``."""
    match frame:
        case Local(table, _):
            # In one chunk, because Spark takes an empty one for the end, and cannot convert none of a nested type.
            shifted = (table if origin == 0 else later(table, -origin)).combine_chunks()
            if not shifted.num_rows:
                shifted = shifted.schema.empty_table()
            # Named types, because Spark would take a time without zone for one with.
            return session.createDataFrame(shifted, schema=from_arrow_schema(shifted.schema))
        case Distributed(lazy, _, own) if own == origin:
            return lazy
        case Planned():
            return dataframe(frame.distributed(), session, origin)
        case Distributed(lazy, _, own):
            columns = [f"{TIME} + {own - origin}L AS {TIME}" if name == TIME else quote(name) for name in lazy.columns]
            return lazy.selectExpr(*columns)


def later(table: pa.Table, by: int) -> pa.Table:
    """Return a table of updates with every time moved by ``by``."""
    moved = pc.add_checked(table[TIME], pa.scalar(by, pa.int64()))
    return table.set_column(table.schema.get_field_index(TIME), TIME, moved)
