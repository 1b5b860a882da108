"""Preparation: computes the next version of a location's views, beside the process that writes the present one.

It writes nothing that others read: views are computed in shards of this version's own, no source is read, no endpoint
is opened, and nothing of the location is taken over.  What it reads it holds by leases, which end by themselves.

Once it is asked to (`ask`), the process that prepares takes the location over: in one write of the catalog, which
begins a new generation and puts the views in place (`Version.promoted`).  The writer before is fenced.  Wherever that
is cut off, the process that opens the location next finds either version, whole.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final

import msgspec

from strandline.controller.core import Core
from strandline.controller.defining.project.settings import Project
from strandline.controller.defining.relocating import relocated, seen_by
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.config import Mode
from strandline.controller.location.items import Item
from strandline.controller.location.version import Version, being_replaced
from strandline.controller.preparing.overlay import Overlay, overlay
from strandline.controller.retention import HISTORY
from strandline.errors import AsOfError, ConfigError, InvalidUsage, StoreError, StrandlineError, Unavailable
from strandline.frontier.antichain import MINIMUM, Frontier, as_time, join, meet
from strandline.instance.beginnings import HYDRATING
from strandline.instance.commands import Collection
from strandline.instance.instance import Instance, unopened
from strandline.instance.problems import Problems
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.since import SinceHandle
from strandline.persist.shard.holds import BEAT_MS

POLL_S: Final = 0.1
"""How often it is looked whether a promotion was made."""
BEGUN: Final = "one has begun to: see `strandline status`, and start `strandline run --read-only` again if it has died"
LAG_INTERVALS_MAX: Final = 3
"""A view has caught up if it is no further behind its inputs than so many intervals."""


class Preparation:
    """The next version of an environment that was opened for reading, as ``project`` defines it."""

    def __init__(self, core: Core, project: Project) -> None:
        """Raises `ConfigError` if nothing is stored there yet."""
        if not core.catalog.epoch:
            raise ConfigError("nothing was stored at this location yet; `strandline run` makes its first version")
        self._core = core
        self._project = project
        self._problems = Problems(core.assembly.clock)
        self._epoch = core.catalog.epoch
        self._instance = Instance(core.equipment(), self._epoch, None, self._problems)
        self._items: dict[str, Item] | None = None
        self._overlay = Overlay()
        self._leases: dict[str, ReadHandle] = {}  # of the inputs, by shard
        self._holds: dict[str, SinceHandle] = {}  # of this version's own shards
        self._held_ms = 0
        self.version = Version()
        """What is prepared, as this process saw it last."""

    @property
    def waiting(self) -> str:
        """Why no promotion can begin now, by the catalog as last seen: a view waits to be replaced; empty: it can."""
        return being_replaced(self._core.catalog)

    async def tick(self) -> Version:
        """Follow the writer once, and return the version as it is then.

        Raises `FencedError` if a process that was begun later prepares these views; `DefinitionError` if the project
        cannot follow the catalog any longer.
        """
        await self._core.look()
        if self._core.catalog.items != self._items:
            await self._begin()
        for lease in self._leases.values():
            await lease.refresh()
        reach = await self._reach()
        await self._instance.maintain(reach)
        await self._hold()
        await self._publish(reach)
        return self.version

    async def _reach(self) -> Frontier:
        """Return how far to compute: no further than the views that are followed have come.

        They go on from there with the promotion, so this version begins before that and keeps its past from there.
        """
        uppers = await self._followed()
        known = [lease.state.upper for lease in self._leases.values()]
        latest = join(upper for upper in known if not upper.empty)
        return meet((latest, *uppers))

    async def _followed(self) -> list[Frontier]:
        """Return how far the views have come that are followed."""
        followed = [await self._core.readers.of(n) for n, each in self.version.views.items() if each.view.seed]
        return [(await reader.refresh()).upper for reader in followed]

    async def close(self) -> None:
        """Give up the leases; the shards stay, and the next process goes on from them."""
        await self._instance.close()
        await self._let_go(self._leases.keys())

    async def _let_go(self, shards: AbstractSet[str]) -> None:
        with suppress(StrandlineError):  # a lease ends by itself
            for shard in sorted(shards):
                await self._leases.pop(shard).close()

    async def promote(self) -> Core | None:
        """Take the location over, with these views in place of those that they follow; this one is closed then.

        Returns None, and is not closed, if the promotion was withdrawn before this call could begin it, or cannot begin
        yet: see `waiting`.

        What the views go on from is held until the new generation holds it: until then the writer before may release
        it, and so it may if this process dies, but not within the time of a lease.

        Raises `ConfigError` if a view was defined anew meanwhile, or another version was promoted.
        """
        core, asked = self._core, self.version.asked
        await core.look()
        if self.waiting:
            return None
        latest = join(upper for upper in await self._followed() if not upper.empty)
        version = self.version = await core.versions.change(
            lambda found: msgspec.structs.replace(found, begun=asked) if found.asked == asked else found
        )
        if version.begun != asked:
            return None
        await self._instance.close()
        config = msgspec.structs.replace(core.config, take_over=True)
        try:
            seen = seen_by(self._project)
            query_from = max(core.assembly.clock.now_ms(), as_time(latest))

            def after(catalog: Catalog) -> Catalog:  # the location is this project's from the same write on
                return relocated(self._project, version.promoted(catalog, query_from), adopts=True)

            promoted = await Core.open(core.assembly, config, Mode.FULL, after, seen)
        finally:
            await self._let_go(self._leases.keys())
            await core.close()
        with suppress(StoreError, Unavailable):  # the catalog has it, so it is next no longer
            await settle(promoted, version)
        return promoted

    async def _laid(self, before: Version) -> Overlay:
        return await self._core.assembly.planning(lambda: overlay(self._core, self._project, before))

    async def _begin(self) -> None:
        """Prepare what the project has otherwise than the catalog is now."""
        catalog, before = self._core.catalog, await self._core.versions.read()
        found = self._overlay = await self._laid(before)
        await self._read(found)
        stale = {name for name, each in before.views.items() if await self._lost(name, each.shard)}
        if stale:
            views = {name: each for name, each in before.views.items() if name not in stale}
            found = self._overlay = await self._laid(msgspec.structs.replace(before, views=views))

        def change(known: Version) -> Version:
            same = known.views == found.views  # so the promotion that was asked for is that of this version
            behind = known.behind if same else dict.fromkeys(found.commands, HYDRATING)
            asked, after = known.asked if same else "", catalog.promoted
            version = Version(
                epoch=self._epoch, views=found.views, behind=behind, later=found.later, asked=asked, after=after
            )
            unused = (known.own(catalog) | set(known.left)) - version.own(catalog)
            return msgspec.structs.replace(version, left=tuple(sorted(unused)))

        self.version = await self._core.versions.change(change)
        await self._instance.end(found.commands)
        for name, command in found.commands.items():
            async with self._problems.of(name):
                await self._instance.start(name, command)
                self._problems.note(name, "")
        await self._let_go(self._leases.keys() - _read_by(found).keys())
        self._items = dict(catalog.items)

    async def _read(self, found: Overlay) -> None:
        """Hold what the views read, before anything is computed of it."""
        for shard, collection in sorted(_read_by(found).items()):
            if shard not in self._leases:
                lease = await self._core.client.leased_reader(shard, collection.schema, collection.name)
                if lease is None:
                    raise unopened(collection.name)
                self._leases[shard] = lease

    async def _lost(self, name: str, shard: str) -> bool:
        """Return whether the past that a view goes on from was released, as no process has prepared it for long."""
        command = self._overlay.commands.get(name)
        if command is None or command.output.shard != shard:
            return False
        reader = await self._core.client.reader(shard, command.output.schema, command.output.name)
        if reader is None or reader.state.certificate is None:
            return False
        since = max(as_time(self._leases[each.shard].state.since) for each in command.inputs.values())
        return as_time(reader.state.certificate.upper) - 1 < since

    async def _hold(self) -> None:
        """Renew leases, and release the past that no step needs now: of the inputs, and of this version's shards."""
        now = self._core.assembly.clock.now_ms()
        if now - self._held_ms < BEAT_MS:
            return
        self._held_ms = now
        needed = self._instance.needed()
        for shard, lease in list(self._leases.items()):
            try:
                await lease.downgrade_since(needed.get(shard, MINIMUM))
            except AsOfError:  # this process slept for longer than its lease: begin anew
                self._leases.pop(shard)
                self._items = None
        moves = []
        for shard in sorted(self.version.own(self._core.catalog)):
            state = self._core.client.known(shard)
            if state is not None and state.upper.at:
                if shard not in self._holds:
                    self._holds[shard] = await self._core.client.since(shard, HISTORY, self._epoch)
                last = Frontier(state.upper.at - 1)
                moves.append((self._holds[shard], meet((last, needed.get(shard, last)))))
        if moves:
            await self._core.client.downgrade_many(moves)

    async def _publish(self, reach: Frontier) -> None:
        """Let others read which views could not take over now, and learn whether a promotion is asked for.

        ``reach``: how far the views were to come.
        """
        frontiers = self._instance.report().frontiers
        behind = {}
        for name, command in self._overlay.commands.items():
            upper = frontiers.get(command.output.name.lower(), MINIMUM)
            known = meet((reach, *(self._leases[each.shard].state.upper for each in command.inputs.values())))
            if problem := self._problems.get(name, ""):
                behind[name] = problem
            elif as_time(known) - as_time(upper) > LAG_INTERVALS_MAX * self._core.config.tick_ms:
                behind[name] = HYDRATING if upper == MINIMUM else f"it is at {upper}, and what it reads at {known}"
        told = await self._core.versions.read()
        if told.behind != behind and told.epoch == self._epoch:
            told = await self._core.versions.change(lambda version: msgspec.structs.replace(version, behind=behind))
        self.version = told


def _read_by(found: Overlay) -> dict[str, Collection]:
    """Return what the views of an overlay read, by shard."""
    return {each.shard: each for command in found.commands.values() for each in command.inputs.values()}


async def ask(core: Core, *, force: bool) -> Version:
    """Ask the process that prepares the next version to promote it; return the version, with the token.

    Raises `InvalidUsage` if nothing is prepared, a view waits to be replaced (`core` must have looked), what reads one
    could not go on, or one has not caught up; ``force``: it may be behind.
    """

    def change(version: Version) -> Version:
        if not version.views:
            raise InvalidUsage("no next version is prepared; begin one with `strandline run --read-only`")
        if why := version.refused(core.catalog):
            raise InvalidUsage(why)
        if version.behind and not force:
            said = "; ".join(f"{name}: {why}" for name, why in sorted(version.behind.items()))
            raise InvalidUsage(f"the next version has not caught up ({said}); wait, or promote it with --force")
        return msgspec.structs.replace(version, asked=version.asked or core.assembly.ids.fresh("p"))

    return await core.versions.change(change)


async def withdraw(core: Core, asked: str) -> bool:
    """Ask no more for the promotion ``asked``; return False, and withdraw nothing, if a process has begun it."""

    def change(version: Version) -> Version:
        withdrawn = version.asked == asked != version.begun
        return msgspec.structs.replace(version, asked="") if withdrawn else version

    return (await core.versions.change(change)).asked == ""


async def settle(core: Core, version: Version) -> None:
    """Forget a version that is promoted: the catalog has it now."""
    await core.versions.change(
        lambda found: Version(epoch=found.epoch) if found.views.keys() == version.views.keys() else found
    )


async def promotion(core: Core, *, force: bool, timeout_s: float) -> int:
    """Have the next version promoted by the process that prepares it; return the generation that it has begun.

    Raises `InvalidUsage` as `ask`; `Unavailable` if it is not promoted within ``timeout_s``: then nothing changes.
    If a view is replaced meanwhile, it waits for that.
    """
    clock = core.assembly.clock
    await core.look()
    asked, until = (await ask(core, force=force)).asked, clock.now_ms() + 1000 * timeout_s
    while (await core.catalogs.read()).promoted != asked:  # a generation that the writer before begins is none of it
        changed = (await core.versions.read()).asked != asked
        if changed and (await core.catalogs.read()).promoted != asked:
            raise Unavailable("the next version has changed since it was asked for; look at it, and ask again")
        if clock.now_ms() >= until:
            withdrawn = await withdraw(core, asked)
            if (await core.catalogs.read()).promoted != asked:
                running = "is `strandline run --read-only` running?" if withdrawn else BEGUN
                unpromoted = f"no process has promoted the next version within {timeout_s:g} s; {running}"
                raise Unavailable(being_replaced(core.catalog) or unpromoted)
        else:
            await clock.sleep(POLL_S)
    return core.catalog.epoch
