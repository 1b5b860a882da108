"""Which files can be read together, and which cannot be read at all: from their headers and footers.

Reading a head is cheap and needs no job.  It cannot depend on when it is done, because a file's content is pinned by
its source.  Compressed text is read to its end, because Spark fails the job of all files where a stream is damaged.  So
is text whose records span lines, and CSV on this machine, because Spark's reader does not say where it is not UTF-8.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type

from strandline.algebra import types
from strandline.algebra.formats import DatedFile, Encoding, FileFormat
from strandline.algebra.schema import Column, Schema
from strandline.engine.files.file_bytes import FileBytes
from strandline.engine.frames.ddl import type_text
from strandline.errors import DefinitionError

HEAD_BYTES_MAX: Final = 1 << 20
"""A header that is longer than this is none."""
_COMPRESSED: Final = (".gz", ".bz2")
BLANK: Final = "".join(map(chr, range(33)))
"""What Spark's CSV reader trims of a line to see whether it is empty."""
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line with its end, as Hadoop's reader of text has it."""
_UNDECLARED: Final = "__undeclared_"
_WIDER: Final = {
    "smallint": frozenset({"tinyint"}),
    "int": frozenset({"tinyint", "smallint"}),
    "bigint": frozenset({"tinyint", "smallint", "int"}),
    "double": frozenset({"float", "tinyint", "smallint", "int"}),
}
"""Types that Spark reads as a wider one without loss."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Files whose records have the same fields: ``names`` in order; an undeclared field gets a name of ours.

    ``header_lines[i]`` is the line of ``files[i]`` that holds its header, 0 if it has none.
    """

    names: tuple[str, ...]
    files: tuple[DatedFile, ...]
    header_lines: tuple[int, ...]

    def without(self, files: Collection[DatedFile]) -> Layout:
        """Return the layout of its other files."""
        kept = [(file, line) for file, line in zip(self.files, self.header_lines, strict=True) if file not in files]
        return Layout(self.names, tuple(file for file, _ in kept), tuple(line for _, line in kept))


@dataclass(frozen=True, slots=True)
class Unusable:
    """A file of which nothing can be decoded, the line that shows it (0: no line), why, and that line's text."""

    file: DatedFile
    line: int
    reason: str
    raw: str


def group(
    files: Sequence[DatedFile], schema: Schema, form: FileFormat, of: FileBytes
) -> tuple[list[Layout], list[Unusable]]:
    """Return the files by layout, in order of their first files, and those that are unusable."""
    found: dict[tuple[str, ...], list[tuple[DatedFile, int]]] = {}
    unusable = []
    for file in files:
        match _examine(file, schema, form, of):
            case Unusable() as refused:
                unusable.append(refused)
            case (names, line):
                found.setdefault(names, []).append((file, line))
            case None:
                continue
    layouts = [
        Layout(names, tuple(file for file, _ in those), tuple(line for _, line in those))
        for names, those in found.items()
    ]
    return layouts, unusable


def _examine(
    file: DatedFile, schema: Schema, form: FileFormat, of: FileBytes
) -> tuple[tuple[str, ...], int] | Unusable | None:
    """Return the file's field names and header line; or why it is unusable; None if it holds nothing at all."""
    if form.encoding.text and (damage := _damage(file, of)):
        return Unusable(file, 0, damage, "")
    if form.multiline and (line := line_that_is_not_utf8(file, of)):
        return Unusable(file, line, "it is not UTF-8, and where its records begin and end is not known", "")
    match form.encoding:
        case Encoding.CSV if form.header:
            return _csv_header(file, schema, form, of)
        case Encoding.AVRO:
            reason = _avro_mismatch(file.path, schema)
            return (schema.names, 0) if reason is None else Unusable(file, 0, reason, "")
        case Encoding.PARQUET:
            reason = _parquet_mismatch(file, schema, of)
            return (schema.names, 0) if reason is None else Unusable(file, 0, reason, "")
        case _:
            return schema.names, 0


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


def _csv_header(
    file: DatedFile, schema: Schema, form: FileFormat, of: FileBytes
) -> tuple[tuple[str, ...], int] | Unusable | None:
    with of.stream(file.path) as stream:
        head = stream.read(HEAD_BYTES_MAX).decode("utf-8-sig", errors="replace")
    lines = _LINE.findall(head)
    blank = next((n for n, line in enumerate(lines) if line.strip(BLANK)), len(lines))
    lines = lines[blank:]
    if not lines:
        return None
    doubled = form.escape == form.quote
    fields = next(
        csv.reader(
            io.StringIO("".join(lines) if form.multiline else lines[0].rstrip("\r\n"), newline=""),
            delimiter=form.delimiter,
            quotechar=form.quote,
            doublequote=doubled,
            escapechar=None if doubled else form.escape,
        )
    )
    line = 1 + blank
    names = [field.strip() for field in fields]
    lowered = [name.lower() for name in names]
    for column in schema:
        times = lowered.count(column.name.lower())
        if times != 1:
            reason = (
                f"the header has no column `{column.name}`"
                if not times
                else f"the header has column `{column.name}` {times} times"
            )
            return Unusable(file, line, f"{reason}; it has {_some(names)}", lines[0].rstrip("\r\n"))
    declared = {name.lower(): name for name in schema.names}
    return tuple(declared.get(name, f"{_UNDECLARED}{i}") for i, name in enumerate(lowered)), line


def _parquet_mismatch(file: DatedFile, schema: Schema, of: FileBytes) -> str | None:
    """Say which column the file lacks or holds in another type, or None if all can be read."""
    try:
        with of.open(file.path) as opened:
            stored = pq.read_schema(opened)
    except (pa.ArrowException, OSError) as error:
        return f"it cannot be read as Parquet: {error}"
    fields = {field.name.lower(): field.type for field in stored}
    for column in schema:
        found = fields.get(column.name.lower())
        if found is None:
            return f"it has no column `{column.name}`; it has {_some(field.name for field in stored)}"
        if pa.types.is_timestamp(found) and found.unit == "ns":
            return f"column `{column.name}` is in nanoseconds, which Spark does not read; write it in microseconds"
        text = _spark_type(found)
        if text is not None and not _readable(text, column):
            return f"column `{column.name}` is {text} there, not {column.type}"
    return None


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
    names = [field["name"] for field in written["fields"]]
    lowered = {name.lower() for name in names}
    for column in schema:
        if column.name.lower() not in lowered:
            return f"it has no column `{column.name}`; it has {_some(names)}"
    return None


def damaged_pages(file: DatedFile, schema: Schema, of: FileBytes) -> Unusable | None:
    """Say which Parquet file has a damaged page, of the declared columns; None if Arrow can read them all."""
    declared = {name.lower() for name in schema.names}
    try:
        with of.open(file.path) as opened:
            stored = pq.ParquetFile(opened, page_checksum_verification=True)
            for group_number in range(stored.num_row_groups):
                stored.read_row_group(group_number, [n for n in stored.schema_arrow.names if n.lower() in declared])
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the machine refused the file; its bytes may be whole
        return Unusable(file, 0, f"it cannot be read as Parquet: {error}", "")
    return None


def _readable(stored: str, declared: Column) -> bool:
    kind = types.parse(declared.name, declared.type)
    wider = _WIDER.get(kind.name, frozenset()) if isinstance(kind, types.Atom) else frozenset()
    return types.parse(declared.name, stored) == kind or stored in wider


def _spark_type(found: pa.DataType) -> str | None:
    """Return the type that Spark reads it as, or None where only Spark knows."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    try:
        text = type_text(from_arrow_type(found))
        types.parse("", text)
    except (PySparkException, DefinitionError):
        return None
    return text


def _some(names: Iterable[str], most: int = 20) -> str:
    all_names = list(names)
    return ", ".join(all_names[:most]) + (f" and {len(all_names) - most} more" if len(all_names) > most else "")
