"""The rows that a benchmark of endpoints prepares are what a collection would have, and add up to what it says."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from strandline.algebra.schema import DIFF
from strandline.bench.endpoints.prepared import PreparedFeed, appends, total_of, upserts
from strandline.frontier import Frontier


def test_changes_leave_the_rows_that_a_peer_is_given() -> None:
    """Damage: the two sides of a ratio write different rows."""
    prepared, held = upserts(1_000, 5), dict[int, dict[str, object]]()
    for each in prepared.transactions:
        seen = set()
        for change in pa.Table.from_batches(each.changes).to_pylist():
            if change.pop(DIFF) < 0:
                assert held.pop(change["id"]) == change, "what goes is what was there"
            else:
                assert change["id"] not in held
                held[change["id"]] = change
                seen.add(change["id"])
        assert [held[key] for key in sorted(seen)] == each.rows.to_pylist()
    assert total_of(pa.Table.from_pylist(list(held.values()), prepared.transactions[0].rows.schema)) == prepared.total
    replaced = prepared.rows - len(held)
    assert 300 <= replaced <= 450, "half of what comes after the first transaction replaces a row"


def test_appends_come_once() -> None:
    """Damage: a delta binding is measured with rows that no append-only collection has."""
    prepared = appends(100, 3)
    rows = pa.concat_tables([each.rows for each in prepared.transactions])
    assert rows["id"].to_pylist() == list(range(100))
    assert total_of(rows) == prepared.total
    assert all(set(batch[DIFF].to_pylist()) == {1} for each in prepared.transactions for batch in each.changes)


def test_the_next_transaction_is_there_once_this_one_is_read() -> None:
    """Damage: all transactions are there at once, and become one; or nothing is there to read during a commit."""

    async def uppers() -> list[Frontier]:
        feed = PreparedFeed(appends(30, 3).transactions)
        found = [await feed.upper()]
        for lower in range(3):
            changes = await feed.changes(lower, lower + 1)
            found.append(await feed.upper())
            assert changes.about == sum([len(batch) async for batch in changes.batches]) == 10
        return found

    assert asyncio.run(uppers()) == [Frontier(1), Frontier(2), Frontier(3), Frontier(3)]
