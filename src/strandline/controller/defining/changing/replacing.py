"""CREATE OR REPLACE MATERIALIZED VIEW: another query for a view that is there, computed beside it first.

The new query is a view of its own at first, the *successor* (`controller/location/version.py`).  Ticks bring it on, and
the tick that finds it as far as the view puts it in place.  Until then readers see the view as it was.  Where the
columns stay the same, the view's history goes on, and so do indexes and endpoints, which get what differs.  Where they
change, or the view has a schedule, its history begins anew, and what reads it follows: views have successors too and
are replaced at the same time, indexes are built again, and endpoints get the new columns with the new rows.

Everything is checked before anything changes: whether each view that reads it can go on, each index and each endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from strandline.algebra.notation import within
from strandline.compute.plan.sql import words
from strandline.controller.commanded import spec_of
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.changing import tables
from strandline.controller.defining.changing.order import behind, mentions
from strandline.controller.defining.ground import Ground
from strandline.controller.language.statements import CreateView, Drop
from strandline.controller.location.audits import audits_of
from strandline.controller.location.catalog import Catalog, needs
from strandline.controller.location.items import SUBSCRIBED, IndexItem, Item, Materialization, View
from strandline.controller.location.version import asked_for, moves, others, succeeded, successor
from strandline.controller.planning import Definition, refuse_itself, stage_shards, wanted_view
from strandline.errors import DefinitionError
from strandline.materialize.driver import require_all


@dataclass(frozen=True, slots=True)
class Replacement:
    """What replaces views: all ``successors`` that there are to be; ``made``: the plans of those that are new."""

    before: Catalog
    successors: tuple[View, ...]
    made: tuple[Definition, ...]

    def put(self, catalog: Catalog) -> Catalog:
        """Return ``catalog`` with these successors, and no others."""
        return catalog.having(others(catalog) | {each.name.lower(): each for each in self.successors})

    @property
    def moved(self) -> tuple[str, ...]:
        """The names of the views that come with other columns or another schedule: their histories begin anew."""
        whole = self.put(self.before)
        return tuple(each.replaces for each in self.successors if moves(each, whole))

    @property
    def after(self) -> Catalog:
        """The catalog once all are in place."""
        return succeeded(self.put(self.before), {each.name.lower() for each in self.successors})


async def replace_views(core: Ground, statements: Sequence[CreateView]) -> None:
    """CREATE OR REPLACE MATERIALIZED VIEW, of several views at once; what waits to be replaced already goes on.

    A view that is not there is created.  A query that a view has already takes back what was to replace it.

    Raises `DefinitionError`, and changes nothing: a name is another item's, a query cannot be a view, an instance is
    another one, views would read each other in a circle, or something that reads a view could not go on.
    """
    replaced = [each for each in statements if isinstance(core.catalog.find(each.name), View)]
    made = await core.assembly.planning(lambda: drawn_up(core, core.catalog, replaced))
    await _require_endpoints(core, made)
    await _put(core, made)
    for each in statements:
        if each in replaced:
            await tables.keep(core, core.catalog.one(each.name, View, "view"), each)
        else:
            await definitions.create_view(core, each)


async def drop(core: Core, statement: Drop) -> None:
    """DROP; of a successor: take back what was to replace a view.  Raises as `definitions.drop`."""
    item = core.catalog.find(statement.name)
    if not isinstance(item, View) or not item.replaces or statement.kind != "materialized view":
        await definitions.drop(core, statement)
        return
    wanted = pending(core.catalog)
    if wanted.pop(item.replaces, None) is None:
        raise DefinitionError(
            f"{item.name!r} follows a view that is replaced, and goes with what is to replace that one: DROP this",
            statement.at,
        )
    await _put(core, await core.assembly.planning(lambda: draw(core, core.catalog, wanted, {})))


async def _put(core: Ground, made: Replacement) -> None:
    writing = core.require_writing()
    for each in made.made:
        writing.plans.put(each)
    if made.put(core.catalog) != core.catalog:
        await core.catalogs.change(writing.epoch, made.put)
        await writing.reconcile()


def drawn_up(core: Ground, catalog: Catalog, statements: Sequence[CreateView]) -> Replacement:
    """Return what replaces views of ``catalog`` once ``statements`` are added to what waits there.

    It is checked, but for the endpoints.  Raises as `replace_views`.
    """
    wanted = pending(catalog)
    for each in statements:
        present = catalog.one(each.name, View, "view")
        with within(each.instance_at):
            if definitions.instance_of(catalog, each) != present.instance:
                where = f"instance {present.instance!r}" if present.instance else "the process of the environment"
                raise DefinitionError(f"{present.name!r} runs in {where}; DROP it first to have it run elsewhere")
        with within(each.refresh_at):
            if core.writing is not None:
                definitions.refuse_past(core, each.refresh)
        wanted.pop(present.name.lower(), None)
        view = wanted_view(successor(present.name), each.query, each.refresh, present.instance)
        kept = definitions.keeping(view, each)  # also of a view that stays: what is wrong is to take nothing back
        if not same_query(each, present) or present.narrowed:
            wanted[present.name.lower()] = kept
    return draw(core, catalog, wanted, {each.name.lower(): each for each in statements})


def pending(catalog: Catalog) -> dict[str, View]:
    """Return what was asked to replace views, by their names: without the successors that only follow others."""
    found = {}
    for each in asked_for(catalog):
        view = wanted_view(each.name, each.sql, each.schedule, each.instance)
        found[each.replaces] = msgspec.structs.replace(view, keep_history=each.keep_history, narrowed=each.narrowed)
    return found


def draw(core: Ground, catalog: Catalog, wanted: Mapping[str, View], texts: Mapping[str, CreateView]) -> Replacement:
    """Return the successors by which the views named in ``wanted`` are replaced by these, and what reads them follows.

    A successor that is there already and stays as it is goes on.  ``texts``: the statements that are new, by the name.

    Raises as `replace_views`.
    """
    base = catalog.having(others(catalog))
    drawing = _Drawing(core, base, [], [])
    below = {each for name in sorted(wanted) for each in base.downstream(name)}
    for name in _in_order(base, wanted):
        item = base.items[name]
        if isinstance(item, View) and name in wanted:
            with within(texts[name].start if name in texts else None):
                refuse_itself(name, wanted[name].sql)
                drawing.add(definitions.drafted(core, drawing.catalog, wanted[name]), item)
        elif name in below or (isinstance(item, View) and below.intersection(item.imports)):
            drawing.follow(item)
    return Replacement(base, tuple(drawing.successors), tuple(drawing.made))


def _in_order(base: Catalog, wanted: Mapping[str, View]) -> list[str]:
    """Return the names of all items, each after what it is to read."""
    read = {
        name: {*(mentions(wanted[name].sql) if name in wanted else needs(item))} & (base.items.keys() - {name})
        for name, item in base.items.items()
    }
    return behind(read, {name: item.name for name, item in base.items.items()}, "would read")


def same_query(statement: CreateView, present: View) -> bool:
    """Return whether a statement says what a view is already, however it is written."""
    return statement.refresh == present.schedule and meaning(statement.query) == meaning(present.sql)


def meaning(sql: str) -> list[tuple[str, bool]]:
    """A query without what means nothing: spaces and comments.

    >>> meaning("SELECT 'a' -- b") == meaning("SELECT  'a'"), meaning("SELECT 'a'") == meaning("SELECT a")
    (True, False)
    """
    return [(word.text, word.literal) for word in words(sql)]


@dataclass(slots=True)
class _Drawing:
    """Successors that are being drawn up: the catalog with them, and the plans of those that are new."""

    core: Ground
    catalog: Catalog
    successors: list[View]
    made: list[Definition]

    def add(self, found: Definition, present: View) -> None:
        """Make ``found`` the successor of ``present``: the one that is there, if it is that; else with shards."""
        there = self.core.catalog.items.get(found.view.name.lower())
        fresh = {each.view.name.lower() for each in self.made}
        if isinstance(there, View) and _alike(there, found.view) and fresh.isdisjoint(there.imports):
            view = there
        else:
            ids, refresh = self.core.assembly.ids, found.view.refresh
            stands = self.core.client.known(present.shard)
            stages = {} if refresh else stage_shards(found.stages, self.catalog, ids, instance=present.instance)
            audits = audits_of(self.catalog, present)
            view = msgspec.structs.replace(found.view, shard=ids.fresh("s"), stages=stages, audits=audits)
            if stands is not None and refresh is None:  # so that between the two queries no time is missing
                view = msgspec.structs.replace(view, begins=stands.upper.at or 0)
            self.made.append(replace(found, view=view))
        self.successors.append(view)
        self.catalog = self.catalog.with_item(view)

    def follow(self, reader: Item) -> None:
        """See that ``reader`` can go on, which reads a view that is replaced; a view may need a successor too."""
        match reader:
            case View():
                if any(self._moves(name) for name in reader.imports):
                    self.add(self._drafted(reader), reader)
            case IndexItem() if self._moves(reader.collection):
                self._require_columns(reader, reader.key, reader.collection)
            case Materialization():
                for bound in reader.bindings:
                    self._require_columns(reader, bound.key, bound.collection)
                    self._require_key(reader, bound.key, bound.collection)
            case _:
                pass

    def _moves(self, name: str) -> bool:
        return moves(self.catalog.items.get(successor(name)), self.catalog)

    def _drafted(self, reader: View) -> Definition:
        """Plan the query of a reader over the successors."""
        there = self.core.catalog.items.get(successor(reader.name))
        apart = there.apart if isinstance(there, View) and there.apart else self.core.assembly.ids.fresh("a")
        wanted = msgspec.structs.replace(
            wanted_view(successor(reader.name), reader.sql, reader.schedule, reader.instance),
            keep_history=reader.keep_history,
            apart=apart,
            narrowed=reader.narrowed,  # of tables and sources, which no successor replaces
        )
        try:
            return definitions.drafted(self.core, self.catalog, wanted)
        except DefinitionError as error:
            read = " and ".join(repr(self.catalog.items[each].name) for each in reader.imports if self._moves(each))
            who, mend = repr(reader.name), "replace or DROP it first"
            if reader.name.startswith(SUBSCRIBED):
                who, mend = f"a subscription to {reader.sql.strip()!r}", "end it first"
            raise DefinitionError(f"{who} reads {read} and could not go on: {error.message}; {mend}") from error

    def _require_columns(self, reader: IndexItem | Materialization, key: tuple[str, ...], name: str) -> None:
        following = self.catalog.items.get(successor(name))
        if isinstance(following, View):
            names = {each.lower() for each in following.schema.names}
            for column in key:
                if column.lower() not in names:
                    raise DefinitionError(
                        f"{reader.name!r} finds rows of {name!r} by column {column!r}, which it would have no longer; "
                        f"DROP {definitions.called(reader).upper()} {reader.name} first"
                    )

    def _require_key(self, reader: Materialization, key: tuple[str, ...], name: str) -> None:
        """Refuse a query that is known to have several rows of one key, where the present one has none."""
        following = self.catalog.items.get(successor(name))
        present = self.catalog.items[name]
        if not isinstance(following, View) or not isinstance(present, View) or not key:
            return
        of = next((each for each in self.made if each.view.name == following.name), None)
        known = None if self.core.writing is None else self.core.writing.plans.get(present)
        named = {each.lower() for each in key}

        def unique(found: Definition | None) -> bool | None:
            return None if found is None or not found.planned.key else {k.lower() for k in found.planned.key} <= named

        if of is not None and unique(known) and not unique(of):
            raise DefinitionError(
                f"{reader.name!r} finds rows of {name!r} by ({', '.join(key)}), and the new query may have several of "
                f"these: DROP MATERIALIZATION {reader.name} first, and create it with another key"
            )


def _alike(there: View, found: View) -> bool:
    """Return whether a successor that is there is what is to be, whatever its shards are."""
    own = {"shard": "", "stages": {}, "audits": 0, "begins": 0, "checked": "", "distrusted": ""}
    own["keep_history"] = None
    one, other = (msgspec.structs.replace(each, **own, refresh=each.schedule) for each in (there, found))
    return one == other


async def _require_endpoints(core: Ground, made: Replacement) -> None:
    """Raise `DefinitionError` if an endpoint cannot hold the columns that a collection is to have."""
    after = made.after
    moved = set(made.moved)
    for item in after.items.values():
        if isinstance(item, Materialization) and not moved.isdisjoint(bound.collection for bound in item.bindings):
            spec = spec_of(item, after)
            require_all(spec, await core.assembly.drivers(item.endpoint, item.endpoint_options).validate(spec))
