"""One Delta table as it is stored: its log, its snapshots, its columns, and the rows of its files.  Every call blocks.

Snapshots go through deltalake, which knows checkpoints in all their forms; the commits after a snapshot are read from
the log itself, since deltalake does not return which files a version removed.

A feature of the protocol that is not known here is refused by name: a reader that ignores one reads wrong rows.

Source: the Delta transaction log protocol ("Table features", "Column mapping", "Partition value serialization");
deltalake's documentation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import Schema
from strandline.algebra.stored import located
from strandline.errors import SourceError, Unavailable, first_line
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ANEW, ELSEWHERE
from strandline.sources.readers.delta.log import (
    CHANGE,
    Commit,
    DataFile,
    DeltaOptions,
    Effect,
    Mask,
    Metadata,
    TableProtocol,
    parse,
)
from strandline.sources.readers.tabular import without_views
from strandline.store.secret import revealed

FEATURES: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""The features of readers that are understood here."""
FEATURES_VERSION: Final = 3
"""From this version of readers on, a table names its features."""
_MODE: Final = "delta.columnMapping.mode"
_PHYSICAL: Final = "delta.columnMapping.physicalName"


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the declared columns are: for each, its name in files and partition values, and its type upstream.

    One that the table lacks has no name there.
    """

    physical: Mapping[str, str]
    kinds: Mapping[str, pa.DataType]
    mapped: bool
    """Whether names in files are others than the table's."""

    @property
    def whole(self) -> bool:
        """Whether the table has all of them."""
        return self.physical.keys() == self.kinds.keys()

    def without(self, names: Collection[str]) -> Columns:
        """Return the same, as if the table lacked some of them."""
        return replace(self, physical={name: own for name, own in self.physical.items() if name not in names})


def refusal(protocol: TableProtocol) -> str:
    """Say what of ``protocol`` is not understood; empty if nothing.

    >>> refusal(TableProtocol(3, ["timestampNtz", "catalogManaged"]))
    "its protocol has the feature 'catalogManaged', which this reader does not understand"
    """
    if protocol.min_reader_version > FEATURES_VERSION:
        return (
            f"its protocol needs a reader of version {protocol.min_reader_version}; this one is of {FEATURES_VERSION}"
        )
    unknown = sorted(set(protocol.reader_features or ()) - FEATURES)
    if unknown:
        s = "s" if len(unknown) > 1 else ""
        return f"its protocol has the feature{s} {', '.join(map(repr, unknown))}, which this reader does not understand"
    return ""


def physical_names(metadata: Metadata) -> dict[str, str]:
    """Return the name that each column has in files, by its name in the table."""
    fields: list[dict[str, Any]] = json.loads(metadata.schema_string)["fields"]
    mapped = metadata.configuration.get(_MODE, "none") != "none"
    return {each["name"]: each["metadata"].get(_PHYSICAL, each["name"]) if mapped else each["name"] for each in fields}


def columns_of(schema: Schema, metadata: Metadata, absent: Collection[str] = ()) -> Columns:
    """Return where the columns of ``schema`` are in a table of ``metadata``, which may lack those ``absent``.

    Raises `ValueError` saying why they cannot be read from it.
    """
    mode = metadata.configuration.get(_MODE, "none")
    if mode not in {"none", "name"}:
        raise ValueError(f"its columns are mapped by {mode}, which this reader does not understand")
    there = pa.schema(DeltaSchema.from_json(metadata.schema_string).to_arrow())
    known = {name.lower() for name in there.names}
    names = located(Schema(tuple(c for c in schema if c.name not in absent or c.name.lower() in known)), there)
    if mode == "name":
        for name, kind in types.columns(schema):
            if _has_struct(kind):
                raise ValueError(
                    f"column `{name}` has fields, and columns are mapped: it cannot be read by this reader"
                )
    physical = physical_names(metadata)
    return Columns(
        {name: physical[own] for name, own in names.items()},
        {name: there.field(names[name]).type if name in names else arrow(kind) for name, kind in types.columns(schema)},
        mapped=mode == "name",
    )


def _has_struct(kind: types.Type) -> bool:
    match kind:
        case types.Array(element):
            return _has_struct(element)
        case types.Struct():
            return True
        case _:
            return False


def constant(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a partition value as a value of its column: of the text that the log has, or of deltalake's value.

    >>> [constant(*given).as_py() for given in (("2024", pa.int32()), ("", pa.int32()), ("7.50", pa.decimal128(5, 2)))]
    [2024, None, Decimal('7.50')]
    """
    if value is None or value == "":
        return pa.scalar(None, kind)
    if not isinstance(value, str) or pa.types.is_string(kind):
        return pa.scalar(value, kind)
    text = pa.array([value], pa.string())
    if pa.types.is_timestamp(kind):
        zoned = value.endswith("Z") or value[10:].count("+") > 0
        read = text.cast(pa.timestamp("us", "UTC" if zoned else None))  # without a zone it is meant as UTC
        return read.cast(kind)[0]
    return text.cast(kind)[0]


_UNSUPPORTED: Final = re.compile(r"\b(unsupported|not supported)\b", re.IGNORECASE)
"""What deltalake says of a table with features that it does not know.  It has no error of its own for them."""
BATCH_ROWS: Final = 65_536
"""So many rows of a file are in memory at a time."""
_MEND: Final = Way("restore the table's files")
FORGOTTEN: Final = Problem(
    "delta-log-forgotten",
    "{table}: its log no longer has version {version}, which this source has not read; let the log last longer "
    "(delta.logRetentionDuration)",
    Stopped.SOURCE,
    (ANEW,),
)
DAMAGED: Final = Problem(
    "delta-table-damaged",
    "{table}: {what_is_damaged}",
    Stopped.SOURCE,
    (_MEND, Way("once its newest version can be read, define it anew", "strandline anew {item:shell} --apply")),
)
VACUUMED: Final = Problem(
    "delta-file-gone",
    "{table}: file {file!r} of version {version} is gone (vacuumed) before it was durable here; let removed files last "
    "longer (delta.deletedFileRetentionDuration)",
    Stopped.SOURCE,
    (_MEND, ANEW),
)
ABSENT: Final = Problem(
    "delta-table-absent",
    "{table} does not exist",
    Stopped.SOURCE,
    (Way("create it"), ELSEWHERE),
)
UNREADABLE: Final = Problem(
    "delta-table-unreadable",
    "{table} cannot be read by deltalake: {why}",
    Stopped.SOURCE,
    (Way("take the feature that it does not know from the table"),),
)


class Stamp(NamedTuple):
    """What shows that a file of the log is another one than before."""

    size: int
    mtime_ns: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The table at ``version``."""

    version: int
    metadata: Metadata
    protocol: TableProtocol
    table: DeltaTable

    @property
    def files(self) -> Iterator[DataFile]:
        """Its data files."""
        names = physical_names(self.metadata)  # as the log has partition values; deltalake has them by the table's
        for row in pa.table(self.table.get_add_actions()).to_pylist():
            values = {names[name]: value for name, value in (row.get("partition") or {}).items()}
            yield DataFile(unquote(row["path"]), row["size_bytes"], values)


class StoredTable:
    """A table at a place.  See the module."""

    def __init__(self, options: DeltaOptions, item: str) -> None:
        """``item``: the source's name, for what messages advise."""
        self.item = item
        self._uri = options.uri
        self._storage = options.storage
        self._local = options.local
        self._files: pa_fs.FileSystem | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"Delta table {self._uri!r}"

    def newest(self) -> Snapshot:
        """Return the table as it is now.  Raises `SourceError` if there is none."""
        with self._asked():
            return _snapshot(DeltaTable(self._uri, storage_options=revealed(self._storage)))

    def at(self, version: int) -> Snapshot:
        """Return the table as it was at ``version``.  Raises `SourceError` if the log does not reach back to it."""
        try:
            with self._asked():
                return _snapshot(DeltaTable(self._uri, version=version, storage_options=revealed(self._storage)))
        except (Unavailable, SourceError) as error:
            if self.stamp(version) is None:
                raise self.forgotten(version) from error
            raise

    def stamp(self, version: int) -> Stamp | None:
        """Return the stamp of a version's commit; None if it is not in the log."""
        with self._asked():
            found = self._system().get_file_info(_commit_path(version))
        return Stamp(found.size, found.mtime_ns) if found.is_file else None

    def commit(self, version: int) -> Commit | None:
        """Return a version's commit; None if it is not in the log.  Raises `SourceError` if it is not one."""
        try:
            with self._asked(), self._system().open_input_stream(_commit_path(version)) as file:
                data = file.read()
        except FileNotFoundError:
            return None
        try:
            return parse(version, data)
        except ValueError as error:
            raise self.damaged(f"the commit of version {version} cannot be read: {error}") from error

    def forgotten(self, version: int) -> SourceError:
        """Return the error of a version that the log has no more."""
        return SourceError(FORGOTTEN.said(table=self.name, version=version, item=self.item))

    def damaged(self, why: str) -> SourceError:
        """Return the error of a table whose files are not what its log says."""
        return SourceError(DAMAGED.said(table=self.name, what_is_damaged=why, item=self.item))

    def masks(self, version: int) -> dict[str, Mask]:
        """Return which rows are there of the files that have deletion vectors at ``version``, by path."""
        with self._asked():
            table = DeltaTable(self._uri, version=version, storage_options=revealed(self._storage))
            found = pa.table(table.deletion_vectors())
            root = table.table_uri.rstrip("/") + "/"
        return {
            unquote(row["filepath"].removeprefix(root)): Mask(np.asarray(row["selection_vector"], np.bool_))
            for row in found.to_pylist()
        }

    def completed(self, effect: Effect) -> Effect:
        """Return a removal with what the log may leave out there: it was said when the file was added.

        Raises `SourceError` if the log no longer says it.
        """
        before = self.at(effect.version - 1)
        for file in before.files:
            if file.path == effect.file.path:
                return replace(effect, file=replace(effect.file, size=file.size, partition=file.partition))
        raise self.damaged(f"version {effect.version} removes file {effect.file.path!r}, which was not there before it")

    def local_path(self, file: DataFile) -> Path | None:
        """Return the file's path on this machine, or None."""
        if not self._local or "://" in file.path:
            return None
        return Path(self._uri).absolute() / file.path

    def tables(
        self,
        file: DataFile,
        columns: Columns,
        version: int,
        *,
        keep: Mask | None = None,
        changes: frozenset[str] = frozenset(),
    ) -> Iterator[pa.Table]:
        """Yield the rows of ``file``, of ``version``, in bounded tables of the declared columns.

        ``keep``: only these rows.  ``changes``: it is a file of changes, and only those rows count whose change is one
        of these.

        Raises:
            SourceError: the file is gone, or is not what the log says.
        """
        if "://" in file.path:
            raise self.damaged(f"file {file.path!r} is not in the table's directory, and is not read")
        try:
            with self._asked(), self._system().open_input_file(file.path) as source:
                size = source.size()
                if file.size is not None and size != file.size:
                    raise self.damaged(f"file {file.path!r} of version {version} has {size} bytes, not {file.size}")
                yield from _rows(pq.ParquetFile(source, coerce_int96_timestamp_unit="us"), file, columns, keep, changes)
        except FileNotFoundError:
            about = {"table": self.name, "file": file.path, "version": version}
            raise SourceError(VACUUMED.said(**about, item=self.item)) from None
        except pa.ArrowException as error:
            why = f"file {file.path!r} of version {version} cannot be read: {first_line(error)}"
            raise self.damaged(why) from error

    def _system(self) -> pa_fs.FileSystem:
        if self._files is None:
            self._files = (
                pa_fs.SubTreeFileSystem(str(Path(self._uri).absolute()), pa_fs.LocalFileSystem())
                if self._local
                else pa_fs.PyFileSystem(DeltaStorageHandler(self._uri, revealed(self._storage)))
            )
        return self._files

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Say what an answer that is none means: `FileNotFoundError` is left to the caller."""
        try:
            yield
        except TableNotFoundError as error:
            raise SourceError(ABSENT.said(table=self.name)) from error
        except DeltaProtocolError as error:
            raise SourceError(UNREADABLE.said(table=self.name, why=first_line(error))) from error
        except FileNotFoundError:
            raise
        except (DeltaError, OSError) as error:
            if isinstance(error, DeltaError) and _UNSUPPORTED.search(first_line(error)):
                raise SourceError(UNREADABLE.said(table=self.name, why=first_line(error))) from error
            raise Unavailable(f"{self.name} does not answer: {first_line(error)}") from error


def _commit_path(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def _snapshot(table: DeltaTable) -> Snapshot:
    told, asked = table.metadata(), table.protocol()
    metadata = Metadata(str(told.id), table.schema().to_json(), list(told.partition_columns), dict(told.configuration))
    return Snapshot(table.version(), metadata, TableProtocol(asked.min_reader_version, asked.reader_features), table)


def _rows(
    file: pq.ParquetFile, given: DataFile, columns: Columns, keep: Mask | None, changes: frozenset[str]
) -> Iterator[pa.Table]:
    constants = {
        name: constant(given.partition[own], columns.kinds[name])
        for name, own in columns.physical.items()
        if given.partition is not None and own in given.partition
    }
    there = set(file.schema_arrow.names)
    stored = {name: own for name, own in columns.physical.items() if name not in constants and own in there}
    asked = [*dict.fromkeys(stored.values()), *([CHANGE] if changes else [])] or file.schema_arrow.names[:1]
    first = 0
    for read in file.iter_batches(BATCH_ROWS, columns=asked):
        batch = without_views(read)
        wanted = _wanted(batch, keep, first, changes)
        first += batch.num_rows
        kept = batch if wanted is None else batch.filter(wanted)
        if kept.num_rows:
            yield _table(kept, columns, stored, constants)


def _wanted(batch: pa.RecordBatch, keep: Mask | None, first: int, changes: frozenset[str]) -> pa.Array | None:
    if changes:
        return pc.is_in(batch[CHANGE], pa.array(sorted(changes)))
    if keep is None:
        return None
    return pa.array(keep.span(first, batch.num_rows))


def _table(
    batch: pa.RecordBatch, columns: Columns, stored: Mapping[str, str], constants: Mapping[str, Any]
) -> pa.Table:
    """Return the declared columns: of the file, or of its partition, or NULL where the file is older than they."""
    arrays = {
        name: batch[stored[name]]
        if name in stored
        else pa.repeat(constants[name], batch.num_rows)
        if name in constants
        else pa.nulls(batch.num_rows, kind)
        for name, kind in columns.kinds.items()
    }
    return pa.table(arrays)
