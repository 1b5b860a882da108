"""Sync now: bring an endpoint to where its collections are, whatever the schedule of its materialization says.

Any process may ask for it: it writes up to which time, in a register of the location.  The process that writes reads
the register at each tick, if something has a schedule, and repeats the wish in its commands until the endpoint is
there.  Then it takes the wish out of the register, which shows other processes that the endpoint is there: the recovery
log need not show it, as long as nothing has changed.  To ask twice is to ask once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Materialization
from strandline.errors import StoreError, Unavailable
from strandline.frontier import MINIMUM, Frontier
from strandline.persist.handles.register import Register, decode_json
from strandline.store.clock import Clock, Ids
from strandline.store.protocols import Consensus

KEY: Final = "syncs"
FORMAT: Final = 1


class _Asked(msgspec.Struct, frozen=True):
    """Up to which times endpoints are asked to come, by the ids of their materializations."""

    format: int = FORMAT
    times: dict[str, int] = {}


class Syncs:
    """What was asked for, as it is durable."""

    def __init__(self, clock: Clock, ids: Ids, consensus: Consensus) -> None:
        self._register = Register(KEY, clock, ids, consensus)

    async def ask(self, item: Materialization, upto: int, catalog: Catalog) -> None:
        """Ask for all before ``upto``.  Forgets those that are not in ``catalog``.  Raises what a store raises."""
        there = {each.id for each in catalog.items.values() if isinstance(each, Materialization)}

        def step(body: bytes | None) -> bytes | None:
            known = _decode(body).times
            if known.get(item.id, 0) >= upto:
                return None
            kept = {each: time for each, time in known.items() if each in there}
            return msgspec.json.encode(_Asked(times={**kept, item.id: upto}))

        await self._register.update(step)

    async def hurried(self, catalog: Catalog, frontiers: Mapping[str, Frontier]) -> dict[str, int]:
        """Return what was asked for and is not at the endpoint yet, by the item's name; ``frontiers``: how far each is.

        What is there is taken out.  No store is asked if nothing has a schedule.  If it does not answer, the next tick
        asks again.
        """
        items = catalog.items.items()
        scheduled = {name: item for name, item in items if isinstance(item, Materialization) and item.scheduled}
        if not scheduled:
            return {}
        found: dict[str, int] = {}
        with suppress(StoreError, Unavailable):
            asked = _decode(await self._register.read()).times
            found = {name: asked[item.id] for name, item in scheduled.items() if item.id in asked}
            there = {name: upto for name, upto in found.items() if Frontier(upto) <= frontiers.get(name, MINIMUM)}
            if there:
                await self._take_out({scheduled[name].id: upto for name, upto in there.items()})
            found = {name: upto for name, upto in found.items() if name not in there}
        return found

    async def waits(self, item: Materialization) -> bool:
        """Return whether something is asked for that is not known to be there."""
        return item.id in _decode(await self._register.read()).times

    async def _take_out(self, there: Mapping[str, int]) -> None:
        def step(body: bytes | None) -> bytes | None:
            known = _decode(body).times
            kept = {each: time for each, time in known.items() if time > there.get(each, -1)}
            return None if kept == known else msgspec.json.encode(_Asked(times=kept))

        await self._register.update(step)


def _decode(body: bytes | None) -> _Asked:
    return _Asked() if body is None else decode_json("what is to be synced", body, _decoder, FORMAT)


_decoder: Final = msgspec.json.Decoder(_Asked)
