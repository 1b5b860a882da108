"""A PostgreSQL in memory: a log of transactions in the bytes of pgoutput, one slot, and snapshots of what it holds.

It is as strict as a real server: what the slot has moved beyond is no longer sent, a change of a table that is not in
the publication at that moment never is, a snapshot dies with its reader, and every call may find the server down.  Rows
are tuples of texts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from strandline.errors import Unavailable
from strandline.sources.readers.postgres.pgoutput import KEPT, Identity, Value
from strandline.sources.readers.postgres.server import (
    Name,
    Published,
    Shape,
    SlotStanding,
    Snapshot,
    Standing,
    Take,
    UpstreamColumn,
    UpstreamTable,
)

Row = tuple[Value, ...]
BATCH: Final = 2
"""How many messages a reader is given at once: few, so that transactions span batches."""


@dataclass(frozen=True)
class Written:
    """A committed transaction: where its commit record begins and ends, and its messages between."""

    commit: int
    end: int
    messages: tuple[bytes, ...]
    contents: Mapping[str, tuple[Row, ...]]
    """What each table holds after it."""


@dataclass
class ListDatabase:
    """The server, which survives every crash of a reader."""

    tables: dict[str, UpstreamTable] = field(default_factory=dict)
    log: list[Written] = field(default_factory=list)
    at: int = 100
    slot: SlotStanding | None = None
    down: bool = False
    breaks_after: int | None = None
    """After how many messages the next peek loses its connection."""
    sent: int = 0
    """How many messages all peeks have given."""
    system: str = "1"
    created: int = 0
    """How many tables, publications, entries of one and files were made: each has a number of its own."""
    entries: dict[str, int] = field(default_factory=dict)
    """The number of the entry by which the publication has a table."""
    shapes: dict[str, Shape] = field(default_factory=dict)
    unpublished: tuple[str, ...] = ()

    def create(self, name: str, identity: Identity, **columns: str) -> None:
        """Make a table ``public.name`` of columns by type; that whose type begins with ``*`` is its key.

        It replaces one of that name, and is published.
        """
        made = tuple(
            UpstreamColumn(column, 25, -1, kind.lstrip("*"), key=kind.startswith("*"))
            for column, kind in columns.items()
        )
        self.tables[name] = UpstreamTable("public", name, identity, made, Published(frozenset()), oid=self.created)
        self.shapes[name] = Shape(
            self.created + 1, {column: (n, 1) for n, column in enumerate(columns, 1)}, highest=len(columns)
        )
        self.created += 1
        self.join(name)

    def alter(self, name: str, *columns: str, rewrites: bool) -> None:
        """Alter columns of a table; the statement ``rewrites`` its rows or does not."""
        self.created += 1
        shape = self.shapes[name]
        altered = {column: (shape.columns[column][0], self.created) for column in columns}
        file = self.created if rewrites else shape.file
        self.shapes[name] = replace(shape, file=file, columns={**shape.columns, **altered})

    def add_column(self, name: str, column: str, *, default: Value = None, rewrites: bool = False) -> None:
        """Add a column of texts to a table; its rows have the ``default``, which ``rewrites`` them or does not."""
        table, shape = self.tables[name], self.shapes[name]
        added = UpstreamColumn(column, 25, -1, "text", key=False)
        self.tables[name] = replace(table, columns=(*table.columns, added))
        self.created += 1
        number = 1 + shape.highest
        filled = shape.filled if default is None or rewrites else shape.filled | {column}
        columns = {**shape.columns, column: (number, self.created)}
        self.shapes[name] = replace(
            shape, columns=columns, filled=filled, file=self.created if rewrites else shape.file, highest=number
        )
        rows = tuple((*row, default) for row in self.contents(self.at)[name])
        self._write((), {**self.contents(self.at), name: rows})

    def rename_column(self, name: str, column: str, other: str) -> None:
        """Give a column another name."""
        table, shape = self.tables[name], self.shapes[name]
        own = {column: other}
        columns = tuple(replace(each, name=own.get(each.name, each.name)) for each in table.columns)
        self.tables[name] = replace(table, columns=columns)
        self.shapes[name] = replace(shape, columns={own.get(each, each): at for each, at in shape.columns.items()})

    def drop_column(self, name: str, column: str) -> None:
        """Drop a column: its number is given to no other."""
        table, shape = self.tables[name], self.shapes[name]
        at = [each.name for each in table.columns].index(column)
        self.tables[name] = replace(table, columns=table.columns[:at] + table.columns[at + 1 :])
        self.shapes[name] = replace(shape, columns={each: n for each, n in shape.columns.items() if each != column})
        rows = tuple(row[:at] + row[at + 1 :] for row in self.contents(self.at)[name])
        self._write((), {**self.contents(self.at), name: rows})

    def join(self, name: str) -> None:
        """Have the publication send the table's changes from now on."""
        self.entries[name] = self.created
        self.created += 1

    def leave(self, name: str) -> None:
        """Have the publication send nothing of the table from now on."""
        del self.entries[name]

    def published(self, name: str) -> Published:
        """Return how the publication has a table."""
        return Published(frozenset({str(self.entries[name])}), shape=self.shapes[name])

    def commit(self, *messages: Callable[[ListDatabase], tuple[bytes, str, Sequence[Row], Sequence[Row]]]) -> int:
        """Commit a transaction of `insert`, `update` and `delete`; return where its commit record begins."""
        contents = {name: list(rows) for name, rows in self.contents(self.at).items()}
        sent, described = [], set[str]()
        for message in messages:
            data, table, gone, came = message(self)
            if table in self.entries:
                if table not in described:
                    sent.append(self._relation(table))
                    described.add(table)
                sent.append(data)
            for row in gone:
                contents[table].remove(row)
            contents[table] += came
        return self._write(sent, {name: tuple(rows) for name, rows in contents.items()})

    def _write(self, sent: Sequence[bytes], contents: Mapping[str, tuple[Row, ...]]) -> int:
        commit, end = self.at, self.at + 8
        begin = b"B" + struct.pack(">QqI", commit, 0, 1)
        ended = b"C" + struct.pack(">BQQq", 0, commit, end, 0)
        self.log.append(Written(commit, end, (begin, *sent, ended), contents))
        self.at = end
        return commit

    def idle(self) -> None:
        """Move the log on, by what is no table's of ours."""
        self.at += 7

    def contents(self, position: int) -> Mapping[str, tuple[Row, ...]]:
        """Return what each table holds by the transactions before ``position``."""
        before = [written for written in self.log if written.commit < position]
        found: dict[str, tuple[Row, ...]] = dict.fromkeys(self.tables, ())
        return found | dict(before[-1].contents if before else {})

    def _relation(self, name: str) -> bytes:
        table = self.tables[name]
        head = b"R" + struct.pack(">I", self.oid(name)) + b"public\0" + name.encode() + b"\0"
        head += table.identity.value.encode() + struct.pack(">H", len(table.columns))
        full = table.identity is Identity.FULL
        return head + b"".join(
            bytes([full or column.key]) + column.name.encode() + b"\0" + struct.pack(">Ii", column.type_oid, -1)
            for column in table.columns
        )

    def oid(self, name: str) -> int:
        """Return the number of a table."""
        oid = self.tables[name].oid
        assert oid is not None
        return oid


def insert(name: str, row: Row) -> Callable[[ListDatabase], tuple[bytes, str, Sequence[Row], Sequence[Row]]]:
    """Return the change that adds a row."""
    return lambda database: (_head(b"I", database, name) + b"N" + _row(row), name, (), (row,))


def update(
    name: str, old: Row, new: Row, *, kept: Sequence[int] = ()
) -> Callable[[ListDatabase], tuple[bytes, str, Sequence[Row], Sequence[Row]]]:
    """Return the change of a row; columns ``kept`` are not sent."""

    def change(database: ListDatabase) -> tuple[bytes, str, Sequence[Row], Sequence[Row]]:
        table = database.tables[name]
        sent = tuple(KEPT if n in kept else value for n, value in enumerate(new))
        moved = any(column.key and old[n] != new[n] for n, column in enumerate(table.columns))
        before = _before(table, old) if table.identity is Identity.FULL or moved else b""
        return _head(b"U", database, name) + before + b"N" + _row(sent), name, (old,), (new,)

    return change


def delete(name: str, old: Row) -> Callable[[ListDatabase], tuple[bytes, str, Sequence[Row], Sequence[Row]]]:
    """Return the change that removes a row."""
    return lambda database: (_head(b"D", database, name) + _before(database.tables[name], old), name, (old,), ())


def _head(kind: bytes, database: ListDatabase, name: str) -> bytes:
    return kind + struct.pack(">I", database.oid(name))


def _before(table: UpstreamTable, old: Row) -> bytes:
    if table.identity is Identity.FULL:
        return b"O" + _row(old)
    return b"K" + _row(tuple(v if c.key else None for v, c in zip(old, table.columns, strict=True)))


def _row(values: Row) -> bytes:
    return struct.pack(">H", len(values)) + b"".join(
        b"n" if value is None else b"u" if value is KEPT else b"t" + struct.pack(">I", len(value)) + value
        for value in values
    )


class ListServer:
    """A `Server` of a `ListDatabase`."""

    def __init__(self, database: ListDatabase) -> None:
        self.database = database
        self.snapshots: list[ListSnapshot] = []

    async def standing(self, tables: Collection[Name]) -> Standing:
        """See `Server.standing`."""
        self._refuse()
        database = self.database
        there = [name for name in database.entries if ("public", name) in tables]
        published = {("public", name): database.published(name) for name in there}
        return Standing(database.system, "d", "logical", database.at, database.slot, published, database.unpublished)

    async def create_slot(self) -> None:
        """See `Server.create_slot`."""
        self._refuse()
        if self.database.slot is None:
            self.database.slot = SlotStanding("pgoutput", "d", self.database.at)

    async def drop_slot(self) -> None:
        """See `Server.drop_slot`."""
        self._refuse()
        self.database.slot = None

    async def tables(self, only: Collection[Name] | None) -> tuple[UpstreamTable, ...]:
        """See `Server.tables`."""
        self._refuse()
        tables = self.database.tables
        there = [name for name in self.database.entries if only is None or ("public", name) in only]
        return tuple(replace(tables[name], published=self.database.published(name)) for name in there)

    async def peek(self, start: int, upto: int, changes: int | None, take: Take) -> int:
        """See `Server.peek`."""
        self._refuse()
        if self.database.slot is None or self.database.slot.confirmed > start:
            raise Unavailable("the slot was moved meanwhile")
        count = 0
        for written in self.database.log:
            if start <= written.commit < upto and (changes is None or count < changes):
                for at in range(0, len(written.messages), BATCH):
                    self._break(count + at)
                    given = written.messages[at : at + BATCH]
                    take(given)
                    self.database.sent += len(given)
                count += len(written.messages)
        return count

    async def advance(self, position: int) -> None:
        """See `Server.advance`."""
        self._refuse()
        slot = self.database.slot
        assert slot is not None
        self.database.slot = replace(slot, confirmed=max(slot.confirmed, min(position, self.database.at)))

    async def snapshot(self) -> Snapshot:
        """See `Server.snapshot`."""
        self._refuse()
        self.snapshots.append(ListSnapshot(self, self.database.at))
        return self.snapshots[-1]

    async def close(self) -> None:
        """See `Server.close`."""
        for snapshot in self.snapshots:
            snapshot.lost = True

    def _break(self, count: int) -> None:
        if self.database.breaks_after is not None and count >= self.database.breaks_after:
            self.database.breaks_after = None
            raise Unavailable("the connection was lost")

    def _refuse(self) -> None:
        if self.database.down:
            raise Unavailable("the server does not answer")


class ListSnapshot:
    """See `Snapshot`."""

    def __init__(self, server: ListServer, position: int) -> None:
        self._server = server
        self.position = position
        self.lost = False

    async def tables(self, only: Collection[Name]) -> tuple[UpstreamTable, ...]:
        """See `Snapshot.tables`."""
        if self.lost:
            raise Unavailable("the snapshot is lost")
        return await self._server.tables(only)

    async def copy(self, table: UpstreamTable, columns: Sequence[str], take: Take) -> None:
        """See `Snapshot.copy`."""
        if self.lost or self._server.database.down:
            raise Unavailable("the snapshot is lost")
        names = [column.name for column in table.columns]
        for row in self._server.database.contents(self.position)[table.name]:
            wanted = (row[names.index(name)] for name in columns)
            take(
                [
                    b",".join(b"" if v is None or v is KEPT else b'"' + v.replace(b'"', b'""') + b'"' for v in wanted)
                    + b"\n"
                ]
            )
        take([])

    async def close(self) -> None:
        """See `Snapshot.close`."""
        self.lost = True
