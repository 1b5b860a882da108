"""Two ways into an endpoint, each in its turn: a materialization, and the plain way of the same rows.

Ours is a task with one of our drivers, and with its recovery log in SQLite, as an environment has them: it reads the
changes, checks them, makes the extent durable, sends the rows, and commits.  The clock starts when the session is open
and the tables are there, and stops when the last transaction is acknowledged.  While one transaction commits, the next
one is read: a transaction is there as soon as the one before it was read.  The plain way writes the rows that these
changes leave, transaction after transaction; it knows which they are, and keeps no checkpoint.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from strandline.bench.endpoints.prepared import COLLECTION, SCHEMA, Prepared, PreparedFeed, Total
from strandline.materialize.driver import Driver
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.materialize.splits import Splits
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.wiring.loop import RunningTask


@dataclass(frozen=True, slots=True)
class Route:
    """One route into a resource of its own.

    ``write`` writes everything, and returns the seconds that it took; ``total``: what the resource then has.
    """

    write: Callable[[], float]
    total: Callable[[], Total]


def table_binding(resource: str) -> Binding:
    """Return the binding of a table that is kept equal to the prepared rows, by their ids."""
    return Binding(COLLECTION, resource, ("id",), SCHEMA)


def delta_binding(resource: str) -> Binding:
    """Return the binding of a resource that is given the prepared rows as they come, without a key."""
    return Binding(COLLECTION, resource, (), SCHEMA, delta=True)


def pushed(driver: Driver, binding: Binding, prepared: Prepared, directory: Path, splits: int = 1) -> float:
    """Materialize everything; return the seconds that it took.  The recovery log is made in ``directory``."""
    return asyncio.run(_pushed(driver, binding, prepared, directory, splits))


async def _pushed(driver: Driver, binding: Binding, prepared: Prepared, directory: Path, splits: int) -> float:
    directory.mkdir(parents=True)
    clock, ids, consensus = SystemClock(), SystemIds(), SQLiteConsensus(directory / "log.sqlite")
    spec = MaterializationSpec(ids.fresh("bench"), (binding,), splits=splits)
    feed, logs = PreparedFeed(prepared.transactions), partial(RecoveryLog, clock, ids, consensus)
    task = Splits(spec, driver, logs("log", 1), logs, ids, [feed], beside=partial(RunningTask, clock))
    try:
        await task.open()
        begun = time.perf_counter()
        while task.status.position < len(prepared.transactions):
            await task.advance()
        return time.perf_counter() - begun
    finally:
        await task.close()
        consensus.close()


def measured(prepared: Prepared, rounds: Iterable[Mapping[str, Route]]) -> dict[str, Any]:
    """Let each route have its turn in each round, ``ours`` among them; return the figures.

    ``rows_per_s``: the median of the rounds, of each route; ``ratios``: ours ÷ each other one, of the medians, and
    ``ratios_of_rounds``; ``wrong``: by how much the totals of all differ from what they should be.
    """
    rates, wrong, right = dict[str, list[float]](), 0, prepared.total
    for number, routes in enumerate(rounds):
        names = list(routes)
        for name in (*names[number % len(names) :], *names[: number % len(names)]):  # each is the first one in turn
            rates.setdefault(name, []).append(prepared.rows / routes[name].write())
            found = routes[name].total()
            wrong += abs(found.rows - right.rows) + abs(found.ids - right.ids) + abs(found.cents - right.cents)
    ours, middle = rates["ours"], {name: statistics.median(each) for name, each in rates.items()}
    others = [name for name in rates if name != "ours"]
    return {
        "rows_per_s": {name: round(each) for name, each in middle.items()},
        "ratios": {name: round(middle["ours"] / middle[name], 3) for name in others},
        "ratios_of_rounds": {
            name: [round(a / b, 3) for a, b in zip(ours, rates[name], strict=True)] for name in others
        },
        "wrong": wrong,
    }
