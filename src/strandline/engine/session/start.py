"""Spark sessions: one of our own from a plain config, or a private one inside a caller's application.

The engine's own conf is `ENGINE_CONF`, each entry with its reason; `build` and `adopt` both apply it to a session that
only the engine uses, so a caller's conf changes no answer and is never changed.  `build` looks for Java *before* it
starts one, because Spark's own message about a missing or old Java is forty lines about something else.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from strandline.engine.session import class_archive, reach
from strandline.engine.session.causes import behind
from strandline.engine.session.cluster import PARALLELISM_KEY, PYTHON_KEY, SCHEDULER_CONF, of_cluster, slots
from strandline.errors import ConfigError

JAVA_MAJOR_MIN: Final = 17
JAVA_MODULE: Final = "jdk.incubator.vector"
HEAP_MIB_MAX: Final = 4096
HEAP_MIB_MIN: Final = 1024
HEAP_SHARE: Final = 4
"""The default heap is this fraction of the machine's memory: Python, the page cache and the endpoint live here too."""
RESULT_SIZE_KEY: Final = "spark.driver.maxResultSize"
RESULT_HEAP_SHARE: Final = 4
"""One job may hand over this fraction of the heap; Spark refuses the rest with an error (`collecting`)."""
PART_BYTES_TARGET: Final = 128 << 20
assert HEAP_MIB_MIN <= HEAP_MIB_MAX
_BRIDGE: Final = "py4j.protocol"
"""The module of the errors of PySpark's bridge to the JVM."""
_PACKAGE: Final = f"{_BRIDGE.partition('.')[0]}."
_ENDED: Final = (
    "Spark has ended, or its JVM has, and this process cannot go on without it: start it again "
    "(nothing that was acknowledged is lost)"
)
INSTALL_JAVA: Final = (
    "install a JDK of version 17 or later (Debian: apt-get install openjdk-17-jdk-headless) or point JAVA_HOME at one"
)

ENGINE_CONF: Final[Mapping[str, str]] = {
    # An answer must not depend on the session that computes it.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    # Spark 4.3 cannot plan UNION ALL over a query that selects EXISTS (…): the constraints that it carries from one
    # side to the other name columns inside the subquery ("key not found" in UnionBase.rewriteConstraints).  And the
    # rule of errors depends on it: a condition that Spark infers (`b IS NOT NULL` from `10 / a > b`) would drop a row
    # on which the author's condition fails.
    "spark.sql.constraintPropagation.enabled": "false",
    # Steps are small and planned by us; re-planning between stages costs tens of milliseconds and gains nothing on
    # them.
    "spark.sql.adaptive.enabled": "false",
    # More parts than this are listed by a Spark job; the driver has their sizes and lists faster.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # Times at rest as microseconds: INT96 has no statistics and no agreed order.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # HotSpot compiles no method of more bytes.  Beyond them Spark shall generate several small ones instead of one.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # A part that fails a check is an error, never fewer rows.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # One input split makes about one part.
    "spark.sql.files.maxPartitionBytes": str(PART_BYTES_TARGET),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Spark writes a plan down for its UI whenever something is run, and when a view gets a name.  Its long form takes
    # a tenth of the time of a small step.
    "spark.sql.ui.explainMode": "simple",
    # Else PySpark notes for every column object the line of ours that made it, by several calls into the JVM.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}

_APPLICATION_CONF: Final[Mapping[str, str]] = {
    "spark.app.name": "strandline",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Three views generate some 150 classes a tick; Spark keeps 100, so that none would be there at the next one.
    "spark.sql.codegen.cache.maxEntries": "5000",
    # Every task that sorts, groups or joins begins with one page.  Spark's own guess is 64 MiB on a heap like ours: a
    # cold step of three views spent a third of its time on clearing and collecting a gigabyte of empty pages.
    "spark.buffer.pageSize": "2m",
}

_JAVA_OPTIONS: Final = "-XX:MetaspaceSize=256m"
"""Spark's classes need half of that; from the JVM's own 21 MiB it gets there by way of several full collections."""

SHORT_LIVED_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xmn256m"
"""Options for a JVM that lives for a minute or two: compiling well for it costs more than it gives.

Room for code is said because a JVM that compiles so reserves too little for Spark, and then stops to compile at all;
room for what is young, because it begins with so little that what a step needs grows old.
"""

_LOG_CONFIG: Final = Path(__file__).with_name("log4j2.properties")
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark prints every refused query on standard error as JSON; the error we raise says it once."""


def _not_of_bridge(record: logging.LogRecord) -> bool:
    """Keep py4j's traceback of a lost JVM, which it gives the root logger, off standard error: we raise an error."""
    return "py4j" not in Path(record.pathname).parts


def build(config: Mapping[str, str]) -> SparkSession:
    """Return a new session for ``config`` (Spark conf keys; ``spark.master`` defaults to all local cores).

    Raises:
        ConfigError: Java is missing, too old or without the vector module (install it), or Spark refuses the conf.
    """
    java = java_path(os.environ)
    require_java(java)
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))  # where local-cluster finds its executors
    settings = {
        "spark.master": "local[*]",
        "spark.driver.memory": f"{default_heap_mib(psutil.virtual_memory().total)}m",
    }
    settings |= {**_APPLICATION_CONF, **SCHEDULER_CONF, **config}
    network = of_cluster(settings["spark.master"])
    settings = network | settings
    if "spark.driver.host" in network:  # else Spark guesses an address and warns about its guess
        os.environ.setdefault("SPARK_LOCAL_IP", network["spark.driver.host"])
    if PYTHON_KEY in settings:
        os.environ["PYSPARK_PYTHON"] = settings[PYTHON_KEY]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run what PATH has, perhaps without pyarrow
    options = class_archive.options(java, settings.get("spark.driver.extraJavaOptions", ""))
    logging_ = f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}"
    settings["spark.driver.extraJavaOptions"] = f"{_JAVA_OPTIONS} {logging_} {options}".strip()
    for_executors = settings.get("spark.executor.extraJavaOptions", "")
    settings["spark.executor.extraJavaOptions"] = f"-D{reach.EXTERNAL_DTD}= {for_executors}".strip()
    builder = SparkSession.Builder()
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _own_interrupts():
            _launch(settings)
            if RESULT_SIZE_KEY not in settings:
                builder = builder.config(RESULT_SIZE_KEY, str(heap_bytes(SparkContext) // RESULT_HEAP_SHARE))
            for key, value in slots(settings["spark.master"], _processors()).items():
                builder = builder.config(key, settings.get(key, value) if key == PARALLELISM_KEY else value)
            session = builder.getOrCreate()
    except Exception as error:
        raise ConfigError(f"Spark does not start: {str(error).splitlines()[0] if str(error) else error!r}") from error
    return adopt(session, config)


def heap_bytes(context: SparkContext | type[SparkContext]) -> int:
    """Return what the heap of the JVM may have, in bytes.  ``context``: its class will do, once there is a JVM."""
    jvm: Any = context._jvm  # noqa: SLF001 - no public call says so
    return int(jvm.java.lang.Runtime.getRuntime().maxMemory())


def _processors() -> int:
    """Return how many processors the JVM sees: a container may have fewer than its machine."""
    jvm: Any = SparkContext._jvm  # noqa: SLF001 - no public call says so
    return int(jvm.java.lang.Runtime.getRuntime().availableProcessors())


def spark_is_gone(error: BaseException) -> bool:
    """Return whether an error says that Spark's JVM no longer answers, by itself or by what caused it.

    A connection that anything but the bridge to the JVM has lost is another matter:

    >>> spark_is_gone(ConnectionRefusedError(111, "Connection refused")), spark_is_gone(KeyError("k"))
    (False, False)
    """
    return any(
        _says_so(each) or (isinstance(each, ConnectionError) and _is_of_the_bridge(each)) for each in behind(error)
    )


def _says_so(error: BaseException) -> bool:
    """Return whether it is the bridge's own word for a JVM that has ended, or is about to: then no class is there."""
    kind = type(error)
    ending = kind.__name__ == "Py4JError" and str(error).endswith("does not exist in the JVM")
    return kind.__module__ == _BRIDGE and (kind.__name__ == "Py4JNetworkError" or ending)


def _is_of_the_bridge(error: BaseException) -> bool:
    """Return whether code of Py4J let ``error`` through."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(str(frame.f_globals.get("__name__")).startswith(_PACKAGE) for frame, _ in frames)


def require_running(session: SparkSession) -> None:
    """Return if the application of ``session`` runs.

    Raises `ConfigError` if it has ended: its program has stopped it, or its JVM is gone.
    """
    context = session.sparkContext
    try:
        stopped = context._jsc is None or context._jsc.sc().isStopped()  # noqa: SLF001 - no public call says so
    except Exception as error:
        if not _has_no_jvm(error):
            raise
        raise ConfigError(_ENDED) from error
    if stopped:
        raise ConfigError(_ENDED)


def _has_no_jvm(error: Exception) -> bool:
    """Return whether a call that cannot fail inside the JVM failed for want of one."""
    return isinstance(error, ConnectionError) or spark_is_gone(error) or type(error).__module__ == _BRIDGE


def stop(session: SparkSession) -> None:
    """Stop a session that `build` made.  One whose JVM has ended already, by a signal perhaps, is stopped."""
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # it could not shut down cleanly
            session.stop()
    except Exception as error:
        if not spark_is_gone(error):
            raise


def _launch(settings: Mapping[str, str]) -> None:
    """Start the JVM, as ``settings`` want it, in a process group of its own, unless one runs.

    A terminal and many supervisors send their signals to the whole group.  The JVM would end in the middle of what it
    computes for a process that wants to finish it.  It still ends with this process, which holds its standard input.
    """
    if SparkContext._gateway is None:  # noqa: SLF001 - no public call takes options of the process
        gateway = launch_gateway(SparkConf().setAll(list(settings.items())), {"process_group": 0})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep the program's handler of SIGINT, in place of which PySpark puts its own."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set one, so PySpark sets none
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def adopt(session: SparkSession, config: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session of our own in ``session``'s application; ``session`` itself is not changed.

    ``config`` overrides the engine's conf where it names a key that can be set at run time.  What the application's
    own configuration says of the meaning of texts counts for nothing (`reach`).

    Raises `ConfigError` if the application has ended, or ``config`` would let texts reach the server.
    """
    reach.refuse_settings(config or {})
    for noisy in _LOGGERS:
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_bridge)
    try:
        own = session.newSession()
    except Exception as error:
        if not _has_no_jvm(error):
            raise
        raise ConfigError("this Spark session has ended, or its JVM has; make another one, or pass none") from error
    cores = session.sparkContext.defaultParallelism
    return _closed(own, {**ENGINE_CONF, "spark.sql.shuffle.partitions": str(cores), **(config or {})})


def sibling(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return another session like ``session``, with ``conf`` besides."""
    return _closed(session.newSession(), {**session.conf.getAll, **conf})


def _closed(own: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return ``own`` with ``conf``, in which no text reaches further than `reach` lets it."""
    reach.forget(own)
    for key, value in {**conf, **reach.FIXED}.items():
        if own.conf.isModifiable(key):
            own.conf.set(key, value)
    reach.close(own)
    return own


def default_heap_mib(memory_bytes: int) -> int:
    """Return the driver's heap for a machine: a quarter of its memory, within bounds.

    >>> default_heap_mib(2 << 30), default_heap_mib(8 << 30), default_heap_mib(64 << 30)
    (1024, 2048, 4096)
    """
    return max(HEAP_MIB_MIN, min(HEAP_MIB_MAX, (memory_bytes >> 20) // HEAP_SHARE))


def java_path(environment: Mapping[str, str]) -> str | None:
    """Return the Java that Spark would start, or None."""
    home = environment.get("JAVA_HOME")
    if home:
        candidate = Path(home) / "bin" / "java"
        return str(candidate) if candidate.is_file() else None
    return shutil.which("java", path=environment.get("PATH"))


def require_java(java: str | None) -> None:
    """Return if ``java`` can run Spark; else raise `ConfigError` of one sentence that says what to install."""
    if java is None:
        raise ConfigError(f"Spark needs Java and none is found: {INSTALL_JAVA}.")
    said = java_version(java)
    first, second = (*re.findall(r"\d+", said), "0")[:2]
    major = int(second if first == "1" else first)  # before 9 it called itself 1.8
    if major < JAVA_MAJOR_MIN:
        raise ConfigError(f"{java} is Java {major} and Spark needs {JAVA_MAJOR_MIN}: {INSTALL_JAVA}.")
    if JAVA_MODULE not in _ask(java, "--list-modules"):
        raise ConfigError(f"{java} lacks the module {JAVA_MODULE} that Spark needs: {INSTALL_JAVA}.")


def java_version(java: str) -> str:
    """Return the version that ``java`` says, as "17.0.9".  Raises `ConfigError` if it says none."""
    found = re.search(r'version "(\d[^"]*)"', _ask(java, "-version"))
    if found is None:
        raise ConfigError(f"{java} does not say its version: {INSTALL_JAVA}.")
    return found[1]


def _ask(java: str, flag: str) -> str:
    try:
        done = subprocess.run([java, flag], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - the operator's own Java
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{java} does not run ({error}): {INSTALL_JAVA}.") from error
    return done.stderr + done.stdout
