"""File formats: plain data that readers, which list files, share with the engine, which decodes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from strandline.algebra.undecoded import TAKES_BACK


class Encoding(Enum):
    """The encoding of a file."""

    AVRO = "avro"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"

    @property
    def text(self) -> bool:
        """Whether the file is text."""
        return self in {Encoding.CSV, Encoding.JSON}


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How to decode a file.  All fields except ``encoding`` and ``later`` apply to text only.

    ``header``: the first line of a CSV file names its columns, which are then found by name, without regard to case,
    in any order; columns that are not declared are skipped, and a file that lacks a declared column is one error.
    Without a header, fields are matched by position and there must be as many as columns.  ``null`` is the one token
    (besides the empty field) that stands for NULL. ``escape`` equal to ``quote`` means that a quote inside quotes is
    doubled (RFC 4180).  ``multiline``: a record may span lines; ``ends``: what ends one of CSV then, where the reader
    would take another line end for it; empty: it sees for itself.  ``later``: declared columns that a file may lack,
    since files came before them: its records have NULL there.  JSON names are matched exactly, and a missing name is
    NULL, as in Spark.
    """

    encoding: Encoding
    header: bool = True
    delimiter: str = ","
    quote: str = '"'
    escape: str = '"'
    null: str = ""
    timestamp_format: str | None = None
    date_format: str | None = None
    multiline: bool = False
    ends: str = ""
    later: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DatedFile:
    """A file whose records all have the time ``time``: its path, its name for messages, its size in bytes.

    ``withdrawn``: its records are withdrawn, each once (diff −1); a record that cannot be decoded is still an error,
    whose reason begins with `undecoded.TAKES_BACK`.
    """

    path: str
    name: str
    size: int
    time: int
    withdrawn: bool = False

    @property
    def diff(self) -> int:
        """The diff of each of its records."""
        return -1 if self.withdrawn else 1

    @property
    def reason_prefix(self) -> str:
        """The prefix of the reason of each of its errors."""
        return TAKES_BACK if self.withdrawn else ""
