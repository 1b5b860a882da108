"""Iceberg tables for the contract of drivers, in a catalog that is a directory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from tests.materialize.drivers.staged.copies import kept

from strandline.materialize.drivers.iceberg.kind import KIND, IcebergLake
from strandline.materialize.drivers.staged.driver import StagedDriver
from strandline.materialize.drivers.staged.place import path_part
from strandline.materialize.drivers.staged.session import StagedSession
from strandline.materialize.drivers.staged.table import Piece
from strandline.materialize.protocol.task import Checkpoint
from strandline.testing.doubles import CountingIds

SNAPSHOTS_MAX = 10


class FolderCatalog(NoopCatalog, MetastoreCatalog):
    """A catalog in this process: it keeps which metadata file of each table is the newest, and checks requirements.

    As a diligent user does, it has old snapshots expire: pyiceberg copies all of them several times in each commit.
    """

    def __init__(self, root: Path) -> None:
        super().__init__("test", warehouse=f"file://{root}")
        self._root = root
        self._newest: dict[tuple[str, ...], str] = {}
        self._lock = threading.RLock()

    def create_namespace_if_not_exists(self, namespace: Any, properties: Any = None) -> None:
        return None

    def create_table(self, identifier: Any, schema: Any, *given: Any, properties: Any = None, **more: Any) -> Table:
        with self._lock:
            name = self.identifier_to_tuple(identifier)
            if name in self._newest:
                raise TableAlreadyExistsError(str(name))
            location = f"file://{self._root}/{'/'.join(name)}-{len(list(self._root.rglob('*.json')))}"
            staged = self._create_staged_table(identifier, schema, location, properties=properties or {})
            self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
            self._newest[name] = staged.metadata_location
            return self.load_table(identifier)

    def load_namespace_properties(self, namespace: Any) -> dict[str, str]:
        return {}

    def load_table(self, identifier: Any) -> Table:
        name = self.identifier_to_tuple(identifier)
        if name not in self._newest:
            raise NoSuchTableError(str(name))
        location = self._newest[name]
        io = self._load_file_io(location=location)
        return Table(name, FromInputFile.table_metadata(io.new_input(location)), location, io, self)

    def keep(self) -> Callable[[], None]:
        """Copy all tables; what is returned puts the copy in their place."""
        newest, put_back = dict(self._newest), kept(self._root)

        def back() -> None:
            with self._lock:
                put_back()
                self._newest = newest

        return back

    def drop_table(self, identifier: Any) -> None:
        del self._newest[self.identifier_to_tuple(identifier)]

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        with self._lock:
            now = self.load_table(table.name())
            staged = self._update_and_stage_table(now, table.name(), requirements, updates)
            if self._newest[table.name()] != now.metadata_location:
                raise CommitFailedException(str(table.name()))
            metadata = staged.metadata
            if len(metadata.snapshots) > SNAPSHOTS_MAX:
                kept = {"snapshots": metadata.snapshots[-1:], "snapshot_log": metadata.snapshot_log[-1:]}
                metadata = metadata.model_copy(update={**kept, "metadata_log": []})
            self._write_metadata(metadata, staged.io, staged.metadata_location)
            self._newest[table.name()] = staged.metadata_location
            return CommitTableResponse(metadata=metadata, metadata_location=staged.metadata_location)


class IcebergEndpoint:
    """The tables of a namespace of a catalog."""

    fences = True
    unnameable = frozenset({"nul\0nul"})
    unholdable = (
        "date before Christ", "date of year 0", "date after 9999", "last date", "time before Christ", "time after 9999",
        "last time", "dates in an array", "times in a struct",
    )  # fmt: skip

    def __init__(
        self,
        opens: Callable[[], Catalog],
        namespace: str = "shop",
        session: type[StagedSession] = StagedSession,
    ) -> None:
        self.catalog = opens()
        self.namespace = namespace
        self.lake = IcebergLake(lambda: self.catalog, namespace)
        self._session = session
        self._owners = count()

    def driver(self) -> StagedDriver:
        return StagedDriver(KIND.spec, self.lake, CountingIds(f"o{next(self._owners)}"), self._session)

    def stored(self, table: str) -> Table:
        """Return a table as pyiceberg sees it."""
        return self.catalog.load_table((self.namespace, path_part(table)))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return what pyiceberg reads."""
        try:
            found: list[dict[str, Any]] = self.stored(table).scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return []
        return found

    def ordered(self, resource: str, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return the pieces in the order in which snapshots added them."""
        table = self.stored(resource)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        entries = [
            (entry.sequence_number or 0, entry.data_file.file_path)
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
        ]
        there = {f"{table.location()}/{piece.name}": piece for piece in pieces}
        return [there[path] for _, path in sorted(entries)]

    def keep(self) -> Callable[[], None]:
        """See `Loses`."""
        assert isinstance(self.catalog, FolderCatalog), "what a server's catalog holds is not a test's to take away"
        return self.catalog.keep()

    def checkpoint(self, name: str) -> Checkpoint | None:
        return None
