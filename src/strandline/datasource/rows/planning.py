"""Planning a read: from contents to shares, by what the parts say of themselves, without Spark and without a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.schema import DIFF, Schema
from strandline.datasource.rows.shares import Inline, Known, Piece, Share, Stored, shares
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Local, unwrap, wrap
from strandline.engine.parts.footers import Described
from strandline.engine.parts.part_store import Parts
from strandline.engine.sql import error_half
from strandline.persist.handles.contents import Contents, Rows
from strandline.persist.shard.batch import BlobPart, InlinePart, Part
from strandline.plane.reading import Errors

SAMPLED_PARTS_MAX: Final = 8
"""From how many of the largest parts the cuts of ranges are taken; they make tasks equal, not answers right."""


def planned(parts: Parts, contents: Contents) -> list[Share]:
    """Return the shares of ``contents``, rows of the ok half.

    Raises `CorruptionError` for a part that is missing, or is not the part that was appended.
    """
    known = _known(parts, contents)
    return shares([each for each, _ in known], lambda many: _cuts(parts, contents.schema, known, many))


def _known(parts: Parts, contents: Contents) -> list[tuple[Known, BlobPart | None]]:
    """Return the pieces that may show something, each with its part if it is an object."""
    every = [part for batch in contents.batches for part in batch.parts]
    blobs = [part for part in every if isinstance(part, BlobPart)]
    described = {each.part.key: each for each in parts.check_all(blobs)}
    found = []
    for part in every:
        shown = contents.through(part.window)
        if shown is None:
            continue
        held, withdraws = _held(contents, part, described)
        if isinstance(part, BlobPart):
            times = described[part.key].times
            if times.greatest < shown.lower or times.least >= shown.upper:
                continue
        piece = Piece(held, shown.lower, shown.upper, shown.advance)
        found.append((Known(piece, part.rows, part.size, withdraws), part if isinstance(part, BlobPart) else None))
    return found


def _held(contents: Contents, part: Part, described: Mapping[str, Described]) -> tuple[Inline | Stored, bool]:
    """Return a part as tasks get it, and whether one of its updates takes a row away."""
    if isinstance(part, InlinePart):
        least = pc.min(inline.decode(contents.shard, part, contents.schema)[DIFF]).as_py()
        return Inline(part.data, part.rows), least is not None and least < 0
    own = described[part.key]
    return Stored(part.key, part.size, part.rows, part.footer_crc, part.sidecar), own.diffs.least < 0


def _cuts(
    parts: Parts, schema: Schema, known: Sequence[tuple[Known, BlobPart | None]], many: int
) -> tuple[str, bytes, int] | None:
    """Return where to cut the rows into about ``many`` ranges: by a column whose values have an order that Arrow knows.

    That is the first such column: parts are sorted by their first columns.
    """
    whole = inline.update_schema(schema)
    column = next((name for name in schema.names if _has_order(whole.field(name).type)), None)
    blobs = sorted((part for _, part in known if part is not None), key=lambda part: -part.rows)[:SAMPLED_PARTS_MAX]
    if column is None or not blobs or many < 2:
        return None
    values = [_values(parts, part, whole.field(column)) for part in blobs]
    ordered = pc.array_sort_indices(all_values := pa.chunked_array(values).combine_chunks().drop_null())
    places = np.unique(np.linspace(0, len(ordered), many, endpoint=False).astype(np.int64)[1:])
    cuts = all_values.take(ordered.take(pa.array(places))).unique() if len(ordered) else all_values
    if not len(cuts):
        return None
    sink = pa.BufferOutputStream()
    table = pa.table({column: cuts})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return column, sink.getvalue().to_pybytes(), len(cuts) + 1


def _values(parts: Parts, part: BlobPart, field: pa.Field) -> pa.Array:
    file = parts.open(part)
    names = [name for name in file.schema_arrow.names if name.lower() == field.name.lower()]
    return inline.conform(file.read(columns=names), pa.schema([field])).column(0).combine_chunks()


def _has_order(kind: pa.DataType) -> bool:
    """Tell whether Arrow compares all values of a type with each other as we do: not NaN, and nothing nested."""
    known = (pa.types.is_integer, pa.types.is_string, pa.types.is_binary, pa.types.is_temporal, pa.types.is_decimal)
    return any(is_one(kind) for is_one in known)


@dataclass(frozen=True, slots=True)
class HereReader:
    """`plane.reading.Counting` in this process, for the error half of a collection: a healthy one is empty."""

    parts: Parts

    async def read(self, contents: Contents) -> Rows:
        """Return the updates of the err half, as `Reads.read`."""
        target = inline.update_schema(contents.schema)
        found = [inline.select(target.empty_table(), half=contents.half, lower=0, upper=0, advance=0)]
        for part in (part for batch in contents.batches if batch.errors for part in batch.parts):
            shown = contents.through(part.window)
            if shown is not None:
                bounds = {"lower": shown.lower, "upper": shown.upper, "advance": shown.advance}
                found.append(inline.select(self._whole(contents, part, target), half=shown.half, **bounds))
        return wrap(Local(pa.concat_tables(found), plain=False))

    async def errors(self, rows: Rows, *, of: str | None = None) -> Errors:
        """See `Counting.errors`."""
        return error_half.tally(unwrap(rows), of)

    async def weights(self, rows: Rows) -> Mapping[int, int]:
        """See `Counting.weights`."""
        frame = unwrap(rows)
        assert isinstance(frame, Local), "they were read here"
        return error_half.weights_here(frame)

    def _whole(self, contents: Contents, part: Part, target: pa.Schema) -> pa.Table:
        if isinstance(part, InlinePart):
            return inline.decode(contents.shard, part, contents.schema)
        self.parts.check(part)
        return inline.conform(self.parts.load(part), target)
