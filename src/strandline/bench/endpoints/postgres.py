"""From rows in memory into tables of PostgreSQL, beside COPY.

Upserts: the peer copies each transaction's rows into a temporary table, and runs one INSERT … ON CONFLICT from there.
Appends (a delta binding without a key): it copies them into the table.  Each transaction is one of the peer's, by
psycopg, of CSV that was written beforehand: so its time is that of the server, and of sending.  Ours begins with Arrow
rows, and the writing of CSV is part of its time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import csv

from strandline.bench.endpoints import prepared as rows_of
from strandline.bench.endpoints.prepared import Prepared, Total
from strandline.bench.endpoints.turns import Route, delta_binding, measured, pushed, table_binding
from strandline.materialize.drivers.postgres.kind import KIND
from strandline.options import understood
from strandline.store.clock import SystemClock
from strandline.testing.postgres import databases

OURS: Final = "ours"
PLAIN: Final = "plain"
SPLIT: Final = "split"
_SCHEMA: Final = "strandline_bench"
_COLUMNS: Final = "id bigint, customer bigint, amount numeric(12,2), at timestamptz, note text"
_STAGED: Final = f"CREATE TEMPORARY TABLE staged ({_COLUMNS}) ON COMMIT DELETE ROWS"
_UPSERT: Final = f"""
INSERT INTO {_SCHEMA}.{PLAIN} SELECT * FROM staged ON CONFLICT (id) DO UPDATE
SET customer = excluded.customer, amount = excluded.amount, at = excluded.at, note = excluded.note"""  # noqa: S608
_CSV: Final = csv.WriteOptions(include_header=False)


@contextmanager
def schema(options: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Make a schema for a run; yield the options of an endpoint there.  It goes with the context.

    ``options``: the connection, of a role that may create schemas.
    """
    drop = f"DROP SCHEMA IF EXISTS {_SCHEMA} CASCADE"
    databases.run(options, drop, f"CREATE SCHEMA {_SCHEMA}")
    try:
        yield {**options, "schema": _SCHEMA}
    finally:
        databases.run(options, drop)


def measure_postgres(
    directory: Path, options: Mapping[str, str], *, rows: int, transactions: int, rounds: int, splits: int = 1
) -> dict[str, Any]:
    """Return the figures of upserts and of appends.  ``options``: see `schema`."""
    every = {"upserts": rows_of.upserts(rows, transactions), "appends": rows_of.appends(rows, transactions)}
    return {
        name: measured(prepared, _rounds(directory / name, options, prepared, rounds, splits, keyed=name == "upserts"))
        for name, prepared in every.items()
    }


def _rounds(
    directory: Path, options: Mapping[str, str], prepared: Prepared, rounds: int, splits: int, *, keyed: bool
) -> Iterator[Mapping[str, Route]]:
    binding = table_binding if keyed else delta_binding
    texts = [_csv_of(each.rows) for each in prepared.transactions]
    for number in range(rounds):
        with schema(options) as there:
            driver = KIND.open(understood("a database", KIND.options, there), SystemClock())
            ours = partial(pushed, driver, binding(OURS), prepared, directory / f"{number}")
            split = partial(pushed, driver, binding(SPLIT), prepared, directory / f"{number}-{splits}", splits)
            plain = partial(_copied, options, texts, keyed=keyed)
            routes = {
                "ours": Route(ours, partial(total, options, OURS)),
                "plain": Route(plain, partial(total, options, PLAIN)),
            }
            yield routes | ({f"{splits} splits": Route(split, partial(total, options, SPLIT))} if splits > 1 else {})


def _copied(options: Mapping[str, str], texts: Sequence[memoryview], *, keyed: bool) -> float:
    """Write everything into a new table; return the seconds that it took."""
    made, into = f"{_SCHEMA}.{PLAIN}", "staged" if keyed else f"{_SCHEMA}.{PLAIN}"
    with databases.session(options) as connection:
        connection.execute(f"CREATE TABLE {made} ({_COLUMNS}{', PRIMARY KEY (id)' if keyed else ''})".encode())
        connection.execute(_STAGED.encode())
        begun = time.perf_counter()
        for text in texts:
            with connection.transaction(), connection.cursor() as cursor:
                with cursor.copy(f"COPY {into} FROM STDIN (FORMAT csv)".encode()) as copy:
                    copy.write(text)
                if keyed:
                    cursor.execute(_UPSERT.encode())
        return time.perf_counter() - begun


def _csv_of(rows: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    csv.write_csv(rows, sink, _CSV)
    return memoryview(sink.getvalue())


def total(options: Mapping[str, str], table: str) -> Total:
    """Return what a table of the schema has."""
    text = f"SELECT count(*), sum(id), sum(amount) FROM {_SCHEMA}.{table}"  # noqa: S608 - a name of ours
    ((rows, ids, amount),) = databases.run(options, text)
    return Total(rows, int(ids or 0), int(100 * (amount or 0)))
