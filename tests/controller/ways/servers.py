"""Real servers as endpoints: each has a user who is let in, and may be shut out."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import kafka_server as kafka
import mariadb_server as mariadb
import redis_server as redis
from postgres_server import PostgresDatabase


class Server(Protocol):
    """A server with a user who is let in, and one who always is."""

    def options(self, user: str) -> str:
        """Return how the endpoint is named."""
        ...

    def shut_out(self) -> None:
        """Let the first user in no longer."""
        ...

    def let_in(self) -> None:
        """Let the first user in again."""
        ...

    def rows(self) -> list[Any]:
        """Return the rows of the table."""
        ...


@dataclass
class Postgres:
    """A database of PostgreSQL."""

    database: PostgresDatabase

    def __post_init__(self) -> None:
        """Make the user."""
        self.database.run(f"CREATE ROLE {self.user} LOGIN", f"GRANT ALL ON SCHEMA public TO {self.user}")

    @property
    def user(self) -> str:
        """Whose login is taken away."""
        return f"writer_{self.database.name}"

    def options(self, user: str) -> str:
        """See `Server`."""
        given = {**self.database.options, "user": self.user if user == "first" else self.database.options["user"]}
        named = [f"{name} '{value}'" for name, value in given.items()]
        return f"postgres OPTIONS ({', '.join(named)})"

    def shut_out(self) -> None:
        """See `Server`."""
        end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{self.user}'"
        self.database.run(f"ALTER ROLE {self.user} NOLOGIN", end)

    def let_in(self) -> None:
        """See `Server`."""
        self.database.run(f"ALTER ROLE {self.user} LOGIN")

    def rows(self) -> list[Any]:
        """See `Server`."""
        return self.database.run("SELECT k, x FROM public.o ORDER BY k")

    def close(self) -> None:
        """Drop the user."""
        self.database.run(f"DROP OWNED BY {self.user}", f"DROP ROLE {self.user}")


@dataclass
class MariaDB:
    """A database of MariaDB."""

    server: mariadb.MariaDBServer
    database: str
    path: Path

    def __post_init__(self) -> None:
        """Make the user."""
        self.run(f"CREATE USER {self.user} IDENTIFIED BY 'first'", f"GRANT ALL ON {self.database}.* TO {self.user}")
        (self.path / "first").write_text("first")
        (self.path / "other").write_text(mariadb.PASSWORD)

    @property
    def user(self) -> str:
        """Whose password is changed."""
        return f"writer_{self.database}"

    def options(self, user: str) -> str:
        """See `Server`."""
        name = self.user if user == "first" else mariadb.USER
        where = f"host '127.0.0.1', port '{self.server.port}', database '{self.database}'"
        return f"mariadb OPTIONS ({where}, user '{name}', password 'file:{self.path}/{user}')"

    def shut_out(self) -> None:
        """See `Server`."""
        self.run(f"SET PASSWORD FOR {self.user} = PASSWORD('another')", f"KILL USER {self.user}")

    def let_in(self) -> None:
        """See `Server`."""
        self.run(f"SET PASSWORD FOR {self.user} = PASSWORD('first')")

    def run(self, *statements: str) -> list[Any]:
        """Run statements; return what the last one answers."""
        with closing(self.server.connect(self.database)) as connection, connection.cursor() as cursor:
            for each in statements:
                cursor.execute(each)
            return list(cursor.fetchall())

    def rows(self) -> list[Any]:
        """See `Server`."""
        return self.run("SELECT k, x FROM o ORDER BY k")

    def close(self) -> None:
        """Drop the user."""
        self.run(f"DROP USER {self.user}")


@dataclass
class Redis:
    """A database of Redis."""

    server: redis.RedisServer
    number: int
    path: Path

    def __post_init__(self) -> None:
        """Make the user."""
        (self.path / "first").write_text("first")
        (self.path / "other").write_text(redis.PASSWORD)
        self.let_in()
        self.run("FLUSHDB")

    def options(self, user: str) -> str:
        """See `Server`."""
        name = f"w{self.number}" if user == "first" else "default"
        where = f"server '{self.server.place}', database '{self.number}'"
        return f"redis OPTIONS ({where}, user '{name}', password 'file:{self.path}/{user}')"

    def shut_out(self) -> None:
        """See `Server`."""
        self._password("another")

    def let_in(self) -> None:
        """See `Server`."""
        self._password("first")

    def _password(self, text: str) -> None:
        user = f"w{self.number}"
        self.run("ACL", "SETUSER", user, "on", "resetpass", f">{text}", "allkeys", "allchannels", "allcommands")
        with closing(self.server.client()) as client:
            for each in client.client_list():
                if each["user"] == user:
                    client.client_kill_filter(_id=each["id"])

    def run(self, *command: str) -> Any:
        """Run a command."""
        with closing(self.server.client(self.number)) as client:
            return client.execute_command(*command)

    def rows(self) -> list[Any]:
        """See `Server`."""
        with closing(self.server.client(self.number)) as client:
            found = [client.hgetall(key) for key in client.scan_iter(match="o:*")]
        return sorted((int(each[b"k"]), int(each[b"x"])) for each in found)

    def close(self) -> None:
        """Drop the user, and take back what was set."""
        self.run("ACL", "DELUSER", f"w{self.number}")
        self.run("CONFIG", "SET", "maxmemory-policy", "noeviction")
        self.run("CONFIG", "SET", "maxmemory", "0")
        self.run("FLUSHDB")


@dataclass
class Kafka:
    """Topics of a cluster of one broker."""

    server: kafka.KafkaServer
    number: int

    def options(self, user: str) -> str:
        """Return how the endpoint is named: the first user wants more replicas than there are brokers."""
        replicas = 3 if user == "first" else 1
        where = f"servers '{self.server.servers}', checkpoints 'checkpoints-{self.number}'"
        return f"kafka OPTIONS ({where}, replication_factor '{replicas}', partitions '1', delta 'true')"
