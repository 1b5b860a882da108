"""ALTER MATERIALIZATION … ADD VIEW, DROP VIEW: other views for a materialization that is there.

Only the catalog changes, by one write; the next tick runs the task as it is then.  A binding that stays has the state
key that it had, so it goes on from its checkpoint.  One that is added has a key that the endpoint does not know: the
next transaction fills its table from the start, and brings all tables to one time.  One that is dropped is no longer
read, and what its table holds is `LeftTable`: it stays, or is emptied by a transaction, as for a backfill of a
collection without rows.  Once the endpoint has acknowledged that, a tick forgets the table (`controller/writing.py`).

A replica that is cut off may run the task as it was.  So no other materialization begins with a table that one has let
go before the log of that one is fenced (`Materialization.fence`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from strandline.algebra.notation import within
from strandline.controller.commanded import binding_left, bindings
from strandline.controller.defining import definitions
from strandline.controller.defining.ground import Ground
from strandline.controller.defining.project.settings import Defined
from strandline.controller.introspection.definition import named, said_of_left
from strandline.controller.language.altering import AddView, AlterMaterializationViews, DropView
from strandline.controller.language.statements import CreateMaterialization
from strandline.controller.location.catalog import Catalog, unknown
from strandline.controller.location.items import BoundTable, LeftTable, Materialization
from strandline.controller.location.on_error import OfDropped
from strandline.controller.location.version import require_settled
from strandline.errors import DefinitionError
from strandline.materialize.protocol.task import MaterializationSpec


async def alter_views(core: Ground, statement: AlterMaterializationViews) -> None:
    """ALTER MATERIALIZATION … ADD VIEW, DROP VIEW.

    Raises `DefinitionError` with a position, and changes nothing: there is no such materialization; a view is there
    already, or not; none would be left; the endpoint cannot hold a view, or cannot take rows out that are to go.
    """
    writing = core.require_writing()
    with within(statement.at):
        present = core.catalog.one(statement.name, Materialization, "materialization")
    binds = [action.bind for action in statement.actions if isinstance(action, AddView)]
    require_settled(core.catalog, [bind.collection.lower() for bind in binds])
    tables = [await definitions.bound(core, bind, delta=present.common_options.delta) for bind in binds]
    stuck = await _stuck(core, present)

    def altered(catalog: Catalog) -> Materialization:
        made = _altered(catalog, statement, tables, stuck)
        if not made.bindings:
            raise DefinitionError(
                f"{made.name!r} would have no view; DROP MATERIALIZATION {named(made.name)} ends it", statement.at
            )
        return made

    await definitions.require_endpoint(core, altered(core.catalog), statement.at)
    await core.catalogs.change(writing.epoch, lambda catalog: catalog.with_item(altered(catalog)))
    await writing.reconcile()


async def rebind(core: Ground, item: Materialization, wanted: CreateMaterialization) -> None:
    """Drop the views that a definition lists no longer, and add those that it lists besides.  Raises as ALTER does."""
    drops, adds = rebinding(item, wanted)
    if drops or adds:
        await alter_views(core, AlterMaterializationViews(item.name, (*drops, *adds), at=wanted.at))


async def unbind(core: Ground, item: Materialization, drops: Sequence[DropView]) -> None:
    """Drop views in a trial, which is refused unless `rebind` then adds another one where none is left.

    Raises `DefinitionError` if the endpoint cannot take rows out that are to go.
    """
    stuck = await _stuck(core, item)
    statement = AlterMaterializationViews(item.name, tuple(drops))
    epoch = core.require_writing().epoch
    await core.catalogs.change(epoch, lambda catalog: catalog.with_item(_altered(catalog, statement, (), stuck)))


def rebinding(present: Materialization, wanted: CreateMaterialization) -> tuple[list[DropView], list[AddView]]:
    """Return what drops the views that a definition lists no longer, and what adds those that it lists besides."""
    listed = {bind.collection.lower() for bind in wanted.bindings}
    there = [*dict.fromkeys(each.collection for each in present.bindings)]
    drops = [DropView(each, at=wanted.at) for each in there if each not in listed]
    return drops, [AddView(bind) for bind in wanted.bindings if bind.collection.lower() not in there]


def unbound(catalog: Catalog, defined: Iterable[Defined]) -> Catalog:
    """Return ``catalog`` with the views dropped from materializations that their definitions list no longer."""
    items = dict(catalog.items)
    for each in defined:
        name, statement = each.statement.name.lower(), each.statement
        if isinstance(statement, CreateMaterialization) and isinstance(item := items.get(name), Materialization):
            drops, _ = rebinding(item, statement)
            items[name] = _without(item, {drop.collection for drop in drops})
    return catalog.having(items)


async def _stuck(core: Ground, present: Materialization) -> frozenset[str]:
    """Return the tables, those of dropped views among them, from which the endpoint cannot take rows out.

    Each is asked about by itself: one that is left may have a name that could not stand beside those that are bound.
    """
    known = (*bindings(present, core.catalog), *(binding_left(present, left) for left in present.left))
    endpoint = core.assembly.drivers(present.endpoint, present.endpoint_options)
    stuck = set()
    for each in known:
        (verdict,) = await endpoint.validate(MaterializationSpec(present.name, (each,), present.options))
        stuck |= set() if verdict.empties else {each.resource}
    return frozenset(stuck)


def _altered(
    catalog: Catalog, statement: AlterMaterializationViews, tables: Sequence[BoundTable], stuck: Collection[str]
) -> Materialization:
    made = catalog.one(statement.name, Materialization, "materialization")
    added = iter(tables)
    for action in statement.actions:
        if isinstance(action, DropView):
            with within(action.at):
                made = _dropped(made, action, catalog, stuck)
        else:
            with within(action.bind.at):
                made = _added(made, next(added), stuck)
    return made


def _added(made: Materialization, table: BoundTable, stuck: Collection[str]) -> Materialization:
    for each in made.bindings:
        if each.collection == table.collection:
            raise DefinitionError(f"{made.name!r} has view {table.collection!r} already, in table {each.table!r}")
    same = [left for left in made.left if left.bound.table.casefold() == table.table.casefold()]
    for left in same:
        if left.bound.table != table.table:
            raise DefinitionError(
                f"{left.name!r} has left table {left.bound.table!r}, which only differs in case: write TO "
                f"{named(left.bound.table)} to fill that one, or name another"
            )
    if not made.common_options.delta and any(left.bound.table in stuck for left in same):
        raise DefinitionError(
            f"{table.table!r} holds rows of a view that was dropped, and {made.endpoint} cannot take them out: name "
            f"another table (ADD VIEW {named(table.collection)} TO …)"
        )
    stays = tuple(left for left in made.left if left not in same)
    return replace(made, bindings=(*made.bindings, replace(table, backfill=made.backfills)), left=stays)


def _dropped(made: Materialization, action: DropView, catalog: Catalog, stuck: Collection[str]) -> Materialization:
    view = action.collection.lower()
    dropped = [each for each in made.bindings if each.collection == view]
    if not dropped:
        return _emptied(made, action, stuck)
    collected = catalog.collection(view)
    fresh = max(made.backfills, *(each.backfill + 1 for each in dropped))
    by_option = made.common_options.on_drop is OfDropped.REMOVE
    removes = by_option if action.removes is None else action.removes
    left = tuple(
        _left(made, LeftTable(collected.name, collected.columns, collected.shard, bound), stuck, fresh, empties=removes)
        for bound in dropped
    )
    made = replace(_without(made, {view}), fence=made.fence + 1)
    return replace(made, left=(*made.left, *left), backfills=fresh + 1 if removes else fresh)


def _without(present: Materialization, views: Collection[str]) -> Materialization:
    """Return a materialization without its bindings of ``views``, names in lower case."""
    return replace(present, bindings=tuple(each for each in present.bindings if each.collection not in views))


def _emptied(made: Materialization, action: DropView, stuck: Collection[str]) -> Materialization:
    """Take out what a view that was dropped before has left."""
    view = action.collection.lower()
    left = [each for each in made.left if each.name.lower() == view]
    if not left:
        raise unknown(
            f"view of materialization {made.name!r},", action.collection, {b.collection for b in made.bindings}
        )
    if all(each.empties for each in left):
        raise DefinitionError(f"{made.name!r} has no view {view!r} any longer, and its rows are being taken out")
    if not action.removes:
        raise DefinitionError(
            f"{made.name!r} has no view {view!r} any longer: {next(said_of_left(replace(made, left=left)))}"
        )
    fresh = made.backfills
    changed = tuple(
        _left(made, each, stuck, fresh, empties=True) if each in left and not each.empties else each
        for each in made.left
    )
    return replace(made, left=changed, backfills=fresh + 1)


def _left(made: Materialization, left: LeftTable, stuck: Collection[str], fresh: int, *, empties: bool) -> LeftTable:
    """Return what a view leaves; if it is to be emptied, under the counter ``fresh``."""
    is_stuck = left.bound.table in stuck
    if is_stuck and empties:
        raise DefinitionError(
            f"{made.endpoint} cannot take the rows of {left.name!r} out of {left.bound.table!r}: DROP VIEW "
            f"{named(left.name)} KEEP ROWS, and remove them there by the endpoint's own tools"
        )
    bound = replace(left.bound, backfill=fresh) if empties else left.bound
    return replace(left, bound=bound, empties=empties, stuck=is_stuck)
