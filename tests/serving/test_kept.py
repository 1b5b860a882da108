"""What a server keeps for a client that went away does not stay."""

from __future__ import annotations

import pytest

from strandline.errors import InvalidUsage, Unavailable
from strandline.serving.kept import Kept
from strandline.testing.doubles import CountingIds, HandClock


def test_what_no_client_asks_for_is_dropped() -> None:
    """Damage: each client that dies leaves a result in memory for ever."""
    clock = HandClock()
    kept = Kept[str](clock, CountingIds(), "result", idle_s=10, count_max=2)
    old, used = kept.put("old"), kept.put("used")
    clock.now += 8_000
    assert kept.get(used) == "used"
    clock.now += 8_000
    fresh = kept.put("fresh")
    assert (kept.get(used), kept.take(fresh)) == ("used", "fresh")
    for gone in (old, fresh, b"never"):
        with pytest.raises(InvalidUsage, match="there is no such result: it was ended, or not asked for during 10 s"):
            kept.get(gone)


def test_more_than_its_room_is_refused() -> None:
    """Damage: one client that prepares and never closes takes the memory of the process that writes."""
    kept = Kept[int](HandClock(), CountingIds(), "prepared statement", count_max=2)
    first = kept.put(1)
    kept.put(2)
    with pytest.raises(Unavailable, match="keeps 2 prepared statements for its clients: try again later"):
        kept.put(3)
    kept.drop(first)
    kept.drop(first)
    kept.change(kept.put(3), lambda value: value + 1)
