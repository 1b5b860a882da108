"""Keys of queries: the columns by which a query without its own rule is partitioned, so that each part can be rerun.

A *strand* is one column of every relation that a query reads, such that rows with unequal values there never meet: no
window, group, join, subquery or set operation brings them together.  So the query's rows with a value come from the
relations' rows with that value, and from no others.

Each column of a relation begins as a strand of its own.  A join leaves those that its equal keys tie together, a
subquery those that its correlation ties together, a window those of its PARTITION BY, a group those that it groups by,
and a set operation those in the same position.  Treating NULLs as equal may rerun more rows than needed, never fewer.

A clause that is not understood has no strands: then there is no key, and the query is recomputed as a whole.  Keys are
found once, when a view is planned, because the types of columns are known then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from strandline.algebra.nodes import Key, Opaque
from strandline.algebra.scalar import Faithful, text
from strandline.compute.plan.sql import conjuncts, has_aggregate, replaced

Name: TypeAlias = tuple[int, str]
"""A column of a relation in a FROM clause: the relation's number, and the column's name in lower case."""
Shown: TypeAlias = frozenset[Any]


class NoKey(Exception):
    """The query has a form in which no strand is looked for."""


@dataclass(frozen=True, slots=True)
class Strand:
    """``read``: the columns of the relations, by alias; ``shown``: what has its value: names, or positions of outputs.

    ``compared``: rows with unequal values in it are kept apart by something, so that these can be compared.
    """

    read: frozenset[tuple[str, str]]
    shown: Shown
    compared: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """A query's outputs, and its strands by the positions at which they are shown.

    ``hidden``: strands that no output shows, each with a column of the FROM clause that would.
    """

    names: tuple[str, ...]
    strands: list[Strand]
    hidden: list[tuple[Strand, exp.Expr]] = field(default_factory=list)


@dataclass(slots=True)
class Scope:
    """What names may mean in a SELECT: for each relation of its FROM clause the alias, a number, the columns.

    ``merged``: columns that a name alone does not mean, because USING made it mean another.
    """

    relations: list[tuple[str, int, tuple[str, ...]]] = field(default_factory=list)
    merged: set[Name] = field(default_factory=set)

    def find(self, expression: exp.Expr) -> Name | None:
        """Return the column that ``expression`` is, if it is just one of this scope."""
        node = expression.unnest()
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star) or node.args.get("db"):
            return None
        found = self._offering(node)
        return (found[0], node.name.lower()) if len(found) == 1 else None

    def offers(self, expression: exp.Expr) -> bool:
        """Tell whether ``expression`` is a column that this scope may offer: so no scope around it does.

        It may be a field: of a column here that is called like a relation around.
        """
        node = expression.unnest()
        if not isinstance(node, exp.Column):
            return False
        first = node.parts[0].name.lower()
        return bool(self._offering(node)) or any(first in map(str.lower, names) for _, _, names in self.relations)

    def column(self, name: Name) -> exp.Expr:
        """Return the column that ``name`` is, as an expression."""
        alias, _, columns = next(each for each in self.relations if each[1] == name[0])
        own = next(each for each in columns if each.lower() == name[1])
        table = exp.Identifier(this=alias, quoted=True) if alias and len(self.relations) > 1 else None
        return exp.Column(this=exp.Identifier(this=own, quoted=True), table=table)

    def every(self, star: exp.Expr, select: exp.Select) -> list[tuple[str, Name | None]]:
        """Return what ``*`` or ``alias.*`` stands for in ``select``."""
        plain = star.this if isinstance(star, exp.Column) else star
        using = any(join.args.get("using") for join in select.args.get("joins") or [])
        if clauses_of(plain) or using or select.args.get("laterals"):
            raise NoKey
        table = star.table.lower() if isinstance(star, exp.Column) else ""
        return [
            (name, (number, name.lower()))
            for alias, number, columns in self.relations
            if table in ("", alias.lower())
            for name in columns
        ]

    def _offering(self, node: exp.Column) -> list[int]:
        table, name = node.table.lower(), node.name.lower()
        return [
            number
            for alias, number, names in self.relations
            if table in ("", alias.lower()) and name in map(str.lower, names)
            if table or (number, name) not in self.merged
        ]


def clauses_of(node: exp.Expr) -> set[str]:
    """Return the names of the clauses that ``node`` has."""
    return {key for key, value in node.args.items() if value}


_CLAUSES: Final = frozenset(
    "expressions from_ joins laterals where group having qualify distinct order hint".split()  # noqa: SIM905
)
_CUTS: Final = frozenset({"limit", "offset"})
_INNER: Final = ("", "INNER", "CROSS")

Pairs: TypeAlias = list[tuple[Name, Name]]
_Find: TypeAlias = Callable[[exp.Expr], Name | None]


class Query:
    """The tree of a node's query, and how its strands are found."""

    def __init__(self, node: Opaque) -> None:
        try:
            self.tree = sqlglot.parse_one(node.sql, dialect=Faithful)
        except SqlglotError as error:
            raise NoKey from error
        self._known = {alias: below.names for alias, below in zip(node.aliases, node.inputs, strict=True)}
        self._numbers = count()

    def rows(self) -> Rows:
        """Return the outputs and strands of the whole query."""
        return self._query(self.tree)

    def _query(self, query: exp.Expr) -> Rows:
        match query:
            case exp.Select():
                scope = Scope()
                strands = self._read(query, scope)
                for asked in _asked(query):
                    strands = self._beside(strands, scope, *asked)
                return _output(query, scope, _apart(query, scope, strands))
            case exp.Subquery() if clauses_of(query) <= {"this", "alias"}:
                return self._query(query.this)
            case exp.SetOperation() if clauses_of(query) <= {"this", "expression", "distinct"}:
                left, right = self._query(query.this), self._query(query.expression)
                return Rows(left.names, _tied(left.strands, right.strands, None, lambda a, b: a & b))
        raise NoKey

    def _read(self, select: exp.Select, scope: Scope, more: frozenset[str] = frozenset()) -> list[Strand]:
        """Return the strands of the rows that FROM and WHERE give, and fill ``scope``; it may also have ``more``."""
        first = select.args.get("from_")
        if first is None or not clauses_of(select) <= _CLAUSES | more:
            raise NoKey
        strands = self._relation(first.this, scope)
        joins = select.args.get("joins") or []
        # A row that an outer join gives because nothing matches meets WHERE too.
        filtered = any((join.side or "").upper() in ("RIGHT", "FULL") for join in joins)
        for join in joins:
            strands = self._joined(strands, scope, join, [] if filtered else _terms(select.args.get("where")))
        for view in select.args.get("laterals") or []:
            if not view.args["alias"].args.get("columns"):
                raise NoKey  # the function names them: a column of that name outside is not meant
            self._offered(view, scope, ())
        return strands

    def _relation(self, relation: exp.Expr, scope: Scope) -> list[Strand]:
        """Return the strands of one relation, which ``scope`` then offers."""
        if clauses_of(relation) <= {"this", "alias"}:
            if isinstance(relation, exp.Table) and relation.name in self._known:
                names = self._known[relation.name]
                number = self._offered(relation, scope, names)
                own = [(name, frozenset({(number, name.lower())})) for name in scope.relations[-1][2]]
                reads = [frozenset({(relation.name, name)}) for name in names]
                return [Strand(read, shown) for read, (_, shown) in zip(reads, own, strict=True)]
            if isinstance(relation, exp.Subquery):
                rows = self._query(relation.this)
                number = self._offered(relation, scope, rows.names)
                given = [(number, name.lower()) for name in scope.relations[-1][2]]
                return [replace(s, shown=frozenset(given[n] for n in s.shown)) for s in rows.strands]
        raise NoKey

    def _offered(self, relation: exp.Expr, scope: Scope, names: Sequence[str]) -> int:
        """Let ``scope`` offer a relation with these columns, or others where its alias renames them."""
        alias, number = relation.args.get("alias"), next(self._numbers)
        given = [c.name for c in alias.args.get("columns") or []] if isinstance(alias, exp.TableAlias) else []
        if given and names and len(given) != len(names):
            raise NoKey
        offered = tuple(given or names)
        if "" in offered or len({name.lower() for name in offered}) < len(offered):
            raise NoKey  # Spark has a name for it that is not known here, or one name means two columns
        scope.relations.append((relation.alias_or_name, number, offered))
        return number

    def _joined(self, strands: list[Strand], scope: Scope, join: exp.Join, where: list[exp.Expr]) -> list[Strand]:
        """Return the strands of what is joined so far (``strands``) with one more relation."""
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        on, using = join.args.get("on"), [name.name.lower() for name in join.args.get("using") or []]
        if join.method or join.args.get("match_condition") or (on is not None and on.find(exp.Query)):
            raise NoKey
        if isinstance(join.this, exp.Lateral):
            query = join.this.this
            if side not in ("", "LEFT") or using or not isinstance(query, exp.Subquery):
                raise NoKey
            strands = self._beside(strands, scope, query, None)
            self._offered(join.this, scope, _names(query.this))
            return strands
        lefts = [scope.find(exp.column(name)) for name in using]
        right = self._relation(join.this, scope)
        rights = [(scope.relations[-1][1], name) for name in using]
        inner = not side and kind in _INNER
        terms = [] if on is None else conjuncts(on)
        pairs = _equal([*terms, *where] if inner else terms, scope.find, scope.find)
        pairs += [(left, own) for left, own in zip(lefts, rights, strict=True) if left is not None]
        scope.merged.update(each for each in (lefts if side == "RIGHT" else rights) if each is not None)
        if kind in ("SEMI", "ANTI"):
            scope.relations.pop()
        elif side == "FULL":
            return []
        return _tied(strands, right, pairs, lambda a, b: a | b if inner else b if side == "RIGHT" else a)

    def _beside(self, strands: list[Strand], scope: Scope, query: exp.Expr, value: exp.Expr | None) -> list[Strand]:
        """Return the ``strands`` that a subquery leaves, which each row asks: those that its correlation ties.

        ``value``: only rows count whose value is among those of the subquery.
        """
        match query:
            case exp.Subquery():
                return self._beside(strands, scope, query.this, value)
            case exp.SetOperation():
                return self._beside(self._beside(strands, scope, query.this, None), scope, query.expression, None)
            case exp.Select() if clauses_of(query) == {"expressions", "from_"} and _wraps(query.args["from_"].this):
                return self._beside(strands, scope, query.args["from_"].this.this, None)  # as `order.show_keys` writes
            case exp.Select():
                pass
            case _:
                raise NoKey
        inside = Scope()
        own = self._read(query, inside, _CUTS)  # LIMIT chooses among the rows that are tied to one row outside
        for asked in _asked(query):
            own = self._beside(own, inside, *asked)
        around = _equal(
            _terms(query.args.get("where")), lambda e: None if inside.offers(e) else scope.find(e), inside.find
        )
        tied = _tied(strands, own, around, lambda a, _: a)
        column = None if value is None else scope.find(value)
        if column is not None:
            among = [replace(s, shown=frozenset({_AMONG})) for s in self._query(query).strands if 0 in s.shown]
            tied += _tied(strands, among, [(column, _AMONG)], lambda a, _: a)
        return tied


_AMONG: Final = (-1, "")
"""The first output of the subquery of an IN, as a name."""


def _wraps(relation: exp.Expr) -> bool:
    """Tell whether a relation is a query with a LIMIT, of which a SELECT around it shows columns."""
    return isinstance(relation, exp.Subquery) and not _CUTS.isdisjoint(clauses_of(relation.this))


def _terms(where: exp.Expr | None) -> list[exp.Expr]:
    return [] if where is None else conjuncts(where.this)


def _equal(terms: Iterable[exp.Expr], one: _Find, other: _Find) -> Pairs:
    """Return the columns that ``terms`` equate, the first as ``one`` finds them, the second as ``other`` does."""
    found: Pairs = []
    for term in (term.unnest() for term in terms):
        if isinstance(term, exp.EQ | exp.NullSafeEQ):
            for a, b in ((term.this, term.expression), (term.expression, term.this)):
                left, right = one(a), other(b)
                if left is not None and right is not None:
                    found.append((left, right))
    return found


def _tied(
    left: list[Strand], right: list[Strand], pairs: Pairs | None, shown: Callable[[Shown, Shown], Shown]
) -> list[Strand]:
    """Return the strands of both sides that ``pairs`` of names tie together; None: the same names do.

    ``shown`` says, of what shows the two, what shows the one that they are.
    """
    return [
        Strand(a.read | b.read, shown(a.shown, b.shown), compared=True)
        for a in left
        for b in right
        if (a.shown & b.shown if pairs is None else any(x in a.shown and y in b.shown for x, y in pairs))
    ]


def _asked(select: exp.Select) -> Iterator[tuple[exp.Expr, exp.Expr | None]]:
    """Yield the subqueries in the expressions of ``select``; with a value that, to count, must be among theirs."""
    among = {id(term.args["query"]): term.this for term in _terms(select.args.get("where")) if _is_in(term)}
    _refuse_aliases(select)
    clauses = (select.args.get(key) for key in ("where", "group", "having", "qualify", "order"))
    for clause in (*select.expressions, *(each for each in clauses if each is not None)):
        for node in clause.walk(prune=lambda node: isinstance(node, exp.Query)):
            if isinstance(node, exp.Query):
                yield node, among.get(id(node))


def _refuse_aliases(select: exp.Select) -> None:
    """Raise `NoKey` if a subquery behind GROUP BY may read an output of ``select`` that has a column's name."""
    outputs = {
        item.alias.lower()
        for item in select.expressions
        if isinstance(item, exp.Alias) and item.alias.lower() != item.this.name.lower()
    }
    for clause in (select.args.get(key) for key in ("having", "qualify", "order")):
        for query in () if clause is None else clause.find_all(exp.Query):
            if any(not each.table and each.name.lower() in outputs for each in query.find_all(exp.Column)):
                raise NoKey


def _is_in(term: exp.Expr) -> bool:
    return isinstance(term, exp.In) and term.args.get("query") is not None


def _apart(select: exp.Select, scope: Scope, strands: list[Strand]) -> list[Strand]:
    """Return the strands that GROUP BY and windows leave: each of these must keep their values apart."""
    clauses = [clause for key in ("having", "qualify", "order") if (clause := select.args.get(key)) is not None]
    own = [
        replaced(e, lambda n: exp.Null() if isinstance(n, exp.Query) else n) for e in (*select.expressions, *clauses)
    ]
    group = select.args.get("group")
    if group is not None:
        if not clauses_of(group) <= {"expressions"}:
            raise NoKey
        keys = {name for key in group.expressions for name in _grouped_by(key, select, scope)}
        strands = [replace(s, shown=s.shown.intersection(keys), compared=True) for s in strands]
    elif "having" in clauses_of(select) or any(map(has_aggregate, own)):
        return []
    for window in (window for each in own for window in each.find_all(exp.Window)):
        parts = {scope.find(each) for each in window.args.get("partition_by") or []}
        strands = [replace(s, compared=True) for s in strands if s.shown & parts]
    return [s for s in strands if s.shown]


def _grouped_by(key: exp.Expr, select: exp.Select, scope: Scope) -> set[Name | None]:
    """Return the columns that an element of GROUP BY groups by in any case: itself, or what is in all grouping sets.

    It may be an output, by its position or its alias.
    """
    match key:
        case exp.GroupingSets():
            sets = [each.expressions if isinstance(each, exp.Tuple) else [each] for each in key.expressions]
            return set.intersection(*({scope.find(column) for column in each} for each in sets))
        case exp.Literal(is_string=False) if key.name.isdigit():
            return {scope.find(select.expressions[int(key.name) - 1].unalias())}
        case exp.Column() if not key.table and not scope.offers(key):
            items = (each for each in select.expressions if isinstance(each, exp.Alias))
            return {scope.find(each.this) for each in items if each.alias.lower() == key.name.lower()}
    return {scope.find(key)}


def _output(select: exp.Select, scope: Scope, strands: list[Strand]) -> Rows:
    """Return the outputs of ``select``, and which of them show the ``strands``."""
    names: list[str] = []
    places: dict[Any, set[int]] = {}
    for item in select.expressions:
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            found = scope.every(item, select)
        else:
            found = [(_name(item), scope.find(item.unalias()))]
        for name, column in found:
            places.setdefault(column, set()).add(len(names))
            names.append(name)
    shown: list[Strand] = []
    hidden: list[tuple[Strand, exp.Expr]] = []
    for strand in strands:
        at = frozenset(n for name in strand.shown for n in places.get(name, ()))
        if at:
            distinct = strand.compared or select.args.get("distinct") is not None
            shown.append(replace(strand, shown=at, compared=distinct))
        elif select.args.get("distinct") is None:
            hidden.append((strand, scope.column(min(strand.shown))))
    return Rows(tuple(names), shown, hidden)


def _names(query: exp.Expr) -> tuple[str, ...]:
    """Return the names of the outputs of a SELECT; refuse a ``*``."""
    if not isinstance(query, exp.Select) or any(item.is_star for item in query.expressions):
        raise NoKey
    return tuple(map(_name, query.expressions))


def _name(output: exp.Expr) -> str:
    """Return the name of an output; "" if it is Spark that names it."""
    return output.alias_or_name if isinstance(output, exp.Alias | exp.Column) else ""


def key_of(node: Opaque) -> Key | None:
    """Return columns by which ``node`` falls into parts; None if none are known.

    >>> from strandline.algebra.nodes import Get
    >>> rows = Get("t", (("a", "a"), ("b", "b")))
    >>> sql = "SELECT `b` AS `x`, row_number() OVER (PARTITION BY `b` ORDER BY `a`) AS `n` FROM `__rows`"
    >>> key_of(Opaque((rows,), ("__rows",), sql, ("x", "n"), ""))
    Key(inputs=(('b',),), output=('x',))
    """
    found: dict[tuple[str, ...], str] = {}
    try:
        rows = Query(node).rows()
    except NoKey:
        return None
    for strand in rows.strands:
        columns = _columns(node, strand)
        if strand.compared and columns is not None:
            found.setdefault(columns, node.names[min(strand.shown)])
    return Key(tuple(zip(*found, strict=True)), tuple(found.values())) if found else None


def showing_key(node: Opaque, fresh: Callable[[str], str]) -> Opaque:
    """Return ``node`` with more outputs, named by ``fresh``: the columns that keep its rows apart and are not shown.

    >>> from strandline.algebra.nodes import Get
    >>> rows = Get("t", (("a", "a"), ("b", "b")))
    >>> sql = "SELECT SUM(`a`) OVER (PARTITION BY `b`) AS `x` FROM `__rows`"
    >>> showing_key(Opaque((rows,), ("__rows",), sql, ("x",), ""), lambda name: f"{name}_2").sql
    'SELECT SUM(`a`) OVER (PARTITION BY `b`) AS `x`, `b` AS `b_2` FROM `__rows`'
    """
    try:
        query = Query(node)
        hidden = query.rows().hidden
    except NoKey:
        return node
    wanted = {strand.read: shown for strand, shown in hidden if strand.compared and _columns(node, strand) is not None}
    if not wanted:
        return node
    items = [
        exp.Alias(this=shown, alias=exp.Identifier(this=fresh(shown.name), quoted=True)) for shown in wanted.values()
    ]
    query.tree.set("expressions", [*query.tree.expressions, *items])
    return replace(node, sql=text(query.tree), names=(*node.names, *(item.alias for item in items)))


def _columns(node: Opaque, strand: Strand) -> tuple[str, ...] | None:
    """Return the column of each input that is in ``strand``; None if there is not one of each."""
    found = [[column for alias, column in strand.read if alias == own] for own in node.aliases]
    return tuple(own[0] for own in found) if all(len(own) == 1 for own in found) else None
