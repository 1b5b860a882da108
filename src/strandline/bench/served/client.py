"""One client of `strandline bench serving`: ``python -m strandline.bench.served.client ROLE PLACE NUMBER SECONDS``.

It prints a line of JSON for each thing that it did: ``{"ms": …}``, with ``"n"`` for a row that was acknowledged.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from pyarrow import flight

from strandline.client import Progress, Updates
from strandline.serving import RemoteEnvironment, connect

KEYS: Final = 1_000
"""How many rows the view has that is read whole, and by key."""


def main() -> None:
    """Be the client that the arguments say."""
    role, place, number, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    with connect(place) as env:
        print(json.dumps({"ready": role}), flush=True)  # noqa: T201 - for the benchmark
        _ROLES[role](env, number, time.monotonic() + seconds)


def _said(begun: float, **more: Any) -> None:
    print(json.dumps({"ms": 1000 * (time.monotonic() - begun), **more}), flush=True)  # noqa: T201 - for the benchmark


def _inserts(env: RemoteEnvironment, number: int, until: float) -> None:
    n = 0
    while (begun := time.monotonic()) < until:
        env.execute(f"INSERT INTO rows VALUES ({number}, {n})")  # noqa: S608 - two numbers
        _said(begun, n=n)
        n += 1
        time.sleep(0.1)  # noqa: TID251 - a person, or a program that has more to do


def _asks(env: RemoteEnvironment, _: int, until: float) -> None:
    while (begun := time.monotonic()) < until:
        rows, _at = env.answer("SELECT * FROM thousand")
        assert rows.num_rows == KEYS, rows.num_rows
        _said(begun)
        time.sleep(0.2)  # noqa: TID251 - the same


def _peeks(env: RemoteEnvironment, _: int, until: float) -> None:
    n = 0
    while (begun := time.monotonic()) < until:
        rows = env.peek("thousand", {"k": n % KEYS})
        assert rows.num_rows == 1, rows
        _said(begun)
        n += 1
        time.sleep(0.05)  # noqa: TID251 - the same


def _follows(env: RemoteEnvironment, _: int, until: float) -> None:
    """Add up what comes of the view of counts, and say how many rows it has counted for each client."""
    counts: dict[int, int] = {}
    with closing(env.subscribe("per_client")) as events:
        for event in events:
            match event:
                case Updates(rows):
                    for row in rows.to_pylist():
                        counts[row["client"]] = counts.get(row["client"], 0) + row["n"] * row["__diff"]
                case Progress():
                    print(json.dumps({"counts": counts}), flush=True)  # noqa: T201 - for the benchmark
            if time.monotonic() > until:
                return


def _stalls(env: RemoteEnvironment, _: int, until: float) -> None:
    """Ask for much, and read nothing of it."""
    client = flight.FlightClient(env.place)
    query = b'strandline.query {"sql": "SELECT a.k, b.v FROM thousand a CROSS JOIN thousand b"}'
    stream = client.do_get(flight.Ticket(query))
    time.sleep(max(0.0, until - time.monotonic()))  # noqa: TID251 - that is what it does
    stream.cancel()


def _sends_garbage(env: RemoteEnvironment, _: int, until: float) -> None:
    client = flight.FlightClient(env.place)
    while time.monotonic() < until:
        for garbage in (b"", b"\xff" * 1000, b"strandline.rows {", b"strandline.query []"):
            try:
                client.do_get(flight.Ticket(garbage)).read_all()
            except (flight.FlightError, ValueError):
                continue
        time.sleep(0.1)  # noqa: TID251 - else it would measure nothing but itself


_ROLES: Final[dict[str, Callable[[RemoteEnvironment, int, float], None]]] = {
    "inserts": _inserts,
    "asks": _asks,
    "peeks": _peeks,
    "follows": _follows,
    "stalls": _stalls,
    "garbage": _sends_garbage,
}

if __name__ == "__main__":
    main()
