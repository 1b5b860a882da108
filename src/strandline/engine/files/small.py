"""Small files decoded in this process without a job, and the layouts by which files are read together.

The driver reads the bytes of small files, and Spark's own expressions run in no job.  A line goes through the very
expressions that it goes through in a job (`json_lines.parsed`, or `csv_lines.parsed`), so the same bytes give the same
rows; a property test compares.  What this cannot promise is left to a job: text that is not UTF-8, is compressed or
whose records span lines; and Parquet that Spark reads and that has a type or a time which Arrow may read differently.

`group` finds from headers and footers which files can be read together, and which cannot be read at all.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa
from pyspark.sql import DataFrame

from strandline.algebra import types
from strandline.algebra.messages import DatedFile, Encoding, FileFormat
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.algebra.stored import BLANK, first_record
from strandline.engine.files import csv_lines, json_lines
from strandline.engine.files.parquet_files import ParquetFiles, examined, is_ancient, names_of, opened, unreadable
from strandline.engine.files.paths import FileBytes

HEAD_BYTES_MAX: Final = 1 << 20
"""A header that is longer than this is none."""
_COMPRESSED: Final = (".gz", ".bz2")
_UNDECLARED: Final = "__undeclared_"


@dataclass(frozen=True, slots=True)
class Layout:
    """Files whose records have the same fields: ``names`` in order; an undeclared field gets a name of ours.

    ``header_lines[i]`` is the line of ``files[i]`` that holds its header, 0 if it has none.  ``by_spark``: Spark reads
    them as they are declared; else Python does.  ``schema``: the declared columns that they have.  ``ends``: see
    `FileFormat`.
    """

    schema: Schema
    names: tuple[str, ...]
    files: tuple[DatedFile, ...]
    header_lines: tuple[int, ...]
    by_spark: bool = True
    ends: str = ""

    def without(self, files: Collection[DatedFile]) -> Layout:
        """Return the layout of its other files."""
        kept = [(file, line) for file, line in zip(self.files, self.header_lines, strict=True) if file not in files]
        return replace(self, files=tuple(file for file, _ in kept), header_lines=tuple(line for _, line in kept))


@dataclass(frozen=True, slots=True)
class Unusable:
    """A file of which nothing can be decoded, the line that shows it (0: no line), why, and that line's text."""

    file: DatedFile
    line: int
    reason: str
    raw: str


@dataclass(frozen=True, slots=True)
class _Head:
    """What a file's head says: its fields, the line that names them (0: none does), and whether Spark reads it.

    ``schema``: the declared columns that it has.  ``ends``: see `FileFormat`.
    """

    schema: Schema
    names: tuple[str, ...]
    line: int
    by_spark: bool
    ends: str = ""


def group(
    files: Sequence[DatedFile], schema: Schema, form: FileFormat, of: FileBytes
) -> tuple[list[Layout], list[Unusable]]:
    """Return the files by layout, in order of their first files, and those that are unusable.

    Reading a header or a footer is cheap and needs no job.  The result cannot depend on when it is read, because a
    file's content is pinned by its source.  Compressed text is read to its end, because Spark fails the job of all
    files where a stream is damaged.  So is text whose records span lines, and CSV on this machine, because Spark's
    reader does not report where it is not UTF-8.
    """
    found: dict[tuple[Schema, tuple[str, ...], bool, str], list[tuple[DatedFile, int]]] = {}
    unusable = []
    for file in files:
        match _examine(file, schema, form, of):
            case Unusable() as refused:
                unusable.append(refused)
            case _Head(held, names, line, by_spark, ends):
                found.setdefault((held, names, by_spark, ends), []).append((file, line))
            case None:
                continue
    layouts = [
        Layout(held, names, tuple(file for file, _ in those), tuple(line for _, line in those), by_spark, ends)
        for (held, names, by_spark, ends), those in found.items()
    ]
    return layouts, unusable


def _examine(file: DatedFile, schema: Schema, form: FileFormat, of: FileBytes) -> _Head | Unusable | None:
    """Return what the file's head says; or why the file is unusable; None if it holds nothing at all."""
    if form.encoding.text and (damage := _damage(file, of)):
        return Unusable(file, 0, damage, "")
    if form.multiline and (line := line_that_is_not_utf8(file, of)):
        return Unusable(file, line, "it is not UTF-8, and where its records begin and end is not known", "")
    reason, by_spark, held = "", True, schema
    match form.encoding:
        case Encoding.CSV if form.header or form.multiline:
            return _csv_head(file, schema, form, of)
        case Encoding.AVRO:
            held = _held(schema, form, _avro_names(file.path)) if form.later else schema
            reason, by_spark = _avro_mismatch(file.path, held) or "", False
        case Encoding.PARQUET:
            held = _held(schema, form, names_of(file, of)) if form.later else schema
            reason, by_spark = unreadable(file, held, of)
    return Unusable(file, 0, reason, "") if reason else _Head(held, held.names, 0, by_spark)


def _held(schema: Schema, form: FileFormat, names: Collection[str]) -> Schema:
    """Return the columns that a file must have that has columns of these ``names``."""
    lowered = {name.lower() for name in names}
    return Schema(tuple(c for c in schema if c.name not in form.later or c.name.lower() in lowered))


def _damage(file: DatedFile, of: FileBytes) -> str | None:
    """Say why a compressed file cannot be decompressed to its end, or None if it can or is not compressed."""
    if not file.path.endswith(_COMPRESSED):
        return None
    try:
        with of.stream(file.path) as stream:
            while stream.read(HEAD_BYTES_MAX):
                pass
    except OSError as error:
        if error.errno is not None:
            raise  # the machine refused the file; its bytes may be whole
        return f"it cannot be decompressed: {error}"
    return None


def line_that_is_not_utf8(file: DatedFile, of: FileBytes) -> int:
    """Return the first line with bytes that are not UTF-8; 0: there is none.

    Spark reads such bytes as U+FFFD without an error.
    """
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with of.stream(file.path) as stream:
        while True:
            read = stream.read(HEAD_BYTES_MAX)
            try:
                decoder.decode(read, final=not read)
            except UnicodeDecodeError as error:
                return line + bytes(error.object[: error.start]).count(b"\n")
            if not read:
                return 0
            line += read.count(b"\n")


def _csv_head(file: DatedFile, schema: Schema, form: FileFormat, of: FileBytes) -> _Head | Unusable | None:
    with of.stream(file.path) as stream:
        head = stream.read(HEAD_BYTES_MAX).decode("utf-8-sig", errors="replace")
    first = first_record(head, form)
    if first is None:
        return None
    if not form.header:
        return _Head(schema, schema.names, 0, by_spark=True, ends=first.ends)
    fields = first.names(schema.names)
    held = _held(schema, form, fields)
    if wrong := held.not_once_in(fields):
        return Unusable(file, first.line, f"the header has {wrong}", first.text)
    declared = {name.lower(): name for name in held.names}
    lowered = [name.lower() for name in fields]
    names = tuple(declared.get(name, f"{_UNDECLARED}{i}") for i, name in enumerate(lowered))
    return _Head(held, names, first.line, by_spark=True, ends=first.ends)


def _avro_names(path: str) -> Sequence[str]:
    """Return the fields of an Avro file; none if it is damaged: `_avro_mismatch` says so."""
    try:
        with Path(path).open("rb") as data:
            written: Any = fastavro.reader(data).writer_schema
            return [field["name"] for field in written["fields"]]
    except OSError:
        raise
    except Exception:  # noqa: BLE001 - damaged bytes can make it raise any exception
        return ()


def _avro_mismatch(path: str, schema: Schema) -> str | None:
    """Say why nothing of an Avro file can be decoded, or None if its header is sound and has all columns."""
    try:
        with Path(path).open("rb") as data:
            written = fastavro.reader(data).writer_schema
    except OSError:
        raise  # the machine refused the file; its bytes may be whole
    except Exception as error:  # noqa: BLE001 - damaged bytes can make it raise any exception
        return f"it cannot be read as Avro ({type(error).__name__})"
    if not isinstance(written, dict) or written.get("type") != "record":
        return "its values are no records"
    wrong = schema.not_once_in([field["name"] for field in written["fields"]])
    return f"it has {wrong}" if wrong else None


SMALL_BYTES_MAX: Final = 1 << 20
"""Files of a step with more bytes than this in all are Spark's to read."""
ROWS_MAX: Final = 50_000
LINE: Final = json_lines.LINE
_UNREADABLE: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")
_NEWLINE: Final = re.compile("\r\n|\r|\n")
"""Where Hadoop's reader of text ends a line."""
_BOM: Final = "\ufeff"
_ALIKE: Final = frozenset(
    types.Atom(name)
    for name in (
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double"),
        *("string", "date", "timestamp"),
    )
)


def is_small(files: Sequence[DatedFile], form: FileFormat) -> bool:
    """Tell whether these files may be decoded here."""
    if form.encoding is Encoding.AVRO or form.multiline or sum(file.size for file in files) > SMALL_BYTES_MAX:
        return False
    return not form.encoding.text or not any(file.path.endswith(_UNREADABLE) for file in files)


def lines(layout: Layout, form: FileFormat, of: FileBytes) -> pa.Table | None:
    """Return the records of text files as lines with their times and diffs; None: a job must read them."""
    found, times, diffs = list[str](), list[int](), list[int]()
    for file in layout.files:
        with of.open(file.path) as opened:
            data = opened.read()
        if len(data) != file.size:
            return None
        try:
            text = bytes(data).decode()
        except UnicodeDecodeError:
            return None
        own = _NEWLINE.split(text.removeprefix(_BOM))
        if not own[-1]:
            own.pop()
        if form.encoding is Encoding.CSV:
            own = [line for line in own if line.strip(BLANK)][1 if form.header else 0 :]
        found += own
        times += [file.time] * len(own)
        diffs += [file.diff] * len(own)
    if len(found) > ROWS_MAX:
        return None
    arrays = [pa.array(found, pa.string()), pa.array(times, pa.int64()), pa.array(diffs, pa.int64())]
    return pa.table(arrays, names=[LINE, TIME, DIFF])


def parsed(frame: DataFrame, fields: Sequence[Column], form: FileFormat) -> DataFrame:
    """Return the ``fields`` of lines, `CORRUPT`, and what is beside them."""
    if form.encoding is Encoding.JSON:
        return json_lines.parsed(frame, fields, form)
    return csv_lines.parsed(frame, fields, form)


def parquet(layout: Layout, schema: Schema, of: FileBytes) -> pa.Table | None:
    """Return the rows of Parquet files as updates, errors among them; None: a job must read them."""
    kinds = [kind for _, kind in types.columns(schema)]
    if layout.by_spark and not all(isinstance(kind, types.Decimal) or kind in _ALIKE for kind in kinds):
        return None
    tables = []
    for file in layout.files:
        with of.open(file.path) as data:
            stored = opened(data)
            if stored.metadata.num_rows > ROWS_MAX or (layout.by_spark and examined(stored, schema).old_calendar):
                return None
        found = ParquetFiles(schema).table(file, partial(of.open, file.path))
        if layout.by_spark and not _as_spark(found):
            return None
        tables.append(found)
    return pa.concat_tables(tables)


def _as_spark(found: pa.Table) -> bool:
    """Tell whether Spark is sure to read the same of a file: it alone says what of a damaged one can be read."""
    ancient = (is_ancient(chunk) for column in found.columns for chunk in column.chunks)
    return found[ERROR].null_count == found.num_rows and not any(ancient)
