"""Wiring: the only place that names concrete classes.

`assemble` turns a location and a configuration into the five things that all rooms take: clock, ids, blob, consensus,
engine.

A file location looks like this:  ``consensus.db`` (SQLite: states, catalog, logs) · ``blob/`` (parts, rollups).
``memory://`` keeps its states in memory and its parts in a temporary directory that goes with the environment.

Source: design pages "the house planned" (wiring) and "the public face" (`strandline.open`).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from strandline.engine.analysis import SparkAnalyst
from strandline.engine.files import SparkFiles
from strandline.engine.parts import PartStore
from strandline.engine.session import adopt, build
from strandline.engine.spark import SparkEngine
from strandline.environment.config import Config, resolve_reference
from strandline.environment.tenure import Processes, SystemProcesses
from strandline.errors import ConfigError
from strandline.materialize.driver import Driver
from strandline.materialize.drivers.duckdb import DuckDBDriver
from strandline.materialize.drivers.duckdb_file import DuckDBFile
from strandline.store.blob import Blob
from strandline.store.clock import Clock, Ids
from strandline.store.consensus import Consensus
from strandline.store.file import FileBlob
from strandline.store.memory import MemoryConsensus
from strandline.store.sqlite import SQLiteConsensus
from strandline.store.system import SystemClock, SystemIds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Assembly:
    """Everything that touches the world, and how to let go of it."""

    clock: Clock
    ids: Ids
    blob: Blob
    consensus: Consensus
    engine: SparkEngine
    analyst: SparkAnalyst
    files: SparkFiles
    processes: Processes
    base: Path
    release: tuple[Callable[[], object], ...]

    def close(self) -> None:
        """Let go of files, threads and the session that was built here; a caller's session is left as it is."""
        for release in self.release:
            release()


def assemble(location: str, *, spark: SparkSession | None, consensus: str | None, config: Config) -> Assembly:
    """Return the assembly of ``location``.

    Raises `ConfigError`, one sentence: the location is not of a known kind or not writable; Java is missing or too old.
    """
    release: list[Callable[[], object]] = []
    root = _root(location, release)
    store, close = _consensus(location, consensus, root)
    release.append(close)
    blob_root = root / "blob"
    blob_root.mkdir(exist_ok=True)
    session = build(config.spark) if spark is None else adopt(spark, config.spark)
    engine = SparkEngine(session, PartStore(blob_root))
    release.insert(0, engine.close)
    if spark is None:
        release.insert(1, session.stop)
    return Assembly(
        SystemClock(),
        SystemIds(),
        FileBlob(blob_root),
        store,
        engine,
        SparkAnalyst(session),
        SparkFiles(session),
        SystemProcesses(),
        root,
        tuple(release),
    )


def driver(endpoint: str, options: dict[str, str], clock: Clock) -> Driver:
    """Return the driver for an endpoint; options that are references are resolved here, and nowhere before.

    Raises `ConfigError` naming the endpoint or the option that is not known.
    """
    match endpoint:
        case "duckdb":
            unknown = sorted(set(options) - {"path"})
            if unknown or "path" not in options:
                wrong = f"option {unknown[0]!r} is not known" if unknown else "option 'path' is missing"
                raise ConfigError(f"endpoint duckdb: {wrong}; it takes path '/where/the/file.duckdb'")
            path = resolve_reference(options["path"], base=Path())
            return DuckDBDriver(DuckDBFile(clock, Path(path)))
        case _:
            raise ConfigError(f"there is no driver for endpoint {endpoint!r}; there is one for duckdb")


async def side_by_side(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run the calls together; if one raises, the others are cancelled and it is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _root(location: str, release: list[Callable[[], object]]) -> Path:
    kind = urlparse(location)
    match kind.scheme:
        case "memory":
            directory = tempfile.TemporaryDirectory(prefix="strandline-", ignore_cleanup_errors=True)
            release.append(directory.cleanup)
            return Path(directory.name)
        case "file" | "":
            return _writable(Path(unquote(kind.path) if kind.scheme else location).absolute())
        case _:
            raise ConfigError(
                f"location {location!r} is of kind {kind.scheme!r}; this version keeps collections in file:// and memory://"
            )


def _writable(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"location {str(root)!r} cannot be created: {error.strerror}") from error
    if not os.access(root, os.W_OK | os.X_OK):
        raise ConfigError(f"location {str(root)!r} is not writable by this user")
    return root


def _consensus(location: str, consensus: str | None, root: Path) -> tuple[Consensus, Callable[[], object]]:
    if consensus is None:
        if urlparse(location).scheme == "memory":
            return MemoryConsensus(), _nothing
        store = SQLiteConsensus(root / "consensus.db")
        return store, store.close
    kind = urlparse(consensus)
    if kind.scheme == "sqlite":
        store = SQLiteConsensus(Path(unquote(kind.path)))
        return store, store.close
    raise ConfigError(f"consensus {consensus!r} is not known; this version has sqlite:///path/to/file.db")


def _nothing() -> None:
    return None
