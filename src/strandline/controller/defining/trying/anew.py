"""Anew: an item is defined again, with all that reads it, in one write: a source that has lost its place upstream, say.

A source is read from the start, into shards of its own; what reads it is made again, each item by the statement that it
was made with.  A view sees the columns that it saw before.  All of it is tried on a scratch copy of the catalog first.
So where upstream refuses the source, or a process ends in between, everything is as it was.

What is gone is the history of the item and of what reads it: they begin anew.  What views that were dropped from a
materialization have left at its endpoint is still known, and is taken out if that was asked for.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import partial
from graphlib import TopologicalSorter
from operator import methodcaller
from typing import Any, Final

import msgspec

from strandline.controller.core import Core
from strandline.controller.defining import altering
from strandline.controller.defining.creating import create
from strandline.controller.defining.definitions import create_view
from strandline.controller.defining.trying.making import Made
from strandline.controller.defining.trying.trial import Scratch, Trial, adopt
from strandline.controller.introspection.definition import definition
from strandline.controller.language import statements
from strandline.controller.language.altering import Alter
from strandline.controller.location.catalog import Catalog, needs, unknown
from strandline.controller.location.items import (
    SUBSCRIBED,
    IndexItem,
    Item,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    View,
)
from strandline.errors import DefinitionError

_DERIVED: Final = (Source, SharedSource, SourceTable, View, IndexItem, Materialization)
"""What can be made again of what is elsewhere: the rows of a table are only here."""


async def anew(core: Core, name: str, *, apply: bool) -> dict[str, Any]:
    """Return the statements that define the item called ``name`` again, with what reads it.

    ``apply``: and have them done.

    Raises:
        DefinitionError: there is no such item that can be made of what is elsewhere, with candidates; a view over it is
            being replaced; or a statement is refused, because upstream has nothing to read.  Nothing was changed.
        InvalidUsage: it is to be applied, and this environment does not write.
        Unavailable: the definitions have changed meanwhile, or the source cannot be opened.  Nothing was changed.
    """
    catalog = core.catalog
    gone = catalog.downstream(name)
    made = _made_again(catalog, name, gone)
    texts = [text for item in made for text in statements.split(definition(item))]
    if apply:
        scratch, epoch = Scratch(core), core.require_writing().epoch
        await scratch.catalogs.change(epoch, methodcaller("lacking", gone))
        for text in texts:
            match statements.parse(text):
                case statements.CreateView() as statement:
                    present = catalog.one(statement.name, View, "view")
                    await create_view(scratch, statement, present.narrowed)
                case statement if isinstance(statement, statements.Create):
                    await create(scratch, statement)
                case statement if isinstance(statement, Alter):
                    await altering.alter(scratch, statement)
        for item in made:
            if isinstance(item, Materialization):
                await scratch.catalogs.change(epoch, partial(_with_left, before=item))
        await scratch.catalogs.change(epoch, methodcaller("with_defined", catalog.defined))
        await adopt(core, Trial(scratch, Made((), (), (), ()), ()))
    return {"name": made[0].name, "items": [item.name for item in made], "statements": texts, "applied": apply}


def _with_left(catalog: Catalog, before: Materialization) -> Catalog:
    """Return ``catalog`` with what dropped views have left at an endpoint: its rows stay, or are still to go."""
    made = catalog.one(before.name, Materialization, "materialization")
    return catalog.with_item(msgspec.structs.replace(made, left=before.left, backfills=before.backfills))


def _made_again(catalog: Catalog, name: str, gone: AbstractSet[str]) -> list[Item]:
    """Return which of the items ``gone`` are to be made, in an order in which they can be.

    The view of a subscription is not among them: its reader learns that it was dropped.
    """
    if not isinstance(catalog.find(name), _DERIVED):
        there = (each.name for each in catalog.items.values() if isinstance(each, _DERIVED))
        raise unknown("source, view, index or materialization", name, there)
    for each in gone:
        if isinstance(item := catalog.items[each], View) and item.replaces:
            raise DefinitionError(
                f"{item.replaces!r} is being replaced: wait until the new query has its place, or take it back with "
                f"DROP MATERIALIZED VIEW {item.name}"
            )
    again = [each for each in sorted(gone) if not each.startswith(SUBSCRIBED)]
    read = {each: gone & needs(catalog.items[each]) for each in again}
    return [catalog.items[each] for each in TopologicalSorter(read).static_order()]
