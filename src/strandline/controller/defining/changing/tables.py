"""ALTER TABLE: a table gets another name, or keeps its history for longer or shorter."""

from __future__ import annotations

import msgspec

from strandline.algebra.excerpt import within
from strandline.algebra.schema import RESERVED
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.language.altering import KeepHistory, Rename
from strandline.controller.location.catalog import Catalog, unknown
from strandline.controller.location.items import SourceTable, Table, kind_of
from strandline.errors import DefinitionError


async def rename(core: Core, statement: Rename) -> None:
    """ALTER TABLE … RENAME TO.

    Raises `DefinitionError` if there is no such table, a source feeds it, something reads it (by its name), or the new
    name is taken.
    """
    writing = core.require_writing()
    with within(statement.at):
        present = _table(core, statement.name)
        if readers := core.catalog.dependents(present.name):
            raise DefinitionError(
                f"{present.name!r} is read by {', '.join(readers)} under this name; drop that first, or keep the name"
            )
    with within(statement.to_at):
        if statement.to.startswith(RESERVED):
            raise DefinitionError(f"{statement.to!r} cannot be a name: names that start with '__' are reserved")
        other = core.catalog.find(statement.to)
        if other is not None and other is not present:
            raise DefinitionError(f"there is {definitions.a(other)} {other.name!r} already")
    renamed = msgspec.structs.replace(present, name=statement.to)
    await core.catalogs.change(writing.epoch, lambda catalog: _renamed(catalog, present.name, renamed))
    await writing.reconcile()


def _renamed(catalog: Catalog, before: str, table: Table) -> Catalog:
    items = {table.name.lower() if key == before.lower() else key: item for key, item in catalog.items.items()}
    return catalog.having(items | {table.name.lower(): table})


async def keep_history(core: Core, statement: KeepHistory) -> None:
    """ALTER TABLE … SET KEEP HISTORY FOR, or RESET KEEP HISTORY: of a table, of whatever kind.

    Raises `DefinitionError` if there is none of this name, or the interval is none.
    """
    with within(statement.at):
        present = core.catalog.find(statement.name)
        if not isinstance(present, Table | SourceTable):
            raise _not_there(core, statement.name)
    await definitions.keep(core, present, statement)


def _table(core: Core, name: str) -> Table:
    present = core.catalog.find(name)
    if isinstance(present, SourceTable):
        raise DefinitionError(f"{present.name!r} is fed by source {present.source!r}, and keeps its name")
    if not isinstance(present, Table):
        raise _not_there(core, name)
    return present


def _not_there(core: Core, name: str) -> DefinitionError:
    present = core.catalog.find(name)
    if present is not None:
        return DefinitionError(f"{present.name!r} is a {kind_of(present)}, not a table")
    tables = (n for n, item in core.catalog.items.items() if isinstance(item, Table | SourceTable))
    return unknown("table", name, tables)
