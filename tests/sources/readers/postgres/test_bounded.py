"""A connection to a real server that ends at any moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from strandline.connections.postgres import Tls
from strandline.options import understood
from strandline.sources.readers.postgres.options import PostgresOptions
from strandline.sources.readers.postgres.psycopg_server import BoundedConnection, parameters
from strandline.store.secret import Secret

pytestmark = pytest.mark.server


def test_a_connection_is_freed_once_the_thread_that_uses_it_has_left_it(place, monkeypatch):
    """Damage: libpq goes on in memory that was freed, and the whole process dies: of DROP SOURCE, or of Ctrl-C."""
    order, waits = [], threading.Event()
    right_wait, right_close = psycopg.Connection.wait, psycopg.Connection.close

    def wait(self, *args):
        waits.set()
        try:
            return right_wait(self, *args)
        finally:
            order.append("left")

    def close(self):
        order.append("freed")
        right_close(self)

    options = understood("s", PostgresOptions, {**place.database.options, "publication": "p"})
    connection = BoundedConnection.connect(**parameters(options), autocommit=True)
    monkeypatch.setattr(psycopg.Connection, "wait", wait)
    monkeypatch.setattr(psycopg.Connection, "close", close)

    with ThreadPoolExecutor(1) as user:
        used = user.submit(connection.execute, "SELECT pg_sleep(20)")
        waits.wait()
        connection.close()
        with pytest.raises(psycopg.Error):
            used.result()
    assert (order, connection.closed) == (["left", "freed"], True)
    connection.close()


def test_libpq_gets_the_clients_own_certificate() -> None:
    """Damage: a server that wants certificates of its clients cannot be read."""
    options = PostgresOptions(
        user="u", publication="p", sslmode=Tls.ALLOW, sslcert="/c", sslkey="/k", sslpassword=Secret("hush")
    )
    assert "hush" not in repr(options)
    given = parameters(options)
    assert {name: given[name] for name in ("sslmode", "sslcert", "sslkey", "sslpassword")} == {
        "sslmode": "allow",
        "sslcert": "/c",
        "sslkey": "/k",
        "sslpassword": "hush",
    }
    make_conninfo(**given)  # libpq refuses a name that it does not know
