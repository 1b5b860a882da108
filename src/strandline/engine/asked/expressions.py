"""Question marks of a query: the types and values that take their places, and Spark's refusals as sentences.

A question mark becomes a value in the tree that Spark makes of the text.  So no text is written for a value, nothing
glues to its neighbours, and a value may stand wherever an expression may.  Each value has the type that its client
gave it, with one exception.  Programs send every whole number with 64 bits, and Spark wants an INT after LIMIT and in
many functions (`substring`, `date_add`): if Spark refuses a BIGINT, a number in the range of INT is taken as an INT.

A client may ask for the types before it sends values (`of_query`), and one that converts them itself (JDBC) sends what
it was answered.  What Spark refuses of a text is reported to its author in one sentence, with the place in the text
and similar names (`refusal`).
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import types as kinds
from pyspark.errors import AnalysisException, ParseException, PySparkException, QueryContextType
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.arrow_types import DECIMAL_DIGITS_MAX, arrow, spark_type
from strandline.algebra.notation import Excerpt
from strandline.algebra.schema import quote
from strandline.algebra.types import parse
from strandline.engine.asked import catalyst
from strandline.engine.session import reach
from strandline.errors import DefinitionError, InvalidUsage, Position
from strandline.plane import Described

_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_NANOSECONDS: Final = 1_000
_NO_TIME: Final = "nullif(TIME '00:00:00.000000', TIME '00:00:00.000000')"
_INT: Final = range(-(2**31), 2**31)
_LONG: Final = range(-(2**63), 2**63)


def literals(session: SparkSession, given: Sequence[pa.Scalar]) -> list[Any]:
    """Return Catalyst's literals of ``given``.

    They have the types that Arrow gives the values, and are never text.  A value is made by Spark's own functions of
    numbers, texts and bytes, and folded to one literal of Catalyst.  So a NULL, an array and a struct keep their type
    as well, and a literal may stand wherever an expression may.

    Trap: the times of Arrow are whole numbers of a unit, and are taken as such, since a Python `datetime` has neither
    their range nor their nanoseconds.

    Raises `InvalidUsage` for a value that Spark has none for; it is called by its number.
    """
    if not given:
        return []
    columns = []
    for number, value in enumerate(given, start=1):
        try:
            columns.append(_column(value))
        except (DefinitionError, ValueError, OverflowError, pa.ArrowException) as error:
            raise _refused(number, value, str(error)) from error
    try:
        return catalyst.folded(session, columns)
    except PySparkException as error:
        raise InvalidUsage(f"Spark takes the parameters for no values: {error.getMessage() or error}") from error


def fits_int(value: pa.Scalar) -> bool:
    """Tell whether it is a whole number of 64 bits in the range of INT."""
    return bool(kinds.is_int64(value.type) and value.is_valid and value.as_py() in _INT)


def type_of(kind: pa.DataType) -> str:
    """Return the type that Spark gives values of an Arrow type.

    >>> type_of(pa.map_(pa.string(), pa.timestamp("ns"))), type_of(pa.null()), type_of(pa.decimal128(5, -2))
    ('map<string,timestamp_ntz>', 'void', 'decimal(7,0)')

    Raises `DefinitionError` if it has none.
    """
    if kinds.is_null(kind):
        return "void"
    if kinds.is_dictionary(kind):
        return type_of(kind.value_type)
    if kinds.is_map(kind):
        return f"map<{type_of(kind.key_type)},{type_of(kind.item_type)}>"
    if _is_list(kind):
        return f"array<{type_of(kind.value_type)}>"
    if kinds.is_struct(kind):
        return f"struct<{','.join(f'{quote(field.name)}:{type_of(field.type)}' for field in kind)}>"
    if kinds.is_time(kind):
        return "time(6)"
    if kinds.is_duration(kind):
        return "interval day to second"
    if kinds.is_interval(kind):
        return "interval"
    if kinds.is_decimal(kind) and kind.scale < 0:
        return _decimal_type(kind.precision - kind.scale, 0)
    if kinds.is_decimal(kind):
        return _decimal_type(kind.precision, kind.scale)
    return spark_type("", kind)


def _decimal_type(precision: int, scale: int) -> str:
    if precision > DECIMAL_DIGITS_MAX:
        raise DefinitionError(f"a decimal of Spark's has {DECIMAL_DIGITS_MAX} digits at most, and this one {precision}")
    return f"decimal({precision},{scale})"


def _column(value: pa.Scalar) -> Column:
    """Return a value as an expression without columns."""
    kind = value.type
    if isinstance(value, pa.ExtensionScalar | pa.DictionaryScalar):
        inner = value.value
        return F.lit(None).cast(type_of(getattr(kind, "storage_type", kind))) if inner is None else _column(inner)
    if kinds.is_time(kind):  # no cast: but for its literals, Spark's TIME is turned off
        return F.expr(f"TIME '{_time(_micros(value.value, kind.unit))}'" if value.is_valid else _NO_TIME)
    if not value.is_valid:
        return F.lit(None) if kinds.is_null(kind) else F.lit(None).cast(type_of(kind))
    if kinds.is_map(kind):
        pairs = [_column(each[name]) for each in value.values for name in each]
        return F.create_map(*pairs).cast(type_of(kind))
    if _is_list(kind):
        return F.array(*(_column(each) for each in value.values)).cast(type_of(kind))
    if kinds.is_struct(kind):
        fields = [_column(value[place]).alias(field.name) for place, field in enumerate(kind)]
        return F.struct(*fields).cast(type_of(kind))
    return _atom(value, kind).cast(type_of(kind))


def _atom(value: pa.Scalar, kind: pa.DataType) -> Column:
    if kinds.is_timestamp(kind):
        return _moment(value.value, kind)
    if kinds.is_date(kind):
        return F.date_from_unix_date(F.lit(value.cast(pa.date32()).value))
    if kinds.is_duration(kind):
        return F.lit(dt.timedelta(microseconds=_micros(value.value, kind.unit)))
    if kinds.is_interval(kind):
        months, days, nanoseconds = value.as_py()
        seconds = Decimal(_micros(nanoseconds, "ns")).scaleb(-6)
        return F.make_interval(months=F.lit(months), days=F.lit(days), secs=F.lit(seconds).cast("decimal(18,6)"))
    if kinds.is_uint64(kind):
        return F.lit(Decimal(value.as_py()))
    if kinds.is_decimal(kind):
        return F.lit(value.as_py())
    if kinds.is_floating(kind):
        return F.lit(float(value.as_py()))
    return F.lit(value.as_py())


def _moment(count: int, kind: pa.DataType) -> Column:
    """Return a point in time, in microseconds; without a zone, it is one in UTC, as our sessions are."""
    moment = F.timestamp_micros(F.lit(_micros(count, kind.unit)))
    return moment if kind.tz is not None else moment.cast("timestamp_ntz")


def _micros(count: int, unit: str) -> int:
    if unit == "ns":
        whole, rest = divmod(count, _NANOSECONDS)
        if rest:
            raise ValueError("it has nanoseconds, and Spark has times of whole microseconds")
        return whole
    found: int = count * _MICROSECONDS[unit]
    if found not in _LONG:
        raise ValueError("it is beyond the times of Spark")
    return found


def _time(micros: int) -> str:
    """Return a time of day.

    >>> _time(3_723_000_004)
    '01:02:03.000004'
    """
    seconds, rest = divmod(micros, 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:06}"


def _is_list(kind: pa.DataType) -> bool:
    known = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list, kinds.is_list_view, kinds.is_large_list_view)
    return any(is_one(kind) for is_one in known)


def _refused(number: int, value: pa.Scalar, why: str) -> InvalidUsage:
    return InvalidUsage(f"parameter {number} is a value of Arrow's type {value.type}, which Spark has none for: {why}")


_PARSE_POSITION: Final = re.compile(r"\(line (\d+), pos(?:ition)? (\d+)\)")
_STATE_AND_TRACE: Final = re.compile(r"\s*SQLSTATE:.*", re.DOTALL)
_CANDIDATES_MAX: Final = 3
_PROPOSED_MAX: Final = 5
"""How many columns Spark proposes at most, of all that there are."""
_LIKENESS_MIN: Final = 0.6


def refusal(error: PySparkException, sql: str, names: Sequence[str], *, before: int = 0) -> DefinitionError:
    """Return what Spark said in one sentence, with the position in the caller's ``sql``.

    ``names`` are the relations that there are; ``before``: how many characters of the text that Spark read come before
    ``sql``.
    """
    if isinstance(error, ParseException):
        found = _PARSE_POSITION.search(str(error))
        place = Position(int(found[1]), int(found[2]) + 1) if found else None  # Spark counts columns from 0
        return DefinitionError(sentence(str(error)), place)
    condition = error.getCondition() or ""
    parameters = error.getMessageParameters() or {}
    position = _position(error, sql, before)
    if condition.startswith("UNRESOLVED_COLUMN"):
        missing = _unquoted(parameters.get("objectName"))
        proposed = _unquoted(parameters.get("proposal")).split(", ")
        some = len(proposed) >= _PROPOSED_MAX
        return DefinitionError(f"unknown column {missing}{_candidates(missing, proposed, some=some)}", position)
    if condition == "UNRESOLVED_ROUTINE" and (barred := reach.barred(parameters.get("routineName", ""))):
        return DefinitionError(barred, position)
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        missing = _unquoted(parameters.get("relationName"))
        return DefinitionError(f"unknown relation {missing}{_candidates(missing, names)}", position)
    return DefinitionError(sentence(str(error)), position)


def _position(error: PySparkException, sql: str, before: int) -> Position | None:
    for context in error.getQueryContext():
        if context.contextType() is QueryContextType.SQL and context.objectType() == "":
            return place_in(sql, context.startIndex() - before)
    return None


def place_in(sql: str, index: int) -> Position | None:
    """Return where the character ``index`` of ``sql`` is; None if it is outside."""
    if not 0 <= index <= len(sql):
        return None
    before = sql[:index]
    return Position(before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1)


def _candidates(missing: str, names: Sequence[str], *, some: bool = False) -> str:
    """Return which of ``names`` may be meant by ``missing``; if none, all of them (``some``: there may be others)."""
    names = [name for name in names if name]
    near = difflib.get_close_matches(missing, names, n=_CANDIDATES_MAX, cutoff=_LIKENESS_MIN)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; there is {', '.join(sorted(names))}{', among others' if some else ''}" if names else ""


def _unquoted(name: str | None) -> str:
    return (name or "").replace("`", "")


def sentence(text: str) -> str:
    """Return Spark's sentence without its error class, its state code and the trace and plan that follow.

    >>> sentence("[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'. SQLSTATE: 42601 (line 1, pos 9)")
    "Syntax error at or near 'FORM'."
    """
    return _STATE_AND_TRACE.sub("", re.sub(r"^\[[A-Z_.0-9]+\]\s*", "", text.strip())).splitlines()[0]


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

    While Spark analyses, each question mark is a variable of text: it is compared with something, which shows its
    type, or Spark casts it, and the type of the cast is that of the place.  (A NULL without a type would do as well,
    if Spark did not replace it.) If Spark refuses the text, all places hold whole numbers, and if it refuses those,
    NULLs without a type, with which arrays and structs are compared.  A place that refuses all three takes only an
    array, a struct or a map, and only the value will show of which type.
    """
    plan = catalyst.parsed(session, sql)

    def analysed(values: list[Any]) -> DataFrame:
        return catalyst.frame(session, catalyst.with_values(session, plan, values))

    rows = _analysed(session, count, limits, analysed) if count else analysed([])
    if rows is None:
        return Described(pa.schema([]), _unknown(count), {})
    reach.refuse(rows)
    if not count:
        return Described(catalyst.shape(rows), (), {})
    whole = catalyst.analysed_plan(rows)
    kinds = _kinds(whole, count)
    typed = [_WHOLE if number in limits else pa.scalar(None, kind) for number, kind in enumerate(kinds)]
    with suppress(AnalysisException):  # with values of these types the columns may have others
        rows = analysed(literals(session, typed))
    return Described(catalyst.shape(rows), tuple(kinds), dict(_outputs(whole)))


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
