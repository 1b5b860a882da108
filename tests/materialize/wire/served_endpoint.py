"""A DuckDB file behind a connector, for the driver contract."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from strandline.materialize.driver import Session
from strandline.materialize.protocol.task import NOTHING, Checkpoint
from strandline.materialize.wire.connector import ConnectorDriver
from strandline.materialize.wire.options import CodecName, ConnectorOptions
from strandline.materialize.wire.session import ConnectorSession
from strandline.store.secret import Secret

T = TypeVar("T")

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LOCK_WAITS_MAX = 20_000
ALIVE_MAX = 5


@contextmanager
def fork_server(path: Path) -> Iterator[str]:
    """Run a `fork_server`; give the command of its connectors."""
    place = path / "fork"
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, str(HERE / "fork_server.py"), str(place)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        try:
            yield f"{sys.executable} -I -S {HERE / 'relay.py'} {place}"
        finally:
            server.kill()


class ServedDuckDB:
    """One DuckDB file that only connectors write."""

    fences = True

    def __init__(self, path: Path, command: str, codec: CodecName) -> None:
        self.path = path
        self._sessions: deque[ConnectorSession] = deque()
        self._options = ConnectorOptions(
            command=command, codec=codec, config=Secret(json.dumps({"path": str(path)})), environment="PYTHONPATH"
        )

    def driver(self) -> ConnectorDriver:
        """Return one more driver to the connector.

        A crash that is simulated leaves the connector of the runtime that died; it goes when there are some newer ones.
        """
        sessions = self._sessions

        class Driver(ConnectorDriver):
            async def open(self) -> Session:
                session = await super().open()
                sessions.append(session)
                if len(sessions) > ALIVE_MAX:
                    sessions.popleft()._child.abandon()
                return session

        return Driver(self._options)

    def died(self) -> None:
        """End the connectors of the runtimes that died, as their guards do; one that opens late would fence others."""
        while self._sessions:
            self._sessions.popleft()._child.abandon()

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table; none if there is no such table."""
        name = '"' + table.replace('"', '""') + '"'

        def read(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
            # Arrow ends a column's name at its first NUL.
            columns = [column for column, *_ in connection.execute(f"DESCRIBE {name}").fetchall()]
            return connection.sql(f"SELECT * FROM {name}").to_arrow_table().rename_columns(columns).to_pylist()

        return self._read(read, [])

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return the checkpoint in the file."""
        text = "SELECT checkpoint FROM strandline_checkpoints WHERE materialization = ?"
        rows = self._read(lambda connection: connection.execute(text, [name]).fetchall(), [])
        return Checkpoint.decode(rows[0][0]) if rows else NOTHING

    def _read(self, read: Callable[[duckdb.DuckDBPyConnection], T], otherwise: T) -> T:
        """Read the file while no connector writes it."""
        if not self.path.exists():
            return otherwise
        for _ in range(LOCK_WAITS_MAX):
            try:
                with duckdb.connect(str(self.path), read_only=True) as connection:
                    return read(connection)
            except duckdb.CatalogException:
                return otherwise
            except duckdb.IOException:
                threading.Event().wait(0.005)
        raise AssertionError(f"{self.path} stays locked")
