"""Apply: make an environment hold what its project defines.

The project is tried first: all of it is made on a scratch copy of the catalog (`trying/`).  Then the catalog becomes
that copy in one write, and what runs follows.  So a project is applied in whole or not at all, also where the process
ends in between; and applying twice is applying once.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.controller.core import Core
from strandline.controller.defining.project.settings import Project
from strandline.controller.defining.trying.mistakes import together
from strandline.controller.defining.trying.trial import adopt, looked_into, refuse_another, tried


@dataclass(frozen=True, slots=True)
class Applied:
    """The names that were created, in order, and those that were there.

    ``refused``: of each definition that is wrong, why, and what to do; it is not applied.  ``unanswered``: of each one
    that is not applied since what it needs did not answer, why: apply the project again.
    ``replaced``: the views whose new queries are computed from now on.  ``later``: what is created once these are in
    place, since it reads them: apply the project again then.
    """

    created: tuple[str, ...]
    kept: tuple[str, ...]
    refused: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    unanswered: tuple[str, ...] = ()


async def apply(core: Core, project: Project, *, whole: bool = True) -> Applied:
    """Create what ``project`` defines and ``core`` lacks; what is there keeps its history for as long as it says now.

    ``whole``: if a definition cannot be applied, none is; else what can be applied is, and the rest is
    `Applied.refused` or `Applied.unanswered`.

    Raises:
        DefinitionError: ``whole``, and definitions differ from what is there, or are wrong: all of them are said, each
            with its file.  Nothing was changed.
        ConfigError: another project, which is named, has this location; unless the environment has taken it over.
        Unavailable: ``whole``, and what definitions need did not answer; apply again.  Nothing was changed.
    """
    await core.catalogs.confirm(core.require_writing().epoch)  # a directory may have gone since, and paths moved
    refuse_another(core, project)
    trial = await tried(core, project)
    if whole and trial.mistakes:
        raise together(await looked_into(core, project, trial))
    await adopt(core, trial)
    made, unanswered = trial.made, trial.unanswered
    refused = tuple(each for each in trial.refused if each not in unanswered)
    return Applied(made.created, made.kept, refused, made.replaced, made.later, unanswered)
