"""`strandline doctor` logs in where it can, with the credentials that a project says: a refused password is found."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

import mariadb_server as mariadb
import redis_server as redis
from kafka_server import PASSWORD, USER, KafkaServer
from postgres_server import PostgresServer
from strandline.cli.doctor import servers
from strandline.cli.doctor.command import examine
from strandline.cli.doctor.finding import Finding, State
from strandline.cli.template import create_project
from strandline.connections.addresses import Address
from strandline.connections.logins import Login
from strandline.extras import MARIADB

CANARY = "hunter2-canary"


@pytest.fixture
def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Finding]]:
    """What `doctor` finds of logins, given a password and definitions by their files' names."""

    def found(password: str, files: Mapping[str, str]) -> list[Finding]:
        monkeypatch.setenv("THE_PASSWORD", password)
        root = tmp_path / "mine"
        if not root.exists():
            create_project(root)
            (root / "materializations" / "reports.yml").unlink()
        for name, text in files.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text)
        findings = examine(root)
        assert all(password not in str(each) for each in findings)
        return [each for each in findings if each.check == "login"]

    return found


@contextmanager
def wanting_a_password(server: PostgresServer) -> Iterator[None]:
    """Have a server let the role ``secret`` in with `CANARY` alone."""
    rules = server.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    with psycopg.connect(server.url, autocommit=True) as operator:
        operator.execute(f"CREATE ROLE secret LOGIN PASSWORD '{CANARY}'")
        rules.write_text(f"host all secret all scram-sha-256\n{before}")
        operator.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            rules.write_text(before)
            operator.execute("SELECT pg_reload_conf()")
            operator.execute("DROP ROLE secret")


def project_of_postgres(port: int) -> dict[str, str]:
    """Return a connection, a source by it, and an endpoint with the same login."""
    options = f"host '127.0.0.1', port '{port}', user 'secret', password 'env:THE_PASSWORD'"
    return {
        "connections/shop.sql": f"CREATE CONNECTION shop TO postgres ({options});",
        "sources/changes.sql": "CREATE SOURCE changes FROM postgres (connection = shop, publication = 'p');",
        "materializations/m.sql": f"CREATE MATERIALIZATION m INTO postgres OPTIONS ({options}) AS totals KEY (id);",
    }


def test_postgresql_is_logged_in_to_once_for_all_that_use_one_login(
    postgres_server: PostgresServer, logins: Callable[..., list[Finding]]
) -> None:
    """Damage: all checks are ok, and the first run is refused by the database: its password was rotated."""
    files = project_of_postgres(postgres_server.port)
    place = f"PostgreSQL (127.0.0.1:{postgres_server.port}/postgres)"
    who = "connection 'shop', source 'changes', materialization 'm'"
    with wanting_a_password(postgres_server):
        (fine,) = logins(CANARY, files)
        (refused,) = logins("a wrong one", files)
    assert (fine.state, fine.found) == (State.OK, f"{who}: {place} lets user 'secret' in")
    assert refused.state is State.WRONG
    assert refused.found.startswith(f"{who}: {place} does not let user 'secret' in (")
    assert "password authentication failed" in refused.found


def test_mariadb_is_logged_in_to(mariadb_server: mariadb.MariaDBServer, logins: Callable[..., list[Finding]]) -> None:
    """Damage: as above."""
    where = f"host '127.0.0.1', port '{mariadb_server.port}', user '{mariadb.USER}', password 'env:THE_PASSWORD'"
    with mariadb_server.database() as database:
        text = f"CREATE MATERIALIZATION m INTO mariadb OPTIONS ({where}, database '{database}') AS totals KEY (id)"
        (fine,) = logins(mariadb.PASSWORD, {"materializations/m.sql": text})
        (refused,) = logins("a wrong one", {"materializations/m.sql": text})
    assert (fine.state, refused.state) == (State.OK, State.WRONG)
    assert "does not let user 'strandline' in (Access denied" in refused.found


@pytest.mark.parametrize("user", ["", ", user 'default'"])
def test_redis_is_logged_in_to(
    user: str, redis_server: redis.RedisServer, logins: Callable[..., list[Finding]]
) -> None:
    """Damage: as above."""
    options = f"server '{redis_server.place}'"
    text = "CREATE MATERIALIZATION m INTO redis OPTIONS ({}) AS totals KEY (id)"
    given = text.format(f"{options}, password 'env:THE_PASSWORD'{user}")
    (fine,) = logins(redis.PASSWORD, {"materializations/m.sql": given})
    (refused,) = logins("a wrong one", {"materializations/m.sql": given})
    (bare,) = logins("unused", {"materializations/m.sql": text.format(options)})
    assert fine.found.endswith("lets user 'default' in")
    assert (refused.state, bare.state) == (State.WRONG, State.WRONG)
    assert "does not let user 'default' in" in refused.found
    assert "does not let a client without a login in" in bare.found


def test_kafka_is_logged_in_to(kafka_broker: KafkaServer, logins: Callable[..., list[Finding]]) -> None:
    """Damage: as above."""
    given = (
        f"servers = '{kafka_broker.guarded}', tls = 'true', tls_ca = 'file:{kafka_broker.certificate}', "
        f"sasl = 'scram-sha-256', user = '{USER}', password = 'env:THE_PASSWORD'"
    )
    files = {"connections/k.sql": f"CREATE CONNECTION k TO kafka ({given});"}
    (fine,) = logins(PASSWORD, files)
    (refused,) = logins("a wrong one", files)
    files["connections/k.sql"] = f"CREATE CONNECTION k TO kafka (servers = '{kafka_broker.servers}');"
    (bare,) = logins("unused", files)
    assert fine.found.endswith(f"Kafka at {kafka_broker.guarded} lets user '{USER}' in")
    assert (fine.state, refused.state, bare.state) == (State.OK, State.WRONG, State.OK)
    assert f"does not let user '{USER}' in" in refused.found
    assert bare.found.endswith("lets a client without a login in")


@pytest.fixture
def hanging_up() -> Iterator[int]:
    """A port at which something ends each connection without a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    server.accept()[0].close()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(accept)
            yield server.getsockname()[1]
            server.shutdown(socket.SHUT_RDWR)


def test_what_does_not_speak_is_not_said_to_refuse_a_password(
    hanging_up: int, logins: Callable[..., list[Finding]]
) -> None:
    """Damage: an operator looks for a wrong password where the port is that of another program."""
    (found,) = logins(CANARY, project_of_postgres(hanging_up))
    assert found.state is State.WRONG
    assert "cannot be asked by user 'secret'" in found.found


def test_where_nothing_answers_that_is_said_once(logins: Callable[..., list[Finding]]) -> None:
    """Damage: one cause is two lines, of which one blames the password."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert logins(CANARY, project_of_postgres(port)) == []


def test_a_client_that_fails_in_its_own_way_ends_no_other_check(hanging_up: int) -> None:
    """Damage: a password with a sign that the client cannot send ends `doctor`, and shows a part of the password."""

    def attempt() -> None:
        f"{CANARY}€".encode("latin-1")

    tried = Login("MariaDB", "user 'secret'", (), [Address("127.0.0.1", hanging_up)], MARIADB, attempt)
    (found,) = servers.login(["connection 'c'"], tried)
    assert found.state is State.WRONG
    assert found.found == "connection 'c': MariaDB cannot be asked by user 'secret' (UnicodeEncodeError)"
