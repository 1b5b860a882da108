"""Delta tables in a directory, for the contract of drivers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from tests.materialize.drivers.staged.copies import kept

from strandline.materialize.drivers.delta.kind import KIND, DeltaEndpointOptions, DeltaLake
from strandline.materialize.drivers.staged.driver import StagedDriver
from strandline.materialize.drivers.staged.place import path_part
from strandline.materialize.drivers.staged.session import StagedSession
from strandline.materialize.drivers.staged.table import Piece
from strandline.materialize.protocol.task import Checkpoint
from strandline.store.secret import revealed
from strandline.testing.doubles import CountingIds, HandClock


class DeltaEndpoint:
    """The tables below a path; ``storage``: the options of the object store that it is in."""

    fences = True
    unnameable = frozenset({"nul\0nul"})
    unholdable = ()

    def __init__(
        self, root: Path | str, session: type[StagedSession] = StagedSession, storage: Mapping[str, str] | None = None
    ) -> None:
        self.root = str(root)
        self.options = DeltaEndpointOptions(path=self.root, **(storage or {}))
        self.lake = DeltaLake(self.options, HandClock(1_700_000_000_000))
        self._session = session
        self._owners = count()

    def driver(self) -> StagedDriver:
        return StagedDriver(KIND.spec, self.lake, CountingIds(f"o{next(self._owners)}"), self._session)

    def stored(self, table: str) -> DeltaTable:
        """Return a table as deltalake sees it."""
        return DeltaTable(f"{self.root}/{path_part(table)}", storage_options=revealed(self.options.storage))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return what deltalake reads."""
        try:
            stored = self.stored(table)
        except TableNotFoundError:
            return []
        return stored.to_pyarrow_table().to_pylist()

    def files(self, table: str) -> pa_fs.FileSystem:
        """Return the table's directory."""
        uri = f"{self.root}/{path_part(table)}"
        return pa_fs.PyFileSystem(DeltaStorageHandler(uri, revealed(self.options.storage)))

    def actions(self, table: str) -> list[dict[str, Any]]:
        """Return the actions of the table's log, in their order."""
        files, found = self.files(table), list[dict[str, Any]]()
        for version in range(self.stored(table).version() + 1):
            with files.open_input_stream(f"_delta_log/{version:020}.json") as source:
                found += [json.loads(line) for line in bytes(source.read()).splitlines()]
        return found

    def ordered(self, resource: str, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return the pieces in the order in which the log added them."""
        there = {piece.name: piece for piece in pieces}
        added = [each["add"]["path"] for each in self.actions(resource) if "add" in each]
        return [there[name] for name in added if name in there]

    def keep(self) -> Callable[[], None]:
        """See `Loses`."""
        return kept(Path(self.root))

    def checkpoint(self, name: str) -> Checkpoint | None:
        return None
