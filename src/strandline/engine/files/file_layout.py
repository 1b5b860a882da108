"""Which files can be read together, and which cannot be read at all: from their headers and footers.

Reading a head is cheap and needs no job.  It cannot depend on when it is done, because a file's content is pinned by
its source.  Compressed text is read to its end, because Spark fails the job of all files where a stream is damaged.  So
is text whose records span lines, and CSV on this machine, because Spark's reader does not say where it is not UTF-8.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import fastavro

from strandline.algebra.csv_header import first_record
from strandline.algebra.formats import DatedFile, Encoding, FileFormat
from strandline.algebra.schema import Schema
from strandline.engine.files.file_bytes import FileBytes
from strandline.engine.files.parquet.columns import names_of, unreadable

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
    """Return the files by layout, in order of their first files, and those that are unusable."""
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
