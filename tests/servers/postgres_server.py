"""A PostgreSQL of our own: Debian's binaries, a cluster in a temporary directory, gone when the tests are.

It listens on a socket in its directory and on one loopback port, runs as an unprivileged user (it refuses to run as
root), and has its durability on: what is tested is what is promised.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

USER: Final = "strandline"
DATABASE: Final = "postgres"
UNPRIVILEGED: Final = ("postgres", "nobody")
"""Whose rights the server gets when the tests run as root: the first of these that the machine has."""
START_SECONDS_MAX: Final = 60


@dataclass(frozen=True)
class PostgresServer:
    """A running cluster."""

    directory: Path
    port: int
    binaries: Path

    @property
    def url(self) -> str:
        """How to connect over the loopback port."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def socket_url(self) -> str:
        """How to connect over the socket."""
        return f"postgresql://{USER}@/{DATABASE}?host={self.directory}&port={self.port}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = f"-p {self.port} -k {self.directory} -c listen_addresses=127.0.0.1"
        self._control("start", "-w", "-t", str(START_SECONDS_MAX), "-l", str(self.directory / "log"), "-o", options)

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``fast``, or ``immediate`` as a power cut would."""
        self._control("stop", "-w", "-m", mode)

    def revive(self) -> None:
        """Start it, if it does not run."""
        if not (self.directory / "data" / "postmaster.pid").exists():
            self.start()

    def _control(self, *arguments: str) -> None:
        _run([str(self.binaries / "pg_ctl"), "-D", str(self.directory / "data"), *arguments], self.directory)

    def freeze(self) -> None:
        """Stop it from running: it neither answers nor closes a connection."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        head = int((self.directory / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{head}/task/{head}/children").read_text().split()
        return [head, *map(int, children)]


def binaries() -> Path | None:
    """Return where PostgreSQL's programs are, the newest version's, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name))
    if found:
        return found[-1].parent
    there = shutil.which("initdb")
    return Path(there).resolve().parent if there else None


def make(directory: Path, programs: Path) -> PostgresServer:
    """Make a cluster below ``directory``, which is empty and is given to the user that the server runs as."""
    if os.geteuid() == 0:
        shutil.chown(directory, _unprivileged().pw_name)
    data = str(directory / "data")
    command = [str(programs / "initdb"), "-D", data, "-U", USER, "--auth=trust", "--encoding=UTF8", "--no-locale"]
    _run([*command, "--no-instructions"], directory)
    return PostgresServer(directory, _free_port(), programs)


def _run(command: list[str], directory: Path) -> None:
    user = _unprivileged() if os.geteuid() == 0 else None
    environment = {**os.environ, "HOME": str(directory), "LC_ALL": "C"}
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        extra_groups=[] if user else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=2 * START_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        log = directory / "log"
        raise RuntimeError(f"{command[0]}: {done.stderr}\n{log.read_text() if log.exists() else ''}")


def _unprivileged() -> pwd.struct_passwd:
    entries = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(entries[name] for name in UNPRIVILEGED if name in entries)


def _free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
