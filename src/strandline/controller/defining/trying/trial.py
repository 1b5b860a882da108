"""A trial: a project is made on a scratch copy of the catalog, so all of its mistakes are known before a change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from strandline.controller.core import Core
from strandline.controller.defining.project.settings import Project, shares_location
from strandline.controller.defining.relocating import is_checkout
from strandline.controller.defining.trying.making import Made, make
from strandline.controller.defining.trying.mistakes import Mistake, Mistakes
from strandline.controller.defining.trying.scratch import Scratch
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Collected, Source, SourceTable
from strandline.errors import ConfigError, DefinitionError, Unavailable


@dataclass(frozen=True, slots=True)
class Trial:
    """What a project comes to: ``scratch`` holds all of it but for the definitions that have ``mistakes``.

    ``untried``: the names, in lower case, of definitions that need one of those, or something that no file defines
    while one cannot be read.
    """

    scratch: Scratch
    made: Made
    mistakes: tuple[Mistake, ...]
    untried: frozenset[str] = frozenset()

    @property
    def refused(self) -> tuple[str, ...]:
        """The mistakes, for people."""
        return tuple(str(each.error) for each in self.mistakes)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Those of `refused` that are wrong only because what they need did not answer."""
        return tuple(str(each.error) for each in self.mistakes if isinstance(each.error, Unavailable))

    @property
    def recreated(self) -> list[str]:
        """The sources, and their tables, that take the places of others of these names."""
        before = self.scratch.before.items
        return [
            name
            for name, item in self.scratch.catalog.items.items()
            if isinstance(item, Source | SourceTable)
            and isinstance(there := before.get(name), Collected)
            and there.shard != item.shard
        ]

    def adopted(self, catalog: Catalog) -> Catalog:
        """Return what ``catalog`` is to be.  Raises `Unavailable` if it is not the one that this was a trial of."""
        if catalog == self.scratch.catalog:
            return catalog
        if catalog != self.scratch.before:
            raise Unavailable(
                "the definitions have changed while the project was tried; nothing was applied, try again"
            )
        return self.scratch.catalog


async def tried(core: Core, project: Project, dropped: Collection[str] = ()) -> Trial:
    """Make ``project`` on a scratch copy of the catalog, without what is called ``dropped``.

    Nothing is changed.  Raises what stores raise, and `NoExecutor` if Spark has to run a job for an answer and cannot.
    """
    scratch, mistakes = Scratch(core), Mistakes(project)
    try:
        made = await make(scratch, project, mistakes, dropped)
    except DefinitionError as error:  # views read each other in a circle
        made = Made((), (), (), ())
        mistakes.found.append(Mistake(project.root.name, error, "project"))
    return Trial(scratch, made, tuple(mistakes.found), mistakes.untried)


async def looked_into(core: Core, project: Project, trial: Trial) -> Sequence[Mistake]:
    """Return the mistakes of a project that is not applied, with what is wrong with definitions that differ.

    These are tried without what is there, which ``trial`` has left as it is, and so is what reads it.  Raises as
    `tried`.
    """
    differing = [each for each in trial.mistakes if each.differs]
    if not differing:
        return trial.mistakes
    gone = {name for each in differing for name in trial.scratch.before.downstream(each.name)}
    wrong = (await tried(core, project, gone)).mistakes
    known = {each.name for each in wrong}
    return [*wrong, *(each for each in differing if each.name not in known)]


def refuse_another(core: Core, project: Project) -> None:
    """Raise `ConfigError` if another project has the location, unless this environment has taken it over.

    Another checkout of the same definitions is no other project.
    """
    before = core.catalog.root
    if not before or core.config.take_over or not shares_location(Path(before), project):
        return
    if not is_checkout(Path(before), project):
        raise ConfigError(
            f"the location {project.location!r} belongs to the project in {before}, which is still there: two projects "
            "would undo each other's definitions; give this one a location of its own, or have it take the place of "
            "the other: `strandline run --take-over`"
        )
