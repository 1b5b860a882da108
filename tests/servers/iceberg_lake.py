"""An Iceberg table in a directory, as pyiceberg writes it, with the version hint that Hadoop's tables have.

No catalog that needs a server or a database is there for it: the directory is its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import CommitTableResponse, StaticTable, Table

NAME = ("db", "t")


class DirectoryCatalog(NoopCatalog, MetastoreCatalog):
    """A catalog of the one table in ``root``."""

    def __init__(self, root: Path) -> None:
        super().__init__("test", warehouse=f"file://{root}")
        self.root = root

    def create_table(
        self, identifier: Any, schema: Any, partition_spec: PartitionSpec | None = None, **properties: str
    ) -> Table:
        given = {} if partition_spec is None else {"partition_spec": partition_spec}
        return self._save(self._create_staged_table(identifier, schema, str(self.root), properties=properties, **given))

    def load_table(self, identifier: Any) -> Table:
        return self._table(identifier, StaticTable.from_metadata(str(self.root)).metadata_location)

    def load_namespace_properties(self, namespace: Any) -> dict[str, str]:
        return {}

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        staged = self._update_and_stage_table(self.load_table(table.name()), table.name(), requirements, updates)
        saved = self._save(staged)
        return CommitTableResponse(metadata=saved.metadata, metadata_location=saved.metadata_location)

    def _save(self, staged: Any) -> Table:
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        (self.root / "metadata" / "version-hint.text").write_text(Path(staged.metadata_location).name)
        return self._table(staged.name(), staged.metadata_location)

    def _table(self, identifier: Any, location: str) -> Table:
        found = StaticTable.from_metadata(location)
        return Table(identifier, found.metadata, location, found.io, self)


class IcebergLake:
    """The table in the directory ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(
        self, rows: pa.Table, *, schema: Any = None, partition_spec: PartitionSpec | None = None, **properties: str
    ) -> None:
        """Make the table, of these rows."""
        catalog = DirectoryCatalog(self.root)
        catalog.create_table(NAME, schema or rows.schema, partition_spec=partition_spec, **properties)
        if rows.num_rows:
            self.stored().append(rows)

    def stored(self) -> Table:
        """Return the table as it is now."""
        return DirectoryCatalog(self.root).load_table(NAME)

    def rows(self) -> pa.Table:
        """Return what pyiceberg reads from it."""
        return self.stored().scan().to_arrow()

    def metadata_path(self) -> Path:
        """Return its newest metadata file."""
        return Path(StaticTable.from_metadata(str(self.root)).metadata_location.removeprefix("file://"))
