"""Retention: how long the past of each collection stays readable, and the release of what is older.

An environment holds every shard of its items by one critical reader, `HISTORY`.  At ticks it moves these holds
forward, so that since follows and compaction can add up updates that no reader may separate:

- a collection stays readable at every time within its policy (``KEEP HISTORY FOR``, else the environment's
  ``keep_history``) before the last time that is complete;
- an internal stage, and a source's remap, keep what is needed to go on, and no history;
- whatever a stage reads stays readable one step below the time that it begins at (`StageRun.needed`): only there can
  it separate new updates from earlier ones.  A view that cannot be opened holds all that it reads.

Endpoints, leases and foreign critical readers have holds of their own: since is the earliest time of all holds.

A hold is moved when since gains an eighth of the policy by it, and not at every tick: in one write for all of them.
With it the holds of endpoints are released that no materialization has any longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from strandline.compute.sink.actor import reached
from strandline.controller.instances.running import Running
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.config import Config, milliseconds
from strandline.controller.location.items import (
    LOGS,
    Collected,
    Item,
    Kept,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    View,
)
from strandline.frontier import MINIMUM, Frontier, as_time, meet
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import SinceHandle

HISTORY: Final = "history"
"""The critical reader by which the environment keeps its collections' past readable."""
RELEASING: Final = "(history)"
"""The name of a problem that keeps holds from moving: no item has this name unless a user quotes it."""
TICKS_BETWEEN: Final = 16
"""Holds are moved once in so many ticks, and whenever `IDLE_MS_MAX` have passed."""
IDLE_MS_MAX: Final = 60_000
FRACTION: Final = 8
"""A hold is moved when since gains one so-manieth of the policy by it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How long a past is kept: ``ms`` milliseconds; ``text`` is what its author wrote."""

    text: str
    ms: int


NONE: Final = Policy("0", 0)

Upper: TypeAlias = Callable[[str], Frontier | None]
"""How far a shard is known, or from where on its stage goes on; None if it is not open."""
Limit: TypeAlias = tuple[str, Frontier]
"""A shard, and the time from which on it must stay readable."""


def policy_of(item: Collected, config: Config) -> Policy:
    """Return the policy of a collection: its own, else the environment's."""
    text = config.keep_history if item.keep_history is None else item.keep_history
    return Policy(text, milliseconds(text))


class Retention:
    """The holds of one environment on its items' shards."""

    def __init__(self, client: PersistClient, config: Config, epoch: int) -> None:
        self._client = client
        self._config = config
        self._epoch = epoch
        self._holds: dict[str, SinceHandle] = {}
        self._ticks = 0
        self._moved_at = 0

    async def hold(self, item: Kept) -> None:
        """Hold the shards of ``item`` where they stand; older environments' holds are taken over."""
        for shard in kept_shards(item):
            if shard not in self._holds:
                self._holds[shard] = await self._client.since(shard, HISTORY, self._epoch)

    def holds(self, item: Item) -> bool:
        """Return whether every shard of ``item`` is held; a materialization has none, and a connection."""
        return not isinstance(item, Kept) or all(shard in self._holds for shard in kept_shards(item))

    def due(self, time: int) -> bool:
        """Return whether it is time to look which holds may be moved; asked once in each tick."""
        self._ticks += 1
        return self._ticks >= TICKS_BETWEEN or not 0 <= time - self._moved_at < IDLE_MS_MAX

    async def follow(self, catalog: Catalog, running: Running, time: int) -> None:
        """Move the holds that may be moved.

        Raises `FencedError` if a newer environment holds the shards, and what the stores raise: what is not moved now
        is moved another time.
        """
        self._ticks, self._moved_at = 0, time
        kept = [item for item in catalog.items.values() if isinstance(item, Kept)]
        collections = [item for item in kept if isinstance(item, Collected)]
        policies = {item.shard: policy_of(item, self._config) for item in collections}
        there = {shard for item in kept for shard in kept_shards(item)}
        self._holds = {shard: hold for shard, hold in self._holds.items() if shard in there}  # the rest was dropped
        views = [item for item in collections if isinstance(item, View)]
        for shard in [s for item in kept if running.elsewhere(_runs_in(item)) for s in item.shards]:
            await self._client.look(shard)
        unopened = [view for view in views if not running.here.runs(view.name.lower())]
        limits = [*running.needed().items(), *view_limits(unopened, catalog, self._reached)]
        wanted = wanted_sinces(kept, policies, self._upper, limits, time)
        moves = [
            (hold, wanted[shard])
            for shard, hold in sorted(self._holds.items())
            if shard in wanted and _worth_moving(hold.since, wanted[shard], policies.get(shard, NONE))
        ]
        if moves:
            await self._client.downgrade_many(moves)
        await self._release(catalog, there)

    async def _release(self, catalog: Catalog, shards: Iterable[str]) -> None:
        """Release the holds of materializations on ``shards`` that they read no longer, or that were dropped."""
        reads = {
            (item.log, catalog.collection(bound.collection).shard)
            for item in catalog.of_kind(Materialization)
            for bound in item.bindings
        }
        for shard in sorted(shards):
            state = self._client.known(shard)
            for reader in () if state is None else sorted(state.criticals):
                if reader.startswith(LOGS) and (reader, shard) not in reads:
                    await self._client.release(shard, reader, self._epoch)

    def _upper(self, shard: str) -> Frontier | None:
        state = self._client.known(shard)
        return None if state is None else state.upper

    def _reached(self, shard: str) -> Frontier | None:
        state = self._client.known(shard)
        return None if state is None else reached(state)


def _runs_in(item: Kept) -> str:
    """Return the name of what runs for an item: of a source's table, the source."""
    return item.source if isinstance(item, SourceTable) else item.name.lower()


def kept_shards(item: Kept) -> tuple[str, ...]:
    """Return the shards of an item whose hold moves forward: a source's progress never forgets."""
    progress = item.progress if isinstance(item, Source | SharedSource) else None
    return tuple(shard for shard in item.shards if shard != progress)


def wanted_sinces(
    items: Sequence[Kept], policies: Mapping[str, Policy], upper: Upper, limits: Iterable[Limit], time: int
) -> dict[str, Frontier]:
    """Return, by shard, the time before which nothing of it is needed; nothing for a shard that is closed or not open.

    ``policies``: of the collections' own shards.  ``time``: the last one; a view that is known beyond is read at it.
    """
    wanted: dict[str, Frontier] = {}
    for item in items:
        for shard in kept_shards(item):
            of = _known(item, shard, items, upper)
            if of is not None and of.at is not None:
                wanted[shard] = Frontier(max(0, min(of.at - 1, time) - policies.get(shard, NONE).ms))
    for shard, since in limits:
        if shard in wanted:
            wanted[shard] = meet((wanted[shard], since))
    return wanted


def _known(item: Kept, shard: str, items: Sequence[Kept], upper: Upper) -> Frontier | None:
    """Return how far ``shard`` of ``item`` has come: a remap to where all data that it dates are durable."""
    match item:
        case Source():
            return upper(item.shard)
        case SharedSource():
            fed = [each for each in items if isinstance(each, SourceTable) and each.source == item.name.lower()]
            uppers = [upper(table.shard) for table in fed] or [upper(shard)]
            known = [each for each in uppers if each is not None]
            return meet(known) if known and len(known) == len(uppers) else None
        case _:
            return upper(shard)


def view_limits(views: Iterable[View], catalog: Catalog, upper: Upper) -> Iterator[Limit]:
    """Yield how far holds may move for views that could not be opened: no further than where these go on (``upper``).

    Which of its stages reads what is not known, so all that a view reads is held for all of them.
    """
    for view in views:
        own = [upper(shard) for shard in view.shards]
        stopped = MINIMUM if None in own else meet(each for each in own if each is not None)
        read = [item.shard for name in view.imports if isinstance(item := catalog.items.get(name), Collected)]
        for shard in (*view.shards, *read):
            yield shard, Frontier(max(0, as_time(stopped) - 1))


def _worth_moving(since: Frontier, wanted: Frontier, policy: Policy) -> bool:
    if since.at is None or wanted.at is None:
        return False
    return wanted.at - since.at >= max(1, policy.ms // FRACTION)
