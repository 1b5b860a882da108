"""Binding: a text's question marks become values in the tree that Spark makes of the text.

So no text is written for a value, nothing glues to what stands beside it, and a value may stand wherever an expression
may.  Each has the type that its client gave it, but for one thing: programs send every whole number with 64 bits, and
Spark wants an INT after LIMIT and in many functions (`substring`, `date_add`).  Where it refuses a BIGINT, a number in
the range of INT is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.excerpt import Excerpt
from strandline.engine.asked import catalyst
from strandline.engine.asked.values import fits_int, literals

T = TypeVar("T")
_OF_TYPES: Final = (
    "DATATYPE_MISMATCH",
    "INVALID_EXTRACT_BASE_FIELD_TYPE",
    "INVALID_LIMIT_LIKE_EXPRESSION",
    "UNEXPECTED_INPUT_TYPE",
)
"""How the conditions of Spark's errors begin that say of a type that it does not fit."""


def query(session: SparkSession, sql: str, given: Sequence[pa.Scalar]) -> DataFrame:
    """Return the query ``sql``, analysed.  Raises what Spark raises; `InvalidUsage` for what is no value to it."""
    plan = catalyst.parsed(session, sql)
    return _tried(session, given, lambda values: catalyst.frame(session, catalyst.with_values(session, plan, values)))


def chosen(rows: DataFrame, condition: Excerpt) -> DataFrame:
    """Return the rows for which a condition is true.  Raises as `query`."""
    return analysed(rows, condition, rows.where)[1]


def analysed(rows: DataFrame, excerpt: Excerpt, use: Callable[[Column], T]) -> tuple[Column, T]:
    """Return an expression over ``rows``, and what ``use`` makes of it, for which Spark analyses it.

    Raises as `query`.
    """
    if not excerpt.given:
        found = F.expr(excerpt.text)
        return found, use(found)
    session = rows.sparkSession
    tree = catalyst.expression(session, excerpt.text)

    def used(values: list[Any]) -> tuple[Column, T]:
        bound = catalyst.column(session, tree, values)
        return bound, use(bound)

    return _tried(session, excerpt.given, used)


def _tried(session: SparkSession, given: Sequence[pa.Scalar], use: Callable[[list[Any]], T]) -> T:
    """Return what ``use`` makes of the values, of which as few as may be are narrowed to INT."""
    try:
        return use(literals(session, given))
    except AnalysisException as error:
        wide = [place for place, value in enumerate(given) if fits_int(value)]
        if not wide or not by_type(error):
            raise
        narrow = [value.cast(pa.int32()) if place in wide else value for place, value in enumerate(given)]
        try:
            found = use(literals(session, narrow))
        except AnalysisException:
            raise error from None
    for place in wide if len(wide) > 1 else ():
        wider = [*narrow[:place], given[place], *narrow[place + 1 :]]
        with suppress(AnalysisException):
            found, narrow = use(literals(session, wider)), wider
    return found


def by_type(error: AnalysisException) -> bool:
    """Tell whether Spark refuses the type of something, and not what a name means."""
    return (error.getCondition() or "").startswith(_OF_TYPES)
