"""The author's SQL: its dialect, its trees, and what the planner must know of Spark's functions.

`parse` reads SQL in the dialect that writes what it read (`algebra.scalar.Faithful`), with places in the text.  Terms,
aggregates and names are found in the tree alone; no catalog and no scope is asked.

Law D: the value of a view at t is a function of its inputs at t, bit for bit.  A function that reads a clock, chance
or the layout of the data has no such value; neither has an aggregate whose result depends on the order that rows come
in, unless that order is given.  Spark calls several of them deterministic, so the lists are ours: `INDEFINITE` is
refused, with the reason and what to use instead; `definite.DEFINITE` is accepted; a function on neither list is
refused, because nothing is known of it.
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

    Trap: a datetime unit (`timestampdiff(HOUR, a, b)`) looks like a column.  It becomes a keyword here, so that no
    column of that name is ever meant.

    Trap: the value of `struct(o.k)` holds a name that Spark takes from the text, ``k``.  In a plan the column may have
    another name, so the name of each field is written here: `struct(o.k AS k)`.

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


PLANNED: Final = {
    "avg": "avg",
    "mean": "avg",
    "bool_and": "min",
    "bool_or": "max",
    "any": "max",
    "every": "min",
    "some": "max",
    "count": "count",
    "count_if": "count",
    "max": "max",
    "min": "min",
    "sum": "sum",
}
"""Aggregates that a `Reduce` knows, by the function it uses for them."""

MERGING: Final = ("session_window",)
"""Functions that group rows by their neighbours: the group of a row is no function of the row."""

VARIANCES: Final = {
    "std": ("sample", True),
    "stddev": ("sample", True),
    "stddev_samp": ("sample", True),
    "stddev_pop": ("population", True),
    "variance": ("sample", False),
    "var_samp": ("sample", False),
    "var_pop": ("population", False),
}
"""Aggregates that are folds over the sorted values: which divisor, and whether the root is taken."""

FOLDED: Final = frozenset(("sum", "avg", "mean", "try_sum", "try_avg", *VARIANCES))
"""Aggregates that round at each step when they add up floats, so that the order of rows shows in the last bits."""

_CHANCE: Final = "each evaluation gives another value"
_CLOCK: Final = "it depends on when the view is computed"
_LAYOUT: Final = "it depends on how Spark lays the rows out"
_ORDER: Final = "it depends on the order that rows come in"
_FLOAT: Final = "its last bits depend on the order that rows come in"
_SKETCH: Final = "the bytes of its sketch depend on the order that rows come in"
_OUTSIDE: Final = "it depends on more than its arguments"
_STORED: Final = "store the value in a column of the source"
_ROW: Final = (
    "read the row of a clock source, (SELECT max(at) FROM clock), after CREATE SOURCE clock (at TIMESTAMP) USING clock"
)
_SORTED: Final = "wrap it in array_sort(…)"

INDEFINITE: Final = {
    "rand": (_CHANCE, f"{_STORED}, or derive it from the row with hash(…)"),
    "random": (_CHANCE, f"{_STORED}, or derive it from the row with hash(…)"),
    "randn": (_CHANCE, _STORED),
    "randstr": (_CHANCE, _STORED),
    "uniform": (_CHANCE, _STORED),
    "uuid": (_CHANCE, f"{_STORED}, or derive it from the row with md5(…)"),
    "shuffle": (_CHANCE, "use array_sort(…)"),
    "aes_encrypt": (_CHANCE, _STORED),
    "now": (_CLOCK, _ROW),
    "current_timestamp": (_CLOCK, _ROW),
    "localtimestamp": (_CLOCK, _ROW),
    "current_date": (_CLOCK, _ROW),
    "curdate": (_CLOCK, _ROW),
    "current_time": (_CLOCK, "use a time column of the source"),
    "localtime": (_CLOCK, "use a time column of the source"),
    "unix_timestamp()": (_CLOCK, "give it the timestamp to convert"),
    "current_user": ("it depends on the user that computes the view", _STORED),
    "user": ("it depends on the user that computes the view", _STORED),
    "session_user": ("it depends on the user that computes the view", _STORED),
    "current_catalog": ("it depends on the session", "write the name"),
    "current_database": ("it depends on the session", "write the name"),
    "current_schema": ("it depends on the session", "write the name"),
    "current_path": ("it depends on the session", "write the name"),
    "collations": (_OUTSIDE, "write its rows as VALUES"),
    "sql_keywords": (_OUTSIDE, "write its rows as VALUES"),
    "python_worker_logs": (_OUTSIDE, "leave it out"),
    "measure": ("it means what a metric view says", "write the aggregate"),
    **dict.fromkeys(
        ("from_avro", "from_protobuf", "schema_of_avro", "to_avro", "to_protobuf"),
        ("it needs a package that changes what it does", "use from_json(…) or to_json(…)"),
    ),
    "schema_of_xml": ("its options may name files of the server", "write the schema as a text"),
    "version": ("it depends on the Spark that computes the view", "write the version"),
    "monotonically_increasing_id": (_LAYOUT, "use row_number() OVER (ORDER BY …)"),
    "spark_partition_id": (_LAYOUT, "leave it out"),
    "input_file_name": (_LAYOUT, "let the source add the file's name as a column"),
    "input_file_block_start": (_LAYOUT, "leave it out"),
    "input_file_block_length": (_LAYOUT, "leave it out"),
    "reflect": ("it may call anything", _STORED),
    "java_method": ("it may call anything", _STORED),
    "try_reflect": ("it may call anything", _STORED),
    "first": (_ORDER, "use min(…) or max(…)"),
    "first_value": (_ORDER, "use min(…) or max(…)"),
    "last": (_ORDER, "use min(…) or max(…)"),
    "last_value": (_ORDER, "use min(…) or max(…)"),
    "any_value": (_ORDER, "use min(…) or max(…)"),
    "mode": (
        "ties are broken by the order that rows come in",
        "count in a subquery, and take the greatest with a LIMIT",
    ),
    "max_by": ("ties are broken by the order that rows come in", "use max(struct(ordering, value)).value"),
    "min_by": ("ties are broken by the order that rows come in", "use min(struct(ordering, value)).value"),
    "collect_list": (_ORDER, _SORTED),
    "collect_set": (_ORDER, _SORTED),
    "array_agg": (_ORDER, _SORTED),
    "listagg": (_ORDER, "write listagg(…) WITHIN GROUP (ORDER BY …)"),
    "string_agg": (_ORDER, "write string_agg(…) WITHIN GROUP (ORDER BY …)"),
    "approx_percentile": (_ORDER, "use percentile(…), which is exact"),
    "percentile_approx": (_ORDER, "use percentile(…), which is exact"),
    "histogram_numeric": (_ORDER, "use width_bucket(…) and GROUP BY"),
    **{
        f"approx_top_k{step}": (_ORDER, "count in a subquery, and take the greatest with a LIMIT")
        for step in ("", "_accumulate", "_combine")
    },
    "collect_union": (_ORDER, "use array_sort(array_distinct(flatten(collect_list(…))))"),
    "counter_diff": (_ORDER, "use lag(…) OVER (ORDER BY …)"),
    "vector_avg": (_FLOAT, "compute it from sums over decimals"),
    "vector_sum": (_FLOAT, "compute it from sums over decimals"),
    **dict.fromkeys(
        (
            *("hll_sketch_agg", "hll_union_agg", "theta_intersection_agg", "theta_sketch_agg", "theta_union_agg"),
            *(
                f"tuple_{kind}_agg_{type_}"
                for kind in ("intersection", "sketch", "union")
                for type_ in ("double", "integer")
            ),
        ),
        (_SKETCH, "use approx_count_distinct(…) or count(DISTINCT …)"),
    ),
    **{
        f"kll_{kind}_{type_}": (_SKETCH, "use percentile(…), which is exact")
        for kind in ("merge_agg", "sketch_agg", "sketch_merge")
        for type_ in ("bigint", "double", "float")
    },
    "corr": (_FLOAT, "compute it from sums over decimals"),
    "covar_pop": (_FLOAT, "compute it from sums over decimals"),
    "covar_samp": (_FLOAT, "compute it from sums over decimals"),
    "kurtosis": (_FLOAT, "compute it from sums over decimals"),
    "skewness": (_FLOAT, "compute it from sums over decimals"),
    **{
        f"regr_{name}": (_FLOAT, "compute it from sums over decimals")
        for name in ("avgx", "avgy", "intercept", "r2", "slope", "sxx", "sxy", "syy")
    },
}
"""Functions that are refused: why, and what to use instead.  Name with ``()``: without arguments only."""

ORDERED_BY_PARENT: Final = ("array_sort", "sort_array", "size", "array_size", "cardinality")
"""Functions whose value does not depend on the order of the array they are given."""

GATHERING: Final = ("array_agg", "collect_list", "collect_set")

LISTING: Final = ("listagg", "string_agg")
"""Functions that gather texts in the order that WITHIN GROUP gives; what is listed is added to that order."""

CHOOSING: Final = ("any_value", "first", "first_value", "last", "last_value", "nth_value")
"""Window functions that give the value of one row of the frame."""

POSITIONAL: Final = (*CHOOSING, "lag", "lead", "ntile", "row_number")
"""Window functions that look at the order of rows within peers: the whole row is added to their ORDER BY."""

_OTHER_AGGREGATES: Final = (
    "approx_count_distinct", "bit_and", "bit_or", "bit_xor", "bitmap_construct_agg", "bitmap_or_agg",
    "bitmap_and_agg", "count_min_sketch", "grouping", "grouping_id", "median", "percentile",
    "percentile_cont", "percentile_disc", "regr_count", "schema_of_variant_agg", "try_avg", "try_sum",
)  # fmt: skip

AGGREGATES: Final = frozenset((*PLANNED, *VARIANCES, *GATHERING, *LISTING, *_OTHER_AGGREGATES))
"""Names that make a SELECT aggregate.  One that is missing here is found out by Spark, and the query then is
recomputed whole."""


def replaced(expression: exp.Expr, change: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Return a copy in which each topmost node that ``change`` changes is replaced; what it put there is left alone."""

    def go(node: exp.Expr) -> exp.Expr:
        new = change(node)
        if new is not node:
            return new
        for key, value in list(node.args.items()):
            if isinstance(value, exp.Expr):
                node.set(key, go(value))
            elif isinstance(value, list):
                node.set(key, [go(item) if isinstance(item, exp.Expr) else item for item in value])
        return node

    return go(expression.copy())


def counts_rows(node: exp.Expr | None) -> bool:
    """Tell whether ``node`` is ``count(*)``; any other ``*`` stands for columns.

    >>> from strandline.algebra.scalar import scalar
    >>> [counts_rows(scalar(each).tree) for each in ("COUNT(*)", "COUNT(DISTINCT *)", "COUNT(*, a)", "COUNT(t.*)")]
    [True, False, False, False]
    """
    if not isinstance(node, exp.Anonymous) or node.name.lower() != "count" or len(node.expressions) != 1:
        return False
    return isinstance(node.expressions[0], exp.Star) and not any(node.expressions[0].args.values())


def mentioned(query: exp.Expr) -> frozenset[str] | None:
    """Return the identifiers of a whole text, lower-case: no other column can matter to it; None if all may.

    >>> from strandline.compute.plan.sql import parse
    >>> texts = ("SELECT count(*) AS n FROM T", "SELECT hash(*) FROM t", "SELECT a FROM t NATURAL JOIN u")
    >>> [(names := mentioned(parse(each))) and sorted(names) for each in texts]
    [['n', 't'], None, None]
    """
    if any(not counts_rows(star.parent) for star in query.find_all(exp.Star)):
        return None
    if query.find(exp.Pivot) is not None or any(join.args.get("method") for join in query.find_all(exp.Join)):
        return None  # PIVOT groups by the columns that it does not name, NATURAL joins by those that both sides have
    return frozenset(name.name.lower() for name in query.find_all(exp.Identifier))


def is_aggregate(node: exp.Expr) -> bool:
    """Tell whether ``node`` itself is a call of an aggregate function (its FILTER and the like included)."""
    match node:
        case exp.Filter() | exp.WithinGroup() | exp.IgnoreNulls() | exp.RespectNulls():
            return is_aggregate(node.this)
        case exp.Anonymous():
            return node.name.lower() in AGGREGATES
        case _:
            return isinstance(node, exp.AggFunc)


def has_aggregate(expression: exp.Expr) -> bool:
    """Tell whether ``expression`` calls an aggregate function, other than over a window or in a subquery."""
    if isinstance(expression, exp.Query):
        return False
    if isinstance(expression, exp.Window):
        return any(has_aggregate(e) for key, e in _parts(expression) if key != "this") or any(
            has_aggregate(argument) for argument in expression.this.iter_expressions()
        )
    return is_aggregate(expression) or any(has_aggregate(e) for e in expression.iter_expressions())


def _parts(node: exp.Expr) -> list[tuple[str, exp.Expr]]:
    found: list[tuple[str, exp.Expr]] = []
    for key, value in node.args.items():
        values = value if isinstance(value, list) else [value]
        found.extend((key, v) for v in values if isinstance(v, exp.Expr))
    return found


def conjuncts(expression: exp.Expr) -> list[exp.Expr]:
    """Return the terms of a conjunction.

    >>> from strandline.algebra.scalar import text
    >>> from strandline.compute.plan.sql import parse
    >>> [text(c) for c in conjuncts(parse("SELECT (a AND b) AND c OR d").expressions[0])]
    ['(a AND b) AND c OR d']
    >>> [text(c) for c in conjuncts(parse("SELECT (a AND b) AND c").expressions[0])]
    ['a', 'b', 'c']
    """
    if isinstance(expression, exp.And):
        return conjuncts(expression.this) + conjuncts(expression.expression)
    if isinstance(expression, exp.Paren) and isinstance(expression.this, exp.And):
        return conjuncts(expression.this)
    return [expression]
