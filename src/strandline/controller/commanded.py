"""Commanded: what an instance is to run for the items of a catalog.

A command follows from the catalog and from the plans of its views.  A view is planned once, and once more when it is
distrusted, which is another plan.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from strandline.algebra.schema import Schema
from strandline.controller.location import on_error
from strandline.controller.location.audits import audits_of
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.config import Config
from strandline.controller.location.items import (
    BoundTable,
    Collected,
    Connection,
    Fed,
    IndexItem,
    InstanceItem,
    Item,
    LeftTable,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    Table,
    View,
)
from strandline.controller.location.version import read_by
from strandline.controller.planning import Definition
from strandline.controller.retention import policy_of
from strandline.errors import StrandlineError
from strandline.instance.commands import (
    Collection,
    Command,
    Output,
    RunDataflow,
    RunIndex,
    RunIngestion,
    RunMaterialization,
    RunTable,
)
from strandline.materialize.protocol.task import Binding, MaterializationSpec

AUDITS: Final = "strandline.audits"
"""Beside the settings that change answers: another count is another certificate, so what is stored is not trusted."""


class Plans:
    """The plans of views that are known, by all of a view that its plan, and the shards of its stages, follow from.

    A name that is used again is another view, a view that is replaced may keep its shard and its text, and one with a
    schedule has other stages once its creation is known.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Definition] = {}

    def get(self, view: View) -> Definition | None:
        """Return the plan of ``view`` as it is now; None if it was not planned yet."""
        return self._known.get(_key(view))

    def put(self, definition: Definition) -> None:
        """Keep the plan of a view."""
        self._known[_key(definition.view)] = definition

    def take(self, others: Plans) -> None:
        """Keep the plans that ``others`` has, too."""
        self._known |= others._known

    def copy(self) -> Plans:
        """Return the same plans, to which others may be put."""
        copied = Plans()
        copied.take(self)
        return copied

    def keep(self, catalog: Catalog) -> None:
        """Forget the plans of views that are not in ``catalog``."""
        there = {_key(item) for item in catalog.items.values() if isinstance(item, View)}
        self._known = {key: known for key, known in self._known.items() if key in there}


def _key(view: View) -> Hashable:
    seen = tuple(sorted(view.narrowed.items()))
    stages = tuple(sorted(view.stages.items()))
    return view.shard, view.sql, view.refresh, bool(view.distrusted), view.imports, view.apart, seen, stages


def commands(catalog: Catalog, plans: Plans, config: Config) -> dict[str, tuple[Command, str]]:
    """Return what is to be run, by the item's name, and in which instance (empty: in this process).

    Nothing for a view that is not planned yet, nor for what cannot be commanded: opening it says why (`Writing.start`).
    """
    found = {}
    for name, item in catalog.items.items():
        with suppress(StrandlineError):
            if (each := command(item, catalog, plans, config)) is not None:
                found[name] = each, instance_of(item)
    return found


def instance_of(item: Item) -> str:
    """Return the instance that an item runs in; empty: in the process of the environment."""
    return item.instance if isinstance(item, View | Source | SharedSource | Materialization | IndexItem) else ""


def command(item: Item, catalog: Catalog, plans: Plans, config: Config) -> Command | None:
    """Return what is to be run for ``item``.

    None for a view that is not planned yet or waits for its creation, and for what is no item of its own in an
    instance: a connection; a table that a source feeds, which is part of the source's command; a source that feeds none
    yet.
    """
    match item:
        case Table():
            return RunTable(collection(item, config))
        case Source() | SharedSource():
            ingestion = reading(item, catalog, config)
            return ingestion if ingestion.outputs else None
        case View():
            known = plans.get(item)
            return None if known is None or item.awaits_creation else _dataflow(item, known, catalog, config)
        case IndexItem():
            of = catalog.collection(item.collection)
            return RunIndex(collection(of, config), item.key, catalog.forgives(of))
        case Materialization():
            return RunMaterialization(
                spec_of(item, catalog),
                item.log,
                item.endpoint,
                item.endpoint_options,
                tuple(collection(catalog.collection(bound.collection), config) for bound in item.bindings),
                on_error.continues(item.options),
                item.common_options.every,
                item.common_options.within or "",
                item.common_options.trigger or "",
                item.fence,
            )
        case Connection() | SourceTable() | InstanceItem():
            return None


def runs_in(item: Item) -> str:
    """Return the name, as an instance knows it, of what is run for ``item``: of a source's table, the source's."""
    return item.source if isinstance(item, SourceTable) else item.name.lower()


def place_of(item: Item, catalog: Catalog) -> str:
    """Return the instance in which ``item`` runs, or its source does; empty: in the process of the environment."""
    return instance_of(catalog.items[runs_in(item)])


def reading(item: Source | SharedSource, catalog: Catalog, config: Config) -> RunIngestion:
    """Return what reads a source: of one that feeds no table yet, without outputs."""
    fed: list[tuple[Fed, str]] = [(each, each.reference) for each in catalog.fed_by(item.name)]
    if isinstance(item, Source):
        fed = [(item, "")]
    outputs = tuple(_output(each, table, catalog, config) for each, table in fed)
    options = on_error.others(item.name, catalog.source_options(item), on_error.SourceOptions)
    return RunIngestion(item.name, outputs, item.connector, options, item.remap, item.progress, item.starts)


def _output(item: Fed, table: str, catalog: Catalog, config: Config) -> Output:
    options = catalog.source_options(item)
    bound, evolves = on_error.errors_max(options), on_error.evolves(options)
    return Output(collection(item, config), table, bound, evolves, item.grown)


def _dataflow(view: View, known: Definition, catalog: Catalog, config: Config) -> RunDataflow:
    seen = read_by(view.name, catalog) if view.replaces else catalog
    read = {name: seen.collection(name) for name in known.planned.imports}
    forgiven = frozenset(name for name, item in read.items() if catalog.forgives(item))
    inputs = {name: collection(item, config) for name, item in read.items()}
    audits = audits_of(catalog, view)
    conf = view.conf | {AUDITS: str(audits)} if audits else view.conf
    return RunDataflow(
        collection(view, config),
        known.stages,
        view.stages,
        inputs,
        conf,
        forgiven,
        view.refresh,
        view.seed,
        view.fence,
        begins=view.begins if view.fence or view.replaces else 0,  # else its shard is of no other query
    )


def collection(item: Collected, config: Config) -> Collection:
    """Return a collection as an instance knows it."""
    return Collection(item.name, item.shard, item.schema, policy_of(item, config).text)


def bindings(item: Materialization, catalog: Catalog) -> tuple[Binding, ...]:
    """Return what the task binds, with the collections' schemas."""
    collections = [catalog.collection(bound.collection) for bound in item.bindings]
    return tuple(
        _binding(item, collected.name, bound, collected.schema, collected.shard)
        for bound, collected in zip(item.bindings, collections, strict=True)
    )


def binding_left(item: Materialization, left: LeftTable) -> Binding:
    """Return the binding by which rows are taken out that a dropped view has left."""
    binding = _binding(item, left.name, left.bound, left.schema, left.shard)
    return replace(binding, gives_up=left.empties)


def _binding(item: Materialization, name: str, bound: BoundTable, schema: Schema, shard: str) -> Binding:
    how, location = item.common_options, f"@{item.location}" if item.location else ""
    return Binding(
        name,
        bound.table,
        bound.key,
        schema,
        backfill=bound.backfill,
        incarnation=f"{item.id}-{shard}{location}",
        delta=how.delta,
        times=how.times,
        diffs=how.diffs,
        reduce=how.reduce,
        task=item.name,
    )


def spec_of(item: Materialization, catalog: Catalog) -> MaterializationSpec:
    """Return the task as its driver sees it; the tables that it empties come last."""
    emptied = tuple(binding_left(item, left) for left in item.left if left.empties)
    bound = bindings(item, catalog) + emptied
    return MaterializationSpec(item.name, bound, item.options, item.common_options.splits)


def state_keys(item: Materialization, catalog: Catalog) -> tuple[str, ...]:
    """Return the state key of each table that the task keeps equal to its collection."""
    return tuple(each.state_key for each in bindings(item, catalog))
