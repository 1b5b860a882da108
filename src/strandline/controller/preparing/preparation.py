"""Preparation: computes the next version of a location's views, beside the process that writes the present one.

It writes nothing that others read: views are computed in shards of this version's own, no source is read, no endpoint
is opened, and nothing of the location is taken over.  It holds what it reads by leases, which end by themselves.

Once it is asked to (`ask`), the process that prepares takes the location over: in one write of the catalog, which
begins a new generation and puts the views in place (`Version.promoted`).  The writer before is fenced.  Wherever that
is cut off, the process that opens the location next finds either version, whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from strandline.compute.stage import Stage
from strandline.controller.commanded import Plans, command
from strandline.controller.core import Core
from strandline.controller.defining.changing.comparing import changed, created_with
from strandline.controller.defining.changing.order import in_order, mentions
from strandline.controller.defining.definitions import drafted, instance_of, keeping
from strandline.controller.defining.project.files import in_file
from strandline.controller.defining.project.settings import Project
from strandline.controller.defining.relocating import relocated, seen_by, seen_from
from strandline.controller.language.statements import CreateView
from strandline.controller.location.catalog import Catalog, shards_of
from strandline.controller.location.config import Mode
from strandline.controller.location.items import Fed, Item, Table, View
from strandline.controller.location.version import Prepared, Version, being_replaced
from strandline.controller.planning import Definition, stage_shards, wanted_view
from strandline.controller.retention import HISTORY
from strandline.errors import (
    AsOfError,
    ConfigError,
    DefinitionError,
    InvalidUsage,
    StoreError,
    StrandlineError,
    Unavailable,
)
from strandline.frontier import MINIMUM, Frontier, as_time, join, meet
from strandline.instance.beginnings import HYDRATING
from strandline.instance.commands import Collection, RunDataflow
from strandline.instance.instance import Instance, unopened
from strandline.instance.problems import Problems
from strandline.persist.handles.read import ReadHandle, SinceHandle
from strandline.persist.shard.holds import BEAT_MS

LATER_SCHEDULE: Final = "its schedule begins with the promotion"
LATER_CHANGED: Final = "it reads a view that changes, and is computed with the promotion"
LATER_MISSING: Final = "it reads what is made with the promotion"
LATER_INSTANCE: Final = "its instance is made with the promotion"


@dataclass
class Overlay:
    """What is prepared: the views by name, and by view the command that computes it in shards of its own.

    ``later``: by view, why it is not prepared.

    It says which views of a project differ from a catalog's, and how each is computed beside its predecessor.  A
    changed view keeps its shard if its columns stay the same: it has one history, and its readers go on.  Until the
    promotion it is computed in a shard of its own, from which it then goes on (`View.seed`).  A stage that the catalog
    already has is read, and not computed a second time.

    A view over a changed one is not prepared: its input changes with the promotion, and it is computed then.  Neither
    is one with a schedule, which begins then.
    """

    views: dict[str, Prepared] = field(default_factory=dict)
    commands: dict[str, RunDataflow] = field(default_factory=dict)
    later: dict[str, str] = field(default_factory=dict)


def overlay(core: Core, project: Project, known: Version) -> Overlay:
    """Return what ``project`` has of views that the catalog has not, or has otherwise.

    ``known``: the version that was prepared so far; a view that is still the same goes on in its shards.

    Raises `DefinitionError`, naming the file: a definition is wrong, or is not a view's and differs.
    """
    found, catalog, project = Overlay(), core.catalog, seen_from(project, core.catalog.root)
    missing = {each.statement.name.lower() for each in project.definitions} - catalog.items.keys()
    moved: set[str] = set()  # views that get another shard
    for defined in in_order(project.definitions):
        statement, present = defined.statement, core.catalog.find(defined.statement.name)
        name = statement.name.lower()
        with in_file(defined.file):
            differs = "" if present is None else changed(core, present, defined)
            if not isinstance(statement, CreateView) or not (present is None or isinstance(present, View)):
                if differs:
                    raise DefinitionError(f"{statement.name!r}: {created_with(differs)}; only views can be promoted")
                continue
            if isinstance(present, View) and statement.instance.lower() != present.instance:
                raise DefinitionError(f"{statement.name!r}: {created_with(differs)}; drop it first, then create it")
            if present is not None and not differs and moved.isdisjoint(present.imports):
                continue
            absent = missing - found.views.keys()
            if present is None and (read := absent.intersection(mentions(statement.query))):
                found.later[name] = f"{LATER_MISSING}: {', '.join(sorted(read))}"
                continue
            if present is None and statement.instance.lower() in absent:
                found.later[name] = LATER_INSTANCE
                continue
            instance = instance_of(core.catalog, statement)
            wanted = wanted_view(statement.name, statement.query, statement.refresh, instance)
            definition = drafted(core, catalog, wanted)
            if statement.refresh is not None:
                found.later[name] = LATER_SCHEDULE
            elif not found.views.keys().isdisjoint(definition.view.imports):
                found.later[name] = LATER_CHANGED
            definition = replace(definition, view=keeping(definition.view, statement))
            prepared = _prepared(core, catalog, definition, present, known.views.get(name), later=name in found.later)
        found.views[name] = prepared
        catalog = catalog.with_item(prepared.view)
        if present is not None and present.shard != prepared.view.shard:
            moved.add(name)
        if name not in found.later:
            found.commands[name] = _beside(core, replace(definition, view=prepared.view), prepared.shard)
    return found


def _prepared(
    core: Core, catalog: Catalog, definition: Definition, present: View | None, known: Prepared | None, *, later: bool
) -> Prepared:
    """Choose the shards of a view: of stages those that ``catalog`` has, else those in which it was prepared so far.

    ``catalog``: with the views that were prepared before this one.
    """
    view, ids = definition.view, core.assembly.ids
    keeps = present is not None and present.columns == view.columns
    if known is not None and _alike(known.view) != _alike(view):
        known = None
    own = known.shard if known is not None and known.shard else ids.fresh("s")
    before = {} if known is None else known.view.stages
    stages = stage_shards(definition.stages, catalog, ids, before, instance=view.instance)
    shard = present.shard if present is not None and keeps else own
    return Prepared(
        msgspec.structs.replace(
            view,
            shard=shard,
            stages={} if view.refresh is not None else stages,
            seed=own if keeps and not later else "",
        ),
        "" if later else own,
        {name: read.schema.names for name in view.imports if isinstance(read := catalog.collection(name), Table | Fed)},
    )


def _alike(view: View) -> View:
    return msgspec.structs.replace(view, shard="", stages={}, seed="")


def _beside(core: Core, definition: Definition, shard: str) -> RunDataflow:
    """Return the command that computes a view in ``shard``: stages that the catalog has are read."""
    view, plans = msgspec.structs.replace(definition.view, shard=shard, seed=""), Plans()
    plans.put(replace(definition, view=view))
    found = command(view, core.catalog, plans, core.config)
    assert isinstance(found, RunDataflow), "a view that is planned has a dataflow"
    kept, last = shards_of(core.catalog.items), found.stages[-1]
    read: list[Stage] = [s for s in found.stages[:-1] if found.shards[s.name] in kept]
    inputs: Mapping[str, Collection] = {
        **found.inputs,
        **{s.name: Collection(f"{view.name}/{s.name}", found.shards[s.name], s.schema) for s in read},
    }
    return replace(found, stages=(*(s for s in found.stages[:-1] if s not in read), last), inputs=inputs)


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
        for name, wanted in found.commands.items():
            async with self._problems.of(name):
                await self._instance.start(name, wanted)
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
        for name, wanted in self._overlay.commands.items():
            upper = frontiers.get(wanted.output.name.lower(), MINIMUM)
            known = meet((reach, *(self._leases[each.shard].state.upper for each in wanted.inputs.values())))
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
