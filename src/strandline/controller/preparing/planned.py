"""A plan: what a project says otherwise than its location has it, what that costs, and what readers see meanwhile.

To ask for it changes nothing.  An item of the location that the project does not define goes on; a definition that
cannot become what the project says stays as it is.  Both are dropped only where that is asked for (`dropped`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from graphlib import TopologicalSorter
from typing import Final, Literal

from strandline.algebra.excerpt import within
from strandline.compute.plan.sql.dialect import parse
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.apply import changed, is_replaced, set_anew
from strandline.controller.defining.changing.columns import more_columns
from strandline.controller.defining.changing.order import in_order, mentions
from strandline.controller.defining.changing.replacing import Replacement, drawn_up
from strandline.controller.defining.definitions import drafted
from strandline.controller.defining.project.files import in_file
from strandline.controller.defining.project.settings import Defined, Project
from strandline.controller.defining.relocating import relocated
from strandline.controller.language.statements import CreateView
from strandline.controller.location.catalog import Catalog, needs
from strandline.controller.location.items import SUBSCRIBED, Collected, IndexItem, Item, Materialization, View
from strandline.controller.location.version import others
from strandline.controller.planning import wanted_view
from strandline.errors import DefinitionError
from strandline.instance import live

What = Literal["create", "replace", "alter", "recreate", "refused", "orphan"]
RATED_ROWS_MIN: Final = 1_000
"""A step that read fewer rows says nothing of how many it could read in a second."""


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one item.

    ``what``: it is created; replaced by another query while readers see the one before; altered; recreated, which drops
    it first; refused, since its definition is wrong; or an orphan, which the project does not define.  ``why``: what
    differs, or is wrong.  ``effect``: what readers see, and what goes along with it.  ``rows``: about how many updates
    are read for it; ``seconds``: about how long that takes; None: that is not known.
    """

    what: What
    kind: str
    name: str
    why: str = ""
    effect: str = ""
    rows: int | None = None
    seconds: float | None = None


async def planned(core: Core, project: Project, counted: Mapping[str, int]) -> tuple[Change, ...]:
    """Return what applying ``project`` changes, in the order in which it does; ``counted``: live counters.

    Raises `DefinitionError` if views read each other in a circle.
    """
    catalog = relocated(project, core.catalog)
    rate = _rate(counted)
    found, joint = [], await core.assembly.planning(partial(together, core, project, core.catalog))
    new = {defined.statement.name.lower() for defined in project.definitions} - catalog.items.keys()
    for defined in in_order(project.definitions):
        present = catalog.find(defined.statement.name)
        change = await core.assembly.planning(partial(_change, core, catalog, present, defined, joint))
        if change is not None:
            computed = change.what in {"create", "replace", "recreate"}
            rows = await _rows(core, catalog, defined, new) if computed else None
            seconds = None if rows is None or rate is None else round(rows / rate, 1)
            found.append(Change(change.what, change.kind, change.name, change.why, change.effect, rows, seconds))
    return (*found, *_orphans(catalog, project))


def dropped(catalog: Catalog, changes: tuple[Change, ...]) -> list[Item]:
    """Return what a plan drops where that is asked for, each before what it reads; with it, what reads it."""
    roots = {change.name.lower() for change in changes if change.what in {"recreate", "orphan"}}
    below = {name for root in sorted(roots) for name in catalog.downstream(root)}
    names = below & others(catalog).keys()  # a successor goes with its view
    order = TopologicalSorter({name: needs(catalog.items[name]) & names for name in sorted(names)})
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
        kind = "materialized view" if isinstance(statement, CreateView) else _KINDS[type(statement).__name__]
        return _tried(core, Change("create", kind, statement.name, defined.file), defined, joint)
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
                return Change(
                    "recreate", kind, present.name, f"it was created with {differs}", _recreated(catalog, present)
                )
            if more := more_columns(core, statement, present):
                named = ", ".join(f"{column.name} {column.type}" for column in more)
                return Change("alter", kind, present.name, f"it gets {named}", "NULL in the rows that are there")
            if anew := ", ".join(set_anew(present, statement)):
                return Change("alter", kind, present.name, f"it gets {anew}", "nothing is computed anew")
    except DefinitionError as error:
        return Change("refused", kind, present.name, str(error))
    return None


def _tried(core: Core, change: Change, defined: Defined, joint: Replacement | None) -> Change:
    """Return the creation of a view as refused, if all that it may read is there and it cannot be created."""
    statement, catalog = defined.statement, core.catalog
    if not isinstance(statement, CreateView):
        return change
    coming = {each.replaces for each in joint.successors} if joint is not None else set[str]()
    try:
        with in_file(defined.file), within(statement.start):
            drafted(core, catalog, wanted_view(statement.name, statement.query))
    except DefinitionError as error:
        read = set(mentions(statement.query))
        if read <= catalog.items.keys() - coming or parse(statement.query) is None:
            return replace(change, what="refused", why=str(error))
    return change


_KINDS: Final[Mapping[str, str]] = {
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
    """Yield what the project does not define."""
    named = {each.statement.name.lower() for each in project.definitions}
    for name, item in catalog.items.items():
        if name in named or name.startswith(SUBSCRIBED) or (isinstance(item, View) and item.replaces):
            continue  # a successor goes with its view
        yield Change("orphan", definitions.called(item), item.name, "the project does not define it", "it goes on")


async def _rows(core: Core, catalog: Catalog, defined: Defined, new: set[str]) -> int | None:
    """Return how many updates what a view reads holds now; None for what is no view, or reads what is not there yet."""
    if not isinstance(defined.statement, CreateView):
        return None
    rows = 0
    for name in mentions(defined.statement.query):
        item = catalog.items.get(name)
        if item is None and name in new:
            return None
        if isinstance(item, Collected):
            await core.client.look(item.shard)
            state = core.client.known(item.shard)
            rows += 0 if state is None else sum(batch.rows for batch in state.batches)
    return rows


def _rate(counted: Mapping[str, int]) -> float | None:
    """Return how many updates a second the last steps of stages have read; None if none has read enough to tell."""
    steps = live.last_steps(counted).values()
    rated = [1000 * done.rows_read / done.ms for done in steps if done.rows_read >= RATED_ROWS_MIN and done.ms]
    return max(rated, default=None)
