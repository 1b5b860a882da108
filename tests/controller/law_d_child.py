"""Runs the demo's three views over a few days of flights, and prints a hash of every update of each: for `test_law_d`.

    python law_d_child.py DIRECTORY MASTER DAYS DAYS_PER_STEP compiled|interpreted

Times are given, so that every run has the same ones; only how Spark partitions and evaluates, and how many days a step
covers, differ.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))

import strandline
from compiled import COMPILED
from strandline.cli.demo.data import VIEWS, load, schedule, write_project
from strandline.controller.defining.project.files import load as load_project
from strandline.engine.session.start import SHORT_LIVED_JAVA

BASE = 4_000_000_000_000
"""A time that no clock has reached: the same in every run."""


def main(root: Path, master: str, days: int, days_per_step: int, compiled: str) -> None:
    """Run, and print one JSON object: view to hash."""
    write_project(root)
    steps = schedule(load(), days=days, months=1)
    config = {
        "spark": {
            "spark.master": master,
            "spark.executor.memory": "1g",
            "spark.local.dir": str(root / "scratch"),
            "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
            **(COMPILED if compiled == "compiled" else {}),
        }
    }
    with strandline.open(f"file://{root / 'data'}", config=config) as env:
        env.apply(load_project(root))
        core = env._core
        env.insert("airlines", [{"carrier": c, "name": n} for c, n in load().airlines.items()], token="airlines")
        for number, step in enumerate(steps):
            for source, name, content in step.files:
                (root / "incoming" / source / name).write_text(content)
            # Bind every day at a time of its own; make durable and maintain only every so many days.
            due = number % days_per_step == 0 or number == len(steps) - 1
            env._run(core.ingest(BASE + number * 1000, step=due))
            if due:
                report = env._run(core.maintain())
                assert not report.failed, report.failed
        sys.stdout.write(json.dumps({name: _hash(env, name) for name in VIEWS}))


def _hash(env: strandline.Environment, view: str) -> str:
    """Hash the consolidated updates of ``view`` at every time: floats by their bits."""
    collection = env.collection(view)
    assert collection.since is not None
    assert collection.upper is not None
    updates = collection.changes(collection.since, collection.upper).toArrow()
    names = [n for n in updates.column_names if n != "__diff"]
    net = updates.group_by(names).aggregate([("__diff", "sum")])
    kept = [row for row in net.to_pylist() if row["__diff_sum"]]
    assert len({row["__time"] for row in kept}) > 1, "the test is about several times"
    lines = sorted(json.dumps({k: _bits(v) for k, v in row.items()}, sort_keys=True) for row in kept)
    return f"{len(lines)}:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"


def _bits(value: object) -> object:
    return value.hex() if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
