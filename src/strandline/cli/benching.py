"""`strandline bench`: run a benchmark and print its figures, one JSON document.

Source: design page "the public face" (benchmarks).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from strandline.bench.appends import append_and_open
from strandline.bench.environment import FILE_TICKS, grow
from strandline.bench.load import Load
from strandline.bench.persist import stage_and_scan
from strandline.cli.terminal.opening import Opener, keep_apart
from strandline.cli.terminal.output import Output
from strandline.engine.session.start import build
from strandline.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a benchmark run; ``ticks`` None: the benchmark's default."""

    load: Load
    ticks: int | None = None


def _persist(session: SparkSession, directory: Path, size: Size) -> dict[str, Any]:
    return {
        "bench": "persist",
        **append_and_open(directory / "appends", load=size.load),
        **stage_and_scan(session, directory / "parts"),
    }


def _environment(session: SparkSession, directory: Path, size: Size) -> dict[str, Any]:
    ticks = size.ticks
    few = {} if ticks is None else {"ticks": ticks, "file_ticks": min(ticks, FILE_TICKS), "bindings": ticks}
    return {"bench": "environment", **grow(session, directory / "location", **few)}


BENCHMARKS: Final[Mapping[str, Callable[[SparkSession, Path, Size], dict[str, Any]]]] = {
    "persist": _persist,
    "environment": _environment,
}


def bench(opener: Opener, name: str, size: Size, output: Output) -> None:
    """Run the benchmark ``name`` in a temporary directory and print its document.

    Raises `ConfigError` if there is no benchmark of that name.
    """
    if name not in BENCHMARKS:
        raise ConfigError(f"there is no benchmark {name!r}; there is {', '.join(BENCHMARKS)}")
    session = opener.spark
    if session is None:
        keep_apart()
        session = build({})
    try:
        with tempfile.TemporaryDirectory(prefix="strandline-bench-", ignore_cleanup_errors=True) as directory:
            document = BENCHMARKS[name](session, Path(directory), size)
    finally:
        if opener.spark is None:
            session.stop()
    output.result(document, "")
