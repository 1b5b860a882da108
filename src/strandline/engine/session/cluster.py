"""Where an application's executors are, as ``spark.master`` says, and how it shares their cores.

A task is never interrupted for another one.  So where Spark runs in this process, it gets more slots for tasks than
there are cores: while the tasks of a query take long, those of ticks and of other queries begin beside them, and the
operating system shares the cores.  Among tasks that wait, those of ticks come first, and then those of the query that
has the fewest running (``pools.xml``).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PYTHON_KEY: Final = "spark.pyspark.python"
"""Spark's name of the Python that executors run."""
PARALLELISM_KEY: Final = "spark.default.parallelism"
LOOPBACK: Final = "127.0.0.1"
SCHEDULER_CONF: Final = {
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": Path(__file__).with_name("pools.xml").as_uri(),
}
EXTRA_SLOTS: Final = 16
"""Slots beyond one a core: as many as that, but two a core at most, and one a core at least.

All slots may be taken by one large job, and each of its tasks takes memory.
"""
CORES_MAX: Final = 4
"""The cores that an application of ours takes of a standalone cluster, unless its configuration says otherwise.

Spark's own default is all of them: then a replica, or a second project, gets none until the first has ended.
"""
CONNECT_S: Final = 2.0
"""How long the master of a standalone cluster may take to accept a connection, and then to answer."""
STANDALONE: Final = "spark://"
_LOCAL: Final = re.compile(r"local(\[(?P<cores>\*|\d+)(,[^\]]*)?\])?$")


def is_cluster(master: str) -> bool:
    """Return whether executors are processes of their own.

    >>> [is_cluster(each) for each in ("local", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "spark://m:7077")]
    [False, False, False, True, True]
    """
    return _LOCAL.match(master) is None


def slots(master: str, processors: int) -> dict[str, str]:
    """Return what an application in this process wants, so that its jobs have a partition a core, and more slots.

    >>> slots("local[2]", 8)
    {'spark.master': 'local[6]', 'spark.default.parallelism': '2'}
    >>> [slots(each, 12)["spark.master"] for each in ("local", "local[*]", "local[64,3]")]
    ['local[3]', 'local[28]', 'local[128,3]']
    >>> slots("spark://m:7077", 8)
    {}
    """
    found = _LOCAL.match(master)
    if found is None:
        return {}
    said = found["cores"] or "1"
    cores = processors if said == "*" else int(said)
    many = cores + max(cores, min(2 * cores, EXTRA_SLOTS))
    return {"spark.master": f"local[{many}{found[3] or ''}]", PARALLELISM_KEY: str(cores)}


def of_cluster(master: str) -> dict[str, str]:
    """Return what an application on ``master`` wants besides: how executors reach it, and its share of the cores.

    >>> of_cluster("local[*]") == of_cluster("local-cluster[2,1,1024]")
    True
    >>> of_cluster("local[*]")
    {'spark.driver.host': '127.0.0.1', 'spark.driver.bindAddress': '127.0.0.1'}
    >>> of_cluster("spark://127.0.0.1:7077")["spark.cores.max"], of_cluster("yarn")
    ('4', {})
    """
    if master.startswith("local"):
        return {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    masters = addresses(master)
    if not masters:
        return {}  # YARN and Kubernetes: Spark knows more of these networks than we do
    here = _address_towards(*masters[0])
    said = {"spark.cores.max": str(CORES_MAX)}
    return said if here is None else {**said, "spark.driver.host": here, "spark.driver.bindAddress": here}


def _address_towards(host: str, port: int) -> str | None:
    """Return the address of this machine from which packets go to ``host``; None: that name has no address now."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # nothing is sent
                return str(probe.getsockname()[0])
    except OSError:
        pass
    return None


def addresses(master: str) -> Sequence[tuple[str, int]]:
    """Return the hosts and ports of the masters of a standalone cluster.

    >>> addresses("spark://a:7077,b:7078")
    [('a', 7077), ('b', 7078)]
    """
    found = []
    for each in master.removeprefix(STANDALONE).split(","):
        host, _, port = each.rpartition(":")
        if host and port.isdigit():
            found.append((host.strip("[]"), int(port)))
    return found


def answers(host: str, port: int) -> bool:
    """Return whether something accepts a connection there."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class OfMaster:
    """What the master of a standalone cluster that leads says of an application."""

    address: str
    knows: bool
    """Whether the application is among those that the master gives executors to."""
    workers: int
    """How many workers the master lists, with those that have died lately: what it says of each is not sent."""


def ask_masters(context: Any) -> OfMaster | None:
    """Return what the master that leads says of the application of ``context``; None: none answers.  Blocks.

    A master that restarts without recovery has forgotten the application, and so has one that took its driver for
    dead.  Spark itself does not ask, and never registers the application again.
    """
    for host, port in addresses(str(context.master)):
        if answers(host, port):
            with suppress(Exception):  # it does not answer in time, or is of another version: nothing is known
                if (found := _asked(context, host, port)) is not None:
                    return found
    return None


def _asked(context: Any, host: str, port: int) -> OfMaster | None:
    """Return what one master says; None: it does not lead.  It is asked as its own page asks it.

    Trap: `SparkEnv` has methods of classes that PySpark's jars lack, and to look at it ends the thread of the bridge.
    """
    jvm = context._jvm  # noqa: SLF001 - no public call asks the master
    spark = jvm.org.apache.spark
    seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
    timeout = spark.rpc.RpcTimeout(jvm.scala.concurrent.duration.FiniteDuration(int(CONNECT_S), seconds), "CONNECT_S")
    endpoint = f"spark://Master@[{host}]:{port}" if ":" in host else f"spark://Master@{host}:{port}"
    network = context._jsc.sc().schedulerBackend().rpcEnv()  # noqa: SLF001
    master = timeout.awaitResult(network.asyncSetupEndpointRefByURI(endpoint))
    question = getattr(getattr(spark.deploy, "DeployMessages$RequestMasterState$"), "MODULE$")
    kind = jvm.scala.reflect.ClassTag.Any()
    state = master.askSync(question, timeout, kind)
    if state.status().toString() != "ALIVE":
        return None
    here = str(context.applicationId)
    known = any(str(each.id()) == here for each in state.activeApps())
    return OfMaster(f"{STANDALONE}{host}:{port}", known, len(state.workers()))
