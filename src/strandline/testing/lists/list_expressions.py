"""Scalar expressions and casts over Python values: the small part of Spark SQL that simulated views use.

An expression is a sqlglot tree; `evaluator` turns it into a function of a row.  Values are Python's: int for all whole
numbers, Decimal, float, str, bool, and None for NULL.  Logic has three values.  An operation that fails in Spark's ANSI
mode (a division by zero, a number out of range, a text that is no number) raises `EvaluationError`, as in the engine.
Casts are Spark's in ANSI mode.

It knows columns, literals, ``+ - * / % DIV``, comparisons, ``<=>``, AND, OR, NOT, IS, IN (a list), BETWEEN, CASE, IF,
COALESCE, NULLIF, GREATEST, LEAST, ABS, SEQUENCE, CAST and parentheses; anything else is `InvalidUsage`, never a guess.
Whole numbers are 64 bits wide wherever no CAST says otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import cache
from typing import Any, Final, TypeAlias

from sqlglot import exp

from strandline.algebra.scalar import HasValue, Known, Scalar
from strandline.algebra.types import decimal_digits
from strandline.errors import EvaluationError, InvalidUsage

Value: TypeAlias = Any

BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "integer": 32, "bigint": 64, "long": 64}
WIDE: Final = Context(prec=60)


def failed(condition: str, detail: str) -> EvaluationError:
    """Return the error of a row on which an expression fails, with Spark's name of the condition."""
    return EvaluationError(f"a row cannot be evaluated: {condition}: {detail}")


def cast(value: Value, type_: str) -> Value:
    """Return ``value`` cast to ``type_`` as Spark's CAST does.

    >>> cast("7", "int"), cast(Decimal("2.5"), "decimal(3,0)"), cast(True, "bigint"), cast(None, "int")
    (7, Decimal('3'), 1, None)
    """
    if value is None:
        return None
    type_ = type_.lower()
    if type_ in BITS:
        return _whole(value, BITS[type_])
    if digits := decimal_digits(type_):
        return _decimal(value, *digits)
    match type_:
        case "double" | "float":
            return float(value)
        case "string":
            return str(value).lower() if isinstance(value, bool) else str(value)
        case "boolean":
            return bool(value)
    raise InvalidUsage(f"list_expressions cannot CAST to {type_}")


def in_range(value: int, bits: int = 64) -> int:
    """Return ``value``, which must fit ``bits``."""
    if -(1 << bits - 1) <= value < 1 << bits - 1:
        return value
    raise failed("ARITHMETIC_OVERFLOW", f"{value} does not fit {bits} bits")


def _whole(value: Value, bits: int) -> int:
    try:
        whole = int(value)
    except (ValueError, OverflowError) as error:
        raise failed("CAST_INVALID_INPUT", f"{value!r} is no whole number") from error
    return in_range(whole, bits)


def _decimal(value: Value, digits: int, scale: int) -> Decimal:
    try:
        exact = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
        rounded = exact.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, WIDE)
    except InvalidOperation as error:
        raise failed("CAST_INVALID_INPUT", f"{value!r} is no decimal({digits},{scale})") from error
    if abs(rounded) >= Decimal(10) ** (digits - scale):
        raise failed("NUMERIC_VALUE_OUT_OF_RANGE", f"{value} does not fit decimal({digits},{scale})")
    return rounded


Row: TypeAlias = Mapping[str, Value]
Evaluator: TypeAlias = Callable[[Row], Value]


@cache
def evaluator_of(value: Scalar) -> Evaluator:
    """Return an expression of a plan as a function of a row.

    >>> from strandline.algebra.scalar import scalar
    >>> evaluator_of(scalar("`a` + 1 > 2"))({"a": 2}), evaluator_of(scalar("`a` > 2 OR true"))({"a": None})
    (True, True)
    """
    return evaluator(value.tree)


def evaluator(tree: exp.Expr) -> Evaluator:
    """Return ``tree`` as a function of a row.  Raises `InvalidUsage` for an unsupported expression."""
    for kind in type(tree).__mro__:
        if kind in _KINDS:
            return _KINDS[kind](tree)
    raise InvalidUsage(f"list_expressions knows no {type(tree).__name__}: {tree.sql('spark')}")


def has_value(expression: Evaluator, row: Row) -> bool:
    """Tell whether ``expression`` has a value for ``row``, NULL being one."""
    try:
        expression(row)
    except EvaluationError:
        return False
    return True


# ---- kinds of expression ---------------------------------------------------------------------------------------------


def _column(tree: exp.Column) -> Evaluator:
    return operator.itemgetter(tree.name)


def _constant(value: Value) -> Evaluator:
    return lambda _: value


def _literal(tree: exp.Literal) -> Evaluator:
    if tree.is_string:
        return _constant(tree.this)
    return _constant(int(tree.this) if tree.is_int else Decimal(tree.this))


def _strict(apply: Callable[..., Value]) -> Callable[[Any], Evaluator]:
    """Return an evaluator of one or two operands, whose result is NULL if an operand is NULL."""

    def two(tree: exp.Binary) -> Evaluator:
        left, right = evaluator(tree.this), evaluator(tree.expression)

        def evaluate(row: Row) -> Value:
            a, b = left(row), right(row)
            return None if a is None or b is None else apply(a, b)

        return evaluate

    def one(tree: exp.Unary) -> Evaluator:
        below = evaluator(tree.this)

        def evaluate(row: Row) -> Value:
            a = below(row)
            return None if a is None else apply(a)

        return evaluate

    return lambda tree: two(tree) if tree.args.get("expression") is not None else one(tree)


def _bounded(apply: Callable[..., Value]) -> Callable[..., Value]:
    def compute(*operands: Value) -> Value:
        if any(isinstance(each, float) for each in operands):
            return apply(*map(float, operands))
        value = apply(*operands)
        return in_range(value) if isinstance(value, int) else value

    return compute


def _divided(a: Value, b: Value) -> Value:
    if b == 0:
        raise failed("DIVIDE_BY_ZERO", "division by zero")
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        return float(a) / float(b) if isinstance(a, float) or isinstance(b, float) else WIDE.divide(a, b)
    return a / b


def _whole_quotient(a: Value, b: Value) -> Value:
    if b == 0:
        raise failed("DIVIDE_BY_ZERO", "division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: Value, b: Value) -> Value:
    if b == 0:
        raise failed("REMAINDER_BY_ZERO", "remainder by zero")
    return a - b * _whole_quotient(a, b)


def _and(tree: exp.And) -> Evaluator:
    left, right = evaluator(tree.this), evaluator(tree.expression)

    def evaluate(row: Row) -> Value:
        a = left(row)
        if a is False:
            return False
        b = right(row)
        return False if b is False else None if a is None or b is None else True

    return evaluate


def _or(tree: exp.Or) -> Evaluator:
    left, right = evaluator(tree.this), evaluator(tree.expression)

    def evaluate(row: Row) -> Value:
        a = left(row)
        if a is True:
            return True
        b = right(row)
        return True if b is True else None if a is None or b is None else False

    return evaluate


def _same(tree: exp.Binary) -> Evaluator:
    left, right = evaluator(tree.this), evaluator(tree.expression)
    return lambda row: left(row) == right(row)


def _in(tree: exp.In) -> Evaluator:
    wanted, given = evaluator(tree.this), [evaluator(each) for each in tree.expressions]
    if not given:
        raise InvalidUsage(f"list_expressions knows IN of a list only: {tree.sql('spark')}")

    def evaluate(row: Row) -> Value:
        a, values = wanted(row), [each(row) for each in given]
        if a is None:
            return None
        return True if a in [v for v in values if v is not None] else None if None in values else False

    return evaluate


def _between(tree: exp.Between) -> Evaluator:
    return _and(exp.And(this=exp.GTE(this=tree.this, expression=tree.args["low"]), expression=_at_most(tree)))


def _at_most(tree: exp.Between) -> exp.LTE:
    return exp.LTE(this=tree.this, expression=tree.args["high"])


def _case(tree: exp.Case) -> Evaluator:
    subject = tree.args.get("this")
    branches = []
    for branch in tree.args["ifs"]:
        condition = branch.this if subject is None else exp.EQ(this=subject.copy(), expression=branch.this.copy())
        branches.append((evaluator(condition), evaluator(branch.args["true"])))
    return _first_true(branches, tree.args.get("default"))


def _if(tree: exp.If) -> Evaluator:
    return _first_true([(evaluator(tree.this), evaluator(tree.args["true"]))], tree.args.get("false"))


def _first_true(branches: Sequence[tuple[Evaluator, Evaluator]], otherwise: exp.Expr | None) -> Evaluator:
    default = _constant(None) if otherwise is None else evaluator(otherwise)

    def evaluate(row: Row) -> Value:
        for condition, value in branches:
            if condition(row) is True:
                return value(row)
        return default(row)

    return evaluate


def _call(tree: exp.Anonymous) -> Evaluator:
    given = [evaluator(each) for each in tree.expressions]
    match tree.name.lower(), given:
        case "abs", [only]:
            return lambda row: None if (value := only(row)) is None else _bounded(abs)(value)
        case "coalesce", [_, *_]:
            return lambda row: next((value for each in given if (value := each(row)) is not None), None)
        case "nullif", [left, right]:
            return _nullif(left, right)
        case "greatest", [_, _, *_]:
            return _extreme(max, given)
        case "least", [_, _, *_]:
            return _extreme(min, given)
        case "sequence", [first, last]:
            return _sequence(first, last)
    raise InvalidUsage(f"list_expressions knows no such call: {tree.sql('spark')}")


def _nullif(left: Evaluator, right: Evaluator) -> Evaluator:
    def evaluate(row: Row) -> Value:
        a = left(row)
        return None if a is not None and a == right(row) else a

    return evaluate


def _sequence(first: Evaluator, last: Evaluator) -> Evaluator:
    def evaluate(row: Row) -> Value:
        start, end = first(row), last(row)
        if start is None or end is None:
            return None
        return list(range(start, end + 1)) if start <= end else list(range(start, end - 1, -1))

    return evaluate


def _extreme(choose: Callable[[list[Value]], Value], given: Sequence[Evaluator]) -> Evaluator:
    def evaluate(row: Row) -> Value:
        values = [value for each in given if (value := each(row)) is not None]
        return choose(values) if values else None

    return evaluate


def _cast(tree: exp.Cast) -> Evaluator:
    below, type_ = evaluator(tree.this), tree.to.sql("spark").lower()
    return lambda row: cast(below(row), type_)


def _known(tree: Known) -> Evaluator:
    value, mark = evaluator(tree.this), evaluator(tree.args["mark"])

    def evaluate(row: Row) -> Value:
        if not mark(row):
            raise failed("USER_RAISED_EXCEPTION", "the expression below has no value")
        return value(row)

    return evaluate


def _has_value(tree: HasValue) -> Evaluator:
    below = evaluator(tree.this)
    return lambda row: has_value(below, row)


def _below(tree: exp.Expr) -> Evaluator:
    return evaluator(tree.this)


_KINDS: Final[dict[type[exp.Expr], Callable[[Any], Evaluator]]] = {
    exp.Column: _column,
    exp.Identifier: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda tree: _constant(bool(tree.this)),
    exp.Null: lambda _: _constant(None),
    exp.Paren: _below,
    exp.Alias: _below,
    exp.Neg: _strict(_bounded(operator.neg)),
    exp.Add: _strict(_bounded(operator.add)),
    exp.Sub: _strict(_bounded(operator.sub)),
    exp.Mul: _strict(_bounded(operator.mul)),
    exp.Div: _strict(_divided),
    exp.IntDiv: _strict(_whole_quotient),
    exp.Mod: _strict(_remainder),
    exp.EQ: _strict(operator.eq),
    exp.NEQ: _strict(operator.ne),
    exp.GT: _strict(operator.gt),
    exp.GTE: _strict(operator.ge),
    exp.LT: _strict(operator.lt),
    exp.LTE: _strict(operator.le),
    exp.NullSafeEQ: _same,
    exp.Is: _same,
    exp.Not: _strict(operator.not_),
    exp.And: _and,
    exp.Or: _or,
    exp.In: _in,
    exp.Between: _between,
    exp.Case: _case,
    exp.If: _if,
    exp.Cast: _cast,
    exp.Anonymous: _call,
    HasValue: _has_value,
    Known: _known,
}
