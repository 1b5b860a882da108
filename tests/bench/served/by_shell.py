"""A client of the load that types into `strandline sql`, in a real terminal: ``… PROJECT NUMBER SECONDS``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.cli.shell.project import Shop


def main() -> None:
    """Type a row and a query, again and again; read on the screen what came of them."""
    project, number, seconds = Shop(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3])
    until = time.monotonic() + seconds
    with project.terminal((100, 50), "sql") as opened:
        opened.answered()
        print(json.dumps({"ready": "shell"}), flush=True)  # noqa: T201 - for the benchmark
        n = 0
        while (begun := time.monotonic()) < until:
            opened.clear()
            shown = opened.ask(f"INSERT INTO rows VALUES ({number}, {n});")
            assert any("committed at" in line for line in shown), shown
            print(json.dumps({"ms": 1000 * (time.monotonic() - begun), "n": n}), flush=True)  # noqa: T201 - for the benchmark
            opened.clear()
            shown = opened.ask(r"SELECT max(n) AS n FROM rows WHERE client = " + f"{number};")
            assert f"{n}" in [line.strip() for line in shown], shown  # it reads what it wrote
            n += 1
        opened.type("\\q\n")
        assert opened.left() == 0


if __name__ == "__main__":
    main()
