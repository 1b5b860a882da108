"""Scans: how a read of a collection is shared among Spark's tasks, and the updates that each task gives.

A read is planned from the collection's contents and what its parts say of themselves, without Spark and without a row.
Shares and their planning are pure.  A share is plain data: Spark sends its bytes to a task in our own encoding.  A task
gives updates in tables of bounded size.

Two rows are equal where SQL calls them not distinct; stored floats are normalised, so their bits say it.  Arrow groups
by no nested column, so such a column is compared by the text of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.datasource.rows import conditions
from strandline.datasource.rows.conditions import Condition
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Local, unwrap, wrap
from strandline.engine.parts.part_store import Described, Parts
from strandline.engine.sql import error_half
from strandline.errors import CollectionError, CorruptionError
from strandline.persist.handles.contents import Contents, Half, Rows
from strandline.persist.shard.batch import BlobPart, InlinePart, Part
from strandline.plane import Errors

TASK_ROWS: Final = 1_000_000
"""About how many updates a task reads as its own, if parts are not larger."""
TASK_BYTES: Final = 64 << 20
"""About how many stored bytes."""
ALONE_ROWS_MAX: Final = 500_000
"""One task adds up so many updates by itself."""
WITHDRAWN_ROWS_MAX: Final = 500_000
"""If parts that take rows away hold more updates, each task would read too much beside its own."""


class Inline(msgspec.Struct, frozen=True, tag="inline"):
    """Updates that lie in the shard's state, which tasks do not open."""

    data: bytes
    rows: int

    @property
    def part(self) -> InlinePart:
        """The part itself."""
        return InlinePart(self.data, self.rows)


class Stored(msgspec.Struct, frozen=True, tag="stored"):
    """Updates that lie in an object of Blob: what `BlobPart` says of them."""

    key: str
    size: int
    rows: int
    footer_crc: int
    sidecar: str

    @property
    def part(self) -> BlobPart:
        """The part itself."""
        return BlobPart(self.key, self.size, self.rows, self.footer_crc, self.sidecar)


class Piece(msgspec.Struct, frozen=True):
    """What shows of a part: updates with ``lower <= time < upper``, times moved up to ``advance``."""

    held: Inline | Stored
    lower: int
    upper: int
    advance: int


class Gives(Enum):
    """Which rows a share gives of its pieces."""

    ALL = "all"
    """Every update as it is stored."""
    SUMS = "sums"
    """What all updates add up to."""
    OTHERS = "others"
    """The updates of rows that no update of ``beside`` takes away, as they are stored."""
    WITHDRAWN = "withdrawn"
    """What the updates of all other rows add up to."""


class Within(msgspec.Struct, frozen=True):
    """Rows from the ``number``-th of ``cuts`` (an Arrow stream, of one column) up to the next; NULL is in the first."""

    column: str
    cuts: bytes
    number: int


class Share(msgspec.Struct, frozen=True):
    """What one task gives."""

    gives: Gives
    pieces: tuple[Piece, ...]
    beside: tuple[Piece, ...] = ()
    within: Within | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A piece, and what is known of it before it is read: whether one of its updates may take a row away."""

    piece: Piece
    rows: int
    size: int
    withdraws: bool


Cuts: TypeAlias = Callable[[int], tuple[str, bytes, int] | None]
"""Where to cut rows into about so many ranges: a column, its cuts, how many ranges that makes; None: there is no column
that can be cut."""


def shares(known: Sequence[Known], cuts: Cuts) -> list[Share]:
    """Return the shares of a read.

    Every row is given exactly as often as it is there.  A row may be in several parts: inserted in one, withdrawn in
    another.  Only a row that some update withdraws needs its updates added up; all others are given as they are stored.
    So there are four ways, and the cheapest exact one is taken:

    - *as stored*: no part withdraws a row.  Each part is read once, by one task.
    - *alone*: the parts are few enough for one task, which adds all of it up.  Each part is read once.
    - *apart*: the withdrawals are few.  Each part is read by one task, which leaves out the rows that were ever
      withdrawn, and once more by one last task, which adds up just these.  The parts with withdrawals are read by every
      task.
    - *ranges*: else, the rows are cut by a column into ranges, and the task of each adds up its range.  A part is read
      by each task whose range it reaches into, and of the part only the row groups that may have rows in the range.
    """
    pieces = tuple(each.piece for each in known)
    if not any(each.withdraws for each in known):
        return [Share(Gives.ALL, group) for group in _groups(known)]
    rows = sum(each.rows for each in known)
    if rows <= ALONE_ROWS_MAX:
        return [Share(Gives.SUMS, pieces)]
    beside = tuple(each.piece for each in known if each.withdraws)
    if sum(each.rows for each in known if each.withdraws) <= WITHDRAWN_ROWS_MAX:
        return [
            *(Share(Gives.OTHERS, group, beside) for group in _groups(known)),
            Share(Gives.WITHDRAWN, pieces, beside),
        ]
    found = cuts(1 + rows // TASK_ROWS)
    if found is None:
        return [Share(Gives.SUMS, pieces)]
    column, where, many = found
    return [Share(Gives.SUMS, pieces, within=Within(column, where, number)) for number in range(many)]


def _groups(known: Sequence[Known]) -> list[tuple[Piece, ...]]:
    """Return the pieces in groups that a task may read, in their order."""
    groups: list[list[Piece]] = []
    rows = size = 0
    for each in known:
        if not groups or rows + each.rows > TASK_ROWS or size + each.size > TASK_BYTES:
            groups.append([])
            rows = size = 0
        groups[-1].append(each.piece)
        rows, size = rows + each.rows, size + each.size
    return [tuple(group) for group in groups]


_decoder: Final = msgspec.msgpack.Decoder(Share)


def encode(share: Share) -> bytes:
    """Return the bytes of a share."""
    return msgspec.msgpack.encode(share)


def decode(data: bytes) -> Share:
    """Return the share that `encode` made these bytes of."""
    return _decoder.decode(data)


BATCH_ROWS: Final = 16_384
"""The most rows of a batch that Spark is handed."""
_AT: Final = "at"
_OLD: Final = "old"


def added_up(updates: pa.Table) -> pa.Table:
    """Return each distinct row once (every column but ``__diff``), with the sum of its diffs; zeros are dropped."""
    names = [name for name in updates.column_names if name != DIFF]
    keyed = _keys(updates, names)
    grouped = pa.table([*keyed, updates[DIFF], _positions(updates)], [*_numbered(names), DIFF, _AT]).group_by(
        _numbered(names), use_threads=False
    )
    sums = grouped.aggregate([(DIFF, "sum"), (_AT, "min")])
    kept = sums.filter(pc.not_equal(sums[f"{DIFF}_sum"], 0))
    return updates.select(names).take(kept[f"{_AT}_min"]).append_column(DIFF, kept[f"{DIFF}_sum"]).combine_chunks()


def among(updates: pa.Table, known: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return for each update whether its row is one of ``known``, which has the same columns in the same order."""
    found = np.zeros(updates.num_rows, np.bool_)
    if not known.num_rows or not updates.num_rows:
        return found
    names = [name for name in updates.column_names if name != DIFF]
    both = pa.concat_tables([known.select(names), updates.select(names)])
    old = np.arange(both.num_rows) < known.num_rows
    marked = pa.table([*_keys(both, names), pa.array(old), _positions(both)], [*_numbered(names), _OLD, _AT])
    groups = marked.group_by(_numbered(names), use_threads=False).aggregate([(_OLD, "any"), (_AT, "list")])
    hits = groups.filter(groups[f"{_OLD}_any"])[f"{_AT}_list"].combine_chunks()
    places = pc.list_flatten(hits).to_numpy(zero_copy_only=False)
    found[places[places >= known.num_rows] - known.num_rows] = True
    return found


def withdrawn(updates: pa.Table) -> pa.Table:
    """Return the rows that an update takes away, without diffs; one may be there several times."""
    return updates.filter(pc.less(updates[DIFF], 0)).drop_columns([DIFF])


def copies(counted: pa.Table) -> Iterator[pa.Table]:
    """Yield each row as often as its ``__diff`` says, without that column, in tables of bounded size.

    Raises `CollectionError` for a negative count; the message names the row.
    """
    negative = counted.filter(pc.less(counted[DIFF], 0))
    if negative.num_rows:
        (row,) = negative.slice(0, 1).to_pylist()
        raise CollectionError(f"{inline.NEGATIVE} {row.pop(DIFF)}: {row}")
    rows = counted.drop_columns([DIFF])
    ends = np.cumsum(counted[DIFF].to_numpy())
    for start in range(0, int(ends[-1]) if len(ends) else 0, BATCH_ROWS):
        wanted = np.arange(start, min(start + BATCH_ROWS, int(ends[-1])))
        yield rows.take(pa.array(np.searchsorted(ends, wanted, side="right")))


def _keys(table: pa.Table, names: Sequence[str]) -> list[pa.ChunkedArray | pa.Array]:
    """Return the columns to group by; a table without columns has equal rows."""
    return [_key(table[name]) for name in names] or [pa.repeat(pa.scalar(0), table.num_rows)]


def _numbered(names: Sequence[str]) -> list[str]:
    """Return names for `_keys` that no column of ours has."""
    return [str(place) for place in range(max(1, len(names)))]


def _key(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    if not pa.types.is_nested(column.type):
        return column
    return pa.array(map(repr, column.cast(_counted(column.type)).to_pylist()), pa.string())


def _counted(kind: pa.DataType) -> pa.DataType:
    """Return a nested type with numbers for times and days, of which Python's own types hold too few."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_counted(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_counted(field.type)) for field in kind])
    return kind


def _positions(table: pa.Table) -> pa.Array:
    return pa.array(np.arange(table.num_rows))


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
    """`plane.Counting` in this process, for the error half of a collection: a healthy one is empty."""

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
            yield added_up(pa.concat_tables([_nothing(look), *pieces]))
        case Gives.OTHERS:
            gone = _withdrawn(parts, share, look)
            for table in pieces:
                yield table.filter(pa.array(~among(table, gone)))
        case Gives.WITHDRAWN:
            gone = _withdrawn(parts, share, look)
            found = [table.filter(pa.array(among(table, gone))) for table in pieces]
            yield added_up(pa.concat_tables([_nothing(look), *found]))


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
    found = [withdrawn(table) for piece in share.beside for table in scanned(parts, piece, look)]
    return pa.concat_tables([withdrawn(_nothing(look)), *found])


def _nothing(look: Look) -> pa.Table:
    whole = inline.update_schema(look.schema)
    return pa.schema([whole.field(name) for name in look.kept]).empty_table()
