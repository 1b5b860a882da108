"""Overlay: which views of a project differ from a catalog's, and how each is computed beside the one that it follows.

A changed view keeps its shard if its columns stay the same: it has one history, and what reads it goes on.  Until the
promotion it is computed in a shard of its own, from which it then goes on (`View.seed`).  A stage that the catalog has
already is read, and not computed a second time.

A view over a changed one is not prepared: its input changes with the promotion, and it is computed then.  Neither
is one with a schedule, which begins then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from strandline.compute.stage import Stage
from strandline.controller.commanded import Plans, command
from strandline.controller.core import Core
from strandline.controller.defining.changing.comparing import changed, created_with
from strandline.controller.defining.changing.order import in_order, mentions
from strandline.controller.defining.definitions import drafted, instance_of, keeping
from strandline.controller.defining.project.files import in_file
from strandline.controller.defining.project.settings import Project
from strandline.controller.defining.relocating import seen_from
from strandline.controller.language.statements import CreateView
from strandline.controller.location.catalog import Catalog, shards_of
from strandline.controller.location.items import Fed, Table, View
from strandline.controller.location.version import Prepared, Version
from strandline.controller.planning import Definition, stage_shards, wanted_view
from strandline.errors import DefinitionError
from strandline.instance.commands import Collection, RunDataflow

LATER_SCHEDULE: Final = "its schedule begins with the promotion"
LATER_CHANGED: Final = "it reads a view that changes, and is computed with the promotion"
LATER_MISSING: Final = "it reads what is made with the promotion"
LATER_INSTANCE: Final = "its instance is made with the promotion"


@dataclass
class Overlay:
    """What is prepared: the views by name, and by view the command that computes it in shards of its own.

    ``later``: by view, why it is not prepared.
    """

    views: dict[str, Prepared] = field(default_factory=dict)
    commands: dict[str, RunDataflow] = field(default_factory=dict)
    later: dict[str, str] = field(default_factory=dict)


def overlay(core: Core, project: Project, known: Version) -> Overlay:
    """Return what ``project`` has of views that the catalog has not, or has otherwise.

    ``known``: the version that was prepared so far; a view that is still the same goes on in its shards.

    Raises `DefinitionError`, naming the file: a definition is wrong, or is not a view's and differs.
    """
    found, catalog, project = Overlay(), core.catalog, seen_from(project, core.catalog.root)
    missing = {each.statement.name.lower() for each in project.definitions} - catalog.items.keys()
    moved: set[str] = set()  # views that get another shard
    for defined in in_order(project.definitions):
        statement, present = defined.statement, core.catalog.find(defined.statement.name)
        name = statement.name.lower()
        with in_file(defined.file):
            differs = "" if present is None else changed(core, present, defined)
            if not isinstance(statement, CreateView) or not (present is None or isinstance(present, View)):
                if differs:
                    raise DefinitionError(f"{statement.name!r}: {created_with(differs)}; only views can be promoted")
                continue
            if isinstance(present, View) and statement.instance.lower() != present.instance:
                raise DefinitionError(f"{statement.name!r}: {created_with(differs)}; drop it first, then create it")
            if present is not None and not differs and moved.isdisjoint(present.imports):
                continue
            absent = missing - found.views.keys()
            if present is None and (read := absent.intersection(mentions(statement.query))):
                found.later[name] = f"{LATER_MISSING}: {', '.join(sorted(read))}"
                continue
            if present is None and statement.instance.lower() in absent:
                found.later[name] = LATER_INSTANCE
                continue
            instance = instance_of(core.catalog, statement)
            wanted = wanted_view(statement.name, statement.query, statement.refresh, instance)
            definition = drafted(core, catalog, wanted)
            if statement.refresh is not None:
                found.later[name] = LATER_SCHEDULE
            elif not found.views.keys().isdisjoint(definition.view.imports):
                found.later[name] = LATER_CHANGED
            definition = replace(definition, view=keeping(definition.view, statement))
            prepared = _prepared(core, catalog, definition, present, known.views.get(name), later=name in found.later)
        found.views[name] = prepared
        catalog = catalog.with_item(prepared.view)
        if present is not None and present.shard != prepared.view.shard:
            moved.add(name)
        if name not in found.later:
            found.commands[name] = _beside(core, replace(definition, view=prepared.view), prepared.shard)
    return found


def _prepared(
    core: Core, catalog: Catalog, definition: Definition, present: View | None, known: Prepared | None, *, later: bool
) -> Prepared:
    """Choose the shards of a view: of stages those that ``catalog`` has, else those in which it was prepared so far.

    ``catalog``: with the views that were prepared before this one.
    """
    view, ids = definition.view, core.assembly.ids
    keeps = present is not None and present.columns == view.columns
    if known is not None and _alike(known.view) != _alike(view):
        known = None
    own = known.shard if known is not None and known.shard else ids.fresh("s")
    before = {} if known is None else known.view.stages
    stages = stage_shards(definition.stages, catalog, ids, before, instance=view.instance)
    shard = present.shard if present is not None and keeps else own
    return Prepared(
        msgspec.structs.replace(
            view,
            shard=shard,
            stages={} if view.refresh is not None else stages,
            seed=own if keeps and not later else "",
        ),
        "" if later else own,
        {name: read.schema.names for name in view.imports if isinstance(read := catalog.collection(name), Table | Fed)},
    )


def _alike(view: View) -> View:
    return msgspec.structs.replace(view, shard="", stages={}, seed="")


def _beside(core: Core, definition: Definition, shard: str) -> RunDataflow:
    """Return the command that computes a view in ``shard``: stages that the catalog has are read."""
    view, plans = msgspec.structs.replace(definition.view, shard=shard, seed=""), Plans()
    plans.put(replace(definition, view=view))
    found = command(view, core.catalog, plans, core.config)
    assert isinstance(found, RunDataflow), "a view that is planned has a dataflow"
    kept, last = shards_of(core.catalog.items), found.stages[-1]
    read: list[Stage] = [s for s in found.stages[:-1] if found.shards[s.name] in kept]
    inputs: Mapping[str, Collection] = {
        **found.inputs,
        **{s.name: Collection(f"{view.name}/{s.name}", found.shards[s.name], s.schema) for s in read},
    }
    return replace(found, stages=(*(s for s in found.stages[:-1] if s not in read), last), inputs=inputs)
