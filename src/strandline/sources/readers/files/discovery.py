"""What there is to read in a directory: a source for each set of files that look alike.

Files look alike if they lie in one directory, have one suffix and the same columns.  Three of each directory and suffix
are looked at, or all if the columns of these three differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final, Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.algebra.arrow_types import arrow
from strandline.algebra.formats import Encoding, FileFormat
from strandline.algebra.parquet_schema import ParquetSchema
from strandline.algebra.stored import type_of_all
from strandline.algebra.types import parse
from strandline.errors import DefinitionError, SourceError, first_line
from strandline.options import CHARACTER, FLAG, TEXT, one_of, option
from strandline.sources.kinds import Discovered, Discovery, discovered
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
