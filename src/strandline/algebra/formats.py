"""How the bytes of a file become rows: plain data that whoever lists files and whoever decodes them share.

Source: design page "sources" (files: CSV, JSON lines, Parquet; options).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from strandline.algebra.undecoded import TAKES_BACK


class Encoding(Enum):
    """What a file is made of."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"

    @property
    def text(self) -> bool:
        """Whether it is lines of text."""
        return self is not Encoding.PARQUET


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How to decode a file.  All but ``encoding`` speak about text.

    ``header``: the first line of a CSV file names its columns, which are then found by name, without regard to case,
    in any order; columns that nobody declared are passed over, and a file that lacks a declared one is an error as a
    whole.  Without it, fields are taken by position and there must be as many as columns.  ``null`` is the one token
    (besides the empty field) that stands for NULL. ``escape`` equal to ``quote`` means that a quote inside quotes is
    doubled (RFC 4180).  ``multiline``: a record may span lines.  JSON
    names are matched exactly, and what is missing is NULL, as Spark reads them.
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


@dataclass(frozen=True, slots=True)
class DatedFile:
    """A file whose records all happen at ``time``: where it is, what people call it, its size in bytes.

    ``withdrawn``: its records are taken back, each once (diff −1); one that cannot be decoded is an error all the
    same, which says so (`undecoded.TAKES_BACK`).
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
        """What the reason of each of its errors begins with."""
        return TAKES_BACK if self.withdrawn else ""
