"""The class archive: what a JVM loads to start Spark, parsed and verified once, in one file that later JVMs map.

A cold Spark spends most of its first ten seconds on loading some twenty thousand classes.  With the archive a process
opens in about half the time, and its first step is shorter too; figures are in docs/performance.md.

Promise: it is a matter of speed alone.  A JVM that finds the archive missing, or made by another Java or for another
Spark, says nothing and loads its classes as ever.  One that is cut off would kill the JVM (it maps what is not there),
so the archive is durable before it has its name, and its size is said beside it; what has another size is not used.

Warning: an archive is code.  It is inside the Python environment of Spark itself (`sys.prefix`), so an attacker that
can replace the archive can replace Spark too.

Source: JDK Enhancement Proposal 350 (dynamic archives of the JDK's class data sharing).
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkContext

from strandline.errors import ConfigError

DIRECTORY: Final = Path("var", "strandline")
END_SECONDS_MAX: Final = 300.0
"""How long a JVM may take to write its archive: ten seconds where nothing else is done."""
_QUIET: Final = "-Xlog:cds*=off"
"""The JVM does not print that an archive does not fit: a reader of standard output could do nothing about it."""
_SPEAKS_OF_IT: Final = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")


def place(java: str) -> Path:
    """Return where the archive for ``java`` (a path) and the installed Spark is, or would be."""
    real = Path(java).resolve()
    modules = real.parent.parent / "lib" / "modules"
    built = modules.stat().st_mtime_ns if modules.exists() else 0  # an upgrade of Java keeps its path
    key = blake2b(f"{real} {built}".encode(), digest_size=8).hexdigest()
    return Path(sys.prefix) / DIRECTORY / f"classes-{pyspark.__version__}-{key}.jsa"


def options(java: str | None, given: str) -> str:
    """Return the JVM options ``given`` with those that use the archive, if there is one and they do not speak of it."""
    if java is None or any(word in given for word in _SPEAKS_OF_IT):
        return given
    archive = place(java)
    if not is_whole(archive):
        return given
    return f"{shlex.quote(f'-XX:SharedArchiveFile={archive}')} {_QUIET} {given}".strip()


def is_whole(archive: Path) -> bool:
    """Tell whether the archive is there, and as long as it was when it was made."""
    try:
        return archive.stat().st_size == int(_size_of(archive).read_text())
    except (OSError, ValueError):
        return False


@contextmanager
def recording(archive: Path) -> Iterator[str]:
    """Give the JVM options that record an archive; at the end let the JVM end, and keep what it wrote as ``archive``.

    This process must not have a JVM yet, and has none afterwards.

    Raises:
        ConfigError: the directory cannot be written, or the JVM wrote no archive.
    """
    unfinished = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the class archive cannot be kept in {str(archive.parent)!r}: {error.strerror}") from error
    try:
        yield f"{shlex.quote(f'-XX:ArchiveClassesAtExit={unfinished}')} {_QUIET}"
        _end_java()
        if not unfinished.is_file():
            raise ConfigError(f"this Java wrote no class archive to {str(archive.parent)!r}; is there room for it?")
        _publish(unfinished, archive)
    finally:
        unfinished.unlink(missing_ok=True)


def _size_of(archive: Path) -> Path:
    return archive.with_suffix(".size")


def _publish(unfinished: Path, archive: Path) -> None:
    """Rename a finished archive, once it is durable; between the two renames no JVM uses it."""
    size = _size_of(unfinished)
    size.write_text(f"{unfinished.stat().st_size}\n")
    for file in (unfinished, size):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    size.replace(_size_of(archive))
    unfinished.replace(archive)


def _end_java() -> None:
    """Let the JVM of this process end as it does when its Python is gone, and wait until it has."""
    gateway = SparkContext._gateway  # noqa: SLF001  # PySpark has no public way to end its JVM
    assert gateway is not None, "a session was built"
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(END_SECONDS_MAX)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001  # the next session starts another
