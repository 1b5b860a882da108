"""Health: how an item is in one word, and why; each reason once, with what it stops and the commands that end it.

The *health* of an item is the worst that applies: `BROKEN` (a problem, or rows with errors), `STALE` and `LATE` (by how
far it is behind), `BEGINNING` (nothing can be read yet), `WAITING` (it says what for), `FRESH`.

A *way out* is a command.  A declared problem comes with its own (`problem.told`); no text is searched for commands,
since names in it come from others.  More follow from what the item is: a source can be opened anew, records that cannot
be decoded can be dismissed, a replica can be started.  What waits, begins or is behind goes on by itself, and has none.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from strandline.algebra.schema import quote

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
WAYS_MAX: Final = 4
"""So many commands stand beside a reason that several items share; each item has all of its own."""
SOURCES: Final = frozenset({"source", "source table", "shared source"})

_FOREIGN: Final = "in the upstream system: "
_BEHIND: Final = {LATE: "behind by more than 10 seconds", STALE: "behind by more than a minute"}
_FIRST: Final = {"snapshotting": "the first snapshot is taken", "hydrating": "the first result is computed"}


@dataclass(frozen=True, slots=True)
class Remedy:
    """A command that ends a problem, or helps to look at it, and what it does: as the console shows it."""

    command: str
    does: str


@dataclass(slots=True)
class Reason:
    """Why ``items`` have this health.  ``stops``: items that are behind only because these stand still."""

    health: str
    why: str
    items: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    ways: list[Remedy] = field(default_factory=list)


def health(item: Mapping[str, Any], errors: int, tick_ms: int) -> str:
    """Return the health of an item.

    >>> health({"problem": None, "waiting": None, "lag": {"ms": 11_000}, "phase": "following"}, 0, 1000)
    'late'
    >>> health({"problem": None, "waiting": None, "lag": {"ms": None}, "phase": "hydrating"}, 0, 1000)
    'beginning'
    """
    ms = (item.get("lag") or {}).get("ms")
    if item["problem"] or errors or any(_lost(item)):
        return BROKEN
    if item.get("phase") in _FIRST:
        return BEGINNING
    scheduled = item.get("refresh") is not None or (bool(item["waiting"]) and item["kind"] == "materialization")
    if ms is not None and not scheduled and ms > max(LATE_MS_MIN, LATE_TICKS * tick_ms):
        return STALE if ms > max(STALE_MS_MIN, STALE_TICKS * tick_ms) else LATE
    return WAITING if item["waiting"] else FRESH


def reasons(items: Sequence[Mapping[str, Any]], others: Mapping[str, Mapping[str, Any]]) -> list[Reason]:
    """Return why those of ``items``, as documents have them, are not fresh, the worst first.

    ``others``: the problems of what is no item.  An item that is behind only since another stands still has no reason
    of its own: it is among what that one stops.
    """
    stops = _stops(items)
    behind = {name for names in stops.values() for name in names}
    found: dict[tuple[str, str], Reason] = {}
    for name, told in others.items():
        found["", name] = Reason(BROKEN, _why(told), [name], ways=_own(told))
    for item in items:
        for own in () if item["name"] in behind else reasons_of(item):
            reason = found.setdefault((own.health, own.why), Reason(own.health, own.why))
            reason.items += own.items
            if own.health == BROKEN:
                reason.stops += [each for each in stops.get(item["name"], ()) if each not in reason.stops]
                reason.ways += [each for each in own.ways if each not in reason.ways]
    for reason in found.values():
        del reason.ways[WAYS_MAX:]
    return sorted(found.values(), key=lambda each: HEALTHS.index(each.health))


def reasons_of(item: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield each reason why an item is not fresh, with all commands that end it: first those that it says itself.

    >>> item = {"name": "q1", "kind": "materialization", "health": "broken", "errors": 0, "problem": "it is gone; ..."}
    >>> fill = {"what": "fill it", "command": "strandline backfill q1 --apply", "foreign": False}
    >>> cases = [{"name": "table-gone", "cause": "table 't' is gone", "ways": [fill]}]
    >>> [(each.why, [way.command for way in each.ways]) for each in reasons_of(item | {"cases": cases})]
    [("table 't' is gone", ['strandline backfill q1 --apply', 'strandline sync q1'])]
    """
    name, health, word = item["name"], item["health"], shlex.quote(item["name"])
    is_source = item["kind"] in SOURCES
    if health == FRESH:
        return
    if health != BROKEN:
        yield Reason(health, _BEHIND.get(health) or item["waiting"] or _FIRST.get(item.get("phase", ""), ""), [name])
        return
    if item["problem"]:
        ways = _own(item)
        again = _retry(word) if is_source else _sync(word) if item["kind"] == "materialization" else None
        if again is not None and not any(way.command.startswith(again.command) for way in ways):
            ways.append(again)
        yield Reason(health, _why(item), [name], ways=ways)
    if count := item["errors"]:
        rows = "1 row with an error" if count == 1 else f"{count:,} rows with errors"
        why = f"{rows}: {item['example']}" if item["example"] else rows
        yield Reason(health, why, [name], ways=[_skip(word) if is_source else _look(name)])
    lost = list(_lost(item))
    for replica, each in lost:
        why = f"replica {replica} at {each['address']}: {each.get('problem') or 'it compares what it runs'}"
        yield Reason(health, why, [name], ways=[_run(other["address"]) for _, other in lost])


def acknowledging(name: str) -> list[Remedy]:
    """Return what is done about the notices of an item: the command that acknowledges them."""
    return [
        Remedy(f"strandline acknowledge {shlex.quote(name)}", "leaves out what you have seen, until it happens anew")
    ]


def _retry(word: str) -> Remedy:
    does = "once the cause is mended: opens it anew, and asks its upstream at once"
    return Remedy(f"strandline source retry {word}", does)


def _sync(word: str) -> Remedy:
    return Remedy(
        f"strandline sync {word}", "once the cause is mended: brings the endpoint to where its collections are"
    )


def _skip(word: str) -> Remedy:
    return Remedy(
        f"strandline source skip {word}", "lists what cannot be decoded; with --as-of and --apply, dismisses it"
    )


def _look(name: str) -> Remedy:
    question = f"SELECT * FROM errors({quote(name)})"  # noqa: S608 - it is shown, and not run
    does = "lists the rows without a value: mend or withdraw the rows that caused them"
    return Remedy(shlex.join(["strandline", "query", question]), does)


def _run(address: str) -> Remedy:
    return Remedy(f"strandline replica --listen {address}", "runs the replica, on its machine")


def _why(told: Mapping[str, Any]) -> str:
    """Return what has happened, and what is to be done that no command does."""
    return "; ".join(filter(None, map(_without_commands, told.get("cases", ())))) or told["problem"]


def _without_commands(case: Mapping[str, Any]) -> str:
    by_hand = "; or ".join(way["what"] for way in case["ways"] if not way["command"])
    return "; ".join(filter(None, (case["cause"], by_hand)))


def _own(told: Mapping[str, Any]) -> list[Remedy]:
    """Return the commands that end a problem, as its declaration has them."""
    ways = [way for case in told.get("cases", ()) for way in case["ways"] if way["command"]]
    return [Remedy(way["command"], f"{_FOREIGN if way['foreign'] else ''}{way['what']}") for way in ways]


def _lost(item: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((name, each) for name, each in (item.get("replicas") or {}).items() if not each["obeys"])


def _stops(items: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return, by each item that stands still, those that are behind only because of it."""
    known = {item["name"]: item for item in items}
    after: dict[str, list[str]] = {}
    for name, item in known.items():
        for each in dict.fromkeys([*item["reads"], item["instance"]]):
            after.setdefault(each, []).append(name)
    found = {}
    for name, item in known.items():
        if item["problem"] or _is_alone(item):
            reached = [name]
            for each in reached:  # it grows meanwhile
                reached += [other for other in after.get(each, ()) if other not in reached]
            found[name] = [each for each in reached[1:] if _is_behind(known[each], reached)]
    return found


def _is_alone(item: Mapping[str, Any]) -> bool:
    """Return whether an instance has replicas, and none of them is connected."""
    replicas = (item.get("replicas") or {}).values()
    return bool(replicas) and not any(each["obeys"] for each in replicas)


def _is_behind(item: Mapping[str, Any], those: Iterable[str]) -> bool:
    """Return whether an item with no problem of its own is behind, or says that it waits for one of ``those``."""
    if item["health"] in {LATE, STALE}:
        return True
    waits = (item["waiting"] or "").lower()
    names = any(f"'{each}'".lower() in waits for each in those)
    return item["health"] in {WAITING, BEGINNING} and (names or "its collection" in waits)
