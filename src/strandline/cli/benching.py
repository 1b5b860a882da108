"""`strandline bench`: run a benchmark and print its figures, one JSON document.

Source: design page "the public face" (benchmarks).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from strandline.bench.appends import append_and_open
from strandline.bench.load import Load
from strandline.bench.persist import stage_and_scan
from strandline.cli.door import Door, keep_apart
from strandline.cli.output import Output
from strandline.engine.session import build
from strandline.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _persist(session: SparkSession, directory: Path, load: Load) -> dict[str, Any]:
    return {
        "bench": "persist",
        **append_and_open(directory / "appends", load=load),
        **stage_and_scan(session, directory / "parts"),
    }


BENCHMARKS: Final[Mapping[str, Callable[[SparkSession, Path, Load], dict[str, Any]]]] = {"persist": _persist}


def bench(door: Door, name: str, load: Load, output: Output) -> None:
    """Run the benchmark ``name`` in a temporary directory and print its document.

    Raises `ConfigError` if there is none of that name.
    """
    if name not in BENCHMARKS:
        raise ConfigError(f"there is no benchmark {name!r}; there is {', '.join(BENCHMARKS)}")
    session = door.spark
    if session is None:
        keep_apart()
        session = build({})
    try:
        with tempfile.TemporaryDirectory(prefix="strandline-bench-", ignore_cleanup_errors=True) as directory:
            document = BENCHMARKS[name](session, Path(directory), load)
    finally:
        if door.spark is None:
            session.stop()
    output.result(document, "")
