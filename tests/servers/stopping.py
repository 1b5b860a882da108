"""Servers that are frozen: they neither answer nor close a connection."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from pathlib import Path


def freeze(pids: Iterable[int]) -> None:
    """Stop processes from running; return once no thread of theirs does: on a busy machine, one may go on for a while.

    A process that has ended is as good as stopped.
    """
    stopping = list(pids)
    for pid in stopping:
        os.kill(pid, signal.SIGSTOP)
    moment = threading.Event()
    while any(_runs(pid) for pid in stopping):
        moment.wait(0.01)


def _runs(pid: int) -> bool:
    try:
        states = [_state(thread / "stat") for thread in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(state not in {"T", "Z", "X"} for state in states)


def _state(stat: Path) -> str:
    """Return the letter that follows a thread's name, which is in brackets and may hold anything."""
    return stat.read_text().rpartition(")")[2].split()[0]
