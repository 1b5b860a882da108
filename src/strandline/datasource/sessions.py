"""`register`: lets a session of Spark's read collections.

Spark has no place where a source learns that a stream asks for its schema, and none where it learns that a frame is no
longer used.  So ``spark.read`` and ``spark.readStream`` of a registered session give readers of our own, which are
Spark's in everything but a load in our format.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from strandline import errors
from strandline.algebra.schema import quote
from strandline.datasource.keeper import keeper
from strandline.datasource.options import FORMAT, STORAGE, asked
from strandline.datasource.pinned import LEASE
from strandline.datasource.source import Source
from strandline.errors import AsOfError, CollectionError, InvalidUsage, StrandlineError
from strandline.store.system import SystemIds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
