"""Reading SQL in the dialect that writes what it read (`algebra.scalar.Faithful`), with places in the text.

Trap: a datetime unit (`timestampdiff(HOUR, a, b)`) looks like a column.  `parse` makes it a keyword, so that no
column of that name is ever meant.

Trap: the value of `struct(o.k)` holds a name that Spark takes from the text, ``k``.  In a plan the column may have
another name, so `parse` writes the name of each field: `struct(o.k AS k)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, wraps
from itertools import pairwise
from typing import Final, TypeVar

from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError, TokenError

from strandline.algebra.scalar import Faithful, call
from strandline.errors import DefinitionError, Position

T = TypeVar("T")

_STRINGS: Final = (TokenType.STRING, TokenType.RAW_STRING)
_MISREAD: Final = ("|>", "TABLE")
"""sqlglot reads some of the pipe syntax, and not all of that as Spark does; and `TABLE t` as a column with an alias."""
TEXTS_REMEMBERED: Final = 4
"""So many texts of the last that were read are kept as tokens and as trees: a definition is read a dozen times."""
REMEMBERED_MAX: Final = 32_000
"""Longer texts, in characters, are not kept: with its tokens a tree takes some 250 times the room of its text."""
MISTAKES: Final = (
    SqlglotError,
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What sqlglot raises for text that it cannot read; the latter ones are its own mistakes, or ours."""
_WITH_UNIT: Final = ("date_add", "date_diff", "dateadd", "datediff", "timestampadd", "timestampdiff")
_COUNTING: Final = frozenset(("LIMIT", "OFFSET"))
_ZIPPED: Final = "arrays_zip"
_STRUCT: Final = "struct"
_LISTING: Final = (exp.All, exp.Any, exp.Cube, exp.Group, exp.GroupingSets, exp.In, exp.Pivot, exp.Rollup, exp.Values)
"""What takes a list in parentheses apart, so that it is no value of its own."""


def _remembered(read: Callable[[str], T]) -> Callable[[str], T]:
    """Have ``read`` keep what it made of the last few texts that are not long."""
    kept = lru_cache(TEXTS_REMEMBERED)(read)

    @wraps(read)
    def found(sql: str) -> T:
        return (kept if len(sql) <= REMEMBERED_MAX else read)(sql)

    return found


def parse(sql: str) -> exp.Expr | None:
    """Return the one statement that ``sql`` is, or None if sqlglot cannot read it (which says nothing about Spark).

    Raises `DefinitionError` if it is several statements.

    >>> from strandline.algebra.scalar import text
    >>> query = parse("SELECT struct(o.k, (K), s.f, k + 1, v AS w), (k, 1) IN ((1, 2)), (k, 1), arrays_zip(a)")
    >>> [text(each) for each in query.expressions]  # doctest: +NORMALIZE_WHITESPACE
    ['STRUCT(o.k AS `k`, (K) AS `K`, s.f AS `f`, k + 1 AS `col4`, v AS w)', '(k, 1) IN ((1, 2))',
    '(k AS `k`, 1 AS `col2`)', 'ARRAYS_ZIP(STRUCT(a AS `a`).`a`)']
    """
    tree = _tree(sql)
    return None if tree is None else tree.copy()  # callers change theirs


@_remembered
def _tree(sql: str) -> exp.Expr | None:
    if any(word.text.upper() in _MISREAD and not word.literal for word in words(sql)):
        return None
    try:
        statements = [s for s in Faithful().parser().parse([*_tokens(sql)], sql) if s is not None]
    except MISTAKES:
        return None
    if len(statements) != 1:
        raise DefinitionError(f"a view is defined by one query, not by {len(statements)} statements")
    for function in list(statements[0].find_all(exp.Anonymous, exp.Tuple)):
        arguments = function.expressions
        if function.name.lower() in _WITH_UNIT and len(arguments) == 3 and isinstance(arguments[0], exp.Column):
            arguments[0].replace(exp.Var(this=arguments[0].name))
        if has_fields(function):
            named = [(each, _name(function, each, place)) for place, each in enumerate(arguments)]
            function.set("expressions", [each if name is None else field(function, each, name) for each, name in named])
    return statements[0]


def has_fields(function: exp.Expr) -> bool:
    """Tell whether the arguments of ``function`` are fields, named after them, of its value."""
    if isinstance(function, exp.Tuple):
        around = function.parent
        while isinstance(around, exp.Paren):
            around = around.parent
        return not isinstance(around, _LISTING)
    return _is(function, _STRUCT) or _is(function, _ZIPPED)


def field(function: exp.Expr, argument: exp.Expr, name: str) -> exp.Expr:
    """Return ``argument`` as one of ``function`` that makes it the field ``name``."""
    own = exp.Identifier(this=name, quoted=True)
    named = exp.Alias(this=argument, alias=own)
    if _is(function, _ZIPPED):  # an argument of it can have no alias
        return exp.Dot(this=call(_STRUCT, named), expression=own.copy())
    return named


def _is(function: exp.Expr, name: str) -> bool:
    return isinstance(function, exp.Anonymous) and function.name.lower() == name


def _name(function: exp.Expr, argument: exp.Expr, place: int) -> str | None:
    """Return the name that Spark gives the field of the argument at ``place``; None if it is written there, or a star.

    Should Spark give another, then it sees that our text is another query (`view`).
    """
    match argument.unnest():
        case exp.Alias() | exp.Star() | exp.Column(this=exp.Star()):
            return None
        case exp.Column() | exp.Identifier() as named:  # a variable of a lambda is an identifier
            return str(named.name)
        case exp.Dot(expression=exp.Identifier() as inner):
            return str(inner.name)
        case exp.Bracket(expressions=[exp.Literal(is_string=True) as key]):
            return str(key.name)
    return str(place) if _is(function, _ZIPPED) else f"col{place + 1}"


def in_sight(node: exp.Expr) -> list[exp.CTE]:
    """Return the common table expressions that a relation in the place of ``node`` may be, those around others first.

    Inside one of them those before it are in sight; itself too, if it may be recursive.
    """
    found: list[exp.CTE] = []
    inside: exp.Expr | None = None
    around: exp.Expr | None = node
    while around is not None:
        with_ = around.args.get("with_")
        seen = [] if with_ is None else list(with_.expressions)
        place = next((n for n, cte in enumerate(seen) if cte is inside), None)
        if with_ is not None and place is not None:
            seen = seen[: place + bool(with_.args.get("recursive"))]
        found[:0] = seen
        inside = around if isinstance(around, exp.CTE) else inside
        around = around.parent
    return found


def relations(query: exp.Expr) -> Iterator[exp.Table]:
    """Yield the relations that ``query`` names and does not define, needed or not.

    >>> within = "WITH a AS (SELECT * FROM t), t AS (SELECT * FROM a)"
    >>> [each.name for each in relations(parse(f"{within} SELECT 1 FROM T WHERE x IN (SELECT 1 FROM u)"))]
    ['t', 'u']
    """
    for table in query.find_all(exp.Table):
        if isinstance(table.this, exp.Identifier):
            local = () if table.db else (cte.alias.lower() for cte in in_sight(table))
            if table.name.lower() not in local:
                yield table


@dataclass(frozen=True, slots=True)
class Word:
    """A token of a text: what it says, where it starts, whether it is a string literal."""

    text: str
    start: int
    literal: bool


def words(sql: str) -> list[Word]:
    """Return the tokens of ``sql``; none if it cannot even be cut into tokens."""
    try:
        return [Word(t.text, t.start, t.token_type in _STRINGS) for t in _tokens(sql)]
    except TokenError:
        return []


@_remembered
def _tokens(sql: str) -> tuple[Token, ...]:
    return tuple(Faithful().tokenize(sql))


def question_marks(sql: str) -> list[int]:
    """Return where the parameters of ``sql`` are; none if it cannot even be cut into tokens.

    >>> question_marks("SELECT '?', `?`, ?::int -- ?")
    [17]
    """
    try:
        return [t.start for t in _tokens(sql) if t.token_type is TokenType.PLACEHOLDER]
    except TokenError:
        return []


def row_limits(sql: str) -> set[int]:
    """Return the numbers (from 0) of the parameters that say how many rows.

    >>> row_limits("SELECT ? FROM t LIMIT ? OFFSET ?")
    {1, 2}
    """
    marks, found = question_marks(sql), words(sql)
    counting = {
        after.start for before, after in pairwise(found) if not before.literal and before.text.upper() in _COUNTING
    }
    return {number for number, mark in enumerate(marks) if mark in counting}


def position(sql: str, offset: int) -> Position:
    r"""Return where the character ``offset`` of ``sql`` is.

    >>> position("a\nbc", 3)
    Position(line=2, column=2)
    """
    before = sql[:offset]
    return Position(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


def position_of(node: exp.Expr, sql: str) -> Position | None:
    """Return where ``node`` was read from, if it (or the first name in it) remembers."""
    for found in node.walk():
        if "start" in found.meta:
            return position(sql, int(found.meta["start"]))
    return None
