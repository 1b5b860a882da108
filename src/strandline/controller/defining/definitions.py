"""Definitions: CREATE and DROP, checked as a whole before anything durable changes.

CREATE of sources, of their tables and of connections is in `sources.py`, that of instances and indexes in
`creating.py`.  The trigger of a materialization is checked here.

An item is planned or parsed first; then the catalog changes by one compare-and-set; then the item is opened.  A crash
in between leaves an item that the next environment opens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, UnionType
from typing import Final, TypeAlias, TypeVar

import msgspec

from strandline.algebra.notation import within
from strandline.algebra.schema import RESERVED, Schema
from strandline.compute.stage import rehearse, split
from strandline.controller.commanded import spec_of
from strandline.controller.core import Core
from strandline.controller.defining.ground import Ground
from strandline.controller.introspection import naming
from strandline.controller.language import statements
from strandline.controller.language.clauses import Bind, Kept
from strandline.controller.language.cursor import comments_of
from strandline.controller.language.instances import CreateIndex
from strandline.controller.location import on_error
from strandline.controller.location.catalog import ERRORS_SUFFIX, Catalog, unknown
from strandline.controller.location.config import milliseconds
from strandline.controller.location.items import (
    BoundTable,
    Collected,
    Connection,
    Fed,
    IndexItem,
    InstanceItem,
    Item,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    Table,
    View,
    begins_of,
)
from strandline.controller.location.version import imported, read_by, require_settled
from strandline.controller.planning import (
    Definition,
    refuse_itself,
    replanned,
    seen,
    sharing,
    stage_shards,
    wanted_view,
)
from strandline.errors import DefinitionError, Position
from strandline.frontier import Refresh
from strandline.materialize.driver import require_all
from strandline.materialize.reduced import Reduced
from strandline.options import holds_secret, refusal_of_secrets


def require_trigger(core: Ground, name: str, trigger: str | None) -> None:
    """Raise `DefinitionError` if a trigger holds a secret itself, or is no URL; `ConfigError` if it is not there."""
    if trigger is None:
        return
    if holds_secret("trigger", trigger):
        raise DefinitionError(
            f"materialization {name!r}: option trigger holds a secret: say where the URL is (env:NAME or file:PATH), "
            "not what it is"
        )
    core.assembly.triggers(trigger)


C = TypeVar("C", bound=Collected)
KINDS: Final[Mapping[str, type | UnionType]] = {
    "table": Table | SourceTable,
    "source": Source | SharedSource,
    "connection": Connection,
    "instance": InstanceItem,
    "index": IndexItem,
    "materialized view": View,
    "materialization": Materialization,
}
"""What DROP calls each item."""
_WITH_COLUMNS: Final = (statements.CreateTable, statements.CreateSource, statements.CreateSourceTable)
Assigning: TypeAlias = statements.CreateSource | statements.CreateView | statements.CreateMaterialization | CreateIndex
"""The statements that may name an instance."""


async def create_table(core: Ground, statement: statements.CreateTable) -> None:
    """CREATE TABLE.  Raises `DefinitionError` if the name is taken or a type is not known."""
    if taken(core, statement, Table):
        return
    with within(statement.columns_at):
        schema = core.assembly.analyst.parse_ddl(statement.columns)
    table = Table(statement.name, columns_of(schema), core.assembly.ids.fresh("s"))
    await add(core, keeping(table, statement))


async def create_view(
    core: Ground, statement: statements.CreateView, narrowed: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> None:
    """CREATE MATERIALIZED VIEW; ``narrowed``: see `View`.

    Raises `DefinitionError` with a position if the query cannot be a view.
    """
    if taken(core, statement, View):
        return
    instance = instance_of(core.catalog, statement)
    with within(statement.start):
        given = (core, statement.name, statement.query, statement.refresh, instance, narrowed)
        definition = await core.assembly.planning(lambda: plan(*given))
    if taken(core, statement, View):
        return  # another statement has made it meanwhile
    with within(statement.refresh_at):
        refuse_past(core, definition.view.refresh)
    core.require_writing().plans.put(definition)
    await add(core, keeping(definition.view, statement))


def instance_of(catalog: Catalog, statement: Assigning) -> str:
    """Return the instance that is to run what ``statement`` creates; empty: the process of the environment.

    Raises `DefinitionError` with candidates if there is no such instance.
    """
    with within(statement.instance_at):
        name = statement.instance
        return catalog.one(name, InstanceItem, "instance").name.lower() if name else ""


def plan(
    core: Ground,
    name: str,
    sql: str,
    refresh: Refresh | None = None,
    instance: str = "",
    narrowed: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Definition:
    """Plan a view that is not in the catalog yet, with its schedule and its instance: what `create_view` adds."""
    found, ids = drafted(core, core.catalog, wanted_view(name, sql, refresh, instance, narrowed)), core.assembly.ids
    require_settled(core.catalog, found.planned.imports)
    if refresh is not None:  # the names of its stages tell its creation, which its inputs tell
        refresh = msgspec.structs.replace(refresh, created=core.require_writing().created(found.planned.imports))
        found = replace(found, stages=split(found.planned, name.lower(), refresh))
    shards = stage_shards(found.stages, core.catalog, ids, instance=instance)
    begins = max((begins_of(core.catalog.collection(each)) for each in found.planned.imports), default=0)
    view = msgspec.structs.replace(found.view, shard=ids.fresh("s"), refresh=refresh, begins=begins)
    return replace(found, view=view if view.awaits_creation else msgspec.structs.replace(view, stages=shards))


def drafted(core: Ground, catalog: Catalog, wanted: View) -> Definition:
    """Plan what ``wanted`` is to be over ``catalog``, and try the plan; its shards are for the caller to choose."""
    naming.refuse(wanted.sql, "a view cannot read")
    if catalog.find(wanted.name) is None:
        refuse_itself(wanted.name, wanted.sql)
    planned, stages = replanned(wanted, catalog, core.assembly.analyst)
    read = read_by(wanted.name, catalog)
    schemas = {each: seen(read.collection(each).schema, wanted.narrowed.get(each)) for each in planned.imports}
    rehearse(stages, schemas, core.assembly.analyst)
    columns, imports = columns_of(planned.schema), imported(wanted.name, planned.imports, catalog)
    told = {"columns": columns, "sql": planned.sql, "imports": imports, "conf": core.assembly.engine.settings()}
    return Definition(msgspec.structs.replace(wanted, **told), planned, stages)


def refuse_past(core: Ground, refresh: Refresh | None) -> None:
    """Raise `DefinitionError` if a view with this schedule would never be refreshed."""
    now = core.require_writing().now()
    if refresh is not None and msgspec.structs.replace(refresh, created=refresh.created or now).up(0) is None:
        raise DefinitionError(f"REFRESH {refresh}: all of it is past; add a time to come, EVERY, or AT CREATION")


async def create_materialization(core: Ground, statement: statements.CreateMaterialization) -> None:
    """CREATE MATERIALIZATION.  Keys that are not given are inferred from the view's plan, or asked for by name.

    Raises:
        DefinitionError: the name is taken; the endpoint, an option or the instance is not known; a collection has no
            key; or the endpoint cannot hold it, for the driver's reason.
        ConfigError: an option refers to a value that is not there.
    """
    if taken(core, statement, Materialization):
        return
    instance = instance_of(core.catalog, statement)
    with within(statement.at):
        own = on_error.others(statement.name, statement.options, on_error.MaterializationOptions)
        refuse_secrets("materialization", statement.name, own)
        core.assembly.drivers(statement.endpoint, own)  # it may not know the endpoint, or an option
    how = on_error.common_to_all(statement.name, statement.options, on_error.MaterializationOptions)
    with within(statement.at):
        require_trigger(core, statement.name, how.trigger)
    require_settled(core.catalog, (bind.collection.lower() for bind in statement.bindings))
    tables = tuple([await bound(core, bind, delta=how.delta) for bind in statement.bindings])
    fresh, location = core.assembly.ids.fresh("m"), core.require_writing().location
    made = Materialization(statement.name, statement.endpoint, statement.options, tables, fresh, instance, location)
    await require_endpoint(core, made, statement.at)
    await add(core, made)


async def require_endpoint(core: Ground, made: Materialization, at: Position | None) -> None:
    """Raise `DefinitionError` if another one fills a table of ``made``, or its endpoint cannot hold a collection."""
    spec = spec_of(made, core.catalog)
    _refuse_shared(core.catalog, made)
    answers = await core.assembly.drivers(made.endpoint, made.endpoint_options).validate(spec)
    with within(at):
        require_all(spec, answers)
        for binding in spec.bindings:
            if binding.reduce:
                Reduced(binding).require_columns()


def _refuse_shared(catalog: Catalog, made: Materialization) -> None:
    """Raise `DefinitionError` if another one writes to one of its tables: each would undo the other."""
    mends = {each.table.lower(): "name another table" for each in made.bindings}
    mends |= {each.bound.table.lower(): "its rows have replaced what was left" for each in made.left if each.empties}
    for other in catalog.of_kind(Materialization):
        for each in made.claimed(other, mends) if other.name != made.name else ():
            mend = mends[each.table.lower()]
            raise DefinitionError(f"materialization {other.name!r} writes to table {each.table!r} there; {mend}")


async def bound(core: Ground, bind: Bind, *, delta: bool) -> BoundTable:
    """Return what ``bind`` binds, with its key inferred if it says none.  Raises `DefinitionError` with its place."""
    with within(bind.at):
        item = core.catalog.collection(bind.collection)
        key = bind.key or await _key(core, item)
        if not key and not delta:
            raise DefinitionError(
                f"{item.name!r} has no key that can be inferred; say which columns identify a row: "
                f"AS {item.name} KEY (…); or push its changes: OPTIONS (delta 'true')"
            )
        names = {name.lower(): name for name in item.schema.names}
        for column in key:
            if column.lower() not in names:
                raise unknown("column", column, names)
    return BoundTable(item.name.lower(), bind.table, tuple(names[c.lower()] for c in key))


async def drop(core: Core, statement: statements.Drop) -> None:
    """DROP, and delete what nothing else uses of it: a day later, and not before the last lease on it has ended.

    A source whose upstream could not be released is given up by a second DROP: then upstream keeps what it has.  A DROP
    that is repeated because its outcome was unknown asks upstream first, and gives up nothing.

    Raises `DefinitionError` if there is no such item, or something still reads it (named).
    """
    writing = core.require_writing()
    name = statement.name.lower()
    left = frozenset(each.progress for each in core.catalog.left if each.name.lower() == name)
    if left and statement.kind == "source" and core.catalog.find(name) is None:
        if given_up := left & writing.asked.keys():
            await writing.give_up(given_up)
        await writing.close_dropped()
        return
    with within(statement.at):
        if _droppable(core, statement) is None:
            return
    before = core.catalog
    await core.catalogs.change(writing.epoch, lambda catalog: catalog.without(name))
    await writing.stop_dropped(before)
    await writing.close_dropped()


def _droppable(core: Ground, statement: statements.Drop) -> Item | None:
    """Return what is to be dropped; None if it is not there and that is fine."""
    item = core.catalog.find(statement.name)
    wanted = KINDS[statement.kind]
    if item is None and statement.if_exists:
        return None
    if item is None:
        names = [n for n, i in core.catalog.items.items() if isinstance(i, wanted)]
        raise unknown(statement.kind, statement.name, names)
    if not isinstance(item, wanted):
        raise DefinitionError(f"{item.name!r} is {a(item)}; write DROP {called(item).upper()} {item.name}")
    if readers := core.catalog.dependents(statement.name):
        how = "used" if isinstance(item, Connection | InstanceItem) else "read"
        raise DefinitionError(f"{item.name!r} is {how} by {', '.join(readers)}; drop that first")
    return item


async def _key(core: Ground, item: Collected) -> tuple[str, ...]:
    """Return the key of a view as its plan tells it; a view that this process has not planned is planned for it."""
    if not isinstance(item, View):
        return ()
    known = core.require_writing().plans.get(item)
    if known is not None:
        return known.planned.key or ()
    planned, _ = await core.assembly.planning(lambda: replanned(item, core.catalog, core.assembly.analyst))
    return planned.key or ()


def keeping(item: C, statement: Kept) -> C:
    """Return ``item`` with its history kept for as long as ``statement`` says (None: as the environment says).

    The columns that the statement names get the comments that it has.  Raises `DefinitionError` if that is no interval.
    """
    with within(statement.keep_history_at):
        try:
            milliseconds("0" if statement.keep_history is None else statement.keep_history)
        except ValueError as error:
            raise DefinitionError(f"KEEP HISTORY FOR: {error}") from None
    kept = msgspec.structs.replace(item, keep_history=statement.keep_history)
    if not isinstance(kept, Table | Source | SourceTable) or not isinstance(statement, _WITH_COLUMNS):
        return kept
    return msgspec.structs.replace(kept, comments=commented(kept.comments, statement.columns))


def commented(comments: Mapping[str, str], columns: str) -> dict[str, str]:
    """Return ``comments``, by column, once those of the column list ``columns`` have theirs as they are there."""
    said = {name.lower(): text for name, text in comments_of(columns).items()}
    return {name: text for name, text in (dict(comments) | said).items() if text is not None}


async def add(core: Ground, item: Item) -> None:
    """Put ``item`` into the catalog, and open it."""
    writing = core.require_writing()
    await core.catalogs.change(writing.epoch, lambda catalog: catalog.with_item(sharing(item, catalog)))
    await writing.start(core.catalog.items[item.name.lower()])


def taken(core: Ground, statement: statements.Create, kind: type | UnionType) -> bool:
    """Return whether the item is there already and that is fine.  Raises `DefinitionError` if its name is not free."""
    core.require_writing()
    name = statement.name
    with within(statement.at):
        if name.startswith(RESERVED):
            raise DefinitionError(f"{name!r} cannot be a name: names that start with '__' are reserved")
        present = core.catalog.find(name)
        if present is None:
            refuse_name_of_errors(core, name, kind)
            return False
        if statement.if_not_exists and isinstance(present, kind):
            return True
        raise DefinitionError(f"there is {a(present)} {present.name!r} already; drop it first")


def refuse_name_of_errors(core: Ground, name: str, kind: type | UnionType) -> None:
    """Raise `DefinitionError` for a name under which a source's errors are read: no other item can have it."""
    lower = name.lower()
    source = core.catalog.find(lower.removesuffix(ERRORS_SUFFIX)) if lower.endswith(ERRORS_SUFFIX) else None
    if isinstance(source, Fed):
        what = called(source)
        raise DefinitionError(f"{name!r} cannot be a name: the errors of {what} {source.name!r} are read under it")
    if kind in {KINDS["source"], SourceTable} and (other := core.catalog.find(f"{lower}{ERRORS_SUFFIX}")) is not None:
        raise DefinitionError(
            f"{name!r} cannot be the name of a source: its errors are read as {other.name!r}, and there is "
            f"{a(other)} of this name"
        )


def called(item: Item) -> str:
    """Return what DROP calls an item."""
    return next(kind for kind, each in KINDS.items() if isinstance(item, each))


def a(item: Item) -> str:
    """Return what DROP calls an item, behind its article."""
    kind = called(item)
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def columns_of(schema: Schema) -> tuple[tuple[str, str], ...]:
    """Return a schema as items keep it."""
    return tuple((column.name, column.type) for column in schema)


def refuse_secrets(kind: str, name: str, options: Mapping[str, str]) -> None:
    """Raise `DefinitionError` for a secret that stands in a definition: definitions are stored, and shown."""
    if refusal := refusal_of_secrets(options):
        raise DefinitionError(f"{kind} {name!r}: {refusal}")
