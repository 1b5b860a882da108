"""What tests cost: the seconds by which they are dealt to processes and drawn, and those of the last run here.

`COSTS_FILE` is committed, and written anew by ``python tools/stages.py --record`` on a quiet machine; a stage and a
test that is not run keeps what it had.  `LAST_RUN` has every test and every process, after each run; ``--figures``
shows the most expensive ones.

Warning: `stages.py`, a pytest plugin, imports this; it must import nothing but the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
COSTS_FILE: Final = ROOT / "tools" / "seconds.json"
"""Stage → file (or test) → seconds, when it was last recorded; and `TESTS` → test → seconds, of those that are long."""
TESTS: Final = "tests"
LONG_S: Final = 0.3
"""A test that takes longer is recorded by itself."""
LAST_RUN: Final = ROOT / "build" / "seconds.json"

Costs = dict[str, dict[str, float]]


def recorded() -> Costs:
    """Return what was recorded: stage → file (or test) → seconds."""
    return _read(COSTS_FILE)


def record(costs: Mapping[str, Mapping[str, float]], tests: Mapping[str, float]) -> None:
    """Write down what the files of some stages took, and their tests.

    Files that a stage no longer has are forgotten, and tests that no longer take long.
    """
    held = recorded()
    long = {test: seconds for test, seconds in (held.get(TESTS, {}) | dict(tests)).items() if seconds > LONG_S}
    found = {TESTS: long} | {stage: dict(files) for stage, files in costs.items() if files}
    rounded = {what: {name: round(seconds, 1) for name, seconds in each.items()} for what, each in found.items()}
    COSTS_FILE.write_text(json.dumps(held | rounded, indent=1, sort_keys=True) + "\n")


def remember(tests: Mapping[str, float], processes: Mapping[str, float]) -> None:
    """Keep what each test and each process of this run took, beside what others took before."""
    held = _read(LAST_RUN)
    LAST_RUN.parent.mkdir(exist_ok=True)
    kept = {"tests": held.get("tests", {}) | dict(tests), "processes": held.get("processes", {}) | dict(processes)}
    LAST_RUN.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def most_expensive(count: int) -> list[str]:
    """Return a line for each of the tests that took longest when they last ran here, and for each process."""
    held = _read(LAST_RUN)
    return [
        f"SECONDS {seconds:.1f} {what[:-1] if what == 'tests' else 'process'} {name}"
        for what in ("tests", "processes")
        for name, seconds in sorted(held.get(what, {}).items(), key=lambda named: -named[1])[:count]
    ]


def shares(costs: Mapping[str, float], count: int) -> list[dict[str, float]]:
    """Return files with what they cost in at most ``count`` shares that cost about the same.

    >>> shares({"a": 5, "b": 1, "c": 2, "d": 1}, 2)
    [{'a': 5}, {'c': 2, 'b': 1, 'd': 1}]
    >>> shares({"a": 5}, 2), shares({}, 2)
    ([{'a': 5}], [])
    """
    found: list[dict[str, float]] = [{} for _ in range(count)]
    for path in sorted(costs, key=lambda path: (-costs[path], path)):
        min(found, key=lambda share: sum(share.values()))[path] = costs[path]
    return [share for share in found if share]


def _read(path: Path) -> Costs:
    costs: Costs = json.loads(path.read_text()) if path.exists() else {}
    return costs
