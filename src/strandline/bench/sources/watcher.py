"""The reader of an endpoint: a process that looks at a table whenever it may have changed, as any other program might.

It reads how many rows of each lane the view ``totals`` counts, and writes down when it had read that.  Its clock is
`time.perf_counter`, which all processes of a machine share.  A DuckDB file is opened whenever it has changed; while
another process writes it, DuckDB refuses, and the reader tries again.  One session asks PostgreSQL at each look.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import duckdb

from strandline.bench.sources.endpoint import LANES
from strandline.testing.postgres import databases

PAUSE_S: Final = 0.005
_ASKED: Final = "SELECT n FROM totals"

Look: TypeAlias = Callable[[], int | None]
"""Returns how many rows are there for sure of those that came; None if it is not known, or as it was."""


def rows_of(file: Path) -> int | None:
    """Return how many rows are there for sure of those that came, in all lanes; None if it cannot be read now."""
    try:
        with duckdb.connect(str(file), read_only=True) as connection:
            return _whole([n for (n,) in connection.execute(_ASKED).fetchall()])
    except (duckdb.IOException, duckdb.CatalogException):
        return None


def file(path: Path) -> Look:
    """Return the look at a DuckDB file."""
    before = -1

    def look() -> int | None:
        nonlocal before
        changed = path.stat().st_mtime_ns if path.exists() else -1
        found = None if changed == before else rows_of(path)
        if found is not None:
            before = changed
        return found

    return look


def database(options: Mapping[str, str]) -> Look:
    """Return the look at a schema of PostgreSQL, given as the options of an endpoint."""
    connection = databases.session({name: text for name, text in options.items() if name != "schema"})
    connection.execute("SELECT set_config('search_path', %s, false)", (options["schema"],))
    return lambda: _whole([n for (n,) in connection.execute(_ASKED).fetchall()])


def watch(look: Look, rows: int, log: Path) -> None:
    """Look until there are ``rows``; append a line to ``log`` whenever there are more than before."""
    pause, last = threading.Event(), 0
    with log.open("w") as out:
        while last < rows:
            pause.wait(PAUSE_S)
            found = look()
            if found is not None and found > last:
                last = found
                print(time.perf_counter(), found, file=out, flush=True)


def _whole(counts: Sequence[int]) -> int:
    return min(counts) * LANES if len(counts) == LANES else 0


if __name__ == "__main__":
    kind, place, wanted, written = sys.argv[1:]
    watch(file(Path(place)) if kind == "duckdb" else database(json.loads(place)), int(wanted), Path(written))
