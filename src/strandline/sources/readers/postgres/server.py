"""What the reader asks of a PostgreSQL server: the protocol, and the plain data of its answers.

`PsycopgServer` speaks it to a real one, in threads and within bounded time; a double answers from memory.  A position
in the log is a number (`pgoutput.lsn_text` writes it).

*Order*: a transaction belongs to what is before position ``n`` if its commit record begins before ``n``.  A slot goes
by the same, whatever ``n`` is, so no position has to be the end of a record.

Source: PostgreSQL's manual, "Logical Decoding Concepts", "Replication Management Functions".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from strandline.errors import Unavailable
from strandline.sources.readers.postgres.pgoutput import Identity

Name: TypeAlias = tuple[str, str]
"""A table upstream: its schema and its name."""


@dataclass(frozen=True, slots=True)
class SlotStanding:
    """A replication slot as it stands.

    ``confirmed``: what is before it is no longer sent; 0: it is being made, and goes with the session that makes it.
    ``lost``: why the server no longer has a log for it, or empty.
    """

    plugin: str
    database: str
    confirmed: int
    lost: str = ""

    @property
    def whole(self) -> bool:
        """Whether it is made: it stays until it is dropped."""
        return bool(self.confirmed)


@dataclass(frozen=True, slots=True)
class Shape:
    """Where a table's rows are kept, and by which columns.

    ``file``: a number that is another once the rows, or those of a partition, were written anew (``relfilenode``).
    ``parts``: the numbers of its partitions, of those that hold rows; empty: it has none.
    ``columns``: by name, the number of a column, which it keeps for life, and the version of its row of the catalog.
    ``highest``: how many columns it has had, with those that are gone: the highest number there is.
    ``filled``: those that were added with a default, which rows from before have without having been written.
    A statement that gives a column other values writes the rows anew and gives its columns' rows another version.  One
    that only moves the rows (VACUUM FULL) does the first alone, one that alters no value (SET DEFAULT) the second.
    """

    file: int = 0
    columns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    parts: frozenset[int] = frozenset()
    filled: frozenset[str] = frozenset()
    highest: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """How a publication has a table.

    ``entries``: the rows of the catalog by which it has it, each with its version.  What is deleted and made again is
    another entry, so while one entry is the same, the publication had the table all the time, by the same terms.
    ``partial``: an entry has a row filter or a column list.  ``shape``: of the table itself, whatever is published.
    ``unlike``: a partition whose replica identity is a key, and not that of the table, which is sent as if it were;
    empty: there is none.
    """

    entries: frozenset[str]
    partial: bool = False
    shape: Shape = field(default_factory=Shape)
    unlike: str = ""

    def goes_on(self, before: Collection[str]) -> bool:
        """Return whether all changes were sent that these entries promised ``before``, and no others."""
        if self.partial:
            return self.entries == {*before}
        return not self.entries.isdisjoint(before)


@dataclass(frozen=True, slots=True)
class Standing:
    """The server as it stands.

    ``system``: which cluster it is.  ``flushed``: how far its log is durable.  ``published``: those of the tables asked
    for that the publication has, by (schema, name); None: there is no such publication.  ``unpublished``: which kinds
    of changes (insert, update, delete, truncate) it leaves out.
    """

    system: str
    database: str
    wal_level: str
    flushed: int
    slot: SlotStanding | None
    published: Mapping[Name, Published] | None
    unpublished: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UpstreamColumn:
    """A column of a table: ``type_name`` is how the server writes its type; ``key``: it is of the replica identity.

    ``delimiter``: what stands between the elements of its values, if they are arrays.
    """

    name: str
    type_oid: int
    modifier: int
    type_name: str
    key: bool
    delimiter: str = ","


@dataclass(frozen=True, slots=True)
class UpstreamTable:
    """A table of the publication, with the columns and the rows (``where``, or all) that it publishes.

    ``about``: how many rows it may have, if the server has counted them lately.  ``oid``: its number, if it is known;
    another table of the same name has another one.
    """

    schema: str
    name: str
    identity: Identity
    columns: tuple[UpstreamColumn, ...]
    published: Published
    where: str = ""
    partitioned: bool = False
    about: int | None = None
    oid: int | None = None


class SlotInUse(Unavailable):
    """A session of the server reads the slot."""


Take = Callable[[Sequence[bytes]], None]
"""What is given messages, or rows, a few megabytes at a time.  Called in another thread, one call at a time."""


class Snapshot(Protocol):
    """The database as it was at one position of the log."""

    @property
    def position(self) -> int:
        """Exactly the transactions before it are seen."""
        ...

    async def tables(self, only: Collection[Name]) -> tuple[UpstreamTable, ...]:
        """Return those of the tables ``only`` that the publication has, as they were."""
        ...

    async def copy(self, table: UpstreamTable, columns: Sequence[str], take: Take) -> None:
        """Give the rows of ``table`` to ``take``: each as a line of CSV without its end, NULL an empty field unquoted.

        Raises `Unavailable`: the snapshot is lost; or `SourceError`: it may not be read.
        """
        ...

    async def close(self) -> None:
        """Release it upstream.  May be called twice."""
        ...


class Server(Protocol):
    """One database, one publication, one slot.

    Each call raises `Unavailable` if the server does not answer (another session has the slot, the password is wrong),
    and `SourceError` if it answers that it never will (no privilege).
    """

    async def standing(self, tables: Collection[Name]) -> Standing:
        """Return how server, slot and publication stand, and how the publication has these ``tables``."""
        ...

    async def create_slot(self) -> None:
        """Create the slot, at some position from now on.  Does nothing if it is there.

        It waits for the transactions that run upstream: `Unavailable` says so, and to ask again goes on waiting.
        """
        ...

    async def drop_slot(self) -> None:
        """Drop the slot.  Does nothing if it is not there.  Raises `SlotInUse` while a session reads it."""
        ...

    async def tables(self, only: Collection[Name] | None) -> tuple[UpstreamTable, ...]:
        """Return those of the tables ``only`` that the publication has; None: all of its tables."""
        ...

    async def peek(self, start: int, upto: int, changes: int | None, take: Take) -> int:
        """Give ``take`` the messages of exactly the transactions from ``start`` on, before ``upto``; return how many.

        They stay in the slot.  A peek that starts where an earlier one ended costs what is new, however much the slot
        holds.  ``changes``: stop after the transaction with which there are so many messages.

        Raises `Unavailable` too if the slot has moved beyond ``start`` since it was looked at.
        """
        ...

    async def advance(self, position: int) -> None:
        """Let the server forget what is before ``position``.  Does nothing if it already may."""
        ...

    async def snapshot(self) -> Snapshot:
        """Open a snapshot at some position from now on.  Waits as `create_slot` does."""
        ...

    async def close(self) -> None:
        """Close all connections, snapshots too.  May be called at any moment, twice."""
        ...
