"""What planning one view knows: the catalog, Spark's answers, the names given and the types learned so far.

A plan's columns have unique names, so every name of the author's is translated once, here: `Scope` finds the column of
a FROM clause that a name means.  A name that is not found, or not unique, is `Unplanned`: Spark has already accepted
the query, so our resolution of names is what fails.

Spark is the authority on types and functions (`Analyst`).  The planner asks it for the schema of what the author
wrote, for the types it needs on the way, and in the end for the schema of what it made of it.

Queries of our own are composed as trees (`select`, `relation`), over relations with reserved names, so that none can
hide a relation of the author's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from sqlglot import exp

from strandline.algebra.nodes import First, Get, Key, Node, Opaque, Project, frames, has_join
from strandline.algebra.scalar import Doubt, Faithful, Scalar, column
from strandline.algebra.schema import DIFF, RESERVED, TIME, Schema, quote
from strandline.compute.plan.asked import Pieces
from strandline.compute.plan.keys import key_of, showing_key
from strandline.engine.sql.rendering import render
from strandline.errors import DefinitionError


class Unplanned(Exception):
    """This part of the query has no plan of relational nodes: it is recomputed.  The text is the reason, for people."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column that a FROM clause offers: its relation's alias, the author's name if any, its name in the plan."""

    qualifier: str | None
    name: str | None
    column: str


class Names:
    """Gives names to the plan's columns, each once.

    >>> names = Names()
    >>> names.fresh("a"), names.fresh("A"), names.fresh("sum(x)"), names.fresh(None)
    ('a', 'A_2', 'sum_x', 'column')
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {name.lower() for name in taken}

    def fresh(self, wanted: str | None) -> str:
        """Return a name like ``wanted`` that this plan has not used before, without regard to case."""
        base = re.sub(r"\W+", "_", wanted or "").strip("_") or "column"
        name, n = base, 2
        while name.lower() in self._taken:
            name, n = f"{base}_{n}", n + 1
        self._taken.add(name.lower())
        return name


@dataclass(frozen=True, slots=True)
class Scope:
    """What a FROM clause offers: all columns by qualified name, and those that ``*`` and plain names see, in order.

    The rules are Spark's: case does not count; a qualified name is looked for before a field of a struct; the columns
    of USING are one column when they are not qualified.
    """

    qualified: tuple[Field, ...] = ()
    plain: tuple[Field, ...] = ()

    def beside(self, other: Scope, using: Iterable[str] = ()) -> tuple[Scope, tuple[tuple[Field, Field], ...]]:
        """Return the scope of a join, and the pairs of columns that ``using`` makes equal.

        The columns of USING come first, from the left side (in an inner join either would do).
        """
        pairs = tuple((_one(self.plain, name), _one(other.plain, name)) for name in using)
        left, right = [a.column for a, _ in pairs], [b.column for _, b in pairs]
        plain = (
            *(a for a, _ in pairs),
            *(f for f in self.plain if f.column not in left),
            *(f for f in other.plain if f.column not in right),
        )
        hidden = tuple(b for _, b in pairs)  # first, in the order of USING, as in Spark
        theirs = (*hidden, *(f for f in other.qualified if f not in hidden))
        return Scope((*self.qualified, *theirs), plain), pairs

    def resolve(self, parts: list[str]) -> tuple[Field, list[str]] | None:
        """Return the column that a dotted name means and the struct fields that follow, or None if there is none."""
        if len(parts) > 1:
            found = [f for f in self.qualified if _same(f.qualifier, parts[0]) and _same(f.name, parts[1])]
            if found:
                return _only(found, ".".join(parts)), parts[2:]
        found = [f for f in self.plain if _same(f.name, parts[0])]
        return (_only(found, parts[0]), parts[1:]) if found else None

    def star(self, qualifier: str | None, without: Iterable[str] = ()) -> list[Field]:
        """Return the columns of ``*`` or ``qualifier.*``, in order: of the latter first those that USING hides."""
        fields = list(self.plain)
        if qualifier is not None:
            places = {f.column: place for place, f in enumerate(self.plain)}
            own = (f for f in self.qualified if _same(f.qualifier, qualifier))
            fields = sorted(own, key=lambda f: places.get(f.column, -1))
        if not fields:
            raise Unplanned(f"{qualifier or ''}.* names no relation")
        dropped = {name.lower() for name in without}
        return [f for f in fields if f.name is None or f.name.lower() not in dropped]


def parts_of(column: exp.Column) -> list[str]:
    """Return the identifiers of a column reference, in order."""
    return [column.args[key].name for key in ("catalog", "db", "table", "this") if column.args.get(key) is not None]


def _same(a: str | None, b: str) -> bool:
    return a is not None and a.lower() == b.lower()


def _one(fields: tuple[Field, ...], name: str) -> Field:
    return _only([f for f in fields if _same(f.name, name)], name)


def _only(found: list[Field], name: str) -> Field:
    if len({f.column for f in found}) != 1:
        raise Unplanned(f"the name {name} is {'not unique' if found else 'unknown'} here")
    return found[0]


T = TypeVar("T")


class Analyst(Protocol):
    """Analyses queries; runs none.

    It gives the names and types of a query over empty relations.  A test may answer in Spark's place.
    """

    @property
    def functions(self) -> frozenset[str]:
        """The functions, lower-case, that this process can call besides Spark's own; all have a definite value."""
        ...

    def schema_of(self, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
        """Return the schema of the query ``sql`` in which each of ``relations`` is a table.

        ``ours``: it is made of what an author wrote that was accepted, so it reaches nothing that the author's text
        does not.

        Raises `DefinitionError`, with position and candidates where Spark gives them, for what Spark refuses.
        """
        ...

    def doubts(self, sql: str, relations: Mapping[str, Schema], *, ordering: bool) -> tuple[Doubt, ...]:
        """Return what may leave the query ``sql``, which is accepted, without one answer.

        ``ordering``: also what may only lean on the order of rows.
        """
        ...

    def same(self, sql: str, other: str, relations: Mapping[str, Schema]) -> bool:
        """Tell whether ``sql``, which is accepted, and ``other``, which may not be, are the same query to Spark."""
        ...

    def compared(self, left: str, right: str) -> str | None:
        """Return the type in which Spark compares values of these two types for equality.

        None: it compares them in none, or in one that no collection can hold.
        """
        ...

    def made(self, question: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return what ``make`` makes of this analyst's answers, and of nothing else that ``question`` does not say.

        It may be what was made of them before.
        """
        ...

    def rehearse(self, steps: Sequence[Node], frames: Mapping[str, Schema], stored: Schema) -> None:
        """Raise `DefinitionError` if a step could not run over ``frames``, or gave other columns than ``stored``.

        ``frames``: for each frame that they read the columns of the collection, without time and diff.
        """
        ...


class TypeAnalyst(Analyst, Protocol):
    """An analyst that reads column lists, too."""

    def parse_ddl(self, ddl: str) -> Schema:
        """Return the schema that a column list writes.  Raises `DefinitionError` for what is none."""
        ...


ROWS: Final = f"{RESERVED}rows"
"""What a SELECT without a rule reads."""


def select(items: Iterable[tuple[exp.Expr, str]], source: str | exp.Expr, **clauses: Any) -> exp.Select:
    """Return ``SELECT item AS name, … FROM source`` with other clauses by their names in sqlglot."""
    read = relation(source) if isinstance(source, str) else source
    shown = [exp.Alias(this=tree, alias=exp.Identifier(this=name, quoted=True)) for tree, name in items]
    return exp.Select(expressions=shown, from_=exp.From(this=read), **clauses)


def relation(name: str) -> exp.Table:
    """Return a reference to the relation ``name``."""
    return exp.Table(this=exp.Identifier(this=name, quoted=True))


def names(wanted: Iterable[str]) -> list[tuple[exp.Expr, str]]:
    """Return the items of a SELECT that gives each of these columns as it is."""
    return [(column(name), name) for name in wanted]


def parsed(sql: str) -> exp.Expr:
    """Return the tree of an expression of ours, in which plain words are holes for `filled`."""
    return exp.maybe_parse(sql, dialect=Faithful)


def filled(template: exp.Expr, holes: Mapping[str, exp.Expr]) -> exp.Expr:
    """Return a copy of ``template`` with a copy of a tree in place of each column that is named like a hole.

    >>> from strandline.algebra.scalar import call, text
    >>> text(filled(parsed("size(hole) > b"), {"hole": call("f", column("a"))}))
    'SIZE(F(`a`)) > b'
    """

    def fill(node: exp.Expr) -> exp.Expr:
        return holes[node.name].copy() if isinstance(node, exp.Column) and node.name in holes else node

    return template.copy().transform(fill)


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned query: its plan, and for each output the author's name (None: it has none) and the plan's column."""

    node: Node
    outputs: tuple[tuple[str | None, str], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The plan's columns, in the query's order."""
        return tuple(column for _, column in self.outputs)


@dataclass(slots=True)
class Context:
    """The state of planning one view.

    ``relations``: the collections it may read.  ``mentioned``: the column names that occur in its text, lower-case;
    no other column can matter to it (None: there is a ``*``, so all may).  ``types``: Spark's type of plan columns,
    where it was needed.
    """

    relations: Mapping[str, Schema]
    analyst: Analyst
    mentioned: frozenset[str] | None
    names: Names = field(default_factory=Names)
    types: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    pieces: Pieces = field(init=False)

    def __post_init__(self) -> None:
        self.pieces = Pieces(self.analyst, self.relations)

    def relation(self, name: str) -> str | None:
        """Return the collection called ``name``, without regard to case."""
        return next((own for own in self.relations if own.lower() == name.lower()), None)

    def get(self, name: str) -> Planned:
        """Return the plan that reads a collection: those of its columns that can matter."""
        schema = self.relations[name]
        needed = [c for c in schema.names if self.mentioned is None or c.lower() in self.mentioned]
        outputs = tuple((c, self.names.fresh(c)) for c in needed or schema.names[:1])
        return Planned(Get(name, tuple((out, str(own)) for own, out in outputs)), outputs)

    def schema(self, node: Node) -> Schema:
        """Return Spark's opinion of the columns of ``node``.  What they do not depend on is not asked for.

        Raises `Unplanned` if Spark refuses what they depend on: then the plan is not a faithful one.
        """
        with suppress(DefinitionError):
            return self.pieces.types(node)
        return self.whole(node)

    def accepted(self, node: Node) -> Schema:
        """As `schema`; Spark accepts all of ``node``: in pieces, or as a whole where it refuses one of them."""
        with suppress(DefinitionError):
            return self.pieces.schema(node)
        return self.whole(node)

    def whole(self, node: Node) -> Schema:
        """As `accepted`, by having it analyse the text that would run."""
        read = sorted(frames(node))
        views = {name: f"{RESERVED}frame_{n}" for n, name in enumerate(read)}
        updates = [f"{v} AS (SELECT *, 0L AS {TIME}, 1L AS {DIFF} FROM {quote(name)})" for name, v in views.items()]
        columns = ", ".join(map(quote, node.names))
        defined = "WITH " + ", ".join(updates) + " " if updates else ""
        return self.analysed(f"{defined}SELECT {columns} FROM ({render(node, views)})", read)

    def analysed(self, sql: str, read: Iterable[str], extra: Mapping[str, Schema] | None = None) -> Schema:
        """Return the schema of ``sql`` over the collections ``read`` and ``extra`` relations, or raise `Unplanned`."""
        try:
            relations = {**{name: self.relations[name] for name in read}, **(extra or {})}
            return self.analyst.schema_of(sql, relations, ours=True)
        except DefinitionError as refused:
            raise Unplanned(f"Spark does not accept our reading of it: {refused.message}") from refused

    def learn(self, node: Node) -> Schema:
        """Ask for the types of the columns of ``node``, and keep them; raise `Unplanned` if one had another type."""
        schema = self.accepted(node)
        for each in schema:
            if self.types.setdefault(each.name, each.type) != each.type:
                raise Unplanned(f"the column {each.name} is {each.type} here and {self.types[each.name]} below")
        return schema

    def is_storable(self, node: Node) -> bool:
        """Return whether the rows of ``node`` can be stored; the types of its columns are then known."""
        try:
            self.learn(node)
        except Unplanned:
            return False
        return True

    def opaque(
        self,
        inputs: Iterable[Node],
        aliases: Iterable[str],
        sql: str,
        names: Iterable[str],
        reason: str,
        *,
        picks: bool = False,
        top: bool = False,
        first: First | None = None,
        partition: frozenset[str] = frozenset(),
    ) -> Node:
        """Return the rows of an `Opaque` that Spark accepts, its types learned, with a key if one is known.

        The query shows its key, so that it is stored with the rows; what is returned has the columns ``names`` only.
        ``first``: of the rows of the one input with equal values in ``partition`` only the first matter.
        """
        asked = Opaque(tuple(inputs), tuple(aliases), sql, tuple(names), reason, picks, top=top, first=first)
        node = showing_key(asked, self.names.fresh)
        schema = self.learn(node)
        for below in node.inputs:
            if has_join(below):  # what is joined for a query without a key is stored
                self.learn(below)
        key = self._comparable(node, schema)
        whole = partition == frozenset(() if key is None else key.inputs[0])
        node = replace(node, key=key, first=first if whole else None)
        return renamed(node, zip(asked.names, asked.names, strict=True))

    def _comparable(self, node: Opaque, schema: Schema) -> Key | None:
        """Return the key of ``node``, of which only those columns count that have one type everywhere.

        Equality of unequal types is not transitive, and that of maps is not known.
        """
        found = key_of(node)
        if found is None:
            return None
        types = [{c.name: c.type for c in schema}]
        types += [{c.name: c.type for c in self.schema(below)} for below in node.inputs if len(node.inputs) > 1]
        columns = (found.output, *(found.inputs if len(node.inputs) > 1 else ()))
        of = [[each[name] for name in own] for each, own in zip(types, columns, strict=True)]
        kept = [n for n, (first, *others) in enumerate(zip(*of, strict=True)) if _of_one_type(first, others)]
        if not kept:
            return None
        return Key(tuple(tuple(own[n] for n in kept) for own in found.inputs), tuple(found.output[n] for n in kept))


_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_DECIMAL: Final = re.compile(r"decimal\(\d+,(\d+)\)")


def alike(one: str, other: str) -> bool:
    """Tell whether each value of the one type equals at most one of the other, as in one type.

    >>> alike("int", "bigint"), alike("decimal(8,2)", "decimal(12,2)"), alike("decimal(8,2)", "decimal(9,3)")
    (True, True, False)
    """
    scales = [found[1] for each in (one, other) if (found := _DECIMAL.fullmatch(each)) is not None]
    return one == other or {one, other} <= {*_INTEGERS} or (len(scales) == 2 and scales[0] == scales[1])


def _of_one_type(first: str, others: Sequence[str]) -> bool:
    """Tell whether these types, of one column here and there, compare values as one type does."""
    return all(alike(first, other) for other in others) and "map<" not in first and "variant" not in first


def project(node: Node, columns: Iterable[tuple[str, exp.Expr]]) -> Node:
    """Return a `Project`, or less where that would be the same: ``node`` itself, or one projection in place of two."""
    wanted = tuple((name, Scalar(tree)) for name, tree in columns)
    taken = tuple(value.column for _, value in wanted)
    if isinstance(node, Project) and None not in taken:
        below = dict(node.columns)
        return project(node.input, [(name, below[str(own)].tree) for (name, _), own in zip(wanted, taken, strict=True)])
    if taken == node.names == tuple(name for name, _ in wanted):
        return node
    return Project(node, wanted)


def renamed(node: Node, columns: Iterable[tuple[str, str]]) -> Node:
    """Return ``node`` with its columns called otherwise, ``((name, column), …)``; those not listed are left out."""
    return project(node, [(name, column(own)) for name, own in columns])
