"""Freshness: whether a collection snapshots, hydrates or follows, and how far it is behind, in rows and in time.

People ask three different things: is the first load done, is the first result computed, how stale is it.  So they are
shown apart.  A source or a table of one *snapshots* and a view *hydrates* until something of it is durable: it can be
read at no time yet.  From then on it *follows*, and its *lag* says how far behind it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from strandline.controller.core import Core
from strandline.controller.location.items import Collected, Fed, SharedSource, Source, SourceTable, View
from strandline.instance import live
from strandline.instance.beginnings import HYDRATING, SNAPSHOTTING
from strandline.persist.shard.state import ShardState

FOLLOWING: Final = "following"
ROWS: Final = "rows"


def freshness(
    item: Collected, states: Mapping[str, ShardState | None], counted: Mapping[str, int], now_ms: int, unit: str = ROWS
) -> dict[str, Any]:
    """Return the ``phase`` of an item, what there is of its ``first`` load or result, and its ``lag``.

    ``states``: of all collections, by name.  ``counted``: the live counters of the process that writes, if it can be
    asked.  ``first`` is None where it is over, or not known here; its ``about`` is None where upstream does not say.
    ``unit``: what the offsets of a source's upstream count.
    """
    name = item.name.lower()
    state = states.get(name)
    begun = state is not None and state.upper.at != 0
    beginning = SNAPSHOTTING if isinstance(item, Fed) else HYDRATING if isinstance(item, View) else FOLLOWING
    known = live.of(counted, live.FIRST, name)
    since = known.get("since_ms")
    first = {
        "rows": known.get("rows"),
        "about": known.get("about"),
        "ms": None if since is None else max(0, now_ms - since),
    }
    return {
        "phase": FOLLOWING if begun else beginning,
        "first": first if known and not begun else None,
        "lag": {"ms": lag_ms(state, now_ms), ROWS: None, unit: _lag_rows(item, state, states, counted)},
    }


def counted_in(core: Core, item: Collected) -> str:
    """Return what an item's lag is counted in."""
    source = core.catalog.find(item.source) if isinstance(item, SourceTable) else item
    return core.assembly.connectors.counts(source.connector) if isinstance(source, Source | SharedSource) else ROWS


def lag_ms(state: ShardState | None, now_ms: int) -> int | None:
    """Return how old the newest time is that is complete; 0 if it never changes again, None if none is complete."""
    if state is None or state.upper.at == 0:
        return None
    return 0 if state.upper.at is None else max(0, now_ms - (state.upper.at - 1))


def _lag_rows(
    item: Collected, state: ShardState | None, states: Mapping[str, ShardState | None], counted: Mapping[str, int]
) -> int | None:
    """Return how much is known to be there and is not in the collection: upstream's offsets, or updates of its inputs.

    None: it cannot be known here.
    """
    match item:
        case View():
            inputs = [read for name in item.imports if (read := states.get(name)) is not None]
            return sum(_beyond(read, state) for read in inputs)
        case _ if isinstance(item, Fed):
            return live.of(counted, live.SOURCE, item.name.lower()).get("behind")
        case _:
            return 0


def _beyond(read: ShardState, state: ShardState | None) -> int:
    """Return about how many updates of ``read`` a view at ``state`` has not seen."""
    return sum(batch.rows for batch in read.batches if state is None or not batch.upper <= state.upper)
