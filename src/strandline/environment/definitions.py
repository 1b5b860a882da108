"""Definitions: CREATE and DROP, checked as a whole before anything durable changes.

An item is planned or parsed first; then the catalog changes by one compare-and-set; then the item is opened.  A crash
in between leaves an item that the next environment opens.

Source: design pages "environment" (catalog) and "compute" (from SQL to a dataflow).
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from strandline.algebra.schema import Schema
from strandline.compute.explain import Explanation, explain
from strandline.compute.rehearsal import rehearse
from strandline.environment import statements
from strandline.environment.catalog import (
    BoundTable,
    Item,
    Materialization,
    Source,
    Table,
    View,
    unknown,
)
from strandline.environment.core import Core
from strandline.environment.dataflows import Definition, define, stage_shards
from strandline.environment.interval import milliseconds
from strandline.environment.tasks import spec_of
from strandline.errors import DefinitionError
from strandline.materialize.driver import require_all

C = TypeVar("C", Table, Source, View)
KINDS: Final[dict[str, type]] = {
    "table": Table,
    "source": Source,
    "materialized view": View,
    "materialization": Materialization,
}


async def create_table(core: Core, statement: statements.CreateTable) -> None:
    """CREATE TABLE.  Raises `DefinitionError` if the name is taken or a type is not known."""
    if _taken(core, statement.name, Table, quiet=statement.if_not_exists):
        return
    schema = core.assembly.analyst.parse_ddl(statement.columns)
    table = Table(statement.name, _columns(schema), core.assembly.ids.fresh("s"))
    await _add(core, keeping(table, statement.keep_history))


async def create_source(core: Core, statement: statements.CreateSource) -> None:
    """CREATE SOURCE.  Raises `DefinitionError` if the name is taken, a type or an option is not known."""
    if _taken(core, statement.name, Source, quiet=statement.if_not_exists):
        return
    core.assembly.connectors.check(statement.name, statement.connector, statement.options)
    schema = core.assembly.analyst.parse_ddl(statement.columns)
    fresh = core.assembly.ids.fresh
    source = Source(
        statement.name,
        _columns(schema),
        fresh("s"),
        statement.connector,
        statement.options,
        remap=fresh("s"),
        progress=fresh("s"),
    )
    await _add(core, keeping(source, statement.keep_history))


async def create_view(core: Core, statement: statements.CreateView) -> None:
    """CREATE MATERIALIZED VIEW.  Raises `DefinitionError` with a position if the query cannot be a view."""
    if _taken(core, statement.name, View, quiet=statement.if_not_exists):
        return
    try:
        definition = plan(core, statement.name, statement.query)
    except DefinitionError as error:
        if error.position is None:
            raise
        raise DefinitionError(error.message, error.position.after(statement.start)) from error
    await _add(core, keeping(definition.view, statement.keep_history))


def plan(core: Core, name: str, sql: str) -> Definition:
    """Plan a view that is not in the catalog yet: what `create_view` adds."""
    planned, stages = define(name, sql, core.catalog, core.assembly.analyst)
    collections = {name: core.catalog.collection(name).schema for name in planned.imports}
    rehearse(stages, collections, core.assembly.analyst)
    view = View(
        name,
        _columns(planned.schema),
        core.assembly.ids.fresh("s"),
        sql=planned.sql,
        imports=tuple(name.lower() for name in planned.imports),
        stages=stage_shards(stages, core.catalog, core.assembly.ids),
        conf=core.engine.settings(),
    )
    return Definition(view, planned, stages)


async def create_materialization(core: Core, statement: statements.CreateMaterialization) -> None:
    """CREATE MATERIALIZATION.  Keys that are not given are inferred from the view's plan, or asked for by name.

    Raises:
        DefinitionError: the name is taken; a collection has no key; or the endpoint cannot hold it, for the driver's
            reason.
        ConfigError: the endpoint or an option is not known.
    """
    if _taken(core, statement.name, Materialization, quiet=statement.if_not_exists):
        return
    endpoint = core.assembly.drivers(statement.endpoint, statement.options)
    bound = []
    for bind in statement.bindings:
        item = core.catalog.collection(bind.collection)
        key = bind.key or _key(core, bind.collection.lower())
        if not key:
            raise DefinitionError(
                f"{item.name!r} has no key that can be inferred; say which columns identify a row: "
                f"AS {item.name} KEY (…)"
            )
        names = {name.lower(): name for name in item.schema.names}
        for column in key:
            if column.lower() not in names:
                raise unknown("column", column, names)
        bound.append(BoundTable(item.name.lower(), bind.table, tuple(names[c.lower()] for c in key)))
    fresh = core.assembly.ids.fresh("m")
    made = Materialization(statement.name, statement.endpoint, statement.options, tuple(bound), fresh)
    spec = spec_of(made, core.catalog)
    require_all(spec, await endpoint.validate(spec))
    await _add(core, made)


async def drop(core: Core, statement: statements.Drop) -> None:
    """DROP, and delete what nothing else uses of it: a day later, and not before the last lease on it has ended.

    Raises `DefinitionError` if there is no such item, or something still reads it (named).
    """
    writing = core.require_writing()
    name = statement.name.lower()
    item = core.catalog.find(name)
    wanted = KINDS[statement.kind]
    if item is None or not isinstance(item, wanted):
        if item is None and statement.if_exists:
            return
        raise unknown(
            statement.kind, statement.name, (n for n, i in core.catalog.items.items() if isinstance(i, wanted))
        )
    readers = core.catalog.dependents(name)
    if readers:
        raise DefinitionError(f"{item.name!r} is read by {', '.join(readers)}; drop that first")
    await core.catalogs.change(writing.epoch, lambda catalog: catalog.without(name))
    await core.stop(name)
    await core.bury()


def explain_view(core: Core, name: str) -> Explanation:
    """Return how a view is maintained.  Raises `DefinitionError` if there is no such view."""
    item = core.catalog.find(name)
    if not isinstance(item, View):
        raise unknown("materialized view", name, (n for n, i in core.catalog.items.items() if isinstance(i, View)))
    planned, stages = define(item.name, item.sql, core.catalog, core.assembly.analyst, distrusted=bool(item.distrusted))
    return explain(planned, stages)


def audit(core: Core, name: str) -> None:
    """Make the next step of every stage of a view recompute it in full and append what is wrong."""
    for run in core.require_writing().dataflows.runs_of(name.lower()):
        run.audit()


def _key(core: Core, name: str) -> tuple[str, ...]:
    definition = core.require_writing().dataflows.definitions.get(name)
    return (definition.planned.key or ()) if definition is not None else ()


def keeping(item: C, keep_history: str | None) -> C:
    """Return ``item`` with its history kept for that interval (None: for the environment's).

    Raises `DefinitionError` if it is none.
    """
    try:
        milliseconds(keep_history or "0")
    except ValueError as error:
        raise DefinitionError(f"KEEP HISTORY FOR: {error}") from None
    return msgspec.structs.replace(item, keep_history=keep_history)


async def _add(core: Core, item: Item) -> None:
    writing = core.require_writing()
    await core.catalogs.change(writing.epoch, lambda catalog: catalog.with_item(item))
    await core.start(item)


def _taken(core: Core, name: str, kind: type, *, quiet: bool) -> bool:
    core.require_writing()
    if name.startswith("__"):
        raise DefinitionError(f"{name!r} cannot be a name: names that start with '__' are reserved")
    present = core.catalog.find(name)
    if present is None:
        return False
    if quiet and isinstance(present, kind):
        return True
    raise DefinitionError(f"there is a {type(present).__name__.lower()} {present.name!r} already; drop it first")


def _columns(schema: Schema) -> tuple[tuple[str, str], ...]:
    return tuple((column.name, column.type) for column in schema)
