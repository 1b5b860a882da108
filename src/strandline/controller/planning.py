"""Planning: the views of the catalog as stages.

A view is planned from its SQL every time an environment opens: the plan is not stored, its meaning is, and what Spark
has answered on the way (`core.recall`).  Each internal stage has a shard of its own, found in the catalog by
the stage's name; a new version of the planner that plans otherwise finds no shard, makes one, and hydrates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from strandline.algebra.schema import Schema
from strandline.compute.plan.scalars.context import Analyst
from strandline.compute.plan.sql import parse, position_of, relations
from strandline.compute.plan.view import PlannedView, plan_view
from strandline.compute.stage import Stage, split
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Collected, Item, View
from strandline.controller.location.version import read_by
from strandline.errors import DefinitionError
from strandline.frontier import Refresh
from strandline.store.clock import Ids


@dataclass(frozen=True)
class Definition:
    """A view with its plan: what the catalog says, and what follows from it."""

    view: View
    planned: PlannedView
    stages: tuple[Stage, ...]


def define(
    name: str,
    sql: str,
    catalog: Catalog,
    analyst: Analyst,
    *,
    distrusted: bool = False,
    refresh: Refresh | None = None,
    apart: str = "",
    narrowed: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> tuple[PlannedView, tuple[Stage, ...]]:
    """Plan the view ``name`` against the catalog; ``distrusted``: see `plan_view`; the others: see `View`.

    Raises `DefinitionError` as `plan_view` does.
    """
    read = read_by(name, catalog)
    whole = {key: item.schema for key, item in read.items.items() if isinstance(item, Collected)}
    schemas = {key: seen(schema, narrowed.get(key)) for key, schema in whole.items()}
    planned = plan_view(sql, schemas, analyst, distrusted=distrusted)
    return planned, split(planned, name.lower(), refresh, apart)


def seen(schema: Schema, names: tuple[str, ...] | None) -> Schema:
    """Return the columns ``names`` of a schema; None: all of them."""
    return schema if names is None else Schema(tuple(column for column in schema if column.name in names))


def wanted_view(
    name: str,
    sql: str,
    refresh: Refresh | None = None,
    instance: str = "",
    narrowed: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> View:
    """Return a view of which is known what it is to be, and nothing yet that its plan tells."""
    seen = dict(narrowed)
    return View(name, (), "", sql, (), stages={}, conf={}, refresh=refresh, instance=instance, narrowed=seen)


def replanned(view: View, catalog: Catalog, analyst: Analyst) -> tuple[PlannedView, tuple[Stage, ...]]:
    """Plan a view of the catalog as it is kept: with its schedule, and recomputed whole if it is distrusted.

    Raises as `define`.
    """
    return define(
        view.name,
        view.sql,
        catalog,
        analyst,
        distrusted=bool(view.distrusted),
        refresh=view.refresh,
        apart=view.apart,
        narrowed=view.narrowed,
    )


def stage_shards(
    stages: tuple[Stage, ...],
    catalog: Catalog,
    ids: Ids,
    before: Mapping[str, str] = MappingProxyType({}),
    *,
    instance: str,
) -> dict[str, str]:
    """Return a shard for each internal stage: the one that another view has it in already, or a fresh one.

    Only views of the same ``instance`` share a stage: else two of them would write to its shard.  ``before``: those in
    which stages are that no view has, by name.
    """
    known = _shards_of_stages(catalog, instance)
    return {stage.name: known.get(stage.name) or before.get(stage.name) or ids.fresh("s") for stage in stages[:-1]}


def sharing(item: Item, catalog: Catalog) -> Item:
    """Return what is to come into the catalog: a view with the shards in which others there have stages of it.

    A view of which this process did not know when it planned may be one of them.
    """
    if not isinstance(item, View):
        return item
    known = _shards_of_stages(catalog, item.instance)
    return msgspec.structs.replace(item, stages={name: known.get(name, shard) for name, shard in item.stages.items()})


def _shards_of_stages(catalog: Catalog, instance: str) -> dict[str, str]:
    views = [item for item in catalog.items.values() if isinstance(item, View) and item.instance == instance]
    return {name: shard for view in views for name, shard in view.stages.items()}


def refuse_itself(name: str, sql: str) -> None:
    """Raise `DefinitionError` with a position if the text of a new view reads the view."""
    tree = parse(sql)
    for table in () if tree is None else relations(tree):
        if table.name.lower() == name.lower() and not table.db:
            raise DefinitionError(
                f"a view cannot read itself, as {name!r} does; WITH RECURSIVE has a query that reads its own rows",
                position_of(table, sql),
            )
