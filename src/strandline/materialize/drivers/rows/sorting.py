"""Changes in an order that depends on nothing but the changes, for endpoints that are sent them again after a crash.

A transaction is replayed with the same changes, but not in the same order: how Spark divides its work depends on how
the collection is stored at that moment.  An endpoint that numbers what it pushes therefore needs an order of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import closing
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.schema import DIFF, TIME
from strandline.errors import Determinate, first_line
from strandline.materialize.drivers.rows.json_texts import keys, objects
from strandline.materialize.protocol.messages import DELETE
from strandline.materialize.protocol.task import Binding
from strandline.materialize.spool import Spool

MEMORY_MAX: Final = "128MB"
"""What sorting takes of memory; beyond that it takes a temporary file."""
_ORDER: Final = "SELECT key, value FROM changes ORDER BY time, key, diff, value"
_KEY, _VALUE, _TIME, _DIFF = "key", "value", "time", "diff"


def texts(binding: Binding, rows: pa.Table) -> pa.Table:
    """Return the rows of a `Store` as JSON, and by what they are ordered.

    The key is NULL without one, the value is NULL where the row is gone.
    """
    values = objects(rows, [column.name for column in binding.columns])
    none = pa.nulls(len(rows), pa.string())
    zeros = pa.array([0] * len(rows), pa.int64())
    return pa.table(
        {
            _KEY: keys(rows, binding.key) if binding.key else none,
            _VALUE: pc.if_else(rows[DELETE].combine_chunks(), pa.scalar(None, pa.string()), values),
            _TIME: rows[TIME] if binding.times else zeros,
            _DIFF: rows[DIFF] if binding.diffs else zeros,
        }
    )


def ordered(changes: Spool, at_once: int) -> Generator[pa.RecordBatch, None, None]:
    """Yield key and value of all `texts`: by time, then those of one key together, what goes before what comes.

    Raises `Determinate` if they cannot be sorted here.
    """
    if not changes.rows:
        return
    try:
        with tempfile.TemporaryDirectory() as directory:
            config: dict[str, Any] = {"memory_limit": MEMORY_MAX, "temp_directory": directory, "threads": "1"}
            with closing(duckdb.connect(":memory:", config=config)) as connection:
                connection.register("changes", changes.relation())
                yield from connection.sql(_ORDER).to_arrow_reader(at_once)
    except (duckdb.Error, OSError) as error:
        raise Determinate(f"changes cannot be sorted in {tempfile.gettempdir()}: {first_line(error)}") from error
