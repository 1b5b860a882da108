"""Documents: what the page asks for, as JSON; it draws what is here and computes nothing of its own.

The *health* of an item is one word, the worst that applies: `BROKEN` (a problem, or rows with errors), `STALE` and
`LATE` (by how far it is behind), `BEGINNING` (nothing can be read yet), `WAITING` (it says what for), `FRESH`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from strandline.console.watch import Look, Watch
from strandline.store.clock import utc_text

BROKEN: Final = "broken"
STALE: Final = "stale"
LATE: Final = "late"
BEGINNING: Final = "beginning"
WAITING: Final = "waiting"
FRESH: Final = "fresh"
HEALTHS: Final = (BROKEN, STALE, LATE, BEGINNING, WAITING, FRESH)
"""The worst first."""

LATE_TICKS: Final = 10
"""An item is late once it is so many ticks behind: where nothing is new, four of five are left out."""
LATE_MS_MIN: Final = 10_000
STALE_MS_MIN: Final = 60_000
STALE_TICKS: Final = 60
assert LATE_TICKS < STALE_TICKS
assert LATE_MS_MIN < STALE_MS_MIN
TIME_MS_MAX: Final = 253_402_300_799_999
"""The last time that a calendar has: the end of the year 9999."""


def health(item: Mapping[str, Any], errors: int, tick_ms: int) -> str:
    """Return the health of an item.

    >>> health({"problem": None, "waiting": None, "lag": {"ms": 11_000}, "phase": "following"}, 0, 1000)
    'late'
    >>> health({"problem": None, "waiting": None, "lag": {"ms": None}, "phase": "hydrating"}, 0, 1000)
    'beginning'
    """
    ms = (item.get("lag") or {}).get("ms")
    if item["problem"] or errors or any(not each["obeys"] for each in (item.get("replicas") or {}).values()):
        return BROKEN
    if item.get("phase") in {"snapshotting", "hydrating"}:
        return BEGINNING
    scheduled = item.get("refresh") is not None or (bool(item["waiting"]) and item["kind"] == "materialization")
    if ms is not None and not scheduled and ms > max(LATE_MS_MIN, LATE_TICKS * tick_ms):
        return STALE if ms > max(STALE_MS_MIN, STALE_TICKS * tick_ms) else LATE
    return WAITING if item["waiting"] else FRESH


def moment(ms: int | None) -> str | None:
    """Return a time as an ISO date; None where there is none that a calendar has.

    >>> moment(1_700_000_000_000), moment(None), moment(2**62)
    ('2023-11-14T22:13:20+00:00', None, None)
    """
    return None if ms is None or not 0 <= ms <= TIME_MS_MAX else utc_text(ms)


def environment(watch: Watch) -> dict[str, Any]:
    """Return how the environment and each of its items is now; `ready` is false before the first look."""
    look = watch.latest
    if look is None:
        return {"ready": False, "items": []}
    found = look.figures
    ticks, counted = watch.ticks, watch.traffic.counted
    return {
        "ready": True,
        "now_ms": watch.now_ms,
        "seen_ms": found["now_ms"],
        "seen_at": moment(found["now_ms"]),
        "generation": found["generation"],
        "tick_ms": found["tick_ms"],
        "complete": found["complete"],
        "complete_at": moment(found["complete"]),
        "ticks": ticks.count,
        "tick_s": ticks.last,
        "statements": sum(each.answered + each.failed for each in counted.values()),
        "subscriptions": watch.traffic.followed,
        "others": found["others"],
        "items": [_item(name, item, look) for name, item in found["items"].items()],
    }


def item(watch: Watch, name: str) -> dict[str, Any] | None:
    """Return all there is to say about an item, None if there is none; the empty name: the environment itself."""
    look = watch.latest
    times, series = watch.history(name)
    if look is None or (name and name not in look.figures["items"]):
        return None
    known = watch.described(name) if name else None
    errors = look.errors_of(name)
    holders = [] if known is None else known["holders"]
    return {
        "item": _item(name, look.figures["items"][name], look) if name else None,
        "described": None if known is None else {**known, "holders": [_holder(each) for each in holders]},
        "errors": {**errors, "since_at": moment(errors["since"])},
        "times": times,
        "series": series,
    }


def _holder(found: Mapping[str, Any]) -> dict[str, Any]:
    return {**found, "since_at": moment(found["since"]), "beat_at": moment(found["beat_ms"])}


def _item(name: str, found: Mapping[str, Any], look: Look) -> dict[str, Any]:
    errors = look.errors_of(name)["rows"]
    shown = {key: value for key, value in found.items() if key != "seen"}
    if "rows" in shown:
        shown["rows"] -= errors
    return {
        **shown,
        "name": name,
        "health": health(found, errors, look.figures["tick_ms"]),
        "errors": errors,
        "since_at": moment(found.get("since")),
        "upper_at": moment(found.get("upper")),
    }
