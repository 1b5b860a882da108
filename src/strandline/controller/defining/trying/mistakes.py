"""Mistakes: what keeps definitions of a project from being made, each where it stands."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from strandline.controller.commanded import command, runs_in
from strandline.controller.defining.changing.comparing import created_with, refusal
from strandline.controller.defining.changing.order import needed_by
from strandline.controller.defining.ground import Ground
from strandline.controller.defining.project.settings import SETTINGS_FILE, Defined, Endpoint, Project
from strandline.controller.language.statements import CreateMaterialization
from strandline.controller.location.catalog import Catalog
from strandline.errors import (
    ConfigError,
    DefinitionError,
    NoExecutor,
    Position,
    SourceError,
    StrandlineError,
    Unavailable,
)
from strandline.plane import at_stage

WRONG: Final = (DefinitionError, ConfigError, SourceError, Unavailable)
"""What is raised where a definition is wrong, or what it needs does not answer."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake: the ``error`` says the file; ``name``: the item's, as its definition says it.

    ``kind``: of what the name is, if of no item: a file, an endpoint, or the project.  ``differs``: the mistake is that
    something else is there, which would have to be dropped.
    """

    name: str
    error: StrandlineError
    kind: str = ""
    differs: bool = False


class Mistakes:
    """What is found of a project; whatever needs something that could not be made is not tried."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self.found = [Mistake(error.message.partition(":")[0], error, "file") for error in project.unread]
        self._lost: set[str] = set()
        self._tried: set[str] = set()
        self._names = {each.statement.name.lower() for each in project.definitions}

    @asynccontextmanager
    async def noted(self, core: Ground, defined: Defined) -> AsyncIterator[None]:
        """Take note of what is wrong with a definition, and leave the catalog as it was before the block then.

        What stores raise is let through, and `NoExecutor`.
        """
        before = core.catalog
        self._tried.add(defined.statement.name.lower())
        at_stage(f"tries {defined.statement.name}, {len(self._tried)} of {len(self._names)}")
        try:
            yield
        except NoExecutor:
            raise
        except WRONG as error:
            await core.catalogs.change(core.require_writing().epoch, lambda _: before)
            self.found.append(Mistake(defined.statement.name, self._placed(error, defined)))
            self.lose(defined)

    def _placed(self, error: StrandlineError, defined: Defined) -> StrandlineError:
        """Return an error that says in which file it is, and where there: at the option that it names first, if any."""
        file, statement = defined.file, defined.statement
        at = error.position if isinstance(error, DefinitionError) else statement.at
        text = error.message if isinstance(error, DefinitionError) else str(error)
        named = re.search(r"\boption '?(\w+)", text)
        if named is not None:
            places: Mapping[str, Position] = getattr(statement, "options_at", {})
            endpoint = self._endpoint(defined)
            if endpoint is not None and named[1] in endpoint.options:
                file, places, at = SETTINGS_FILE, endpoint.at, None
            at = places.get(named[1], at)
        if isinstance(error, DefinitionError):
            return DefinitionError(f"{file}: {text}", at)
        return type(error)(f"{file}: {text}" + (f" (at {at})" if at else ""))

    def _endpoint(self, defined: Defined) -> Endpoint | None:
        """Return the endpoint that a materialization names, of which it has options that its own file does not say."""
        written = defined.written
        return self._project.endpoints.get(written.endpoint) if isinstance(written, CreateMaterialization) else None

    def differs(self, defined: Defined, change: str) -> None:
        """Take note that an item is there otherwise; ``change``: what differs.  It stays, so what needs it is tried."""
        error = DefinitionError(refusal(defined, created_with(change)))
        self.found.append(Mistake(defined.statement.name, error, differs=True))

    @property
    def untried(self) -> frozenset[str]:
        """The names, in lower case, of what was not tried, since it needs something that could not be made."""
        return frozenset(self._lost - {each.name.lower() for each in self.found})

    def lose(self, defined: Defined) -> None:
        """Take what needs this definition for wrong with it: that is no mistake of its own."""
        self._lost.add(defined.statement.name.lower())

    def waits(self, defined: Defined, catalog: Catalog) -> bool:
        """Return whether a definition was lost, or needs one that was, and is not in ``catalog`` from before."""
        if defined.statement.name.lower() in self._lost:
            return True
        missing = needed_by(defined) - catalog.items.keys()
        if missing & self._lost or (self._project.unread and missing - self._names):  # what is unread may define it
            self.lose(defined)
            return True
        return False


def require_command(core: Ground, defined: Defined) -> None:
    """Raise what keeps an instance from being told what to run for a definition, or for the source that feeds it."""
    catalog = core.catalog
    if (item := catalog.find(defined.statement.name)) is not None:
        command(catalog.items[runs_in(item)], catalog, core.require_writing().plans, core.config)


def together(mistakes: Sequence[Mistake]) -> StrandlineError:
    """Return all mistakes, of which there is one at least, as one error: `Unavailable` if all of them are."""
    if len(mistakes) == 1:
        return mistakes[0].error
    kind = Unavailable if all(isinstance(each.error, Unavailable) for each in mistakes) else DefinitionError
    return kind("\n".join(str(each.error) for each in mistakes))
