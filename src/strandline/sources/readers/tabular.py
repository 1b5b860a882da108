"""What readers share whose rows come as Arrow: declared columns, columns that come later, and rows in bounded memory.

The rows of a table's stored files come through Arrow if a file is small; a large plain file is read by the data plane.
A file is *plain* if it has the declared columns under their names and with their declared types, so that reading it as
Parquet gives its rows.  Its rows then never pass through this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.messages import DatedFile, Encoding, FileFormat
from strandline.algebra.schema import Column, Schema
from strandline.algebra.stored import converted, located, same, type_of
from strandline.errors import DefinitionError, InvalidUsage, SourceError
from strandline.frontier import Offsets
from strandline.persist.handles.contents import Rows
from strandline.plane import Aside, Staging
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ANEW
from strandline.sources.reader import FileDecoder, Surroundings
from strandline.sources.readers.new_columns import new_columns

UNFITTING: Final = Problem(
    "column-unfitting",
    "{table} cannot be read with this column: {why}",
    Stopped.COMMAND,
    (Way("declare it with the type that upstream has"),),
)
"""An ALTER … ADD COLUMN is refused for it."""


def declarable(there: pa.Schema, locate: Callable[[Schema], object]) -> list[tuple[str, str | None]]:
    """Return the columns with the types to declare them as; None: ``locate``, which the reader asks, refuses it."""
    found = list[tuple[str, str | None]]()
    for field in there:
        kind = type_of(field.type)
        try:
            if kind is not None:
                locate(Schema((Column(field.name, kind),)))
        except (ValueError, SourceError, DefinitionError):
            kind = None
        found.append((field.name, kind))
    return found


def require_fitting(name: str, added: Schema, there: pa.Schema) -> None:
    """Raise `SourceError` if the table called ``name`` has one of the columns ``added`` in a type that does not fit.

    A column that it lacks may come.
    """
    known = {each.lower() for each in there.names}
    try:
        located(Schema(tuple(column for column in added if column.name.lower() in known)), there)
    except ValueError as error:
        raise SourceError(UNFITTING.said(table=name, why=error)) from error


def tables_of(schema: Schema, made: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables of the located columns as tables of ``schema``.  Raises `InvalidUsage` naming the column."""
    kinds = types.columns(schema)
    for table in made:
        yield pa.table([_column(table[name], name, kind) for name, kind in kinds], names=[name for name, _ in kinds])


def _column(values: pa.ChunkedArray, name: str, kind: types.Type) -> pa.ChunkedArray:
    try:
        return pa.chunked_array([converted(each, kind) for each in values.chunks], arrow(kind))
    except pa.ArrowInvalid as error:
        raise InvalidUsage(f"column {name!r} cannot be cast to {arrow(kind)}: {error}") from error


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that come (diff 1) or go (diff −1) at ``time``.

    ``tables`` makes them, one bounded table after the other, in a thread of its own; each has the schema's columns.
    """

    time: int
    diff: int
    tables: Callable[[], Iterator[pa.Table]]


class Gathering:
    """The rows of the last read of one table.  One coroutine at a time reads.

    Arrow tables, made one after the other, become the rows of a read, in bounded memory.  The rows of one time and one
    diff are put aside together (`Staging.aside`); they stay there until the next read gathers anew, or until upstream
    has its slices committed.
    """

    def __init__(self, engine: Staging) -> None:
        self._engine = engine
        self._held = ExitStack()
        self._until: Offsets | None = None

    async def rows(self, schema: Schema, pieces: Iterable[Piece], until: Offsets) -> Rows:
        """Return the rows of all ``pieces`` (lazy); the last read's are forgotten.

        ``until``: once it is durable these may be forgotten.  Raises what making the tables raises, and
        `InvalidUsage` if a column cannot be cast to what ``schema`` says.
        """
        self.close()
        held, self._until = ExitStack(), until
        with held:
            groups: dict[tuple[int, int], list[Piece]] = {}
            for piece in pieces:
                groups.setdefault((piece.time, piece.diff), []).append(piece)
            frames = []
            for (time, _), those in groups.items():
                aside = held.enter_context(self._engine.aside(schema, time=time))
                await asyncio.to_thread(_fill, aside, those)
                frames.append(aside.rows())
            gathered = await self._engine.union(schema, frames, advance=0, negate=[diff < 0 for _, diff in groups])
            self._held = held.pop_all()
        return gathered

    def release(self, durable: Offsets) -> None:
        """Forget the rows if all of them are durable."""
        if self._until is not None and self._until <= durable:
            self.close()

    def close(self) -> None:
        """Forget the rows.  Idempotent."""
        self._until = None
        self._held.close()


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with texts and bytes where they lie by value: Arrow can do little with views of them.

    >>> views = pa.record_batch({"a": pa.array(["x"], pa.string_view()), "b": pa.array([1])})
    >>> [str(field.type) for field in without_views(views).schema]
    ['string', 'int64']
    """
    fields = [field.with_type(_without_views(field.type)) for field in batch.schema]
    if all(field.type == was.type for field, was in zip(fields, batch.schema, strict=True)):
        return batch
    return batch.cast(pa.schema(fields))


def _without_views(kind: pa.DataType) -> pa.DataType:
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_struct(kind):
        inner = [kind.field(n) for n in range(kind.num_fields)]
        return pa.struct([field.with_type(_without_views(field.type)) for field in inner])
    return kind


def _fill(aside: Aside, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        for table in piece.tables():
            aside.add(table)


class Late(msgspec.Struct, frozen=True, array_like=True):
    """A column is read from offset ``read`` on, and upstream has it from ``there`` on; 0: it was not seen yet.

    The column came after its source had begun, with a table that can be read as of an earlier version.  The *offset*
    from which it is read is noted before anything behind that offset is durable.  Rows that are held there were read
    without the column.  So the slice that begins at that offset corrects them first: each row of the table at that
    offset is withdrawn without the column, and inserted with it.  For rows that have no value in it the two cancel.
    From then on a row is withdrawn with the value with which it was inserted.  The slice in which upstream itself gets
    the column does the same, since the existing rows may have a default from then on.

    Until upstream has the column, it is NULL.  Once a version had it, a version that lacks it has lost it.
    """

    read: int
    there: int = 0


class Noted(msgspec.Struct, frozen=True):
    """Which columns a source reads.

    ``first``: those that it began with; None: a version that noted none did.  ``left``: those that upstream had then
    besides.  ``late``: those that came later.
    """

    first: list[str] | None = None
    left: list[str] = []
    late: dict[str, Late] = {}

    @classmethod
    def begun(cls, schema: Schema, there: Collection[str]) -> Self:
        """Return the note of a source that begins to read ``schema`` of the columns ``there``."""
        known = {name.lower() for name in schema.names}
        return cls([*schema.names], [name for name in there if name.lower() not in known])

    def adopted(self, schema: Schema, offset: int) -> Noted:
        """Return the note once columns that ``schema`` has besides are read from ``offset`` on."""
        first = self.first or []
        new = [name for name in schema.names if name not in first and name not in self.late]
        if not offset:
            return msgspec.structs.replace(self, first=[*first, *new])
        return msgspec.structs.replace(self, late=self.late | {name: Late(offset) for name in new})

    def new(self, schema: Schema) -> Schema:
        """Return the columns of ``schema`` that are not read yet; none if it is not known which are."""
        known = {*schema.names} if self.first is None else {*self.first, *self.late}
        return Schema(tuple(column for column in schema if column.name not in known))

    def seen(self, names: Collection[str], offset: int) -> Noted:
        """Return the note once upstream has had late columns, those among ``names``, from ``offset`` on."""
        known = {name.lower() for name in names}
        found = {
            name: Late(late.read, offset)
            for name, late in self.late.items()
            if not late.there and name.lower() in known
        }
        return msgspec.structs.replace(self, late=self.late | found)

    def unseen(self) -> bool:
        """Whether a late column was not seen yet."""
        return any(not late.there for late in self.late.values())

    def absent(self, schema: Schema, offset: int) -> frozenset[str]:
        """Return the columns of ``schema`` that upstream may lack at ``offset``: they are still to come."""
        first = self.first or []
        late = {name: self.late.get(name, Late(0)).there for name in schema.names if name not in first}
        return frozenset(name for name, there in late.items() if not there or offset < there)

    def corrected(self, offset: int) -> frozenset[str]:
        """Return the columns that rows which are held at ``offset`` were read without, or before upstream had them."""
        return frozenset(name for name, late in self.late.items() if offset in (late.read, late.there))


class Lacking:
    """What a table has besides the columns of its source, and what is said of that."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._notice = ""
        self._looked: object = None

    def look(self, version: object, there: Callable[[], Iterable[tuple[str, str | None]]], note: Noted) -> None:
        """Look at the columns that a table has where it is read to, unless its columns are of a known ``version``.

        Raises `ColumnsAdded`: the source is to get some that it lacks.
        """
        if version != self._looked:
            found = new_columns(self._around.schema, there())
            evolves = "" in self._around.evolving
            self._notice = self._around.gained("", [c for c in found if evolves or c.name not in note.left])
            self._looked = version

    @property
    def notices(self) -> tuple[str, ...]:
        """The notice of them, or nothing."""
        return (self._notice,) if self._notice else ()


PLAIN_BYTES_MIN: Final = 4 << 20
"""A file that is smaller is read here: that costs less than a Spark job."""
UNHELD: Final = Problem(
    "value-unheld",
    "{table} holds a value that its declared column does not: {why}",
    Stopped.SOURCE,
    (Way("correct the value in a version that is not read yet"), ANEW),
)
_ID: Final = b"PARQUET:field_id"
SMALL_BYTES_MAX: Final = 1 << 20
"""So few bytes of files are likely to be at most some ten thousand rows."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file, or some of its rows, that come (diff 1) or go (diff −1) at ``time``.

    ``tables`` makes the rows, as `Piece` says.  ``plain``: where the file is on this machine, if all its rows count and
    nothing but the file says what is in its columns.  ``ids``: the ids that its columns must have in it, by name.
    """

    time: int
    diff: int
    name: str
    size: int
    tables: Callable[[], Iterator[pa.Table]]
    plain: Path | None = None
    ids: Mapping[str, int] | None = None


class TableRows:
    """The rows of the last read of one table."""

    def __init__(self, engine: Staging, decoder: FileDecoder, schema: Schema, what: str, item: str) -> None:
        """``what``: the table, and ``item``: the source that reads it, for what messages say."""
        self._item = item
        self._engine = engine
        self._decoder = decoder
        self._schema = schema
        self._what = what
        self._gathering = Gathering(engine)
        self.small = True
        self.plain_files = 0  # how many files the data plane has read itself

    async def read(self, files: Sequence[StoredFile], until: Offsets, *, locate: bool) -> Rows:
        """Return the rows of all ``files`` (lazy); the last read's are forgotten, and these once ``until`` is durable.

        Raises `SourceError` if a value is none of its declared column, and what making the tables raises.
        """
        self.small = sum(file.size for file in files) <= SMALL_BYTES_MAX
        plain = await asyncio.to_thread(lambda: {n for n, file in enumerate(files) if self._is_plain(file)})
        pieces = [Piece(file.time, file.diff, self._made(file)) for n, file in enumerate(files) if n not in plain]
        try:
            rows = await self._gathering.rows(self._schema, pieces, until)
        except InvalidUsage as error:
            raise SourceError(UNHELD.said(table=self._what, why=error, item=self._item)) from error
        if not plain:
            return rows
        self.plain_files += len(plain)
        dated = [
            DatedFile(str(file.plain), file.name, file.size, file.time, withdrawn=file.diff < 0)
            for n, file in enumerate(files)
            if n in plain
        ]
        decoded = await self._decoder.decode(dated, self._schema, FileFormat(Encoding.PARQUET), locate=locate)
        return await self._engine.union(self._schema, [rows, decoded], advance=0, negate=[False, False])

    def release(self, durable: Offsets) -> None:
        """Forget the rows if all of them are durable."""
        self._gathering.release(durable)

    def close(self) -> None:
        """Forget the rows.  Idempotent."""
        self._gathering.close()

    def _made(self, file: StoredFile) -> Callable[[], Iterator[pa.Table]]:
        return lambda: tables_of(self._schema, file.tables())

    def _is_plain(self, file: StoredFile) -> bool:
        if file.plain is None or file.size < PLAIN_BYTES_MIN:
            return False
        try:
            if file.plain.stat().st_size != file.size:
                return False
            there = {field.name.lower(): field for field in pq.read_schema(file.plain)}
        except (OSError, pa.ArrowException):
            return False  # reading it here says what is wrong
        for name, kind in types.columns(self._schema):
            stored = there.get(name.lower())
            if stored is None or not same(kind, stored.type):
                return False
            if file.ids is not None and (stored.metadata or {}).get(_ID) != str(file.ids[name]).encode():
                return False
        return True
