"""Schemas: the columns of a collection, in order.

A type is Spark's own simple string (``int``, ``decimal(10,2)``, ``array<string>``): Spark is the authority on types;
Strandline only carries them.  Names that start with two underscores are reserved for Strandline (`TIME`, `DIFF`,
`ERROR`) and refused in user data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from strandline.errors import DefinitionError

TIME: Final = "__time"
DIFF: Final = "__diff"
ERROR: Final = "__error"
"""Null in a row of the ok half; in a row of the err half a JSON object that describes the error."""
RESERVED: Final = "__"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name as the user wrote it, and its type as Spark writes it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns in order; names are unique without regard to case, as Spark resolves them.

    >>> s = Schema((Column("a", "int"), Column("B", "string")))
    >>> s.names, s.ddl
    (('a', 'B'), '`a` int, `B` string')
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for column in self.columns:
            if column.name.startswith(RESERVED):
                raise DefinitionError(f"column {column.name!r}: names that start with '__' are reserved")
            if column.name.lower() in seen:
                raise DefinitionError(f"column {column.name!r} occurs twice (names are compared without case)")
            seen.add(column.name.lower())

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(c.name for c in self.columns)

    @property
    def ddl(self) -> str:
        """The schema as Spark DDL, names quoted."""
        return ", ".join(f"{quote(c.name)} {c.type}" for c in self.columns)


def struct(fields: Iterable[Column]) -> str:
    """Return the type of a struct with these fields.

    >>> struct(Schema((Column("a b", "int"),)))
    'struct<`a b`:int>'
    """
    return f"struct<{','.join(f'{quote(c.name)}:{c.type}' for c in fields)}>"


def quote(name: str) -> str:
    """Return ``name`` as a Spark SQL identifier.

    >>> quote("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"
