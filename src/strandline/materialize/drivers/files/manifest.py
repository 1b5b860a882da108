"""Manifest: which files make up a table at one moment, as one JSON object of an own name.

    manifest/00000000000000000007.json
    {"format": 1, "version": 7, "written_ms": …, "upto": …, "owner": "…", "columns": [["id", "bigint"], …],
     "files": [{"name": "stage-…/rows-0-0.parquet", "rows": 3, "size": 980}, …],
     "writers": {"strandline:…": 7}, "removed": [["stage-…/rows-0-0.parquet", 1700000000000], …]}

The one with the highest number counts.  ``removed`` has what no manifest of today names, with the time since when: it
is there for readers of an older manifest until the retention has passed.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from strandline.errors import CorruptionError
from strandline.materialize.drivers.staged.shape import Shape
from strandline.materialize.drivers.staged.table import Piece
from strandline.materialize.protocol.refusals import DAMAGED, OTHER_VERSION

FORMAT: Final = 1
DIRECTORY: Final = "manifest"
_NAME: Final = re.compile(rf"{DIRECTORY}/(\d{{20}})\.json")


class FileForm(msgspec.Struct, frozen=True):
    """A file of rows."""

    name: str
    rows: int
    size: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module."""

    format: int
    version: int
    written_ms: int
    upto: int
    owner: str
    columns: tuple[tuple[str, str], ...]
    files: tuple[FileForm, ...]
    writers: dict[str, int]
    removed: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """The name of its object."""
        return name_of(self.version)

    @property
    def shape(self) -> Shape:
        """The table's columns."""
        return self.columns

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The table's files."""
        return tuple(Piece(each.name, each.rows, each.size) for each in self.files)


def name_of(version: int) -> str:
    """Return the name of a manifest.

    >>> name_of(7)
    'manifest/00000000000000000007.json'
    """
    return f"{DIRECTORY}/{version:020}.json"


def version_of(name: str) -> int | None:
    """Return the number in a manifest's name; None: it is none.

    >>> version_of(name_of(7)), version_of("manifest/.7.json")
    (7, None)
    """
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def forms(pieces: tuple[Piece, ...]) -> tuple[FileForm, ...]:
    """Return pieces as a manifest has them."""
    return tuple(FileForm(each.name, each.rows, each.size) for each in pieces)


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest."""
    return msgspec.json.encode(manifest)


def decode(name: str, data: bytes) -> Manifest:
    """Return the manifest that `encode` made.  Raises `CorruptionError` for anything else."""
    try:
        found = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptionError(DAMAGED.said(what=name, why=error)) from error
    if found.format != FORMAT:
        raise CorruptionError(OTHER_VERSION.said(what=name, found=found.format, known=FORMAT))
    return found


_decoder: Final = msgspec.json.Decoder(Manifest)
