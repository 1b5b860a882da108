"""What the names in a query mean: the columns of its relations, and which of these are in a strand (`strands`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlglot import exp

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
