"""A store goes away under `strandline run`: what stands still is named meanwhile, and catches up afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from postgres_server import PostgresServer
from s3_server import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Server
from strandline.cli.template import create_project
from strandline.persist.shard.patience import PATIENCE_S

pytestmark = pytest.mark.kill

SHORT_S: Final = 80
"""Longer than persist's patience, which is about a minute."""
LONG_S: Final = 300
WELL_S_MAX: Final = 240.0
"""How long a start, and catching up, may take on a machine that does other things too."""
NAMED_S_MAX: Final = 300.0
"""After how much of an outage every item that it stops must be named; a machine that does nothing else takes 20 s."""
STOPS: Final = frozenset({"orders", "products", "sales", "reports"})
JOB_S_MAX: Final = 5 * PATIENCE_S
DISK_BYTES: Final = 48 << 20
ENVIRONMENT: Final = {**os.environ, "OUR_ID": ACCESS_KEY_ID, "OUR_KEY": SECRET_ACCESS_KEY}

Outage: TypeAlias = Callable[[], Callable[[], None]]
"""Begins an outage; what it returns ends it."""


class Running:
    """A project with a source, a table, a view and an endpoint, and the process that runs it."""

    def __init__(self, root: Path, settings: dict[str, Any]) -> None:
        self.root = root / "project"
        create_project(self.root)
        project = {"deployment": "outage", "spark": {"spark.master": "local[2]"}, **settings}
        project["endpoints"] = {"warehouse": {"driver": "duckdb", "path": "warehouse.duckdb"}}
        (self.root / "strandline.yml").write_text(json.dumps(project))
        self.log = root / "run.jsonl"
        self.orders = 3  # the template's own
        self._files = 0

    @contextmanager
    def started(self) -> Iterator[None]:
        """Run `strandline run` meanwhile."""
        command = self._command("run", "--tick-ms", "200")
        with self.log.open("wb") as log, self.log.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(command, stdout=log, stderr=err, env=ENVIRONMENT, start_new_session=True)
        try:
            self._process = process
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(240) == 0, self.log.with_suffix(".err").read_text()[-4000:]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Return what another command says of the project; it must succeed."""
        done = subprocess.run(self._command(*arguments), env=ENVIRONMENT, check=False, capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "strandline", *arguments, "--json", "--project", str(self.root)]

    def wait(self, seconds: float) -> None:
        """Wait, or fail if the process ends meanwhile."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            raise AssertionError(self.log.with_suffix(".err").read_text()[-4000:])

    def arrive(self) -> None:
        """Let a file with one more order appear."""
        self._files += 1
        self.orders += 1
        waiting = self.root / f"order-{self._files}"
        waiting.write_text(f"id,product,quantity,day\n{self.orders},1,1,2026-01-03\n")
        waiting.rename(self.root / "incoming" / f"order-{self._files}.csv")

    def said(self) -> list[dict[str, Any]]:
        """Return every document so far: what a tick said at its end, or what is waited for in one that runs long."""
        return [json.loads(line) for line in self.log.read_bytes().splitlines() if line.endswith(b"}")]

    def ticks(self) -> list[dict[str, Any]]:
        """Return what each tick so far said."""
        return [found for found in self.said() if "time" in found]

    def well(self) -> None:
        """Wait until two ticks from now on have no problem, and nothing waits."""
        before, ends = len(self.ticks()), time.monotonic() + WELL_S_MAX
        while not (
            len(after := self.ticks()[before:]) >= 2
            and not any(tick["problems"] or tick["waiting"] for tick in after[-2:])
        ):
            assert time.monotonic() < ends, self.ticks()[-1:]
            self.wait(0.2)


def through(running: Running, outage: Outage, seconds: float) -> None:
    """Run through an outage while files arrive; all that stands still is named during it, and not when it is over."""
    named: dict[str, float] = {}  # by item: after how many seconds it was named first
    with running.started():
        running.well()
        before = len(running.said())
        end = outage()
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds or (elapsed < NAMED_S_MAX and not named.keys() >= STOPS):
            running.arrive()
            running.wait(2)
            for each in running.said()[before:]:
                for name in {**each.get("waiting", {}), **each.get("problems", {})}:
                    named.setdefault(name, elapsed)
        ticks = len(running.ticks())
        end()
        running.arrive()
        running.well()
    print(f"named after {named} s, {ticks} ticks by the end of the outage")  # noqa: T201 - shown with a failure
    assert {name for name, after in named.items() if after <= NAMED_S_MAX} >= STOPS


def proved(running: Running) -> None:
    """Prove that every order is there once, and that view and endpoint are right."""
    for name in ("sales", "reports"):
        running.ask("verify", name)
    said = running.ask("query", "SELECT count(*) AS n, count(DISTINCT id) AS m FROM orders")
    assert said["rows"] == [{"n": running.orders, "m": running.orders}]


def full(disk: Path) -> Outage:
    """Fill the disk."""

    def begin() -> Callable[[], None]:
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"0" * 4096)
            except OSError:
                pass
        return ballast.unlink

    return begin


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(where)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system here")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.mark.time_limit(1200)
@pytest.mark.parametrize("seconds", [SHORT_S, pytest.param(LONG_S, marks=pytest.mark.slow)])
def test_postgresql_stops(tmp_path: Path, postgres_server: PostgresServer, seconds: int) -> None:
    """Damage: after a restart of the database, views stand still and nothing says so."""
    running = Running(
        tmp_path, {"location": "data", "consensus": f"{postgres_server.url}?options=-csearch_path%3Dpublic"}
    )

    def begin() -> Callable[[], None]:
        postgres_server.stop("immediate")
        return postgres_server.start

    with ExitStack() as ending:
        ending.callback(postgres_server.revive)
        through(running, begin, seconds)
    proved(running)


@pytest.mark.slow
def test_a_disk_is_full(tmp_path: Path, disk: Path) -> None:
    """Damage: a full disk ends the process, or loses what was read while it was full."""
    running = Running(tmp_path, {"location": str(disk / "data")})
    through(running, full(disk), LONG_S)
    proved(running)


@pytest.mark.slow
def test_an_object_store_stops(tmp_path: Path, s3_server: S3Server) -> None:
    """Damage: a store that does not answer for minutes leaves a view behind for ever."""
    secrets = {"access_key_id": "env:OUR_ID", "secret_access_key": "env:OUR_KEY"}
    storage = {"endpoint": s3_server.endpoint, "region": "us-east-1", **secrets}
    running = Running(tmp_path, {"location": "s3://strandline/outage", "storage": storage})

    def begin() -> Callable[[], None]:
        os.kill(s3_server.process.pid, signal.SIGSTOP)
        return lambda: os.kill(s3_server.process.pid, signal.SIGCONT)

    through(running, begin, LONG_S)
    proved(running)


@pytest.mark.slow
@pytest.mark.time_limit(1200)
def test_a_job_waits_for_a_silent_bucket_about_as_long_as_persist(s3_server: S3Server, record_property: Any) -> None:
    """Damage: a tick waits for hours for one upload; or a store that is only slow is given up."""
    child = Path(__file__).with_name("silent_bucket_child.py")
    path = os.pathsep.join([*sys.path, str(child.parent.parent / "servers")])
    command = [sys.executable, str(child), s3_server.endpoint, str(s3_server.process.pid)]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
        )
    finally:
        os.kill(s3_server.process.pid, signal.SIGCONT)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    record_property("FIGURE", f"outage.job {json.dumps(found).replace(' ', '')} <={JOB_S_MAX} info")
    assert found["rows"] == 2_000_000
    assert max(found["read"], found["write"]) <= 2 * PATIENCE_S
    assert found["upload"] <= JOB_S_MAX, "the call that fails, and those that clean up"
