"""Syncs a table of many rows into a new DuckDB file, verifies it, and prints what memory that took.

For `test_first_sync`:

    python first_sync_child.py DIRECTORY ROWS

A process of its own, because the kernel keeps one peak per process.  Spark's JVM is another process.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import duckdb

import strandline
from strandline.engine.session.start import build
from strandline.materialize.status import Status

ROWS_OF_AN_INSERT = 1_000_000
KIB = 1024


def main(root: Path, rows: int) -> None:
    """Run, and print one JSON object."""
    target = root / "target.duckdb"
    session = build({"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.local.dir": str(root / "scratch")})
    with strandline.open(f"file://{root / 'data'}", spark=session) as env:
        env.execute("CREATE TABLE orders (id BIGINT, customer INT, amount DECIMAL(10,2), note STRING)")
        for begin in range(0, rows, ROWS_OF_AN_INSERT):
            made = session.range(begin, min(rows, begin + ROWS_OF_AN_INSERT)).selectExpr(
                "id",
                "CAST(id % 1000 AS INT) AS customer",
                "CAST(id % 100000 AS DECIMAL(10,2)) AS amount",
                "concat('order number ', id) AS note",
            )
            env.insert("orders", made)
        env.execute(f"CREATE MATERIALIZATION out INTO duckdb OPTIONS (path '{target}') AS orders KEY (id)")
        seen: list[Status] = []
        env.watch(seen.append)
        before, begun = peak_mib(), time.monotonic()
        env.tick()
        seconds = time.monotonic() - begun
        after, problems = peak_mib(), env.progress()["problems"]
        moving = [status.moving for status in seen]
        verified = env.verify("out")
    with duckdb.connect(str(target)) as connection:
        found = connection.execute(
            "SELECT count(*), count(DISTINCT id), sum(customer), max(note) FROM orders"
        ).fetchall()
    report = {
        "problems": problems,
        "found": found[0],
        "rows": rows,
        "seconds": round(seconds, 1),
        "peak_mib": after,
        "peak_mib_before": before,
        "peak_mib_verified": peak_mib(),
        "differences": verified.missing + verified.extra,
        "told": len(moving),
        "about": max(each.about for each in moving),
        "read": max(each.read for each in moving),
        "sent": max(each.sent for each in moving),
    }
    sys.stdout.write(json.dumps(report))


def peak_mib() -> int:
    """Return the most memory that this process ever had resident, in MiB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) // KIB


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
