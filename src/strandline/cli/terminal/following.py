"""Following: while `strandline run` lives, definitions change; it applies what the project's files say without a drop.

What was applied is logged by name, whether the files said it, another process, or an upstream that got a column.
The files are looked at between ticks, by their names, sizes and times: no file is read that did not change.  A change
is applied once two looks in a row find the same, so that no file is read that an editor has not finished.  What cannot
be applied is logged once for each change, with what to do: a definition that differs, a file that is gone, a setting.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from strandline.controller.defining.apply import Applied
from strandline.controller.defining.changing.order import read_by
from strandline.controller.defining.project.files import DIRECTORIES, load
from strandline.controller.defining.project.settings import SETTINGS_FILE, Project
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Materialization
from strandline.controller.location.version import successors
from strandline.controller.observing.adopted import adopted
from strandline.errors import ConfigError, DefinitionError, StoreError, Unavailable

Files: TypeAlias = tuple[tuple[str, int, int], ...]
"""What a look finds of each file: its name below the project, its size, and when it was modified."""
SETTINGS_LATER: Final = f"{SETTINGS_FILE}: changed settings take effect when `strandline run` is started again"


class Applying(Protocol):
    """An environment that applies a project."""

    def apply(self, project: Project, *, whole: bool = True) -> Applied:
        """See `Environment.apply`."""
        ...

    @property
    def catalog(self) -> Catalog:
        """See `Environment.catalog`."""
        ...


class Following:
    """The files of a project that was ``applied`` to ``env`` as ``project``; ``say`` logs an event with its facts.

    The first looks find what has changed since the project was read, which is before Spark was started; what was
    refused then was said then.  The project is applied again where that may come to more: at the next look, if
    something did not answer; for `Applied.later`, once the catalog has changed since, as views are put in place and
    tables at endpoints are emptied.
    """

    def __init__(self, env: Applying, project: Project, say: Callable[..., object], applied: Applied) -> None:
        self._env = env
        self._catalog = env.catalog
        self._project = project
        self._say = say
        self._last, self._after = applied, env.catalog
        self._applied: Files = ()
        self._seen: Files = ()
        self._lacks: frozenset[str] = frozenset()
        """The names, in lower case, of what the project defines and the environment does not have."""

    def look(self) -> None:
        """Look at the files, and apply what has changed.  Raises `FencedError`."""
        before, self._seen = self._seen, found(self._project.root)
        again = self._last.unanswered or self._due
        if self._seen != before or (self._seen == self._applied and not again):
            return
        if self._applied and self._seen != self._applied:  # of what is still wrong, that is said again
            self._last = replace(self._last, refused=(), unanswered=())
        self._applied = self._seen
        try:
            project = load(self._project.root)
            applied = self._env.apply(project, whole=False)
        except (DefinitionError, ConfigError) as error:
            self._say("not applied", what=str(error))
            self._take(Applied((), ()))  # and nothing comes of these files
            return
        except (StoreError, Unavailable) as error:
            self._say_new("not applied, will be retried", [str(error)])
            self._take(replace(self._last, unanswered=(str(error),)))
            return
        self.say_adopted()
        self._say_new("not applied", (*applied.refused, *_left(self._project, project, self._lacks)))
        self._say_new("not applied, will be retried", applied.unanswered)
        self._take(applied)
        self._project = project
        made = {name.lower() for name in (*applied.created, *applied.kept, *applied.replaced, *applied.later)}
        self._lacks = frozenset(each.statement.name.lower() for each in project.definitions) - made

    def _say_new(self, event: str, whys: Iterable[str]) -> None:
        for why in whys:
            if why not in {*self._last.refused, *self._last.unanswered}:
                self._say(event, what=why)

    def _take(self, applied: Applied) -> None:
        self._last, self._after = applied, self._env.catalog

    @property
    def _due(self) -> bool:
        """Whether what comes later may come now: the catalog has changed since, and no view is being replaced."""
        catalog = self._env.catalog
        return bool(self._last.later) and catalog != self._after and not successors(catalog)

    def waits(self, progress: Mapping[str, Any]) -> bool:
        """Return whether another tick may let more of the project be applied; ``progress``: the environment's.

        A table that is being emptied is forgotten by a later tick, unless its materialization stands still.
        """
        stopped = progress["problems"].keys() | progress["waiting"].keys()
        items = self._env.catalog.of_kind(Materialization)
        emptying = [each for each in items if any(left.empties for left in each.left)]
        return self._due or (bool(self._last.later) and any(each.name.lower() not in stopped for each in emptying))

    def say_adopted(self) -> None:
        """Say what is defined otherwise than it was when this was called last."""
        before, self._catalog = self._catalog, self._env.catalog
        for each in adopted(before, self._catalog):
            self._say(each.event, **each.facts)


def found(root: Path) -> Files:
    """Return what a look finds of the files that say what a project is."""
    return tuple(sorted(_found(root)))


def _found(root: Path) -> Iterator[tuple[str, int, int]]:
    for path in (root / SETTINGS_FILE, *(each for name in DIRECTORIES for each in (root / name).glob("*"))):
        try:
            state = path.stat()
        except OSError:
            continue  # it was deleted meanwhile
        yield str(path.relative_to(root)), state.st_size, state.st_mtime_ns


def _left(before: Project, now: Project, lacks: AbstractSet[str]) -> Iterator[str]:
    """Yield what a project no longer says, and the environment still has; and whether its settings are others.

    ``lacks``: the names of what it never had.
    """
    names = {each.statement.name.lower() for each in now.definitions}
    for each in before.definitions:
        name = each.statement.name.lower()
        if name not in names and name not in lacks:
            readers = [other.statement.name for other in now.definitions if name in read_by(other)]
            reads = f" ({', '.join(readers)} read{'s' if len(readers) == 1 else ''} it)" if readers else ""
            yield (
                f"{each.file}: {each.statement.name!r} is defined here no longer, and is kept up to date all the same"
                f"{reads}: drop it with `strandline apply --drop {shlex.quote(name)}`, or put the definition back"
            )
    if (before.config, before.location, before.consensus, before.tick_ms) != (
        now.config,
        now.location,
        now.consensus,
        now.tick_ms,
    ):
        yield SETTINGS_LATER
