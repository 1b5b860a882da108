"""Runtimes as processes, from the side of a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from kafka_server import die_with_parent

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LOOK_S = 0.01


def wait(seconds: float) -> None:
    """Wait."""
    threading.Event().wait(seconds)


class Nursery:
    """See `nursery`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._numbers = count()

    def start(self, root: Path, **arguments: Any) -> Runtime:
        """Start a runtime."""
        out = root / f"runtime-{next(self._numbers)}.jsonl"
        out.touch()
        return Runtime(self, self.asked({"start": {"root": str(root), **arguments}, "out": str(out)}), out)

    def asked(self, request: dict[str, Any]) -> Any:
        """Return the answer to a request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Runtime:
    """A runtime's process, and what it has said."""

    def __init__(self, nursery: Nursery, pid: int, out: Path) -> None:
        self.pid = pid
        self.out = out
        self._nursery = nursery
        self._end: dict[str, int] | None = None

    def said(self, what: str) -> list[Any]:
        """Return all that it has said of something; a kill may have cut the last line off."""
        lines = self.out.read_text().split("\n")[:-1]
        return [found[what] for line in lines if what in (found := json.loads(line))]

    @property
    def complaints(self) -> str:
        """What it wrote to stderr, and its last problems."""
        err = self.out.with_suffix(".err")
        return f"{err.read_text()[-4000:] if err.exists() else ''} {self.said('problem')[-3:]}"

    def became(self) -> dict[str, int] | None:
        """Return how it ended, or that it is stopped; None: it runs."""
        if self._end is None or "stopped" in self._end:
            self._end = self._nursery.asked({"ask": self.pid}) or self._end
        return self._end

    def wait_until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Return once something is ``done``; it may not end before."""
        for _ in range(int(seconds / LOOK_S)):
            if done():
                return
            assert self.became() is None, f"{what}: it ended: {self.became()} {self.complaints}"
            wait(LOOK_S)
        raise AssertionError(f"{what}: not within {seconds} s: {self.complaints}")

    def ended(self, seconds: float) -> dict[str, int] | None:
        """Return how it ended, or was stopped, within so many seconds; None if it still runs."""
        for _ in range(int(seconds / LOOK_S)):
            if (found := self.became()) is not None:
                return found
            wait(LOOK_S)
        return None

    def wake(self) -> None:
        """Let a stopped process go on."""
        self._end = None
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it without warning."""
        if self._end is None or "stopped" in self._end:
            os.kill(self.pid, signal.SIGKILL)
            self._end = None
            assert self.ended(60) == {"killed": signal.SIGKILL}, self.complaints

    def descendants(self) -> list[int]:
        """Return the processes that it started, and what these started."""
        found, waiting = list[int](), [self.pid]
        while waiting:
            pid = waiting.pop()
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                waiting += map(int, task.read_text().split())
            found.append(pid)
        return found[1:]


@contextmanager
def nursery() -> Iterator[Nursery]:
    """Run a nursery."""
    command = [sys.executable, "-m", "tests.kill.endpoints.nursery"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - one call of libc, in a process with no lock of ours
    ) as process:
        try:
            yield Nursery(process)
        finally:
            process.kill()
