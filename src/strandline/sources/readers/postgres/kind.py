"""The entry of PostgreSQL among the readers: how one is opened, and which schemas it can return."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from strandline import extras
from strandline.algebra import types
from strandline.algebra.schema import Schema
from strandline.connections.postgres import PostgresConnection
from strandline.errors import DefinitionError, SourceError, Unavailable
from strandline.plane import Staging
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ConnectionKind, Discovered, Discovery, discovered
from strandline.sources.reader import Progress, ReaderKind, Surroundings
from strandline.sources.readers.new_columns import Gained, unsaid
from strandline.sources.readers.postgres import row_values, slot
from strandline.sources.readers.postgres.added import Lacked, noted_wider, unlooked
from strandline.sources.readers.postgres.ledger import Ledger, SlotNote, not_noted
from strandline.sources.readers.postgres.options import PostgresOptions, slot_of, table_name
from strandline.sources.readers.postgres.pgoutput import Identity
from strandline.sources.readers.postgres.reader import PostgresReader
from strandline.sources.readers.postgres.server import Server, SlotInUse, UpstreamTable
from strandline.sources.readers.postgres.tables import Reading, noted
from strandline.store.clock import Clock

COLUMNS_TOGETHER: Final = Problem(
    "postgres-columns-together",
    "table {table!r} got the column {others} upstream besides, and none was read yet: which change has which is not "
    "known before the next tick",
    Stopped.COMMAND,
    (Way("add it then, or add all of them"),),
)
"""An ALTER TABLE … ADD COLUMN is refused for it."""
ASK_SECONDS_MAX: Final = 5.0
"""How long CREATE TABLE waits for an answer of the server."""
RELEASE_SECONDS_MAX: Final = 15.0
"""How long DROP SOURCE waits for the server to drop the slot."""
AGAIN_SECONDS: Final = 0.5
"""How long it waits before it asks again for a slot that a session reads."""
assert AGAIN_SECONDS < RELEASE_SECONDS_MAX


async def opened(
    server: Server,
    engine: Staging,
    ledger: Ledger,
    schemas: Mapping[str, Schema],
    options: PostgresOptions,
    name: str,
    *,
    evolving: frozenset[str] = frozenset(),
    gained: Gained = unsaid,
    item: str,
    collections: Mapping[str, str] = MappingProxyType({}),
) -> PostgresReader:
    """Return a reader of ``schemas`` through the slot ``name``; upstream is asked only of tables that are new or wider.

    A table that upstream lacks, or that cannot be read as declared, is not noted so: `PostgresReader.snapshot` or
    `read` looks at it again, and raises for that table alone.  ``item``: the source's name; ``collections``: what its
    tables are called here.

    Raises `Unavailable`, or `SourceError`: no table can be read as server, publication and slot stand.
    """
    for table, note in list(ledger.tables.items()):
        if table not in schemas and note.declared:
            await ledger.write(not_noted(table))
    new = {table: schema for table, schema in schemas.items() if ledger.of(table, schema.ddl).declared != schema.ddl}
    if new:
        names = [*map(table_name, new)]
        standing = await server.standing(())
        await ledger.refresh()
        slot.check(standing, names, ledger.slot, name, options.publication, item)
        there = await server.tables(names)
        for table, schema in new.items():
            with suppress(SourceError):
                upstream = slot.table_of(there, table_name(table), options.publication)
                known = ledger.of(table, schema.ddl)
                made = (
                    noted_wider(known, schema, upstream, collections.get(table, table))
                    if known.declared
                    else noted(table, schema, upstream)
                )
                await ledger.write(made)
    readings = [
        Reading(table, schema, ledger.of(table, schema.ddl), collections.get(table, table))
        for table, schema in schemas.items()
    ]
    return PostgresReader(
        server,
        engine,
        ledger,
        readings,
        slot_name=name,
        publication=options.publication,
        step_changes=options.step_changes,
        lacked=Lacked(server, ledger, evolving, gained),
        name=item,
    )


async def _open(options: PostgresOptions, given: Surroundings) -> PostgresReader:
    from strandline.sources.readers.postgres.psycopg_server import PsycopgServer

    shard = await given.progress()
    ledger, name = await Ledger.open(shard, given.epoch), slot_of(options, shard.shard)
    server = PsycopgServer(options, options.publication, name)
    try:
        return await opened(
            server,
            given.engine,
            ledger,
            given.schemas,
            options,
            name,
            evolving=given.evolving,
            gained=given.gained,
            item=given.name,
            collections=given.collections,
        )
    except BaseException:
        await server.close()
        raise


async def released(server: Server, note: SlotNote, others: Iterable[SlotNote], place: str, clock: Clock) -> str:
    """Drop the slot that ``note`` says is the source's own, if it is there; return a text that names it if it is left.

    ``others``: the notes of sources that are not dropped.  A slot that one of them has made by the same name is left to
    it: no two slots of a cluster have one name, so the slot of ``note`` went before.

    The source's own peek, which was cancelled a moment ago, may have the slot still: then it is asked again.
    """
    reading = ""
    try:
        async with asyncio.timeout(RELEASE_SECONDS_MAX):
            standing = await server.standing(())
            if (standing.system, standing.database) != (note.system, note.database):
                raise SourceError(f"another database answers: the slot was made on cluster {note.system}")
            theirs = any((other.system, other.name) == (note.system, note.name) for other in others)
            while standing.slot is not None and not theirs:
                try:
                    await server.drop_slot()
                except SlotInUse as error:
                    reading = str(error)
                    await clock.sleep(AGAIN_SECONDS)
                else:
                    break
    except (SourceError, Unavailable, TimeoutError) as error:
        why = str(error) or reading or f"no answer for {RELEASE_SECONDS_MAX} s"
        return (
            f"replication slot {note.name!r} is left on {place}, where it keeps the log ({why}): run "
            f"SELECT pg_drop_replication_slot('{note.name}') there, or open the location again when it answers"
        )
    return ""


async def _release(options: PostgresOptions, given: Surroundings, others: Sequence[Progress]) -> str:
    from strandline.sources.readers.postgres.psycopg_server import PsycopgServer

    note = (await Ledger.open(await given.progress(), given.epoch)).slot
    if note is None:
        return ""
    theirs = [(await Ledger.open(await progress(), given.epoch)).slot for progress in others]
    server = PsycopgServer(options, options.publication, note.name)
    try:
        return await released(server, note, filter(None, theirs), options.place, given.clock)
    finally:
        await server.close()


def _check(_: PostgresOptions, reference: str, schema: Schema) -> None:
    if not all(table_name(reference)):
        raise DefinitionError(f"{reference!r} names no table of PostgreSQL: write 'schema.name'")
    for name, kind in types.columns(schema):
        try:
            row_values.arrow(kind)
        except DefinitionError as error:
            raise DefinitionError(f"column {name!r}: {error}") from None


async def _ask(options: PostgresOptions, reference: str, schema: Schema) -> None:
    from strandline.sources.readers.postgres.psycopg_server import PsycopgServer

    server = PsycopgServer(options, options.publication, "")
    try:
        async with asyncio.timeout(ASK_SECONDS_MAX):
            table = table_name(reference)
            standing = await server.standing(())
            slot.check_publication(standing, [table], options.publication)
            slot.check_kinds(standing, options.publication)
            noted(reference, schema, slot.table_of(await server.tables([table]), table, options.publication))
    except TimeoutError:
        raise Unavailable(f"{options.place} has not answered for {ASK_SECONDS_MAX} s") from None
    finally:
        await server.close()


async def _ask_wider(options: PostgresOptions, given: Surroundings) -> None:
    from strandline.sources.readers.postgres.psycopg_server import PsycopgServer

    ledger = await Ledger.open(await given.progress(), given.epoch)
    server = PsycopgServer(options, options.publication, "")
    try:
        async with asyncio.timeout(ASK_SECONDS_MAX):
            await require_wider(server, ledger, given.schemas, options.publication, given.collections)
    except TimeoutError:
        raise Unavailable(f"{options.place} has not answered for {ASK_SECONDS_MAX} s") from None
    finally:
        await server.close()


async def require_wider(
    server: Server,
    ledger: Ledger,
    schemas: Mapping[str, Schema],
    publication: str,
    collections: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise `SourceError` if a table that is read cannot get the columns that its schema has since.

    ``collections``: what the tables are called here.
    """
    known = {table: ledger.of(table, schema.ddl) for table, schema in schemas.items()}
    wider = {table: note for table, note in known.items() if note.declared not in {"", schemas[table].ddl}}
    there = await server.tables([*map(table_name, wider)]) if wider else ()
    for table, note in wider.items():
        upstream = slot.table_of(there, table_name(table), publication)
        noted_wider(note, schemas[table], upstream, collections.get(table, table))
        if others := unlooked(note, schemas[table], upstream):
            raise SourceError(COLUMNS_TOGETHER.said(table=table, others=", ".join(others)))


async def _find(options: PostgresOptions) -> Sequence[Discovered]:
    from strandline.sources.readers.postgres.psycopg_server import PsycopgServer

    server = PsycopgServer(options, options.publication, "")
    try:
        standing = await server.standing(())
        slot.check_publication(standing, (), options.publication)
        slot.check_kinds(standing, options.publication)
        return [found_table(table) for table in await server.tables(None)]
    finally:
        await server.close()


def found_table(table: UpstreamTable) -> Discovered:
    """Return a table as something that could be read; without columns, if it cannot be read with those that can."""
    name, notes = f"{table.schema}.{table.name}", list[str]()
    if table.identity is not Identity.FULL and not any(column.key for column in table.columns):
        notes.append("it has no replica identity, so upstream refuses to update or delete its rows")
    columns = [(column.name, row_values.spark_type(column.type_name)) for column in table.columns]
    found = discovered(name, columns, {}, notes, exact=True)
    try:
        if table_name(name) != (table.schema, table.name):
            raise SourceError(f"the schema {table.schema!r} has a dot in its name, so no reference names its tables")
        noted(name, found.columns, table)
    except SourceError as error:
        return Discovered(name, Schema(()), note="; ".join(filter(None, [found.note, str(error)])))
    return found


CONNECTION: Final = ConnectionKind("postgres", PostgresConnection)
KIND: Final = ReaderKind(
    "postgres",
    PostgresOptions,
    _open,
    connections={"connection": CONNECTION},
    tables=True,
    check_table=_check,
    ask_table=_ask,
    ask_wider=_ask_wider,
    called=lambda reference: ".".join(table_name(reference)),
    discovery=Discovery(PostgresOptions, _find, (extras.POSTGRES,)),
    release=_release,
    needs=lambda _: (extras.POSTGRES,),
    counts="bytes",
)
