"""A PostgreSQL of our own: Debian's binaries, a cluster in a temporary directory, gone when the tests are.

It listens on a socket in its directory and on one loopback port, runs as an unprivileged user (it refuses to run as
root), and has its durability on: what is tested is what is promised.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg
from stopping import freeze

USER: Final = "strandline"
DATABASE: Final = "postgres"
UNPRIVILEGED: Final = ("postgres", "nobody")
"""Whose rights the server gets when the tests run as root: the first of these that the machine has."""
START_SECONDS_MAX: Final = 180
SETTINGS: Final = {
    "wal_level": "logical",
    "max_replication_slots": 30,
    "max_wal_senders": 30,
    "max_prepared_transactions": 5,
    "autovacuum": "off",  # what the log holds is what a test did
    "bgwriter_delay": "10s",
    "checkpoint_timeout": "1h",
}
HOSTILE: Final = {
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "DateStyle": "German, DMY",
    "default_transaction_isolation": "serializable",
    "extra_float_digits": "-3",
    "IntervalStyle": "sql_standard",
    "quote_all_identifiers": "on",
    "search_path": "nowhere",
    "standard_conforming_strings": "off",
    "TimeZone": "Asia/Kathmandu",
    "xmlbinary": "hex",
    "xmloption": "document",
}
"""What every role finds set in a database of a test's own, as an operator may set it: no value depends on that."""
PLAIN: Final = (
    "client_encoding=UTF8",
    "DateStyle=ISO",
    r"default_transaction_isolation=read\ committed",
    "extra_float_digits=1",
    "IntervalStyle=postgres",
    "search_path=public",
    "standard_conforming_strings=on",
    "xmloption=content",
)
"""What the tests' own sessions say: what they see is not under test."""


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

    @contextmanager
    def database(self, encoding: str = "UTF8") -> Iterator[PostgresDatabase]:
        """A database of its own, without tables, which goes with its slots."""
        name = f"test_{next(_NUMBERS)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
            for setting, value in HOSTILE.items():
                connection.execute(f"ALTER ROLE {USER} IN DATABASE {name} SET {setting} = '{value}'")
        made = PostgresDatabase(self, name)
        try:
            yield made
        finally:
            made.close()
            self.revive()
            with psycopg.connect(self.url, autocommit=True) as connection:
                self._drop(connection, name)

    def _drop(self, connection: psycopg.Connection, name: str) -> None:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        for _ in range(1200):  # a slot is free a moment after its session has ended
            active = connection.execute(
                "SELECT count(*) FROM pg_replication_slots WHERE database = %s AND active", (name,)
            ).fetchone()
            if active == (0,):
                break
            connection.execute("SELECT pg_sleep(0.1)")
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,)
        )
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = f"-p {self.port} -k {self.directory} -c listen_addresses=127.0.0.1"
        self._control("start", "-w", "-t", str(START_SECONDS_MAX), "-l", str(self.directory / "log"), "-o", options)

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``fast``, or ``immediate`` as a power cut would."""
        self._control("stop", "-w", "-m", mode)

    def kill(self) -> None:
        """End its first process without warning; return when nothing of it is left, as the next one wants it."""
        pids = self._pids()
        os.kill(pids[0], signal.SIGKILL)
        while any(Path(f"/proc/{pid}").exists() for pid in pids):  # its other processes notice it
            threading.Event().wait(0.01)

    def answers(self) -> bool:
        """Tell whether it takes connections."""
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def revive(self) -> None:
        """Start it, if it does not run."""
        if not (self.directory / "data" / "postmaster.pid").exists():
            self.start()

    def _control(self, *arguments: str) -> None:
        _run([str(self.binaries / "pg_ctl"), "-D", str(self.directory / "data"), *arguments], self.directory)

    def freeze(self) -> None:
        """Stop it from running: it neither answers nor closes a connection."""
        freeze(self._pids())

    def thaw(self) -> None:
        """Let it go on."""
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        head = int((self.directory / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{head}/task/{head}/children").read_text().split()
        return [head, *map(int, children)]


class PostgresDatabase:
    """A database of a test, and a session in it."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name
        said = quote(" ".join(f"-c{each}" for each in PLAIN))
        self.url = f"postgresql://{USER}@127.0.0.1:{server.port}/{name}?options={said}"
        self._session: psycopg.Connection | None = None

    @property
    def options(self) -> dict[str, str]:
        """How a source connects to it."""
        return {"host": "127.0.0.1", "port": str(self.server.port), "database": self.name, "user": USER}

    def run(self, *statements: str) -> list[tuple]:
        """Run statements, each in a transaction of its own; return what the last one answers."""
        if self._session is None or self._session.closed:
            self._session = psycopg.connect(self.url, autocommit=True)
        found: list[tuple] = []
        for statement in statements:
            cursor = self._session.execute(statement)
            found = cursor.fetchall() if cursor.description else []
        return found

    def session(self) -> psycopg.Connection:
        """Return another session, whose transactions are the caller's to end."""
        return psycopg.connect(self.url)

    def close(self) -> None:
        """End the session; the next statement begins another one."""
        if self._session is not None:
            self._session.close()
            self._session = None


_NUMBERS = itertools.count()


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
    with (directory / "data" / "postgresql.auto.conf").open("a") as settings:
        settings.write("".join(f"{name} = {value}\n" for name, value in SETTINGS.items()))
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
