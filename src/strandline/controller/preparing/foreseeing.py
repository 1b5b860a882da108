"""Foreseeing: Spark is asked what applying a project will ask it, while all other calls are still answered.

What Spark answers depends on texts and on the columns that they read.  So each view that is to be created is planned
over a catalog of our own, which has the items that come before it; the application then finds the answers remembered.

A trial (`controller/defining/trying`) asks Spark the same and cannot take this over: it awaits endpoints and upstreams
in between, so it is no call that can be made aside and repeated, and what it asks outside of `Assembly.planning`, such
as the columns of a table, would hold up all other calls.  It would also ask every endpoint and upstream once more
before the turn, and wait twice for one that does not answer.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import msgspec

from strandline.controller.core import Core
from strandline.controller.defining import definitions, sources
from strandline.controller.defining.changing.columns import more_columns
from strandline.controller.defining.changing.order import in_order
from strandline.controller.defining.creating import left_for_later
from strandline.controller.defining.project.settings import Project
from strandline.controller.language.statements import (
    Create,
    CreateSource,
    CreateSourceTable,
    CreateTable,
    CreateView,
)
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Item, Source, SourceTable, Table
from strandline.controller.planning import wanted_view
from strandline.controller.preparing.planned import together
from strandline.plane.asked import one_by_one


async def foreseen_project(core: Core, project: Project, dropped: Collection[str] = ()) -> None:
    """Ask Spark what `apply` will ask it, so that this then takes little time.  It changes nothing.

    Other calls may be made meanwhile.  What is wrong is for `apply` to refuse.  ``dropped``: the names of what is
    dropped before.  Raises `NoExecutor` if Spark has to run a job for an answer and cannot.
    """
    if core.writing is not None and core.assembly.aside is not None:
        gone = frozenset(name.lower() for name in dropped)
        await core.assembly.planning(partial(_ask, core, project, gone))


def _ask(core: Core, project: Project, gone: frozenset[str]) -> None:
    catalog = core.catalog.lacking(gone)
    with left_for_later():
        for defined in one_by_one("asks Spark about definition", in_order(project.definitions)):
            with left_for_later():
                item = _to_be(core, catalog, defined.statement)
                catalog = catalog if item is None else catalog.with_item(item)
    together(core, project, catalog)


def _to_be(core: Core, catalog: Catalog, statement: Create) -> Item | None:
    """Return an item with the columns that ``statement`` gives it; None: it has none, or stays as it is."""
    present = catalog.find(statement.name)
    match statement, present:
        case CreateView(), None:
            return definitions.drafted(core, catalog, wanted_view(statement.name, statement.query)).view
        case CreateSource(), None:
            schema = sources.schema_of(core, statement)
            return None if schema is None else Table(statement.name, definitions.columns_of(schema), "")
        case CreateTable() | CreateSourceTable(), None:
            schema = core.assembly.analyst.parse_ddl(statement.columns)
            return Table(statement.name, definitions.columns_of(schema), "")
        case _, Table() | Source() | SourceTable():
            more = tuple((column.name, column.type) for column in more_columns(core, statement, present))
            return msgspec.structs.replace(present, columns=(*present.columns, *more))
        case _:
            return None
