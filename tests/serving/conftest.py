"""An environment that is served while another thread makes ticks, as `strandline run` does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pytest

import strandline
from strandline.client import Environment
from strandline.serving import Door, RemoteEnvironment, Serving, serve
from strandline.store.secret import Secret

SECRET = "a-token-that-is-not-shown"


@contextmanager
def ticking(env: Environment, door: Door | None = None) -> Iterator[Serving]:
    """Serve an environment, and make ticks as `strandline run` does."""
    stop, hurried = threading.Event(), threading.Event()
    with serve(env, door, hurried.set) as serving:

        def run() -> None:
            while not stop.is_set():
                env.tick(timeout=1)
                serving.desk.ticked()
                hurried.wait(1)
                hurried.clear()

        ticks = threading.Thread(target=run)  # noqa: TID251 - as the main thread of `run`
        ticks.start()
        try:
            yield serving
        finally:
            stop.set()
            hurried.set()
            ticks.join()


@pytest.fixture(scope="module")
def served(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """An environment with a table and a view, at an address with a token beside its socket."""
    root = tmp_path_factory.mktemp("served")
    with strandline.open(f"file://{root}", spark=spark) as env:
        env.execute("CREATE TABLE sales (city STRING, n INT)")
        env.execute("CREATE MATERIALIZED VIEW totals AS SELECT city, sum(n) AS n FROM sales GROUP BY city")
        with ticking(env, Door("127.0.0.1:0", Secret(SECRET))) as serving:
            yield serving


@pytest.fixture
def cursor(served: Serving) -> Iterator[Any]:
    """A cursor of an unmodified ADBC driver."""
    with adbc.connect(served.flight_sql[0], autocommit=True) as connection, connection.cursor() as made:
        yield made


@pytest.fixture
def remote(served: Serving) -> Iterator[RemoteEnvironment]:
    """Our own client."""
    with strandline.connect(served.flight_sql[0]) as made:
        yield made
