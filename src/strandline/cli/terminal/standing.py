"""The state of an environment, for people: what `strandline status` shows of the document that it prints as JSON.

With ``--watch`` the status is shown again and again, in place on a terminal, block after block elsewhere.
"""

from __future__ import annotations

import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from strandline.cli.terminal.exits import sentence
from strandline.cli.terminal.output import Output, printable, table
from strandline.errors import ConfigError, StoreError, Unavailable
from strandline.frontier import shown, told

_COLUMNS: Final = ("kind", "phase", "lag", "rate", "since", "upper", "updates", "parts", "last step", "errors")
_ROOM: Final = ("phase", "lag", "rate", "errors", "last step", "kind", "updates", "parts", "upper", "since")
"""The columns of a collection in the order in which they get room, where not all have it."""
_TASK_COLUMNS: Final = ("phase", "lag", "rate", "stored", "deleted", "transactions", "position")
_TASK_ROOM: Final = ("phase", "lag", "rate", "stored", "transactions", "deleted", "position")
_NUMBERS: Final = frozenset({"updates", "parts", "errors", "stored", "deleted", "transactions"})
_GAP: Final = 2
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
        f"`strandline source skip {shlex.quote(name)}` lists {'it' if count == 1 else 'them'}"
        for name in sorted(reached)
        if "errors_max" in known[name] and (count := known[name]["errors"]["rows"])
    ]


def parts(found: Mapping[str, Any], width: int, rates: Rates | None = None) -> Iterator[RenderableType]:
    """Yield what there is to show beside who writes and what waits, in ``width`` columns."""
    known = rates or {}
    collections = {name: _collection(each, known.get(name)) for name, each in found["collections"].items()}
    yield from _fitted("collection", _COLUMNS, _ROOM, collections, width)
    tasks = {name: _task(each, known.get(name)) for name, each in found["materializations"].items()}
    if tasks:
        yield Text("")
        yield from _fitted("materialization", _TASK_COLUMNS, _TASK_ROOM, tasks, width)
    for line in _lines(found):
        yield Text(printable(line))


def left(found: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield what views have left at the endpoint that were dropped from the materialization ``name``, in any case."""
    for each, status in found["materializations"].items():
        if each.lower() == name.lower():
            yield from status.get("left", ())


def waiting(found: Mapping[str, Any]) -> Iterator[Text]:
    """Yield a line for each problem, for what each item waits for, and for each notice."""
    for name, problem in found["problems"].items():
        yield Text(printable(f"problem: {name}: {problem}"), "red")
    firsts = {name.lower(): each.get("first") for name, each in found["collections"].items()}
    for name, what in found["waiting"].items():
        first = firsts.get(name)
        yield Text(printable(f"waiting: {name}: {what}{f': {_begun(first)}' if first else ''}"))
    for kind in ("collections", "sources", "materializations"):
        for name, each in found[kind].items():
            if kind != "sources" or name not in found["collections"]:
                yield from (Text(printable(f"notice: {name}: {notice}")) for notice in each["notices"])


def counters(found: Mapping[str, Any]) -> dict[str, int]:
    """Return the rows that have come so far, by what they came into, where the writer can be asked."""
    came = {
        name: each.get("durable_records", (each.get("sink") or {}).get("rows"))
        for name, each in found["collections"].items()
    }
    sent = {name: each.get("rows_stored") for name, each in found["materializations"].items()}
    return {name: count for name, count in (came | sent).items() if count is not None}


def _fitted(
    what: str, columns: Sequence[str], room: Sequence[str], rows: Mapping[str, Mapping[str, str]], width: int
) -> Iterator[RenderableType]:
    """Yield a table of the columns that have a value and find room, and say which others have one."""
    used = [column for column in room if any(row[column] for row in rows.values())]
    wide = {column: max(len(column), *(len(row[column]) for row in rows.values())) for column in used}
    left, shown_ones = width - max(len(what), *(len(name) for name in rows), 0), set[str]()
    for column in used:
        left -= wide[column] + _GAP
        if left < 0:
            break
        shown_ones.add(column)
    names = [column for column in columns if column in shown_ones]
    right = [column in _NUMBERS for column in ("", *names)]
    yield table([what, *names], ([name, *(row[each] for each in names)] for name, row in rows.items()), right)
    if without := [column for column in columns if column in used and column not in shown_ones]:
        yield Text(f"(a wider terminal has room for {', '.join(without)})", "dim")


def _collection(each: Mapping[str, Any], rate: float | None) -> dict[str, str]:
    step, errors = each.get("last_step"), each["errors"]["rows"]
    return {
        "kind": each["kind"],
        "phase": each["phase"],
        "lag": told(each["lag"]),
        "rate": _rate(rate),
        "since": "" if each["since"] is None else shown(each["since"]),
        "upper": "" if each["upper"] is None else shown(each["upper"]),
        "updates": f"{each['updates']:,}",
        "parts": f"{each['parts']:,}",
        "last step": f"{step['ms']:,} ms, {step['rows']:,} rows" if step else "",
        "errors": f"{errors:,}" if errors else "",
    }


def _task(each: Mapping[str, Any], rate: float | None) -> dict[str, str]:
    counts = {"stored": "rows_stored", "deleted": "rows_deleted", "transactions": "transactions"}
    return {
        "phase": each.get("phase", "").lower(),
        "lag": told({**each["lag"], "rows": None}),
        "rate": _rate(rate),
        **{column: f"{each[key]:,}" if key in each else "" for column, key in counts.items()},
        "position": shown(each["position"]) if each["position"] else "",
    }


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f} rows/s"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    for name, each in found["sources"].items():
        if name not in found["collections"]:
            yield _source(name, each)
    for name, each in found["collections"].items():
        if each["first"] is not None:
            yield f"{name}: {each['phase']}, {_begun(each['first'])}"
        errors = each.get("errors") or {}
        if first := errors.get("first", ()):
            from strandline.instance.error_half import described, remedy  # it brings what reads collections

            yield from (f"{name}: {described(error)}" for error in first)
            yield f"{name}: errors since {shown(errors['since'])}"
            yield f"{name}: {remedy(first[0])}"
    for name, each in found["materializations"].items():
        yield from _under_way(name, each)
        yield from (f"{name}: {text}" for text in left(found, name))
    for name, each in found["instances"].items():
        yield from _instance(name, each)
    if found["next"] is not None:
        yield from _next(found["next"])
    asked = "the writer" if found.get("serving") else "this process"
    for name, counts in ((asked, found["persist"]), ("the writer", found["writer_persist"] or {})):
        if said := ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in counts.items() if value):
            yield f"store counters of {name}: {said}"


def _under_way(name: str, each: Mapping[str, Any]) -> Iterator[str]:
    """Yield how far a transaction is that is under way, and each split, and what was done to the endpoint's tables."""
    moving = each["moving"] or {}
    if any(moving.values()):
        yield f"{name}: {moving['read']} of about {moving['about']} rows read, {moving['sent']} sent"
    for split, position in each.get("splits", {}).items():
        yield f"{name}, split {split}: up to date before {shown(position)}"
    yield from (f"{name}: {done}" for done in each.get("applied", ()))


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
    behind = any(each["behind"] for each in found["views"].values())
    yield f"next version: {'it has not caught up yet' if behind else 'it has caught up'}{asked}"
    if found["refused"]:
        yield f"next version: it cannot be promoted: {found['refused']}"
    for name, each in found["views"].items():
        why = each["behind"] or each["later"] or told({"ms": each["lag_ms"], "rows": None})
        yield f"next version, {name}: {why}"


def _source(name: str, each: Mapping[str, Any]) -> str:
    """Return a source in a line: what it reads, by which connections, and what it feeds."""
    by = f" by {', '.join(each['connections'])}" if each["connections"] else ""
    return f"source {name}: {each['connector']}{by}, feeds {', '.join(each['tables']) or 'no table yet'}"


def _begun(first: Mapping[str, Any]) -> str:
    """Return how far the first load or result of a collection is.

    >>> _begun({"rows": 1200, "about": 5000, "ms": 65_000}), _begun({"rows": 3, "about": None, "ms": None})
    ('1,200 of about 5,000 rows, for 1 min 5 s', '3 rows')
    """
    about = "" if first["about"] is None else f" of about {first['about']:,}"
    since = "" if first["ms"] is None else f", for {told({'ms': first['ms'], 'rows': None})}"
    return f"{first['rows']:,}{about} rows{since}"


def written_by(found: Mapping[str, Any]) -> str:
    """Return the line of who writes, or wrote until it ended without a word, and who is about to."""
    ended = ", which has ended" if found["holder_lives"] is False else ""
    starts = f"; {opening} starts" if (opening := found.get("opening")) is not None else ""
    return f"generation {found['epoch']}, written by {found['holder'] or 'no process now'}{ended}{starts}"


def watch(look: Callable[[], Mapping[str, Any]], output: Output, seconds: float) -> None:
    """Show what ``look`` returns, every ``seconds``, until SIGINT (Ctrl-C) or SIGTERM; with ``--json``, as documents.

    Raises what the first look raises; later ones may fail while the process that writes starts again.
    """
    live = None if output.json or not output.console.is_terminal else Live(console=output.console, auto_refresh=False)
    stop = _Stop()
    with suppress(KeyboardInterrupt), stop.heeded(), nullcontext() if live is None else live:
        found, at, before, passed = look(), time.monotonic(), dict[str, int](), 0.0
        while True:
            now = counters(found)
            rates = {name: (now[name] - before[name]) / passed for name in sorted(now.keys() & before.keys()) if passed}
            before = now
            _show(output, live, found, rates)
            while True:
                stop.wait(seconds)
                try:
                    found = look()
                except (ConfigError, StoreError, Unavailable) as error:
                    _note(output, live, f"strandline: {sentence(error)}")
                    continue
                break
            passed, at = time.monotonic() - at, time.monotonic()


def _show(output: Output, live: Live | None, found: Mapping[str, Any], rates: Rates) -> None:
    if output.json:
        output.result(found, "")
        return
    block = _block(found, output.console.width, rates)
    if live is not None:
        live.update(block, refresh=True)
    else:
        output.console.print(block)
        output.console.print()


def _block(found: Mapping[str, Any], width: int, rates: Rates) -> Group:
    """Return what is shown of a status.  What waits comes first: a screen that is too small loses its end."""
    head, rest = [Text(printable(written_by(found))), *waiting(found), Text("")], parts(found, width, rates)
    for each in (every := [*head, *rest]):
        if isinstance(each, Text):
            each.no_wrap, each.overflow = False, "fold"  # otherwise a screen cuts what it has no room for
    return Group(*every)


def _note(output: Output, live: Live | None, text: str) -> None:
    """Say why there was nothing new to show: on a screen in its first line, until there is."""
    if live is None:
        output.note(text)
    elif isinstance(live.renderable, Group):
        _, *others = live.renderable.renderables
        live.update(Group(Text(printable(text), "red", no_wrap=False, overflow="fold"), *others), refresh=True)


class _Stop:
    """Ends a loop at a signal: at once while it waits, else when what it does is done.

    A look that is broken off may leave an environment half closed, whose threads the process then waits for.  A second
    signal breaks it off all the same.
    """

    def __init__(self) -> None:
        self._asked = False
        self._waits = False

    def wait(self, seconds: float) -> None:
        """Wait.  Raises KeyboardInterrupt at a signal, or if one has come before."""
        self._waits = True  # from here on a signal raises
        try:
            if self._asked:
                raise KeyboardInterrupt
            threading.Event().wait(seconds)
        finally:
            self._waits = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Heed the signals."""
        before = {each: signal.signal(each, self._heard) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _heard(self, *_: object) -> None:
        if self._waits or self._asked:
            raise KeyboardInterrupt
        self._asked = True


@contextmanager
def interrupted() -> Iterator[None]:
    """Let SIGTERM end what goes on as SIGINT does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
