"""Transactions as tests use them: opened, committed and read in a line each."""

from __future__ import annotations

from strandline.persist.together.transactions import open_transactions
from strandline.testing.simulation.kernel import run_sync


def transactions(place, epoch=1, client=None):
    """Open the transactions, in a process of their own."""
    return run_sync(open_transactions(client or place.client(), epoch))


def opened(place, *shards, epoch=1):
    """Open the transactions and register these shards."""
    txns = transactions(place, epoch)
    for shard in shards:
        run_sync(txns.register(shard, place.schema.ddl))
    return txns


def commit(place, txns, time, token, **rows):
    """Commit one row to each shard, staged at ``time``."""
    writes = {shard: [place.stage(shard, time, time + 1, [[k, time, 1]])] for shard, k in rows.items()}
    return run_sync(txns.commit(time, writes, token=token))


def content(place, shard, as_of):
    """The rows of a shard."""
    return [(k, diff) for k, _, diff in place.snapshot(as_of, shard)]


def live_records(txns):
    """The net records of the log; no count is negative."""
    sums = {}
    for record in run_sync(txns._log.contents()):
        sums[record.data] = sums.get(record.data, 0) + record.diff
    assert all(0 <= n <= 1 for n in sums.values()), "withdrawn twice, or committed twice"
    return sum(1 for data, n in sums.items() if n and b"write" in data)
