"""A place on a real PostgreSQL server: a database of the test's own, a location, and readers of them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import count

import pytest

from postgres_server import PostgresServer
from strandline.algebra.schema import Column, Schema
from strandline.errors import SourceError
from strandline.frontier import Offsets
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.sources.reader import Surroundings
from strandline.sources.readers.postgres.kind import KIND, opened
from strandline.sources.readers.postgres.ledger import Ledger
from strandline.sources.readers.postgres.options import PostgresOptions, slot_of
from strandline.sources.readers.postgres.psycopg_server import PsycopgServer
from strandline.sources.readers.postgres.reader import PARTITION
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed

SCHEMA = Schema((Column("id", "int"), Column("n", "int"), Column("v", "string")))
PROCESSES = count()


class Place:
    """A database with a publication, a location, and readers of them."""

    table = "public.t"

    def __init__(self, database, identity=""):
        self.database, self.numbers, self.readers = database, count(1), []
        self.blob, self.consensus = MemoryBlob(), MemoryConsensus()
        self.engine = ListEngine(self.blob)
        self.schemas = {self.table: SCHEMA}
        self.more, self.evolving = {}, frozenset()
        database.run(
            "CREATE TABLE t (id int PRIMARY KEY, n text, v text)",
            f"ALTER TABLE t REPLICA IDENTITY {identity or 'DEFAULT'}",
            "CREATE PUBLICATION p FOR TABLE t",
            "INSERT INTO t VALUES (0, '0', 'there at first')",
        )

    async def shard(self):
        client = PersistClient(HandClock(), CountingIds(f"p{next(PROCESSES)}"), self.blob, self.consensus)
        return await client.records(f"ledger-{self.database.name}", 1)

    @property
    def options(self):
        return understood("s", PostgresOptions, {**self.database.options, "publication": "p", **self.more})

    async def ask(self, schema):
        """Ask whether the table can have the columns ``schema``, as ALTER TABLE does."""
        schemas = {self.table: schema}
        await KIND.ask_wider(self.options, Surroundings(HandClock(), schemas, self.engine, None, None, 1, self.shard))

    async def reader(self):
        shard, options = await self.shard(), self.options
        slot = slot_of(options, shard.shard)
        server = PsycopgServer(options, options.publication, slot)
        self.readers.append(server)
        self.slot = slot
        around = Surroundings(
            HandClock(), self.schemas, self.engine, None, None, 1, None, self.evolving,
            {table: f"ALTER TABLE {table}" for table in self.schemas},
        )  # fmt: skip
        return await opened(
            server, self.engine, await Ledger.open(shard, 1), self.schemas, options, slot,
            evolving=self.evolving, gained=around.gained,item="s")  # fmt: skip

    async def produce(self, *, undecodable=False):
        n = next(self.numbers)
        with self.database.session() as session:
            session.execute("INSERT INTO t VALUES (%s, %s, 'a')", (2 * n, str(n)))
            session.execute("INSERT INTO t VALUES (%s, %s, NULL)", (2 * n + 1, "x" if undecodable else str(n)))
            session.execute("UPDATE t SET v = 'b' WHERE id = %s", (2 * n,))

    async def break_promise(self):
        self.database.run(
            f"SELECT pg_drop_replication_slot('{self.slot}')",
            f"SELECT pg_create_logical_replication_slot('{self.slot}', 'pgoutput')",
        )

    def standing(self, what):
        ((found,),) = self.database.run(f"SELECT {what} FROM pg_replication_slots WHERE slot_name = '{self.slot}'")
        return found

    async def close(self):
        for server in self.readers:
            await server.close()


@pytest.fixture
def database(postgres_server: PostgresServer):
    """A database of the test's own."""
    with postgres_server.database() as made:
        yield made


@pytest.fixture
def place(database):
    """A keyed table."""
    made = Place(database)
    yield made
    asyncio.run(made.close())


@pytest.fixture
def full(database):
    """A table whose rows are said as they were."""
    made = Place(database, "FULL")
    yield made
    asyncio.run(made.close())


def up_to(position):
    """The offsets that cover the log before a position."""
    return Offsets({PARTITION: position})


async def rows(place, reader, *slices, table=None):
    """The records of slices, without what is None."""
    found = listed(await reader.read(slices, table=table or place.table, locate=True)).rows
    return [{name: value for name, value in row.items() if value is not None} for row in found]


async def begin(place, reader, table=None, time=1):
    """The slice of a first step."""
    begun = await reader.snapshot(table or place.table)
    return Slice(time, NOTHING_READ, (await reader.upstream_frontier()).join(begun))


async def after(reader, upper, time=2):
    """The slice of all that came since."""
    return Slice(time, upper, await reader.upstream_frontier())


@asynccontextmanager
async def refused(what):
    """Expect a definite error that says ``what``."""
    with pytest.raises(SourceError, match=what):
        yield
