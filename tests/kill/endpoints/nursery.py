"""Starts runtimes (`materializing`) as processes that are forked, since a fresh interpreter takes seconds to import.

A line of stdin is a request as JSON, a line of stdout its answer: ``{"start": arguments, "out": path}`` gives the
process id; ``{"ask": pid}`` what became of it, without waiting: null (it runs), or how it ended or was stopped.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.kill.endpoints import materializing

from kafka_server import die_with_parent


def started(arguments: dict[str, Any], out: Path) -> int:
    """Fork a runtime, whose output goes to two files."""
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent()
        for number, path in enumerate((Path(os.devnull), out, out.with_suffix(".err"))):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), number)
        status = materializing.main(arguments)
        sys.stderr.flush()
        os._exit(status)
    finally:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # only reached by an error
        os._exit(70)


def became(pid: int) -> dict[str, int] | None:
    """Return what became of a process."""
    found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
    if not found:
        return None
    if os.WIFSTOPPED(status):
        return {"stopped": os.WSTOPSIG(status)}
    return {"killed": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"exited": os.WEXITSTATUS(status)}


def main() -> None:
    """Answer until stdin ends."""
    for line in sys.stdin:
        request = json.loads(line)
        answer = started(request["start"], Path(request["out"])) if "start" in request else became(request["ask"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
