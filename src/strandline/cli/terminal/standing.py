"""How an environment stands, for people: what `strandline status` shows of the document that it prints as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from strandline.cli.terminal.output import printable, table
from strandline.controller.asking.freshness import told
from strandline.frontier.moments import shown
from strandline.instance.error_half import described, remedy

_COLLECTION: Final = (
    "kind",
    "phase",
    "lag",
    "rate",
    "since",
    "upper",
    "updates",
    "parts",
    "last_step",
    "errors",
    "problem",
)
_TIMES: Final = ("since", "upper")
Rates = Mapping[str, float]
"""Rows a second since the look before, by what they came into."""


def stands_still(found: Mapping[str, Any]) -> bool:
    """Return whether anything has a problem, which stands in its way until someone acts or something answers."""
    return bool(found["problems"])


def left_out(found: Mapping[str, Any], sql: str) -> list[str]:
    """Return a sentence for each source with undecodable records that what ``sql`` names is made from."""
    known = {name.lower(): each for name, each in found["collections"].items()}
    reached, following = set[str](), [word.lower() for word in re.findall(r"\w+", sql)]
    while following:
        name = following.pop()
        if name in known and name not in reached:
            reached.add(name)
            following += [each.lower() for each in known[name].get("imports", ())]
    return [
        f"{name} has {count} undecodable record{'' if count == 1 else 's'}, which the answer leaves out; "
        f"`strandline source skip {name}` lists {'it' if count == 1 else 'them'}"
        for name in sorted(reached)
        if "errors_max" in known[name] and (count := known[name]["errors"]["rows"])
    ]


def parts(found: Mapping[str, Any], rates: Rates | None = None) -> Iterator[RenderableType]:
    """Yield what there is to show below the line of who writes."""
    collections = found["collections"]
    rows = [(name, *_cells(each, (rates or {}).get(name))) for name, each in collections.items()]
    used = [n for n in range(len(_COLLECTION) + 1) if any(row[n] != "" for row in rows) or n in (0, 1, 2, 3)]
    names = ("collection", *(name.replace("_", " ") for name in _COLLECTION))
    yield table([names[n] for n in used], [[row[n] for n in used] for row in rows])
    for line in _lines(found, rates or {}):
        yield Text(printable(line))


def counters(found: Mapping[str, Any]) -> dict[str, int]:
    """Return the rows that have come so far, by what they came into, where the writer can be asked."""
    fed = {name: each.get("durable_records") for name, each in found["collections"].items()}
    sent = {name: each.get("rows_stored") for name, each in found["materializations"].items()}
    return {name: count for name, count in (fed | sent).items() if count is not None}


def _cells(each: Mapping[str, Any], rate: float | None) -> Iterator[object]:
    for column in _COLLECTION:
        if column == "rate":
            yield "" if rate is None else f"{rate:,.0f} rows/s"
        elif column in _TIMES and each[column] is not None:
            yield shown(each[column])
        elif column == "last_step" and each.get(column):
            yield f"{each[column]['ms']} ms, {each[column]['rows']:,} rows"
        else:
            yield _cell(each.get(column))


def _lines(found: Mapping[str, Any], rates: Rates) -> Iterator[str]:
    for name, each in found["sources"].items():
        if name not in found["collections"]:
            yield _source(name, each)
    for name, each in found["collections"].items():
        if each["first"] is not None:
            yield f"{name}: {each['phase']}, {_begun(each['first'])}"
        errors = each.get("errors") or {}
        first = errors.get("first", ())
        yield from (f"{name}: {described(error)}" for error in first)
        if first:
            yield f"{name}: errors since {shown(errors['since'])}"
            yield f"{name}: {remedy(first[0])}"
        yield from (f"{name}: {notice}" for notice in each["notices"])
    for name, counts in (("this process", found["persist"]), ("the writer", found["writer_persist"] or {})):
        if said := ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in counts.items() if value):
            yield f"store counters of {name}: {said}"
    for name, each in found["materializations"].items():
        yield _materialization(name, each, rates.get(name))
    for name, each in found["instances"].items():
        yield from _instance(name, each)
    if found["next"] is not None:
        yield from _next(found["next"])
    known = {name.lower() for kind in ("collections", "sources", "materializations") for name in found[kind]}
    yield from (f"{name}: {found['problems'][name]}" for name in sorted(found["problems"].keys() - known))


def _materialization(name: str, each: Mapping[str, Any], rate: float | None) -> str:
    moving = each["moving"] or {}
    told_of = {
        **each,
        "lag": told({**each["lag"], "rows": None}),
        "position": each["position"] and shown(each["position"]),
    }
    said = ", ".join(
        f"{key} {value}" for key, value in told_of.items() if key != "moving" and value not in (None, [], "")
    )
    if any(moving.values()):
        said += f", under way: {moving['read']} of about {moving['about']} rows read, {moving['sent']} sent"
    return f"materialization {name}: {said}" + ("" if rate is None else f", {rate:,.0f} rows/s")


def _instance(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what an instance runs and how each of its replicas is, for people."""
    yield f"instance {name}: {', '.join(found['items']) or 'nothing runs in it'}"
    for replica, each in found["replicas"].items():
        went, reused, created = sum(each.get("replaced", {}).values()), each.get("reused", 0), each.get("created", 0)
        kept = f"connected; at the last connection {reused} items were kept, {created} begun, {went} replaced"
        here = f"instance {name}, replica {replica} at {each['address']}"
        yield f"{here}: {kept if each.get('obeys') else each.get('problem', 'it compares what it runs')}"
        if each.get("obeys") and each.get("problem"):
            yield f"{here}: {each['problem']}"
        for item, why in each.get("problems", {}).items():
            yield f"{here}, {item}: {why}"


def _next(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield how far the next version is, for people."""
    asked = ", and its promotion is asked for" if found["asked"] else ""
    yield f"next version: {'it has caught up' if found['ready'] else 'it has not caught up yet'}{asked}"
    for name, each in found["views"].items():
        why = each["behind"] or each["later"] or told({"ms": each["lag_ms"], "rows": None})
        yield f"next version, {name}: {why}"


def _source(name: str, each: Mapping[str, Any]) -> str:
    """Return a source in a line: what it reads, by which connections, what it feeds, and what keeps it."""
    by = f" by {', '.join(each['connections'])}" if each["connections"] else ""
    feeds = f", feeds {', '.join(each['tables']) or 'no table yet'}"
    said = "".join(f"; {text}" for text in (each["problem"], *each["notices"]) if text)
    return f"source {name}: {each['connector']}{by}{feeds}{said}"


def _begun(first: Mapping[str, Any]) -> str:
    """Return how far the first load or result of a collection is.

    >>> _begun({"rows": 1200, "about": 5000, "ms": 65_000}), _begun({"rows": 3, "about": None, "ms": None})
    ('1,200 of about 5,000 rows, for 1 min 5 s', '3 rows')
    """
    about = "" if first["about"] is None else f" of about {first['about']:,}"
    since = "" if first["ms"] is None else f", for {told({'ms': first['ms'], 'rows': None})}"
    return f"{first['rows']:,}{about} rows{since}"


def written_by(found: Mapping[str, Any]) -> str:
    """Return the line of who writes."""
    return f"generation {found['epoch']}, written by {found['holder'] or 'no process now'}"


def _cell(value: object) -> object:
    """Return a table cell: empty for a value that does not apply, a number for errors, a duration for a lag."""
    if isinstance(value, Mapping):
        return told(value) if "ms" in value else value["rows"]
    return "" if value is None else value
