"""Apply: make an environment hold what its project defines.

What is missing is created: connections and instances, then sources and tables, then the tables of sources, then views,
each after those that it reads, then indexes, then materializations.  What may change is taken over: a connection, which
its sources use at once; the replicas of an instance; how long history is kept; how many errors a source may hold, and
whether it gets columns by itself; more columns of a table or a source.  A view with another query is replaced: ticks
compute the new one beside it (`changing/replacing.py`).  Anything else that is there already must be as the project
says; a definition that was changed otherwise is refused by name, before anything is created.  So applying twice is
applying once, and a crash in between is mended by applying again.  What the project does not mention is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from strandline.controller.core import Core
from strandline.controller.defining import definitions, instances, sources
from strandline.controller.defining.changing import tables
from strandline.controller.defining.changing.columns import gained, more_columns
from strandline.controller.defining.changing.order import in_order, read_by, sorted_out
from strandline.controller.defining.changing.replacing import meaning, replace_views, same_query
from strandline.controller.defining.creating import create
from strandline.controller.defining.project.files import in_file
from strandline.controller.defining.project.settings import SETTINGS_FILE, Defined, Project, shares_location
from strandline.controller.defining.relocating import differing, lasting, relocated
from strandline.controller.language.indexes import CreateIndex
from strandline.controller.language.instances import CreateInstance
from strandline.controller.language.placed import Kept
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
from strandline.controller.location.catalog import unknown
from strandline.controller.location.items import (
    Assigned,
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
)
from strandline.controller.location.version import moves, successor
from strandline.errors import ConfigError, DefinitionError


@dataclass(frozen=True, slots=True)
class Applied:
    """The names that were created, in order, and those that were there.

    ``refused``: of each definition that is not applied, why, and what to do; none where all of them are.
    ``replaced``: the views whose new queries are computed from now on.  ``later``: what is created once these are in
    place, since it reads them: apply the project again then.
    """

    created: tuple[str, ...]
    kept: tuple[str, ...]
    refused: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


async def apply(core: Core, project: Project, *, whole: bool = True) -> Applied:
    """Create what ``project`` defines and ``core`` lacks; what is there keeps its history for as long as it says now.

    ``whole``: the first definition that cannot be applied ends it; else what can be applied is, and the rest is
    `Applied.refused`.

    Raises:
        DefinitionError: a definition differs from what is there (then nothing was created), or is wrong (then what
            comes before it was); not ``whole``: an endpoint is not known, or views read each other in a circle.  It
            names the file.
        ConfigError: another project, which is named, has this location; unless the environment has taken it over.
    """
    _refuse_unknown_endpoints(core.assembly.endpoints, project)
    _refuse_another(core, project)
    await _relocate(core, project)
    refused = _Refused(whole=whole)
    wanted, there = [], []
    for defined in project.definitions:
        present = core.catalog.find(defined.statement.name)
        if present is None or is_replaced(core, present, defined):
            wanted.append(defined)
            continue
        with refused.noted(), in_file(defined.file):
            if change := changed(core, present, defined):
                raise DefinitionError(
                    f"{present.name!r} was created with {change}; drop it first, or put the definition back"
                )
            there.append((present, defined))
    for present, defined in there:
        with refused.noted(), in_file(defined.file):
            await _keep(core, present, defined)
    missing: list[Defined] = []
    replaced: list[Defined] = []
    for each in in_order(wanted):
        (missing if core.catalog.find(each.statement.name) is None else replaced).append(each)
    at_once, after = sorted_out(core.catalog, missing, replaced)
    created = [each for each in at_once if await _created(core, each, refused)]
    await _replace(core, replaced, refused)
    later: list[str] = []
    for each in after:
        if any(name in later or moves(core.catalog.find(successor(name)), core.catalog) for name in read_by(each)):
            later.append(each.statement.name.lower())
        elif await _created(core, each, refused):
            created.append(each)
    return Applied(
        tuple(each.statement.name for each in created),
        tuple(present.name for present, _ in there),
        tuple(refused.why),
        tuple(each.statement.name for each in replaced if core.catalog.find(successor(each.statement.name))),
        tuple(later),
    )


async def _created(core: Core, defined: Defined, refused: _Refused) -> bool:
    with refused.noted(), in_file(defined.file):
        await create(core, defined.statement)
        return True
    return False


async def _replace(core: Core, replaced: Sequence[Defined], refused: _Refused) -> None:
    """Replace views, all of them together: each may read another one as it is to be."""
    views = [each.statement for each in replaced if isinstance(each.statement, CreateView)]
    try:
        if views:
            await replace_views(core, views)
    except DefinitionError:  # which of them is it, and in which file?
        for each in replaced:
            with refused.noted(), in_file(each.file):
                assert isinstance(each.statement, CreateView), "only views are replaced"
                await replace_views(core, (each.statement,))


def is_replaced(core: Core, present: Item, defined: Defined) -> bool:
    """Return whether a definition says another query, or another schedule, for a view that is there."""
    statement = defined.statement
    if not isinstance(statement, CreateView) or not isinstance(present, View):
        return False
    return not _other_instance(statement.instance, present) and bool(_other_query(core, statement, present))


class _Refused:
    """Why definitions are not applied; ``whole``: the first one ends it all."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self.why: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Take note of a refusal, or let it through."""
        try:
            yield
        except (DefinitionError, ConfigError) as error:
            if self._whole:
                raise
            self.why.append(str(error))


def _refuse_unknown_endpoints(drivers: Sequence[str] | None, project: Project) -> None:
    """Raise `DefinitionError` for an endpoint without a driver that there is, whether a materialization uses it or not.

    ``drivers``: those that there are; None: any may be.
    """
    if drivers is None:
        return
    for name, endpoint in project.endpoints.items():
        if endpoint.driver not in drivers:
            refusal = unknown("driver", endpoint.driver, drivers)
            raise DefinitionError(f"{SETTINGS_FILE}: endpoint {name!r}: {refusal}; there are {', '.join(drivers)}")
    for defined in project.definitions:
        match defined.statement:
            case CreateMaterialization(endpoint=name, at=at) if name not in drivers:
                ours = ", ".join(project.endpoints) or "none"
                hint = f"the project's endpoints are: {ours}; the drivers are: {', '.join(drivers)}"
                refusal = unknown("endpoint", name, [*project.endpoints, *drivers])
                with in_file(defined.file):
                    raise DefinitionError(f"{refusal.message}; {hint}", at)


def _refuse_another(core: Core, project: Project) -> None:
    before = core.catalog.root
    if before and not core.config.take_over and shares_location(Path(before), project):
        raise ConfigError(
            f"the location {project.location!r} belongs to the project in {before}, which is still there: two projects "
            "would undo each other's definitions; give this one a location of its own, or have it take the place of "
            "the other: `strandline run --take-over`"
        )


async def _relocate(core: Core, project: Project) -> None:
    """See paths from where the project is now; what was opened at other paths is opened again."""
    writing, before = core.require_writing(), core.catalog
    if before.root == str(project.root):
        return
    after = await core.catalogs.change(writing.epoch, lambda catalog: relocated(project, catalog, adopts=True))
    for item in differing(before, after):
        for name in after.dependents(item.name) if isinstance(item, Connection) else (item.name,):
            moved = after.items[name.lower()]
            async with core.problems.of(moved.name.lower()):
                await writing.stop(before.items[name.lower()])
            await writing.start(moved)


async def _keep(core: Core, present: Item, defined: Defined) -> None:
    """Take over what may change of ``present``: what `changed` lets change."""
    statement = defined.statement
    match present, statement:
        case Connection(), CreateConnection():
            if (present.system, present.options) != (statement.system, statement.options):
                await sources.create_connection(core, replace(statement, replaces=True))
        case InstanceItem(), CreateInstance():
            await instances.keep(core, present, statement)
        case ((Source() | SharedSource() | SourceTable()), (CreateSource() | CreateSourceTable())):
            await sources.keep(core, present, statement)
            await _widen(core, present, statement)
        case Table(), CreateTable():
            await _widen(core, present, statement)
            await tables.keep(core, core.catalog.one(present.name, Table, "table"), statement)
        case View(), CreateView():
            await tables.keep(core, present, statement)


def set_anew(present: Item, statement: Create) -> Iterator[str]:
    """Yield what `_keep` takes over of a definition, but for columns; of a connection no value is said."""
    match present, statement:
        case Connection(), CreateConnection():
            if (present.system, present.options) != (statement.system, statement.options):
                yield "other options"
        case InstanceItem(), CreateInstance():
            if present.replicas != statement.replicas:
                yield "other replicas"
        case ((Source() | SharedSource() | SourceTable()), (CreateSource() | CreateSourceTable())):
            for name in on_error.ALTERABLE_OF_SOURCES:
                if (now := statement.options.get(name)) != present.options.get(name):
                    yield f"no {name}" if now is None else f"{name} {now!r}"
    if isinstance(present, Collected) and isinstance(statement, Kept):
        before, now = present.keep_history, statement.keep_history
        if now != before:
            yield "a history as the settings say" if now is None else f"KEEP HISTORY FOR {now!r}"
    if isinstance(present, Table | Source | SourceTable) and isinstance(statement, Kept):
        after = definitions.keeping(present, statement).comments
        for name in sorted(present.comments.keys() | after.keys()):
            if (text := after.get(name)) != present.comments.get(name):
                yield f"no comment on {name}" if text is None else f"{name} COMMENT {text!r}"


async def _widen(core: Core, present: Item, statement: Create) -> None:
    if more := more_columns(core, statement, present):
        there = core.catalog.collection(present.name)
        assert isinstance(there, Table | Fed), "nothing else gets columns"
        await tables.widen(core, there, more)


def changed(core: Core, present: Item, defined: Defined) -> str:
    """Return, as text for a message, what differs from the definition; empty if nothing does, or it may."""

    def own(options: Mapping[str, str]) -> dict[str, str]:
        return lasting(options, defined.by_default)

    match defined.statement, present:
        case CreateTable() as wanted, Table():
            return _other_columns(core, wanted, present)
        case (CreateConnection(), Connection()) | (CreateInstance(), InstanceItem()):
            return ""
        case CreateIndex() as wanted, IndexItem():
            key = tuple(column.lower() for column in wanted.columns)
            if (wanted.collection.lower(), key) != (present.collection, tuple(each.lower() for each in present.key)):
                return f"the columns ({', '.join(present.key)}) of {present.collection!r}"
            return _other_instance(wanted.instance, present)
        case CreateSource() as wanted, Source() | SharedSource():
            if moved := _other_instance(wanted.instance, present):
                return moved
            if (wanted.connector, own(wanted.options)) != (present.connector, own(present.options)):
                return f"{present.connector} and the options {_listed(present.options)}"
            schema = sources.schema_of(core, wanted)
            if schema is None or isinstance(present, SharedSource):
                return "" if schema is None and isinstance(present, SharedSource) else "columns, or without them"
            return _other_columns(core, wanted, present)
        case CreateSourceTable() as wanted, SourceTable():
            if (wanted.source.lower(), wanted.reference) != (present.source, present.reference):
                return f"the reference {present.reference!r} of source {present.source!r}"
            if lasting(wanted.options) != lasting(present.options):
                return f"the options {_listed(present.options)}"
            return _other_columns(core, wanted, present)
        case CreateView() as view, View():
            return _other_instance(view.instance, present) or _other_query(core, view, present)
        case CreateMaterialization() as wanted, Materialization():
            if moved := _other_instance(wanted.instance, present):
                return moved
            if (wanted.endpoint, own(wanted.options)) != (present.endpoint, own(present.options)):
                return f"{present.endpoint} and the options {_listed(present.options)}"
            return _other_bindings(present, wanted)
    return f"another kind: it is {definitions.a(present)}"


def _other_instance(wanted: str, present: Assigned) -> str:
    if wanted.lower() == present.instance:
        return ""
    return f"instance {present.instance!r}" if present.instance else "no instance"


def _other_query(core: Core, wanted: CreateView, present: View) -> str:
    """Return what differs from the query of a view, or of what is to replace it."""
    following = core.catalog.find(successor(present.name))
    there = following if isinstance(following, View) else present
    if same_query(wanted, there):
        return "fewer columns of " + ", ".join(sorted(there.narrowed)) if wanted.replaces and there.narrowed else ""
    return "another query" if meaning(wanted.query) != meaning(there.sql) else f"REFRESH {there.refresh or 'ON COMMIT'}"


def _other_columns(core: Core, wanted: CreateTable | CreateSource | CreateSourceTable, present: Table | Fed) -> str:
    return "" if gained(core, wanted, present) is not None else f"the columns ({present.schema.ddl})"


def _other_bindings(present: Materialization, wanted: CreateMaterialization) -> str:
    """A binding without a key has the key that was inferred."""
    there = {bound.collection: bound for bound in present.bindings}
    same = len(there) == len(wanted.bindings) and all(
        (bound := there.get(bind.collection.lower())) is not None
        and bound.table == bind.table
        and (not bind.key or [c.lower() for c in bind.key] == [c.lower() for c in bound.key])
        for bind in wanted.bindings
    )
    return "" if same else "other collections, tables or keys"


def _listed(options: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value!r}" for key, value in sorted(options.items())) or "of nothing"
