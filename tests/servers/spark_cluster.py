"""A Spark cluster of our own: a master and two workers that share nothing with the driver but the loopback network.

Each worker has a mount namespace in which ``/tmp`` is a directory of its own, the environment of the driver's Python is
an empty directory, and so is this checkout.  What a task needs of the driver's machine is therefore missing there, as
on another machine.  Executors find Spark where each worker has it, and a Python that has nothing installed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import pyspark

HERE: Final = "127.0.0.1"
"""The driver's machine and the master's.  Each worker has an address of its own: executors of one read files there."""
WORKERS: Final = 2
CORES: Final = 1
"""Of each worker."""
EXECUTOR_MIB: Final = 640
START_SECONDS_MAX: Final = 270.0
JAVA: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m")
"""A master and a worker only start processes and tell each other of them."""
EXECUTOR_JAVA: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=200m"
SCALA: Final = "2.13"
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
SPARK: Final = Path(pyspark.__file__).parent
ENVIRONMENT: Final = Path(sys.prefix)
SOURCES: Final = Path(__file__).resolve().parents[2] / "src"
"""What an executor is not to see, beside the driver's Python."""
HIDE: Final = """
set -e
mount --make-rprivate /
mkdir -p "$1/tmp" "$1/spark" "$1/empty" "$1/../full"
mount --bind "$2" "$1/spark"
mount --bind "$3" "$1/../full"
mount --bind "$1/empty" "$3"
mount --bind "$1/empty" "$4"
cd "$1"
own_tmp=$1/tmp
shift 4
mount --bind "$own_tmp" /tmp
exec "$@"
"""
"""Arguments: the worker's directory, Spark, the driver's Python and this checkout; then a command."""


@dataclass
class SparkCluster:
    """A running cluster."""

    directory: Path
    port: int
    java: str
    master: subprocess.Popen[bytes] | None = None
    workers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The master, as ``spark.master`` names it."""
        return f"spark://{HERE}:{self.port}"

    @property
    def python(self) -> Path:
        """A Python of executors that has nothing but its standard library."""
        return self.directory / "python" / "bin" / "python"

    @property
    def full_python(self) -> Path:
        """Another one, of executors alone, that has the libraries of the driver's, and no Strandline."""
        return self.directory / "full" / "bin" / "python"

    @property
    def shared(self) -> Path:
        """A directory that all machines see."""
        return self.directory / "shared"

    @property
    def settings(self) -> dict[str, str]:
        """What a project's ``spark`` says of this cluster."""
        return {
            "spark.master": self.url,
            "spark.executor.memory": f"{EXECUTOR_MIB}m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": EXECUTOR_JAVA,
        }

    def start_master(self) -> None:
        """Start the master, and wait until it listens."""
        command = [*self._java("master.Master"), "--host", HERE, "--port", str(self.port), "--webui-port", "0"]
        self.master = self._begun("master", command, SPARK, HERE)
        wait_for(lambda: listens(self.port), "the master listens")

    def start_worker(self, number: int) -> None:
        """Start a worker."""
        own = self.directory / f"worker-{number}"
        own.mkdir(exist_ok=True)
        command = ["unshare", "-m", "--", "sh", "-c", HIDE, "sh", str(own), str(SPARK), str(ENVIRONMENT), str(SOURCES)]
        size = ["--cores", str(CORES), "--memory", f"{CORES * EXECUTOR_MIB + 100}m", "--work-dir", str(own / "work")]
        host = f"127.0.1.{number + 1}"
        java = [*self._java("worker.Worker", own / "spark"), "--host", host, "--webui-port", "0", *size, self.url]
        self.workers[number] = self._begun(f"worker-{number}", [*command, *java], own / "spark", host)

    def wait_for_workers(self, registered: int) -> None:
        """Return once the master has registered so many workers, since it was made."""
        log = self.directory / "master.log"
        wait_for(lambda: log.read_text().count("Registering worker") >= registered, "the workers register")

    def kill_master(self) -> None:
        """End the master without warning."""
        assert self.master is not None
        self.master.kill()
        self.master.wait()

    def kill_worker(self, number: int) -> None:
        """End a worker and its executors without warning."""
        worker = self.workers.pop(number)
        family = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
        for each in family:
            each.kill()
        psutil.wait_procs(family)
        worker.wait()

    def executors(self) -> list[psutil.Process]:
        """Return the executors that run."""
        found = []
        for worker in self.workers.values():
            below = psutil.Process(worker.pid).children(recursive=True)
            found += [each for each in below if EXECUTOR in " ".join(each.cmdline())]
        return found

    def stop(self) -> None:
        """End all of it."""
        for number in list(self.workers):
            self.kill_worker(number)
        if self.master is not None and self.master.poll() is None:
            self.kill_master()

    def log(self) -> str:
        """Return the last lines of all logs."""
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self.directory.glob("*.log")))

    def _java(self, name: str, spark: Path = SPARK) -> list[str]:
        return [self.java, *JAVA, "-cp", f"{spark}/jars/*", f"org.apache.spark.deploy.{name}"]

    def _begun(self, name: str, command: Sequence[str], spark: Path, host: str) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK"))}
        environment |= {"SPARK_LOCAL_IP": host, "SPARK_HOME": str(spark)}
        environment |= {"SPARK_SCALA_VERSION": SCALA}  # Spark's scripts say so, which a distribution from PyPI can lack
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )


def lacking() -> str | None:
    """Return why no such cluster can be started here; None if it can."""
    if shutil.which("unshare") is None:
        return "the program unshare (util-linux) is not installed"
    tried = subprocess.run(
        ["unshare", "-m", "--", "sh", "-c", "mount --make-rprivate / && mount -t tmpfs none /mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"this process may not make mount namespaces: {tried.stderr.strip()}" if tried.returncode else None


@contextmanager
def running(java: str) -> Iterator[SparkCluster]:
    """Give a cluster whose workers have registered, and end it."""
    directory = Path(tempfile.mkdtemp(prefix="strandline-cluster-", dir="/var/tmp"))  # outside of what is hidden
    cluster = SparkCluster(directory, free_port(), java)
    try:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "python"], check=True)
        cluster.shared.mkdir()
        cluster.start_master()
        for number in range(WORKERS):
            cluster.start_worker(number)
        cluster.wait_for_workers(WORKERS)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def listens(port: int) -> bool:
    """Return whether something listens at a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex((HERE, port)) == 0


def free_port() -> int:
    """Return a port at which nothing listens."""
    with socket.socket() as listener:
        listener.bind((HERE, 0))
        return int(listener.getsockname()[1])


def wait_for(holds: Callable[[], bool], what: str, seconds: float = START_SECONDS_MAX) -> None:
    """Return once ``holds`` is true; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        threading.Event().wait(0.1)
