"""Scalar expressions: sqlglot trees over the columns of a node's input, written as Spark SQL in one place.

The planner and the rules compose trees and never text: `operand` adds parentheses where an operator around an operand
could change its meaning.  sqlglot translates between dialects: it interprets functions and may write a different one
(`to_date(x)` as a cast, `datediff` with conversions added).  That would be wrong here, because Spark alone defines
what a function means.  So in `Faithful` a function is its name and its arguments, and is written as it was read; only
special syntax (`CAST(x AS t)`, `EXTRACT(u FROM x)`, …) is interpreted.

Two more facts about expressions are here: `Doubt`, something in a query that may leave it without one answer, and
`implied`, conditions on single columns that a predicate implies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import cached_property, reduce
from typing import Any, ClassVar, Final, TypeAlias

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

from strandline.algebra.schema import DIFF
from strandline.errors import Position

_SPECIAL: Final = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM", "TRY_CAST")
_REWRITTEN: Final = (exp.Array, exp.From, exp.Pivot, exp.Select, exp.Table, exp.With, exp.WithinGroup)
"""The nodes that sqlglot's generator for Spark rewrites for older versions of Spark."""


GENERATORS: Final = frozenset(
    f"{name}{outer}"
    for name in ("explode", "inline", "json_tuple", "posexplode", "stack", "variant_explode")
    for outer in ("", "_outer")
)
"""Functions that give several rows for one, or none."""


_GOES_ON: Final = "\\\n"
"""What, at the end of a line in a comment, has Spark take the next line for a part of it."""


class HasValue(exp.Expression):
    """Whether ``this`` has a value (NULL is one), rather than fail: a condition that never fails itself.

    Spark has no general way to try an expression.  But its ``try_to_binary`` evaluates the *whole* of its argument
    under a guard: whatever the argument throws, the result is NULL.  So an argument that is never NULL and always
    converts, and that needs the value of the expression, makes the result NULL iff the expression has no value.  A hash
    is such an argument; it is taken of the value as text, because not every type can be hashed.

    Spark evaluates an expression that occurs twice before either of them, and so outside the guard; but not one that
    only a branch needs, hence the IF.  Its condition is always true; Spark, which takes it for not deterministic, moves
    nothing from above below a filter with it: everything above is evaluated on the rows that pass, and no others.

    ``steady``: for rows that a query's subqueries read.  Its condition is one that Spark takes for a function of the
    row: else it would take the subqueries for not deterministic, too.  Another barrier has to stand above the filter.

    >>> text(HasValue(this=scalar("1 / a").tree))
    "(TRY_TO_BINARY(IF(SPARK_PARTITION_ID() >= 0, HEX(XXHASH64(CAST((1 / a) AS STRING))), ''), 'utf-8') IS NOT NULL)"
    """

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "steady": False}


class Known(exp.Expression):
    """The value ``this`` where ``mark`` is true; where it is not, the expression that was computed below has none.

    So a value can be computed before it is known whether it is needed: it fails where it is read.
    """

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "mark": True}


def _guarded(generator: SparkGenerator, tree: HasValue) -> str:
    hashed = f"HEX(XXHASH64(CAST(({generator.sql(tree, 'this')}) AS STRING)))"
    always = f"BIT_COUNT({DIFF}) >= 0" if tree.args.get("steady") else "SPARK_PARTITION_ID() >= 0"
    return f"(TRY_TO_BINARY(IF({always}, {hashed}, ''), 'utf-8') IS NOT NULL)"


def steady(expression: Scalar) -> Scalar:
    """Return ``expression`` with conditions that Spark takes for functions of the row; see `HasValue`."""

    def put(node: exp.Expr) -> exp.Expr:
        return HasValue(this=node.this, steady=True) if isinstance(node, HasValue) else node

    return Scalar(expression.tree.copy().transform(put, copy=False))


def is_steady(expression: Scalar) -> bool:
    """Tell whether `steady` has made one of the conditions of ``expression``."""
    return any(each.args.get("steady") for each in expression.tree.find_all(HasValue))


def _known(generator: SparkGenerator, tree: Known) -> str:
    return f"IF({generator.sql(tree, 'mark')}, {generator.sql(tree, 'this')}, RAISE_ERROR('it has no value'))"


def _joined(sql: str, tokens: Iterable[Token]) -> str:
    """Return ``sql`` with blanks where a comment goes on: between tokens, a backslash is in a comment."""
    if _GOES_ON not in sql:
        return sql
    found, at = list[str](), 0
    for token in tokens:  # some begin where others do: `1L` is a number, and its type
        found += (sql[at : token.start].replace(_GOES_ON, "  "), sql[max(at, token.start) : token.end + 1])
        at = max(at, token.end + 1)
    return "".join([*found, sql[at:].replace(_GOES_ON, "  ")])


class Faithful(Spark):
    """Spark SQL in which functions are kept as they were written."""

    class Tokenizer(Spark.Tokenizer):
        """Reads what follows SHOW, EXPLAIN and their like as tokens, and not as one string up to a semicolon."""

        COMMANDS: ClassVar[set[TokenType]] = set()
        # Spark has no `?::` and no `??`: a question mark is a parameter, and what follows is a token of its own.
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            word: kind for word, kind in Spark.Tokenizer.KEYWORDS.items() if not word.startswith("?")
        }

        def tokenize(self, sql: str) -> list[Token]:
            r"""Return the tokens of ``sql``, with the line behind a comment that ends in a backslash as a part of it.

            So Spark reads it.  Each token has its place in ``sql``.

            >>> [token.text for token in Faithful().tokenize("a -- b \\\n, c\nd '\\\n'")]
            ['a', 'd', '\n']
            """
            tokens = super().tokenize(sql)
            while (joined := _joined(sql, tokens)) != sql:
                sql, tokens = joined, super().tokenize(joined)
            return tokens

    class Parser(SparkParser):
        """Interprets no function, and parses `array(a, b)` as a call, so that `array(a, b)[0]` is an element."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: how for name, how in SparkParser.FUNCTION_PARSERS.items() if name in _SPECIAL
        }
        ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
        JOINS_HAVE_EQUAL_PRECEDENCE = False  # a comma stays a comma, and does not become a CROSS JOIN
        ADD_JOIN_ON_TRUE = False
        # Of GROUP BY ALL UNION (…) the parenthesis would be the argument of a call.
        QUERY_MODIFIER_TOKENS: ClassVar[set[TokenType]] = SparkParser.QUERY_MODIFIER_TOKENS | set(
            SparkParser.SET_OPERATIONS
        )

        def _warn_unsupported(self) -> None:
            """Refuse text that is not a query: sqlglot would parse it as a command, and log a warning."""
            self.raise_error("this is not a query")

    class Generator(SparkGenerator):
        """Writes the tree unchanged: no QUALIFY becomes a subquery, and no exact percentile an approximate one."""

        TRANSFORMS: ClassVar[dict[Any, Any]] = {
            HasValue: _guarded,
            Known: _known,
            **{kind: how for kind, how in SparkGenerator.TRANSFORMS.items() if kind not in _REWRITTEN},
        }


def text(expression: exp.Expr) -> str:
    """Return the SQL text of ``expression``."""
    return expression.sql(dialect=Faithful, comments=False)


def as_written(expression: exp.Expr) -> str:
    """Return its SQL text as `text` does, the names of functions in the letters that the author used."""
    return expression.sql(dialect=Faithful, comments=False, normalize_functions=False)


@dataclass(frozen=True, eq=False, repr=False)
class Scalar:
    """An expression over the output columns of a node's input: the tree, its text, the columns that it reads.

    Each `exp.Column` of the tree is a quoted name alone, without a qualifier.  Two scalars are equal if their texts are
    equal.  Trap: trees are mutable, and this one must not be changed: copy it first.

    >>> upper = Scalar(call("upper", column("a b")))
    >>> upper.sql, sorted(upper.columns), upper == scalar("UPPER(`a b`)")
    ('UPPER(`a b`)', ['a b'], True)
    """

    tree: exp.Expr

    @cached_property
    def sql(self) -> str:
        """The text of the tree: written once, and only if it is asked for."""
        return text(self.tree)

    @cached_property
    def columns(self) -> frozenset[str]:
        """The names of the columns that it reads."""
        return frozenset(each.name for each in self.tree.find_all(exp.Column))

    @cached_property
    def generates(self) -> bool:
        """Whether it gives several rows for one, or none."""
        return any(each.name.lower() in GENERATORS for each in self.tree.find_all(exp.Anonymous))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and self.sql == other.sql

    def __hash__(self) -> int:
        return hash(self.sql)

    def __repr__(self) -> str:
        return f"Scalar({self.sql!r})"

    @property
    def column(self) -> str | None:
        """The name of the column, if this expression is just a column."""
        return self.tree.name if isinstance(self.tree, exp.Column) else None


def scalar(sql: str) -> Scalar:
    """Parse ``sql`` as an expression.  Raises sqlglot's error if it is not one."""
    return Scalar(sqlglot.parse_one(sql, dialect=Faithful))


def columns(names: Iterable[str]) -> tuple[tuple[str, Scalar], ...]:
    """Return the projection of ``names``, unchanged."""
    return tuple((name, Scalar(column(name))) for name in names)


def column(name: str) -> exp.Column:
    """Return a reference to a column of the input."""
    return exp.Column(this=exp.Identifier(this=name, quoted=True))


_WHOLE: Final = (
    *(exp.Anonymous, exp.Boolean, exp.Case, exp.Cast, exp.Column, exp.Literal, exp.Null, exp.Paren),
    *(HasValue, Known),
)
"""The expressions that need no parentheses beside an operator."""


def _free(expression: exp.Expr) -> exp.Expr:
    """Return ``expression``, or a copy if it is part of another tree: a node has at most one parent."""
    return expression if expression.parent is None else expression.copy()


def operand(expression: exp.Expr) -> exp.Expr:
    """Return ``expression``, in parentheses if it needs them beside an operator.

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
    """Return ``CAST(… AS type_)``; the type is Spark's type text."""
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
    """Return the conjunction of ``terms``, which must not be empty.

    >>> text(conjunction([scalar("a OR b").tree, scalar("c").tree]))
    '(a OR b) AND c'
    >>> text(conjunction([scalar("a OR b").tree]))
    'a OR b'
    """
    first, *others = terms
    if not others:
        return first
    return reduce(lambda left, right: exp.And(this=left, expression=operand(right)), others, operand(first))


OF_CLOCK: Final = r"(?:(?:now|today|yesterday|tomorrow)\b|T\d|\d{1,2}:)"
"""How a text begins that Spark makes a time of the clock: by its name, or for want of a date."""


def of_clock(said: str) -> bool:
    """Tell whether Spark makes the constant text ``said`` a time of the clock where a time is wanted.

    >>> [of_clock(each) for each in (" NOW", "today UTC", "12:30", "epoch", "2024-01-01 12:30", "nowhere")]
    [True, True, True, False, False, False]
    """
    return re.match(rf"[\x00-\x20]*{OF_CLOCK}", said, re.IGNORECASE) is not None


class DoubtKind(Enum):
    """What kind of thing it is; ``name`` of a `Doubt` says which."""

    CALL = "a function without parentheses, as user"
    CLOCK = "a constant text that becomes a time of the clock, as 'now'"
    CUT = "LIMIT or OFFSET"
    WINDOW = "a window function that may look at the order of rows"
    COLLATION = "one of several texts that a collation calls equal is chosen"


@dataclass(frozen=True, slots=True)
class Doubt:
    """One such thing: what it is called, and where it stands in the text, if Spark knows.

    ``rows``: it is a window whose frame counts ROWS.  ``collation``: by which texts are compared.

    The engine finds doubts in Spark's analysed plan; `compute.plan.scalars.definite` says which of them are refused,
    and why.
    """

    kind: DoubtKind
    name: str
    place: Position | None = None
    rows: bool = False
    collation: str = ""


Value: TypeAlias = str | int | date


class Comparison(Enum):
    """What is said of a column's value; each is false or NULL of NULL."""

    IN = "in"
    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="
    STARTS = "starts with"
    ENDS = "ends with"
    HOLDS = "contains"


@dataclass(frozen=True, slots=True)
class Condition:
    """The value of ``column`` compares with the one of ``values``; for `Comparison.IN`, is one of them."""

    column: str
    comparison: Comparison
    values: tuple[Value, ...]


_ORDERS: Final = {
    exp.LT: (Comparison.LESS, Comparison.MORE),
    exp.LTE: (Comparison.AT_MOST, Comparison.AT_LEAST),
    exp.GT: (Comparison.MORE, Comparison.LESS),
    exp.GTE: (Comparison.AT_LEAST, Comparison.AT_MOST),
    exp.EQ: (Comparison.IN, Comparison.IN),
}
"""By operator: what it says of a column to its left, and of one to its right."""
_MEANS_MORE: Final = frozenset("\\'\"")
"""A literal with these may mean other text than it shows."""


def implied(predicate: Scalar) -> tuple[Condition, ...]:
    """Return conditions that hold wherever ``predicate`` is true.

    Rows that the conditions exclude can be left out, because the predicate would not let them through.  Only
    comparisons of a column with literals count, of types for which every engine agrees: whole numbers, dates, and text
    (`types` refuses collations).  The rest of the predicate is ignored: more rows may remain than the predicate lets
    through, never fewer.

    >>> from strandline.algebra.scalar import scalar
    >>> [(c.column, c.comparison.value, c.values) for c in implied(scalar("`a` = 3 AND (`b` = 'x' OR `b` IN ('y'))"))]
    [('a', 'in', (3,)), ('b', 'in', ('x', 'y'))]
    >>> implied(scalar("`a` + 1 = 3 OR `b` = 'x'"))
    ()
    """
    return tuple(_of(predicate.tree))


def _of(tree: exp.Expr) -> Iterator[Condition]:
    if tree.args.get("negate") or tree.args.get("symmetric"):
        return
    match tree:
        case exp.Paren():
            yield from _of(tree.this)
        case exp.And():
            yield from _of(tree.this)
            yield from _of(tree.expression)
        case exp.Or():
            one, other = _listed(tree.this), _listed(tree.expression)
            for column in sorted(one.keys() & other.keys()):
                yield Condition(column, Comparison.IN, (*one[column], *other[column]))
        case exp.Between():
            yield from _compared(tree.this, tree.args["low"], Comparison.AT_LEAST)
            yield from _compared(tree.this, tree.args["high"], Comparison.AT_MOST)
        case exp.In() if tree.expressions:
            values = [_value(each) for each in tree.expressions]
            kept = tuple(value for value in values if value is not None)
            if _is_column(tree.this) and len(kept) == len(values) and len({type(value) for value in kept}) == 1:
                yield Condition(tree.this.name, Comparison.IN, kept)
        case exp.Like():
            yield from _like(tree.this, _value(tree.expression))
        case exp.EQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
            forward, backward = _ORDERS[type(tree)]
            yield from _compared(tree.this, tree.expression, forward)
            yield from _compared(tree.expression, tree.this, backward)


def _listed(tree: exp.Expr) -> dict[str, tuple[Value, ...]]:
    """Return for each column that ``tree`` gives a list of values the first such list."""
    lists = [each for each in _of(tree) if each.comparison is Comparison.IN]
    return {each.column: each.values for each in reversed(lists)}


def _compared(one: exp.Expr, other: exp.Expr, comparison: Comparison) -> Iterator[Condition]:
    value = _value(other)
    if _is_column(one) and value is not None:
        yield Condition(one.name, comparison, (value,))


def _like(one: exp.Expr, pattern: Value | None) -> Iterator[Condition]:
    if not (_is_column(one) and isinstance(pattern, str)):
        return
    inner = pattern.strip("%")
    if not inner or "%" in inner or "_" in inner:
        return
    match pattern.startswith("%"), pattern.endswith("%"):
        case True, True:
            yield Condition(one.name, Comparison.HOLDS, (inner,))
        case False, True:
            yield Condition(one.name, Comparison.STARTS, (inner,))
        case True, False:
            yield Condition(one.name, Comparison.ENDS, (inner,))
        case _:
            yield Condition(one.name, Comparison.IN, (inner,))


def _is_column(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Column) and not tree.table


def _value(tree: exp.Expr) -> Value | None:
    """Return the value of a literal; None if it is none, or not surely the same everywhere."""
    match tree:
        case exp.Literal(is_string=True):
            return None if _MEANS_MORE & set(tree.this) else str(tree.this)
        case exp.Literal():
            return int(tree.this) if tree.this.isdecimal() and tree.this.isascii() else None
        case exp.Neg():
            value = _value(tree.this)
            return -value if isinstance(value, int) else None
        case exp.Cast() if not isinstance(tree, exp.TryCast) and tree.to.sql() == "DATE":
            return _date(tree.this)
    return None


def _date(tree: exp.Expr) -> date | None:
    text = tree.this if isinstance(tree, exp.Literal) and tree.is_string else ""
    digits = text.replace("-", "")
    if not (len(text) == len("2026-01-01") and digits.isdecimal() and digits.isascii()):
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
