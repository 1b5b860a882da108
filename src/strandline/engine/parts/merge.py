"""Rewriting parts without their meaning: merges for compaction, and the sums of what shows of a part.

A merge of few updates is done here, in Arrow, without a job: most are of a handful of inline parts.  One of many is
read and staged like any other frame, by Spark.  The digest of the result is the sum of its inputs', whatever schema
they were written under; no hash is looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from strandline.algebra.schema import DIFF, ERROR, Schema, quote
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Distributed, Frame
from strandline.engine.parts.part_store import Parts
from strandline.engine.parts.scan import Scanner
from strandline.engine.parts.staging import DRIVER_PART, Stager
from strandline.engine.sql import consolidate
from strandline.frontier.antichain import MINIMUM, TIME_MAX, Frontier
from strandline.persist.handles.contents import Contents, Half, StageRequest
from strandline.persist.shard.batch import (
    INLINE_PART_BYTES_MAX,
    NOTHING,
    Batch,
    InlinePart,
    Part,
    Staged,
    narrowed,
)

HERE_ROWS_MAX: Final = 200_000
"""Merges of more updates than this go to Spark."""


def _ranged(frame: Frame, sort: Sequence[str]) -> Frame:
    """Return the rows by ranges of their sort columns, so that each part that is written has a range of its own.

    Adding up equal updates needs no other exchange after it.
    """
    if not sort or not isinstance(frame, Distributed):
        return frame
    return dataclasses.replace(frame, dataframe=frame.dataframe.repartitionByRange(*map(quote, sort)))


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Merges and trims for one engine.  Its calls block; the engine runs them in its worker threads."""

    store: Parts
    scanner: Scanner
    stager: Stager

    def merge(self, contents: Contents, request: StageRequest) -> Staged:
        """See `Engine.merge`."""
        contents = replace(contents, half=Half.BOTH)
        digest = sum((batch.digest for batch in contents.batches), NOTHING)
        few = sum(part.rows for batch in contents.batches for part in batch.parts) <= HERE_ROWS_MAX
        if few and inline.can_group(inline.update_schema(contents.schema).empty_table()):
            made = self._here(contents, request)
        else:
            # What is advanced may lie beyond the upper of its batch.
            beyond = replace(request, upper=max(request.upper, contents.advance + 1), small=False)
            made = self.stager.stage(_ranged(self.scanner.read(contents), request.sort), beyond)
        lower, upper = contents.batches[0].lower, contents.batches[-1].upper
        return replace(made, lower=lower, upper=upper, digest=digest, since=Frontier(contents.advance))

    def trim(self, staged: Staged, schema: Schema, lower: Frontier, upper: Frontier) -> Staged:
        """See `Engine.trim`."""
        parts = narrowed(staged, lower, upper)
        batch = Batch(lower, upper, MINIMUM, parts, staged.rows, staged.diffs, staged.digest, staged.plain)
        shown = Contents("being trimmed", schema, (batch,), 0, TIME_MAX, 0, Half.BOTH)
        sums = self.stager.measure(self.scanner.read(shown), schema)
        return replace(sums, lower=lower, upper=upper, parts=parts if sums.rows else ())

    def _here(self, contents: Contents, request: StageRequest) -> Staged:
        merged = inline.consolidated(pa.concat_tables(self.scanner.tables(contents)))
        if request.sort:
            merged = inline.in_order(merged, consolidate.sort_columns(request.schema, request.sort))
        table = inline.without_idle_error(merged)
        parts = self._written(table, request) if table.num_rows else ()
        diffs = table[DIFF]
        errors = table.num_rows - table[ERROR].null_count if ERROR in table.column_names else 0
        return Staged(
            MINIMUM,
            Frontier(TIME_MAX),
            parts,
            table.num_rows,
            pc.sum(diffs).as_py() or 0,
            NOTHING,
            plain=pc.all(pc.equal(diffs, 1)).as_py() is not False,
            errors=errors,
            sort=request.sort,
        )

    def _written(self, table: pa.Table, request: StageRequest) -> tuple[Part, ...]:
        encoded = inline.encode(table)
        if len(encoded) <= min(INLINE_PART_BYTES_MAX, request.inline_bytes_max):
            return (InlinePart(encoded, table.num_rows),)
        described = self.store.write(f"{request.prefix.rstrip('/')}/{DRIVER_PART}", inline.parquet(table))
        return (described.sorted_by(request.sort),)
