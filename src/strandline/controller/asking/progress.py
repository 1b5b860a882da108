"""Progress: what this process has done for its environment so far, from memory alone.

`status.status` reads the location and is the same in every process.  Progress is known only to the process that
writes, and `strandline run` reports it after each tick.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from strandline.controller.core import Core
from strandline.controller.standing import complete


def progress(core: Core) -> dict[str, Any]:
    """Return counters since this process opened the environment, its last tick's steps, and the problems there are.

    ``sources``: records read, read again, made durable, in error.  ``first``: of what nothing is durable yet.
    ``steps``: stage to number of input updates read.  ``complete``: the last time at which everything is complete that
    has no problem.  ``replaced``: the views that were replaced, each with the last time before that.
    ``problems``, ``waiting``, ``notices``: see `words.states`.
    ``late``: the items that are still on their way to where the last tick wanted them.
    """
    writing = core.require_writing()
    report, problems = writing.running.report(), core.health.problems()
    said = core.parted(problems, report.notices)
    return {
        "epoch": writing.epoch,
        "sources": {
            name: {
                "read_records": source.read_records,
                "reread_records": source.reread_records,
                "durable_records": source.durable_records,
                "error_records": source.error_records,
            }
            for name, source in report.sources.items()
        },
        "first": {
            each.name: {"phase": each.verb, "rows": each.rows, "about": each.about} for each in core.beginnings()
        },
        "steps": dict(report.steps),
        "materializations": {
            name: {
                "transactions": task.committed.transactions,
                "rows_stored": task.committed.stored,
                "rows_deleted": task.committed.deleted,
                "moving": asdict(task.moving),
            }
            for name, task in report.tasks.items()
        },
        "complete": complete(core.catalog, problems, report.frontiers, core.health.time or 0, report.notices),
        "replaced": dict(writing.replaced),
        "late": sorted(writing.running.going_on()),
        "notices": {name: [str(each) for each in told] for name, told in said.notices.items()},
        "waiting": said.waiting,
        "problems": said.problems,
    }
