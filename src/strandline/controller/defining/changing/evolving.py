"""Columns that upstreams have got, added by the controller itself where a source says so (``evolve 'add'``).

An instance reports them, and reads nothing more of the collection until it has them.  They are added as ALTER … ADD
COLUMN adds them (`tables.widen`).  A column that cannot be added leaves the collection where it is, with a problem that
says why and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strandline.algebra.schema import Column, ddl_of, quote
from strandline.controller.core import Core
from strandline.controller.defining.changing.tables import widen
from strandline.controller.location import on_error
from strandline.controller.location.items import Fed, SharedSource, SourceTable
from strandline.controller.writing import CATALOG
from strandline.errors import ConfigError, DefinitionError, Unavailable
from strandline.persist.shard.patience import Deadline
from strandline.problem import Problem, Stopped, Way
from strandline.sources.reader import unknown_of

COLUMNS_MAX: Final = 1_000
"""With more columns than this a collection gets none by itself: its records have a field for each of many things."""

UNADDED: Final = Problem(
    "columns-not-added",
    "upstream has columns that cannot be added here: {columns}: {why}",
    Stopped.SOURCE,
    (Way("go on without them", "{resets}"),),
)


async def tick(core: Core, ts: int | None = None, *, wait: bool = False, deadline: Deadline | None = None) -> int:
    """Make a tick, as `Core.tick`; and another one whenever collections have got columns, which are read in it."""
    time = await core.tick(ts, wait=wait, deadline=deadline)
    while await add_reported(core):
        time = await core.tick(wait=wait, deadline=deadline)
    return time


async def add_reported(core: Core) -> bool:
    """Add the columns that were reported; return whether a collection has got any.  It is called between ticks.

    A store that fails is a problem, and the next tick tries again.  Raises `FencedError`.
    """
    refused, any_added = dict[str, str](), False
    for name, found in sorted(core.require_writing().running.report().added.items()):
        item = core.catalog.find(name)
        if not isinstance(item, Fed) or not on_error.evolves(core.catalog.source_options(item)):
            continue
        added = unknown_of(item.schema, [*item.schema, *found])
        async with core.problems.of(CATALOG):
            try:
                if added:
                    await _add(core, item, added)
            except (DefinitionError, ConfigError, Unavailable) as error:
                refused[name] = _refusal(core, item, added, error)
            else:
                any_added |= bool(added)
    core.health.unadded = refused
    return any_added


async def _add(core: Core, item: Fed, added: Sequence[Column]) -> None:
    if len(item.schema.columns) + len(added) > COLUMNS_MAX:
        raise DefinitionError(f"it would have more than {COLUMNS_MAX} columns")
    await widen(core, item, added)


def _refusal(core: Core, item: Fed, added: Sequence[Column], error: Exception) -> str:
    having = [item, core.catalog.find(item.source)] if isinstance(item, SourceTable) else [item]
    resets = [
        f"ALTER {'TABLE' if isinstance(each, SourceTable) else 'SOURCE'} {quote(each.name)} RESET (evolve)"
        for each in having
        if isinstance(each, Fed | SharedSource) and on_error.EVOLVE in each.options
    ]
    return UNADDED.said(columns=ddl_of(added), why=error, resets="; ".join(resets))
