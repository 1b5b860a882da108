"""Making: all that a project defines, on a ground that may be an environment or a trial of one.

Missing items are created: connections and instances, then sources and tables, then the tables of sources, then views,
each after those that it reads, then indexes, then materializations.

Changes are adopted of: a connection, which its sources use at once; the replicas of an instance; how long history is
kept; how many errors a source may hold, and whether it gets columns by itself; more columns of a table or a source; the
views of a materialization.  A view with another query is replaced: ticks compute the new one beside it
(`changing/replacing.py`).  Any other existing item must be as the project says.  Items that the project does not
mention are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller

from strandline.controller.defining import altering, creating, sources
from strandline.controller.defining.changing import tables
from strandline.controller.defining.changing.comparing import changed, is_replaced, more_columns
from strandline.controller.defining.changing.order import in_order, read_by, sorted_out
from strandline.controller.defining.changing.rebinding import rebind, rebinding, unbind
from strandline.controller.defining.changing.replacing import replace_views
from strandline.controller.defining.creating import create
from strandline.controller.defining.ground import Ground
from strandline.controller.defining.project.settings import SETTINGS_FILE, Defined, Project
from strandline.controller.defining.relocating import relocated, seen_from
from strandline.controller.defining.trying.mistakes import WRONG, Mistake, Mistakes, require_command
from strandline.controller.language.instances import CreateInstance
from strandline.controller.language.statements import (
    Create,
    CreateConnection,
    CreateMaterialization,
    CreateSource,
    CreateSourceTable,
    CreateTable,
    CreateView,
)
from strandline.controller.location import on_error
from strandline.controller.location.catalog import Catalog, unknown
from strandline.controller.location.items import (
    Connection,
    Fed,
    InstanceItem,
    Item,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    Table,
    View,
)
from strandline.controller.location.on_error import OfDropped
from strandline.controller.location.version import moves, successor
from strandline.errors import DefinitionError, NoExecutor


@dataclass(frozen=True, slots=True)
class Rebinding:
    """A materialization, or one to be created, that has no bindings; the views that it drops, the tables that it gets.

    The views are in lower case.
    """

    item: Materialization
    drops: AbstractSet[str]
    gets: AbstractSet[str]


@dataclass(frozen=True, slots=True)
class Handing:
    """Who waits for whom, by names in lower case.

    ``behind``: the others that have a table of each until they drop its view.  ``emptied``: those with a table that is
    being emptied.  ``emptying``: of ``behind``, those that take the rows out then.

    A table of an endpoint goes from one materialization to another.  Only one writes to a table.  Another one may have
    it as soon as the first has dropped its view, or, if the rows are deleted, once they are gone.
    """

    behind: Mapping[str, AbstractSet[str]]
    emptied: AbstractSet[str]
    emptying: Mapping[str, AbstractSet[str]]

    def following(self, stay: Collection[str]) -> set[str]:
        """Return the names of ``stay``, and of what is behind any of them."""
        found = set(stay)
        while more := {name for name, others in self.behind.items() if others & found} - found:
            found |= more
        return found

    def later(self, stay: Collection[str]) -> set[str]:
        """Return the names of what cannot change yet if ``stay`` does not."""
        return self.following({*stay, *self.emptied, *(name for name, others in self.emptying.items() if others)})

    def circling(self, stay: Collection[str]) -> set[str]:
        """Return the names of those that cannot change ever: each waits until another of them has emptied a table."""
        later = self.later(stay)
        begun = {name for name, others in self.emptying.items() if others - later}
        return later - self.following({*stay, *self.emptied, *begun})


def handing(catalog: Catalog, rebindings: Mapping[str, Rebinding]) -> Handing:
    """Return who waits for whom; ``rebindings``: what is to change, by names in lower case."""
    behind: dict[str, set[str]] = {name: set() for name in rebindings}
    emptying: dict[str, set[str]] = {name: set() for name in rebindings}
    emptied = set()
    for name, change in rebindings.items():
        others = [other for other in catalog.of_kind(Materialization) if other.name.lower() != name]
        claims = [(other, bound) for other in others for bound in change.item.claimed(other, change.gets)]
        for other, bound in claims:
            of = rebindings.get(other.name.lower())
            if bound not in other.bindings:
                emptied.add(name)
            elif of is not None and bound.collection in of.drops:
                behind[name].add(other.name.lower())
                if of.item.common_options.on_drop is OfDropped.REMOVE:
                    emptying[name].add(other.name.lower())
    return Handing(behind, emptied, emptying)


@dataclass(frozen=True, slots=True)
class Bound:
    """The materializations that were ``created``; and those that wait, to be created or to get other views.

    ``circling``: the names, in lower case, of those that wait for each other, and would for ever.
    """

    created: tuple[Defined, ...]
    waiting: tuple[Defined, ...]
    circling: AbstractSet[str]


async def bind(
    core: Ground, defined: Sequence[Defined], mistakes: Mistakes, waits: Callable[[Iterable[str]], bool]
) -> Bound:
    """Create materializations, and have those that are there list the views of their definitions, in a trial.

    ``waits``: whether one of these collections comes later.  What gets it is left as it is, and so is what gets a table
    that this one would have let go, or that is emptied first.  What is wrong is left as it is, too, and noted as one of
    ``mistakes``; what gets a table of it is no mistake of its own.

    All materializations of a project get the views of their definitions together: a table may go from one to another,
    whatever their files are called, or two may exchange tables.  So all of them drop views before one gets any, and one
    that would get a table too early waits.
    """
    before, epoch = core.catalog, core.require_writing().epoch
    each_of = {each.statement.name.lower(): each for each in defined}
    while True:
        order, known = handing(before, await _rebindings(core, defined, mistakes)), len(mistakes.found)
        for name in order.following({name for name, each in each_of.items() if mistakes.waits(each, before)}):
            mistakes.lose(each_of[name])
        tried = [each for each in defined if not mistakes.waits(each, before)]
        stay = {each.statement.name.lower() for each in tried if waits(added(core, each))}
        later = order.later(stay)
        now = [each for each in tried if each.statement.name.lower() not in later]
        made = [each for each in now if before.find(each.statement.name) is None]
        for each in now:
            async with mistakes.noted(core, each):
                await _drop(core, each)
        for each in now:
            if not mistakes.waits(each, before):
                async with mistakes.noted(core, each):
                    await _add(core, each)
        if len(mistakes.found) == known:
            return Bound(tuple(made), tuple(each for each in tried if each not in now), order.circling(stay))
        await core.catalogs.change(epoch, lambda _: before)


def added(core: Ground, defined: Defined) -> list[str]:
    """Return the views, in lower case, that a materialization lists in its definition and does not have."""
    present, statement = pair(core, defined)
    return [each.bind.collection.lower() for each in rebinding(present, statement)[1]]


def pair(core: Ground, defined: Defined) -> tuple[Materialization, CreateMaterialization]:
    """Return a materialization, and its definition; one that is to be created has no bindings."""
    statement, present = defined.statement, core.catalog.find(defined.statement.name)
    assert isinstance(statement, CreateMaterialization), "nothing else is bound"
    if isinstance(present, Materialization):
        return present, statement
    return Materialization(statement.name, statement.endpoint, statement.options, (), ""), statement


async def _rebindings(core: Ground, defined: Sequence[Defined], mistakes: Mistakes) -> dict[str, Rebinding]:
    """Return what is to change, by names in lower case."""
    found = {}
    for each in defined:
        item, statement = pair(core, each)
        if not item.id and mistakes.waits(each, core.catalog):  # it is refused, and has no table for another one
            continue
        drops, adds = rebinding(item, statement)
        views, tables = (frozenset(drop.collection for drop in drops), frozenset(add.bind.table for add in adds))
        async with mistakes.noted(core, each):
            on_error.common_to_all(item.name, item.options, on_error.MaterializationOptions)
            found[item.name.lower()] = Rebinding(item, views, tables)
    return found


async def _drop(core: Ground, defined: Defined) -> None:
    item, statement = pair(core, defined)
    if drops := rebinding(item, statement)[0]:
        await unbind(core, item, drops)


async def _add(core: Ground, defined: Defined) -> None:
    item, statement = pair(core, defined)
    await (rebind(core, item, statement) if item.id else create(core, statement))
    require_command(core, defined)


@dataclass(frozen=True, slots=True)
class Made:
    """What became of a project's definitions, by name; see `apply.Applied`."""

    created: tuple[str, ...]
    kept: tuple[str, ...]
    replaced: tuple[str, ...]
    later: tuple[str, ...]


async def make(core: Ground, project: Project, mistakes: Mistakes, dropped: Collection[str] = ()) -> Made:
    """Create what ``project`` defines and ``core`` lacks; what is there keeps its history for as long as it says now.

    What cannot be made is left out, with what needs it, and noted as one of ``mistakes``.  ``dropped``: the names of
    what is dropped before.

    Raises `DefinitionError` naming views that read each other in a circle.
    """
    await _refuse_unknown_endpoints(core, project, mistakes)
    epoch, adopts = core.require_writing().epoch, core.config.take_over
    catalog = await core.catalogs.change(epoch, partial(relocated, project, adopts=adopts))
    project = seen_from(project, catalog.root)
    if dropped:
        await _unbind(core, project, mistakes, dropped)
        await core.catalogs.change(epoch, methodcaller("lacking", frozenset(dropped)))
    wanted, there = await _compared(core, project, mistakes)
    for present, defined in there:
        async with mistakes.noted(core, defined):
            await _keep(core, present, defined)
            if not _binds(defined):  # it may lack the views that it gets below
                require_command(core, defined)
    missing: list[Defined] = []
    replaced: list[Defined] = []
    for each in wanted:
        (missing if core.catalog.find(each.statement.name) is None else replaced).append(each)
    at_once, after = sorted_out(core.catalog, missing, replaced)
    created = [each for each in at_once if not _binds(each) and await _created(core, each, mistakes)]
    unsettled = {each.statement.name.lower() for each in (*replaced, *after)}
    later: list[str] = []
    listed = [each for each in (*(each for _, each in there), *missing) if _binds(each)]
    # before a view that one of them lists no longer becomes what it could not hold
    at_first = await bind(core, listed, mistakes, lambda read: not unsettled.isdisjoint(read) or _waits(core, read, ()))
    created += at_first.created
    await _replace(core, replaced, mistakes)
    for each in after:
        if _binds(each):
            continue
        if _waits(core, read_by(each), later):
            later.append(each.statement.name.lower())
        elif await _created(core, each, mistakes):
            created.append(each)
    bound = await bind(core, listed, mistakes, lambda read: _waits(core, read, later))
    created += bound.created
    for each in bound.waiting:
        async with mistakes.noted(core, each):
            _refuse_to_wait(core, each, circling=each.statement.name.lower() in bound.circling)
            later.append(each.statement.name.lower())
    for present, defined in there:
        if _binds(defined) and mistakes.waits(defined, core.catalog):  # its other options are refused with its views
            await core.catalogs.change(epoch, methodcaller("with_item", present))
    await core.catalogs.change(
        epoch, methodcaller("with_defined", [each.statement.name for each in project.definitions])
    )
    return Made(
        tuple(each.statement.name for each in created),
        tuple(present.name for present, _ in there),
        tuple(each.statement.name for each in replaced if core.catalog.find(successor(each.statement.name))),
        tuple(later),
    )


async def _compared(
    core: Ground, project: Project, mistakes: Mistakes
) -> tuple[list[Defined], list[tuple[Item, Defined]]]:
    """Return what is to be created or replaced, and the items that are there as they are defined, with that."""
    wanted: list[Defined] = []
    there: list[tuple[Item, Defined]] = []
    for defined in in_order(project.definitions):
        present = core.catalog.find(defined.statement.name)
        if mistakes.waits(defined, core.catalog):
            continue
        if present is None or is_replaced(core, present, defined):
            wanted.append(defined)
            continue
        async with mistakes.noted(core, defined):
            if change := changed(core, present, defined):
                mistakes.differs(defined, change)
            else:
                there.append((present, defined))
    return wanted, there


def _waits(core: Ground, read: Iterable[str], later: Collection[str]) -> bool:
    """Return whether one of the collections ``read`` comes ``later``, or gets other columns then."""
    return any(name in later or moves(core.catalog.find(successor(name)), core.catalog) for name in read)


async def _unbind(core: Ground, project: Project, mistakes: Mistakes, dropped: Collection[str]) -> None:
    """Drop views from materializations that list them no longer, before these views are ``dropped`` themselves."""
    for defined in project.definitions:
        if not _binds(defined):
            continue
        present, statement = pair(core, defined)
        drops = [each for each in rebinding(present, statement)[0] if each.collection in dropped]
        if drops and present.name.lower() not in dropped and not changed(core, present, defined):
            async with mistakes.noted(core, defined):
                await altering.keep_options(core, present, defined)
                await unbind(core, present, drops)


def _binds(defined: Defined) -> bool:
    return isinstance(defined.statement, CreateMaterialization)


def _refuse_to_wait(core: Ground, defined: Defined, *, circling: bool) -> None:
    """Raise `DefinitionError` if a materialization that waits would wait for ever, or has no view meanwhile."""
    name, present = defined.statement.name, core.catalog.find(defined.statement.name)
    if circling:
        raise DefinitionError(
            f"{name!r} gets a table of a materialization that waits for a table of {name!r}, and rows are taken out of "
            "a table before another one fills it: apply the project without these views first, or with on_drop 'keep'",
            defined.statement.at,
        )
    if isinstance(present, Materialization) and not present.bindings:
        raise DefinitionError(
            f"{present.name!r} would have no view until {', '.join(map(repr, added(core, defined)))} can be added: do "
            "not drop before that what it lists now",
            defined.statement.at,
        )


async def _created(core: Ground, defined: Defined, mistakes: Mistakes) -> bool:
    if mistakes.waits(defined, core.catalog):
        return False
    async with mistakes.noted(core, defined):
        if isinstance(defined.statement, CreateSource):
            statement = defined.statement
            shared = SharedSource(statement.name, statement.connector, statement.options, remap="", progress="")
            with sources.at_option(statement):
                _resolve(core, shared)
        await create(core, defined.statement)
        require_command(core, defined)
    return not mistakes.waits(defined, core.catalog)


def _resolve(core: Ground, source: Source | SharedSource) -> None:
    """Raise `ConfigError` if a source, or a connection of it, refers to a value that is not there."""
    own = on_error.others(source.name, sources.connected(core, core.catalog, source), on_error.SourceOptions)
    core.assembly.connectors.resolve(source.name, source.connector, own)


async def _replace(core: Ground, replaced: Sequence[Defined], mistakes: Mistakes) -> None:
    """Replace views, all of them together: each may read another one as it is to be."""
    views = [each.statement for each in replaced if isinstance(each.statement, CreateView)]
    before, epoch = core.catalog, core.require_writing().epoch
    try:
        if views:
            await replace_views(core, views)
    except NoExecutor:
        raise
    except WRONG:  # which of them is it, and in which file?
        await core.catalogs.change(epoch, lambda _: before)
        for each in replaced:
            async with mistakes.noted(core, each):
                assert isinstance(each.statement, CreateView), "only views are replaced"
                await replace_views(core, (each.statement,))


async def _refuse_unknown_endpoints(core: Ground, project: Project, mistakes: Mistakes) -> None:
    """Take note of each endpoint without a driver that there is, whether a materialization uses it or not."""
    drivers = core.assembly.endpoints
    if drivers is None:  # any may be
        return
    wrong = set()
    for name, endpoint in project.endpoints.items():
        if endpoint.driver not in drivers:
            refusal = unknown("driver", endpoint.driver, drivers)
            text = f"{SETTINGS_FILE}: endpoint {name!r}: {refusal}; there are {', '.join(drivers)}"
            mistakes.found.append(Mistake(name, DefinitionError(text, endpoint.at.get("driver")), "endpoint"))
            wrong.add(name)
    for defined in project.definitions:
        written = defined.written
        if isinstance(written, CreateMaterialization) and written.endpoint in wrong:
            mistakes.lose(defined)
            continue
        match defined.statement:
            case CreateMaterialization(endpoint=name, at=at) if name not in drivers:
                ours = ", ".join(project.endpoints) or "none"
                hint = f"the project's endpoints are: {ours}; the drivers are: {', '.join(drivers)}"
                refusal = unknown("endpoint", name, [*project.endpoints, *drivers])
                async with mistakes.noted(core, defined):
                    raise DefinitionError(f"{refusal.message}; {hint}", at)


async def _keep(core: Ground, present: Item, defined: Defined) -> None:
    """Take over what may change of ``present``: what `changed` lets change."""
    statement = defined.statement
    match present, statement:
        case Connection(), CreateConnection():
            if (present.system, present.options) != (statement.system, statement.options):
                await sources.create_connection(core, replace(statement, replaces=True))
                for name in core.catalog.dependents(statement.name):
                    if isinstance(source := core.catalog.find(name), Source | SharedSource):
                        _resolve(core, source)
        case InstanceItem(), CreateInstance():
            await creating.keep(core, present, statement)
        case ((Source() | SharedSource() | SourceTable()), (CreateSource() | CreateSourceTable())):
            await altering.keep_options(core, present, defined)
            if not isinstance(present, SharedSource):
                await sources.keep(core, core.catalog.one(present.name, type(present), "source"), statement)
            await _widen(core, present, statement)
        case Materialization(), CreateMaterialization():
            await altering.keep_options(core, present, defined)
        case Table(), CreateTable():
            await _widen(core, present, statement)
            await tables.keep(core, core.catalog.one(present.name, Table, "table"), statement)
        case View(), CreateView():
            await tables.keep(core, present, statement)


async def _widen(core: Ground, present: Item, statement: Create) -> None:
    if more := more_columns(core, statement, present):
        there = core.catalog.collection(present.name)
        assert isinstance(there, Table | Fed), "nothing else gets columns"
        await tables.widen(core, there, more)
