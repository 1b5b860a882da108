"""A copy of the project in which mistakes are planted, and the process that runs tests there (`mutant_worker.py`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import mutant_worker
import stages

Work = TypeVar("Work")


class Copy:
    """One copy and its worker."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "copy"
        self._answer = directory / "answer"
        self._written = 1_000_000_000
        copy_project(self.root)
        self._process = subprocess.Popen(
            [sys.executable, str(stages.ROOT / "tools" / "mutant_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(stages.ROOT / "tools")},
        )

    def write(self, path: str, text: str) -> None:
        """Write a file of the copy, at a time of its own: else compiled code of another text might be taken for its."""
        self._written += 10
        (self.root / path).write_text(text)
        os.utime(self.root / path, (self._written, self._written))

    def run(
        self,
        files: Iterable[str],
        chosen: Iterable[str] = (),
        *,
        of: Iterable[str] = (),
        seconds: float,
        spark: bool = False,
        record: bool = False,
    ) -> int | None:
        """Run tests (a `Task` of `mutant_worker.py`); return the status of pytest, or None if they took too long."""
        self._answer.unlink(missing_ok=True)
        task = mutant_worker.Task(
            root=str(self.root),
            files=list(files),
            chosen=list(chosen),
            stages=list(of),
            record=record,
            seconds=seconds,
            spark=spark,
            answer=str(self._answer),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{mutant_worker.written(task)}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the worker has ended; its output says why"
        status: int | None = json.loads(line)
        return status

    @property
    def answer(self) -> str | None:
        """What the plugin of the last run wrote."""
        return self._answer.read_text() if self._answer.exists() else None

    @property
    def output(self) -> str:
        """What the last run printed."""
        return self._answer.with_suffix(".output").read_text(errors="replace")

    def end(self) -> None:
        """End the worker."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def copy_project(to: Path) -> None:
    """Copy the files that git knows or would add, as they are now."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=stages.ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (stages.ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(stages.ROOT / name, to / name)


def share(copies: list[Copy], do: Callable[[Copy, Work], None], works: Iterable[Work]) -> None:
    """Do each work in a copy that is free."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(work: Work) -> None:
        copy = free.get()
        try:
            do(copy, work)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as runners:
        list(runners.map(one, works))
