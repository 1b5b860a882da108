"""Queries have an owner, a limit and an end: each way to go ends them, and the rest goes on meanwhile."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

import adbc_driver_flightsql.dbapi as adbc
import polars as pl
import psutil
import pyarrow as pa
import pytest
from tests.serving.conftest import ticking

import strandline
from compiled import COMPILED
from strandline.bench.served.runaway import ENDLESS, SHAPES, tasks
from strandline.client import Cancel
from strandline.controller.asking import verification
from strandline.controller.core import Core
from strandline.errors import InvalidUsage
from strandline.serving import RemoteEnvironment, Serving

pytestmark = pytest.mark.spark

RESTED: Final[list[float]] = []
LOOKS_MAX: Final = 2_400
"""How often a test looks, 20 times a second, before it gives up."""


def wait_until(found: Callable[[], bool], what: str) -> None:
    """Return once ``found`` returns true."""
    for _ in range(LOOKS_MAX):
        if found():
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"this has not come: {what}")


def queries(served: Serving, stage: str | None = None) -> list[dict[str, Any]]:
    """Return the queries that are answered, of those at this stage."""
    return [each for each in served.desk.env.queries() if stage in {None, each["stage"]}]


@contextmanager
def asked(served: Serving, spark: Any, ask: Callable[[], object]) -> Iterator[tuple[Future[object], int]]:
    """Ask for an endless query in another thread; inside, Spark computes it, and afterwards no task of it goes on."""
    with ThreadPoolExecutor(1) as other:
        asking = other.submit(ask)
        wait_until(lambda: asking.done() or bool(queries(served, "computes") and tasks(spark)), "a task")
        assert not asking.done(), asking.result()
        (query,) = queries(served)
        yield asking, query["number"]
        begun = monotonic()
        wait_until(asking.done, "the end of the call")
        rested(served, spark, begun)


def rested(served: Serving, spark: Any, begun: float) -> None:
    """Return once no query is answered, and no task is carried out; `RESTED` gets how many seconds that took."""
    wait_until(lambda: not queries(served), "the end of the query")
    wait_until(lambda: not tasks(spark), "the end of its tasks")
    RESTED.append(monotonic() - begun)


# ---- ways to go ------------------------------------------------------------------------------------------------------

HEARS: Final = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""A process that a shell starts behind its prompt does not hear Ctrl-C, nor does what it starts."""
CLIENT: Final = HEARS + "import strandline; strandline.connect(sys.argv[1]).query(sys.argv[2])"
COMMAND: Final = HEARS + "from strandline.cli import main; sys.exit(main())"


def by_number(served: Serving, spark: Any, sql: str) -> None:
    """`strandline cancel NUMBER`."""
    with (
        strandline.connect(served.flight_sql[0]) as env,
        asked(served, spark, lambda: env.query(sql)) as (call, number),
    ):
        assert env.cancel_query(number)
        with pytest.raises(InvalidUsage, match="the query was cancelled"):
            call.result(60)


def by_its_caller(served: Serving, spark: Any, sql: str) -> None:
    """The call is cancelled by another thread of the client."""
    cancel = Cancel()
    with (
        strandline.connect(served.flight_sql[0]) as env,
        asked(served, spark, lambda: env.answer(sql, cancel=cancel)) as (call, _),
    ):
        cancel()
        with pytest.raises(InvalidUsage, match="the query was cancelled"):
            call.result(60)


def by_a_driver(served: Serving, spark: Any, sql: str) -> None:
    """A driver that others wrote cancels it."""
    with (
        adbc.connect(served.flight_sql[0], autocommit=True) as connection,
        connection.cursor() as cursor,
        asked(served, spark, lambda: cursor.execute(sql)) as (call, _),
    ):
        cursor.adbc_cancel()
        with pytest.raises(adbc.Error):
            call.result(60)


def by_a_signal(number: int) -> Callable[[Serving, Any, str], None]:
    """Return the end of the client's process by a signal."""

    def ended(served: Serving, spark: Any, sql: str) -> None:
        command = [sys.executable, "-c", CLIENT, served.flight_sql[0], sql]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as client:
            try:
                with asked(served, spark, client.wait):
                    client.send_signal(number)
            finally:
                client.kill()

    return ended


@contextmanager
def command(served: Serving, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a process of its own, on a project with the location that is served."""
    root = served.desk.env.directory
    assert root is not None
    project = root.parent / f"{root.name}-project"
    project.mkdir(exist_ok=True)
    (project / "strandline.yml").write_text(f"location: {root}\n")
    whole = [sys.executable, "-c", COMMAND, *words, "--project", str(project)]
    with subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def by_ctrl_c_at_a_command(served: Serving, spark: Any, sql: str) -> None:
    """Ctrl-C at `strandline query`."""
    with command(served, "query", sql) as process, asked(served, spark, process.wait):
        process.send_signal(signal.SIGINT)


def by_a_command(served: Serving, spark: Any, sql: str) -> None:
    """`strandline cancel NUMBER`, of a number that `strandline queries` prints."""
    with (
        strandline.connect(served.flight_sql[0]) as env,
        asked(served, spark, lambda: env.query(sql)) as (call, number),
    ):
        with command(served, "queries") as printing:
            shown, said = printing.communicate(timeout=120)
            assert re.search(rf"^ *{number} .* computes +{re.escape(sql[:20])}", shown, re.MULTILINE), (shown, said)
        with command(served, "cancel", str(number)) as cancelling:
            assert cancelling.communicate(timeout=120)[0] == f"query {number} is cancelled\n"
        with pytest.raises(InvalidUsage, match="the query was cancelled"):
            call.result(60)
        with command(served, "cancel", str(number)) as cancelling:
            assert f"no query has the number {number} now" in cancelling.communicate(timeout=120)[1]
        assert cancelling.returncode == 1


def by_its_limit(served: Serving, spark: Any, sql: str) -> None:
    """The time is over that its caller gave it."""
    with strandline.connect(served.flight_sql[0]) as env:
        with pytest.raises(InvalidUsage, match="the query was cancelled after 3 s: ask for less"):
            env.query(sql, timeout=3)
        rested(served, spark, monotonic())


WAYS: Final[dict[str, Callable[[Serving, Any, str], None]]] = {
    "by its number": by_number,
    "by its caller": by_its_caller,
    "by a driver": by_a_driver,
    "by a command": by_a_command,
    "Ctrl-C": by_a_signal(signal.SIGINT),
    "Ctrl-C at a command": by_ctrl_c_at_a_command,
    "kill -9": by_a_signal(signal.SIGKILL),
    "its limit": by_its_limit,
}


@pytest.mark.parametrize("way", ["by a command", "by a driver", "Ctrl-C at a command", "kill -9", "its limit"])
def test_a_query_that_is_ended_computes_no_further(served: Serving, spark: Any, way: str) -> None:
    """Damage: a client goes away, and what it asked for takes the machine until someone restarts the server."""
    WAYS[way](served, spark, ENDLESS)


@pytest.fixture(scope="module")
def compiled(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """An environment whose Spark compiles plans, as in production."""
    root = tmp_path_factory.mktemp("compiled")
    with strandline.open(f"file://{root}", spark=spark, config={"spark": dict(COMPILED)}) as env, ticking(env) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_processor_is_free_soon_after_a_query_is_ended(
    compiled: Serving, spark: Any, shape: str, way: str, record_property
) -> None:
    """Damage: a shape of query that cannot be interrupted."""
    RESTED.clear()
    WAYS[way](compiled, spark, SHAPES[shape])
    record_property(
        "FIGURE", f"queries.free.{shape}.{way} {max(RESTED):.1f} <5 {'pass' if max(RESTED) < 5 else 'miss'}"
    )
    assert max(RESTED) < 5
    (jvm,) = [each for each in psutil.Process().children(recursive=True) if "java" in each.name()]

    def share() -> float:
        before = sum(jvm.cpu_times()[:2])
        threading.Event().wait(0.25)
        return (sum(jvm.cpu_times()[:2]) - before) / 0.25

    wait_until(lambda: share() < 0.5, "a processor that is free")


@pytest.mark.slow
def test_ctrl_c_ends_a_command_within_two_seconds(served: Serving, spark: Any) -> None:
    """Damage: a person presses Ctrl-C again and again, and closes the terminal in the end."""
    with command(served, "query", ENDLESS) as process, asked(served, spark, process.wait):
        begun = monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
        assert monotonic() - begun < 2


# ---- owner and limits ------------------------------------------------------------------------------------------------


def test_the_rest_goes_on_beside_endless_queries(served: Serving, spark: Any, remote: RemoteEnvironment) -> None:
    """Damage: one careless query, and no other one is answered, and no view follows, until it is found."""
    with asked(served, spark, lambda: strandline.connect(served.flight_sql[0]).query(ENDLESS)) as (_, number):
        remote.insert("sales", [{"city": "Aarhus", "n": 1}])
        assert remote.query("SELECT n FROM totals WHERE city = 'Aarhus'").collect() == [{"n": 1}]
        ((who, stage, text, ms),) = (
            each.values()
            for each in remote.query(
                f"SELECT who, stage, text, ms FROM strandline.queries WHERE number = {number}"
            ).collect()
        )
        assert (stage, text) == ("computes", ENDLESS)
        assert f"process {os.getpid()}" in who
        assert ms > 0
        assert not remote.cancel_query(number + 1_000), "there is none with this number"
        assert remote.cancel_query(number)
    remote.delete("sales", [{"city": "Aarhus", "n": 1}])


def test_ctrl_c_in_the_process_that_has_the_environment_open_ends_its_query(served: Serving, spark: Any) -> None:
    """Damage: a notebook is interrupted, and its query goes on in Spark."""
    env, handler = served.desk.env, signal.signal(signal.SIGINT, signal.default_int_handler)

    def press() -> None:
        wait_until(lambda: bool(queries(served, "computes") and tasks(spark)), "a task")
        os.kill(os.getpid(), signal.SIGINT)

    try:
        with ThreadPoolExecutor(1) as other:
            pressing = other.submit(press)
            with pytest.raises(KeyboardInterrupt):
                env.answer(ENDLESS)
            pressing.result(60)
    finally:
        signal.signal(signal.SIGINT, handler)
    rested(served, spark, monotonic())


def test_a_verification_is_ended_as_a_query_is(
    served: Serving, spark: Any, remote: RemoteEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: `strandline verify` of a large view stops all ticks, and nothing ends it."""

    async def endless(core: Core, *_: object) -> pa.Table:
        _, rows = await core.engine.answer(ENDLESS, {})
        return await core.engine.collect(rows)

    monkeypatch.setattr(verification, "verify", endless)
    with asked(served, spark, lambda: remote.verify("totals")) as (call, number):
        assert [each["text"] for each in queries(served)] == ["verify totals"]
        remote.insert("sales", [{"city": "Hvar", "n": 1}])
        assert remote.query("SELECT n FROM totals WHERE city = 'Hvar'").collect() == [{"n": 1}], "ticks go on"
        remote.delete("sales", [{"city": "Hvar", "n": 1}])
        assert remote.cancel_query(number)
        with pytest.raises(InvalidUsage, match="the query was cancelled"):
            call.result(60)
    monkeypatch.undo()
    assert remote.verify("totals").ok


def test_a_change_is_ended_before_its_commit(served: Serving, spark: Any, remote: RemoteEnvironment) -> None:
    """Damage: a careless INSERT … SELECT stops all ticks, and nothing ends it."""
    change = f"INSERT INTO sales SELECT 'Hvar', CAST(n AS INT) FROM ({ENDLESS})"
    with asked(served, spark, lambda: remote.execute(change)) as (call, number):
        assert [each["text"] for each in queries(served)] == ["change of sales"]
        assert remote.cancel_query(number)
        with pytest.raises(InvalidUsage, match="the statement was cancelled; nothing was changed"):
            call.result(60)
    assert remote.query("SELECT count(*) AS n FROM sales WHERE city = 'Hvar'").collect() == [{"n": 0}]


def test_an_answer_has_no_more_rows_than_its_bound(served: Serving) -> None:
    """Damage: a query without LIMIT fills the disk of the server, row by row."""
    env = served.desk.env
    with pytest.raises(InvalidUsage, match="the result has more than 10 rows: ask for fewer"):
        env.answer("SELECT id FROM range(11)", rows_max=10)
    assert env.answer("SELECT id FROM range(10)", rows_max=10)[0].num_rows == 10


def test_an_answer_is_taken_by_what_takes_arrow(remote: RemoteEnvironment) -> None:
    """Damage: each library needs a conversion of its own."""
    found = remote.query("SELECT id, id * 2 AS twice FROM range(3) ORDER BY id")
    assert (len(found), list(found)[2]) == (3, {"id": 2, "twice": 4})
    assert pa.table(found).equals(found.toArrow())
    assert pl.DataFrame(found)["twice"].to_list() == [0, 2, 4]
