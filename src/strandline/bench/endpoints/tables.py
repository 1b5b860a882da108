"""From rows in memory into tables that need no server: a DuckDB file, or Delta tables, beside the plain ways.

DuckDB: INSERT … ON CONFLICT from the Arrow rows, and INSERT of them; one transaction each, one connection for all.
Delta: MERGE by deltalake, and its append, one commit each; our driver names the files that it staged in a commit, and
writes the files again that held replaced rows.  Neither peer keeps a checkpoint.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
from deltalake import DeltaTable, write_deltalake

from strandline.bench.endpoints import prepared as rows_of
from strandline.bench.endpoints.prepared import Prepared, Total, total_of
from strandline.bench.endpoints.turns import Route, delta_binding, measured, pushed, table_binding
from strandline.materialize.driver import DriverKind
from strandline.materialize.drivers.delta import kind as delta
from strandline.materialize.drivers.duckdb import kind as duckdb_file
from strandline.options import understood
from strandline.store.clock import SystemClock

TABLE: Final = "bench"
_COLUMNS: Final = 'id bigint, customer bigint, amount decimal(12,2), "at" timestamptz, note text'
_TOTAL: Final = f"SELECT count(*), sum(id), CAST(100 * sum(amount) AS bigint) FROM {TABLE}"  # noqa: S608 - a name of ours
_UPSERT: Final = f"""
INSERT INTO {TABLE} SELECT * FROM given ON CONFLICT (id) DO UPDATE
SET customer = excluded.customer, amount = excluded.amount, "at" = excluded."at", note = excluded.note"""  # noqa: S608


def measure_duckdb(directory: Path, *, rows: int, transactions: int, rounds: int) -> dict[str, Any]:
    """Return the figures of upserts and of appends into files in ``directory``."""
    return _measured(directory, rows, transactions, rounds, duckdb_file.KIND, _inserted, _of_file)


def measure_delta(directory: Path, *, rows: int, transactions: int, rounds: int) -> dict[str, Any]:
    """Return the figures of upserts and of appends into tables in ``directory``."""
    return _measured(directory, rows, transactions, rounds, delta.KIND, _merged, _of_lake)


def _measured(
    directory: Path,
    rows: int,
    transactions: int,
    rounds: int,
    kind: DriverKind[Any],
    plain: Callable[[Path, Prepared, bool], float],
    total: Callable[[Path], Total],
) -> dict[str, Any]:
    every = {"upserts": rows_of.upserts(rows, transactions), "appends": rows_of.appends(rows, transactions)}

    def turns(place: Path, prepared: Prepared, *, keyed: bool) -> Iterator[Mapping[str, Route]]:
        binding = table_binding(TABLE) if keyed else delta_binding(TABLE)
        for _ in range(rounds):
            shutil.rmtree(place, ignore_errors=True)
            (place / "ours").mkdir(parents=True)
            (place / "plain").mkdir()
            driver = kind.open(understood("it", kind.options, {"path": str(place / "ours" / "at")}), SystemClock())
            yield {
                "ours": Route(
                    partial(pushed, driver, binding, prepared, place / "log"), partial(total, place / "ours" / "at")
                ),
                "plain": Route(
                    partial(plain, place / "plain" / "at", prepared, keyed), partial(total, place / "plain" / "at")
                ),
            }

    return {
        name: measured(prepared, turns(directory / name, prepared, keyed=name == "upserts"))
        for name, prepared in every.items()
    }


def _inserted(file: Path, prepared: Prepared, keyed: bool) -> float:
    with duckdb.connect(str(file)) as connection:
        connection.execute(f"CREATE TABLE {TABLE} ({_COLUMNS}{', PRIMARY KEY (id)' if keyed else ''})")
        begun = time.perf_counter()
        for each in prepared.transactions:
            connection.register("given", each.rows)
            connection.execute(_UPSERT if keyed else f"INSERT INTO {TABLE} SELECT * FROM given")  # noqa: S608 - a name of ours
            connection.unregister("given")
    return time.perf_counter() - begun


def _of_file(file: Path) -> Total:
    with duckdb.connect(str(file)) as connection:
        found = connection.execute(_TOTAL).fetchone()
    assert found is not None
    return Total(*map(int, found))


def _merged(lake: Path, prepared: Prepared, keyed: bool) -> float:
    uri = str(lake / TABLE)
    table = DeltaTable.create(uri, prepared.transactions[0].rows.schema)
    begun = time.perf_counter()
    for each in prepared.transactions:
        if keyed:
            merging = table.merge(each.rows, "t.id = s.id", source_alias="s", target_alias="t")
            merging.when_matched_update_all().when_not_matched_insert_all().execute()
        else:
            write_deltalake(table, each.rows, mode="append")
    return time.perf_counter() - begun


def _of_lake(lake: Path) -> Total:
    return total_of(DeltaTable(str(lake / TABLE)).to_pyarrow_table(columns=["id", "amount"]))
