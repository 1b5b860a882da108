"""Columns that a source got after it had begun with a table that can be read as it was.

A late column is read from an *offset* on, which is noted before anything behind it is durable.  Rows that are held
there were read without it.  So the slice that begins at that offset corrects them first: each row of the table as it
was then goes without the column, and comes with it.  Rows that have no value in it do both, which is nothing.  From
then on a row that goes, goes with the value that it came with.  So does the slice in which upstream itself gets the
column, since the rows that are there may have a default from then on.

Until upstream has the column, it is NULL.  Once a version had it, one that lacks it has lost it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Self

import msgspec

from strandline.algebra.schema import Schema
from strandline.sources.reader import Surroundings
from strandline.sources.readers.new_columns import new_columns


class Late(msgspec.Struct, frozen=True, array_like=True):
    """A column is read from offset ``read`` on, and upstream has it from ``there`` on; 0: it was not seen yet."""

    read: int
    there: int = 0


class Noted(msgspec.Struct, frozen=True):
    """Which columns a source reads.

    ``first``: those that it began with; None: a version that noted none did.  ``left``: those that upstream had then
    besides.  ``late``: those that came later.
    """

    first: list[str] | None = None
    left: list[str] = []
    late: dict[str, Late] = {}

    @classmethod
    def begun(cls, schema: Schema, there: Collection[str]) -> Self:
        """Return the note of a source that begins to read ``schema`` of the columns ``there``."""
        known = {name.lower() for name in schema.names}
        return cls([*schema.names], [name for name in there if name.lower() not in known])

    def adopted(self, schema: Schema, offset: int) -> Noted:
        """Return the note once columns that ``schema`` has besides are read from ``offset`` on."""
        first = self.first or []
        new = [name for name in schema.names if name not in first and name not in self.late]
        if not offset:
            return msgspec.structs.replace(self, first=[*first, *new])
        return msgspec.structs.replace(self, late=self.late | {name: Late(offset) for name in new})

    def new(self, schema: Schema) -> Schema:
        """Return the columns of ``schema`` that are not read yet; none if it is not known which are."""
        known = {*schema.names} if self.first is None else {*self.first, *self.late}
        return Schema(tuple(column for column in schema if column.name not in known))

    def seen(self, names: Collection[str], offset: int) -> Noted:
        """Return the note once upstream has had late columns, those among ``names``, from ``offset`` on."""
        known = {name.lower() for name in names}
        found = {
            name: Late(late.read, offset)
            for name, late in self.late.items()
            if not late.there and name.lower() in known
        }
        return msgspec.structs.replace(self, late=self.late | found)

    def unseen(self) -> bool:
        """Whether a late column was not seen yet."""
        return any(not late.there for late in self.late.values())

    def absent(self, schema: Schema, offset: int) -> frozenset[str]:
        """Return the columns of ``schema`` that upstream may lack at ``offset``: they are still to come."""
        first = self.first or []
        late = {name: self.late.get(name, Late(0)).there for name in schema.names if name not in first}
        return frozenset(name for name, there in late.items() if not there or offset < there)

    def corrected(self, offset: int) -> frozenset[str]:
        """Return the columns that rows which are held at ``offset`` were read without, or before upstream had them."""
        return frozenset(name for name, late in self.late.items() if offset in (late.read, late.there))


class Lacking:
    """What a table has besides the columns of its source, and what is said of that."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._notice = ""
        self._looked: object = None

    def look(self, version: object, there: Callable[[], Iterable[tuple[str, str | None]]], note: Noted) -> None:
        """Look at the columns that a table has where it is read to, unless its columns are of a known ``version``.

        Raises `ColumnsAdded`: the source is to get some that it lacks.
        """
        if version != self._looked:
            found = new_columns(self._around.schema, there())
            evolves = "" in self._around.evolving
            self._notice = self._around.gained("", [c for c in found if evolves or c.name not in note.left])
            self._looked = version

    @property
    def notices(self) -> tuple[str, ...]:
        """The notice of them, or nothing."""
        return (self._notice,) if self._notice else ()
