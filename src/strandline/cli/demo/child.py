"""The parent's side of the worker: starts it, sends requests, kills it without warning, and restarts it.

The worker leads its own process group, so that a kill ends the JVM too, as a crash of the machine would.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from strandline.cli.demo.worker import Answer, Request
from strandline.cli.terminal.exits import wants_traceback
from strandline.errors import StrandlineError, Unavailable

CLOSE_S_MAX: Final = 30.0


class Child:
    """A worker on the project in ``root``.  Use as a context: at the end it closes, or is killed if it does not."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[str] | None = None
        self.restarts = 0

    def __enter__(self) -> Self:
        """Start the worker."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        if self._process is None:
            return
        if error is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_S_MAX)
        self._end()

    def start(self) -> Answer:
        """Start a worker and return its first answer, when it is ready."""
        self._process = subprocess.Popen(  # noqa: S603  # our own module
            [sys.executable, "-m", "strandline.cli.demo.worker", str(self._root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if wants_traceback() else subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        return self._answer()

    def ask(self, request: Request) -> Answer:
        """Return the answer to ``request``.

        Raises:
            StrandlineError: the request failed.
            Unavailable: the worker has ended.
        """
        self._send(request)
        return self._answer()

    def kill_during(self, request: Request, after_s: float) -> bool:
        """Send a request, kill the worker ``after_s`` seconds later; return whether that was before its answer."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._send(request)
        answered, _, _ = select.select([self._process.stdout], [], [], after_s)
        self._end()
        return not answered

    def restart(self) -> Answer:
        """Start again after a kill, without any cleanup in between."""
        self.restarts += 1
        return self.start()

    def _send(self, request: Request) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(request).decode() + "\n")
        self._process.stdin.flush()

    def _answer(self) -> Answer:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable(
                f"the demo's worker has ended with status {self._process.wait()}; STRANDLINE_TRACEBACK=1 shows why"
            )
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error:
            raise StrandlineError(answer.error)
        return answer

    def _end(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):  # it has already ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
