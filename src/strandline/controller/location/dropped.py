"""The shards of dropped items, brought to their end: closed, released, and deleted once no reader holds them.

The catalog's change is what drops an item, and it lists the shards that no item keeps from then on.  Closing them takes
many more changes, each idempotent, so a process that dies in between leaves a list that the next environment works off.

Source: design pages "environment" (DROP) and "persist" (details: tombstone).
"""

from __future__ import annotations

from collections.abc import Iterable

from strandline.errors import FencedError, StrandlineError
from strandline.persist.together.transactions import Transactions


async def close(shards: Iterable[str], transactions: Transactions) -> tuple[frozenset[str], dict[str, str]]:
    """Close ``shards``; return which are closed, and what stands in the way of each of the others.

    What was a table takes part in no transaction from then on.  Raises `FencedError` if a newer epoch was admitted.
    """
    closed, problems = set(), {}
    for shard in shards:
        try:
            await transactions.close_shard(shard)
        except FencedError:
            raise
        except StrandlineError as error:
            problems[shard] = f"it was dropped and cannot be deleted yet: {error}"
        else:
            closed.add(shard)
    return frozenset(closed), problems
