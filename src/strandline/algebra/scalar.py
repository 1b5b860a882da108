"""Scalar expressions: sqlglot trees over the columns of a node's input, written as Spark SQL in one place.

The planner and the rules compose trees and never text: an operand that could fall apart is put into parentheses by the
function that composes (`operand`).  sqlglot translates between dialects: it knows functions by meaning and may write
another one (`to_date(x)` as a cast, `datediff` with conversions added).  We want none of it, because Spark alone says
what a function means.  So in `Faithful` a function is its name and its arguments, and comes out as it went in; only
special syntax (`CAST(x AS t)`, `EXTRACT(u FROM x)`, …) is understood.

Source: design page "the map" (decision 10: SQL is parsed with sqlglot, Spark stays the authority).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar, Final

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

_SPECIAL: Final = ("CAST", "EXTRACT", "LISTAGG", "OVERLAY", "POSITION", "STRING_AGG", "SUBSTRING", "TRIM", "TRY_CAST")
_REWRITTEN: Final = (exp.Array, exp.From, exp.Pivot, exp.Select, exp.Table, exp.With, exp.WithinGroup)
"""What sqlglot's generator for Spark changes before it writes it, for versions that know less."""


class Faithful(Spark):
    """Spark SQL in which functions are kept as they were written."""

    class Parser(SparkParser):
        """Knows no function by meaning, and no array constructor but a call: `array(a, b)[0]` is an element."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: how for name, how in SparkParser.FUNCTION_PARSERS.items() if name in _SPECIAL
        }
        ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
        JOINS_HAVE_EQUAL_PRECEDENCE = False  # a comma stays one, and is no CROSS JOIN
        ADD_JOIN_ON_TRUE = False

        def _warn_unsupported(self) -> None:
            """Refuse what is no query: sqlglot would take it as some command, and log that it did."""
            self.raise_error("this is no query")

    class Generator(SparkGenerator):
        """Writes what is there: it turns no QUALIFY into a subquery, and no exact percentile into one that is not."""

        TRANSFORMS: ClassVar[dict[Any, Any]] = {
            kind: how for kind, how in SparkGenerator.TRANSFORMS.items() if kind not in _REWRITTEN
        }


def text(expression: exp.Expr) -> str:
    """Return the SQL text of ``expression``."""
    return expression.sql(dialect=Faithful, comments=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scalar:
    """An expression over the output columns of a node's input: the tree, its text, the columns that it reads.

    Each `exp.Column` of the tree is a quoted name alone, without a qualifier.  Two scalars are equal if they read the
    same.  Trap: a tree can be changed, and this one must not be: copy it first.

    >>> upper = Scalar(call("upper", column("a b")))
    >>> upper.sql, sorted(upper.columns), upper == scalar("UPPER(`a b`)")
    ('UPPER(`a b`)', ['a b'], True)
    """

    tree: exp.Expr
    sql: str = field(init=False)
    columns: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        names = (each.name for each in self.tree.find_all(exp.Column))
        object.__setattr__(self, "sql", text(self.tree))
        object.__setattr__(self, "columns", frozenset(names))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and self.sql == other.sql

    def __hash__(self) -> int:
        return hash(self.sql)

    def __repr__(self) -> str:
        return f"Scalar({self.sql!r})"

    @property
    def column(self) -> str | None:
        """The column that this is, if it is nothing but one."""
        return self.tree.name if isinstance(self.tree, exp.Column) else None


def scalar(sql: str) -> Scalar:
    """Return the expression that ``sql`` writes; sqlglot's error if it writes none."""
    return Scalar(sqlglot.parse_one(sql, dialect=Faithful))


def columns(names: Iterable[str]) -> tuple[tuple[str, Scalar], ...]:
    """Return the projection that gives each of ``names`` as it is."""
    return tuple((name, Scalar(column(name))) for name in names)


def column(name: str) -> exp.Column:
    """Return a reference to a column of the input."""
    return exp.Column(this=exp.Identifier(this=name, quoted=True))


_WHOLE: Final = (exp.Anonymous, exp.Boolean, exp.Case, exp.Cast, exp.Column, exp.Literal, exp.Null, exp.Paren)
"""What no operator around it can take apart."""


def _free(expression: exp.Expr) -> exp.Expr:
    """Return ``expression``, or a copy if it is part of another tree: a node has one parent."""
    return expression if expression.parent is None else expression.copy()


def operand(expression: exp.Expr) -> exp.Expr:
    """Return ``expression`` such that it stays whole beside any operator.

    >>> text(is_null(scalar("m OR n").tree))
    '(m OR n) IS NULL'
    """
    own = _free(expression)
    return own if isinstance(own, _WHOLE) else exp.Paren(this=own)


def number(value: int) -> exp.Expr:
    """Return a literal of type INT."""
    return exp.Literal.number(value) if value >= 0 else exp.Paren(this=exp.Neg(this=exp.Literal.number(-value)))


def call(function: str, *arguments: exp.Expr) -> exp.Expr:
    """Return a call of a function by name."""
    return exp.Anonymous(this=function, expressions=[_free(each) for each in arguments])


def cast(expression: exp.Expr, type_: str) -> exp.Expr:
    """Return ``CAST(… AS type_)``; the type is Spark's own text."""
    return exp.Cast(this=_free(expression), to=exp.Var(this=type_))


def is_null(expression: exp.Expr) -> exp.Expr:
    """Return ``… IS NULL``."""
    return exp.Is(this=operand(expression), expression=exp.Null())


def case(condition: exp.Expr, then: exp.Expr, otherwise: exp.Expr | None = None) -> exp.Expr:
    """Return ``CASE WHEN condition THEN then [ELSE otherwise] END``."""
    last = None if otherwise is None else _free(otherwise)
    return exp.Case(ifs=[exp.If(this=_free(condition), true=_free(then))], default=last)


def binary(kind: type[exp.Binary], left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """Return ``left kind right``."""
    return kind(this=operand(left), expression=operand(right))


def conjunction(terms: Iterable[exp.Expr]) -> exp.Expr:
    """Return the conjunction of ``terms``, of which there is at least one.

    >>> text(conjunction([scalar("a OR b").tree, scalar("c").tree]))
    '(a OR b) AND c'
    >>> text(conjunction([scalar("a OR b").tree]))
    'a OR b'
    """
    first, *others = terms
    if not others:
        return first
    return reduce(lambda left, right: exp.And(this=left, expression=operand(right)), others, operand(first))
