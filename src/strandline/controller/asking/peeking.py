"""Peeks: the rows of a collection that have a key, from an index if there is one, and beside everything else.

An index answers from memory.  What it cannot answer is read from the collection's shard, with equal rows: so an index
that is missing, does not run yet, or whose replicas are away makes a peek slower and nothing else.

Trap: a peek runs beside a tick.  It uses nothing of the core that a tick changes while it waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from strandline.controller.asking import reads
from strandline.controller.core import Core
from strandline.controller.instances.running import Running
from strandline.controller.location.catalog import Catalog, unknown
from strandline.controller.location.items import Collected, IndexItem
from strandline.errors import InvalidUsage, ProtocolViolation, Unavailable
from strandline.frontier import MINIMUM, Frontier, as_time
from strandline.instance import error_half
from strandline.instance.indexes.index import last_time, scanned
from strandline.instance.indexes.keys import key_table, packed, rows_schema, unpacked
from strandline.instance.protocol.messages import Peek
from strandline.persist.handles.read import ReadHandle
from strandline.persist.shard.patience import Deadline

ANSWER_S: Final = 2.0
"""How long replicas are waited for: then the rows are read here."""


async def peek(
    core: Core,
    name: str,
    given: Sequence[Mapping[str, Any]],
    as_of: int | None,
    limit: int | None,
    timeout_s: float | None,
) -> pa.Table:
    """Return the rows of a collection at ``as_of`` that have one of the keys ``given``; see `Environment.peek`."""
    await core.look()
    item = core.catalog.collection(name)
    schema = item.schema
    if not given:
        return rows_schema(schema).empty_table()
    key = _columns(item, given[0])
    index = index_of(core.catalog, item, key)
    keys = key_table(schema, key if index is None else index.key, given)
    deadline = None if timeout_s is None else Deadline(core.assembly.clock, timeout_s)
    reader = await core.readers.of(item.name)
    time = as_of if as_of is not None else await _latest(core, item, reader, index)
    wanted = _Wanted(keys, rows_schema(schema), time, limit, deadline)
    found = None
    if index is not None and core.writing is not None:
        found = await _indexed(core, core.writing.running, index, reader, wanted)
    if found is not None:
        return found
    await reader.wait_beyond(time, timeout_s=wanted.left_s)
    if not core.catalog.forgives(item):
        await error_half.refuse(core.engine, reader, time)
    return await scanned(core.engine, reader, keys, time, limit)


@dataclass(frozen=True)
class _Wanted:
    """Which rows are wanted, and until when a time that is to come is waited for; ``rows``: what an answer has."""

    keys: pa.Table
    rows: pa.Schema
    time: int
    limit: int | None
    deadline: Deadline | None

    @property
    def left_s(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline.left_s())


def index_of(catalog: Catalog, item: Collected, key: Sequence[str]) -> IndexItem | None:
    """Return an index of a collection by these columns, in whatever order; rather one in this process."""
    columns = {name.lower() for name in key}
    found = [
        index
        for index in catalog.items.values()
        if isinstance(index, IndexItem)
        and index.collection == item.name.lower()
        and {name.lower() for name in index.key} == columns
    ]
    return min(found, key=lambda index: bool(index.instance), default=None)


def _columns(item: Collected, key: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of a key, as the collection names them."""
    names = {name.lower(): name for name in item.schema.names}
    for column in key:
        if column.lower() not in names:
            raise unknown(f"column of {item.name!r} called", column, names)
    if not key:
        raise InvalidUsage(f"a key names at least one column of {item.name!r}")
    return tuple(names[column.lower()] for column in key)


async def _latest(core: Core, item: Collected, reader: ReadHandle, index: IndexItem | None) -> int:
    """Return the latest time at which a collection is complete: as it is known here, if an index is to answer.

    Who writes it runs here, or has reported it to this process.
    """
    time = None
    if index is not None and core.writing is not None:
        reported = core.writing.running.upper(item.name.lower())
        time = _last(reader, reported)
    if time is None:
        return await reads.latest(core, [reader])
    return max(reads.shown_at(item, reader.state, time), as_time(reader.state.since))


def _last(reader: ReadHandle, reported: Frontier) -> int | None:
    """Return the last complete time of a collection whose upper was ``reported``, perhaps beyond what is known here."""
    known = last_time(reader.state)
    if reported == MINIMUM or reported.empty or reported <= reader.state.upper:
        return known
    return as_time(reported) - 1


async def _indexed(
    core: Core, running: Running, index: IndexItem, reader: ReadHandle, wanted: _Wanted
) -> pa.Table | None:
    """Return the rows that an index finds; None if it cannot answer."""
    name = index.name.lower()
    if not index.instance:
        try:
            return await running.here.peek(name, wanted.keys, wanted.time, wanted.limit, wanted.left_s)
        except Unavailable:  # it does not run yet
            return None
    if running.upper(index.collection) <= Frontier(wanted.time):
        await reader.wait_beyond(wanted.time, timeout_s=wanted.left_s)
    asked = Peek(core.assembly.ids.fresh("peek"), name, packed(wanted.keys), wanted.time, wanted.limit)
    rows = await running.peek(index.instance, asked, Deadline(core.assembly.clock, ANSWER_S))
    try:
        return None if rows is None else unpacked(rows, wanted.rows)
    except ProtocolViolation:  # what does not fit is no answer
        return None
