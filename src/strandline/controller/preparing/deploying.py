"""Deploying: a location becomes what a project says; `strandline plan` and `strandline apply`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.project.settings import Project
from strandline.controller.defining.trying.adopting import adopt
from strandline.controller.defining.trying.trial import refuse_another
from strandline.controller.preparing.foreseeing import foreseen_project
from strandline.controller.preparing.planned import ALL, Plan, dropped, dropping, planned, unasked


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
