"""The next version of an environment, for plain calls: it is prepared beside the present one, and then promoted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from strandline.client.access import Access
from strandline.client.environment import Environment
from strandline.controller.core import Core
from strandline.controller.defining.project.settings import Project
from strandline.controller.preparing.preparation import Preparation
from strandline.errors import InvalidUsage
from strandline.persist.shard.holds import BEAT_MS
from strandline.wiring.assemble import SparkAssembly
from strandline.wiring.loop import LoopThread

MERGE_EVERY_S: Final = 5.0
"""How often large merges that are due are carried out, beside whatever else goes on."""
WATCH_EVERY_S: Final = 5.0
"""How often it is looked whether a tick runs long."""


class NextVersion:
    """The views that a project has otherwise, computed beside the process that writes; made by `opening.prepare`.

    It writes nothing that others read, reads no source and opens no endpoint.  Call `tick` again and again; promote it,
    or close it: another one goes on from its shards.
    """

    def __init__(self, core: Core, assembly: SparkAssembly, loop: LoopThread, project: Project) -> None:
        self._core = core
        self._assembly = assembly
        self._loop = loop
        self._preparation = Preparation(core, project)
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tick(self) -> None:
        """Follow the writer once.

        Raises `FencedError` if a process that was begun later prepares the same; `DefinitionError` if the project
        cannot follow the catalog any longer.
        """
        self._refuse_closed()
        self._loop.run(self._preparation.tick())

    @property
    def names(self) -> tuple[str, ...]:
        """The views that are new, or defined otherwise."""
        return tuple(self._preparation.version.views)

    @property
    def behind(self) -> Mapping[str, str]:
        """By view, why it could not take over now; nothing: all of them have caught up."""
        return self._preparation.version.behind

    @property
    def later(self) -> Mapping[str, str]:
        """By view, why it is computed with the promotion only."""
        return self._preparation.version.later

    @property
    def asked(self) -> bool:
        """Whether `strandline promote` has asked for the promotion, and no view waits to be replaced first."""
        return bool(self._preparation.version.asked) and not self._preparation.waiting

    def promote(self) -> Environment | None:
        """Take the location over, with these views in place of those that they follow; this one is closed then.

        The writer before is fenced.  Apply the project next: it makes all items but views.  Returns None, and is not
        closed, if the promotion was withdrawn meanwhile, or waits for a view that is to be replaced first.

        Raises `ConfigError` if a view was defined anew meanwhile.
        """
        self._refuse_closed()
        if self._preparation.waiting:
            return None
        self._preparation.version.promoted(self._core.catalog)
        try:
            core = self._loop.run(self._preparation.promote())
        except BaseException:
            self._open = False
            self._end()
            raise
        if core is None:
            return None
        self._open = False
        return environment(core, self._assembly, self._loop)

    def close(self) -> None:
        """Give up its leases; the shards stay for the next process that prepares the same."""
        if self._open:
            self._open = False
            try:
                self._loop.run(self._ended())
            finally:
                self._end()

    async def _ended(self) -> None:
        await self._preparation.close()
        await self._core.close()

    def _end(self) -> None:
        self._loop.stop()
        self._assembly.close()

    def _refuse_closed(self) -> None:
        if not self._open:
            raise InvalidUsage("this preparation was closed")


def environment(core: Core, assembly: SparkAssembly, loop: LoopThread) -> Environment:
    """Return the environment of an open core, and begin the calls that repeat beside it: beats, merges, watching."""
    loop.repeat(assembly.clock, BEAT_MS / 1000, core.readers.beat)
    loop.repeat(assembly.clock, MERGE_EVERY_S, core.merge)
    loop.repeat(assembly.clock, WATCH_EVERY_S, core.watch)
    return Environment(Access(core, assembly, loop))
