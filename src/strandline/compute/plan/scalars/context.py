"""What planning one view knows: the catalog, Spark's opinion, the names given and the types learned so far."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from sqlglot import exp

from strandline.algebra.first import First
from strandline.algebra.nodes import Get, Key, Node, Opaque, Project, frames, has_join
from strandline.algebra.scalar import Scalar, column
from strandline.algebra.schema import DIFF, RESERVED, TIME, Schema, quote
from strandline.compute.plan.asked.pieces import Pieces
from strandline.compute.plan.keys.key_of import key_of, showing_key
from strandline.compute.plan.scalars.analyst import Analyst
from strandline.compute.plan.scalars.scope import Names, Unplanned
from strandline.engine.sql.rendering import render
from strandline.errors import DefinitionError


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
        kept = [n for n, (first, *others) in enumerate(zip(*of, strict=True)) if _one(first, others)]
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


def _one(first: str, others: Sequence[str]) -> bool:
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
