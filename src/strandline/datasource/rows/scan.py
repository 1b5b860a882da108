"""Scans: from a piece of a collection to the updates that a task gives, in tables of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.datasource.rows import conditions, updates
from strandline.datasource.rows.conditions import Condition
from strandline.datasource.rows.shares import Gives, Piece, Share, Stored, Within
from strandline.engine.frames import inline
from strandline.engine.parts.part_store import Parts
from strandline.errors import CorruptionError
from strandline.persist.handles.contents import Half

SCAN_ROWS: Final = 131_072
"""How many updates of a part are in memory at a time, decoded, where they need not be added up."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is read of each piece: ``names`` of the columns, perhaps the times, of the rows that meet ``where``."""

    shard: str
    schema: Schema
    names: tuple[str, ...]
    times: bool
    where: Condition | None = None

    @property
    def kept(self) -> list[str]:
        """The columns of what `scanned` yields."""
        return [*self.names, *([TIME] if self.times else []), DIFF]


def given(parts: Parts, share: Share, look: Look) -> Iterator[pa.Table]:
    """Yield what a task gives: columns, perhaps ``__time``, and ``__diff``.

    Raises `CorruptionError` for a part that is missing or damaged.
    """
    pieces = (table for piece in share.pieces for table in scanned(parts, piece, look, share.within))
    match share.gives:
        case Gives.ALL:
            yield from pieces
        case Gives.SUMS:
            yield updates.added_up(pa.concat_tables([_nothing(look), *pieces]))
        case Gives.OTHERS:
            gone = _withdrawn(parts, share, look)
            for table in pieces:
                yield table.filter(pa.array(~updates.among(table, gone)))
        case Gives.WITHDRAWN:
            gone = _withdrawn(parts, share, look)
            found = [table.filter(pa.array(updates.among(table, gone))) for table in pieces]
            yield updates.added_up(pa.concat_tables([_nothing(look), *found]))


def scanned(parts: Parts, piece: Piece, look: Look, within: Within | None = None) -> Iterator[pa.Table]:
    """Yield the updates of a piece, some rows at a time.  Raises `CorruptionError`."""
    tested = () if look.where is None else conditions.columns(look.where)
    needed = dict.fromkeys((*look.names, *tested, *([within.column] if within is not None else [])))
    whole = inline.update_schema(look.schema)
    target = pa.schema([whole.field(name) for name in (*needed, ERROR, TIME, DIFF)])
    for stored in _stored(parts, piece, look, target, within):
        bounds = {"lower": piece.lower, "upper": piece.upper, "advance": piece.advance}
        shown = inline.select(stored, half=Half.OK, **bounds)
        if look.where is not None:
            shown = conditions.meeting(shown, look.where)
        if within is not None:
            shown = shown.filter(_inside(shown[within.column], within))
        yield shown.select(look.kept)


def _stored(parts: Parts, piece: Piece, look: Look, target: pa.Schema, within: Within | None) -> Iterator[pa.Table]:
    """Yield what is stored, in the columns of ``target``."""
    if not isinstance(piece.held, Stored):
        yield inline.decode(look.shard, piece.held.part, look.schema).select(target.names)
        return
    part = piece.held.part
    file = parts.open(part)
    wanted = {name.lower() for name in target.names}
    columns = [name for name in file.schema_arrow.names if name.lower() in wanted]
    groups = [n for n in range(file.num_row_groups) if _may(file.metadata, n, look, within)]
    try:
        for batch in file.iter_batches(SCAN_ROWS, row_groups=groups, columns=columns):
            yield inline.conform(pa.Table.from_batches([batch]), target)
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"part {part.key} cannot be read: {error}") from error


def _may(file: pq.FileMetaData, group: int, look: Look, within: Within | None) -> bool:
    """Tell whether a row group may have a row that is wanted."""
    met = look.where is None or conditions.may_be_in(file, group, look.where)
    return met and (within is None or _reaches(file, group, within))


def _reaches(file: pq.FileMetaData, group: int, within: Within) -> bool:
    known = conditions.range_of(file, group, within.column)
    first, end = _bounds(within)
    values = [each.as_py() for each in (first, end) if each is not None]
    if known is None or not values or any(type(known.least) is not type(value) for value in values):
        return True
    if first is None and known.nulls:
        return True
    return (first is None or known.greatest >= first.as_py()) and (end is None or known.least < end.as_py())


def _inside(column: pa.ChunkedArray, within: Within) -> pa.ChunkedArray:
    first, end = _bounds(within)
    inside = pa.chunked_array([pa.array(np.ones(len(column), np.bool_))])
    if first is not None:
        inside = pc.and_(inside, pc.fill_null(pc.greater_equal(column, first), fill_value=False))
    if end is not None:
        inside = pc.and_(inside, pc.fill_null(pc.less(column, end), fill_value=first is None))
    return inside


def _bounds(within: Within) -> tuple[pa.Scalar | None, pa.Scalar | None]:
    """Return where a range begins, and before what it ends; None: it is not bounded there."""
    with pa.ipc.open_stream(within.cuts) as reader:
        cuts = reader.read_all().column(0)
    return (
        cuts[within.number - 1] if within.number else None,
        cuts[within.number] if within.number < len(cuts) else None,
    )


def _withdrawn(parts: Parts, share: Share, look: Look) -> pa.Table:
    """Return the rows that an update of a share's ``beside`` takes away."""
    found = [updates.withdrawn(table) for piece in share.beside for table in scanned(parts, piece, look)]
    return pa.concat_tables([updates.withdrawn(_nothing(look)), *found])


def _nothing(look: Look) -> pa.Table:
    whole = inline.update_schema(look.schema)
    return pa.schema([whole.field(name) for name in look.kept]).empty_table()
