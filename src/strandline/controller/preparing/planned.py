"""A plan: how a project differs from its location, what applying it costs, and what readers see meanwhile.

Asking for a plan changes nothing.  An item of the location that the project does not define goes on; a definition that
cannot become what the project says stays unchanged.  Both are dropped only on request (`dropped`).

`deploy` makes a location what a project says, for `strandline plan` and `strandline apply`.  Before that, `foreseen`
asks Spark what `deploy` will ask it, while all other calls are still answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from functools import partial
from graphlib import TopologicalSorter
from typing import Any, Final, Literal

import msgspec

from strandline.controller.core import Core
from strandline.controller.defining import definitions, sources
from strandline.controller.defining.changing.comparing import (
    changed,
    created_with,
    is_replaced,
    more_columns,
    refusal,
    set_anew,
)
from strandline.controller.defining.changing.order import in_order, mentions
from strandline.controller.defining.changing.rebinding import unbound
from strandline.controller.defining.changing.replacing import Replacement, drawn_up
from strandline.controller.defining.creating import left_for_later
from strandline.controller.defining.project.files import in_file
from strandline.controller.defining.project.settings import Defined, Project
from strandline.controller.defining.relocating import relocated, seen_from
from strandline.controller.defining.trying.mistakes import Mistake
from strandline.controller.defining.trying.trial import Trial, adopt, refuse_another, tried
from strandline.controller.introspection.definition import said_of_left
from strandline.controller.language.statements import (
    Create,
    CreateSource,
    CreateSourceTable,
    CreateTable,
    CreateView,
)
from strandline.controller.location.catalog import Catalog, needs, unknown
from strandline.controller.location.items import (
    SUBSCRIBED,
    Collected,
    IndexItem,
    Item,
    Materialization,
    Source,
    SourceTable,
    Table,
    View,
)
from strandline.controller.location.version import others
from strandline.controller.planning import wanted_view
from strandline.errors import DefinitionError, InvalidUsage
from strandline.instance import live
from strandline.plane import one_by_one

What = Literal["create", "replace", "alter", "recreate", "refused", "untried", "orphan"]
ALL: Final = "all"
"""Instead of names: drop all that the project defines otherwise, or no longer."""
UNTRIED: Final = "it needs a definition that is refused here, or that may stand in a file that cannot be read"
RATED_ROWS_MIN: Final = 1_000
"""A step that read fewer rows says nothing of how many it could read in a second."""


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one item.

    ``what``: it is created; replaced by another query while readers see the one before; altered; recreated, which drops
    it first; refused, since its definition is wrong; untried, since it needs what is refused; or an orphan, which the
    project does not define.  ``why``: what differs, or is wrong.  ``effect``: what readers see, and what goes along
    with it.  ``rows``: about how many updates are read for it; ``seconds``: how long that takes; None: unknown.
    """

    what: What
    kind: str
    name: str
    why: str = ""
    effect: str = ""
    rows: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What applying a project changes, in the order in which it does; the names of what is ``dropped`` for it.

    ``trial``: the catalog as it is to be.
    """

    changes: tuple[Change, ...]
    dropped: AbstractSet[str]
    trial: Trial


async def planned(core: Core, project: Project, counted: Mapping[str, int], drop: Collection[str] = ()) -> Plan:
    """Return what applying ``project`` changes; ``counted``: live counters.

    ``drop``: what is to be dropped besides what is recreated, by name or `ALL`.  What is wrong is refused: all of it
    was tried (`controller/defining/trying/trial.py`).

    Raises `InvalidUsage` if a name of ``drop`` is none of an item, or one of an item that needs no drop.
    """
    catalog, rate = relocated(project, core.catalog, adopts=core.config.take_over), _rate(counted)
    project = seen_from(project, catalog.root)
    after = unbound(catalog, project.definitions)
    defined = {each.statement.name.lower(): each for each in _ordered(project)}
    joint = await core.assembly.planning(partial(together, core, project, core.catalog))
    found = [
        change
        for name, each in one_by_one("compares definition", [*defined.items()])
        if (change := await core.assembly.planning(partial(_change, core, after, catalog.find(name), each, joint)))
    ]
    found += _orphans(catalog, project)
    gone = dropping(core.catalog, project, found, drop)
    trial = await tried(core, project, gone)
    found = [_rebound(change, catalog, trial) for change in found]
    wrong = {each.name.lower() for each in trial.mistakes if not each.kind}
    changes = [_refused(each, catalog, defined) for each in trial.mistakes]
    for change in found:
        if change.what == "orphan":
            changes.append(change)
        elif change.name.lower() in trial.untried:
            changes.append(Change("untried", change.kind, change.name, UNTRIED))
        elif change.what != "refused" and change.name.lower() not in wrong:  # else the trial says why, or accepts it
            changes.append(await _costing(core, after, defined, change, rate))
    return Plan(tuple(changes), gone, trial)


def _rebound(change: Change, catalog: Catalog, trial: Trial) -> Change:
    """Return a change with what becomes of the endpoint's tables, if a materialization gets other views."""
    before, after = (each.items.get(change.name.lower()) for each in (catalog, trial.scratch.catalog))
    if change.what != "alter" or not isinstance(before, Materialization) or not isinstance(after, Materialization):
        return change
    if change.name.lower() in trial.made.later:
        return replace(change, effect="it goes on as it is until the views that it gets can be added: apply again then")
    there = {each.table for each in before.bindings}
    filled = [f"table {each.table!r} is filled" for each in after.bindings if each.table not in there]
    said = (*filled, *said_of_left(after, before))
    return replace(change, effect="; ".join(("what stays goes on", *said))) if said else change


def _ordered(project: Project) -> Sequence[Defined]:
    """Return definitions in the order in which they are made; as the files have them, if views read each other."""
    try:
        return in_order(project.definitions)
    except DefinitionError:  # a mistake that the trial finds
        return project.definitions


def _refused(mistake: Mistake, catalog: Catalog, defined: Mapping[str, Defined]) -> Change:
    """Return what is said of a definition, or a setting, that is wrong."""
    name, kind = mistake.name.lower(), mistake.kind
    if not kind:
        present = catalog.items.get(name)
        kind = _kind(defined[name]) if present is None else definitions.called(present)
    return Change("refused", kind, mistake.name, str(mistake.error))


def _kind(defined: Defined) -> str:
    """Return what DROP calls what a definition creates."""
    return _KINDS[type(defined.statement).__name__]


async def _costing(
    core: Core, catalog: Catalog, defined: Mapping[str, Defined], change: Change, rate: float | None
) -> Change:
    """Return a change with about how much is read for it, and how long that takes."""
    if change.what == "recreate":
        rows: int | None = await _lost(core, catalog, change.name)
    elif change.what in {"create", "replace"}:
        rows = await _rows(core, catalog, defined, change.name)
    else:
        rows = None
    return replace(change, rows=rows, seconds=None if rows is None or rate is None else round(rows / rate, 1))


def dropping(catalog: Catalog, project: Project, changes: Sequence[Change], drop: Collection[str]) -> AbstractSet[str]:
    """Return the names, in lower case, of what is dropped for ``changes``, and for the names ``drop``.

    What a definition recreates is among them, whether ``drop`` names it or not; and what reads any of it, which may be
    named, too.  Raises as `planned`.
    """
    recreated = {each.name.lower() for each in changes if each.what == "recreate"}
    orphans = {each.name.lower() for each in changes if each.what == "orphan"}
    ours = {each.statement.name.lower() for each in project.definitions}
    named = {name.lower() for name in drop if name != ALL} | (orphans if ALL in drop else set())
    catalog = unbound(catalog, project.definitions)
    for name in sorted(named - catalog.items.keys()):
        raise InvalidUsage(f"--drop {name}: {unknown('item', name, others(catalog))}")
    stays = ours - {each.name.lower() for each in changes if each.what in {"recreate", "refused"}}
    gone = {name for root in sorted(recreated | (named - stays)) for name in catalog.downstream(root)}
    for name in sorted(named - gone):
        raise InvalidUsage(f"--drop {name}: {name!r} needs no drop; if it is to go, remove its definition first")
    return gone


def unasked(catalog: Catalog, project: Project, changes: Sequence[Change], drop: Collection[str]) -> Mapping[str, str]:
    """Return what has to be dropped for ``changes``, and ``drop`` does not name, and why: by names in lower case.

    It differs, or it reads what does; but what the project defines is created again, and need not be named for that.
    """
    catalog, named = unbound(catalog, project.definitions), {name.lower() for name in drop}
    ours = {each.statement.name.lower(): each for each in project.definitions}
    whys, found = {each.name.lower(): each.why for each in changes if each.what == "recreate"}, dict[str, str]()
    for name, why in whys.items():
        if not named & {name, ALL}:
            found[name] = refusal(ours[name], why)
    roots = whys.keys() | (named & catalog.items.keys())
    orphans = {each.name.lower() for each in changes if each.what == "orphan"} if ALL in named else set()
    for root in sorted(roots | orphans):
        for name in sorted(catalog.downstream(root) & others(catalog).keys() - ours.keys() - named - orphans):
            if not name.startswith(SUBSCRIBED):
                item, read = catalog.items[name].name, catalog.items[root].name
                said = f"{item!r} reads {read!r}, which is dropped, and the project does not define it"
                found[name] = f"{said}: --drop {item} drops it too"
    return found


def dropped(catalog: Catalog, names: AbstractSet[str]) -> list[Item]:
    """Return the items called ``names``, each before what it reads; without successors, which go with their views."""
    there = names & others(catalog).keys()
    order = TopologicalSorter({name: needs(catalog.items[name]) & there for name in sorted(there)})
    return [catalog.items[name] for name in reversed([*order.static_order()])]


def together(core: Core, project: Project, catalog: Catalog) -> Replacement | None:
    """Return what replaces all views of ``catalog`` that a project defines otherwise.

    None: they cannot be replaced together, so each is looked at.
    """
    known = [(catalog.find(each.statement.name), each) for each in project.definitions]
    changes = [each.statement for item, each in known if item is not None and is_replaced(core, item, each)]
    try:
        return drawn_up(core, catalog, [each for each in changes if isinstance(each, CreateView)])
    except DefinitionError:
        return None


def _change(
    core: Core, catalog: Catalog, present: Item | None, defined: Defined, joint: Replacement | None
) -> Change | None:
    statement = defined.statement
    if present is None:
        return Change("create", _kind(defined), statement.name, defined.file)
    kind = definitions.called(present)
    try:
        with in_file(defined.file):
            if is_replaced(core, present, defined) and isinstance(present, View) and isinstance(statement, CreateView):
                return Change(
                    "replace",
                    kind,
                    present.name,
                    changed(core, present, defined),
                    _replaced(present, joint or drawn_up(core, core.catalog, (statement,))),
                )
            if differs := changed(core, present, defined):
                return Change("recreate", kind, present.name, created_with(differs), _recreated(catalog, present))
            if more := more_columns(core, statement, present):
                named = ", ".join(f"{column.name} {column.type}" for column in more)
                return Change("alter", kind, present.name, f"it gets {named}", "NULL in the rows that are there")
            if anew := ", ".join(set_anew(core, present, defined)):
                return Change("alter", kind, present.name, f"it gets {anew}", "nothing is computed anew")
    except DefinitionError as error:
        return Change("refused", kind, present.name, str(error))
    return None


_KINDS: Final[Mapping[str, str]] = {
    "CreateView": "materialized view",
    "CreateTable": "table",
    "CreateSourceTable": "table",
    "CreateSource": "source",
    "CreateConnection": "connection",
    "CreateInstance": "instance",
    "CreateIndex": "index",
    "CreateMaterialization": "materialization",
}
"""What DROP calls what each statement creates."""


def _replaced(present: View, made: Replacement) -> str:
    """Return what readers of a view see of its replacement, and what goes along with it."""
    if present.name.lower() not in made.moved:
        return "readers see the present query until the new one has caught up; history, indexes and endpoints go on"
    with_it = [each.replaces for each in made.successors if each.replaces != present.name.lower()]
    said = "readers see the present query until the new one has caught up; then its history begins anew"
    if with_it:
        said += f"; with it, at the same time: {', '.join(made.before.items[name].name for name in with_it)}"
    return said + "".join(f"; {text}" for text in _along(made))


def _along(made: Replacement) -> Iterator[str]:
    """Yield what becomes of indexes and endpoints of the views that have other columns."""
    for item in made.before.items.values():
        if isinstance(item, IndexItem) and item.collection in made.moved:
            yield f"index {item.name} is built again"
        elif isinstance(item, Materialization) and not set(made.moved).isdisjoint(b.collection for b in item.bindings):
            yield f"materialization {item.name} fills its table again"


def _recreated(catalog: Catalog, present: Item) -> str:
    below = catalog.downstream(present.name) - {present.name.lower()}
    lost = "its rows are lost" if isinstance(present, Collected) else "it begins anew"
    return f"dropped and created: {lost}" + (f", with what reads it: {', '.join(sorted(below))}" if below else "")


def _orphans(catalog: Catalog, project: Project) -> Iterator[Change]:
    """Yield what the project has defined, and defines no longer; not what clients have made."""
    named = {each.statement.name.lower() for each in project.definitions}
    for name in catalog.defined:
        if name in named or project.unread:  # what is unread may define it
            continue
        item = catalog.items[name]
        yield Change("orphan", definitions.called(item), item.name, "the project does not define it", "it goes on")


async def _rows(core: Core, catalog: Catalog, defined: Mapping[str, Defined], name: str) -> int | None:
    """Return how many updates what a view reads holds now; None for what is no view, or reads what is not there yet."""
    statement = defined[name.lower()].statement
    if not isinstance(statement, CreateView):
        return None
    read = mentions(statement.query)
    if any(each in defined and each not in catalog.items for each in read):
        return None
    return sum([await _held(core, catalog.items.get(each)) for each in read])


async def _lost(core: Core, catalog: Catalog, name: str) -> int:
    """Return how many updates are read for what is recreated, and for the views that are computed again with it."""
    rows = 0
    for each in sorted(catalog.downstream(name) & others(catalog).keys()):
        match catalog.items[each]:
            case View() as view:
                rows += sum([await _held(core, catalog.items.get(read)) for read in view.imports])
            case Source() | SourceTable() as fed:
                rows += await _held(core, fed)
            case Materialization() as pushed:
                rows += sum([await _held(core, catalog.items[bound.collection]) for bound in pushed.bindings])
            case _:
                pass
    return rows


async def _held(core: Core, item: Item | None) -> int:
    """Return how many updates a collection holds now; 0 for what is none."""
    if not isinstance(item, Collected):
        return 0
    await core.client.look(item.shard)
    state = core.client.known(item.shard)
    return 0 if state is None else sum(batch.rows for batch in state.batches)


def _rate(counted: Mapping[str, int]) -> float | None:
    """Return how many updates a second the last steps of stages have read; None if none has read enough to tell."""
    steps = live.last_steps(counted).values()
    rated = [1000 * done.rows_read / done.ms for done in steps if done.rows_read >= RATED_ROWS_MIN and done.ms]
    return max(rated, default=None)


async def foreseen_project(core: Core, project: Project, dropped: Collection[str] = ()) -> None:
    """Ask Spark what `apply` will ask it, so that this then takes little time.  It changes nothing.

    Other calls may be made meanwhile.  What is wrong is for `apply` to refuse.  ``dropped``: the names of what is
    dropped before.  Raises `NoExecutor` if Spark has to run a job for an answer and cannot.

    Spark's answers depend on texts and on the columns that they read.  So each view that is to be created is planned
    over a catalog of our own, which has the items that come before it; the application then finds the answers
    remembered.

    A trial (`controller/defining/trying`) asks Spark the same and cannot take this over.  It awaits endpoints and
    upstreams in between, so it is no call that can be made aside and repeated, and its questions outside of
    `Assembly.planning`, such as the columns of a table, would hold up all other calls.  It would also ask every
    endpoint and upstream once more before the turn, and wait twice for one that does not answer.
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


async def deployment(
    core: Core, project: Project, counted: Mapping[str, int], drop: Collection[str] = ()
) -> dict[str, Any]:
    """Return the plan, as plain data: ``changes``, and ``drops``, which are made only where that is asked for.

    ``alone``: `ALL` does not ask for it; it has to be named.

    Raises as `planned`.
    """
    await core.look()
    return _told(core, project, await planned(core, project, counted, drop), drop)


def _told(core: Core, project: Project, plan: Plan, drop: Collection[str]) -> dict[str, Any]:
    items = dropped(core.catalog, dropping(core.catalog, project, plan.changes, {*drop, ALL}))
    alone = unasked(core.catalog, project, plan.changes, {*drop, ALL})
    drops = [
        {"kind": definitions.called(item), "name": item.name, "alone": item.name.lower() in alone} for item in items
    ]
    return {"changes": [asdict(change) for change in plan.changes], "drops": drops}


async def foreseen(core: Core, project: Project, counted: Mapping[str, int], *, drop: Collection[str]) -> None:
    """Ask Spark what `deploy` will ask it: see `foreseen_project`."""
    plan = await deployment(core, project, counted, drop)
    await foreseen_project(core, project, [each["name"] for each in plan["drops"]])


async def deploy(core: Core, project: Project, counted: Mapping[str, int], *, drop: Collection[str]) -> dict[str, Any]:
    """Apply a project in whole or not at all, and return the plan with what became of it.

    That is what was ``created``, ``replaced`` and ``dropped``, and what comes ``later``, once views are replaced.  Or
    what is ``refused``, and why: then nothing was changed.

    ``drop``: the names of what may be dropped, or `ALL`: what the project defines otherwise, and no longer.

    Raises:
        ConfigError: another project has this location, and nothing was changed.
        InvalidUsage: as `planned`, and nothing was changed.
    """
    await core.settle()
    await core.catalogs.confirm(core.require_writing().epoch)  # a directory may have gone since, and paths moved
    refuse_another(core, project)
    plan = await planned(core, project, counted, drop)
    told = _told(core, project, plan, drop)
    refused = list(plan.trial.refused) or [*unasked(core.catalog, project, plan.changes, drop).values()]
    if refused:
        return {**told, "created": [], "replaced": [], "later": [], "dropped": [], "refused": refused}
    names = [item.name for item in dropped(core.catalog, plan.dropped)]
    await adopt(core, plan.trial)
    made = plan.trial.made
    return {
        **told,
        "created": list(made.created),
        "replaced": list(made.replaced),
        "later": list(made.later),
        "dropped": names,
        "refused": [],
    }
