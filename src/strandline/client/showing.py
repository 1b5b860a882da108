"""Showing: the answers of SHOW, DESCRIBE and EXPLAIN, as rows; no job of Spark's is run for them."""

from __future__ import annotations

import pyarrow as pa

from strandline.algebra.excerpt import within
from strandline.controller.asking.status import live_counters
from strandline.controller.core import Core
from strandline.controller.defining.explaining import explain_view
from strandline.controller.introspection.listed import listed, schema_of, table
from strandline.controller.language.showing import Show, Shown
from strandline.errors import AsOfError
from strandline.persist.handles.contents import Rows


async def shown(core: Core, statement: Show, as_of: int | None) -> pa.Table:
    """Return what a statement answers, as it is now.

    Raises `DefinitionError`, with its place, if there is nothing with the name that it says; `AsOfError` if a time is
    asked for: definitions have no history.
    """
    if as_of is not None:
        raise AsOfError(f"definitions have no history, so they cannot be shown at {as_of}: leave the time out")
    await core.look()
    if statement.what is not Shown.PLAN:
        return listed(statement, core.catalog)
    with within(statement.at):
        await core.remember()
        counted = await live_counters(core)
        explained = await core.assembly.planning(lambda: explain_view(core, statement.name, counted))
    return table(statement, [(line,) for line in str(explained).splitlines()])


async def shown_rows(core: Core, statement: Show, as_of: int | None) -> Rows:
    """Return what a statement answers, as rows that a frame is made of.  Raises as `shown`."""
    found = await shown(core, statement, as_of)
    rows = await core.engine.local(found, schema_of(statement), time=0, diff=1)
    return await core.engine.multiset(rows)
