"""A snapshot of a real server: a transaction on a connection of its own, whose first statement has fixed what it sees.

Source: PostgreSQL's manual, "Streaming Replication Protocol" (USE_SNAPSHOT).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from strandline.sources.readers.postgres.connected import statements
from strandline.sources.readers.postgres.connected.bounded import BoundedConnection, failing, published
from strandline.sources.readers.postgres.connected.portions import portions
from strandline.sources.readers.postgres.server import Name, Take, UpstreamTable

T = TypeVar("T")


class PsycopgSnapshot:
    """See `Snapshot`: a transaction on a connection of its own."""

    def __init__(self, place: str, publication: str, connection: BoundedConnection, position: int) -> None:
        self._place = place
        self._publication = publication
        self._connection = connection
        self._guard = threading.Lock()
        self.position = position

    async def tables(self, only: Collection[Name]) -> tuple[UpstreamTable, ...]:
        """See `Snapshot.tables`."""
        return await self._call(lambda connection: published(connection, self._publication, only))

    async def copy(self, table: UpstreamTable, columns: Sequence[str], take: Take) -> None:
        """See `Snapshot.copy`."""

        def read(connection: BoundedConnection) -> None:
            query = statements.copy(table, columns, connection.encoding_of_values)
            with connection.cursor() as cursor, cursor.copy(query) as copying:
                for rows in portions(map(bytes, copying)):
                    take(rows)

        await self._call(read)

    async def close(self) -> None:
        """See `Snapshot.close`."""
        await asyncio.to_thread(self._connection.close)

    async def _call(self, call: Callable[[BoundedConnection], T]) -> T:
        def run() -> T:
            with self._guard, failing(self._place, "its snapshot", self._connection.close):
                return call(self._connection)

        return await asyncio.to_thread(run)
