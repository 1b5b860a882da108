"""Deploying: a location becomes what a project says; `strandline plan` and `strandline apply`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.apply import apply
from strandline.controller.defining.project import Project
from strandline.controller.language.statements import Drop
from strandline.controller.preparing.planned import dropped, planned


async def deployment(core: Core, project: Project, counted: Mapping[str, int]) -> dict[str, Any]:
    """Return the plan, as plain data: ``changes``, and ``drops``, which are made only where that is asked for.

    Raises as `planned`.
    """
    await core.look()
    changes = await planned(core, project, counted)
    drops = [{"kind": definitions.called(item), "name": item.name} for item in dropped(core.catalog, changes)]
    return {"changes": [asdict(change) for change in changes], "drops": drops}


async def deploy(core: Core, project: Project, counted: Mapping[str, int], *, drop: bool) -> dict[str, Any]:
    """Apply a project, and return the plan with what became of it: what was ``created``, ``replaced`` and ``refused``.

    ``drop``: drop first what the plan names for it.

    Raises `DefinitionError` as `apply`, where it is not asked to drop and a definition cannot become another one.
    """
    plan = await deployment(core, project, counted)
    for each in plan["drops"] if drop else ():
        await definitions.drop(core, Drop(each["kind"], each["name"], if_exists=True))
    done = await apply(core, project, whole=False)
    return {**plan, "created": list(done.created), "replaced": list(done.replaced), "refused": list(done.refused)}
