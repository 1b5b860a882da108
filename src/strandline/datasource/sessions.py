"""`register`, which lets a Spark session read collections; and the keeper of the leases of a program's frames.

Spark has no place where a source learns that a stream asks for its schema, and none where it learns that a frame is no
longer used.  So ``spark.read`` and ``spark.readStream`` of a registered session give readers of our own, which are
Spark's in everything but a load in our format.
"""

from __future__ import annotations

import concurrent.futures.thread as _pools  # noqa: F401  # see `Keeper`
import re
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from strandline import errors
from strandline.algebra.schema import quote
from strandline.controller.location.items import Collected
from strandline.datasource.opened import FORMAT, STORAGE, Asked, Door, Place, asked, opened
from strandline.datasource.pinned import LEASE
from strandline.datasource.source import Source
from strandline.engine.frames import failures
from strandline.errors import AsOfError, CollectionError, InvalidUsage, StrandlineError
from strandline.persist.handles.read import ReadHandle
from strandline.persist.shard.holds import BEAT_MS
from strandline.store.clock import SystemClock, SystemIds
from strandline.wiring.loop import LoopThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BEATS_S: Final = BEAT_MS / 1000


@dataclass(slots=True)
class _Kept:
    """The collection that a lease holds, and its item at the first beat: another one may have the name since."""

    place: Place
    collection: str
    item: Collected | None = None

    async def handle(self, door: Door, lease: str) -> ReadHandle:
        """Return a handle on the item, under ``lease``."""
        if self.item is None:
            self.item = (await door.catalog()).collection(self.collection)
        return await door.leased(self.item, lease)


class Keeper:
    """The leases of this process.  Its thread does all that waits for a store.

    What a program's frames read stays readable for as long as the program has the frames.  A frame's lease is taken
    where Spark plans it, in a process that ends.  In the program, which has the frame itself, the lease is beaten while
    the frame lives and ended when Python collects it, or at the program's exit.  A program that is killed, or that
    cannot open the location itself (a Connect client elsewhere), leaves leases that end by themselves.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._views: dict[tuple[int, str], DataFrame] = {}
        self._loop = LoopThread()
        self._loop.repeat(SystemClock(), BEATS_S, self._beat)
        # Pools of threads end before `atexit`, and what their module registers when it is imported runs last of these.
        threading._register_atexit(self.close)  # type: ignore[attr-defined]  # noqa: SLF001

    def keep(self, frame: DataFrame, lease: str, asked: Asked) -> DataFrame:
        """Return ``frame`` for a caller: its lease ends when neither it nor a frame derived from it is used."""
        self._kept[lease] = _Kept(asked.place, asked.collection)
        return failures.hand_out(frame, _usable, partial(self._let_go, lease))

    def keep_views(self, frames: Mapping[str, DataFrame]) -> None:
        """Hold what is behind temporary views, of which Python keeps no frame."""
        self._views.update({(id(frame.sparkSession), name): frame for name, frame in frames.items()})

    def close(self) -> None:
        """End all leases, and the thread."""

        async def end() -> None:
            for lease in list(self._kept):
                self._end(lease)

        self._loop.run(end())
        self._loop.stop()

    def _let_go(self, lease: str) -> None:
        """End a lease soon: this may be any thread, in the middle of anything."""
        self._loop.soon(partial(self._end, lease))

    def _end(self, lease: str) -> None:
        kept = self._kept.pop(lease, None)
        if kept is not None:
            with suppress(StrandlineError), opened(kept.place) as door:
                door.run(_ended(door, kept, lease))

    async def _beat(self) -> None:
        for lease, kept in list(self._kept.items()):
            with suppress(StrandlineError), opened(kept.place) as door:
                door.run(_beaten(door, kept, lease))


@cache
def keeper() -> Keeper:
    """Return this process's keeper."""
    return Keeper()


def _usable() -> None:
    """A frame of ours may always be used: what is gone is an error where it is read."""


async def _ended(door: Door, kept: _Kept, lease: str) -> None:
    await (await kept.handle(door, lease)).close()


async def _beaten(door: Door, kept: _Kept, lease: str) -> None:
    await (await kept.handle(door, lease)).beat()


CONNECT: Final = "pyspark.sql.connect."
SUBSTITUTED: Final = "spark.sql.variable.substitute"
"""Whether a session replaces ``${…}`` in each text that it parses, the name of a view too."""


def register(
    spark: SparkSession,
    location: str | None = None,
    *,
    consensus: str | None = None,
    storage: Mapping[str, str] | None = None,
    as_of: int | None = None,
) -> None:
    """Let ``spark`` read collections, by ``spark.read.format("strandline")`` and ``spark.readStream`` likewise.

    Args:
        spark: a session, classic or Connect.  Each session registers for itself.
        location: if it is given, each collection that is complete at some time becomes a temporary view of this name,
            all of them read at one time.  A warning names a collection that cannot be read then.
        consensus: as in `strandline.open`; with a password only as a reference (``env:NAME``).
        storage: how to reach an object store, as in `strandline.open`'s configuration.
        as_of: the time of the views; without it the newest at which all are complete.

    Raises `InvalidUsage` if ``spark`` is no session.
    """
    if not hasattr(spark, "dataSource"):
        raise InvalidUsage(f"spark must be a SparkSession, and this is a {type(spark).__name__}")
    spark.dataSource.register(Source)
    _give_readers(spark)
    if location is not None:
        options = {"location": location} | ({} if consensus is None else {"consensus": consensus})
        _views(spark, options | {f"{STORAGE}{name}": text for name, text in (storage or {}).items()}, as_of)


def _views(spark: SparkSession, options: Mapping[str, str], as_of: int | None) -> None:
    """Make a temporary view of each collection."""
    listed = spark.read.format(FORMAT).options(**options, listing="true").load().collect()
    readable = [row for row in listed if row.since is not None]
    uppers = [row.upper for row in readable if row.upper is not None]
    newest = min(uppers) - 1 if uppers else max((row.since for row in readable), default=0)
    time = newest if as_of is None else as_of
    frames = {}
    substitutes = str(spark.conf.get(SUBSTITUTED, "true")).lower() == "true"
    for row in listed:
        if substitutes and "${" in row.name:
            warnings.warn(
                f"there is no view of {row.name!r}: this session would replace part of the name; set {SUBSTITUTED} to "
                "false in it, which also keeps texts with ${ in your own queries",
                stacklevel=3,
            )
            continue
        try:
            if row.since is None:
                raise AsOfError(f"{row.name!r} is not complete at any time yet")
            frame = spark.read.format(FORMAT).options(**options, collection=row.name, asOf=str(time)).load()
        except (AsOfError, CollectionError) as error:
            warnings.warn(f"there is no view of {row.name!r}: {error}", stacklevel=3)
        else:
            frame.createOrReplaceTempView(quote(row.name))
            frames[row.name] = frame
    keeper().keep_views(frames)


def _give_readers(spark: Any) -> None:
    """Have the session give readers of our own."""
    kind = type(spark)
    if kind.__module__ != __name__:
        readers = {
            "read": property(_frames(type(spark.read))),
            "readStream": property(_streams(type(spark.readStream))),
        }
        spark.__class__ = type(kind.__name__, (kind,), {**readers, "__module__": __name__, "__doc__": kind.__doc__})


def _streams(kind: Any) -> Any:
    """Return the class of readers of streams: they ask for times and diffs, which a stream's rows have."""

    class Reader(kind):  # type: ignore[misc]
        def format(self, source: str) -> Any:
            found = super().format(source)
            return found.option("stream", "true") if source.lower() == FORMAT else found

        def load(self, *given: Any, **options: Any) -> Any:
            try:
                return super().load(*given, **options)
            except PySparkException as error:
                raise (_own(str(error)) or error) from None

    return Reader


def _frames(kind: Any) -> Any:
    """Return the class of readers of frames: what they load is held for as long as it is used."""
    resolves_again = kind.__module__.startswith(CONNECT)

    class Reader(kind):  # type: ignore[misc]
        def __init__(self, spark: Any) -> None:
            super().__init__(spark)
            self._strandline_texts: dict[str, str] = {}
            self._strandline_source = ""
            self._strandline_new = partial(kind, spark)

        def format(self, source: str) -> Any:
            self._strandline_source = source.lower()
            return super().format(source)

        def option(self, key: str, value: Any) -> Any:
            self._strandline_texts[key] = value
            return super().option(key, value)

        def options(self, **options: Any) -> Any:
            self._strandline_texts.update(options)
            return super().options(**options)

        def load(self, path: Any = None, format: Any = None, schema: Any = None, **options: Any) -> Any:  # noqa: A002
            if format is not None:
                self.format(format)
            if self._strandline_source != FORMAT:
                return super().load(path, schema=schema, **options)
            texts = {
                name: _text(value) for name, value in {**self._strandline_texts, **options}.items() if value is not None
            }
            wanted = asked(texts | ({} if path is None else {"path": path}))
            lease = SystemIds().fresh(LEASE)
            try:
                if resolves_again and not wanted.options.listing:
                    texts |= _times(self._strandline_new().format(FORMAT).options(**texts, lease=lease))
                super().options(**texts, lease=lease)
                frame = super().load(path, schema=schema)
            except PySparkException as error:
                raise (_own(str(error)) or error) from None
            return frame if wanted.options.listing else keeper().keep(frame, lease, wanted)

    return Reader


def _times(reader: Any) -> dict[str, str]:
    """Return the options that say at which times a frame is read, once its lease holds them."""
    (row,) = reader.option("pinning", "true").load().collect()
    return {"asOf": str(row.upper - 1)} if row.lower is None else {"lower": str(row.lower), "upper": str(row.upper)}


def _own(message: str) -> StrandlineError | None:
    """Return our own error that Spark tells of, as the traceback of another process; None: it is another's."""
    found = re.search(r"^strandline\.errors\.(\w+): (.*)", message, re.MULTILINE)
    kind = None if found is None else getattr(errors, found[1], None)
    if found is None or not (isinstance(kind, type) and issubclass(kind, StrandlineError)):
        return None
    sentence = found[2].removesuffix(" SQLSTATE: 38000")
    return kind(sentence)


def _text(value: object) -> str:
    """Return an option as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
