"""Rows that are in memory before they are measured: as a materialization reads them, and as a peer is given them.

Both sides begin with these Arrow tables, so what is timed is the way from there into the endpoint: not the reading of a
collection, and not the making of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.schema import DIFF, Column, Schema
from strandline.frontier import Frontier
from strandline.materialize.feed import Batches, Changes
from strandline.plane import NET_BATCH_ROWS

SCHEMA: Final = Schema(
    (
        Column("id", "bigint"),
        Column("customer", "bigint"),
        Column("amount", "decimal(12,2)"),
        Column("at", "timestamp"),
        Column("note", "string"),
    )
)
COLLECTION: Final = "orders"
_START_US: Final = 1_700_000_000_000_000
_SEED: Final = 7

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Transaction:
    """The changes that one transaction reads, and the rows that they leave of the keys in them."""

    changes: tuple[pa.RecordBatch, ...]
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Total:
    """What a side has at the end: how many rows, and the sums of two columns."""

    rows: int
    ids: int
    cents: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """The transactions, and what is at the endpoint after the last one."""

    transactions: tuple[Transaction, ...]
    total: Total

    @property
    def rows(self) -> int:
        """How many rows are written in all."""
        return sum(each.rows.num_rows for each in self.transactions)


def appends(rows: int, transactions: int) -> Prepared:
    """Return rows with keys that rise; each comes once."""
    made = [_rows(_range(part), _range(part) * 0) for part in _parts(rows, transactions)]
    every = tuple(Transaction(tuple(_batches(each, np.ones(len(each), np.int64))), each) for each in made)
    return Prepared(every, total_of(pa.concat_tables(made)))


def upserts(rows: int, transactions: int) -> Prepared:
    """Return rows of which, in each transaction but the first, half replace one of a random key, and half are new.

    >>> found = upserts(100, 4)
    >>> found.rows, found.total.rows, [sum(map(len, each.changes)) for each in found.transactions]
    (100, 64, [25, 37, 37, 37])
    """
    random = np.random.default_rng(_SEED)
    versions: Numbers = np.zeros(0, np.int64)  # in which transaction each key was written last
    every = []
    for number, part in enumerate(_parts(rows, transactions)):
        changed = random.choice(len(versions), min(len(part) // 2, len(versions)), replace=False)
        before = _rows(changed, versions[changed])
        versions[changed] = number
        new = np.arange(len(versions), len(versions) + len(part) - len(changed))
        versions = np.concatenate([versions, np.full(len(new), number)])
        after = _rows(np.sort(np.concatenate([changed, new])), number)
        changes = pa.concat_tables([before, after])
        diffs = np.repeat([-1, 1], [len(before), len(after)])
        order = np.lexsort((diffs, changes["id"].to_numpy()))
        every.append(Transaction(tuple(_batches(changes.take(order), diffs[order])), after))
    return Prepared(tuple(every), total_of(_rows(np.arange(len(versions)), versions)))


def total_of(rows: pa.Table) -> Total:
    """Return the total of rows."""
    return Total(len(rows), pc.sum(rows["id"]).as_py(), int(100 * pc.sum(rows["amount"]).as_py()))


def _parts(rows: int, parts: int) -> Iterator[range]:
    ends = [rows * n // parts for n in range(parts + 1)]
    return map(range, ends, ends[1:])


def _range(numbers: range) -> Numbers:
    return np.arange(numbers.start, numbers.stop)


def _rows(ids: Numbers, versions: Numbers | int) -> pa.Table:
    cents = pa.array((ids * 7 + versions) % 1_000_000, pa.int64())
    hundred = pa.scalar(100, pa.decimal128(5, 2))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "customer": pa.array(ids % 5_003, pa.int64()),
            "amount": pc.divide(cents.cast(pa.decimal128(19, 0)), hundred).cast(pa.decimal128(12, 2)),
            "at": pa.array(_START_US + ids * 1_000, pa.timestamp("us", "UTC")),
            "note": pc.binary_join_element_wise("order", pa.array(ids).cast(pa.string()), " "),
        }
    )


def _batches(rows: pa.Table, diffs: Numbers) -> list[pa.RecordBatch]:
    changes = rows.append_column(DIFF, pa.array(diffs, pa.int64())).combine_chunks()
    batches: list[pa.RecordBatch] = changes.to_batches(NET_BATCH_ROWS)
    return batches


class PreparedFeed:
    """A `Feed` of one transaction after the other: the next one is there when a runtime has begun to read this one."""

    name = COLLECTION
    schema = SCHEMA
    waits = ""

    def __init__(self, transactions: Sequence[Transaction]) -> None:
        self._transactions = transactions
        self._begun = 0

    async def upper(self) -> Frontier:
        """See `Feed.upper`: a time is a transaction."""
        return Frontier(min(self._begun + 1, len(self._transactions)))

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """See `Feed.changes`."""
        assert upper == lower + 1, f"a window is one transaction, and not [{lower}, {upper})"
        self._begun = upper
        batches = self._transactions[lower].changes
        return Changes(sum(map(len, batches)), self._handed(batches))

    async def _handed(self, batches: Sequence[pa.RecordBatch]) -> Batches:
        for batch in batches:
            yield batch

    async def hold(self, frontier: Frontier) -> None:
        """See `Feed.hold`: nothing is kept."""
