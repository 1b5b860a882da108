"""Tables: collections that users write to, by INSERT, UPDATE and DELETE.

A write is a transaction: rows are staged at a time from the oracle and committed through
`persist.together.transactions`, to one table or to several, all or nothing.  It is durable when the call returns.
Deleting a row that is not there fails the whole transaction, and names the row.

A transaction sees everything as it was before it: what a statement reads, of tables and of views alike, and whether
rows to delete are there, is found at the last time that is complete for the tables; nothing comes between it and the
commit.  If another writer commits first, all of it is done again, at a later time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from strandline.algebra.schema import DIFF
from strandline.errors import InvalidUsage, Unavailable
from strandline.instance.commands import Collection
from strandline.persist.handles.contents import Rows, StageRequest
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.batch import Staged
from strandline.persist.together.transactions import Transactions, Writes
from strandline.plane import COMMITS, COMPUTES, Engine, at_stage, until_stopped

SMALL_ROWS_MAX = 20_000


class Times(Protocol):
    """Where the times of commits come from: each is later than all before."""

    def next(self) -> int:
        """Return a time that was never given out."""
        ...

    def passed(self, upper: int) -> None:
        """Never give out a time before ``upper`` from now on."""
        ...


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table that can be written to here."""

    output: Collection
    writer: WriteHandle
    reader: ReadHandle


@dataclass(frozen=True, slots=True)
class Change:
    """Rows to insert (or delete) in one table: an update frame whose times do not matter, diffs already signed.

    ``rows``: how many, if it is known (a hint, and what makes a small write cheap).
    """

    table: Collection
    frame: Rows
    deletes: bool
    rows: int | None


@dataclass(frozen=True, slots=True)
class Statement:
    """Rows to insert or delete in one table, found by ``read`` at a time: anew whenever another commit was first.

    ``over``: the collections that it reads, which must be complete at that time.  ``deletes``: some rows are deleted.
    """

    table: Collection
    read: Callable[[int], Awaitable[Rows]]
    over: Sequence[str]
    deletes: bool


async def commit(
    changes: Sequence[Change | Statement],
    tables: Mapping[str, OpenTable],
    *,
    engine: Engine,
    transactions: Transactions,
    times: Times,
    token: str | None,
) -> int:
    """Commit ``changes`` at one time and return it.  The same ``token`` again is the same commit (None: there is none).

    ``tables``: those that are open here, by their shards.

    Raises:
        InvalidUsage: a row to delete or a table is not there, or the token came too late (then nothing is committed).
        Unavailable: a table is not open with all the columns of a change yet; nothing is committed, try again.
        FencedError: a newer environment has taken over.
        Indeterminate: it may have happened; call again with the same token.
    """
    return await transactions.transact(_Draft(changes, tables, engine, times), token=token)


@dataclass(frozen=True, slots=True)
class _Found:
    """A change of a table that is open here, with the rows that it has at one time."""

    table: OpenTable
    frame: Rows
    deletes: bool
    rows: int | None


@dataclass(frozen=True, slots=True)
class _Draft:
    """See `persist.together.transactions.Draft`."""

    changes: Sequence[Change | Statement]
    tables: Mapping[str, OpenTable]
    engine: Engine
    times: Times

    @property
    def reads(self) -> bool:
        return any(isinstance(change, Statement) or change.deletes for change in self.changes)

    def time(self, upper: int) -> int:
        self.times.passed(upper)
        return self.times.next()

    async def stage(self, time: int, upper: int) -> Writes:
        """Read what there is to read, look whether what is deleted is there, and write what is left of the changes.

        It may be cancelled until it is done, as a query is: nothing is committed before.
        """
        async with until_stopped():
            at_stage(COMPUTES)
            changes = [await self._found(change, max(0, upper - 1)) for change in self.changes]
            for table, frame in await _net(changes, self.engine, time, deletes_only=True):
                await _refuse_absent(table, frame, self.engine, time, upper)
            staged = await _stage(changes, self.engine, time)
        at_stage(COMMITS)
        return staged

    async def discard(self, writes: Writes) -> None:
        for batches in writes.values():
            for batch in batches:
                await self.engine.discard(batch)

    async def _found(self, change: Change | Statement, as_of: int) -> _Found:
        table = self.tables.get(change.table.shard)
        if table is None:
            raise InvalidUsage(f"table {change.table.name!r} was dropped; nothing was changed")
        if not {*change.table.schema.names} <= {*table.output.schema.names}:  # what these hold would be lost
            raise Unavailable(
                f"table {change.table.name!r} is not open with all its columns yet, which the next tick does; "
                "nothing was changed, try again"
            )
        if isinstance(change, Change):
            return _Found(table, change.frame, change.deletes, change.rows)
        return _Found(table, await change.read(as_of), change.deletes, None)


async def _stage(changes: Sequence[_Found], engine: Engine, time: int) -> Writes:
    staged: dict[str, list[Staged]] = {}
    known = [change.rows for change in changes]
    small = None not in known and sum(n or 0 for n in known) <= SMALL_ROWS_MAX
    asked: list[tuple[Rows, StageRequest]] = []
    for table, frame in await _net(changes, engine, time, deletes_only=False):
        request = StageRequest(
            shard=table.writer.shard,
            schema=table.output.schema,
            lower=time,
            upper=time + 1,
            prefix=table.writer.stage_prefix(),
            small=small,
            inline_bytes_max=table.writer.inline_room,
        )
        asked.append((frame, request))
    outcomes = await engine.stage_many(asked)
    batches = [each for each in outcomes if not isinstance(each, BaseException)]
    if len(batches) < len(outcomes):
        for batch in batches:
            await engine.discard(batch)
        raise next(each for each in outcomes if isinstance(each, BaseException))
    for (_, request), batch in zip(asked, batches, strict=True):
        if batch.parts:
            staged.setdefault(request.shard, []).append(batch)
    return staged


async def _net(
    changes: Sequence[_Found], engine: Engine, time: int, *, deletes_only: bool
) -> list[tuple[OpenTable, Rows]]:
    tables = {each.table.output.shard: each.table for each in changes if each.deletes or not deletes_only}
    frames = []
    for table in tables.values():
        of_table = [change.frame for change in changes if change.table is table]
        schema, negate = table.output.schema, [False] * len(of_table)
        frames.append((table, await engine.union(schema, of_table, advance=time, negate=negate)))
    return frames


async def _refuse_absent(table: OpenTable, frame: Rows, engine: Engine, time: int, upper: int) -> None:
    """Fail if the change would give some row of the table a negative count."""
    schema = table.output.schema
    if upper:
        there = await table.reader.snapshot(upper - 1)
        found = await engine.lookup(there, schema.names, [(frame, schema.names)], nulls=True)
        if found is None:
            found = await engine.restrict(await engine.read(there), frame, schema)
        both = [frame, found]
    else:
        both = [frame]
    left = await engine.differences(await engine.union(schema, both, advance=time, negate=[False] * len(both)), schema)
    if left.missing:
        raise InvalidUsage(
            f"table {table.output.name!r}: {left.missing} row(s) to delete are not there, for example "
            f"{_example(left.sample)}; nothing was changed"
        )


def _example(sample: pa.Table) -> str:
    first: dict[str, object] = next((row for row in sample.to_pylist() if row[DIFF] < 0), {})
    return str({name: value for name, value in first.items() if not name.startswith("__")})
