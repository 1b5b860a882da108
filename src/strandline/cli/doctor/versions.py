"""`strandline --version`: which Strandline, Python, PySpark and Java are here, in one line."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata

from strandline.cli.terminal.output import Output
from strandline.engine.session.start import java_path, java_version
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
