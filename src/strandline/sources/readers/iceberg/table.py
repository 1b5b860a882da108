"""One Iceberg table as it is stored: its snapshots, files and rows; and the tables of a catalog.  Every call blocks.

Discovery proposes the tables of a catalog, or of one namespace, with their columns.

Source: the Iceberg table specification ("Snapshots", "Manifests", "Scan planning"); pyiceberg's documentation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    ValidationError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask, StaticTable, Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.typedef import Identifier

from strandline.algebra.schema import Schema
from strandline.algebra.stored import located
from strandline.connections.iceberg_answers import failed, unavailable
from strandline.connections.lake import CatalogKind, catalog_of
from strandline.errors import DefinitionError, SourceError, Unavailable, first_line
from strandline.options import without_login
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ANEW, ELSEWHERE, REDEFINED, Discovered, discovered
from strandline.sources.readers.iceberg.options import IcebergLooked, IcebergOptions
from strandline.sources.readers.tabular import declarable
from strandline.store.secret import revealed

FORMAT_MIN: Final = 2
"""Format 1 has no sequence numbers."""
OLD: Final = Problem(
    "iceberg-format-old",
    "{table} has format version {version}, which has no sequence numbers",
    Stopped.SOURCE,
    (Way("upgrade the table to format version {least}"),),
)
NO_BRANCH: Final = Problem(
    "iceberg-branch-absent",
    "{table} has no branch {branch!r}; it has {there}",
    Stopped.SOURCE,
    (Way("create the branch"), ELSEWHERE),
)
CHANGED: Final = Problem("iceberg-columns-changed", "{table} cannot be read: {why}", Stopped.SOURCE, REDEFINED)
GONE: Final = Problem(
    "iceberg-file-gone",
    "{table}: file {file!r} is gone before it was durable here; let snapshots expire later",
    Stopped.SOURCE,
    (Way("restore it"), ANEW),
)
DAMAGED: Final = Problem(
    "iceberg-file-damaged",
    "{table}: file {file!r} cannot be read: {why}",
    Stopped.SOURCE,
    (
        Way("restore it"),
        Way("once its newest snapshot can be read, define it anew", "strandline anew {item:shell} --apply"),
    ),
)
ABSENT: Final = Problem(
    "iceberg-table-absent",
    "{table} does not exist{among}",
    Stopped.SOURCE,
    (Way("create it"), ELSEWHERE),
)
NO_HINT: Final = Problem(
    "iceberg-metadata-absent",
    "{table} does not exist, or no metadata/version-hint.text says which metadata is the newest ({why})",
    Stopped.SOURCE,
    (Way("create it"), ELSEWHERE),
)
UNREADABLE: Final = Problem(
    "iceberg-table-unreadable",
    "{table} cannot be read by pyiceberg: {why}",
    Stopped.SOURCE,
    (Way("take what it does not know from the table"),),
)


@dataclass(frozen=True, slots=True)
class Portion:
    """The rows of a data file that its delete files leave: equal keys are equal rows."""

    task: FileScanTask

    @property
    def key(self) -> tuple[str, frozenset[str]]:
        """The file, and its delete files."""
        return self.task.file.file_path, frozenset(each.file_path for each in self.task.delete_files)


@dataclass(frozen=True, slots=True)
class Columns:
    """The declared columns in the table: for each, its name there, and the id that names it in every file.

    ``lacking``: those that the table lacks.
    """

    names: Mapping[str, str]
    ids: Mapping[str, int]
    lacking: frozenset[str] = frozenset()

    def without(self, names: frozenset[str]) -> Columns:
        """Return the same, as if the table lacked some of them."""
        kept = {name: own for name, own in self.names.items() if name not in names}
        return Columns(kept, self.ids, self.lacking | (names & self.names.keys()))


class StoredTable:
    """A table at a place, as it was when it was last loaded.  See the module."""

    def __init__(self, options: IcebergOptions, item: str) -> None:
        """``item``: the source's name, for what messages advise."""
        self.item = item
        self._options = options
        self._table: Table | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._options.name

    @property
    def id(self) -> str:
        """The table's own id."""
        return str(self._loaded.metadata.table_uuid)

    def load(self) -> None:
        """Ask for the newest metadata.

        Raises `SourceError` if there is no such table, or this reader does not understand it.
        """
        with self._asked():
            try:
                self._table = self._newest()
            except FileNotFoundError as error:
                raise SourceError(NO_HINT.said(table=self.name, why=first_line(error))) from error
        version = self._table.metadata.format_version
        if version < FORMAT_MIN:
            raise SourceError(OLD.said(table=self.name, version=version, least=FORMAT_MIN))

    @property
    def schema(self) -> pa.Schema:
        """The columns that the table has now."""
        return schema_to_pyarrow(self._loaded.schema(), include_field_ids=False)

    def head(self) -> Snapshot | None:
        """Return the newest snapshot of the branch; None where the table has none yet.

        Raises `SourceError` if there is no such branch.
        """
        metadata, branch = self._loaded.metadata, self._options.branch
        ref = metadata.refs.get(branch)
        if ref is None and metadata.snapshots and branch != "main":
            there = ", ".join(sorted(metadata.refs))
            raise SourceError(NO_BRANCH.said(table=self.name, branch=branch, there=there))
        return None if ref is None else metadata.snapshot_by_id(ref.snapshot_id)

    def snapshots(self) -> dict[int, Snapshot]:
        """Return the snapshots that are not expired, by their ids."""
        return {each.snapshot_id: each for each in self._loaded.metadata.snapshots}

    def columns(self, schema: Schema, known: Mapping[str, int] | None = None) -> Columns:
        """Return where the declared columns are: those with the ids ``known``, or as long as there are none, by name.

        Of those that are not known one that the table has is found by name, and it may lack the others.

        Raises `SourceError` if they cannot be read from the table.
        """
        there, stored = self._loaded.schema(), self.schema
        fields = {field.field_id: field for field in there.fields}
        try:
            if known is None:
                names = located(schema, stored)
                return Columns(names, {name: there.find_field(own).field_id for name, own in names.items()})
            names = {name: fields[own].name for name, own in known.items() if own in fields}
            added, lowered = Schema(tuple(c for c in schema if c.name not in known)), [n.lower() for n in stored.names]
            new = Schema(tuple(column for column in added if column.name.lower() in lowered))
            names |= located(new, stored)
            ids = {**known, **{name: there.find_field(names[name]).field_id for name in new.names}}
            lacking = frozenset(added.names) - names.keys()
            declared = Schema(tuple(column for column in schema if column.name not in lacking))
            located(declared, pa.schema([stored.field(own).with_name(name) for name, own in names.items()]))
            return Columns(names, ids, lacking)
        except ValueError as error:
            raise SourceError(CHANGED.said(table=self.name, why=error, item=self.item)) from error

    @property
    def version(self) -> int:
        """The number of the schema that the table has now: another one has other columns."""
        return self._loaded.schema().schema_id

    def may_have(self, written: int | None, ids: Collection[int]) -> bool:
        """Whether rows of a snapshot may have values in columns with these ids, or get a default for them.

        ``written``: the id of the schema that it was written with; None: that is not known.
        """
        if any(field.initial_default is not None for field in self._loaded.schema().fields if field.field_id in ids):
            return True
        schemas = {each.schema_id: each for each in self._loaded.metadata.schemas}
        schema = None if written is None else schemas.get(written)
        return schema is None or any(field.field_id in ids for field in schema.fields)

    def held(self, snapshot: Snapshot) -> list[Portion]:
        """Return what ``snapshot`` holds."""
        with self._asked():
            tasks = self._loaded.scan(snapshot_id=snapshot.snapshot_id).plan_files()
            return [Portion(task) for task in tasks]

    def step(self, snapshot: Snapshot) -> list[tuple[int, Portion]] | None:
        """Return the portions that come (1) and go (−1) with ``snapshot``, by its own manifests alone.

        None: delete files are there, so the manifests alone do not say it.
        """
        if snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE:
            return []
        found = []
        with self._asked():
            manifests = snapshot.manifests(self._loaded.io)
            if any(each.content == ManifestContent.DELETES for each in manifests):
                return None
            for manifest in manifests:
                if manifest.added_snapshot_id != snapshot.snapshot_id:
                    continue
                for entry in manifest.fetch_manifest_entry(self._loaded.io, discard_deleted=False):
                    if entry.snapshot_id == snapshot.snapshot_id and entry.status != ManifestEntryStatus.EXISTING:
                        diff = 1 if entry.status == ManifestEntryStatus.ADDED else -1
                        found.append((diff, Portion(FileScanTask(entry.data_file))))
        return found

    def tables(self, portion: Portion, columns: Columns) -> Iterator[pa.Table]:
        """Yield the rows of ``portion`` as tables of the declared columns.

        Warns: pyiceberg decodes a file as a whole.  Raises `SourceError` if the file is gone or is not what it was.
        """
        file = portion.task.file
        table = self._loaded
        names = list(columns.names.values())
        try:
            with self._asked(file.file_path):
                scan = ArrowScan(table.metadata, table.io, table.schema().select(*names), AlwaysTrue())
                for batch in scan.to_record_batches([portion.task]):
                    rows = pa.Table.from_batches([batch])
                    found = rows.select(names).rename_columns(list(columns.names))
                    for name in sorted(columns.lacking):
                        found = found.append_column(name, pa.nulls(found.num_rows))
                    yield found
        except pa.ArrowException as error:
            about = {"table": self.name, "file": file.file_path, "why": first_line(error)}
            raise SourceError(DAMAGED.said(**about, item=self.item)) from error

    def local_path(self, file: DataFile) -> Path | None:
        """Return the path of a Parquet file on this machine, or None."""
        parts = urlsplit(file.file_path)
        if str(file.file_format).upper().rpartition(".")[2] != "PARQUET" or parts.scheme not in {"", "file"}:
            return None
        return Path(unquote(parts.path) if parts.scheme else file.file_path)

    def _among(self) -> str:
        """Return where a table was looked for, if it may be elsewhere at the same place."""
        if self._options.catalog is not CatalogKind.SQL:
            return ""
        return f" in the catalog called {self._options.catalog_name!r} (option catalog_name)"

    @property
    def _loaded(self) -> Table:
        assert self._table is not None, "a table is loaded before anything of it is asked for"
        return self._table

    def _newest(self) -> Table:
        if self._options.path is not None:
            return StaticTable.from_metadata(self._options.path, revealed(self._options.properties))
        assert self._options.table is not None
        return catalog_of(self._options).load_table(self._options.table)

    @contextmanager
    def _asked(self, file: str = "") -> Iterator[None]:
        """Say what an answer that is none means; ``file``: what is read, if it is a data file."""
        try:
            yield
        except (NoSuchTableError, NoSuchIcebergTableError, NoSuchNamespaceError) as error:
            raise SourceError(ABSENT.said(table=self.name, among=self._among())) from error
        except FileNotFoundError as error:
            raise SourceError(GONE.said(table=self.name, file=file or first_line(error), item=self.item)) from error
        except (NotInstalledError, ValidationError, NotImplementedError) as error:
            raise SourceError(UNREADABLE.said(table=self.name, why=first_line(error))) from error
        except pa.ArrowException:
            raise
        except Exception as error:
            if failed(error):
                raise unavailable(self.name, error) from error
            if isinstance(error, ValueError):  # what pyiceberg does not support, equality deletes above all
                raise SourceError(UNREADABLE.said(table=self.name, why=first_line(error))) from error
            raise


async def find(options: IcebergLooked) -> Sequence[Discovered]:
    """Return the tables there are; one that is listed and cannot be read has a note that says why, and no columns.

    Raises `DefinitionError` if there is none, `SourceError` if one that is named cannot be read, `Unavailable` if the
    catalog does not answer.
    """
    return await asyncio.to_thread(_find, options)


def _find(options: IcebergLooked) -> list[Discovered]:
    if options.path is not None:
        return [_table(options.named(None))]
    try:
        names = sorted(_names(catalog_of(options), options.table))
    except Exception as error:
        if failed(error):
            raise unavailable(_shown(options), error) from error
        if isinstance(error, NotInstalledError | ValueError):
            raise SourceError(f"{_shown(options)} cannot be asked by pyiceberg: {first_line(error)}") from error
        raise
    if not names:
        where = "the catalog" if options.table is None else f"namespace {options.table!r}"
        raise DefinitionError(f"there is no table in {where}")
    listed = [".".join(name) for name in names]
    if listed == [options.table]:
        return [_table(options.named(options.table))]
    return [_noted(options, name) for name in listed]


def _shown(options: IcebergLooked) -> str:
    assert options.catalog is not None, "a path has no catalog"
    return f"the {options.catalog.value} catalog{f' at {without_login(options.uri)}' if options.uri else ''}"


def _names(catalog: Catalog, wanted: str | None) -> Iterator[Identifier]:
    """Yield the names of all tables, of the tables of one namespace and those within, or of the one table."""
    if wanted is None:
        for namespace in catalog.list_namespaces():
            yield from _within(catalog, namespace)
    elif catalog.namespace_exists(wanted):
        yield from _within(catalog, tuple(wanted.split(".")))
    else:
        yield tuple(wanted.split("."))


def _within(catalog: Catalog, namespace: Identifier) -> Iterator[Identifier]:
    try:
        yield from catalog.list_tables(namespace)
        for each in catalog.list_namespaces(namespace):
            yield from _within(catalog, each)
    except NoSuchNamespaceError:
        return  # it was dropped meanwhile


def _noted(options: IcebergLooked, name: str) -> Discovered:
    try:
        return _table(options.named(name))
    except (SourceError, Unavailable) as error:  # it alone: the catalog has answered just now
        return Discovered(name, Schema(()), {"table": name}, str(error))


def _table(options: IcebergOptions) -> Discovered:
    place = {"path": options.path, "table": options.table}
    said = {name: text for name, text in place.items() if text is not None}
    (name,) = said.values()
    stored = StoredTable(options, name)
    stored.load()
    return discovered(name, declarable(stored.schema, stored.columns), said)
