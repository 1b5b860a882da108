"""A MariaDB of our own: Debian's programs, data in a temporary directory, gone when the tests are.

It listens on a socket in its directory and on one loopback port, runs as an unprivileged user, and has its durability
on: what is tested is what is promised.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pymysql

from kafka_server import die_with_parent

USER: Final = "strandline"
PASSWORD: Final = "not a secret"
UNPRIVILEGED: Final = ("mysql", "nobody")
"""Whose rights the server gets when the tests run as root: the first of these that the machine has."""
START_SECONDS_MAX: Final = 180
SETTINGS: Final = (
    "--bind-address=127.0.0.1",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=16M",
    "--innodb-lock-wait-timeout=100",
    "--max-connections=300",
)
HOSTILE: Final = """SET GLOBAL sql_mode = 'NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,PAD_CHAR_TO_FULL_LENGTH',
GLOBAL time_zone = '+05:45', GLOBAL character_set_server = latin1, GLOBAL sql_select_limit = 1,
GLOBAL completion_type = 'CHAIN', GLOBAL sql_safe_updates = 1, GLOBAL tx_read_only = 1"""
"""What an operator may have set: no value, and no row, depends on that."""
PLAIN: Final = """SET sql_mode = 'STRICT_ALL_TABLES', time_zone = '+00:00', sql_select_limit = 18446744073709551615,
completion_type = 'NO_CHAIN', sql_safe_updates = 0, tx_read_only = 0"""
"""What the tests' own sessions say: what they see is not under test."""
_NUMBERS: Final = itertools.count()


@dataclass
class MariaDBServer:
    """A server."""

    directory: Path
    port: int
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the server, wait until it answers, and make the user of the tests if there is none."""
        daemon = shutil.which("mariadbd") or "/usr/sbin/mariadbd"
        socket_path = self.directory / "socket"
        command = [daemon, "--no-defaults", f"--datadir={self.directory / 'data'}", f"--socket={socket_path}"]
        command += [f"--port={self.port}", f"--pid-file={self.directory / 'pid'}", *SETTINGS]
        log = (self.directory / "log").open("ab")
        self._process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=self.directory,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one call of libc, in a process with no lock of ours
            **_rights(),
        )
        log.close()
        until = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                with closing(pymysql.connect(unix_socket=str(socket_path), user="root", autocommit=True)) as root:
                    grant = f"GRANT ALL ON *.* TO '{USER}'@'%' IDENTIFIED BY '{PASSWORD}' WITH GRANT OPTION"
                    root.cursor().execute(grant)
                    root.cursor().execute(HOSTILE)
                return
            except pymysql.MySQLError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self.directory / "log").read_text()) from None
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.1)

    def stop(self) -> None:
        """Stop it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def connect(self, database: str | None = None) -> Any:
        """Return a connection of the tests' own."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            database=database,
            autocommit=True,
            init_command=PLAIN,
        )

    @contextmanager
    def database(self) -> Iterator[str]:
        """A database of its own."""
        name = f"test_{next(_NUMBERS)}"
        with closing(self.connect()) as connection:
            connection.cursor().execute(f"CREATE DATABASE {name}")
            try:
                yield name
            finally:
                connection.cursor().execute(f"DROP DATABASE {name}")


def programs() -> bool:
    """Tell whether the machine has MariaDB's programs."""
    needed = ("mariadb-install-db", "my_print_defaults")  # the first calls the second
    return all(map(shutil.which, needed)) and (
        shutil.which("mariadbd") is not None or Path("/usr/sbin/mariadbd").exists()
    )


def make(directory: Path) -> MariaDBServer:
    """Make a server's data below ``directory``, which is empty and is given to the user that the server runs as."""
    if os.geteuid() == 0:
        shutil.chown(directory, _unprivileged().pw_name)
    command = ["mariadb-install-db", "--no-defaults", f"--datadir={directory / 'data'}", "--skip-test-db"]
    done = subprocess.run(
        [*command, "--auth-root-authentication-method=normal"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        **_rights(),
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stdout}{done.stderr}")
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return MariaDBServer(directory, int(listener.getsockname()[1]))


def _rights() -> dict[str, Any]:
    if os.geteuid():
        return {}
    user = _unprivileged()
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _unprivileged() -> pwd.struct_passwd:
    entries = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(entries[name] for name in UNPRIVILEGED if name in entries)
