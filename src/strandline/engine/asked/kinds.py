"""Kinds: which type a value has to have in the place of each question mark, as Spark's analyser sees it.

A client may ask before it sends values, and one that converts them itself (JDBC) sends what it was answered.  So each
question mark is a variable, a text, while Spark analyses: what it is compared with has its type then, and what Spark
casts it to is the type of any other place.  (A NULL without a type would say as much, if Spark did not put another one
in its place.)  Where Spark refuses a text, whole numbers stand in all places, and else NULLs without a type: with these
arrays and structs are compared.  A place that refuses all three takes an array, a struct or a map alone, and the values
will tell of which type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from strandline.algebra.arrow_types import arrow
from strandline.algebra.types import parse
from strandline.engine.asked import catalyst, forms
from strandline.engine.asked.binding import by_type
from strandline.engine.asked.values import literals
from strandline.engine.session import reach
from strandline.errors import DefinitionError
from strandline.plane.described import Described

T = TypeVar("T")

_TEXT: Final = pa.scalar("1")
_WHOLE: Final = pa.scalar(1, pa.int32())
_NULL: Final = pa.scalar(None)
_MARK: Final = "parameter_"
_TYPED_ALIKE: Final = frozenset(
    {
        "EqualTo",
        "EqualNullSafe",
        "LessThan",
        "LessThanOrEqual",
        "GreaterThan",
        "GreaterThanOrEqual",
        "In",
        "Add",
        "Subtract",
        "Multiply",
        "Remainder",
    }
)
"""Where a value is to have the type of what stands beside it."""
_CAST: Final = "Cast"


def of_query(session: SparkSession, sql: str, count: int, limits: Collection[int]) -> Described:
    """Return what ``sql``, a query with ``count`` question marks, is answered with, and what is to stand in these.

    ``limits``: the numbers of those that say how many rows.  Where only the values will tell, there are no columns, and
    each type is that of NULL.  Raises what Spark raises, and as `reach.refuse`.
    """
    plan = catalyst.parsed(session, sql)

    def analysed(values: list[Any]) -> DataFrame:
        return catalyst.frame(session, catalyst.with_values(session, plan, values))

    rows = _analysed(session, count, limits, analysed) if count else analysed([])
    if rows is None:
        return Described(pa.schema([]), _unknown(count), {})
    reach.refuse(rows)
    if not count:
        return Described(forms.shape(rows), (), {})
    whole = catalyst.analysed_plan(rows)
    kinds = _kinds(whole, count)
    typed = [_WHOLE if number in limits else pa.scalar(None, kind) for number, kind in enumerate(kinds)]
    with suppress(AnalysisException):  # with values of these types the columns may have others
        rows = analysed(literals(session, typed))
    return Described(forms.shape(rows), tuple(kinds), dict(_outputs(whole)))


def of_expression(rows: DataFrame, text: str, count: int) -> tuple[pa.DataType, ...]:
    """Return what is to stand in the ``count`` question marks of an expression over ``rows``.  Raises as `of_query`."""
    session = rows.sparkSession
    tree = catalyst.expression(session, text)

    def analysed(values: list[Any]) -> DataFrame:
        return rows.select(catalyst.column(session, tree, values))

    found = _analysed(session, count, (), analysed)
    if found is None:
        return _unknown(count)
    reach.refuse(found)
    return tuple(_kinds(catalyst.analysed_plan(found), count))


def _analysed(
    session: SparkSession, count: int, limits: Collection[int], use: Callable[[list[Any]], DataFrame]
) -> DataFrame | None:
    """Return a frame with a variable in each place; None: Spark refuses each type of these that is tried."""
    refused: AnalysisException | None = None
    for kind in (_TEXT, _WHOLE, _NULL):
        values = [_WHOLE if number in limits else kind for number in range(count)]
        try:
            return use(_variables(session, values))
        except AnalysisException as error:
            refused = refused or error
    if refused is not None and not by_type(refused):
        raise refused
    return None


def _unknown(count: int) -> tuple[pa.DataType, ...]:
    return (pa.null(),) * count


def _variables(session: SparkSession, values: Sequence[pa.Scalar]) -> list[Any]:
    named = enumerate(literals(session, values))
    return [catalyst.variable(session, f"{_MARK}{number}", value) for number, value in named]


def _kinds(plan: Any, count: int) -> list[pa.DataType]:
    """Return the type for each variable of an analysed plan; of one that has any, that of a text."""
    found: dict[int, pa.DataType] = {}
    for each, around in catalyst.expressions(plan):
        number = _number(each)
        if number is not None and number not in found:
            kind = _told(each, around)
            if kind is not None:
                found[number] = kind
    return [found.get(number, pa.string()) for number in range(count)]


def _told(variable: Any, around: tuple[Any, ...]) -> pa.DataType | None:
    """Return the type that the place of a variable says."""
    inner, outside = variable, list(around)
    cast_to = None
    while outside and catalyst.kind(outside[-1]) == _CAST:
        inner = outside.pop()
        cast_to = inner if cast_to is None else cast_to
    if outside and catalyst.kind(outside[-1]) in _TYPED_ALIKE:
        for beside in catalyst.listed(outside[-1].children()):
            bare = _bare(beside)
            if not beside.equals(inner) and catalyst.kind(bare) not in {"Literal", "VariableReference"}:
                return _arrow(bare.dataType())
    return _arrow((variable if cast_to is None else cast_to).dataType())


def _bare(expression: Any) -> Any:
    while catalyst.kind(expression) == _CAST:
        expression = expression.child()
    return expression


def _outputs(plan: Any) -> Iterator[tuple[int, int]]:
    """Yield the variables that are columns of a query by themselves, each with the place of its column."""
    while True:
        columns = catalyst.listed(plan.expressions())
        passes = catalyst.kind(plan) == "Project" and all(catalyst.kind(c) == "AttributeReference" for c in columns)
        if not (passes or catalyst.kind(plan) == "SubqueryAlias"):
            break
        plan = plan.child()
    if catalyst.kind(plan) == "Project":
        for place, column in enumerate(columns):
            number = _number(column.child()) if catalyst.kind(column) == "Alias" else None
            if number is not None:
                yield number, place


def _number(expression: Any) -> int | None:
    if catalyst.kind(expression) != "VariableReference":
        return None
    return int(str(expression.identifier().name()).removeprefix(_MARK))


def _arrow(kind: Any) -> pa.DataType | None:
    try:
        return arrow(parse("", str(kind.catalogString())))
    except DefinitionError:
        return None
