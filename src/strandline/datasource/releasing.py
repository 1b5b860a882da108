"""Releasing the hold of a stream that was given up: its checkpoint is gone, so no query will move the hold on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Collected
from strandline.datasource.opened import EPOCH, Door, opened
from strandline.datasource.options import asked
from strandline.datasource.stream import HOLD
from strandline.errors import InvalidUsage


def streams(
    location: str, *, consensus: str | None = None, storage: Mapping[str, str] | None = None
) -> dict[str, dict[str, int]]:
    """Return what streams of Spark's hold at a location: by collection, each hold with the time it keeps readable.

    The name of a stream's hold is in the ``offsets`` of its checkpoint.  Of a dropped collection its shard is named.
    """
    with opened(asked(_texts(location, consensus, storage)).place) as door:
        return door.run(_streams(door))


def release(
    location: str, hold: str, *, consensus: str | None = None, storage: Mapping[str, str] | None = None
) -> None:
    """Release the hold of a stream that was given up.  A stream that goes on from its checkpoint then finds it gone.

    Raises `InvalidUsage` if there is no such hold.
    """
    with opened(asked(_texts(location, consensus, storage)).place) as door:
        door.run(_release(door, hold))


def _texts(location: str, consensus: str | None, storage: Mapping[str, str] | None) -> dict[str, str]:
    own = {"location": location, "listing": "true"} | ({} if consensus is None else {"consensus": consensus})
    return own | {f"storage.{name}": text for name, text in (storage or {}).items()}


def _shards(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yield every shard that may be held, with what to call it."""
    yield from ((item.shard, item.name) for item in catalog.items.values() if isinstance(item, Collected))
    yield from ((shard, shard) for shard in catalog.dropped)


async def _streams(door: Door) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for shard, name in _shards(await door.catalog()):
        await door.client.look(shard)
        state = door.client.known(shard)
        held = {} if state is None else state.criticals
        own = {reader: each.since.at or 0 for reader, each in held.items() if reader.startswith(HOLD)}
        if own:
            found[name] = own
    return found


async def _release(door: Door, hold: str) -> None:
    held = await _streams(door)
    shards = [shard for shard, name in _shards(await door.catalog()) if hold in held.get(name, {})]
    if not shards:
        known = sorted(each for own in held.values() for each in own)
        raise InvalidUsage(f"no stream has a hold {hold!r} here; there are: {', '.join(known) or 'none'}")
    for shard in shards:
        await (await door.client.since(shard, hold, EPOCH)).expire()
