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
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import Column
from strandline.algebra.types import Atom, Type
from strandline.algebra.types import Decimal as DecimalType
from strandline.algebra.types import parse as type_of
from strandline.compute.plan.sql.dialect import parse
from strandline.errors import DefinitionError

ROWS_MAX: Final = 10_000
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


def rows(text: str, columns: Sequence[Column]) -> pa.Table | None:
    """Return the rows of a query that is VALUES of literals, for ``columns``; None: only Spark knows them.

    >>> rows("VALUES (1, 'a'), (-2, NULL)", (Column("n", "int"), Column("t", "string"))).to_pydict()
    {'n': [1, -2], 't': ['a', None]}
    >>> rows("VALUES (1 + 1)", (Column("n", "int"),)), rows("VALUES (300)", (Column("n", "tinyint"),))
    (None, None)
    """
    if not text.lstrip()[:6].upper().startswith("VALUES") or any(escape in text for escape in _ESCAPES):
        return None
    try:
        tree = parse(text)
        if type(tree) is not exp.Values or len(tree.expressions) > ROWS_MAX:
            return None
        if any(more for name, more in tree.args.items() if name != "expressions"):  # an alias, LIMIT, …
            return None
        takes = [_taking(type_of(column.name, column.type)) for column in columns]
        made = [
            [take(cell) for take, cell in zip(takes, row.expressions, strict=True)]
            for row in tree.expressions
            if type(row) is exp.Tuple or _raise()
        ]
        kinds = [arrow(type_of(column.name, column.type)) for column in columns]
        arrays = [pa.array([row[place] for row in made], kind) for place, kind in enumerate(kinds)]
        return pa.Table.from_arrays(arrays, names=[column.name for column in columns])
    except (_SparksToJudge, DefinitionError, ValueError, OverflowError, pa.ArrowException):
        return None


def _raise() -> Any:
    raise _SparksToJudge


def _taking(kind: Type) -> Callable[[exp.Expr], Any]:
    """Return what makes a value of a column's type of a literal, or raises `_SparksToJudge`."""
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
            raise _SparksToJudge
    return lambda cell: None if type(cell) is exp.Null else known(cell)


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
    value = int(_number(cell, _WHOLE))
    if not -limit <= value < limit:
        raise _SparksToJudge
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
