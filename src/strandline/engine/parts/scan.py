"""Reading: from the parts of batches to a lazy frame of updates, without parts that cannot have the keys sought.

Every part's footer is checked before anything is planned.  A filter on time is added only if the batches' own bounds
do not already answer it.  Contents that are all in inline parts are decoded at once in this process, and never reach
Spark.

A part may be skipped by the bounds that parts keep of their columns (`Reach`).  The rows of a part ascend by its
leading column, and row groups keep the least and greatest value of each column.  So if the keys of a change are close
together, a large window need not read the rest of a collection: parts that end before the least key or begin after the
greatest are not even opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace as changed
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.schema import DIFF, ERROR, TIME, quote
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Distributed, Frame, Local, dataframe
from strandline.engine.parts import part_store
from strandline.engine.parts.part_store import Described, Parts
from strandline.engine.sql import answers
from strandline.errors import CorruptionError
from strandline.persist.handles.contents import Contents, Half
from strandline.persist.shard.batch import BlobPart, InlinePart, Part, Window

SHARE_MAX: Final = 0.5
"""If a larger share of the rows may have the keys, all are read: the keys do not lie together."""
Value: TypeAlias = int | str | date


@dataclass(frozen=True, slots=True)
class Reach:
    """Values of ``column`` from ``least`` to ``greatest``, and with ``nulls`` NULL."""

    column: str
    least: Value
    greatest: Value
    nulls: bool

    @property
    def condition(self) -> Column:
        """For Spark, whose Parquet reader passes over row groups by it."""
        column = F.col(quote(self.column))
        within = column.between(F.lit(self.least), F.lit(self.greatest))
        return within | column.isNull() if self.nulls else within

    def share(self, parts: Sequence[Described]) -> float:
        """Return the share of the rows that lie in row groups which may have such a value."""
        groups = [group for part in parts for group in _groups(part.metadata)]
        rows = sum(group.num_rows for group in groups)
        return sum(group.num_rows for group in groups if self._meets(group)) / rows if rows else 0.0

    def meets(self, part: Described) -> bool:
        """Tell whether the part may hold such a value."""
        return any(self._meets(group) for group in _groups(part.metadata))

    def _meets(self, group: pq.RowGroupMetaData) -> bool:
        known = _statistics(group, self.column)
        if known is None or type(known.min) is not type(self.least):
            return True
        if self.nulls and (not known.has_null_count or known.null_count):
            return True
        least: Any = known.min
        greatest: Any = known.max
        return bool(least <= self.greatest and greatest >= self.least)


def reach(
    column: str, kind: pa.DataType, keys: Sequence[tuple[Frame, str]], session: SparkSession, *, nulls: bool
) -> Reach | None:
    """Return how far the values in the columns of ``keys`` reach; None if there are none, or they have no such order.

    NULL is reached if ``nulls``.  A job runs for each frame that is not here.
    """
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind)):
        return None
    found = [_ends(frame, name, session) for frame, name in keys]
    if any(each.type != kind for each in found):
        return None
    ends = pc.min_max(pa.chunked_array(found, kind))
    if not ends["min"].is_valid:
        return None
    return Reach(column, ends["min"].as_py(), ends["max"].as_py(), nulls)


def _ends(frame: Frame, name: str, session: SparkSession) -> pa.Array:
    """Return the least and the greatest value of a column."""
    if isinstance(frame, Local):
        ends = pc.min_max(frame.table[name])
        return pa.array([ends["min"].as_py(), ends["max"].as_py()], frame.table[name].type)
    column = F.col(quote(name))
    table = dataframe(frame, session).agg(F.min(column).alias("least"), F.max(column).alias("greatest")).toArrow()
    return pa.concat_arrays([*table["least"].chunks, *table["greatest"].chunks])


def _groups(metadata: pq.FileMetaData) -> list[pq.RowGroupMetaData]:
    return [metadata.row_group(n) for n in range(metadata.num_row_groups)]


def _statistics(group: pq.RowGroupMetaData, column: str) -> pq.Statistics | None:
    """Return what a row group says of a column; None if it says nothing."""
    at = next((n for n in range(group.num_columns) if group.column(n).path_in_schema.lower() == column.lower()), None)
    found = None if at is None else group.column(at).statistics
    return found if found is not None and found.has_min_max else None


HERE_ROWS_MAX: Final = 300_000
"""More updates than this are not brought into this process, even if they are asked for here."""
HERE_BYTES_MAX: Final = 64 << 20
"""Nor are parts of more bytes, as they are stored."""
MERGED_BYTES_MAX: Final = 8 << 20
"""The few updates of a window may be among many in parts of so many bytes, which compaction has merged."""
_OPTIONS: Final = {"parquet.page.verify-checksum.enabled": "true"}


@dataclass(frozen=True, slots=True)
class Scanner:
    """Plans reads for one engine.  Its calls block (footers, planning); the engine runs them in its worker threads."""

    session: SparkSession
    store: Parts

    def read(self, contents: Contents, within: Reach | None = None) -> Frame:
        """Return the updates of ``contents``; perhaps only those ``within`` reach, which are rows of the ok half.

        Raises `CorruptionError` for a missing or damaged part.
        """
        frame = self._read(contents, within)
        return answers.netted(frame, contents.advance, self.session) if contents.net and not frame.plain else frame

    def pruned(self, contents: Contents, within: Reach) -> Frame | None:
        """Return the updates of ``contents`` that are ``within`` reach; None: reading all of them is as good."""
        parts = self.store.check_all(_blobs(contents))
        return self.read(contents, within) if parts and within.share(parts) <= SHARE_MAX else None

    def _read(self, contents: Contents, within: Reach | None) -> Frame:
        small = _decoded(contents)
        blobs = _blobs(contents)
        if not blobs:
            return Local(small, contents.plain)
        if contents.here and may_be_few(contents, blobs):
            table = pa.concat_tables(self.tables(contents))
            if table.num_rows <= HERE_ROWS_MAX:
                return Local(table, contents.plain)
        parts = self.store.check_all(blobs)
        scan = self._shown(contents, [part for part in parts if within is None or within.meets(part)], within)
        if scan is None:
            return Local(small, contents.plain)
        if small.num_rows:
            scan = scan.unionByName(dataframe(Local(small, contents.plain), self.session, contents.advance))
        return Distributed(scan, contents.plain, contents.advance)

    def times(self, contents: Contents) -> dict[int, int]:
        """Return how many updates each time has, ascending; a job runs only for large parts that hold several."""
        found = _counted(_decoded(contents))
        several = []
        for described in self.store.check_all(_blobs(contents)):
            part = described.part
            exact = described.times.least == described.times.greatest and part.window is None
            if not exact or described.errors is None or contents.half is Half.BOTH:
                several.append(described)
            elif contents.lower <= described.times.least < contents.upper:
                rows = part.rows - described.errors if contents.half is Half.OK else described.errors
                found[max(described.times.least, contents.advance)] += rows
        found += self._times(contents, several)
        return {time: found[time] for time in sorted(+found)}

    def _times(self, contents: Contents, parts: Sequence[Described]) -> Counter[int]:
        """Return how many updates of these parts each time has; the parts are read here if they are small."""
        if may_be_few(contents, [each.part for each in parts]):
            own = {each.part.key for each in parts}
            batches = (
                changed(batch, parts=tuple(p for p in batch.parts if _key(p) in own)) for batch in contents.batches
            )
            tables = self.tables(changed(contents, batches=tuple(batches)))
            return sum((_counted(table) for table in tables), Counter())
        shown = self._shown(contents, parts)
        if shown is None:
            return Counter()
        counts = shown.groupBy(TIME).count().toArrow()
        return Counter(
            {time + contents.advance: n for time, n in zip(*(c.to_pylist() for c in counts.columns), strict=True)}
        )

    def tables(self, contents: Contents) -> Iterator[pa.Table]:
        """See `part_store.tables`."""
        return part_store.tables(self.store, contents)

    def _shown(self, contents: Contents, parts: Sequence[Described], within: Reach | None = None) -> DataFrame | None:
        """Return what shows of these parts, times counting from ``contents.advance``; None if nothing does."""
        windows: dict[Window | None, list[Described]] = {}
        for one in parts:
            windows.setdefault(one.part.window, []).append(one)
        scans = []
        for window, those in windows.items():
            shown = contents.through(window)
            if shown is not None:
                scan = Distributed(self._scan(shown, those, within), contents.plain, shown.advance)
                scans.append(dataframe(scan, self.session, contents.advance))
        return reduce(DataFrame.unionAll, scans) if scans else None

    def _scan(self, contents: Contents, parts: Sequence[Described], within: Reach | None) -> DataFrame:
        """Return the updates in these parts, times counting from ``contents.advance``."""
        ddl = ", ".join(filter(None, [contents.schema.ddl, f"{ERROR} string, {TIME} bigint, {DIFF} bigint"]))
        reader = self.session.read.schema(ddl).options(**_OPTIONS)
        try:
            scan = reader.parquet(*(self.store.uri(one.part.key) for one in parts))
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            raise CorruptionError(f"shard {contents.shard}: a part is missing that was there a moment ago") from error
        least = min(one.times.least for one in parts)
        greatest = max(one.times.greatest for one in parts)
        where, names = _half(contents)
        where += _bounds(contents, least, greatest)
        time = f"{_time(contents, least, greatest)} AS {TIME}"
        scan = scan if within is None else scan.where(within.condition)
        return (scan.where(" AND ".join(where)) if where else scan).selectExpr(*map(quote, names), time, DIFF)


def _half(contents: Contents) -> tuple[list[str], tuple[str, ...]]:
    """Return the filter that a half needs, and its columns."""
    match contents.half:
        case Half.OK:
            return [f"{ERROR} IS NULL"], contents.schema.names
        case Half.ERR:
            return [f"{ERROR} IS NOT NULL"], (ERROR,)
        case Half.BOTH:
            return [], (*contents.schema.names, ERROR)


def _decoded(contents: Contents) -> pa.Table:
    """Return the updates of the inline parts."""
    shown: dict[Window | None, list[pa.Table]] = {None: [inline.update_schema(contents.schema).empty_table()]}
    for part in (part for batch in contents.batches for part in batch.parts):
        if isinstance(part, InlinePart):
            shown.setdefault(part.window, []).append(inline.decode(contents.shard, part, contents.schema))
    tables = []
    for window, those in shown.items():
        wanted = contents.through(window)
        if wanted is not None:
            bounds = {"lower": wanted.lower, "upper": wanted.upper, "advance": wanted.advance}
            tables.append(inline.select(pa.concat_tables(those), half=contents.half, **bounds))
    return pa.concat_tables(tables)


def may_be_few(contents: Contents, parts: Sequence[BlobPart]) -> bool:
    """Tell whether ``contents`` may have few updates in ``parts``, and reading these takes little."""
    size = sum(part.size for part in parts)
    if sum(part.rows for part in parts) <= HERE_ROWS_MAX:
        return size <= HERE_BYTES_MAX
    return contents.lower > 0 and size <= MERGED_BYTES_MAX


def _counted(updates: pa.Table) -> Counter[int]:
    """Return how many updates each time has."""
    counts = updates[TIME].value_counts()
    return Counter(dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)))


def _key(part: Part) -> str:
    return part.key if isinstance(part, BlobPart) else ""


def _blobs(contents: Contents) -> list[BlobPart]:
    return [part for batch in contents.batches for part in batch.parts if isinstance(part, BlobPart)]


def _bounds(contents: Contents, least: int, greatest: int) -> list[str]:
    """Return the filters on time that the parts' own statistics do not make unnecessary."""
    bounds = []
    if least < contents.lower:
        bounds.append(f"{TIME} >= {contents.lower}L")
    if greatest >= contents.upper:
        bounds.append(f"{TIME} < {contents.upper}L")
    return bounds


def _time(contents: Contents, least: int, greatest: int) -> str:
    """Return the time of an update, counting from ``contents.advance``; a constant where there can only be one."""
    origin = contents.advance
    first, last = max(least, contents.lower, origin), max(min(greatest, contents.upper - 1), origin)
    if first == last:
        return f"{first - origin}L"
    if origin == 0:
        return TIME
    return f"{TIME} - {origin}L" if least >= origin else f"greatest({TIME} - {origin}L, 0L)"
