"""Endpoints of the kill campaign: how a runtime finds one, what can be killed there, and what it holds.

`Place.check` is called after a kill, before anything goes on: what is there then is all that a reader would find until
an operator comes.  `Place.check_whole` is called at rest.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from tests.kill.endpoints.changing import KEPT, PUSHED, Changing
from tests.kill.endpoints.processes import Runtime, wait
from tests.materialize.drivers.kafka.topics_under_test import Topics
from tests.materialize.drivers.redis.redis_endpoint import RedisDatabase
from tests.materialize.drivers.sql.cutting_proxy import CuttingProxy
from tests.materialize.drivers.webhook.receiving import Hooks

from kafka_server import KafkaServer
from postgres_server import PostgresDatabase
from redis_server import PASSWORD, RedisServer
from strandline.materialize.drivers.staged.place import path_part
from strandline.materialize.protocol.task import NOTHING, Checkpoint, MaterializationSpec, canonical
from strandline.testing.contracts.drivers.push_contract import check_latest, distinct

MARKED_S_MAX = 120.0
"""How long Kafka may take to mark a transaction in all of its topics that it has committed."""
Tables = Mapping[str, list[str]]


@dataclass
class Place:
    """An endpoint.  ``victims``: what may be killed there besides the runtime; each is killed and comes back."""

    kind: str
    options: dict[str, str]
    push: bool = False
    keeps: bool = True
    """Whether it has a checkpoint of its own."""
    victims: dict[str, Callable[[Runtime], None]] = field(default_factory=dict)

    @property
    def spec(self) -> MaterializationSpec:
        """What is materialized."""
        return PUSHED if self.push else KEPT

    def held(self) -> tuple[Checkpoint | None, Tables]:
        """Return the checkpoint, and the rows of each table, of one moment."""
        raise NotImplementedError

    def check(self, changing: Changing) -> int:
        """Check what is there, whenever it is; return the time that it is known to have reached."""
        checkpoint, tables = self.held()
        assert checkpoint is not None
        time = checkpoint.time(self.spec.state_keys)
        self._same(changing, tables, time)
        return time

    def check_whole(self, changing: Changing, time: int) -> None:
        """Check what is there at rest: exactly the collections before ``time``."""
        assert self.check(changing) <= time
        self._same(changing, self.held()[1], time)

    def _same(self, changing: Changing, tables: Tables, time: int) -> None:
        for binding in KEPT.bindings:
            assert tables[binding.resource] == changing.truth(binding, time), f"{binding.resource} at {time}"


class SQLitePlace(Place):
    """A file."""

    def __init__(self, path: Path) -> None:
        super().__init__("sqlite", {"path": str(path)})
        self.path = path

    def held(self) -> tuple[Checkpoint | None, Tables]:
        if not self.path.exists():
            return NOTHING, {binding.resource: [] for binding in KEPT.bindings}
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            there = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema").fetchall()}
            tables = {
                b.resource: _rows(connection.execute(f"SELECT s, f, k FROM {b.resource}"))
                if b.resource in there
                else []
                for b in KEPT.bindings
            }
            if "strandline_checkpoints" not in there:
                return NOTHING, tables
            found = connection.execute("SELECT checkpoint FROM strandline_checkpoints").fetchall()
            connection.execute("COMMIT")
        return Checkpoint.decode(found[0][0]) if found else NOTHING, tables


class DeltaPlace(Place):
    """Tables of Delta Lake in a directory."""

    def __init__(self, root: Path) -> None:
        super().__init__("delta", {"path": str(root)}, keeps=False)
        self.root = root

    def held(self) -> tuple[Checkpoint | None, Tables]:
        return None, {binding.resource: self._rows(binding.resource) for binding in KEPT.bindings}

    def check(self, changing: Changing) -> int:
        return changing.progress().checkpoint.time(KEPT.state_keys)

    def _rows(self, table: str) -> list[str]:
        try:
            stored = DeltaTable(str(self.root / path_part(table)))
        except TableNotFoundError:
            return []
        return sorted(map(canonical, stored.to_pyarrow_table().select(["s", "f", "k"]).to_pylist()))


class ConnectorPlace(SQLitePlace):
    """The same behind a process of its own: our driver as a connector."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        command = f"{sys.executable} -m strandline driver serve sqlite"
        config = path.with_suffix(".config")
        config.write_text(f'{{"path": "{path}"}}')
        self.kind = "connector"
        self.options = {"command": command, "config": f"file:{config}", "environment": "PYTHONPATH,PATH,HOME"}
        self.victims = {"driver": self._kill_driver}

    def _kill_driver(self, runtime: Runtime) -> None:
        for pid in runtime.descendants():
            if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)


class PostgresPlace(Place):
    """A database; the runtime reaches it through a proxy that can withhold the answer to COMMIT."""

    def __init__(self, database: PostgresDatabase, proxy: CuttingProxy) -> None:
        super().__init__("postgres", {**database.options, "port": str(proxy.port)})
        self.database = database
        self.proxy = proxy
        self.victims = {"postmaster": self._kill_postmaster, "backend": self._kill_backend}

    def held(self) -> tuple[Checkpoint | None, Tables]:
        with self.database.session() as session:
            session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            there = {n for (n,) in session.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
            tables = {
                b.resource: _rows(session.execute(f'SELECT s, f, k FROM "{b.resource}"')) if b.resource in there else []
                for b in KEPT.bindings
            }
            if "strandline_checkpoints" not in there:
                return NOTHING, tables
            found = session.execute("SELECT checkpoint FROM strandline_checkpoints").fetchall()
            return Checkpoint.decode(found[0][0]) if found else NOTHING, tables

    def _kill_postmaster(self, _: Runtime) -> None:
        self.database.server.kill()
        self.database.server.start()

    def _kill_backend(self, runtime: Runtime) -> None:
        """Kill the session's process on the server when it has committed, and before its answer is read."""
        killed: list[int] = []

        def kill() -> None:
            with self.database.session() as session:
                found = session.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name = 'strandline' AND datname = %s",
                    (self.database.name,),
                ).fetchall()
            for (pid,) in found:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        self.proxy.meanwhile = kill
        self.proxy.cut = "done"
        runtime.wait_until(lambda: bool(killed), 240, "a commit")
        self.proxy.meanwhile = lambda: None
        while not self.database.server.answers():  # the others were ended, too: it recovers
            wait(0.05)


class RedisPlace(Place):
    """A database of a server that writes each change to its file first."""

    def __init__(self, server: RedisServer, database: int, secret: Path) -> None:
        secret.write_text(PASSWORD)
        options = {"server": server.place, "database": str(database), "password": f"file:{secret}"}
        super().__init__("redis", options, keeps=False)
        self.seen = RedisDatabase(server, database)
        self.victims = {"server": self._kill_server}

    def held(self) -> tuple[Checkpoint | None, Tables]:
        return None, {b.resource: sorted(map(canonical, self.seen.rows(b.resource))) for b in KEPT.bindings}

    def check(self, changing: Changing) -> int:
        """Each key is as before the transaction that was cut off, or as after it, and there is no other one."""
        progress = changing.progress()
        time = progress.checkpoint.time(self.spec.state_keys)
        extent = progress.extent
        cut = extent.upper if extent is not None and extent.base == progress.checkpoint else time
        for binding in KEPT.bindings:
            found = {row["k"]: canonical(row) for row in self.seen.rows(binding.resource)}
            before, after = changing.values(binding, time), changing.values(binding, cut)
            for k in sorted({*found, *before, *after}):
                assert found.get(k) in {before.get(k), after.get(k)}, f"{binding.resource} {k}, in [{time}, {cut})"
        return time

    def _kill_server(self, _: Runtime) -> None:
        self.seen.server.kill()
        self.seen.server.start()


class PushPlace(Place):
    """What is pushed, as a consumer takes it: it drops what it has already, and keeps the last row of each key."""

    seen: Any

    def check_whole(self, changing: Changing, time: int) -> None:
        for binding in PUSHED.bindings:
            records = distinct(self.seen, binding)
            check_latest(binding, records, time, changing.changed(binding, time))


class KafkaPlace(PushPlace):
    """Topics; a consumer reads what is committed, and gets nothing twice."""

    def __init__(self, server: KafkaServer) -> None:
        self.seen = Topics(server)
        options = {"servers": server.servers, "partitions": "1", "checkpoints": self.seen.options.checkpoints}
        super().__init__("kafka", options, push=True)
        self.victims = {"server": self._kill_server}

    def check(self, changing: Changing) -> int:
        """Check at the checkpoint; a transaction appears in one topic after the other."""
        for tries_left in reversed(range(int(MARKED_S_MAX / 0.1))):
            try:
                time = self.seen.checkpoint(PUSHED.name).time(PUSHED.state_keys)
                self.check_whole(changing, time)
                break
            except AssertionError:
                if not tries_left:
                    raise
                wait(0.1)
        return time

    def _kill_server(self, _: Runtime) -> None:
        self.seen.server.kill()
        self.seen.server.start()


class WebhookPlace(PushPlace):
    """A receiver, which is asked again: what comes twice is the same, and says so."""

    def __init__(self, hooks: Hooks) -> None:
        super().__init__("webhook", {"url": hooks.options.url, "batch_rows": "20"}, push=True, keeps=False)
        self.seen = hooks

    def check(self, changing: Changing) -> int:
        for binding in PUSHED.bindings:
            distinct(self.seen, binding)
        return changing.progress().checkpoint.time(PUSHED.state_keys)


def _rows(found: Any) -> list[str]:
    return sorted(canonical({"s": s, "f": f, "k": k}) for s, f, k in found.fetchall())


@contextmanager
def proxied(database: PostgresDatabase) -> Iterator[CuttingProxy]:
    """Run a proxy before the server."""
    proxy = CuttingProxy(database.server.port, b"COMMIT\0")
    try:
        yield proxy
    finally:
        proxy.close()
