"""From a table of PostgreSQL to a durable collection, as it is and as it changes.

The peer of the snapshot copies the table out to CSV, which plain Spark reads.  No Spark reads a logical slot; the floor
of the changes is to fetch the same messages from the slot, and to decode none of them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from strandline.bench.measured import opened
from strandline.bench.sources.beside import COLUMNS, ROUNDS
from strandline.bench.sources.endpoint import FOLLOWED, LANES, Upstream
from strandline.testing.postgres import databases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Final = 500_000
CHANGED: Final = 100_000

_TABLE: Final = "strandline_bench"
_FOLLOWED: Final = "strandline_followed"
_FILL: Final = f"""
    INSERT INTO {_TABLE} SELECT i, i % 5003, (i % 10000) + (i % 100) / 100.0,
        timestamptz '2024-01-01 00:00:00+00' + i * interval '1 millisecond', 'order ' || i
        FROM generate_series(1, {{rows}}) AS i
"""  # noqa: S608 - names of ours


def measure_postgres(
    session: SparkSession, directory: Path, options: Mapping[str, str], *, rows: int = ROWS, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Fill a table, take it with both, change it, take the changes, drop it; return every figure.

    ``options``: the connection, of a role that may create tables and slots.  ``rows_per_s``, ``peer_rows_per_s`` and
    ``ratio`` are of the snapshot; ``changes_per_s``, ``floor_changes_per_s`` and ``floor_ratio`` of the changes;
    ``wrong``: by how many rows, or by how much of their sum, what is held differs from upstream.
    """
    changed = min(CHANGED, rows)
    databases.run(
        options,
        f"DROP TABLE IF EXISTS {_TABLE}",
        f"CREATE TABLE {_TABLE} (id bigint PRIMARY KEY, customer int, amount numeric(12,2), at timestamptz, note text)",
        f"ALTER TABLE {_TABLE} REPLICA IDENTITY FULL",
        _FILL.format(rows=rows),
        f"DROP PUBLICATION IF EXISTS {_TABLE}",
        f"CREATE PUBLICATION {_TABLE} FOR TABLE {_TABLE}",
    )
    ours, peer, changes, floor, wrong = list[float](), list[float](), list[float](), list[float](), 0
    try:
        for number in range(rounds + 1):  # the first one warms both up
            into = directory / f"round-{number}"
            found = asyncio.run(_ours(session, into / "ours", options, changed, f"{_TABLE}_{number}"))
            plain = _plain(session, into / "plain", options)
            wrong += found["wrong"]
            if number:
                ours.append(rows / found["snapshot_s"])
                peer.append(rows / plain)
                changes.append(changed / found["changes_s"])
                floor.append(changed / found["floor_s"])
    finally:
        databases.run(options, f"DROP PUBLICATION {_TABLE}", f"DROP TABLE {_TABLE}")
    rates = {
        "rows_per_s": statistics.median(ours),
        "peer_rows_per_s": statistics.median(peer),
        "changes_per_s": statistics.median(changes),
        "floor_changes_per_s": statistics.median(floor),
    }
    return {
        "rows": rows,
        "changed": changed,
        **{name: round(rate) for name, rate in rates.items()},
        "ratio": round(rates["rows_per_s"] / rates["peer_rows_per_s"], 3),
        "floor_ratio": round(rates["changes_per_s"] / rates["floor_changes_per_s"], 3),
        "wrong": wrong,
    }


@contextmanager
def followed(options: Mapping[str, str]) -> Iterator[Upstream]:
    """Make a table whose rows are followed to an endpoint; each call commits one transaction.

    The table, its publication and its slot go with the context.
    """
    _drop_slot(options, _FOLLOWED)  # of a run that was killed, like the table and the publication
    databases.run(
        options,
        f"DROP TABLE IF EXISTS {_FOLLOWED}",
        f"CREATE TABLE {_FOLLOWED} (id bigint PRIMARY KEY, lane int NOT NULL, amount bigint NOT NULL)",
        f"DROP PUBLICATION IF EXISTS {_FOLLOWED}",
        f"CREATE PUBLICATION {_FOLLOWED} FOR TABLE {_FOLLOWED}",
    )
    try:
        with databases.session(options) as connection:

            def put(rows: range) -> None:
                numbers = f"generate_series({rows.start}, {rows.stop - 1}) AS n"
                connection.execute(f"INSERT INTO {_FOLLOWED} SELECT n, n % {LANES}, n % 1000 FROM {numbers}".encode())  # noqa: S608

            source = f"FROM POSTGRES ({_given(options)}, publication = '{_FOLLOWED}', slot = '{_FOLLOWED}')"
            table = f"FROM SOURCE followed (REFERENCE 'public.{_FOLLOWED}')"
            yield Upstream((f"CREATE SOURCE followed {source}", f"CREATE TABLE events ({FOLLOWED}) {table}"), put)
    finally:
        _drop_slot(options, _FOLLOWED)
        databases.run(options, f"DROP PUBLICATION {_FOLLOWED}", f"DROP TABLE {_FOLLOWED}")


async def _ours(
    session: SparkSession, into: Path, options: Mapping[str, str], changed: int, slot: str
) -> dict[str, Any]:
    """Return the seconds of the tick that takes the table, of the one that takes the changes, and of their floor."""
    into.mkdir(parents=True)
    _drop_slot(options, slot)  # of a run that was killed
    try:
        async with opened(session, into) as env:
            await env.execute(
                f"CREATE SOURCE bank FROM POSTGRES ({_given(options)}, publication = '{_TABLE}', slot = '{slot}')"
            )
            await env.execute(f"CREATE TABLE t ({COLUMNS}) FROM SOURCE bank (REFERENCE 'public.{_TABLE}')")
            snapshot = await env.tick()
            databases.run(options, f"UPDATE {_TABLE} SET amount = amount + 1 WHERE id <= {changed}")  # noqa: S608
            begun = time.perf_counter()
            databases.peek(options, slot, _TABLE)
            floor = time.perf_counter() - begun
            later = await env.tick()
            if problems := {**snapshot.problems, **later.problems}:
                raise RuntimeError(f"the source has problems: {problems}")
            held = (await env.rows("t")).column("amount").to_pylist()
        ((rows, total),) = databases.run(options, f"SELECT count(*), sum(amount) FROM {_TABLE}")  # noqa: S608
        wrong = abs(rows - len(held)) + int(abs(total - sum(held)))
    finally:
        _drop_slot(options, slot)
    return {"snapshot_s": snapshot.ms / 1000, "changes_s": later.ms / 1000, "floor_s": floor, "wrong": wrong}


def _plain(session: SparkSession, into: Path, options: Mapping[str, str]) -> float:
    into.mkdir(parents=True)
    begun = time.perf_counter()
    databases.copy_out(options, _TABLE, into / "table.csv")
    session.read.schema(COLUMNS).csv(str(into / "table.csv")).write.parquet(str(into / "parquet"))
    return time.perf_counter() - begun


def _given(options: Mapping[str, str]) -> str:
    """Return the options as CREATE SOURCE takes them."""
    return ", ".join(f"{name} = '{text}'" for name, text in options.items())


def _drop_slot(options: Mapping[str, str], slot: str) -> None:
    databases.run(
        options,
        f"SELECT pg_drop_replication_slot('{slot}') FROM pg_replication_slots "  # noqa: S608 - names of ours
        f"WHERE slot_name = '{slot}'",
    )
