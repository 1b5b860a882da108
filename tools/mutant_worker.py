"""A warm process that runs some tests of a copy of the project, each time in a fork of itself.

Pytest and the libraries of others are imported once; the project itself never is, so each fork imports the code of the
copy that its task names.  A fork that must run Spark finds a JVM that is already there (`Jvm`): one JVM serves all
forks of a worker, one after the other, as its classes and its compiled code cost more than most tests.

It reads a `Task` a line and answers each with a line: the exit status of pytest, or null if the time was over.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import pytest

import costs
import stages

WARM: Final = (
    *("pyspark.sql", "pandas", "pyarrow.parquet", "hypothesis", "duckdb", "sqlglot", "deltalake", "pyiceberg.catalog"),
    *("confluent_kafka", "fastavro", "psycopg", "typer", "rich", "obstore", "moto.server", "structlog"),
    *("yaml", "psutil"),
)
CPU_S: Final = 30
WALL_S: Final = 90
"""What a fork may take beyond what its tests are allowed: it imports, collects, starts a session."""
PAUSE_S: Final = 0.02
JVM_LEADER: Final = "STRANDLINE_MUTANTS_JVM"
"""Which process started the JVM that a fork uses."""
RECORDED_S: Final = 20.0
"""A test that is known to take longer is not recorded: few do, and they take as long as many others together."""
PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True)
class Task:
    """Tests of ``files`` to run in the copy at ``root``: the ``chosen`` ones in their order, or all of ``stages``.

    ``record``: keep what each test runs, in place of what the first one that fails is called.
    ``seconds``: the processor time that the tests may take.  ``answer``: where the plugin writes what it saw.
    """

    root: str
    files: list[str]
    chosen: list[str]
    stages: list[str]
    record: bool
    seconds: float
    spark: bool
    answer: str


@dataclass(eq=False, slots=True)
class Chosen:
    """Run the chosen tests in their order, up to the first that fails; keep its name."""

    task: Task
    failed: str | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what was chosen, or what is of the stages."""
        if not self.task.chosen:
            items[:] = [item for item in items if stages.stage_of_item(item) in self.task.stages]
            return
        at = {test: number for number, test in enumerate(self.task.chosen)}
        items[:] = sorted((item for item in items if item.nodeid in at), key=lambda item: at[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the first that failed."""
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A test module that cannot be imported has caught the mistake, too."""
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_sessionfinish(self) -> None:
        """Write the name down."""
        Path(self.task.answer).write_text(json.dumps(self.failed))


@dataclass(eq=False, slots=True)
class Recorder:
    """Run the tests of some stages; keep what blocks each test that passes runs, and its seconds.

    What a file runs when it is imported, and its fixtures when they are set up, counts for each of its tests.
    """

    task: Task
    ran: dict[str, tuple[float, set[str], bool, bool]] = field(default_factory=dict)
    before: dict[str, set[str]] = field(default_factory=dict)
    """By file: what was run before its tests."""
    seconds: float = 0.0
    passed: bool = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests of the stages; of those that are much alike, the share that one run of `make test` runs.

        Of others that take long, one run leaves out most: each notices mistakes of its own, so all are kept here.
        """
        alike, known = stages.alike_left_out(items, seed=0), costs.recorded().get(costs.TESTS, {})
        items[:] = [
            item
            for item in items
            if stages.stage_of_item(item) in self.task.stages
            and item.nodeid not in alike
            and (self.task.spark or not item.get_closest_marker("spark"))
            and known.get(stages.reported_name(item.nodeid), 0) <= RECORDED_S
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        """Watch the import of a file."""
        seen = _seen()
        seen.clear()
        done = yield
        self.before.setdefault(collector.nodeid.split("::")[0], set()).update(seen)
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Watch the fixtures of a test, which may be set up once for all of a file."""
        done = yield
        self.before[item.nodeid.split("::")[0]] |= _seen()
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Watch one test."""
        seen = _seen()
        seen.clear()
        self.seconds, self.passed = 0.0, False
        done = yield
        if self.passed:
            spark, server = (item.get_closest_marker(name) is not None for name in ("spark", "server"))
            self.ran[item.nodeid] = (round(self.seconds, 3), set(seen), spark, server)
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Take the time of the processor, the JVM's too; others use the machine, so that of the clock may be longer.

        It may be shorter, too, where the JVM works on two processors: the shorter one counts.
        """
        begun, used = time.monotonic(), _processor_s()
        try:
            return (yield)
        finally:
            self.seconds = min(time.monotonic() - begun, _processor_s() - used)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Only what passes counts: a test that fails without a mistake notices none."""
        if report.when == "call":
            self.passed = report.passed

    def pytest_sessionfinish(self) -> None:
        """Write all down."""
        ran = {
            test: (seconds, sorted(blocks | self.before[test.split("::")[0]]), *needs)
            for test, (seconds, blocks, *needs) in self.ran.items()
        }
        Path(self.task.answer).write_text(json.dumps(ran))


def _processor_s() -> float:
    """Return the processor time of this process and of the JVM that it uses."""
    used = time.process_time()
    if leader := os.environ.get(JVM_LEADER):
        for process in psutil.Process(int(leader)).children(recursive=True):
            times = process.cpu_times()
            used += times.user + times.system
    return used


def _seen() -> set[str]:
    """Return the blocks that were run since this set was cleared."""
    found: set[str] = importlib.import_module("block_marks").seen
    return found


class Jvm:
    """A JVM with Spark in it for forks that come one after the other.

    A context that a killed fork left there stays; so after such a fork the JVM is ended, and the next one is another.
    """

    STARTED: Final = (
        "import os, sys, interpreted; os.environ['SPARK_SUBMIT_OPTS'] = interpreted.CONF_OPTIONS;"
        "from strandline.engine.session.start import build; import kafka_server as kafka;"
        "from strandline.engine.session import kafka_jars; jar = kafka.jars('kafka-connector');"
        "s = build(kafka_jars.jars({'spark.master': 'local[2]', 'spark.driver.memory': '2g'}, jar and str(jar)));"
        "gate = s.sparkContext._gateway; print(gate.gateway_parameters.port, gate.gateway_parameters.auth_token);"
        "s.stop(); sys.stdout.flush(); sys.stdin.read()"
    )

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._known: dict[str, str] = {}

    def environment(self) -> dict[str, str]:
        """Return the variables by which PySpark finds the JVM; it is started by code without mistakes."""
        if self._process is None:
            path = os.pathsep.join(str(stages.ROOT / each) for each in ("src", "tools", "tests/servers", "tests/spark"))
            self._process = subprocess.Popen(
                [sys.executable, "-c", self.STARTED],
                cwd=stages.ROOT,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            port, secret = self._process.stdout.readline().split()
            self._known = {
                "PYSPARK_GATEWAY_PORT": port,
                "PYSPARK_GATEWAY_SECRET": secret,
                JVM_LEADER: str(self._process.pid),
            }
        return self._known

    @property
    def pid(self) -> int | None:
        """The process that started it, if it runs."""
        return None if self._process is None else self._process.pid

    def end(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            _kill(self._process.pid)
            self._process.wait()
            self._process = None


def run(task: Task, jvm: Jvm) -> int | None:
    """Run the tests in a fork; return the status of pytest, or None if the time was over."""
    variables = jvm.environment() if task.spark else {}
    child = os.fork()
    if child == 0:
        _in_fork(task, variables)
    limit, status = time.monotonic() + WALL_S + 10 * task.seconds, None
    while time.monotonic() < limit:
        ended, code = os.waitpid(child, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(code)
            break
        time.sleep(PAUSE_S)
    _kill(child)
    if status is None:
        os.waitpid(child, 0)
    _end_left(jvm)
    if task.spark and (status is None or status < 0):
        jvm.end()
    return status if status is not None and status >= 0 else None


def _in_fork(task: Task, variables: dict[str, str]) -> None:
    os.setsid()
    code = 70
    try:
        with open(f"{task.answer}.output", "wb") as output:  # noqa: PTH123 - the descriptor is what matters
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        allowed = int(CPU_S + 4 * task.seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (allowed, allowed))
        os.chdir(task.root)
        own = [f"{task.root}/src", f"{task.root}/tools"]
        sys.path[:0] = own
        os.environ.update(variables, PYTHONPATH=os.pathsep.join(own))
        plugin: Chosen | Recorder = Recorder(task) if task.record else Chosen(task)
        options = ["-q"] if task.record else ["-q", "-x"]
        options += ["-p", "no:randomly", "-p", "no:cacheprovider", "--no-header", "--tb=short", "--basetemp=scratch"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is warm
        code = int(pytest.main([*options, *task.files], plugins=[plugin]))
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def adopt() -> None:
    """Have what a fork leaves behind as a child, so that it can be ended: a server may leave the fork's group."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _end_left(jvm: Jvm) -> None:
    """End what a fork has left behind: a server, if it was killed before its tests could stop that."""
    while left := [each for each in psutil.Process().children() if each.pid != jvm.pid]:
        for each in left:
            each.kill()
        psutil.wait_procs(left)


def _kill(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def main() -> None:
    """Answer task after task until the input ends."""
    for name in WARM:
        importlib.import_module(name)
    assert "strandline" not in sys.modules
    adopt()
    jvm = Jvm()
    try:
        for line in sys.stdin:
            status = run(Task(**json.loads(line)), jvm)
            print(json.dumps(status), flush=True)
    finally:
        jvm.end()


def written(task: Task) -> str:
    """Return a task as a line."""
    return json.dumps(dataclasses.asdict(task))


if __name__ == "__main__":
    main()
