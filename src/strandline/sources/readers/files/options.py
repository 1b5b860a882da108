"""The options of a files source.

CREATE SOURCE flights (…) FROM FILES '/data/flights/*.csv' (header = 'true', nulls = 'NA', settle = '2s')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from strandline.algebra.messages import Encoding, FileFormat
from strandline.connections.addresses import Address, of_url
from strandline.options import ANY_TEXT, CHARACTER, DURATION_MS, FLAG, PLACE, TEXT, one_of, option
from strandline.store.secret import Secret

SUFFIXES: Final = {
    ".avro": Encoding.AVRO,
    ".csv": Encoding.CSV,
    ".json": Encoding.JSON,
    ".jsonl": Encoding.JSON,
    ".ndjson": Encoding.JSON,
    ".parquet": Encoding.PARQUET,
}
COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy")
_OF_CSV: Final = ("header", "delimiter", "quote", "escape", "nulls")
_OF_TEXT: Final = ("timestamp_format", "date_format", "multiline")
_OF_S3: Final = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
_SHOWN: Final = frozenset({"endpoint", "region"})
_WILD: Final = "*?["
S3: Final = "s3"
UNSEEN: Final = (".", "_")
"""What begins so, or stands below such a name, is no file of a source."""


class OnDurable(Enum):
    """What becomes of a file once it is durable."""

    KEEP = "keep"
    ARCHIVE = "archive"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FileOptions:
    """Where the files are, and how they are to be taken.

    >>> FileOptions(path="/data/*.csv", nulls="NA").decoding.null
    'NA'
    """

    path: str = option(
        TEXT,
        "The directory, file or glob; absolute, or relative to where the process runs. Or `s3://bucket/prefix/*.json`.",
    )
    format: Encoding | None = option(
        one_of(Encoding), "How the files are encoded; without it, what the suffix of `path` says.", default=None
    )
    settle: int = option(
        DURATION_MS,
        "Take a file when it was not modified for so long. `0`: every file that can be seen is complete, because its "
        "writer renames it into place.",
        default="1s",
    )
    retain: bool = option(FLAG, "`false`: a file that is durable here may be deleted.", default="true")
    on_durable: OnDurable = option(
        one_of(OnDurable),
        "What becomes of a file that is durable here: it stays, is moved to `archive`, or is deleted.",
        default="keep",
    )
    archive: str | None = option(
        TEXT, "The directory (in S3: the prefix, as a URL) that files are moved to, under their names.", default=None
    )
    endpoint: str | None = option(PLACE, "S3: the URL of a server of one's own.", default=None)
    region: str | None = option(PLACE, "S3: the bucket's region.", default=None)
    access_key_id: str | None = option(PLACE, "S3: which key signs requests, by reference.", default=None)
    secret_access_key: str | None = option(PLACE, "S3: the key itself, by reference.", default=None)
    session_token: str | None = option(PLACE, "S3: the token of a key that ends, by reference.", default=None)
    retract: str = option(
        ANY_TEXT,
        "A glob: the rows of files with such a name (not path) are taken back instead of added. Empty: of no file.",
        default="",
    )
    header: bool | None = option(FLAG, "CSV: the first line names the columns; without it `true`.", default=None)
    delimiter: str | None = option(
        CHARACTER, "CSV: what is between fields (`tab` is known); without it `,`.", default=None
    )
    quote: str | None = option(CHARACTER, 'CSV: what a field may stand in; without it `"`.', default=None)
    escape: str | None = option(
        CHARACTER, "CSV: what is before a quote inside quotes; without it the quote itself.", default=None
    )
    nulls: str | None = option(ANY_TEXT, "CSV: the token that stands for NULL besides the empty field.", default=None)
    timestamp_format: str | None = option(ANY_TEXT, "CSV and JSON: Spark's pattern of timestamps.", default=None)
    date_format: str | None = option(ANY_TEXT, "CSV and JSON: Spark's pattern of dates.", default=None)
    multiline: bool | None = option(FLAG, "CSV and JSON: a record may span lines; without it `false`.", default=None)

    def __post_init__(self) -> None:
        """Raise `ValueError` if the format is not known, or an option does not go with it."""
        encoding = self.encoding
        scheme, separator, _ = self.path.partition("://")
        if separator and scheme not in {"file", S3}:
            raise ValueError(f"path is {self.path!r}: a local directory or {S3}:// can be watched, not {scheme}")
        if self.in_s3 and encoding is Encoding.AVRO:
            raise ValueError(f"path is {self.path!r}: Avro files are read from local directories only")
        for name in () if self.in_s3 else _OF_S3:
            if getattr(self, name) is not None:
                raise ValueError(f"option {name!r} goes with {S3}:// only")
        self._check_archive()
        refused = () if encoding is Encoding.CSV else _OF_CSV if encoding.text else (*_OF_CSV, *_OF_TEXT)
        for name in refused:
            if getattr(self, name) is not None:
                raise ValueError(f"option {name!r} does not go with format {encoding.value!r}")

    def _check_archive(self) -> None:
        if (self.on_durable is OnDurable.ARCHIVE) is not (self.archive is not None):
            raise ValueError("on_durable = 'archive' and archive go together")
        if self.archive is None:
            return
        if self.in_s3:
            root, archive = object_root_and_pattern(self.path)[0], self.archive.rstrip("/")
            if archive.split("/")[:3] != root.split("/")[:3]:
                raise ValueError(f"archive is {self.archive!r}: it must be a prefix of the same bucket")
            inside = f"{archive}/".startswith(f"{root}/")
            below: tuple[str, ...] = tuple(archive.removeprefix(root).split("/"))
        else:
            here = root_and_pattern(self.path)[0]
            there = Path(self.archive.removeprefix("file://")).absolute()
            inside = there == here or here in there.parents
            below = there.relative_to(here).parts if inside else ()
        if inside and not any(part.startswith(UNSEEN) for part in below if part):
            raise ValueError(f"archive is {self.archive!r}, where files are looked for: what leaves would come back")

    def __repr__(self) -> str:
        return f"FileOptions({self.path!r})"  # others may be secrets

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`: a server of one's own."""
        return of_url(self.endpoint)

    @property
    def in_s3(self) -> bool:
        """Whether the files are objects."""
        return self.path.startswith(f"{S3}://")

    @property
    def storage(self) -> dict[str, str | Secret]:
        """How their store is reached; what is not said is taken from the variables that S3's own tools read."""
        given = {name: getattr(self, name) for name in _OF_S3 if getattr(self, name) is not None}
        return {name: text if name in _SHOWN else Secret(text) for name, text in given.items()}

    @property
    def stays(self) -> bool:
        """Whether a file that is durable must stay where it is."""
        return self.retain and self.on_durable is OnDurable.KEEP

    @property
    def encoding(self) -> Encoding:
        """How the files are encoded."""
        if self.format is not None:
            return self.format
        suffixes = [suffix for suffix in Path(self.path).suffixes if suffix not in COMPRESSED]
        if suffixes and suffixes[-1].lower() in SUFFIXES:
            return SUFFIXES[suffixes[-1].lower()]
        raise ValueError(f"option 'format' is missing, and {self.path!r} has no suffix of avro, csv, json or parquet")

    @property
    def decoding(self) -> FileFormat:
        """How to decode the files."""
        base = FileFormat(self.encoding)
        quote = self.quote or base.quote
        return FileFormat(
            base.encoding,
            header=base.header if self.header is None else self.header,
            delimiter=self.delimiter or base.delimiter,
            quote=quote,
            escape=self.escape or quote,
            null=base.null if self.nulls is None else self.nulls,
            timestamp_format=self.timestamp_format,
            date_format=self.date_format,
            multiline=bool(self.multiline),
        )

    def withdraws(self, name: str) -> bool:
        """Tell whether the rows of the file ``name`` are taken back.

        >>> given = FileOptions(path="/data/*.csv", retract="*.retract.csv")
        >>> given.withdraws("2013/12-10.retract.csv"), given.withdraws("2013/12-10.csv")
        (True, False)
        """
        return bool(self.retract) and fnmatchcase(PurePosixPath(name).name, self.retract)


def root_and_pattern(path: str) -> tuple[Path, str]:
    """Split a path into the directory that names are relative to and a glob below it.

    >>> [(str(root), pattern) for root, pattern in map(root_and_pattern, ("/a/b/*/c*.csv", "file:///nowhere"))]
    [('/a/b', '*/c*.csv'), ('/nowhere', '**/*')]
    """
    found = Path(path.removeprefix("file://")).absolute()
    if found.is_file():
        return found.parent, "".join(f"[{c}]" if c in _WILD else c for c in found.name)
    wild = next((i for i, part in enumerate(found.parts) if any(sign in part for sign in _WILD)), None)
    if wild is None:
        return found, "**/*"
    return Path(*found.parts[:wild]), "/".join(found.parts[wild:])


def object_root_and_pattern(path: str) -> tuple[str, str]:
    """Split the URL of objects into the prefix that names are relative to, and a glob below it.

    A last part with a dot in it is one object, all else without wildcards is a prefix.

    >>> [object_root_and_pattern(f"s3://b{rest}") for rest in ("/a/b*/*.csv", "", "/a/", "/a/[x].csv", "/a/x.csv")]
    [('s3://b/a', 'b*/*.csv'), ('s3://b', '**/*'), ('s3://b/a', '**/*'), ('s3://b/a', '[x].csv'), ('s3://b/a', 'x.csv')]
    """
    scheme, _, rest = path.partition("://")
    bucket, *parts = rest.split("/")
    wild = next((i for i, part in enumerate(parts) if any(sign in part for sign in _WILD)), None)
    if wild is None and parts and "." in parts[-1]:
        wild = len(parts) - 1
    above = [part for part in (parts if wild is None else parts[:wild]) if part]
    return "/".join([f"{scheme}://{bucket}", *above]), "**/*" if wild is None else "/".join(parts[wild:])
