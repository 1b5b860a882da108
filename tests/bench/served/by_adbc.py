"""A client of the load by the driver that ADBC publishes, unmodified: ``… PLACE NUMBER SECONDS``."""

from __future__ import annotations

import json
import sys
import time

import adbc_driver_flightsql.dbapi as adbc

ROWS = 1_000


def main() -> None:
    """Insert rows one by one, and read a view of a thousand after each fifth."""
    place, number, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    until = time.monotonic() + seconds
    with adbc.connect(place, autocommit=True) as connection, connection.cursor() as cursor:
        print(json.dumps({"ready": "adbc"}), flush=True)  # noqa: T201 - for the benchmark
        n = 0
        while (begun := time.monotonic()) < until:
            cursor.execute(f"INSERT INTO rows VALUES ({number}, {n})")
            cursor.fetchall()  # when it was committed
            print(json.dumps({"ms": 1000 * (time.monotonic() - begun), "n": n}), flush=True)  # noqa: T201 - for the benchmark
            if n % 5 == 0:
                cursor.execute("SELECT * FROM thousand")
                assert cursor.fetch_arrow_table().num_rows == ROWS
            n += 1
            time.sleep(0.1)  # noqa: TID251 - as the others do


if __name__ == "__main__":
    main()
