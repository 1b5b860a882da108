"""Deploying: a location becomes what a project says; `strandline plan` and `strandline apply`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.apply import apply
from strandline.controller.defining.changing import replacing
from strandline.controller.defining.project.settings import Project
from strandline.controller.language.statements import Drop
from strandline.controller.location.version import asked_for
from strandline.controller.preparing.foreseeing import foreseen_project
from strandline.controller.preparing.planned import dropped, planned
from strandline.errors import DefinitionError, InvalidUsage


async def deployment(core: Core, project: Project, counted: Mapping[str, int]) -> dict[str, Any]:
    """Return the plan, as plain data: ``changes``, and ``drops``, which are made only where that is asked for.

    Raises as `planned`.
    """
    await core.look()
    catalog = core.catalog  # other calls may change it meanwhile
    changes = await planned(core, project, counted)
    drops = [{"kind": definitions.called(item), "name": item.name} for item in dropped(catalog, changes)]
    return {"changes": [asdict(change) for change in changes], "drops": drops}


async def foreseen(
    core: Core, project: Project, counted: Mapping[str, int], *, drop: bool | Sequence[str]
) -> dict[str, Any]:
    """Return the plan, and ask Spark what `deploy` will ask it: see `foreseen_project`."""
    plan = await deployment(core, project, counted)
    await foreseen_project(core, project, [each["name"] for each in plan["drops"]] if drop else ())
    return plan


async def deploy(
    core: Core, project: Project, counted: Mapping[str, int], *, drop: bool | Sequence[str]
) -> dict[str, Any]:
    """Apply a project, and return the plan with what became of it.

    That is what was ``created``, ``replaced`` and ``refused``, and what comes ``later``, once views are replaced.
    ``drop``: drop first what the plan names for it; names: and only if these are all.

    Raises:
        DefinitionError: something is to be dropped, and a definition of the project is wrong; nothing was changed.
        InvalidUsage: other items are to be dropped than ``drop`` names; nothing was changed.
    """
    await core.settle()
    plan = await deployment(core, project, counted)
    drops = plan["drops"] if drop else []
    if drops:
        _require_sound(plan, None if isinstance(drop, bool) else drop)
    names = {each["name"].lower() for each in drops}
    for view in [each for each in asked_for(core.catalog) if each.replaces in names]:  # it may read what is dropped
        await replacing.drop(core, Drop("materialized view", view.name, if_exists=True))
    for each in drops:
        await replacing.drop(core, Drop(each["kind"], each["name"], if_exists=True))
    done = await apply(core, project, whole=False)
    made = {"created": done.created, "replaced": done.replaced, "refused": done.refused, "later": done.later}
    return {**plan, **{what: list(names) for what, names in made.items()}}


def _require_sound(plan: Mapping[str, Any], confirmed: Sequence[str] | None) -> None:
    """Raise if a plan must not be carried out with its drops."""
    if wrong := [each["why"] for each in plan["changes"] if each["what"] == "refused"]:
        raise DefinitionError(f"nothing is dropped while a definition is wrong: {'; '.join(wrong)}")
    names = [each["name"] for each in plan["drops"]]
    if confirmed is not None and sorted(confirmed) != sorted(names):
        raise InvalidUsage(f"what would be dropped has changed meanwhile: it is {', '.join(names)}; look again")
