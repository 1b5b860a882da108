"""The log of a Delta table: its options, what a commit changes, and deletion vectors.

    CREATE SOURCE sales (id BIGINT, amount DECIMAL(10,2)) FROM DELTA (path = '/lake/sales')

A commit is a file of JSON lines, one action each.  It changes rows by files: the rows of added files come, those of
removed files go, unless the actions say that they change no data (OPTIMIZE, which writes the same rows into other
files).  If the table has a change data feed, a commit that rewrites files also names files of *changes*; then only
these files count.

A version that deletes few rows leaves their file unchanged, and removes and adds its name with another deletion vector.
Then only the rows in which the two vectors differ come or go.

Source: the Delta transaction log protocol: "Actions", "Change data files", "Reader requirements", "Deletion vectors".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote

import msgspec
import numpy as np
import numpy.typing as npt

from strandline.connections.lake import DeltaKeys, check_scheme
from strandline.errors import SourceError
from strandline.options import TEXT, option

CHANGE: Final = "_change_type"
"""The column of a file of changes that says what became of a row."""
COMES: Final = frozenset({"insert", "update_postimage"})
GOES: Final = frozenset({"delete", "update_preimage"})


class Vector(msgspec.Struct, frozen=True, rename="camel"):
    """Where the set of a file's deleted rows is stored."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """What a table is from a version on."""

    id: str
    schema_string: str
    partition_columns: list[str] = msgspec.field(default_factory=list)
    configuration: dict[str, str] = msgspec.field(default_factory=dict)


class TableProtocol(msgspec.Struct, frozen=True, rename="camel"):
    """What a reader must be able to do from a version on."""

    min_reader_version: int
    reader_features: list[str] | None = None


class _File(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    data_change: bool = True
    size: int | None = None
    partition_values: dict[str, str | None] | None = None
    deletion_vector: Vector | None = None


class _Action(msgspec.Struct, frozen=True, rename="camel"):
    add: _File | None = None
    remove: _File | None = None
    cdc: _File | None = None
    meta_data: Metadata | None = None
    protocol: TableProtocol | None = None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with rows of the table.

    ``path`` is relative to the table, or a URI.  ``partition``: the values of the partition columns as text; None where
    the log does not say.  ``size`` in bytes, None likewise.
    """

    path: str
    size: int | None
    partition: Mapping[str, str | None] | None = field(hash=False)
    vector: Vector | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """One version: the files that come and go, or its files of changes, and what it makes of the table."""

    version: int
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    changes: tuple[DataFile, ...] = ()
    metadata: Metadata | None = None
    protocol: TableProtocol | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """Rows of a file that come (diff 1) or go (diff −1) with ``version``.

    ``changes``: it is a file of changes, of which only the rows count that come, or those that go.
    """

    version: int
    diff: int
    file: DataFile
    changes: bool = False


_decoder = msgspec.json.Decoder(_Action)


def parse(version: int, data: bytes) -> Commit:
    """Return the commit that a file of the log holds.

    Raises `ValueError` if that is not what it holds.

    >>> parse(3, b'{"remove":{"path":"a%20b","dataChange":true}}').removed[0].path
    'a b'
    """
    added, removed, changes = list[DataFile](), list[DataFile](), list[DataFile]()
    metadata: Metadata | None = None
    protocol: TableProtocol | None = None
    for line in filter(None, data.splitlines()):
        try:
            action = _decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from None
        if action.add is not None and action.add.data_change:
            added.append(_file(action.add))
        if action.remove is not None and action.remove.data_change:
            removed.append(_file(action.remove))
        if action.cdc is not None:
            changes.append(_file(action.cdc))
        metadata = action.meta_data or metadata
        protocol = action.protocol or protocol
    return Commit(version, tuple(added), tuple(removed), tuple(changes), metadata, protocol)


def _file(given: _File) -> DataFile:
    return DataFile(unquote(given.path), given.size, given.partition_values, given.deletion_vector)


def effects(commits: Iterable[Commit]) -> Iterator[Effect]:
    """Yield what ``commits``, in order, change in all: a file that comes and goes among them does neither."""
    net: dict[tuple[str, Vector | None], tuple[int, Effect]] = {}
    for commit in commits:
        if commit.changes:
            yield from (Effect(commit.version, diff, file, changes=True) for file in commit.changes for diff in (1, -1))
            continue
        for diff, files in ((1, commit.added), (-1, commit.removed)):
            for file in files:
                key = (file.path, file.vector)
                before, _ = net.get(key, (0, None))
                net[key] = (before + diff, Effect(commit.version, diff, file))
    for diff, effect in net.values():
        # Twice, where changes withdrew the rows between two additions of the file (RESTORE).
        yield from [replace(effect, diff=1 if diff > 0 else -1)] * abs(diff)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeltaOptions(DeltaKeys):
    """Where the table is, and how to reach the object store that it is in.  It has no ``repr``: some are secrets."""

    path: str = option(TEXT, "The table's directory, or its URL: `s3://…`, `gs://…`, `az://…`, `abfss://…`.")

    def __post_init__(self) -> None:
        """Raise `ValueError` if the path's scheme is not known."""
        check_scheme(self.path)

    @property
    def uri(self) -> str:
        """The table as deltalake takes it."""
        return self.path.removeprefix("file://")

    @property
    def local(self) -> bool:
        """Whether the table is in a directory of this machine."""
        return "://" not in self.uri


VECTORS: Final = "deletionVectors"
"""The feature of the protocol."""


class Mask(NamedTuple):
    """Which rows of a file are there, by their number; ``rest``: whether those are that lie behind."""

    rows: npt.NDArray[np.bool_]
    rest: bool = True

    def without(self, other: Mask) -> Mask:
        """Return the rows that are here and not in ``other``."""
        count = max(len(self.rows), len(other.rows))
        return Mask(self.span(0, count) & ~other.span(0, count), self.rest and not other.rest)

    def span(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Return which of so many rows are there.

        >>> Mask(np.array([True, False])).span(1, 3).tolist()
        [False, True, True]
        """
        known = self.rows[first : first + count]
        return np.concatenate([known, np.full(count - len(known), self.rest)])


ALL: Final = Mask(np.zeros(0, np.bool_))


class Stored(Protocol):
    """Where the vectors of a version are found."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def damaged(self, why: str) -> SourceError:
        """Return the error of a table whose files are not what its log says."""
        ...

    def masks(self, version: int) -> Mapping[str, Mask]:
        """Return which rows are there of the files that have vectors at ``version``, by path."""
        ...


class Masks:
    """The masks of one read; those of a version are asked for once."""

    def __init__(self, table: Stored) -> None:
        self._table = table
        self._known: dict[int, Mapping[str, Mask]] = {}

    def resolved(self, effects: Iterable[Effect]) -> Iterator[tuple[Effect, Mask | None]]:
        """Yield each effect with the rows that it is about; None: all of the file's."""
        by_path: dict[str, list[Effect]] = {}
        for effect in effects:
            if effect.changes:
                yield effect, None
            else:
                by_path.setdefault(effect.file.path, []).append(effect)
        for those in by_path.values():
            match [(effect, self._of(effect)) for effect in those]:
                case [(one, mask), (other, another)] if one.diff == -other.diff:
                    yield one, (mask or ALL).without(another or ALL)
                    yield other, (another or ALL).without(mask or ALL)
                case others:
                    yield from others

    def _of(self, effect: Effect) -> Mask | None:
        if effect.file.vector is None:
            return None
        version = effect.version if effect.diff > 0 else effect.version - 1  # what is removed was there before it
        if version not in self._known:
            self._known[version] = self._table.masks(version)
        mask = self._known[version].get(effect.file.path)
        if mask is None:
            why = f"file {effect.file.path!r} has no deletion vector at version {version}, though its log says so"
            raise self._table.damaged(why)
        return mask
