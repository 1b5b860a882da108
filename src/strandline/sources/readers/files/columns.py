"""The columns that files hold besides those that their source reads, with the types that `discover` proposes.

The header of a file names them, but for JSON lines, which are read for that: all of them, so that no field is missed.
So are the values of CSV's other columns.  A column without any value is none: nothing of it is lost.  A column whose
values nothing reads is left out, and so is one that a header names more than once: it does not say which is meant.

What is damaged, or lacks a column that it must have, holds none; decoding it says what is wrong with it.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.algebra.arrow_types import arrow
from strandline.algebra.csv_header import first_record
from strandline.algebra.formats import Encoding, FileFormat
from strandline.algebra.parquet_schema import ParquetSchema
from strandline.algebra.schema import Column, Schema, quote
from strandline.algebra.stored import type_of_all
from strandline.algebra.types import parse
from strandline.errors import Unavailable, first_line
from strandline.problem import Problem, Stopped, Way, joined
from strandline.sources.reader import FileDecoder, Surroundings, unknown_of
from strandline.sources.readers import avro_columns, sampled

CHUNK_BYTES: Final = 8 << 20
_LINES: Final = re.compile(rb"[\r\n]+")
_BOM: Final = b"\xef\xbb\xbf"
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


TWICE: Final = Problem(
    "columns-named-twice",
    "columns that a header names more than once are not read: {columns}",
    Stopped.NOTHING,
    (Way("give each column of the files a name of its own"),),
)


@dataclass(frozen=True, slots=True)
class Held:
    """Columns that files hold, and those that they name ``twice`` or more, without regard to case, each with a file."""

    columns: tuple[Column, ...] = ()
    twice: Mapping[str, str] = field(default_factory=dict)

    def notice(self, known: Collection[str] = ()) -> str:
        """Return what to say of the columns that are named twice, but for those ``known`` (in lower case)."""
        told = [f"{quote(name)} ({path!r})" for name, path in self.twice.items() if name.lower() not in known]
        return TWICE.said(columns=", ".join(told)) if told else ""


class NewColumns:
    """What one source's files hold that it does not read.

    Where the source evolves, each file is looked at before it is read.  Else the header of the last one is, and only a
    column that the first file lacks is news: others were left out when the source was defined.  If that file is gone,
    as where files leave once they are durable, every column is.
    """

    def __init__(self, files: FileDecoder, form: FileFormat, around: Surroundings) -> None:
        self._files = files
        self._form = form
        self._around = around
        self._looked: Sequence[str] = ()  # the files that were looked at last
        self._found = Held()  # and what they hold
        self._first: frozenset[str] | None = None  # what the first file's header names, in lower case
        self._told: tuple[str, ...] = ()  # what the header named that was looked at last
        self.notice = ""
        """What to say of columns that are not read; empty: nothing."""

    async def look(self, paths: Sequence[str], first: str) -> None:
        """Look at files that are about to be read; ``first``: the file with the first number.

        Raises `ColumnsAdded` if the source evolves and they hold more columns; `Unavailable` if one cannot be opened.
        """
        if "" in self._around.evolving:
            if paths != self._looked:  # they are read again to locate errors, and while a column cannot be added
                self._found = await asyncio.to_thread(held, paths, self._around.schema, self._form, self._files)
                self._looked = paths
                self.notice = self._found.notice() or self.notice
            self._around.gained("", [*self._around.schema, *self._found.columns])
        else:
            self.notice = await asyncio.to_thread(self._news, paths[-1], first)

    def _news(self, last: str, first: str) -> str:
        """Return what to say of the columns of the file ``last``."""
        try:
            names = header(last, self._around.schema, self._form, self._files)
            if self._first is None:
                self._first = self._begun(first)
        except Unavailable:
            return self.notice  # it may be gone, and reading it says so
        if names == self._told:
            return self.notice
        self._told = names
        if not unknown_of(self._around.schema, [Column(n, "") for n in names if n.lower() not in self._first]):
            return ""
        found = held([last], self._around.schema, self._form, self._files)
        gained = self._around.gained("", [c for c in found.columns if c.name.lower() not in self._first])
        return joined((gained, found.notice(self._first)))

    def _begun(self, first: str) -> frozenset[str]:
        try:
            return frozenset(name.lower() for name in header(first, self._around.schema, self._form, self._files))
        except Unavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return frozenset()
            raise


def header(path: str, schema: Schema, form: FileFormat, files: FileDecoder) -> tuple[str, ...]:
    """Return the columns that a file names before its records, those of ``schema`` among them; none if it names none.

    Raises `Unavailable` if it cannot be read.
    """
    return tuple(name for name, _ in _typed(path, schema, form, files) or ())


def held(paths: Sequence[str], schema: Schema, form: FileFormat, files: FileDecoder) -> Held:
    """Return the columns that files hold besides those of ``schema``, with types that hold the values of all.

    Raises `Unavailable` if one cannot be read.
    """
    kinds: dict[str, tuple[str, list[str]]] = {}
    twice: dict[str, str] = {}
    for path in paths:
        try:
            found, unclear = _beside(path, schema, form, files)
        except OSError as error:
            if error.errno is not None:
                raise _unread(path, error) from error
            continue  # it cannot be decompressed: all of it is one error
        twice = dict.fromkeys(unclear, path) | twice
        for name, kind in found:
            kinds.setdefault(_matched(name, form), (name, []))[1].append(kind)
    refused = {_matched(name, form) for name in twice}
    columns = [
        Column(name, _readable(_common(all_of), form)) for key, (name, all_of) in kinds.items() if key not in refused
    ]
    return Held(tuple(columns), twice)


def _matched(name: str, form: FileFormat) -> str:
    """Return what is equal for the names of one column: JSON's alone are matched exactly."""
    return name if form.encoding is Encoding.JSON else name.lower()


def _beside(
    path: str, schema: Schema, form: FileFormat, files: FileDecoder
) -> tuple[list[tuple[str, str]], Sequence[str]]:
    """Return the columns of a file besides those of ``schema``, with their types, and those that it names twice."""
    if form.encoding is Encoding.JSON:
        found = sampled.of_objects(_beside_known(path, frozenset(schema.names), form, files)).held
        return [(name, kind) for name, kind in found if name], ()
    named = _typed(path, schema, form, files) or []
    must = Schema(tuple(column for column in schema if column.name not in form.later))
    if must.not_once_in([name for name, _ in named]):
        return [], ()  # all of it is one error
    times = Counter(name.lower() for name, _ in named)
    known = frozenset(name.lower() for name in schema.names)
    beside = {name: kind for name, kind in named if name and name.lower() not in known}
    new = {name for name in beside if times[name.lower()] == 1}
    twice = list({name.lower(): name for name in reversed(beside) if name not in new}.values())[::-1]
    if not new or form.encoding is not Encoding.CSV:
        return [(name, kind) for name, kind in beside.items() if name in new and kind], twice
    try:
        sample = sampled.of_csv(lambda: _stream(path, files), form, declared=schema.names, only=new)
        held_by = dict(sample.held(form.null))
    except ValueError:  # another parser may read it
        held_by = dict.fromkeys(new, "string")
    return [(name, held_by[name]) for name in beside if name in new and name in held_by], twice


def _typed(path: str, schema: Schema, form: FileFormat, files: FileDecoder) -> list[tuple[str, str | None]] | None:
    """Return the columns that a file names before its records, with types if it says them; None: it names none."""
    if form.encoding is Encoding.JSON or (form.encoding is Encoding.CSV and not form.header):
        return None
    opened = _stream(path, files) if form.encoding.text else _open(path, files)
    with opened:
        try:
            match form.encoding:
                case Encoding.PARQUET:
                    return ParquetSchema(pq.ParquetFile(opened)).columns
                case Encoding.AVRO:
                    return avro_columns.columns_of_file(opened)
                case _:
                    decoder = codecs.getincrementaldecoder("utf-8-sig")()
                    first = first_record(decoder.decode(opened.read(sampled.BLOCK_BYTES)), form)
                    return None if first is None else [(name, None) for name in first.names(schema.names)]
        except Unavailable:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise _unread(path, error) from error  # the machine refused the file; its bytes may be whole
            return None  # damaged bytes make the libraries raise any exception


def _beside_known(path: str, known: frozenset[str], form: FileFormat, files: FileDecoder) -> Iterator[dict[str, Any]]:
    """Yield what JSON objects have besides the fields ``known``."""
    with _stream(path, files) as stream:
        for record in _whole(stream) if form.multiline else _lines(stream):
            try:
                fields = _FIELDS.decode(record)
            except (msgspec.DecodeError, RecursionError):
                fields = _fields_of_any(record)
            if not fields.keys() <= known:  # most often they are known
                yield {name: json.loads(bytes(value)) for name, value in fields.items() if name not in known}


def _fields_of_any(record: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of an object that only some parsers take, such as one with NaN; none of what is no object."""
    try:
        found = json.loads(record)
    except (ValueError, RecursionError):
        return {}
    fields = found if isinstance(found, dict) else {}
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}


def _lines(stream: pa.NativeFile) -> Iterator[bytes]:
    rest = stream.read(len(_BOM)).removeprefix(_BOM)
    while chunk := stream.read(CHUNK_BYTES):
        *lines, rest = _LINES.split(rest + chunk)
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


def _whole(stream: pa.NativeFile) -> Iterator[bytes]:
    """Yield the objects of a file that is one JSON value."""
    try:
        value: Any = json.loads(stream.read().removeprefix(_BOM))
    except (ValueError, RecursionError):
        return
    yield from (json.dumps(each).encode() for each in (value if isinstance(value, list) else [value]))


def _common(kinds: Sequence[str]) -> str:
    """Return the type that holds the values of all ``kinds``."""
    if len({*kinds}) == 1:
        return kinds[0]
    if {*kinds} == {"bigint", "double"}:
        return "double"
    return type_of_all([arrow(parse("", kind)) for kind in kinds]) or "string"


def _readable(kind: str, form: FileFormat) -> str:
    """Return the type of texts that seem to be of ``kind``: a day or a time is one only if it is read as it is written.

    >>> german = FileFormat(Encoding.CSV, date_format="dd.MM.yyyy")
    >>> _readable("date", german), _readable("timestamp", german), _readable("bigint", german)
    ('string', 'timestamp', 'bigint')
    """
    patterns: Mapping[str, str | None] = {"date": form.date_format, "timestamp": form.timestamp_format}
    return "string" if any(given and name in kind for name, given in patterns.items()) else kind


def _open(path: str, files: FileDecoder) -> pa.NativeFile:
    try:
        return files.open(path)
    except OSError as error:
        raise _unread(path, error) from error


def _stream(path: str, files: FileDecoder) -> pa.NativeFile:
    try:
        return files.stream(path)
    except OSError as error:
        raise _unread(path, error) from error


def _unread(path: str, error: OSError) -> Unavailable:
    return Unavailable(f"file {path!r} cannot be read: {first_line(error)}")
