"""What every project needs of a machine: Python, its packages, Java, room for open files, and text in UTF-8."""

from __future__ import annotations

import locale
import platform
import resource
import sys
from collections.abc import Mapping
from typing import Final

from strandline.cli.doctor.finding import Finding, missing, ok, wrong
from strandline.cli.doctor.versions import NONE, of_package
from strandline.engine.session import class_archive
from strandline.engine.session.start import INSTALL_JAVA, java_path, java_version, require_java
from strandline.errors import ConfigError

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
