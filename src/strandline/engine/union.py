"""Unions: the updates of several frames as one, in Arrow where they are here, else in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema, quote
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Distributed, Frame, Local, Planned, dataframe
from strandline.frontier import TIME_MAX


def union(session: SparkSession, schema: Schema, pairs: Sequence[tuple[Frame, bool]], advance: int) -> Frame:
    """Return the updates of several frames, some of them negated, with no time before ``advance``."""
    match pairs:
        case [(Planned(origin=origin) as planned, False)] if advance <= origin and ERROR not in planned.names:
            return planned
    has_error = any(ERROR in frame.names for frame, _ in pairs)
    plain = all(frame.plain and not negative for frame, negative in pairs)
    tables = [(frame.table, negative) for frame, negative in pairs if isinstance(frame, Local)]
    if len(tables) == len(pairs):
        target = inline.update_schema(schema)
        target = target if has_error else target.remove(target.get_field_index(ERROR))
        signed = (inline.negated(table) if negative else table for table, negative in tables)
        aligned = [inline.advanced(inline.conform(table, target), advance) for table in signed]
        return Local(pa.concat_tables([target.empty_table(), *aligned]), plain)
    columns = [*schema, *([Column(ERROR, "string")] if has_error else [])]
    origin = min(earliest(frame) for frame, _ in pairs)
    lazies = [
        _aligned(
            dataframe(frame, session, origin),
            columns,
            negative,
            # Left out where it can change nothing: a literal time is code that is compiled anew at every step.
            advance=advance - origin if earliest(frame) < advance else None,
        )
        for frame, negative in pairs
    ]
    return Distributed(reduce(DataFrame.unionAll, lazies), plain, origin)


def earliest(frame: Frame) -> int:
    """Return a time that no update of the frame is before."""
    match frame:
        case Local(table, _):
            return pc.min(table[TIME]).as_py() if table.num_rows else TIME_MAX
        case Distributed() | Planned():
            return frame.origin


def _aligned(lazy: DataFrame, columns: Sequence[Column], negative: bool, advance: int | None) -> DataFrame:
    """Return the updates with exactly these columns, signed and advanced.

    ``__error`` may be lacking, and if it is not, all others may.
    """
    if advance is None and not negative and lazy.columns == [*(c.name for c in columns), TIME, DIFF]:
        return lazy
    present = {name.lower() for name in lazy.columns}
    optional = {c.name for c in columns if (c.name == ERROR) is not (ERROR in present)}
    selected = [
        f"CAST(NULL AS {c.type}) AS {quote(c.name)}"
        if c.name in optional and c.name.lower() not in present
        else quote(c.name)
        for c in columns
    ]
    time = f"greatest({TIME}, {advance}L) AS {TIME}" if advance is not None else TIME
    return lazy.selectExpr(*selected, time, f"-{DIFF} AS {DIFF}" if negative else DIFF)
