"""CREATE OR REPLACE MATERIALIZED VIEW: another query for a view that is there, computed beside it first.

The new query is a view of its own at first, the *successor* (`controller/location/version.py`).  Ticks bring it on, and
the tick that finds it as far as the view puts it in place.  Until then readers see the view as it was.  Where the
columns stay the same, the view's history goes on, and so do indexes and endpoints, which get what differs.  Where they
change, or the view has a schedule, its history begins anew, and what reads it follows: views have successors too and
are replaced at the same time, indexes are built again, and endpoints get the new columns with the new rows.

Everything is checked before anything changes: whether each view that reads it can go on, each index and each endpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from graphlib import TopologicalSorter

import msgspec

from strandline.algebra.excerpt import within
from strandline.compute.plan.sql.dialect import words
from strandline.controller.commanded import spec_of
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.language.statements import CreateView
from strandline.controller.location.audits import audits_of
from strandline.controller.location.catalog import Catalog, needs
from strandline.controller.location.items import IndexItem, Item, Materialization, View
from strandline.controller.location.version import companies, moves, succeeded, successor
from strandline.controller.planning import Definition, refuse_itself, stage_shards, wanted_view
from strandline.errors import DefinitionError
from strandline.materialize.driver import require_all


@dataclass(frozen=True, slots=True)
class Replacement:
    """What replaces a view: the catalog ``before``, without what was to replace it until now, and the successors."""

    before: Catalog
    successors: tuple[Definition, ...]

    def put(self, catalog: Catalog) -> Catalog:
        """Return ``catalog`` with these successors in place of earlier ones."""
        kept = catalog.lacking(catalog.items.keys() - self.before.items.keys())
        for each in self.successors:
            kept = kept.with_item(each.view)
        return kept

    @property
    def moved(self) -> tuple[str, ...]:
        """The names of the views that come with other columns or another schedule: their histories begin anew."""
        whole = self.put(self.before)
        return tuple(each.view.replaces for each in self.successors if moves(each.view, whole))

    @property
    def after(self) -> Catalog:
        """The catalog once they are in place."""
        return succeeded(self.put(self.before), {each.view.name.lower() for each in self.successors})


async def replace_view(core: Core, statement: CreateView) -> None:
    """CREATE OR REPLACE MATERIALIZED VIEW; a view that is not there is created.

    Raises `DefinitionError`, and changes nothing: the name is another item's, the query cannot be a view, the instance
    is another one, or something that reads the view could not go on.
    """
    writing, present = core.require_writing(), core.catalog.find(statement.name)
    if not isinstance(present, View):
        await definitions.create_view(core, statement)
        return
    made = drawn_up(core, present, statement)
    await _require_endpoints(core, made)
    for each in made.successors:
        writing.plans.put(each)
    await core.catalogs.change(writing.epoch, made.put)
    await definitions.keep(core, present, statement)
    for each in made.successors:
        await writing.start(each.view)


def drawn_up(core: Core, present: View, statement: CreateView) -> Replacement:
    """Return what replaces ``present``, checked but for its endpoints; no successors if it is the same query.

    Raises `DefinitionError`, with a position, if the query cannot be a view; or naming what reads it and cannot go on.
    """
    with within(statement.instance_at):
        if definitions.instance_of(core.catalog, statement) != present.instance:
            where = f"instance {present.instance!r}" if present.instance else "the process of the environment"
            raise DefinitionError(f"{present.name!r} runs in {where}; DROP it first to have it run elsewhere")
    own = present.name.lower()
    company = next((each for each in companies(core.catalog) if successor(own) in each), frozenset[str]())
    before = core.catalog.lacking(company)
    if same_query(statement, present) and not present.narrowed:
        return Replacement(before, ())
    with within(statement.start):
        refuse_itself(own, statement.query)
        wanted = wanted_view(successor(own), statement.query, statement.refresh, present.instance)
        found = definitions.drafted(core, before, wanted)
    for name in found.view.imports:
        if name in before.downstream(own):
            raise DefinitionError(
                f"{before.items[name].name!r} reads {present.name!r}, so {present.name!r} cannot read it",
                statement.start,
            )
    if core.writing is not None:
        with within(statement.refresh_at):
            definitions.refuse_past(core, statement.refresh)
    drawing = _Drawing(core, before, [])
    drawing.add(replace(found, view=definitions.keeping(found.view, statement)), present)
    for reader in _readers(before, own):
        pending = core.catalog.items.get(successor(reader.name))
        drawing.follow(reader, pending, present.name, again=successor(reader.name) in company)
    return Replacement(before, tuple(drawing.made))


def same_query(statement: CreateView, present: View) -> bool:
    """Return whether a statement says what a view is already, however it is written."""
    refresh = present.refresh and present.refresh.clause
    return statement.refresh == refresh and meaning(statement.query) == meaning(present.sql)


def meaning(sql: str) -> list[tuple[str, bool]]:
    """A query without what means nothing: spaces and comments.

    >>> meaning("SELECT 'a' -- b") == meaning("SELECT  'a'"), meaning("SELECT 'a'") == meaning("SELECT a")
    (True, False)
    """
    return [(word.text, word.literal) for word in words(sql)]


@dataclass(slots=True)
class _Drawing:
    """A replacement that is being drawn up: the catalog with the successors that were ``made`` so far."""

    core: Core
    catalog: Catalog
    made: list[Definition]

    def add(self, found: Definition, present: View) -> None:
        """Make ``found`` the successor of ``present``: give it shards."""
        ids, refresh = self.core.assembly.ids, found.view.refresh
        stages = {} if refresh else stage_shards(found.stages, self.catalog, ids, instance=present.instance)
        audits = audits_of(self.catalog, present)
        view = msgspec.structs.replace(found.view, shard=ids.fresh("s"), stages=stages, audits=audits)
        self.made.append(replace(found, view=view))
        self.catalog = self.catalog.with_item(view)

    def follow(self, reader: Item, pending: Item | None, root: str, *, again: bool) -> None:
        """See that ``reader``, which reads ``root`` or what reads it, can go on; a view may need a successor too.

        ``pending``: what was to replace it already, which is to be planned ``again``.
        """
        match reader:
            case View():
                wanted = pending if isinstance(pending, View) else reader
                if again or any(self._moves(name) for name in wanted.reads):
                    self.add(self._drafted(reader, wanted, root), reader)
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

    def _drafted(self, reader: View, wanted: View, root: str) -> Definition:
        """Plan the query of a reader, or that of what was to replace it, over the successors."""
        made = wanted_view(
            successor(reader.name), wanted.sql, wanted.refresh and wanted.refresh.clause, reader.instance
        )
        made = msgspec.structs.replace(
            made,
            keep_history=wanted.keep_history,
            apart=self.core.assembly.ids.fresh("a"),
            narrowed={each: names for each, names in wanted.narrowed.items() if not self._moves(each)},
        )
        try:
            return definitions.drafted(self.core, self.catalog, made)
        except DefinitionError as error:
            raise DefinitionError(
                f"{reader.name!r} reads {root!r} and could not go on: {error.message}; replace or DROP it first"
            ) from error

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
        of = {each.view.name: each for each in self.made}[following.name]
        known = None if self.core.writing is None else self.core.writing.plans.get(present)
        named = {each.lower() for each in key}

        def unique(found: Definition | None) -> bool | None:
            return None if found is None or not found.planned.key else {k.lower() for k in found.planned.key} <= named

        if unique(known) and unique(of) is False:
            raise DefinitionError(
                f"{reader.name!r} finds rows of {name!r} by ({', '.join(key)}), of which the new query has several; "
                f"DROP MATERIALIZATION {reader.name} first, and create it by key ({', '.join(of.planned.key or ())})"
            )


def _readers(catalog: Catalog, name: str) -> list[Item]:
    """Return what reads a collection, directly or not, each after what it reads."""
    below = {each: catalog.items[each] for each in sorted(catalog.downstream(name) - {name})}
    below = {each: item for each, item in below.items() if not (isinstance(item, View) and item.replaces)}
    order = TopologicalSorter({each: needs(item) & below.keys() for each, item in below.items()})
    return [below[each] for each in order.static_order()]


async def _require_endpoints(core: Core, made: Replacement) -> None:
    """Raise `DefinitionError` if an endpoint cannot hold the columns that a collection is to have."""
    after = made.after
    moved = set(made.moved)
    for item in after.items.values():
        if isinstance(item, Materialization) and not moved.isdisjoint(bound.collection for bound in item.bindings):
            spec = spec_of(item, after)
            require_all(spec, await core.assembly.drivers(item.endpoint, item.endpoint_options).validate(spec))
