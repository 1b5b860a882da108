"""Following: while `strandline run` lives, definitions change; it applies what the project's files say without a drop.

What was applied is logged by name, whether the files said it, another process, or an upstream that got a column.
The files are looked at between ticks, by their names, sizes and times: no file is read that did not change.  A change
is applied once two looks in a row find the same, so that no file is read that an editor has not finished.  What cannot
be applied is logged once for each change, with what to do: a definition that differs, a file that is gone, a setting.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from strandline.controller.defining.apply import Applied
from strandline.controller.defining.changing.order import read_by
from strandline.controller.defining.project.files import DIRECTORIES, load
from strandline.controller.defining.project.settings import SETTINGS_FILE, Project
from strandline.controller.location.catalog import Catalog
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
    refused then was said then.  The look that finds views in place which `Applied.later` waits for applies it again.
    """

    def __init__(self, env: Applying, project: Project, say: Callable[..., object], applied: Applied) -> None:
        self._env = env
        self._catalog = env.catalog
        self._later = applied.later
        self._refused = applied.refused
        self._project = project
        self._say = say
        self._applied: Files = ()
        self._seen: Files = ()
        self._lacks: frozenset[str] = frozenset()
        """The names, in lower case, of what the project defines and the environment does not have."""

    def look(self) -> None:
        """Look at the files, and apply what has changed.  Raises `FencedError`."""
        before, self._seen = self._seen, found(self._project.root)
        if not self.waits() and (self._seen != before or self._seen == self._applied):
            return
        self._applied = self._seen
        try:
            project = load(self._project.root)
            applied = self._env.apply(project, whole=False)
        except (DefinitionError, ConfigError) as error:
            self._say("not applied", what=str(error))
            return
        except (StoreError, Unavailable) as error:
            self._say("not applied, will be retried", what=str(error))
            self._applied = ()
            return
        self._later = applied.later
        self.say_adopted()
        refused = [why for why in applied.refused if why not in self._refused]
        for why in (*refused, *_left(self._project, project, self._lacks)):
            self._say("not applied", what=why)
        self._refused = ()  # of a file that is changed again and is still wrong, that is said again
        self._project = project
        made = {name.lower() for name in (*applied.created, *applied.kept, *applied.replaced, *applied.later)}
        self._lacks = frozenset(each.statement.name.lower() for each in project.definitions) - made

    def waits(self) -> bool:
        """Return whether something waited for views that are in place now."""
        return bool(self._later) and not successors(self._env.catalog)

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
