"""ALTER TABLE: a table gets columns, another name, or keeps its history for longer or shorter.

A new column is NULL in all existing rows.  Readers of the table go on as they were defined: a query that reads all
columns (``SELECT *``) reads those of its creation (`View.narrowed`), until it is replaced.  An endpoint that holds the
table itself gets the column.  A table that a source feeds, and a source that is a collection, get columns in the same
way; from then on they are read.

If a source says so (``evolve 'add'``), the controller itself adds columns that the upstream has got, as ALTER … ADD
COLUMN does (`tables.widen`).  An instance reports them, and reads nothing more of the collection until it has them.  A
column that cannot be added leaves the collection where it is, with a problem that says why and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from strandline.algebra.notation import within
from strandline.algebra.schema import RESERVED, Column, Schema, ddl_of, quote
from strandline.controller.commanded import spec_of
from strandline.controller.core import Core
from strandline.controller.defining import definitions, sources
from strandline.controller.defining.ground import Ground
from strandline.controller.language.altering import AddColumns, KeepHistory, Rename
from strandline.controller.language.clauses import Kept
from strandline.controller.location import on_error
from strandline.controller.location.catalog import Catalog, unknown
from strandline.controller.location.items import (
    Collected,
    Fed,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    Table,
    View,
    kind_of,
)
from strandline.controller.location.version import successor
from strandline.controller.writing import CATALOG
from strandline.errors import ConfigError, DefinitionError, Unavailable
from strandline.materialize.driver import require_all
from strandline.persist.shard.patience import Deadline
from strandline.problem import Problem, Stopped, Way
from strandline.sources.reader import unknown_of


async def add_columns(core: Ground, statement: AddColumns) -> None:
    """ALTER TABLE … ADD COLUMN, and ALTER SOURCE … ADD COLUMN.

    Raises `DefinitionError`, and changes nothing: there is no such table or source; it has a column of this name; a
    type is not known; what it is fed from has no such column, or it cannot be read from there any longer; or an
    endpoint that holds it cannot hold the column.
    """
    with within(statement.at):
        present = _widening(core, statement)
    with within(statement.columns_at):
        await widen(core, present, core.assembly.analyst.parse_ddl(statement.columns).columns, statement.columns)


async def widen(core: Ground, present: Table | Fed, added: Sequence[Column], written: str = "") -> None:
    """Give a table, or a source, more columns, behind those that it has.  Raises as `add_columns`.

    ``written``: as a statement has them, with their comments.
    """
    writing, schema = core.require_writing(), Schema((*present.schema.columns, *added))
    changed = partial(_widened, present=present, schema=schema, written=written)
    if not isinstance(present, Table):
        await sources.require_readable(core, present, schema)
        await sources.require_wider(core, present, changed(core.catalog))
    for item in changed(core.catalog).items.values():
        if isinstance(item, Materialization) and present.name.lower() in {each.collection for each in item.bindings}:
            spec = spec_of(item, changed(core.catalog))
            require_all(spec, await core.assembly.drivers(item.endpoint, item.endpoint_options).validate(spec))
    await core.catalogs.change(writing.epoch, changed)
    await writing.reconcile()


def _widened(catalog: Catalog, *, present: Table | Fed, schema: Schema, written: str) -> Catalog:
    """Return the catalog with a table that has the columns ``schema``; the views over it see those that it had."""
    table = catalog.one(present.name, type(present), kind_of(present))
    if table.schema == schema:
        return catalog
    lower, columns = table.name.lower(), definitions.columns_of(schema)
    grown = table.grown + len(columns) - len(table.columns)
    comments = definitions.commented(table.comments, written)
    after = catalog.with_item(msgspec.structs.replace(table, columns=columns, grown=grown, comments=comments))
    for view in catalog.items.values():
        if isinstance(view, View) and lower in view.imports:
            narrowed = {lower: table.schema.names, **view.narrowed}
            after = after.with_item(msgspec.structs.replace(view, narrowed=narrowed))
    return after


def _widening(core: Ground, statement: AddColumns) -> Table | Fed:
    """Return what gets columns."""
    present = core.catalog.find(statement.name)
    match statement.kind, present:
        case "TABLE", Table() | SourceTable():
            return present
        case "TABLE", Source():
            raise DefinitionError(f"{present.name!r} is a source: ALTER SOURCE {quote(present.name)} ADD COLUMN …")
        case "TABLE", _:
            raise _not_there(core, statement.name)
        case _, SharedSource():
            raise DefinitionError(f"source {present.name!r} feeds tables: ALTER TABLE … ADD COLUMN of one of these")
        case _:
            return core.catalog.one(statement.name, Source, "source")


async def rename(core: Ground, statement: Rename) -> None:
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
        definitions.refuse_name_of_errors(core, statement.to, Table)
    renamed = msgspec.structs.replace(present, name=statement.to)
    await core.catalogs.change(writing.epoch, lambda catalog: _renamed(catalog, present.name, renamed))
    await writing.reconcile()


def _renamed(catalog: Catalog, before: str, table: Table) -> Catalog:
    items = {table.name.lower() if key == before.lower() else key: item for key, item in catalog.items.items()}
    return catalog.having(items | {table.name.lower(): table})


async def keep_history(core: Ground, statement: KeepHistory) -> None:
    """ALTER TABLE … SET KEEP HISTORY FOR, or RESET KEEP HISTORY: of a table, of whatever kind.

    Raises `DefinitionError` if there is none of this name, or the interval is none.
    """
    with within(statement.at):
        present = core.catalog.find(statement.name)
        if not isinstance(present, Table | SourceTable):
            raise _not_there(core, statement.name)
    await keep(core, present, statement)


async def keep(core: Ground, item: Collected, statement: Kept) -> None:
    """Keep the history of ``item``, which is there, for as long as ``statement`` says from now on."""
    name = item.name.lower()

    def changed(catalog: Catalog) -> Catalog:
        there = [catalog.items.get(each) for each in (name, successor(name))]
        found = [each for each in there if isinstance(each, Collected)]
        return catalog.having(
            catalog.items | {each.name.lower(): definitions.keeping(each, statement) for each in found}
        )

    if changed(core.catalog) != core.catalog:
        await core.catalogs.change(core.require_writing().epoch, changed)


def _table(core: Ground, name: str) -> Table:
    present = core.catalog.find(name)
    if isinstance(present, SourceTable):
        raise DefinitionError(f"{present.name!r} is fed by source {present.source!r}, and keeps its name")
    if not isinstance(present, Table):
        raise _not_there(core, name)
    return present


def _not_there(core: Ground, name: str) -> DefinitionError:
    present = core.catalog.find(name)
    if present is not None:
        return DefinitionError(f"{present.name!r} is a {kind_of(present)}, not a table")
    tables = (n for n, item in core.catalog.items.items() if isinstance(item, Table | SourceTable))
    return unknown("table", name, tables)


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
