"""A trial: a project is made on a copy of the catalog in memory, so all of its mistakes are known before a change.

Nothing is opened on the copy.  Adopting a trial turns the catalog into what the trial has made, in one write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from strandline.controller.assembly import Assembly
from strandline.controller.commanded import Plans, runs_in
from strandline.controller.core import Core
from strandline.controller.defining.project.settings import Project, shares_location
from strandline.controller.defining.relocating import is_checkout
from strandline.controller.defining.trying.making import Made, make
from strandline.controller.defining.trying.mistakes import Mistake, Mistakes
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.config import Config
from strandline.controller.location.items import Collected, Item, Source, SourceTable
from strandline.controller.writing import Writing
from strandline.errors import ConfigError, DefinitionError, Unavailable
from strandline.instance.problems import Problems
from strandline.persist.client import PersistClient


class Scratch:
    """A `Ground` over a copy of the catalog that ``core`` has seen last; it changes nothing of the environment."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.before = core.catalog
        self.catalogs = _Copy(core.catalog)
        self.writing = _Unopened(core, self.catalogs)
        self.problems = Problems(core.assembly.clock)

    @property
    def assembly(self) -> Assembly:
        """See `Ground`."""
        return self._core.assembly

    @property
    def client(self) -> PersistClient:
        """See `Ground`."""
        return self._core.client

    @property
    def config(self) -> Config:
        """See `Ground`."""
        return self._core.config

    @property
    def catalog(self) -> Catalog:
        """The copy as it is now."""
        return self.catalogs.current

    def require_writing(self) -> _Unopened:
        """See `Ground`: a trial needs no environment that writes."""
        return self.writing


class _Copy:
    """`Catalogs` in memory."""

    def __init__(self, catalog: Catalog) -> None:
        self.current = catalog

    async def change(self, epoch: int, edit: Callable[[Catalog], Catalog]) -> Catalog:
        """See `Catalogs`."""
        assert epoch == self.current.epoch, "a trial is of one generation"
        self.current = edit(self.current)
        return self.current


class _Unopened:
    """`Opening` that opens nothing: what is asked of it is answered as the environment would."""

    def __init__(self, core: Core, catalogs: _Copy) -> None:
        self._core = core
        self._catalogs = catalogs
        self.epoch = catalogs.current.epoch
        self.plans = Plans() if core.writing is None else core.writing.plans.copy()

    @property
    def _writing(self) -> Writing | None:
        return self._core.writing

    @property
    def location(self) -> str:
        """See `Opening`."""
        return "" if self._writing is None else self._writing.location

    def now(self) -> int:
        """See `Opening`."""
        return self._core.assembly.clock.now_ms() if self._writing is None else self._writing.now()

    def created(self, imports: Iterable[str]) -> int | None:
        """See `Opening`: what is not there yet can be read at no time."""
        read, there = list(imports), self._core.catalog.items
        known = all(there.get(each) == self._catalogs.current.items.get(each) for each in read)
        return self._writing.created(read) if known and self._writing is not None else None

    def reads_under(self, name: str) -> int | None:
        """See `Opening`."""
        return None if self._writing is None else self._writing.reads_under(name)

    async def start(self, item: Item) -> None:
        """See `Opening`: it is open once the environment has this catalog."""
        assert runs_in(item) in self._catalogs.current.items, "only what the catalog has is opened"

    async def stop(self, item: Item) -> None:
        """See `Opening`: it goes on until the environment has this catalog."""

    async def place(self) -> None:
        """See `stop`."""

    async def reconcile(self) -> None:
        """See `stop`."""


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


async def adopt(core: Core, trial: Trial) -> None:
    """Have the catalog be what ``trial`` has made, in one write, and have run what it holds.

    A source that takes the place of another one is opened before what that one leaves is given up.

    Raises `Unavailable`, and changes nothing, if the catalog is no longer what it was when the trial began; or if such
    a source cannot be opened, here or by a replica of its instance: then what was there goes on.
    """
    writing, after = core.require_writing(), trial.scratch.catalog
    if after == trial.scratch.before:
        return
    writing.plans.take(trial.scratch.writing.plans)
    before = core.catalog
    await core.catalogs.change(writing.epoch, trial.adopted)
    if unopened := await writing.begin(trial.recreated):
        await core.catalogs.change(writing.epoch, lambda catalog: catalog.returned(before))
        await writing.reconcile()
        whys = "; ".join(f"{after.items[name].name!r} cannot be opened: {why}" for name, why in unopened.items())
        raise Unavailable(f"nothing was changed, since what was dropped for it goes on: {whys}")
    await writing.reconcile()
