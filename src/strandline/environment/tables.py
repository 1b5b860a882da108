"""Tables: collections that people write to, by INSERT, UPDATE and DELETE.

A write is a transaction: rows are staged at a time from the oracle and committed through `persist.transactions`, to one
table or to several, all or nothing.  It is durable when the call returns.  Deleting a row that is not there fails the
whole transaction, and names the row.

Source: design pages "persist" (transactions) and "the public face" (insert, delete, transaction).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from strandline.algebra.schema import DIFF, Schema
from strandline.environment.oracle import Oracle
from strandline.errors import InvalidUsage
from strandline.persist.batch import Staged
from strandline.persist.plane import Engine, Rows, StageRequest
from strandline.persist.read import ReadHandle
from strandline.persist.transactions import CommittedAt, TimeTaken, Transactions
from strandline.persist.write import WriteHandle

SMALL_ROWS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table of this environment."""

    name: str
    schema: Schema
    writer: WriteHandle
    reader: ReadHandle


@dataclass(frozen=True, slots=True)
class Change:
    """Rows to insert (or delete) in one table: an update frame whose times do not matter, diffs already signed.

    ``rows``: how many, if it is known (a hint, and what makes a small write cheap).
    """

    table: OpenTable
    frame: Rows
    deletes: bool
    rows: int | None


async def commit(
    changes: Sequence[Change], *, engine: Engine, transactions: Transactions, oracle: Oracle, token: str
) -> int:
    """Commit ``changes`` at one time and return it.  The same ``token`` again is the same commit.

    Raises:
        InvalidUsage: a row to delete is not there (then nothing is committed).
        FencedError: a newer environment has taken over.
        Indeterminate: it may have happened; call again with the same token.
    """
    done = await transactions.find(token)
    while done is None:
        await transactions.apply()  # so that what is checked and what is appended to are the same
        time = oracle.next()
        for table, frame in await _net(changes, engine, time, deletes_only=True):
            await _refuse_absent(table, frame, engine, time)
        staged = await _stage(changes, engine, time)
        match await transactions.commit(time, staged, token=token):
            case CommittedAt(at):
                done = at
                if at != time:
                    await _discard(staged, engine)  # it was committed before, with other staged batches
            case TimeTaken(upper):
                oracle.passed(upper)
                await _discard(staged, engine)
    await transactions.apply()
    return done


async def _stage(changes: Sequence[Change], engine: Engine, time: int) -> Mapping[str, Sequence[Staged]]:
    staged: dict[str, list[Staged]] = {}
    known = [change.rows for change in changes]
    small = None not in known and sum(n or 0 for n in known) <= SMALL_ROWS_MAX
    for table, frame in await _net(changes, engine, time, deletes_only=False):
        request = StageRequest(
            shard=table.writer.shard,
            schema=table.schema,
            lower=time,
            upper=time + 1,
            prefix=table.writer.stage_prefix(),
            small=small,
            inline_bytes_max=table.writer.inline_room,
        )
        batch = await engine.stage(frame, request)
        if batch.parts:
            staged.setdefault(table.writer.shard, []).append(batch)
    return staged


async def _net(
    changes: Sequence[Change], engine: Engine, time: int, *, deletes_only: bool
) -> list[tuple[OpenTable, Rows]]:
    tables = {change.table.name: change.table for change in changes if change.deletes or not deletes_only}
    frames = []
    for name, table in tables.items():
        of_table = [change.frame for change in changes if change.table.name == name]
        frames.append((table, await engine.union(table.schema, of_table, advance=time, negate=[False] * len(of_table))))
    return frames


async def _refuse_absent(table: OpenTable, frame: Rows, engine: Engine, time: int) -> None:
    """Fail if the table would hold some row less than zero times after the change."""
    # What is known now is what will be there at `time`: only this environment commits, and not meanwhile.
    upper = table.reader.state.upper.at or 0
    both = [frame, await engine.read(await table.reader.snapshot(upper - 1))] if upper else [frame]
    left = await engine.differences(
        await engine.union(table.schema, both, advance=time, negate=[False] * len(both)), table.schema
    )
    if left.missing:
        raise InvalidUsage(
            f"table {table.name!r}: {left.missing} row(s) to delete are not there, for example "
            f"{_example(left.sample)}; nothing was changed"
        )


def _example(sample: pa.Table) -> str:
    first: dict[str, object] = next((row for row in sample.to_pylist() if row[DIFF] < 0), {})
    return str({name: value for name, value in first.items() if not name.startswith("__")})


async def _discard(staged: Mapping[str, Sequence[Staged]], engine: Engine) -> None:
    for batches in staged.values():
        for batch in batches:
            await engine.discard(batch)
