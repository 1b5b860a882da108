"""Wiring: the only place that names concrete classes.

`assemble` turns a location and a configuration into the five things that all rooms take: clock, ids, blob, consensus,
engine.

A file location looks like this:  ``consensus.db`` (SQLite: states, catalog, logs) · ``blob/`` (parts, rollups) ·
``push`` (while a process writes: the address that sends new versions).  The object ``location`` says which consensus
the location was made with (`persist/handles/location.py`).
``memory://`` keeps its states in memory and its parts in a temporary directory that goes with the environment.
``s3://`` has ``consensus/`` (conditional puts) beside ``blob/``, unless its consensus is elsewhere.

Source: design pages "the house planned" (wiring) and "the public face" (`strandline.open`).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from strandline.controller.assembly import Assembly
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.tenure import SystemProcesses
from strandline.engine.files.decoder import SparkFiles
from strandline.engine.parts.part_objects import ObjectParts
from strandline.engine.parts.part_store import Parts, PartStore
from strandline.engine.session import s3a
from strandline.engine.session.start import adopt, build
from strandline.engine.spark import SparkEngine
from strandline.engine.sql.analysis import SparkAnalyst
from strandline.errors import ConfigError
from strandline.persist.handles.location import Pair, agree, another_consensus, read_mark
from strandline.store.blob import Blob
from strandline.store.blob_kinds.cache import CachedBlob, FileCache
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.blob_kinds.objects import ObjectBlob, ObjectLocation
from strandline.store.blob_kinds.reading import ReadingBlob, ReadingConsensus
from strandline.store.consensus import Consensus, NothingStored
from strandline.store.consensus_kinds.object_consensus import ObjectConsensus
from strandline.store.consensus_kinds.postgres import PostgresConsensus
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.store.consensus_kinds.sqlite_reader import SQLiteReader
from strandline.store.memory import MemoryConsensus
from strandline.store.system import SystemClock, SystemIds
from strandline.wiring import addresses
from strandline.wiring.addresses import (
    ConsensusPlace,
    InFiles,
    InMemory,
    InObjectStore,
    InPostgres,
    InSQLite,
    Location,
)
from strandline.wiring.loop import at_once
from strandline.wiring.registry import Readers, driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
BLOB: Final = "blob"
"""Where a location's objects are, below it."""
PUSH: Final = "push"
"""Where a location in files has the address of the process that sends notices of new versions."""


@dataclass(frozen=True)
class SparkAssembly(Assembly):
    """An `Assembly` whose rows are in Spark: the client needs this to return DataFrames."""

    engine: SparkEngine


def assemble(
    location: str, *, spark: SparkSession | None, consensus: str | None, config: Config, mode: Mode = Mode.FULL
) -> SparkAssembly:
    """Return the assembly of ``location``.

    Only what is to write data (``mode``) makes a location that is not there, and sweeps it.  What is to be independent
    is given stores that cannot be changed.

    Raises `ConfigError`, one sentence: the location or consensus is not of a known kind, is not there or cannot be
    used; Java is missing or too old.  `Unavailable`: a store does not answer.
    """
    where = addresses.location_of(location, config.storage)
    place = addresses.consensus_of(consensus, where)
    with ExitStack() as opened:  # what was opened is closed again, if the rest cannot be
        blob, parts = _stores(where, mode, opened)
        store = _agreed(place, where, blob, mode, opened)
        blob = _cached(blob, where, config, opened)
        if mode is Mode.INDEPENDENT:
            blob = ReadingBlob(blob)
        wanted = s3a.jars(config.spark) if isinstance(where, ObjectLocation) else config.spark
        session = build(wanted) if spark is None else adopt(spark, wanted)
        if spark is None:
            opened.callback(session.stop)
        if isinstance(where, ObjectLocation):
            s3a.prepare(session, where)
        engine = SparkEngine(session, parts)
        opened.callback(engine.close)
        clock = SystemClock()
        return SparkAssembly(
            clock,
            SystemIds(),
            blob,
            store,
            engine,
            SparkAnalyst(session),
            Readers(clock, SparkFiles(session)),
            partial(driver, clock),
            side_by_side,
            SystemProcesses(),
            where.root / PUSH if isinstance(where, InFiles) else None,
            opened.pop_all(),
        )


async def side_by_side(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run the calls together; if one raises, the others are cancelled and it is raised."""
    await outcomes(calls)


async def outcomes(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the calls together and return what each returned; if one raises, cancel the others and raise it."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _stores(where: Location, mode: Mode, opened: ExitStack) -> tuple[Blob, Parts]:
    match where:
        case ObjectLocation():
            below = replace(where, url=f"{where.url}/{BLOB}")
            return ObjectBlob(below), ObjectParts(below, s3a.root(below))
        case InMemory():
            directory = tempfile.TemporaryDirectory(prefix="strandline-", ignore_cleanup_errors=True)
            root = Path(opened.enter_context(directory))
            return FileBlob(root / BLOB), PartStore(root / BLOB)
        case InFiles(root) if mode is Mode.FULL:
            blob = FileBlob(_writable(root) / BLOB)
            blob.sweep(SystemClock().now_ms())
            return blob, PartStore(root / BLOB)
        case InFiles(root):
            if not (root / BLOB).is_dir():
                raise ConfigError(
                    f"nothing was stored at location {str(root)!r} yet; "
                    "open it for writing (`strandline run`) to make it"
                )
            return FileBlob(root / BLOB, existing=True), PartStore(root / BLOB)


def _cached(blob: Blob, where: Location, config: Config, opened: ExitStack) -> Blob:
    """Return ``blob`` behind a cache of local files, if it is far away and a cache is wanted."""
    if not isinstance(where, ObjectLocation) or not config.cache_bytes:
        return blob
    place = blake2b(where.url.encode(), digest_size=8).hexdigest()
    shared = Path(tempfile.gettempdir(), f"strandline-cache-{os.getuid()}-{place}")
    cache = FileCache(shared if config.cache is None else Path(config.cache, place), config.cache_bytes)
    opened.callback(cache.close)
    return CachedBlob(blob, cache)


def _writable(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"location {str(root)!r} cannot be created: {error.strerror}") from error
    if not os.access(root, os.W_OK | os.X_OK):
        raise ConfigError(f"location {str(root)!r} is not writable by this user")
    return root


def _agreed(place: ConsensusPlace, where: Location, blob: Blob, mode: Mode, opened: ExitStack) -> Consensus:
    """Return the location's consensus, once it is known to be the one that ``blob`` belongs to."""
    clock, names = SystemClock(), (addresses.told(where), addresses.consensus_told(place, where))
    mark = at_once(read_mark(blob, clock))
    try:
        store = _consensus(place, where, mode, opened, existing=mode is not Mode.FULL or mark is not None)
    except NothingStored:
        if mark is None:
            raise
        raise another_consensus(*names, mark) from None
    at_once(agree(Pair(blob, store, *names), clock, SystemIds(), writes=mode is Mode.FULL))
    return store


def _consensus(place: ConsensusPlace, where: Location, mode: Mode, opened: ExitStack, *, existing: bool) -> Consensus:
    match place:
        case InSQLite(path) if mode is Mode.INDEPENDENT:
            return ReadingConsensus(SQLiteReader(path))
        case _ if mode is Mode.INDEPENDENT:
            return ReadingConsensus(_consensus(place, where, Mode.READ, opened, existing=True))
        case InMemory():
            return MemoryConsensus()
        case InSQLite(path):
            return opened.enter_context(closing(SQLiteConsensus(path, existing=existing)))
        case InPostgres(url, _, schema):
            return opened.enter_context(closing(PostgresConsensus(url, schema=schema, existing=existing)))
        case InObjectStore():
            assert isinstance(where, ObjectLocation), "nothing else has objects to keep it beside"
            return ObjectConsensus(ObjectBlob(where), together=outcomes)
