"""Queries composed as trees: the SELECT of what is recomputed, over relations whose names are ours.

The names of these relations are reserved, so that none can hide a relation of the author's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlglot import exp

from strandline.algebra.scalar import Faithful, column
from strandline.algebra.schema import RESERVED

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
