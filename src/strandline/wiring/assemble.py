"""Wiring: the only place that names concrete classes.

`assemble` turns a location and a configuration into the five things that all rooms take: clock, ids, blob, consensus,
engine.

A file location looks like this:  ``consensus.db`` (SQLite: states, catalog, logs) · ``blob/`` (parts, rollups) ·
``push`` (while a process writes: the address that sends new versions).  The object ``location`` says which consensus
the location was made with (`persist/handles/location.py`).
``memory://`` keeps its states in memory and its parts in a temporary directory that goes with the environment.
``s3://`` has ``consensus/`` (conditional puts) beside ``blob/``, unless its consensus is elsewhere.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from strandline.controller.asking.housekeeping import sweep_scratch
from strandline.controller.assembly import Assembly
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.tenure import Opening, SystemProcesses
from strandline.errors import StoreError, Unavailable
from strandline.store.blob_kinds.cache import CachedBlob, FileCache
from strandline.store.blob_kinds.reading import ReadingBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.protocols import Blob, Consensus
from strandline.wiring.locations import Location, consensus_of, location_of
from strandline.wiring.loop import RunningTask, Threads, at_once, side_by_side
from strandline.wiring.registry import DRIVERS, Readers, driver, trigger
from strandline.wiring.replicas import dial_of
from strandline.wiring.spark_start import Plane, late
from strandline.wiring.stores import agreed

PLANNING_MAX: Final = 4
"""So many calls may ask Spark to plan at a time; it answers their questions one by one."""

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.engine.spark import SparkEngine


@dataclass(frozen=True)
class SparkAssembly(Assembly):
    """An `Assembly` whose rows are in Spark: the client needs this to return DataFrames."""

    engine: SparkEngine


def assemble(
    location: str,
    *,
    spark: SparkSession | None,
    consensus: str | None,
    config: Config,
    mode: Mode = Mode.FULL,
    claims: bool = False,
    waits: bool = False,
) -> SparkAssembly:
    """Return the assembly of ``location``.

    ``claims``: it will be written to at once.  So a holder that lives is met here, before Spark is started, and not
    only by the environment; and other processes learn that this one opens it.

    ``waits``: Spark is started when a call first needs it (`wiring/spark_start.py`), which then raises what is said of
    Java.

    Only what is to write data (``mode``) makes a location that is not there, and sweeps it.  What is to be independent
    is given stores that cannot be changed.

    Raises `ConfigError`, one sentence: the location or consensus is not of a known kind, is not there or cannot be
    used, or another process holds it (``claims``); Java is missing or too old.  `Unavailable`: a store does not answer.
    """
    where = location_of(location, config.storage)
    place = consensus_of(consensus, where)
    with ExitStack() as opened:  # what was opened is closed again, if the rest cannot be
        blob, parts = where.open(mode, opened)
        store = agreed(place, where, blob, mode, opened)
        if claims:
            _announce(store, config, opened)
        blob = _cached(blob, where, config, opened)
        if mode is Mode.INDEPENDENT:
            blob = ReadingBlob(blob)
        if mode is Mode.FULL:
            with suppress(StoreError):  # the next one that opens it does it then
                at_once(sweep_scratch(blob, SystemClock()))

        def make(opened: ExitStack) -> Plane:
            from strandline.wiring.on_spark import on_spark  # it imports Spark's Python

            return on_spark(spark, where, parts, config, mode, opened)

        clock, plane = SystemClock(), late(make, parts, config.functions, opened) if waits else make(opened)
        aside = Threads(PLANNING_MAX, "strandline-planning")
        opened.callback(aside.close)
        return SparkAssembly(
            clock,
            SystemIds(),
            blob,
            store,
            plane.engine,
            plane.analyst,
            Readers(clock, plane.engine, plane.files, plane.messages),
            partial(driver, clock),
            side_by_side,
            partial(RunningTask, clock),
            config.lanes or max(1, (os.cpu_count() or 1) // 2),
            SystemProcesses(),
            where.push,
            opened.pop_all(),
            dial_of(config, None if where.push is None else where.push.parent),
            plane.answers,
            tuple(DRIVERS),
            trigger,
            aside,
        )


def _announce(store: Consensus, config: Config, opened: ExitStack) -> None:
    """Let other processes know that this one opens the location, until it is closed; raises as `Opening.announce`."""
    opening = Opening(SystemClock(), SystemIds(), store, SystemProcesses())
    ours = at_once(opening.announce(config))

    def withdraw() -> None:
        with suppress(StoreError, Unavailable):  # it is over once this process is
            at_once(opening.withdraw(ours))

    opened.callback(withdraw)


def _cached(blob: Blob, where: Location, config: Config, opened: ExitStack) -> Blob:
    """Return ``blob`` behind a cache of local files, if it is far away and a cache is wanted."""
    if where.cache is None or not config.cache_bytes:
        return blob
    shared = Path(tempfile.gettempdir(), f"strandline-cache-{os.getuid()}-{where.cache}")
    cache = FileCache(shared if config.cache is None else Path(config.cache, where.cache), config.cache_bytes)
    opened.callback(cache.close)
    return CachedBlob(blob, cache)
