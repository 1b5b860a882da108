"""Schemas: the columns of a collection, in order.

A type is Spark's own simple string (``int``, ``decimal(10,2)``, ``array<string>``): Spark is the authority on types;
Strandline only carries them.  Names that start with two underscores are reserved for Strandline (`TIME`, `DIFF`,
`ERROR`) and refused in user data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from strandline.errors import DefinitionError, RepeatedColumn

TIME: Final = "__time"
DIFF: Final = "__diff"
ERROR: Final = "__error"
"""Null in a row of the ok half; in a row of the err half a JSON object that describes the error."""
RESERVED: Final = "__"
SUCCESSOR: Final = "__next_"
"""How the name of a view begins that is to replace another one, whose name follows; no user can give such a name."""
SHOWN_MAX: Final = 20
"""How many columns a message names."""
_NAME_SHOWN_MAX: Final = 80
"""How many characters of a name a message shows."""


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
        for place, column in enumerate(self.columns):
            if column.name.startswith(RESERVED):
                raise DefinitionError(f"column {column.name!r}: names that start with '__' are reserved")
            if column.name.lower() in seen:
                raise RepeatedColumn(column.name, place)
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
        return ddl_of(self.columns)

    def not_once_in(self, names: Sequence[str]) -> str:
        """Say which column is not exactly once among ``names``, compared without case; empty: each is.

        >>> s = Schema((Column("a", "int"),))
        >>> s.not_once_in(["b", "A"]), s.not_once_in(["b"]), s.not_once_in(["a", "A"])
        ('', 'no column `a`; it has b', 'column `a` 2 times; it has a, A')
        """
        lowered = [name.lower() for name in names]
        for column in self.columns:
            times = lowered.count(column.name.lower())
            if times != 1:
                has = f"column `{column.name}` {times} times" if times else f"no column `{column.name}`"
                more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
                return f"{has}; it has {', '.join(names[:SHOWN_MAX])}{more}"
        return ""


def struct(fields: Iterable[Column]) -> str:
    """Return the type of a struct with these fields.

    >>> struct(Schema((Column("a b", "int"),)))
    'struct<`a b`:int>'
    """
    return f"struct<{','.join(f'{quote(c.name)}:{c.type}' for c in fields)}>"


def ddl_of(columns: Iterable[Column]) -> str:
    """Return ``columns`` as Spark DDL, names quoted."""
    return ", ".join(f"{quote(c.name)} {c.type}" for c in columns)


def shown(name: str) -> str:
    """Return ``name`` as messages say it: on one line, and of a long one its beginning.

    >>> print(shown("a`b"), shown("x" * 50_000)[-24:])
    'a`b' xxx'… (50000 characters)
    """
    return repr(name) if len(name) <= _NAME_SHOWN_MAX else f"{name[:_NAME_SHOWN_MAX]!r}… ({len(name)} characters)"


def quote(name: str) -> str:
    """Return ``name`` as a Spark SQL identifier.

    >>> quote("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"
