"""One table of files: each transaction adds a manifest, which names the files of the table, under the next number.

A manifest is published only if none has its number yet: of two writers that saw the same newest one, one succeeds, and
the other one looks again.  The manifest with the highest number is the table.

    manifest/00000000000000000007.json
    {"format": 1, "version": 7, "written_ms": …, "upto": …, "owner": "…", "columns": [["id", "bigint"], …],
     "files": [{"name": "stage-…/rows-0-0.parquet", "rows": 3, "size": 980}, …],
     "writers": {"strandline:…": 7}, "removed": [["stage-…/rows-0-0.parquet", 1700000000000], …]}

``removed`` lists the files that this manifest no longer names, each with the time at which it was removed.  They stay
for readers of older manifests until the retention has passed; so do the manifests.  A writer that paused for longer
than the retention could therefore publish a number a second time.  So each commit checks afterwards that the manifest
before its own is still there: manifests are deleted in the order of their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec
import pyarrow as pa

from strandline.errors import CorruptionError, Unavailable
from strandline.materialize.drivers.files import csv
from strandline.materialize.drivers.files.objects import Objects
from strandline.materialize.drivers.staged import parquet
from strandline.materialize.drivers.staged.table import Change, Piece, Shape, Snapshot, arrow_schema
from strandline.materialize.protocol.refusals import DAMAGED, OTHER_VERSION
from strandline.store.clock import Clock

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


LOOKS_MAX: Final = 10
"""A manifest that is listed and gone when it is read was removed meanwhile: there is a newer one."""


class Encoding(Enum):
    """How the rows of new files are encoded."""

    PARQUET = "parquet"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class Layout:
    """How tables are kept: the encoding of new files, and for how long (ms) readers of an old manifest may read."""

    encoding: Encoding
    retention_ms: int


class FilesTable:
    """A table in a directory or below a prefix.  ``opened`` opens it, when it is used first."""

    joins = True

    def __init__(self, name: str, opened: Callable[[], Objects], layout: Layout, clock: Clock) -> None:
        self._name = name
        self._opened = opened
        self._layout = layout
        self._clock = clock
        self._objects: Objects | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"table of files {self._name!r}"

    @property
    def place(self) -> Objects:
        """Its files."""
        if self._objects is None:
            self._objects = self._opened()
        return self._objects

    def snapshot(self, writer: str) -> Snapshot | None:
        """See `Table.snapshot`."""
        newest = self._newest()
        if newest is None:
            return None
        return Snapshot(newest, newest.shape, newest.owner, newest.writers.get(writer, 0), newest.pieces)

    def create(self, shape: Shape, owner: str) -> bool:
        """See `Table.create`."""
        first = Manifest(FORMAT, 0, self._clock.now_ms(), 0, owner, tuple(shape), (), {}, ())
        return self._newest() is None and self.place.publish(first.name, encode(first))

    def own(self, seen: Snapshot, owner: str, added: Shape) -> bool:
        """See `Table.own`."""
        return self._next(seen, owner=owner, columns=(*seen.shape, *added))

    def recreate(self, seen: Snapshot, shape: Shape, owner: str) -> bool:
        """See `Table.recreate`."""
        return self._next(seen, seen.pieces, owner=owner, columns=tuple(shape), files=())

    def commit(self, seen: Snapshot, change: Change) -> bool:
        """See `Table.commit`."""
        before: Manifest = seen.token
        kept = tuple(each for each in seen.pieces if each not in change.removed)
        writers = {**before.writers, change.writer: change.number}
        files = forms((*kept, *change.added))
        if not self._next(seen, change.removed, files=files, writers=writers, upto=change.upto):
            return False
        if self.place.get(before.name) is not None:
            return True
        newest = self._newest()  # see the module
        return newest is not None and newest.writers.get(change.writer, 0) >= change.number

    def write(self, name: str, rows: Iterator[pa.Table], shape: Shape) -> Piece | None:
        """See `Table.write`."""
        form = csv if self._layout.encoding is Encoding.CSV else parquet
        whole = name + form.SUFFIX
        count = form.write(self.place, whole, rows, arrow_schema(shape))
        return Piece(whole, count, self.place.size(whole)) if count else None

    def read(self, piece: Piece, shape: Shape, columns: Sequence[str]) -> Iterator[pa.Table]:
        """See `Table.read`."""
        form = csv if piece.name.endswith(csv.SUFFIX) else parquet
        try:
            yield from form.read(self.place, piece.name, arrow_schema(shape), columns)
        except FileNotFoundError:
            raise Unavailable(f"{self.name}: file {piece.name!r} of it is gone") from None

    def _newest(self) -> Manifest | None:
        for _ in range(LOOKS_MAX):
            versions = [version for each in self.place.below(DIRECTORY) if (version := version_of(each)) is not None]
            if not versions:
                return None
            name = name_of(max(versions))
            data = self.place.get(name)
            if data is not None:
                return decode(f"{self.name}: {name}", data)
        raise Unavailable(
            f"{self.name}: its manifests are removed faster than they can be read; use a longer retention"
        )

    def _next(self, seen: Snapshot, gone: tuple[Piece, ...] = (), **changes: object) -> bool:
        """Publish the manifest after the one ``seen``, and remove what its retention lets go."""
        before: Manifest = seen.token
        now = self._clock.now_ms()
        kept, expired = list[tuple[str, int]](), list[str]()
        for name, since in (*before.removed, *((each.name, now) for each in gone), (before.name, now)):
            if now - since >= self._layout.retention_ms and name != before.name:
                expired.append(name)
            else:
                kept.append((name, since))
        after = msgspec.structs.replace(
            before, version=before.version + 1, written_ms=now, removed=tuple(kept), **changes
        )
        if not self.place.publish(after.name, encode(after)):
            return False
        for name in expired:
            self.place.remove(name)
        return True
