"""Questions about rows: plain queries, sums, differences.

`query` and `answer` are where a user's SQL runs as it is written, by plain Spark, over multisets.  `answer` answers
reads, with whatever columns Spark gives; `query` is the oracle that `verify` compares a view with, so its rows are some
that a collection could hold.  The rest adds updates up, times ignored: in Arrow where the
rows are here and Arrow can group them, else as a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.schema import DIFF, ERROR, TIME, Schema, quote
from strandline.engine.asked import catalyst
from strandline.engine.frames import compare, inline
from strandline.engine.frames.ddl import schema_of
from strandline.engine.frames.rows import Distributed, Frame, Local, dataframe
from strandline.engine.sql import consolidate, fragments
from strandline.engine.sql.analysis import analysed
from strandline.plane import Differences

_HASH: Final = "__hash"


def query(session: SparkSession, sql: str, names: Sequence[str], *, time: int) -> tuple[Schema, Distributed]:
    """Return the answer to ``sql`` over ``session``'s views ``names`` (multisets) as insertions at ``time``.

    Raises `DefinitionError` if Spark refuses the text.
    """
    answer = analysed(session, sql, names)
    schema = schema_of(answer.schema)
    updates = catalyst.inlined(answer).selectExpr("*", f"{time}L AS {TIME}", f"1L AS {DIFF}")
    return schema, Distributed(updates, plain=True)


def answer(
    session: SparkSession, sql: str, names: Sequence[str], given: Sequence[pa.Scalar]
) -> tuple[pa.Schema, Distributed]:
    """Return the answer to ``sql`` over ``session``'s views ``names`` (multisets), and its columns as Arrow has them.

    ``given``: the values of its question marks.  Raises as `query`, but for no name and no type of a column.
    """
    rows = analysed(session, sql, names, given)
    return catalyst.shape(rows), Distributed(rows, plain=True)


def expanded(updates: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return each row as often as its diffs add up to; a negative sum fails the job and names the row.

    It fails by a sentence that is no number of the format `inline.REFUSING`: Spark takes `raise_error` for no function
    of the rows, and then refuses a lateral subquery.
    """
    quoted = [quote(name) for name in names]
    row = f"to_json(struct({', '.join(quoted)}), map('ignoreNullFields', 'false'))"
    message = f"concat('{inline.NEGATIVE} ', {DIFF}, ': ', {row})"
    refused = f"CAST(to_number({message}, '{inline.REFUSING}') AS BIGINT)"
    count = f"CASE WHEN {DIFF} < 0 THEN {refused} ELSE {DIFF} END AS {DIFF}"
    counted = _added_up(updates, quoted).selectExpr(*quoted, count)
    blocks = counted.selectExpr(*quoted, DIFF, f"{fragments.BLOCKS} AS __block")
    return blocks.selectExpr(*quoted, f"{fragments.COPIES} AS __copy").select(*quoted)


def netted(frame: Frame, time: int, session: SparkSession) -> Frame:
    """Return the updates added up, all at ``time``."""
    names = inline.data_columns(frame.names)
    if isinstance(frame, Local) and inline.can_group(frame.table):
        sums = inline.added_up(frame.table.select([*names, DIFF]))
        times = pa.chunked_array([pa.repeat(pa.scalar(time, pa.int64()), sums.num_rows)], type=pa.int64())
        return Local(sums.add_column(len(names), TIME, times), plain=False)
    columns = [quote(name) for name in names]
    return Distributed(
        _added_up(dataframe(frame, session), columns).selectExpr(*columns, f"0L AS {TIME}", DIFF), False, origin=time
    )


def restricted(frame: Frame, to: Frame, schema: Schema, session: SparkSession) -> Distributed:
    """Return the updates whose row has the hash of a row of ``to``: all of the wanted ones, and hardly any others.

    A semi join by a hash, and not by the columns, works for every type that we keep.
    """
    key = f"{consolidate.low_hash(schema, has_error=False)} AS {_HASH}"
    normal = [name for name in consolidate.normal_columns(schema, to.names, normalise=True) if name != ERROR]
    wanted = dataframe(to, session).selectExpr(*normal).selectExpr(key).distinct()
    origin = frame.origin if isinstance(frame, Distributed) else 0
    kept = dataframe(frame, session, origin).selectExpr("*", key).join(wanted, on=_HASH, how="left_semi").drop(_HASH)
    return Distributed(kept, frame.plain, origin)


def differences(frame: Frame, schema: Schema, session: SparkSession, *, significant: int | None) -> Differences:
    """Return how many rows the updates leave too few (Σ diff < 0) and too many, and a few, those too few first."""
    if isinstance(frame, Local) and inline.can_group(frame.table):
        return compare.differences(inline.added_up(frame.table.select([*schema.names, DIFF])), significant)
    rounded = dataframe(frame, session).selectExpr(*compare.rounded(schema, significant), DIFF)
    left = _added_up(rounded, [quote(name) for name in schema.names])
    few = left.limit(compare.PAIRED_ROWS_MAX + 1).toArrow()  # one job, where they are equal or nearly so
    if few.num_rows <= compare.PAIRED_ROWS_MAX:
        return compare.differences(few, significant)
    left = left.cache()
    try:
        totals = left.selectExpr(f"sum(if({DIFF} < 0, -{DIFF}, 0L))", f"sum(if({DIFF} > 0, {DIFF}, 0L))").collect()[0]
        sample = left.orderBy(DIFF).limit(compare.SAMPLE_ROWS_MAX).toArrow()
        return Differences(totals[0], totals[1], sample)
    finally:
        left.unpersist()


def _added_up(updates: DataFrame, quoted: Sequence[str]) -> DataFrame:
    """Return the updates added up.  Nothing above is evaluated on a row that adds up to nothing.

    Spark would do that: it moves a condition on columns below the sum.  It moves none below a sample, also if that is
    all rows.  (Nor below what is not deterministic, but over that it refuses a lateral subquery.)
    """
    sums = updates.groupBy(*(F.col(name) for name in quoted)).agg(F.expr(f"sum({DIFF}) AS {DIFF}"))
    return sums.sample(fraction=1.0, seed=0).where(f"{DIFF} <> 0")
