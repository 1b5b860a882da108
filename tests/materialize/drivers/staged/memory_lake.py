"""A lake in memory: the smallest format of tables, for what all formats share."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa

from strandline.materialize.driver import Constraint, ConstraintKind, DriverSpec
from strandline.materialize.drivers.staged import parquet
from strandline.materialize.drivers.staged.driver import StagedDriver
from strandline.materialize.drivers.staged.session import StagedSession
from strandline.materialize.drivers.staged.table import Change, Piece, Shape, Snapshot, arrow_schema
from strandline.materialize.protocol.holds import EVERYTHING, Holds
from strandline.materialize.protocol.task import Checkpoint
from strandline.testing.doubles import CountingIds


@dataclass
class Version:
    """What a commit makes of a table."""

    number: int
    shape: Shape
    owner: str
    reached: dict[str, int]
    pieces: tuple[Piece, ...]


@dataclass
class MemoryTable:
    """One table: its files, and its newest version.  ``before``: called before each commit."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    newest: Version | None = None
    before: Callable[[], None] = lambda: None

    @property
    def place(self) -> MemoryTable:
        return self

    # -- Place
    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        sink = io.BytesIO()
        yield sink
        assert name not in self.files, "a file is written once"
        self.files[name] = sink.getvalue()

    def open(self, name: str) -> io.BytesIO:
        if name not in self.files:
            raise FileNotFoundError(name)
        return io.BytesIO(self.files[name])

    def size(self, name: str) -> int:
        if name not in self.files:
            raise FileNotFoundError(name)
        return len(self.files[name])

    def remove(self, name: str) -> None:
        self.files.pop(name, None)

    def below(self, directory: str) -> list[str]:
        return sorted(name for name in self.files if name.startswith(f"{directory}/"))


class MemoryFormat:
    """`Table` over a `MemoryTable`: they are two, because both have a call ``create``."""

    joins = False

    def __init__(self, stored: MemoryTable) -> None:
        self.stored = stored
        self.name = f"table {stored.name!r}"
        self.place = stored

    def snapshot(self, writer: str) -> Snapshot | None:
        now = self.stored.newest
        if now is None:
            return None
        return Snapshot(now.number, now.shape, now.owner, now.reached.get(writer, 0), now.pieces)

    def create(self, shape: Shape, owner: str) -> bool:
        if self.stored.newest is not None:
            return False
        self.stored.newest = Version(0, shape, owner, {}, ())
        return True

    def own(self, seen: Snapshot, owner: str, added: Shape) -> bool:
        return self._next(seen, shape=(*seen.shape, *added), owner=owner)

    def recreate(self, seen: Snapshot, shape: Shape, owner: str) -> bool:
        return self._next(seen, shape=shape, owner=owner, pieces=())

    def commit(self, seen: Snapshot, change: Change) -> bool:
        self.stored.before()
        kept = tuple(each for each in seen.pieces if each not in change.removed)
        assert self.stored.newest is not None
        reached = {**self.stored.newest.reached, change.writer: change.number}
        return self._next(seen, reached=reached, pieces=(*kept, *change.added))

    def write(self, name: str, rows: Iterator[pa.Table], shape: Shape) -> Piece | None:
        rows_ = parquet.write(self.stored, name, rows, arrow_schema(shape))
        return Piece(name, rows_, self.stored.size(name)) if rows_ else None

    def read(self, piece: Piece, shape: Shape, columns: Sequence[str]) -> Iterator[pa.Table]:
        return parquet.read(self.stored, piece.name, arrow_schema(shape), columns)

    def _next(self, seen: Snapshot, **changes: Any) -> bool:
        now = self.stored.newest
        assert now is not None
        if seen.token != now.number:
            return False
        self.stored.newest = Version(**{**vars(now), "number": now.number + 1, **changes})
        return True


class MemoryLake:
    """`Lake`, and an endpoint for the contract of drivers."""

    fences = True

    def __init__(self, session: type[StagedSession] = StagedSession, form: type[MemoryFormat] = MemoryFormat) -> None:
        self.tables: dict[str, MemoryTable] = {}
        self._session = session
        self._form = form
        self._owners = count()

    def table(self, resource: str) -> MemoryFormat:
        return self._form(self.tables.setdefault(resource, MemoryTable(resource)))

    def stored(self, shape: Shape) -> Shape:
        return shape

    @property
    def holds(self) -> Holds:
        """See `Lake.holds`."""
        return EVERYTHING

    def verdict(self, name: str, kind: str) -> Constraint:
        return Constraint(ConstraintKind.FIELD_OPTIONAL, "stored as it is")

    def driver(self) -> StagedDriver:
        return StagedDriver(DriverSpec({}, {}, ""), self, CountingIds(f"o{next(self._owners)}"), self._session)

    def rows(self, table: str) -> list[dict[str, Any]]:
        stored = self.table(table)
        seen = stored.snapshot("")
        if seen is None:
            return []
        names = [name for name, _ in seen.shape]
        return [
            row for piece in seen.pieces for some in stored.read(piece, seen.shape, names) for row in some.to_pylist()
        ]

    @property
    def lake(self) -> MemoryLake:
        return self

    def ordered(self, resource: str, pieces: Sequence[Piece]) -> Sequence[Piece]:
        return pieces

    def keep(self) -> Callable[[], None]:
        """See `Loses`."""
        kept = {name: (dict(table.files), table.newest) for name, table in self.tables.items()}

        def put_back() -> None:
            for name, table in self.tables.items():
                files, table.newest = kept.get(name, ({}, None))
                table.files.clear()
                table.files.update(files)

        return put_back

    def checkpoint(self, name: str) -> Checkpoint | None:
        return None
