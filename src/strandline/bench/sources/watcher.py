"""The reader of an endpoint: a process that looks at a DuckDB file whenever it has changed, as any other program might.

It reads how many rows of each lane the view ``totals`` counts, and writes down when it had read that.  Its clock is
`time.perf_counter`, which all processes of a machine share.  While another process writes the file, DuckDB refuses to
open it, and the reader tries again.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Final

import duckdb

from strandline.bench.sources.endpoint import LANES

PAUSE_S: Final = 0.005


def rows_of(file: Path) -> int | None:
    """Return how many rows are there for sure of those that came, in all lanes; None if it cannot be read now."""
    try:
        with duckdb.connect(str(file), read_only=True) as connection:
            counts = [n for (n,) in connection.execute("SELECT n FROM totals").fetchall()]
    except (duckdb.IOException, duckdb.CatalogException):
        return None
    return min(counts) * LANES if len(counts) == LANES else 0


def watch(file: Path, rows: int, log: Path) -> None:
    """Look at ``file`` until it has ``rows``; append a line to ``log`` whenever there are more than before."""
    pause, before, last = threading.Event(), -1, 0
    with log.open("w") as out:
        while last < rows:
            pause.wait(PAUSE_S)
            changed = file.stat().st_mtime_ns if file.exists() else -1
            if changed == before:
                continue
            found = rows_of(file)
            if found is None:
                continue
            at, before = time.perf_counter(), changed
            if found > last:
                last = found
                print(at, found, file=out, flush=True)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
