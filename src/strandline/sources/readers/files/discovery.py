"""What there is to read in a directory: a source for each set of files that look alike.

Files look alike if they lie in one directory, have one suffix and the same columns.  A few of each set are sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from strandline.algebra.formats import Encoding
from strandline.algebra.schema import Schema
from strandline.errors import DefinitionError, SourceError
from strandline.options import CHARACTER, FLAG, TEXT, one_of, option
from strandline.sources import sampled
from strandline.sources.kinds import Discovered, Discovery
from strandline.sources.readers.files.options import COMPRESSED, SUFFIXES, UNSEEN, root_and_pattern

FILES_MAX: Final = 10_000
"""So many files are looked for."""
SAMPLED_MAX: Final = 3
"""So many files of each directory and suffix are opened, unless the columns of these differ: then each is."""


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
    schemas = {path: _schema(path, encoding, options) for path in paths[:SAMPLED_MAX]}
    if len({schema.names for schema in schemas.values()}) > 1:
        schemas = {path: _schema(path, encoding, options) for path in paths}
    else:
        schemas = dict.fromkeys(paths, next(iter(schemas.values())))
    sets: dict[tuple[str, ...], list[Path]] = {}
    for path, schema in schemas.items():
        sets.setdefault(schema.names, []).append(path)
    for alike in sets.values():
        of, where = _place(alike, paths, suffix)
        yield Discovered(of, schemas[alike[0]], {"path": where, **_said(encoding, suffix, options)}, _note(alike))


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


def _note(alike: Sequence[Path]) -> str:
    return "1 file is there now" if len(alike) == 1 else f"{len(alike)} files are there now"


def _schema(path: Path, encoding: Encoding, options: Looked) -> Schema:
    try:
        match encoding:
            case Encoding.PARQUET:
                return sampled.columns(parquet.read_schema(path))
            case Encoding.CSV:
                return sampled.of_csv(_sample(path), delimiter=options.delimiter, header=options.header)
            case Encoding.JSON:
                return sampled.of_json(line for line in _lines(_sample(path)) if line.strip())
            case _:
                raise SourceError(f"{path}: {encoding.value} files cannot be sampled; write the columns")
    except (ValueError, OSError) as error:
        raise SourceError(f"{path}: {error}") from error


def _sample(path: Path) -> bytes:
    with pa.input_stream(str(path), compression="detect") as opened:
        return bytes(opened.read(sampled.SAMPLE_BYTES))


def _lines(sample: bytes) -> list[bytes]:
    """Return the lines of a sample; the last one only if it is not cut, as far as can be seen."""
    lines = sample.split(b"\n")
    return lines if len(sample) < sampled.SAMPLE_BYTES or len(lines) == 1 else lines[:-1]


DISCOVERY: Final = Discovery(Looked, find)
