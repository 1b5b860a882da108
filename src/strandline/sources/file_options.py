"""The options of a files source, from the words of its definition.

    CREATE SOURCE flights (…) FROM FILES '/data/flights/*.csv' (header = 'true', nulls = 'NA', settle = '2s')

Words become typed values here, once; whatever is not understood is refused with what would be.

Source: design page "sources" (files).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

from strandline.algebra.formats import Encoding, FileFormat
from strandline.errors import DefinitionError

T = TypeVar("T")

SETTLE_MS_DEFAULT: Final = 1_000
_SUFFIXES: Final = {
    ".csv": Encoding.CSV,
    ".json": Encoding.JSON,
    ".jsonl": Encoding.JSON,
    ".ndjson": Encoding.JSON,
    ".parquet": Encoding.PARQUET,
}
_COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy")
_DELIMITERS: Final = {"tab": "\t", "\\t": "\t"}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m)?")
_WILD: Final = "*?["
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, None: 1_000}


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Where the files are and how they are to be taken.

    ``pattern`` is a glob below ``root``; names of files are relative to ``root``.  ``settle_ms``: a file is taken
    when it has not been modified for so long (0: every file that can be seen is complete, because its writer renames
    it into place).  ``retain`` false: a file that is durable here may be deleted.  ``retract`` is a glob: the
    rows of files with such a name (not path) are taken back instead of added; empty: of no file.
    """

    root: Path
    pattern: str
    format: FileFormat
    settle_ms: int = SETTLE_MS_DEFAULT
    retain: bool = True
    retract: str = ""

    def withdraws(self, name: str) -> bool:
        """Tell whether the rows of the file ``name`` are taken back.

        >>> given = parse("/data/*.csv", {"retract": "*.retract.csv"})
        >>> given.withdraws("2013/12-10.retract.csv"), given.withdraws("2013/12-10.csv")
        (True, False)
        """
        return bool(self.retract) and fnmatchcase(PurePosixPath(name).name, self.retract)


def parse(path: str, options: Mapping[str, str]) -> FileOptions:
    """Return the options that ``path`` (directory, file or glob; absolute, or relative to here) and ``options`` say.

    Raises `DefinitionError` naming the option that is unknown, has no such value, or does not go with the format.

    >>> found = parse("/data/*.csv", {"nulls": "NA", "settle": "250ms"})
    >>> str(found.root), found.pattern, found.format.null, found.settle_ms
    ('/data', '*.csv', 'NA', 250)
    >>> parse("/data/*.csv", {"heder": "true"})
    Traceback (most recent call last):
        ...
    strandline.errors.DefinitionError: files option 'heder' is unknown; did you mean 'header'?
    """
    words = _Words({name.lower(): value for name, value in options.items()})
    encoding = words.take("format", _encoding) or _encoding_of(path)
    allowed = _COMMON | _BY_ENCODING[encoding]
    for name in words.left:
        if name not in _COMMON | set().union(*_BY_ENCODING.values()):
            close = get_close_matches(name, sorted(allowed), 1)
            hint = f"did you mean {close[0]!r}?" if close else f"it can be {', '.join(sorted(allowed))}"
            raise DefinitionError(f"files option {name!r} is unknown; {hint}")
        if name not in allowed:
            raise DefinitionError(f"files option {name!r} does not go with format {encoding.value!r}")
    base = FileFormat(encoding)
    quote = words.take("quote", _character) or base.quote
    decoding = FileFormat(
        encoding,
        header=words.take_or("header", _flag, base.header),
        delimiter=words.take("delimiter", _character) or base.delimiter,
        quote=quote,
        escape=words.take("escape", _character) or quote,
        null=words.take_or("nulls", str, base.null),
        timestamp_format=words.take("timestamp_format", str),
        date_format=words.take("date_format", str),
        multiline=words.take_or("multiline", _flag, base.multiline),
    )
    root, pattern = _place(path)
    return FileOptions(
        root,
        pattern,
        decoding,
        words.take_or("settle", _milliseconds, SETTLE_MS_DEFAULT),
        words.take_or("retain", _flag, True),
        words.take_or("retract", str, ""),
    )


_COMMON: Final = {"format", "settle", "retain", "retract"}
_TEXT: Final = {"timestamp_format", "date_format", "multiline"}
_BY_ENCODING: Final = {
    Encoding.CSV: _TEXT | {"header", "delimiter", "quote", "escape", "nulls"},
    Encoding.JSON: _TEXT,
    Encoding.PARQUET: set(),
}
assert {"nulls" if f.name == "null" else "format" if f.name == "encoding" else f.name for f in fields(FileFormat)} <= (
    _COMMON | _BY_ENCODING[Encoding.CSV]
), "every field of FileFormat has an option"


class _Words:
    """The options not yet understood."""

    def __init__(self, words: dict[str, str]) -> None:
        self.left = words

    def take(self, name: str, understand: Callable[[str], T]) -> T | None:
        if name not in self.left:
            return None
        value = self.left.pop(name)
        try:
            return understand(value)
        except ValueError as error:
            raise DefinitionError(f"files option {name} = {value!r}: {error}") from None

    def take_or(self, name: str, understand: Callable[[str], T], default: T) -> T:
        value = self.take(name, understand)
        return default if value is None else value


def _encoding(word: str) -> Encoding:
    try:
        return Encoding(word.lower())
    except ValueError:
        raise ValueError(f"it can be {', '.join(e.value for e in Encoding)}") from None


def _encoding_of(path: str) -> Encoding:
    suffixes = [suffix for suffix in Path(path).suffixes if suffix not in _COMPRESSED]
    if suffixes and suffixes[-1].lower() in _SUFFIXES:
        return _SUFFIXES[suffixes[-1].lower()]
    raise DefinitionError(f"files option 'format' is missing, and {path!r} has no suffix of csv, json or parquet")


def _flag(word: str) -> bool:
    match word.lower():
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
    raise ValueError("it can be true or false")


def _character(word: str) -> str:
    character = _DELIMITERS.get(word.lower(), word)
    if len(character) != 1 or character in "\r\n":
        raise ValueError("it must be one character (or 'tab')")
    return character


def _milliseconds(word: str) -> int:
    """Return a duration in milliseconds; a bare number is seconds.

    >>> [_milliseconds(word) for word in ("0", "1.5", "250ms", "2 m")]
    [0, 1500, 250, 120000]
    """
    found = _DURATION.fullmatch(word.strip())
    if found is None:
        raise ValueError("it must be a duration such as 2s or 500ms")
    return round(float(found[1]) * _UNITS_MS[found[2]])


def _place(path: str) -> tuple[Path, str]:
    """Split a path into the directory that names are relative to and a glob below it.

    >>> [(str(root), pattern) for root, pattern in map(_place, ("/a/b/*/c*.csv", "file:///nowhere"))]
    [('/a/b', '*/c*.csv'), ('/nowhere', '**/*')]
    """
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        raise DefinitionError(
            f"files cannot be read from {path!r}: only local directories can be watched, not {scheme}"
        )
    place = Path(rest if separator else path).absolute()
    if place.is_file():
        return place.parent, "".join(f"[{c}]" if c in _WILD else c for c in place.name)
    wild = next((i for i, part in enumerate(place.parts) if any(sign in part for sign in _WILD)), None)
    if wild is None:
        return place, "**/*"
    return Path(*place.parts[:wild]), "/".join(place.parts[wild:])
