"""Progress: what this process has done for its environment so far, from memory alone.

`status.status` reads the location and is the same in every process.  Progress is known only to the process that
writes, and `strandline run` reports it after each tick.

Source: design page "environment" (long work shows its progress).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from strandline.controller.core import Core


def progress(core: Core) -> dict[str, Any]:
    """Return counters since this process opened the environment, its last tick's steps, and the problems there are.

    ``sources``: records read, read again, made durable, in error.  ``steps``: stage to number of input updates read.
    """
    writing = core.require_writing()
    return {
        "epoch": writing.epoch,
        "sources": {
            name: {
                "read_records": source.status.read_records,
                "reread_records": source.status.reread_records,
                "durable_records": source.status.durable_records,
                "error_records": source.status.error_records,
            }
            for name, source in writing.instance.ingestions.items()
        },
        "steps": {name: done.rows_read for name, done in writing.instance.last_tick.stepped.items()},
        "materializations": {
            name: {
                "transactions": task.status.committed.transactions,
                "rows_stored": task.status.committed.stored,
                "rows_deleted": task.status.committed.deleted,
                "moving": asdict(task.status.moving),
            }
            for name, task in writing.instance.tasks.items()
        },
        "notices": core.notices(),
        "problems": core.all_problems(),
    }
