"""An upsert of many keys into a large keyed collection, beside an append of as many rows to one that is as large.

Two sources of one environment read messages that are in this process: those of ``keyed`` say what the row of their key
is from now on, those of ``plain`` are rows.  So the figures hold what the envelope, the engine and persist cost, and
nothing of a server.  The keys lie all over the collection, and all of them are there.

The first upsert finds no rows arranged by key: the engine arranges them beside the ticks, and scans meanwhile.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from strandline.algebra.messages import GONE, ORDER
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.bench.measured import Measured, Tick, opened
from strandline.errors import DefinitionError
from strandline.frontier import Offsets
from strandline.instance.commands import RunIngestion
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Rows
from strandline.plane import Staging
from strandline.sources.reader import Keyed, Plain, Records
from strandline.sources.reclock import Slice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Final = 5_000_000
KEYS: Final = 10_000
ROUNDS: Final = 9
WARM_ROUNDS: Final = 5
FILL_ROWS: Final = 1_000_000
"""How many messages a tick brings while the collections are filled."""
SMALL_ROWS_MAX: Final = 40_000
SCHEMA: Final = Schema((Column("id", "bigint"), Column("value", "bigint"), Column("note", "string")))
COLUMNS: Final = "id BIGINT, value BIGINT, note STRING"
SOURCES: Final = ("keyed", "plain")
_PARTITION: Final = "0"


def measure_upserts(
    session: SparkSession,
    directory: Path,
    *,
    rows: int = ROWS,
    keys: int = KEYS,
    rounds: int = ROUNDS,
    warm_rounds: int = WARM_ROUNDS,
) -> dict[str, Any]:
    """Fill both collections, change both in turn, and return every figure.

    ``upsert_ms`` and ``append_ms``: the tick that brings the change, medians of the rounds; ``ratio``: the first ÷ the
    second; ``first_upsert_ms``: the first upsert of all; ``upsert_jobs``: Spark's jobs of an upsert, at the most;
    ``wrong``: rows of the keyed collection that are missing, too many or not the last ones, and rows that ``plain`` has
    too many or too few.
    """
    directory.mkdir(parents=True)
    return asyncio.run(_measured(session, directory, rows, keys, rounds, warm_rounds))


@dataclass
class _Log:
    """The messages of one source, in the order of their offsets."""

    tables: list[pa.Table] = field(default_factory=list)

    def say(self, ids: np.ndarray[Any, Any], value: int) -> None:
        """Append a message for each id."""
        notes = pa.array([f"note {value}"] * len(ids))
        self.tables.append(pa.table({"id": ids, "value": ids * 7 + value, "note": notes}))

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return sum(table.num_rows for table in self.tables)

    def between(self, lower: int, upper: int) -> pa.Table:
        """Return the messages from one offset to another."""
        return pa.concat_tables(self.tables).slice(lower, upper - lower).combine_chunks()


class _LogReader:
    """A `SourceReader` of a `_Log`."""

    bounded = False

    def __init__(self, log: _Log, engine: Staging, records: Records) -> None:
        self._log = log
        self._engine = engine
        self._records = records
        self._given = ExitStack()  # what holds the rows of the last read

    def records(self, table: str) -> Records:
        """See `SourceReader.records`."""
        return self._records

    async def snapshot(self, table: str) -> Offsets | None:
        """See `SourceReader.snapshot`: all is read by range."""
        return None

    async def upstream_frontier(self) -> Offsets:
        """See `SourceReader.upstream_frontier`."""
        return Offsets({_PARTITION: self._log.end})

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """See `SourceReader.read`."""
        found = [(each, self._log.between(each.lower[_PARTITION], each.upper[_PARTITION])) for each in slices]
        if isinstance(self._records, Plain):
            frames = [await self._engine.local(rows, SCHEMA, time=each.time, diff=1) for each, rows in found]
            return await self._engine.union(SCHEMA, frames, advance=0, negate=[False] * len(frames))
        records = [
            rows.append_column(TIME, pa.array(np.full(rows.num_rows, each.time)))
            .append_column(ORDER, pa.array(np.arange(each.lower[_PARTITION], each.upper[_PARTITION])))
            .append_column(GONE, pa.array(np.zeros(rows.num_rows, np.bool_)))
            .append_column(DIFF, pa.array(np.ones(rows.num_rows, np.int64)))
            for each, rows in found
        ]
        self._given.close()
        into = self._given.enter_context(self._engine.arrivals(SCHEMA, keyed=True))
        into.add(pa.concat_tables(records))
        return into.rows()

    async def commit(self, resume: Offsets) -> None:
        """See `SourceReader.commit`: it forgets nothing."""

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """See `SourceReader.likely_small`."""
        return sum(each.upper[_PARTITION] - each.lower[_PARTITION] for each in slices) <= SMALL_ROWS_MAX

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return ()

    async def close(self) -> None:
        """See `SourceReader.close`."""
        self._given.close()


@dataclass(frozen=True)
class _Logs:
    """`Connectors` of the two sources, each named like its log."""

    logs: Mapping[str, _Log]
    engine: Staging

    def check(
        self,
        name: str,
        connector: str,
        options: Mapping[str, str],
        schema: Schema | None,
        others: Mapping[str, Mapping[str, str]],
        before: Mapping[str, str] | None = None,
    ) -> None:
        """See `Connectors.check`: both are as they should be."""

    def check_table(
        self, name: str, connector: str, options: Mapping[str, str], reference: str, schema: Schema
    ) -> None:
        """See `Connectors.check_table`: there is none."""

    async def ask(self, name: str, connector: str, options: Mapping[str, str]) -> None:
        """See `Connectors.ask`: both are there."""

    async def ask_table(
        self, name: str, connector: str, options: Mapping[str, str], reference: str, schema: Schema
    ) -> None:
        """See `Connectors.ask_table`: there is none."""

    async def ask_wider(self, source: RunIngestion, client: PersistClient, epoch: int) -> None:
        """See `Connectors.ask_wider`: every column can be read."""

    async def beside(self, source: RunIngestion, files: Sequence[str], client: PersistClient, epoch: int) -> _LogReader:
        """See `Connectors.beside`: there are none."""
        raise DefinitionError(f"source {source.name!r} reads no files")

    async def kept(self, source: RunIngestion, client: PersistClient, epoch: int) -> Sequence[str]:
        """See `Connectors.kept`: there are none."""
        return ()

    async def taken(self, source: RunIngestion, files: Sequence[str], client: PersistClient) -> Sequence[str]:
        """See `Connectors.taken`: there are none."""
        raise DefinitionError(f"source {source.name!r} reads no files")

    async def pass_over(
        self, source: RunIngestion, file: str, client: PersistClient, epoch: int, *, withdrawn: bool = False
    ) -> None:
        """See `Connectors.pass_over`: there are none."""
        raise DefinitionError(f"source {source.name!r} reads no files")

    def alterable(self, connector: str) -> Sequence[str]:
        """See `Connectors.alterable`."""
        return ()

    def called(self, connector: str, reference: str) -> str:
        """See `Connectors.called`: there is none."""
        return reference

    def resolve(self, name: str, connector: str, options: Mapping[str, str]) -> None:
        """See `Connectors.resolve`."""
        raise NotImplementedError

    def check_connection(self, name: str, system: str, options: Mapping[str, str]) -> None:
        """See `Connectors.check_connection`: there is none."""

    def counts(self, connector: str) -> str:
        """See `Connectors`."""
        return "rows"

    def shares(self, source: RunIngestion) -> bool:
        """See `Connectors.shares`."""
        return False

    def connections(self, connector: str) -> Mapping[str, str]:
        """See `Connectors.connections`: they use none."""
        return {}

    async def reader(self, source: RunIngestion, client: PersistClient, epoch: int) -> _LogReader:
        """See `Connectors.reader`."""
        records = Keyed(("id",)) if source.name == "keyed" else Plain()
        return _LogReader(self.logs[source.name], self.engine, records)

    async def release(self, source: RunIngestion, others: Sequence[str], client: PersistClient, epoch: int) -> str:
        """See `Connectors.release`: they keep nothing."""
        return ""


async def _measured(
    session: SparkSession, directory: Path, rows: int, keys: int, rounds: int, warm_rounds: int
) -> dict[str, Any]:
    logs = {name: _Log() for name in SOURCES}
    chance, newest = np.random.default_rng(1), np.arange(rows, dtype=np.int64) * 7
    upserts, appends = list[Tick](), list[Tick]()
    async with opened(session, directory / "location", lambda engine: _Logs(logs, engine)) as env:
        for name in SOURCES:
            await env.execute(f"CREATE SOURCE {name} ({COLUMNS}) USING log")
        for first in range(0, rows, FILL_ROWS):
            for log in logs.values():
                log.say(np.arange(first, min(first + FILL_ROWS, rows), dtype=np.int64), 0)
            await _tick(env)
        for number in range(1, warm_rounds + rounds + 1):
            touched = chance.choice(rows, keys, replace=False).astype(np.int64)
            newest[touched] = touched * 7 + number
            logs["keyed"].say(touched, number)
            upserts.append(await _tick(env))
            logs["plain"].say(np.arange(keys, dtype=np.int64) + rows, number)
            appends.append(await _tick(env))
        wrong = _wrong(await env.rows("keyed"), newest)
        wrong += abs((await env.rows("plain")).num_rows - logs["plain"].end)
    counted, others = ([tick.ms for tick in ticks[warm_rounds:]] for ticks in (upserts, appends))
    return {
        "rows": rows,
        "keys": keys,
        "upsert_ms": round(statistics.median(counted), 1),
        "append_ms": round(statistics.median(others), 1),
        "ratio": round(statistics.median(counted) / statistics.median(others), 3),
        "upsert_ms_of_rounds": [round(ms, 1) for ms in counted],
        "append_ms_of_rounds": [round(ms, 1) for ms in others],
        "first_upsert_ms": round(upserts[0].ms, 1),
        "upsert_jobs": max(tick.jobs for tick in upserts[warm_rounds:]),
        "wrong": wrong,
    }


async def _tick(env: Measured) -> Tick:
    tick = await env.tick()
    if tick.problems:
        raise RuntimeError(f"the sources have problems: {dict(tick.problems)}")
    return tick


def _wrong(held: pa.Table, newest: np.ndarray[Any, Any]) -> int:
    """Return how many rows are missing, too many, or have another value than the last one of their key."""
    ids, values = held["id"].to_numpy(), held["value"].to_numpy()
    counts = np.bincount(ids, minlength=len(newest))
    return int(np.abs(counts[: len(newest)] - 1).sum() + counts[len(newest) :].sum() + (values != newest[ids]).sum())
