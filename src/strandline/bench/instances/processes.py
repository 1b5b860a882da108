"""Processes of the command line: a controller and its replicas, which are started, killed and started again.

A site is a project in a directory, with what runs over its location.  What each process says is appended to a file of
its own, whatever becomes of the process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final, Self

CONTROLLER: Final = "controller"
SAYING_S: Final = 180.0
"""How long a process may take to say what it is waited for."""
ENDING_S: Final = 180.0
POLL_S: Final = 0.05


def free_ports(count: int) -> tuple[int, ...]:
    """Return ports of loopback at which nothing listens now."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(each.getsockname()[1] for each in sockets)


class Process:
    """`strandline` with ``arguments``, in a session of its own; ``log`` gets what it writes on both streams."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.log = log
        self._before = log.stat().st_size if log.exists() else 0  # what processes before it said
        with log.open("a") as out:
            self._popen = self._started([sys.executable, "-m", "strandline", *arguments], out)

    def _started(self, command: list[str], out: IO[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=out, stderr=out, text=True, start_new_session=True)  # noqa: S603 - ours

    @property
    def pid(self) -> int:
        """Its process."""
        return self._popen.pid

    @property
    def said(self) -> str:
        """What it has said so far."""
        return self.log.read_text()[self._before :]

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None

    def said_at_ms(self, words: str) -> int:
        """Return when it logged the first line that has ``words``, which it has."""
        line = next(each for each in self.said.splitlines() if words in each)
        return round(datetime.fromisoformat(line.split()[0].removeprefix("timestamp=")).timestamp() * 1000)

    def until(self, words: str, seconds: float = SAYING_S) -> None:
        """Wait until it has said ``words``."""
        pause = threading.Event()
        for _ in range(round(seconds / POLL_S)):
            if words in self.said:
                return
            assert self.runs, f"it ended: {self.said}"
            pause.wait(POLL_S)
        raise AssertionError(f"{words!r} was not said within {seconds} s: {self.said}")

    def end(self, how: int = signal.SIGTERM) -> int:
        """Send it, and all that it started, a signal; return its status once it has ended."""
        if self.runs:
            os.killpg(self._popen.pid, how)
        return self._popen.wait(ENDING_S)


@dataclass
class Site:
    """A project in ``root`` with an instance ``x`` of the ``replicas``, if any, and the processes that run it.

    ``settings``: what its `strandline.yml` says besides, as JSON has it.
    """

    root: Path
    replicas: tuple[str, ...]
    settings: Mapping[str, Any]
    processes: dict[str, Process] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ports = free_ports(len(self.replicas))
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip(self.replicas, ports, strict=True)}
        instances = {"instances": {"x": {"replicas": self.addresses}}} if self.addresses else {}
        self.write({"strandline.yml": json.dumps({**self.settings, **instances})})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.processes.values():
            each.end(signal.SIGKILL)

    def write(self, files: Mapping[str, str]) -> None:
        """Write files of the project."""
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def start(self, name: str) -> Process:
        """Start the controller or a replica; the one before, if any, has ended."""
        does = ["run"] if name == CONTROLLER else ["replica", "--listen", self.addresses[name]]
        arguments = [*does, "--json", "--project", str(self.root)]
        self.processes[name] = Process(arguments, self.root / f"{name}.log")
        return self.processes[name]

    def complete(self) -> None:
        """Start what does not run: the controller, which may have to make the location, and then the replicas."""
        for names, words in (((CONTROLLER,), "event=running"), (self.replicas, "event=listening")):
            started = [self.start(each) for each in names if not self._has(each)]
            for each in started:
                each.until(words)

    def _has(self, name: str) -> bool:
        return name in self.processes and self.processes[name].runs

    def kill(self, name: str) -> None:
        """Kill a process where it stands."""
        self.processes[name].end(signal.SIGKILL)
