"""Discovery in a directory: a source for each set of files that look alike, and columns that it does not read yet.

Files look alike if they lie in one directory, have one suffix and the same columns.  Three files of each directory and
suffix are looked at, or all if the columns of these three differ.

`discover` also proposes types for columns that files have and their source does not read.  The names come from the
file's header; all JSON lines are read, so that no field is missed, and so are the values of CSV's other columns.  A
column without any value is not proposed: nothing of it is lost.  Nor is a column whose values cannot be read as any
type, or one that a header names more than once: the header does not say which is meant.

In a file that is damaged, or lacks a required column, no column is found; decoding the file says what is wrong with it.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final, Protocol, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.algebra.arrow_types import arrow
from strandline.algebra.messages import Encoding, FileFormat
from strandline.algebra.schema import Column, Schema, quote
from strandline.algebra.stored import ParquetSchema, first_record, type_of_all
from strandline.algebra.types import parse
from strandline.errors import DefinitionError, SourceError, Unavailable, first_line
from strandline.options import CHARACTER, FLAG, TEXT, one_of, option
from strandline.problem import Problem, Stopped, Way, joined
from strandline.sources.kinds import Discovered, Discovery, discovered
from strandline.sources.reader import FileDecoder, Surroundings, unknown_of
from strandline.sources.readers import avro_columns, sampled
from strandline.sources.readers.files.options import COMPRESSED, SUFFIXES, UNSEEN, root_and_pattern

FILES_MAX: Final = 10_000
"""So many files are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """Where to look, and how to read what is there."""

    path: str = option(TEXT, "The directory, file or glob.")
    format: Encoding | None = option(
        one_of(Encoding), "How the files are encoded; without it, what their suffixes say.", default=None
    )
    header: bool = option(FLAG, "CSV: the first line names the columns.", default="true")
    delimiter: str = option(CHARACTER, "CSV: what is between fields.", default=",")


async def find(options: Looked) -> Sequence[Discovered]:
    """Return what there is to read.

    Raises `DefinitionError` if nothing is there, or it is no local directory; `SourceError` if a file cannot be read.
    """
    scheme, separator, _ = options.path.partition("://")
    if separator and scheme != "file":
        raise DefinitionError(f"path is {options.path!r}: only local directories can be looked at, not {scheme}")
    return await asyncio.to_thread(_find, options)


def _find(options: Looked) -> list[Discovered]:
    root, pattern = root_and_pattern(options.path)
    sets: dict[tuple[Path, str], list[Path]] = {}
    for path in _files(root, pattern):
        sets.setdefault((path.parent, _suffix(path)), []).append(path)
    found = [each for (_, suffix), paths in sorted(sets.items()) for each in _alike(paths, suffix, options)]
    if not found:
        known = ", ".join(sorted(SUFFIXES))
        raise DefinitionError(f"there is no file to read at {options.path!r}; without `format`, files end in {known}")
    return found


def _files(root: Path, pattern: str) -> Iterator[Path]:
    """Yield the files that a source would see, the first of them by name."""
    seen = 0
    for path in sorted(root.glob(pattern)):
        hidden = any(part.startswith(UNSEEN) for part in path.relative_to(root).parts)
        if path.is_file() and not hidden and seen < FILES_MAX:
            seen += 1
            yield path


def _suffix(path: Path) -> str:
    """Return what says how a file is encoded and compressed; empty if nothing does."""
    return "".join(each for each in path.suffixes[-2:] if each.lower() in SUFFIXES or each in COMPRESSED)


def _encoding(suffix: str, options: Looked) -> Encoding | None:
    return options.format or next((SUFFIXES[s] for s in (Path(f"x{suffix}").suffixes) if s in SUFFIXES), None)


def _alike(paths: Sequence[Path], suffix: str, options: Looked) -> Iterator[Discovered]:
    """Yield a source for each set of files of one directory and suffix that have the same columns."""
    encoding = _encoding(suffix, options)
    if encoding is None:
        return
    looked = {path: _looked(path, encoding, options) for path in _some(paths)}
    if len({_names(each) for each in looked.values()}) > 1:
        looked = {path: looked.get(path) or _looked(path, encoding, options) for path in paths}
        of = {path: _names(each) for path, each in looked.items()}
    else:
        of = dict.fromkeys(paths, _names(next(iter(looked.values()))))
    sets: dict[tuple[str, ...], list[Path]] = {}
    for path, names in of.items():
        sets.setdefault(names, []).append(path)
    for alike in sets.values():
        seen = [looked[path] for path in alike if path in looked]
        name, where = _place(alike, paths, suffix)
        sample = reduce(_joined, seen)
        every = {"path": where, **_said(encoding, suffix, options), **_read_by(sample)}
        notes = [_note(alike, len(seen)), *_notes(sample)]
        yield discovered(name, sample.columns, every, notes, exact=encoding is Encoding.JSON)


def _some(paths: Sequence[Path]) -> Sequence[Path]:
    """Return the first file, the last and one between: the newest ones often are the last by name."""
    return list(dict.fromkeys([paths[0], paths[len(paths) // 2], paths[-1]]))


def _place(alike: Sequence[Path], all_of: Sequence[Path], suffix: str) -> tuple[str, str]:
    """Return a name for files and a path that matches them, and none of ``all_of`` besides."""
    directory, first = alike[0].parent, alike[0]
    if len(alike) == 1 and len(all_of) > 1:
        return first.name.removesuffix(suffix), str(first)
    if len(alike) == len(all_of):
        return directory.name, f"{directory}/*{suffix}"
    begin = _begin([path.name for path in alike])
    others = [path for path in all_of if path not in alike and path.name.startswith(begin)]
    if not begin or others:
        return directory.name, str(first)
    return begin.rstrip("-_.0123456789") or directory.name, f"{directory}/{begin}*{suffix}"


def _begin(names: Sequence[str]) -> str:
    """Return what all of ``names`` begin with.

    >>> _begin(["orders_1.csv", "orders_2.csv"])
    'orders_'
    """
    least, most = min(names), max(names)
    same = (n for n, (a, b) in enumerate(zip(least, most, strict=False)) if a != b)
    return least[: next(same, len(least))]


def _said(encoding: Encoding, suffix: str, options: Looked) -> Mapping[str, str]:
    """Return the options that the path does not say."""
    said = {} if suffix else {"format": encoding.value}
    if encoding is Encoding.CSV:
        said |= {} if options.header else {"header": "false"}
        said |= {} if options.delimiter == "," else {"delimiter": options.delimiter}
    return said


def _note(alike: Sequence[Path], looked: int) -> str:
    there = "1 file is there now" if len(alike) == 1 else f"{len(alike)} files are there now"
    return there if looked == len(alike) else f"{there}, of which {looked} were looked at"


class _Sample(Protocol):
    """What files of one encoding seem to hold."""

    @property
    def columns(self) -> list[tuple[str, str | None]]:
        """The columns with the types to read them as; None: nothing reads it."""

    @property
    def whole(self) -> bool:
        """Whether all of them was looked at."""

    def joined(self, other: Self, /) -> Self:
        """Return what both are a sample of; they have the same names."""


@dataclass(frozen=True, slots=True)
class _Typed:
    """What files that say their types hold: columns of these ``names``, and what each is stored as in some file.

    None: nothing reads what it is stored as.
    """

    names: Sequence[str]
    stored: Sequence[Sequence[pa.DataType] | None]
    whole: bool = True

    @property
    def columns(self) -> list[tuple[str, str | None]]:
        """The columns with the types that hold them in every file."""
        kinds = (None if each is None else type_of_all(each) for each in self.stored)
        return [*zip(self.names, kinds, strict=True)]

    def joined(self, other: _Typed) -> _Typed:
        """Return what both are a sample of."""
        both = zip(self.stored, other.stored, strict=True)
        return _Typed(self.names, [None if one is None or two is None else [*one, *two] for one, two in both])


def _names(sample: _Sample) -> tuple[str, ...]:
    return tuple(name for name, _ in sample.columns)


def _joined(one: _Sample, two: _Sample) -> _Sample:
    return one.joined(two)


def _read_by(sample: _Sample) -> Mapping[str, str]:
    """Return the options to read files by that the sample shows."""
    null = sample.null if isinstance(sample, sampled.CsvSample) else ""
    return {"nulls": null} if null else {}


def _notes(sample: _Sample) -> Sequence[str]:
    """Return what a person should know of a sample."""
    part = [] if sample.whole else [f"the types are a guess from the first {sampled.SAMPLE_BYTES >> 20} MiB of a file"]
    return [*part, *(f"{text!r} is read as NULL" for text in _read_by(sample).values())]


def _looked(path: Path, encoding: Encoding, options: Looked) -> _Sample:
    try:
        match encoding:
            case Encoding.PARQUET:
                with pq.ParquetFile(path) as file:
                    schema = ParquetSchema(file)
                    kinds = zip(schema.columns, schema.stored.types, strict=True)
                    return _Typed(schema.stored.names, [[stored] if kind else None for (_, kind), stored in kinds])
            case Encoding.CSV:
                form = FileFormat(encoding, header=options.header, delimiter=options.delimiter)
                return sampled.of_csv(lambda: _opened(path), form)
            case Encoding.JSON:
                with _opened(path) as stream:
                    sample = stream.read(sampled.SAMPLE_BYTES)
                lines = (line for line in _lines(sample) if line.strip())
                return sampled.of_json(lines, whole=len(sample) < sampled.SAMPLE_BYTES)
            case Encoding.AVRO:
                with path.open("rb") as data:
                    columns = avro_columns.columns_of_file(data) or []
                stored = [[arrow(parse(name, kind))] if kind else None for name, kind in columns]
                return _Typed([name for name, _ in columns], stored)
    except Exception as error:  # damaged bytes make the libraries raise any exception
        raise SourceError(f"{path}: {first_line(error)}") from error


def _opened(path: Path) -> pa.NativeFile:
    return pa.input_stream(str(path), compression="detect")


def _lines(sample: bytes) -> list[bytes]:
    """Return the lines of a sample; the last one only if it is not cut, as far as can be seen."""
    lines = sample.split(b"\n")
    return lines if len(sample) < sampled.SAMPLE_BYTES or len(lines) == 1 else lines[:-1]


DISCOVERY: Final = Discovery(Looked, find)


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
        for record in _whole(stream) if form.multiline else _read_lines(stream):
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


def _read_lines(stream: pa.NativeFile) -> Iterator[bytes]:
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
