"""The world of views that get other queries, whose tables get columns meanwhile.

Any controller adds a column to a table, also one that was succeeded and does not know it, or that gets no answer.  From
then on it is written to, and queries that read it come.  A view that is there goes on with the columns that it saw.

The laws are those of replaced views.  T and P1 are said of whole rows: what was written to a column stays there, and
a row of before has NULL there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from laws.views import Collected
from strandline.algebra.schema import Schema
from strandline.controller.core import Core
from strandline.controller.defining.changing import tables
from strandline.controller.location.items import Table
from strandline.errors import DefinitionError, StoreError, Unavailable
from worlds import replaced
from worlds.instance import parsed
from worlds.meanings import INPUTS, MORE, TABLE, WIDER, Row, Wanted, padded
from worlds.replaced import QUERIES, Remembering, ReplacedWorld, Replacing

COLUMNS: Final = (MORE.name, "last")
"""What a table gets, one after the other."""


class Wide(Remembering):
    """An observer of tables that get columns."""

    def _held(self, wanted: Wanted, inputs: Mapping[str, Collected], time: int) -> dict[str, list[Row]]:
        """See `Observer._held`."""
        found = super()._held(wanted, inputs, time)
        return {
            name: [padded(row, wanted.width) for row in rows] if INPUTS.get(name) is TABLE else rows
            for name, rows in found.items()
        }


class AlteredWorld(ReplacedWorld):
    """One run, in which tables get columns."""

    observing = Wide

    def controller(self, name: str, wanted: list[str], tasks: int) -> Widening:
        """See `ApartWorld.controller`."""
        return Widening(self, name, wanted, tasks)


class Widening(Replacing):
    """An environment's program, which gives tables columns."""

    queries: Mapping[str, Sequence[Wanted]] = {name: (*each, *WIDER.get(name, ())) for name, each in QUERIES.items()}

    def _row(self, schema: Schema) -> Row:
        """See `Instance._row`."""
        row = list(super()._row(schema))
        row += [self.world.choose("more", 3) or None for _ in schema.columns[len(row) :]]
        while row[-1] is None:
            row.pop()  # as it is, whatever columns come behind
        return tuple(row)

    async def _part(self, core: Core) -> None:
        """See `Instance._part`."""
        await (self._alter(core) if self.world.choose("alter", 2) else super()._part(core))

    async def _commit(self, core: Core) -> None:
        """See `Instance._commit`."""
        if self.world.choose("alter", 4) == 0:
            await self._alter(core)
        await super()._commit(core)

    async def _alter(self, core: Core) -> None:
        """Give a table its next column."""
        world = self.world
        present = core.catalog.find("t1")
        missing = COLUMNS[len(present.columns) - len(TABLE.columns) :] if isinstance(present, Table) else ()
        if not missing:
            return
        try:
            await tables.add_columns(core, parsed(f"ALTER TABLE t1 ADD COLUMN {missing[0]} INT"))
            world.marks["altered"] += 1
        except DefinitionError:
            world.marks["altered: refused"] += 1
        except (StoreError, Unavailable):
            world.marks["altered: unknown"] += 1


def play(seed: int) -> ReplacedWorld:
    """Make the history that ``seed`` is, to its end.  What it breaks is raised, with how to make it again."""
    return replaced.play(seed, AlteredWorld)
