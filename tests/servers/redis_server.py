"""A Redis of our own: one server in a temporary directory, gone when the tests are.

It listens on loopback, wants `PASSWORD`, and writes each change to its file before it answers.  The program is that of
Debian's package `redis-server`, which `tools/setup --servers` installs.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis

from kafka_server import die_with_parent

PASSWORD: Final = "not-a-secret"
START_SECONDS_MAX: Final = 180


@dataclass
class RedisServer:
    """One server, which runs after `start`."""

    program: str
    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> str:
        """Where it answers."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.directory),
            "requirepass": PASSWORD,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "databases": "1024",
        }
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, *(part for name, text in settings.items() for part in (f"--{name}", text))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one call of libc, in a process with no lock of ours
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Redis does not start: {(self.directory / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """End it as a power cut does."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(60)
            self.process = None

    def revive(self) -> None:
        """Start it on the same port, if it does not run."""
        if self.process is None:
            self.start()

    def client(self, database: int = 0, **how: Any) -> redis.Redis:
        """Return a client of a database."""
        return redis.Redis(port=self.port, db=database, password=PASSWORD, **how)

    def _answers(self) -> bool:
        try:
            with closing(self.client()) as client:
                return bool(client.ping())
        except redis.exceptions.ConnectionError:
            return False


def make(directory: Path) -> RedisServer | None:
    """Make a server below ``directory``, which is empty; None if the program is not here."""
    program = shutil.which("redis-server")
    if program is None:
        return None
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return RedisServer(program, directory, int(listener.getsockname()[1]))
