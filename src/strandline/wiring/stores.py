"""The two stores of a location: opened for a reader that needs no Spark, and known to belong together."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.controller.location.config import Mode
from strandline.errors import ConfigError, NothingStored
from strandline.persist.handles.location import Pair, agree, another_consensus, read_mark
from strandline.store.clock import Clock, Ids, SystemClock, SystemIds
from strandline.store.protocols import Blob, Consensus
from strandline.wiring.locations import ConsensusPlace, InMemory, Location, consensus_of, location_of
from strandline.wiring.loop import at_once

if TYPE_CHECKING:
    from strandline.engine.parts.part_store import Parts


@dataclass(frozen=True, slots=True)
class Stores:
    """What a reader of a location needs.  ``location``: its text, which means the same in every directory."""

    location: str
    clock: Clock
    ids: Ids
    blob: Blob
    consensus: Consensus
    parts: Parts


def stores(location: str, consensus: str | None, storage: Mapping[str, str], opened: ExitStack) -> Stores:
    """Return the stores of a location that another process writes; ``opened`` closes them.

    Raises `ConfigError`, one sentence, or `Unavailable`.
    """
    where = _elsewhere(location, storage)
    place = consensus_of(consensus, where)
    blob, parts = where.open(Mode.READ, opened)
    return Stores(where.shown, SystemClock(), SystemIds(), blob, agreed(place, where, blob, Mode.READ, opened), parts)


def parts_of(location: str, storage: Mapping[str, str], opened: ExitStack) -> Parts:
    """Return the parts of a location alone: no process that reads them needs its consensus.  Raises as `stores`."""
    return _elsewhere(location, storage).open(Mode.READ, opened)[1]


def _elsewhere(location: str, storage: Mapping[str, str]) -> Location:
    where = location_of(location, storage)
    if isinstance(where, InMemory):
        raise ConfigError("location memory:// is known to its own process alone; another one cannot read it")
    return where


def agreed(place: ConsensusPlace, where: Location, blob: Blob, mode: Mode, opened: ExitStack) -> Consensus:
    """Return the location's consensus, once it is known to be the one that ``blob`` belongs to."""
    clock, names = SystemClock(), (where.shown, place.shown(where))
    mark = at_once(read_mark(blob, clock))
    try:
        if mode is Mode.INDEPENDENT:
            store = place.open_for_reading(opened)
        else:
            store = place.open(opened, existing=mode is not Mode.FULL or mark is not None)
    except NothingStored:
        if mark is None:
            raise
        raise another_consensus(*names, mark) from None
    at_once(agree(Pair(blob, store, *names), clock, SystemIds(), writes=mode is Mode.FULL))
    return store
