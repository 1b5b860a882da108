"""`errors(collection)`: what has no value in a collection, or could not be decoded, as rows."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from typing import Any, Final

import pyarrow as pa

from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.algebra.types import parse
from strandline.instance.error_half import described
from strandline.persist.handles.contents import Half
from strandline.persist.handles.definite import read_definitely
from strandline.persist.handles.read import ReadHandle
from strandline.plane.engine import Engine

ERRORS: Final = Schema(
    (
        Column("reason", "string"),
        Column("file", "string"),
        Column("line", "bigint"),
        Column("place", "string"),
        Column("raw", "string"),
        Column("key", "string"),
        Column("since", "bigint"),
        Column("count", "bigint"),
    )
)
"""``raw``: the text that cannot be decoded, or the row that an expression has no value for; ``since``: a time."""


async def erring(engine: Engine, handle: ReadHandle, time: int) -> pa.Table:
    """Return the errors that a collection has at ``time``, each once with its count.  Raises `AsOfError`."""
    await handle.wait_beyond(time, timeout_s=0)
    if not any(batch.errors for batch in handle.state.batches):
        return _table([])
    contents, rows = await read_definitely(engine, handle, partial(handle.history, time + 1, half=Half.ERR))
    try:
        updates = await engine.collect(rows)
    finally:
        handle.release(contents)
    changes: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for error, at, diff in zip(*(updates[name].to_pylist() for name in (ERROR, TIME, DIFF)), strict=True):
        changes[error][at] += diff
    return _table([row for error, by_time in sorted(changes.items()) if (row := _row(error, by_time)) is not None])


def _row(error: str, changes: dict[int, int]) -> dict[str, Any] | None:
    """Return an error as a row of `ERRORS`; None: it has left.

    >>> _row('{"place": "t@1", "reason": "it is no JSON", "raw": "x"}', {5: 1, 7: -1, 9: 2})["since"]
    9
    """
    count, since = 0, 0
    for at, change in sorted(changes.items()):
        since = at if not count else since
        count += change
    if not count:
        return None
    said = json.loads(error)
    found = {name: said.get(name) for name in ("reason", "file", "line", "place", "raw", "key")}
    if "reason" not in said:
        found["reason"] = described(said)
    if "raw" not in said and "row" in said:
        found["raw"] = json.dumps(said["row"])
    return {**found, "since": since, "count": count}


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    kinds = {column.name: arrow(parse(column.name, column.type)) for column in ERRORS}
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
