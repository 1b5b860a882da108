"""`strandline verify`: compute from scratch, compare both ways, and repair a difference.

Only the writer may repair.  While another process runs the environment, its next step compares the stored contents and
corrects them, and this command compares again until that has happened.  If no process runs the environment, this
command opens the location for writing and repairs.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from strandline import Verification
from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.lasting import noted, stage
from strandline.cli.terminal.opening import Asked, Opener
from strandline.cli.terminal.output import Output
from strandline.controller.defining.project.settings import Project
from strandline.plane import verifying
from strandline.store.clock import SystemClock

PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to verify, and whether to repair; ``wait_s``: how long a running writer may take for it."""

    name: str
    as_of: int | None
    repair: bool
    wait_s: float


def verify(opener: Opener, root: Path, wanted: Wanted, output: Output) -> Exit:
    """Verify, repair if requested, and return 0 or 3."""
    project = opener.project(root)
    with noted("opening the location", output):
        opened = opener.reading(project, output.note)
    with opened as env:
        with noted(f"verifying {wanted.name}", output, far=lambda: stage(env, verifying(wanted.name))):
            found = env.verify(wanted.name, as_of=wanted.as_of)
        writer = None if found.ok else env.written_by()
        if not found.ok and wanted.repair:
            output.note(str(found))
            if writer is not None:
                found = _wait(env, wanted, writer, output)
    if not found.ok and wanted.repair and writer is None:
        found = _repair(opener, project, wanted, output)
    output.result(document(found), str(found))
    return Exit.OK if found.ok else Exit.DIFFERENCE


def document(found: Verification) -> dict[str, Any]:
    """Return a verification as ``--json`` prints it."""
    return {
        "name": found.name,
        "as_of": found.as_of,
        "ok": found.ok,
        "missing": found.missing,
        "extra": found.extra,
        "repaired": found.repaired,
        "sample": found.sample.to_pylist(),
        **({"tables": [document(table) for table in found.tables]} if found.tables else {}),
    }


def _wait(env: Asked, wanted: Wanted, writer: str, output: Output) -> Verification:
    """Compare again until the running writer has corrected the difference, or ``wait_s`` has passed."""
    output.note(f"{writer} is running: waiting up to {wanted.wait_s:g} s for its next step to correct this")
    deadline = time.monotonic() + wanted.wait_s
    while True:
        found = env.verify(wanted.name)
        if found.ok:
            return replace(found, repaired=True)
        if time.monotonic() >= deadline:
            output.note(f"after {wanted.wait_s:g} s it is not corrected: see `strandline status` for a problem")
            return found
        asyncio.run(SystemClock().sleep(PAUSE_S))


def _repair(opener: Opener, project: Project, wanted: Wanted, output: Output) -> Verification:
    output.note("no process is running this environment: repairing it here")
    with opener.writing(project) as env:
        return env.verify(wanted.name, repair=True)
