"""An Iceberg table in a directory, as pyiceberg writes it, with the version hint that Hadoop's tables have.

No catalog that needs a server or a database is there for it: the directory is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import CommitTableResponse, StaticTable, Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

NAME = ("db", "t")


class DirectoryCatalog(NoopCatalog, MetastoreCatalog):
    """A catalog of the one table at ``location``; ``properties``: what its object store needs."""

    def __init__(self, location: str, properties: Mapping[str, str]) -> None:
        super().__init__("test", **properties)
        self.location = location
        self.given = dict(properties)

    def create_table(
        self, identifier: Any, schema: Any, partition_spec: PartitionSpec | None = None, **properties: str
    ) -> Table:
        given = {} if partition_spec is None else {"partition_spec": partition_spec}
        return self._save(self._create_staged_table(identifier, schema, self.location, properties=properties, **given))

    def load_table(self, identifier: Any) -> Table:
        return self._table(identifier, StaticTable.from_metadata(self.location, self.given).metadata_location)

    def load_namespace_properties(self, namespace: Any) -> dict[str, str]:
        return {}

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        staged = self._update_and_stage_table(self.load_table(table.name()), table.name(), requirements, updates)
        saved = self._save(staged)
        return CommitTableResponse(metadata=saved.metadata, metadata_location=saved.metadata_location)

    def _save(self, staged: Any) -> Table:
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        hint = staged.io.new_output(f"{self.location}/metadata/version-hint.text")
        with hint.create(overwrite=True) as file:
            file.write(Path(staged.metadata_location).name.encode())
        return self._table(staged.name(), staged.metadata_location)

    def _table(self, identifier: Any, location: str) -> Table:
        found = StaticTable.from_metadata(location, self.given)
        return Table(identifier, found.metadata, location, found.io, self)


class IcebergLake:
    """The table in the directory ``root``, or at the URL ``location``."""

    def __init__(self, root: Path, location: str | None = None, properties: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.catalog = DirectoryCatalog(location or str(root), properties or {})

    def create(
        self, rows: pa.Table, *, schema: Any = None, partition_spec: PartitionSpec | None = None, **properties: str
    ) -> None:
        """Make the table, of these rows."""
        self.catalog.create_table(NAME, schema or rows.schema, partition_spec=partition_spec, **properties)
        if rows.num_rows:
            self.stored().append(rows)

    def stored(self) -> Table:
        """Return the table as it is now."""
        return self.catalog.load_table(NAME)

    def rows(self) -> pa.Table:
        """Return what pyiceberg reads from it."""
        return self.stored().scan().to_arrow()

    def metadata_path(self) -> Path:
        """Return its newest metadata file."""
        return Path(StaticTable.from_metadata(str(self.root)).metadata_location.removeprefix("file://"))


class DeleteManifestWriter(ManifestWriterV2):
    """Writes manifests of delete files, which pyiceberg reads and does not write."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def commit_deletes(lake: IcebergLake, rows: pa.Table, content: DataFileContent) -> None:
    """Commit a snapshot with one more delete file: of these rows."""
    stored = lake.stored()
    metadata, parent = stored.metadata, stored.current_snapshot()
    number = metadata.last_sequence_number + 1
    own = 1_000 + number
    path = lake.root / "data" / f"deletes-{number}.parquet"
    pq.write_table(rows, path)
    file = DataFile.from_args(
        content=content,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[1] if content == DataFileContent.EQUALITY_DELETES else None,
    )
    output = stored.io.new_output(f"file://{lake.root}/metadata/deletes-{number}.avro")
    with DeleteManifestWriter(stored.spec(), stored.schema(), output, own, "null") as writer:
        writer.add_entry(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=own, data_file=file))
    named = f"file://{lake.root}/metadata/snap-{own}.avro"
    with write_manifest_list(2, stored.io.new_output(named), own, parent.snapshot_id, number, "null") as listed:
        listed.add_manifests([*parent.manifests(stored.io), writer.to_manifest_file()])
    snapshot = Snapshot(
        snapshot_id=own,
        parent_snapshot_id=parent.snapshot_id,
        sequence_number=number,
        manifest_list=named,
        summary=Summary(Operation.DELETE),
        schema_id=metadata.current_schema_id,
    )
    updates = (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=own),
    )
    stored.catalog.commit_table(stored, (), updates)


def delete_positions(lake: IcebergLake, path: str, positions: list[int]) -> None:
    """Delete rows of a data file by their positions, as a merge on read does."""
    rows = pa.table({"file_path": pa.array([path] * len(positions)), "pos": pa.array(positions, pa.int64())})
    commit_deletes(lake, rows, DataFileContent.POSITION_DELETES)
