"""`strandline bench splits`: by how much several sessions are faster than one, at an endpoint that is elsewhere.

The endpoint takes `ROW_S` for each row that a session stores, and does nothing meanwhile that costs this machine: as a
server over a network does, whose sessions do not hinder each other.  What is measured is so the runtime's part: that
sessions wait at the same time, and what dividing the rows by their keys' hashes costs.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa

from strandline.bench.endpoints import prepared as rows_of
from strandline.bench.endpoints.prepared import Prepared, total_of
from strandline.bench.endpoints.turns import pushed, table_binding
from strandline.materialize.protocol.messages import Acknowledge, Acknowledged, Request, Response, Store
from strandline.store.clock import SystemClock
from strandline.testing.endpoints import Endpoint, KeyValueSession, MemoryDriver

ROW_S: Final = 10e-6
"""So a session stores 100 000 rows a second."""
_RESOURCE: Final = "t"


@dataclass
class _Stored:
    """The rows that all sessions were given."""

    rows: list[pa.Table] = field(default_factory=list)


class _Elsewhere(KeyValueSession):
    """Takes `row_s` for each row, and keeps rows as they came."""

    stored: ClassVar[_Stored]
    row_s: ClassVar[float]
    _busy_s = 0.0

    async def ask(self, message: Request) -> list[Response]:
        """See `MemorySession.ask`."""
        match message:
            case Store(rows=rows):
                self.stored.rows.append(rows)
                self._busy_s += rows.num_rows * self.row_s
                return []
            case Acknowledge():
                await SystemClock().sleep(self._busy_s)
                self._busy_s = 0.0
                return [Acknowledged()]
        return self.answers(message)


def measure_splits(directory: Path, *, rows: int, transactions: int, rounds: int, splits: int) -> dict[str, Any]:
    """Store the same rows by one session and by ``splits`` sessions, in turn; return rows a second, and the factor.

    ``wrong``: how many rows were not stored once.
    """
    prepared = rows_of.upserts(rows, transactions)
    rates, wrong = dict[int, list[float]]({1: [], splits: []}), 0
    for number in range(rounds):
        for sessions in (1, splits):
            rate, missing = _turn(prepared, directory / f"{number}-{sessions}", sessions)
            rates[sessions].append(rate)
            wrong += missing
    one, several = (statistics.median(rates[each]) for each in (1, splits))
    return {
        "rows": rows,
        "splits": splits,
        "rows_per_s": {"1": round(one), str(splits): round(several)},
        "factor": round(several / one, 2),
        "wrong": wrong,
    }


def _turn(prepared: Prepared, directory: Path, splits: int) -> tuple[float, int]:
    class Elsewhere(_Elsewhere):
        stored, row_s = _Stored(), ROW_S

    driver = MemoryDriver(Endpoint(), Elsewhere)
    seconds = pushed(driver, table_binding(_RESOURCE), prepared, directory, splits)
    wanted = pa.concat_tables([each.rows for each in prepared.transactions])
    found = pa.concat_tables(Elsewhere.stored.rows)
    equal = total_of(found.select(wanted.schema.names)) == total_of(wanted)
    return prepared.rows / seconds, abs(found.num_rows - wanted.num_rows) or int(not equal)
