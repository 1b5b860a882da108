"""Documents: what the page asks for, as JSON; it draws what is here and decides nothing of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from strandline.console.health import Reason, acknowledging, health, reasons, reasons_of
from strandline.console.watch import Look, Watch
from strandline.store.clock import utc_text

TIME_MS_MAX: Final = 253_402_300_799_999
"""The last time that a calendar has: the end of the year 9999."""
TEXT_CHARS_MAX: Final = 2_000
"""So much of the text of a query is shown."""


def moment(ms: int | None) -> str | None:
    """Return a time as an ISO date in UTC; None where there is none that a calendar has.

    >>> moment(1_700_000_000_000), moment(None), moment(2**62)
    ('2023-11-14T22:13:20Z', None, None)
    """
    return None if ms is None or not 0 <= ms <= TIME_MS_MAX else utc_text(ms).replace("+00:00", "Z")


def environment(watch: Watch) -> dict[str, Any]:
    """Return how the environment and each of its items is now; `ready` is false before the first look."""
    look = watch.latest
    if look is None:
        return {"ready": False, "items": []}
    found = look.figures
    ticks, counted = watch.ticks, watch.traffic.counted
    items = _items(look)
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
        "queries": [_query(each) for each in look.queries],
        "reasons": reasons(items, found["others"]),
        "items": items,
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
    items = _items(look)
    shown = next((each for each in items if name and each["name"] == name), None)
    return {
        "item": shown,
        "reasons": [] if shown is None else _reasons_of(shown, items),
        "described": None if known is None else {**known, "holders": [_holder(each) for each in holders]},
        "errors": {**errors, "since_at": moment(errors["since"])},
        "times": times,
        "series": series,
    }


def _items(look: Look) -> list[dict[str, Any]]:
    return [_item(name, item, look) for name, item in look.figures["items"].items()]


def _reasons_of(item: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> list[Reason]:
    """Return why an item is as it is; of a reason that others share, with the ways out of this one alone."""
    name, own = item["name"], {each.why: each.ways for each in reasons_of(item)}
    return [
        replace(each, ways=own[each.why]) if name in each.items else each
        for each in reasons(items, {})
        if name in each.items or name in each.stops
    ]


def _query(found: Mapping[str, Any]) -> dict[str, Any]:
    text = found["text"]
    shown = text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]} …"
    return {
        **found,
        "text": shown,
        "since_at": moment(found["since"]),
        "cancel": f"strandline cancel {found['number']}",
    }


def _holder(found: Mapping[str, Any]) -> dict[str, Any]:
    return {**found, "since_at": moment(found["since"]), "beat_at": moment(found["beat_ms"])}


def _item(name: str, found: Mapping[str, Any], look: Look) -> dict[str, Any]:
    tally = look.errors_of(name)
    errors = tally["rows"]
    shown = {key: value for key, value in found.items() if key != "seen"}
    if "rows" in shown:
        shown["rows"] -= errors
    return {
        **shown,
        "name": name,
        "health": health(found, errors, look.figures["tick_ms"]),
        "errors": errors,
        "example": next(iter(tally.get("told", ())), None),
        "acknowledge": acknowledging(name) if found["notices"] else [],
        "since_at": moment(found.get("since")),
        "upper_at": moment(found.get("upper")),
    }
