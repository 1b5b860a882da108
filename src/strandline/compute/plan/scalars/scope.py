"""Names: which column of a FROM clause a name in the query means.

A plan's columns have unique names, so every name of the author's is translated once, here.  The rules are Spark's:
case does not count; a qualified name is looked for before a field of a struct; the columns of USING are one column
when they are not qualified.  A name that is not found, or not unique, is `Unplanned`: Spark has already accepted the
query, so it is our resolution that falls short.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sqlglot import exp


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
    """What a FROM clause offers: all columns by qualified name, and those that ``*`` and plain names see, in order."""

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
