"""What stands still: no item may be behind a tick without saying why.

An item that failed has its own problem.  Any other that is not where the tick wanted it gets one here, from the uppers
of the shards and the positions of the endpoints alone, so that a mistake anywhere above cannot hide it.

Source: design page "environment" (`status`).
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.controller.location.catalog import Catalog, Materialization, Table
from strandline.frontier.antichain import MINIMUM, Frontier
from strandline.persist.together.transactions import SHARD as TRANSACTIONS


def standing(
    catalog: Catalog,
    problems: Mapping[str, str],
    frontiers: Mapping[str, Frontier],
    time: Frontier,
) -> dict[str, str]:
    """Return why each item that has none of ``problems`` is not complete at ``time``.

    ``frontiers`` are by the item's name: a collection's upper, or the time before which an endpoint has everything.
    """
    found = {}
    for name, item in catalog.items.items():
        if name in problems:
            continue
        frontier = frontiers.get(name, MINIMUM)
        if not frontier <= time:
            continue
        if isinstance(item, Materialization):
            found[name] = f"it waits for its collections; it has come to {frontier.at}, and the tick's time {time}"
        else:
            sealed = problems.get(TRANSACTIONS) if isinstance(item, Table) else None
            why = f"tables cannot be sealed: {sealed}" if sealed else "it stands still"
            found[name] = f"{why}; its upper is {frontier}, and the tick's time {time}"
    return found
