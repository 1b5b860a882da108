"""What every project needs of a machine: Python, its packages, Java, Spark's jars, open files, and text in UTF-8.

`strandline --version` prints which Strandline, Python, PySpark and Java are here, in one line.  The jars are those that
Spark is started with beside its own: those of S3, of its Kafka connector, and those that a project names.
"""

from __future__ import annotations

import locale
import os
import platform
import resource
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from strandline.cli.doctor.finding import Finding, missing, ok, wrong
from strandline.cli.doctor.servers import answers
from strandline.cli.terminal.output import Output
from strandline.connections.addresses import of_url
from strandline.engine.session import class_archive, kafka_jars
from strandline.engine.session.start import INSTALL_JAVA, java_path, java_version, require_java
from strandline.errors import ConfigError

NONE = "none"


def version(output: Output) -> None:
    """Print the versions."""
    java = java_here(os.environ)
    document = {
        "strandline": of_package("strandline"),
        "python": platform.python_version(),
        "pyspark": of_package("pyspark"),
        "java": None if java is None else {"path": java[0], "version": java[1]},
    }
    named = NONE if java is None else f"{java[1]} ({java[0]})"
    text = f"strandline {document['strandline']}, Python {document['python']}, PySpark {document['pyspark']}"
    output.result(document, f"{text}, Java {named}")


def of_package(name: str) -> str:
    """Return the version of what pip calls ``name``; `NONE` if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return NONE


def java_here(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the path and the version of the Java that Spark would start; None if there is none that says it."""
    java = java_path(environment)
    try:
        return None if java is None else (java, java_version(java))
    except ConfigError:
        return None


MAVEN: Final = "https://repo1.maven.org"
IVY_DEFAULT: Final = ".ivy2.5.2"
"""Where Spark 4.3 keeps what it has fetched, in the user's home."""
_PATHS: Final = frozenset({"", "file", "local"})


def jars(settings: Mapping[str, str], kafka: str | None) -> Iterator[Finding]:
    """Check the jars of Spark's ``settings``; ``kafka``: the project's ``kafka_jars``."""
    try:
        wanted = kafka_jars.jars(settings, kafka)
    except ConfigError as error:
        yield missing("jars", str(error), "put them there, or write `kafka_jars: maven`")
        return
    named = list(filter(None, wanted.get("spark.jars", "").split(",")))
    gone = [each for each in named if urlsplit(each).scheme in _PATHS and not Path(urlsplit(each).path).is_file()]
    if gone:
        yield missing("jars", f"{', '.join(gone)} of spark.jars are not there", "put them there, or correct the paths")
    elif named:
        yield ok("jars", f"{len(named)} of spark.jars")
    packages = list(filter(None, wanted.get("spark.jars.packages", "").split(",")))
    if packages:
        yield _packages(packages, wanted)


def _packages(packages: list[str], settings: Mapping[str, str]) -> Finding:
    kept = Path(settings.get("spark.jars.ivy", Path.home() / IVY_DEFAULT)) / "jars"
    absent = [
        each for each in packages if not (kept / f"{'_'.join(each.split(':')[:2])}-{each.split(':')[-1]}.jar").is_file()
    ]
    if not absent:
        return ok("jars", f"{len(packages)} packages of Maven, fetched before")
    for repository in filter(None, settings.get("spark.jars.repositories", MAVEN).split(",")):
        if not of_url(repository) or not all(answers(each) for each in of_url(repository)):
            return ok("jars", f"{len(absent)} packages of Maven, which Spark fetches when it first starts")
    act = f"let this machine reach {MAVEN}, or have the jars in a directory (kafka_jars, spark.jars)"
    return wrong("jars", f"{len(absent)} packages of Maven are not here, and Maven does not answer", act)


PYTHON_MIN: Final = (3, 11)
PYSPARK: Final = "4.3"
"""A minor version can change answers."""
PANDAS_MAJOR_MAX: Final = 2
"""PySpark 4.3 refuses a newer one."""
OPEN_FILES_MIN: Final = 1024
"""Spark's shuffle, parts that are mapped, and clients of endpoints have files open at the same time."""


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check the version of Python."""
    said = ".".join(map(str, version))
    if version < PYTHON_MIN:
        return wrong("python", f"this is {said}", "install Python 3.11 or later, and Strandline into it")
    return ok("python", f"{said} ({sys.executable})")


def pyspark(version: str | None = None) -> Finding:
    """Check the version of PySpark."""
    found = version or of_package("pyspark")
    if found == NONE:
        return missing("pyspark", "it is not installed", f"pip install 'pyspark=={PYSPARK}.*'")
    if not f"{found}.".startswith(f"{PYSPARK}."):
        return wrong(
            "pyspark", f"this is {found}, and definitions are of {PYSPARK}", f"pip install 'pyspark=={PYSPARK}.*'"
        )
    return ok("pyspark", found)


def pandas(version: str | None = None) -> Finding:
    """Check the version of pandas."""
    found, least = version or of_package("pandas"), PANDAS_MAJOR_MAX + 1
    if found == NONE:
        return missing("pandas", "it is not installed, and PySpark needs it", f"pip install 'pandas<{least}'")
    if int(found.partition(".")[0]) > PANDAS_MAJOR_MAX:
        return wrong("pandas", f"this is {found}, which PySpark {PYSPARK} refuses", f"pip install 'pandas<{least}'")
    return ok("pandas", found)


def java(environment: Mapping[str, str]) -> list[Finding]:
    """Check Java, and the archive that lets it start faster."""
    path = java_path(environment)
    try:
        require_java(path)
        assert path is not None
        version = java_version(path)
    except ConfigError as error:
        found = str(error).removesuffix(f": {INSTALL_JAVA}.")
        return [missing("java", found, INSTALL_JAVA) if path is None else wrong("java", found, INSTALL_JAVA)]
    return [ok("java", f"{version} ({path})"), _archive(path)]


def _archive(path: str) -> Finding:
    archive = class_archive.place(path)
    if class_archive.is_whole(archive):
        return ok("class archive", str(archive))
    return ok("class archive", "none yet: Spark takes twice as long to start until `strandline warm` is run once")


def open_files() -> Finding:
    """Check how many files this user's processes may have open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < OPEN_FILES_MIN:
        return wrong("open files", f"a process may have {limit}", f"allow {OPEN_FILES_MIN} or more: ulimit -n 4096")
    return ok("open files", "a process may have any number" if limit == resource.RLIM_INFINITY else f"up to {limit}")


def text(encoding: str | None = None) -> Finding:
    """Check how text is read that does not say its encoding, as a project's files are."""
    found = encoding or locale.getencoding()
    if sys.flags.utf8_mode and encoding is None:
        found = "utf-8"
    if found.lower().replace("-", "") != "utf8":
        return wrong("text", f"files are read as {found}", "set PYTHONUTF8=1, or LC_ALL=C.UTF-8")
    return ok("text", f"UTF-8 on {platform.system()}")
