"""Error halves, as a reader of an environment sees them: reading a collection with errors raises them.

`refuse` stands before every read of a collection's rows, unless it is a source whose errors are forgiven.  `tally`
counts for `status` either way.  `ErrorBudgets` say which source holds more than it may (``errors_max``): an input that
changes its shape upstream would leave an error for each of its records.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

from strandline.algebra.schema import SUCCESSOR
from strandline.errors import CollectionError
from strandline.instance.commands import Collection, Output
from strandline.persist.handles.contents import Half
from strandline.persist.handles.read import ReadHandle, read_definitely
from strandline.plane import Counting, Errors
from strandline.problem import Problem, Stopped, Way

EXCEEDED: Final = Problem(
    "errors-max",
    "it holds {held} errors and errors_max is {most}, so nothing more is read; look at {item}_errors",
    Stopped.SOURCE,
    (
        Way("look at them, and dismiss them with the command that this prints", "strandline source skip {item:shell}"),
        Way("allow as many", "ALTER {kind} {item:sql} SET (errors_max '{held}')"),
    ),
)


async def refuse(engine: Counting, handle: ReadHandle, time: int) -> None:
    """Raise `CollectionError` if the collection has errors at ``time``."""
    found = await _at(engine, handle, time)
    if found.count:
        raise _error(handle.name, found, time, await _since(engine, handle, time))


async def refuse_in(engine: Counting, handle: ReadHandle, lower: int, upper: int) -> None:
    """Raise `CollectionError` if the collection has errors at a time in ``[lower, upper)``: the first such time."""
    if not _may_have(handle):
        return
    weights, count = await _weights(engine, handle, upper), 0
    for at, until in pairwise([*weights, upper]):
        count += weights[at]
        if count and until > lower:
            await refuse(engine, handle, max(at, lower))


async def tally(engine: Counting, handle: ReadHandle, time: int) -> dict[str, Any]:
    """Return how many errors there are at ``time``, a few of them, and since when there are any (None: none)."""
    found = await _at(engine, handle, time)
    since = await _since(engine, handle, time) if found.count else None
    return {"rows": found.count, "first": _decoded(found), "since": since}


async def count(engine: Counting, handle: ReadHandle, time: int) -> int:
    """Return how many errors there are at ``time``."""
    return (await _at(engine, handle, time)).count


async def began(engine: Counting, handle: ReadHandle) -> int | None:
    """Return the first time of the stretch of times with errors that lasts until now; None if there are none now."""
    upper = handle.state.upper.at
    if not upper or not _may_have(handle) or not (await _at(engine, handle, upper - 1)).count:
        return None
    return await _since(engine, handle, upper - 1)


def _may_have(handle: ReadHandle) -> bool:
    return any(batch.errors for batch in handle.state.batches)


async def _at(engine: Counting, handle: ReadHandle, time: int) -> Errors:
    await handle.wait_beyond(time, timeout_s=0)
    if not _may_have(handle):
        return Errors(0)
    plan = partial(handle.snapshot, time, timeout_s=0, half=Half.ERR)
    wanted, rows = await read_definitely(engine, handle, plan)
    try:
        return await engine.errors(rows)
    finally:
        handle.release(wanted)


async def _since(engine: Counting, handle: ReadHandle, time: int) -> int:
    """Return the first time of the unbroken stretch of times with errors that ends with ``time``."""
    count, start = 0, time
    for at, change in (await _weights(engine, handle, time + 1)).items():
        start = at if not count else start
        count += change
    return start


async def _weights(engine: Counting, handle: ReadHandle, upper: int) -> Mapping[int, int]:
    plan = partial(handle.history, upper, half=Half.ERR)
    wanted, rows = await read_definitely(engine, handle, plan)
    try:
        return await engine.weights(rows)
    finally:
        handle.release(wanted)


def _error(name: str, found: Errors, time: int, since: int) -> CollectionError:
    errors = _decoded(found)
    some = f"{found.count} error{'s' if found.count > 1 else ''}"
    return CollectionError(
        f"{name!r} has {some} at {time}, since {since}: {described(errors[0])}; " + remedy(errors[0]),
        errors,
        since,
    )


class ErrorBudgets:
    """How many errors the collections of sources may hold.  Errors are counted again only where some came or went.

    A source that holds more stops at the next tick: what came so far is durable and readable, and nothing more is
    bound.  It goes on by itself once its errors were dismissed, or the budget was raised.
    """

    def __init__(self, engine: Counting, reader: Callable[[Collection], Awaitable[ReadHandle]]) -> None:
        self._engine = engine
        self._reader = reader
        self._counted: dict[str, tuple[object, int]] = {}

    async def exceeded(self, outputs: Sequence[Output]) -> str:
        """Return which of ``outputs`` holds more errors than it may, and what to do; empty if none does."""
        for output in outputs:
            if output.errors_max is not None and (held := await self._count(output.collection)) > output.errors_max:
                about = {"item": output.collection.name, "kind": "TABLE" if output.table else "SOURCE"}
                return EXCEEDED.said(held=held, most=output.errors_max, **about)
        return ""

    async def _count(self, collection: Collection) -> int:
        reader = await self._reader(collection)
        state = await reader.refresh()
        if not state.upper.at:
            return 0
        seen = (state.since, *(batch.errors for batch in state.batches if batch.errors))
        known = self._counted.get(collection.shard)
        if known is None or known[0] != seen:
            known = seen, await count(self._engine, reader, state.upper.at - 1)
            self._counted[collection.shard] = known
        return known[1]


def described(error: Mapping[str, Any]) -> str:
    """Say in half a sentence what an error of an error half is.

    >>> described({"collection": "v", "expression": "10 / n", "row": {"id": 1, "n": 0}})
    "10 / n has no value for the row {'id': 1, 'n': 0} in v"
    >>> described({"file": "a.csv", "line": 3, "reason": "it has 2 fields; 3 are expected", "raw": "1,2"})
    'a.csv, line 3: it has 2 fields; 3 are expected'
    >>> described({"place": "visits[0]@17", "reason": "it is no JSON", "raw": "x"})
    'visits[0]@17: it is no JSON'
    """
    match error:
        case {"expression": expression, "row": row, "collection": collection}:
            return f"{expression} has no value for the row {row} in {_named(collection)}"
        case {"query": query, "collection": collection}:
            return f"the query of {_named(collection)} fails: {query}"
        case {"file": file, "reason": reason}:
            line = error.get("line")
            return f"{file}: {reason}" if line is None else f"{file}, line {line}: {reason}"
        case {"place": place, "reason": reason}:
            return f"{place}: {reason}"
        case _:
            return str(dict(error))


def _named(collection: str) -> str:
    """Return how a view is called that had the name of a successor when it was computed."""
    return collection.removeprefix(SUCCESSOR)


def remedy(error: Mapping[str, Any]) -> str:
    """Say what makes an error leave, as an imperative.

    >>> remedy({"file": "a.csv", "line": 3, "reason": "it has 2 fields; 3 are expected", "raw": "1,2"})
    'dismiss these records with `strandline source skip`, or take them back upstream if the source follows that'
    >>> remedy({"collection": "v", "expression": "10 / n", "row": {"id": 1, "n": 0}})
    'mend or withdraw the rows that caused them'
    """
    if "file" in error or "place" in error:
        return (
            "dismiss these records with `strandline source skip`, or take them back upstream if the source follows that"
        )
    return "mend or withdraw the rows that caused them"


def _decoded(found: Errors) -> Sequence[dict[str, Any]]:
    return [json.loads(text) for text in found.sample]
