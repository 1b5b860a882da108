"""Literals: the rows of ``VALUES (1, 'a'), …`` without Spark, where no reading of Spark's could give other ones.

Spark takes a fifth of a second to plan and to run the smallest query, and INSERT … VALUES of a few rows is what most
programs send.  So a literal becomes a value here if its column stores exactly that value: a whole number in the range
of its column, a text in a column of texts, a decimal that fits, a date, a time with seconds, NULL, true and false.
Whatever else stands there (an expression, an escape in a text, a number for a column of texts) is Spark's to judge.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from strandline.algebra.arrow_types import arrow
from strandline.algebra.notation import Excerpt
from strandline.algebra.schema import Column
from strandline.algebra.types import Atom, Type
from strandline.algebra.types import Decimal as DecimalType
from strandline.algebra.types import parse as type_of
from strandline.compute.plan.sql import parse
from strandline.errors import DefinitionError

ROWS_MAX: Final = 10_000
STATEMENTS_REMEMBERED: Final = 100
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_WHOLE: Final = re.compile(r"[0-9]+")
_DECIMAL: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")
"""Of more digits, Spark drops some where another row has more before the point: a column of VALUES has one type."""
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SECONDS: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?")
_ESCAPES: Final = ("\\", "''", '"')
"""With one of them in a text, Spark may read another one than is written."""
_EXACT_DOUBLES: Final = 2**53


class _SparksToJudge(Exception):
    """The rows are not known here."""


class _Beyond(Exception):
    """A number that no value of its column's type equals, in words: Spark would refuse it, too, and name no row."""


def rows(query: Excerpt, columns: Sequence[Column]) -> pa.Table | None:
    """Return the rows of a query that is VALUES of literals and parameters, for ``columns``; None: only Spark knows.

    >>> from strandline.errors import Position
    >>> at = Position(1, 1)
    >>> n, t = Column("n", "int"), Column("t", "string")
    >>> rows(Excerpt("VALUES (1, 'a'), (?, NULL)", at, (pa.scalar(-2),)), (n, t)).to_pydict()
    {'n': [1, -2], 't': ['a', None]}
    >>> rows(Excerpt("VALUES (1 + 1)", at), (n,)), rows(Excerpt("VALUES ('300')", at), (Column("n", "tinyint"),))
    (None, None)

    Raises `DefinitionError` for a whole number beyond its column's type; the message names row (the first is 1) and
    column.
    """
    text = query.text
    if not text.lstrip()[:6].upper().startswith("VALUES") or any(escape in text for escape in _ESCAPES):
        return None
    made: list[list[Any]] = []
    try:
        tree = _parsed(text)
        if type(tree) is not exp.Values or len(tree.expressions) > ROWS_MAX:
            return None
        if any(more for name, more in tree.args.items() if name != "expressions"):  # an alias, LIMIT, …
            return None
        given = iter(query.given)
        takes = [_taking(type_of(column.name, column.type), given) for column in columns]
        for row in tree.expressions:
            if type(row) is not exp.Tuple:
                return None
            made.append([])
            for take, cell in zip(takes, row.expressions, strict=True):
                made[-1].append(take(cell))
        if next(given, None) is not None:
            return None
        kinds = [arrow(type_of(column.name, column.type)) for column in columns]
        arrays = [pa.array([row[place] for row in made], kind) for place, kind in enumerate(kinds)]
        return pa.Table.from_arrays(arrays, names=[column.name for column in columns])
    except (_SparksToJudge, DefinitionError, ValueError, OverflowError, pa.ArrowException):
        return None
    except _Beyond as beyond:
        column = columns[len(made[-1])]
        raise DefinitionError(
            f"row {len(made)}: column {column.name!r} is {column.type}, {beyond}", query.start
        ) from None


def parameter_types(text: str, into: Sequence[pa.DataType]) -> list[pa.DataType] | None:
    """Return the type of each parameter of VALUES whose cells go into columns of these types; None: it is no VALUES.

    A parameter inside an expression is a text, which Spark casts.

    >>> parameter_types("VALUES (?, 1), (-?, ?)", [pa.date32(), pa.int32()])
    [DataType(date32[day]), DataType(string), DataType(int32)]
    """
    tree = _parsed(text)
    if type(tree) is not exp.Values or any(type(row) is not exp.Tuple for row in tree.expressions):
        return None
    return [
        kind if place is cell else pa.string()
        for row in tree.expressions
        for cell, kind in zip(row.expressions, into, strict=False)
        for place in cell.find_all(exp.Placeholder)
    ]


@lru_cache(maxsize=STATEMENTS_REMEMBERED)
def _parsed(text: str) -> exp.Expr | None:
    """Return a text's tree, which no one changes: programs send one statement with many values."""
    return parse(text)


def _taking(kind: Type, given: Iterator[pa.Scalar]) -> Callable[[exp.Expr], Any]:
    """Return what makes a value of a column's type of a literal, or raises `_SparksToJudge`.

    A parameter takes the next value of ``given``.
    """
    take: dict[str, Callable[[exp.Expr], Any]] = {
        "boolean": _boolean,
        "string": _text,
        "double": _double,
        "date": lambda cell: dt.date.fromisoformat(_said(cell, exp.DataType.Type.DATE, _DATE)),
        "timestamp": _moment,
    }
    match kind:
        case Atom(name) if name in _BITS:
            known: Callable[[exp.Expr], Any] = partial(_whole, limit=1 << (_BITS[name] - 1))
        case Atom(name) if name in take:
            known = take[name]
        case DecimalType():
            known = partial(_decimal, kind=kind)
        case _:
            known = _unknown

    def taken(cell: exp.Expr) -> Any:
        if type(cell) is exp.Placeholder and not cell.args.get("this"):
            return _sent(next(given, None), kind)
        return None if type(cell) is exp.Null else known(cell)

    return taken


def _unknown(_: exp.Expr) -> Any:
    raise _SparksToJudge


def _sent(value: pa.Scalar | None, kind: Type) -> pa.Scalar:
    """Return a value that a client sent, of the column's type: of the same one, or a whole number in its range."""
    if value is None:
        raise _SparksToJudge
    wanted = arrow(kind)
    if value.type.equals(wanted) or not value.is_valid:
        return value if value.is_valid else pa.scalar(None, wanted)
    if pa.types.is_signed_integer(value.type) and pa.types.is_signed_integer(wanted):
        return pa.scalar(_within(value.as_py(), 1 << (wanted.bit_width - 1)), wanted)
    raise _SparksToJudge


def _boolean(cell: exp.Expr) -> bool:
    if type(cell) is not exp.Boolean:
        raise _SparksToJudge
    return bool(cell.this)


def _text(cell: exp.Expr) -> str:
    if type(cell) is not exp.Literal or not cell.is_string:
        raise _SparksToJudge
    return str(cell.this)


def _number(cell: exp.Expr, form: re.Pattern[str]) -> str:
    """Return a number as it is written, with its sign."""
    negative = type(cell) is exp.Neg
    inner = cell.this if negative else cell
    if type(inner) is not exp.Literal or inner.is_string or not form.fullmatch(inner.this):
        raise _SparksToJudge
    return f"{'-' if negative else ''}{inner.this}"


def _whole(cell: exp.Expr, limit: int) -> int:
    return _within(int(_number(cell, _WHOLE)), limit)


def _within(value: int, limit: int) -> int:
    if not -limit <= value < limit:
        raise _Beyond(f"which holds {-limit} to {limit - 1}, and not {value}")
    return value


def _decimal(cell: exp.Expr, kind: DecimalType) -> Decimal:
    value = Decimal(_number(cell, _DECIMAL))
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    if scale > kind.scale or len(digits) - scale > kind.precision - kind.scale:
        raise _SparksToJudge
    return value


def _double(cell: exp.Expr) -> float:
    if isinstance(cell, exp.Cast):
        value = float(_said(cell, exp.DataType.Type.DOUBLE, re.compile(r"-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?")))
        if not math.isfinite(value):
            raise _SparksToJudge
        return value
    whole = int(_number(cell, _WHOLE))
    if abs(whole) > _EXACT_DOUBLES:
        raise _SparksToJudge
    return float(whole)


def _moment(cell: exp.Expr) -> dt.datetime:
    return dt.datetime.fromisoformat(_said(cell, exp.DataType.Type.TIMESTAMPTZ, _SECONDS)).replace(tzinfo=dt.UTC)


def _said(cell: exp.Expr, kind: Any, form: re.Pattern[str]) -> str:
    """Return the text that a literal of ``kind`` (DATE '…', CAST('…' AS DOUBLE)) has."""
    if not isinstance(cell, exp.Cast) or not cell.is_type(kind) or type(cell.this) is not exp.Literal:
        raise _SparksToJudge
    text = str(cell.this.this)
    if not cell.this.is_string or not form.fullmatch(text) or text.startswith("0000"):
        raise _SparksToJudge
    return text
