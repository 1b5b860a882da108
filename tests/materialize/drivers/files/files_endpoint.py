"""Tables of files, for the contract of drivers, read as docs/endpoints/files.md says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from tests.materialize.drivers.staged.copies import kept

from strandline.materialize.drivers.files.kind import KIND, FilesEndpointOptions, FilesLake
from strandline.materialize.drivers.files.table import FilesTable
from strandline.materialize.drivers.staged.driver import StagedDriver
from strandline.materialize.drivers.staged.place import path_part
from strandline.materialize.drivers.staged.session import StagedSession
from strandline.materialize.drivers.staged.table import Piece
from strandline.materialize.protocol.task import Checkpoint
from strandline.options import understood
from strandline.testing.doubles import CountingIds, HandClock


class FilesEndpoint:
    """The tables below a path."""

    fences = True
    flat = False
    unholdable: Sequence[str] = ()

    def __init__(
        self,
        root: Path | str,
        session: type[StagedSession] = StagedSession,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.root = str(root)
        self.options = understood("files", FilesEndpointOptions, {"path": self.root, **(options or {})})
        self.clock = HandClock(1_700_000_000_000)
        self.lake = FilesLake(self.options, self.clock, CountingIds("lake"))
        self._session = session
        self._owners = count()

    def driver(self) -> StagedDriver:
        return StagedDriver(KIND.spec, self.lake, CountingIds(f"o{next(self._owners)}"), self._session)

    def table(self, name: str) -> FilesTable:
        found = self.lake.table(name)
        assert isinstance(found, FilesTable)
        return found

    def manifest(self, table: str) -> dict[str, Any] | None:
        """Return the newest manifest in a directory, by no code of the driver."""
        found = sorted((Path(self.root) / path_part(table) / "manifest").glob("*.json"))
        return json.loads(found[-1].read_text()) if found else None

    def rows(self, table: str) -> list[dict[str, Any]]:
        seen = self.table(table).snapshot("")
        if seen is None:
            return []
        names = [name for name, _ in seen.shape]
        tables = [some for piece in seen.pieces for some in self.table(table).read(piece, seen.shape, names)]
        return [row for some in tables for row in some.to_pylist()]

    def ordered(self, resource: str, pieces: Sequence[Piece]) -> Sequence[Piece]:
        return pieces

    def keep(self) -> Callable[[], None]:
        """See `Loses`."""
        return kept(Path(self.root))

    def checkpoint(self, name: str) -> Checkpoint | None:
        return None
