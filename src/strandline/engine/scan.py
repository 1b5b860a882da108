"""Reading: from the parts of batches to a lazy frame of updates, and the times that lie in them.

Every part's footer is checked before anything is planned.  Filters on time are added only where the batches' own bounds
do not already answer them.  Contents of inline parts alone are decoded here and now, and never reach Spark.

Source: design page "persist" (everything at rest is checked; halves).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.algebra.schema import DIFF, ERROR, TIME, quote
from strandline.engine import answers, inline
from strandline.engine.parts import PartStore
from strandline.engine.rows import Distributed, Frame, Local, dataframe
from strandline.persist.batch import BlobPart, InlinePart
from strandline.persist.plane import Contents, Half

_OPTIONS: Final = {"parquet.page.verify-checksum.enabled": "true"}


@dataclass(frozen=True, slots=True)
class Scanner:
    """Plans reads for one engine.  Its calls block (footers, planning); the engine runs them in its worker threads."""

    session: SparkSession
    store: PartStore

    def read(self, contents: Contents) -> Frame:
        """Return the updates of ``contents``.  Raises `CorruptionError` for a missing or damaged part."""
        frame = self._read(contents)
        return answers.netted(frame, contents.advance, self.session) if contents.net and not frame.plain else frame

    def _read(self, contents: Contents) -> Frame:
        small = _decoded(contents)
        blobs = _blobs(contents)
        if not blobs:
            return Local(small, contents.plain)
        for part in blobs:
            self.store.check(part)
        scan = self._scan(contents, blobs)
        if small.num_rows:
            scan = scan.unionByName(dataframe(Local(small, contents.plain), self.session))
        return Distributed(scan, contents.plain)

    def times(self, contents: Contents) -> tuple[int, ...]:
        """Return the distinct times of the updates, ascending; a job runs only for parts that hold several."""
        found = set(_decoded(contents)[TIME].to_pylist())
        several = []
        for part in _blobs(contents):
            described = self.store.check(part)
            if described.times.least != described.times.greatest or described.errors is None:
                several.append(part)
            elif described.errors < part.rows if contents.half is Half.OK else described.errors:
                found.add(described.times.least)
        if several:
            times = self._scan(contents, several).select(TIME).distinct().toArrow()[TIME]
            found |= set(times.to_pylist())
        advanced = {max(time, contents.advance) for time in found if contents.lower <= time < contents.upper}
        return tuple(sorted(advanced))

    def _scan(self, contents: Contents, blobs: Sequence[BlobPart]) -> DataFrame:
        ddl = ", ".join(filter(None, [contents.schema.ddl, f"{ERROR} string, {TIME} bigint, {DIFF} bigint"]))
        reader = self.session.read.schema(ddl).options(**_OPTIONS)
        scan = reader.parquet(*(self.store.uri(part.key) for part in blobs))
        where = [f"{ERROR} IS {'NULL' if contents.half is Half.OK else 'NOT NULL'}", *_bounds(contents)]
        names = contents.schema.names if contents.half is Half.OK else (ERROR,)
        time = f"greatest({TIME}, {contents.advance}L) AS {TIME}" if contents.advance > 0 else TIME
        return scan.where(" AND ".join(where)).selectExpr(*map(quote, names), time, DIFF)


def _decoded(contents: Contents) -> pa.Table:
    """Return the updates of the inline parts."""
    parts = (part for batch in contents.batches for part in batch.parts)
    tables = [inline.decode(contents.shard, part, contents.schema) for part in parts if isinstance(part, InlinePart)]
    return inline.select(
        pa.concat_tables([inline.update_schema(contents.schema).empty_table(), *tables]),
        half=contents.half,
        lower=contents.lower,
        upper=contents.upper,
        advance=contents.advance,
    )


def _blobs(contents: Contents) -> list[BlobPart]:
    return [part for batch in contents.batches for part in batch.parts if isinstance(part, BlobPart)]


def _bounds(contents: Contents) -> list[str]:
    """Return the filters on time that the batches' own bounds do not make unnecessary."""
    bounds = []
    if any((batch.lower.at or 0) < contents.lower for batch in contents.batches):
        bounds.append(f"{TIME} >= {contents.lower}L")
    # A compacted batch may hold times advanced to its since, which may lie beyond its upper.
    if any(
        batch.upper.at is None or batch.upper.at > contents.upper or (batch.since.at or 0) >= contents.upper
        for batch in contents.batches
    ):
        bounds.append(f"{TIME} < {contents.upper}L")
    return bounds
