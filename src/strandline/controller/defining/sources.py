"""Sources: CREATE CONNECTION, CREATE SOURCE and CREATE TABLE … FROM SOURCE, checked before anything durable changes.

What is stored is what was written: a source's ``connection`` names it, and the connection's options are added when the
source is commanded (`controller/commanded.py`).  So a connection that is replaced is used at once, by all its sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import msgspec

from strandline.algebra.notation import within
from strandline.algebra.schema import Column, Schema
from strandline.controller.commanded import command, runs_in
from strandline.controller.defining.definitions import (
    KINDS,
    add,
    columns_of,
    instance_of,
    keeping,
    refuse_secrets,
    taken,
)
from strandline.controller.defining.ground import Ground
from strandline.controller.language import statements
from strandline.controller.language.clauses import INCLUDE, INCLUDED
from strandline.controller.location import on_error
from strandline.controller.location.catalog import Catalog, unknown
from strandline.controller.location.items import Connection, Fed, SharedSource, Source, SourceTable, connections_of
from strandline.errors import DefinitionError
from strandline.instance.commands import RunIngestion

Configured: TypeAlias = statements.CreateConnection | statements.CreateSource | statements.CreateSourceTable


async def create_connection(core: Ground, statement: statements.CreateConnection) -> None:
    """CREATE CONNECTION.  One that replaces another is used by that one's sources from now on.

    Raises `DefinitionError` if the name is taken, the kind or an option is not known, an option is a secret itself; or
    a source that uses the connection cannot be with the new one.
    """
    present = core.catalog.find(statement.name)
    if not (statement.replaces and isinstance(present, Connection)) and taken(core, statement, Connection):
        return
    with at_option(statement):
        refuse_secrets("connection", statement.name, statement.options)
        core.assembly.connectors.check_connection(statement.name, statement.system, statement.options)
    made = Connection(statement.name, statement.system, statement.options)
    after = core.catalog.with_item(made)
    with within(statement.at):
        for name in core.catalog.dependents(statement.name):
            check_again(core, after, name)
    users = core.catalog.dependents(statement.name)
    # Also if the text is the same: a reference may lead to another password now.
    await _open_anew(core, users, lambda catalog: catalog.with_item(made))


async def retry(core: Ground, name: str) -> str:
    """Open a source anew, with a fresh reader, so that the next tick asks its upstream at once; return its name.

    ``name``: the source's, or that of a table of it.  Where that fails, it is the source's problem.

    Raises `DefinitionError` with candidates if there is no such source, `InvalidUsage` if this environment does not
    write, and what a store raises that does not take it.
    """
    core.require_writing()
    found = core.catalog.find(name)
    source = core.catalog.find(found.source) if isinstance(found, SourceTable) else found
    if not isinstance(source, Source | SharedSource):
        known = [n for n, item in core.catalog.items.items() if isinstance(item, Source | SharedSource | SourceTable)]
        raise unknown("source", name, known)
    await _open_anew(core, [source.name])
    return source.name


async def _open_anew(
    core: Ground, names: Iterable[str], change: Callable[[Catalog], Catalog] = lambda catalog: catalog
) -> None:
    """Change the catalog, and have the sources called ``names`` opened anew.

    What keeps one from opening is its problem.  The catalog counts it: a replica that cannot be reached now opens them
    anew when it hears of the count.
    """
    writing, sources = core.require_writing(), [name.lower() for name in names]

    def counted(catalog: Catalog) -> Catalog:
        changed = change(catalog)
        items = dict(changed.items)
        for name in sources:
            if isinstance(source := items.get(name), Source | SharedSource):
                items[name] = msgspec.structs.replace(source, starts=source.starts + 1)
        return changed.having(items)

    await core.catalogs.change(writing.epoch, counted)
    for name in sources:
        if source := core.catalog.items.get(name):
            async with core.problems.of(name):  # it is out of ticks even if upstream does not hear of it
                await writing.stop(source)
            await writing.start(source)


def check_again(core: Ground, after: Catalog, name: str) -> None:
    """Raise `DefinitionError` if the source called ``name`` cannot be in the catalog ``after``."""
    source = after.find(name)
    assert isinstance(source, Source | SharedSource), "what a connection serves, or what was altered"
    before = core.catalog.find(name)
    assert isinstance(before, Source | SharedSource), "it is there"
    own, had = (
        on_error.others(source.name, connected(core, catalog, each), on_error.SourceOptions)
        for catalog, each in ((after, source), (core.catalog, before))
    )
    schema = source.schema if isinstance(source, Source) else None
    core.assembly.connectors.check(source.name, source.connector, own, schema, _others(after, source), had)


def _others(catalog: Catalog, source: Source | SharedSource) -> dict[str, dict[str, str]]:
    """Return the options of the other sources of its connector, by name."""
    others = [each for each in catalog.sources_of(source.connector) if each.name.lower() != source.name.lower()]
    return {
        other.name: on_error.others(other.name, catalog.source_options(other), on_error.SourceOptions)
        for other in others
    }


async def create_source(core: Ground, statement: statements.CreateSource) -> None:
    """CREATE SOURCE, with columns or without.

    Raises `DefinitionError` if the name is taken; a type, an option, a connection or the instance is not known; an
    option is given by a connection already; the connector wants columns where there are none, or the other way round;
    the source cannot be beside another one; or this process, which is to read it, sees that there is nothing to read.
    """
    if taken(core, statement, KINDS["source"]):
        return
    fresh, instance = core.assembly.ids.fresh, instance_of(core.catalog, statement)
    with at_option(statement):
        refuse_secrets("source", statement.name, statement.options)
        shared = SharedSource(statement.name, statement.connector, statement.options, remap="", progress="")
        own = on_error.others(statement.name, connected(core, core.catalog, shared), on_error.SourceOptions)
    schema = schema_of(core, statement)
    with at_option(statement):
        core.assembly.connectors.check(statement.name, statement.connector, own, schema, _others(core.catalog, shared))
        if not instance:  # an instance's replicas may be on machines that have what this one lacks
            await core.assembly.connectors.ask(statement.name, statement.connector, own)
    if schema is None:
        with within(statement.keep_history_at):
            if statement.keep_history is not None:
                raise DefinitionError("KEEP HISTORY FOR is said of each table of this source, and not of the source")
        await add(core, SharedSource(shared.name, shared.connector, shared.options, fresh("s"), fresh("s"), instance))
        return
    source = Source(
        statement.name,
        columns_of(schema),
        fresh("s"),
        statement.connector,
        statement.options,
        remap=fresh("s"),
        progress=fresh("s"),
        instance=instance,
    )
    await add(core, keeping(source, statement))


async def create_source_table(core: Ground, statement: statements.CreateSourceTable) -> None:
    """CREATE TABLE … FROM SOURCE.

    Raises `DefinitionError` if the name is taken; there is no such source, or it is a collection itself; a type or an
    option is not known; what it refers to is there already; or the connector, or upstream if it answers, refuses it.
    """
    if taken(core, statement, SourceTable):
        return
    with within(statement.source_at or statement.at):
        source, called = _shared(core.catalog, statement.source), core.assembly.connectors.called
        for other in core.catalog.fed_by(statement.source):
            if called(source.connector, other.reference) == called(source.connector, statement.reference):
                raise DefinitionError(f"table {other.name!r} is {other.reference!r} of {source.name!r} already")
    with at_option(statement):
        if left := on_error.others(statement.name, statement.options, on_error.SourceOptions):
            known = ", ".join(("reference", *sorted(on_error.names(on_error.SourceOptions))))
            raise DefinitionError(f"option {min(left)!r} is not known; a table of a source takes {known}")
    with within(statement.columns_at):
        schema = core.assembly.analyst.parse_ddl(statement.columns)
    table = SourceTable(
        statement.name,
        columns_of(schema),
        core.assembly.ids.fresh("s"),
        source.name.lower(),
        statement.reference,
        statement.options,
    )
    with at_option(statement):
        await require_readable(core, table, schema)
    await add(core, keeping(table, statement))


async def require_readable(core: Ground, item: Source | SourceTable, schema: Schema) -> None:
    """Raise `DefinitionError` if a source, or its table, cannot have the columns ``schema``.

    That is for its connector to say, and for upstream, if it answers.
    """
    connectors = core.assembly.connectors
    if isinstance(item, Source):
        own = on_error.others(item.name, core.catalog.source_options(item), on_error.SourceOptions)
        connectors.check(item.name, item.connector, own, schema, _others(core.catalog, item))
        return
    source = _shared(core.catalog, item.source)
    own = on_error.others(source.name, core.catalog.source_options(source), on_error.SourceOptions)
    connectors.check_table(item.name, source.connector, own, item.reference, schema)
    await connectors.ask_table(item.name, source.connector, own, item.reference, schema)


async def require_wider(core: Ground, present: Fed, after: Catalog) -> None:
    """Raise `DefinitionError` if what feeds ``present`` cannot read the columns that it has in the catalog ``after``.

    That is for upstream to say, if it answers and may be asked from here, and for what the source has read so far.
    """
    writing, name = core.require_writing(), runs_in(present)
    if (epoch := writing.reads_under(name)) is None:
        return
    wanted = command(after.items[name], after, writing.plans, core.config)
    assert isinstance(wanted, RunIngestion), "that is what runs for a collection that is fed"
    await core.assembly.connectors.ask_wider(wanted, core.client, epoch)


async def keep(
    core: Ground,
    item: Source | SourceTable,
    statement: statements.CreateSource | statements.CreateSourceTable,
) -> None:
    """Take over how long the history of ``item``, which is there, is kept, and its comments."""
    if (wanted := keeping(item, statement)) == item:
        return
    await core.catalogs.change(core.require_writing().epoch, lambda catalog: catalog.with_item(wanted))


def _shared(catalog: Catalog, name: str) -> SharedSource:
    found = catalog.find(name)
    if isinstance(found, Source):
        raise DefinitionError(
            f"source {found.name!r} is a collection itself; one that feeds tables is created without columns"
        )
    return catalog.one(name, SharedSource, "source")


def connected(core: Ground, catalog: Catalog, source: Source | SharedSource) -> dict[str, str]:
    """Return a source's options, with those of the connections that it names.

    Raises `DefinitionError` if there is no such connection, it is of another kind than the connector uses, or it gives
    an option that the source gives too.
    """
    named = connections_of(source.options)
    wanted = core.assembly.connectors.connections(source.connector)
    given = dict.fromkeys(source.options, "")
    for option, name in named.items():
        if option not in wanted:
            takes = f"it takes {', '.join(sorted(wanted))}" if wanted else "it uses none"
            raise DefinitionError(
                f"source {source.name!r}: option {option!r} is not known to {source.connector}; {takes}"
            )
        connection = _connection(catalog, option, name)
        if connection.system != wanted[option]:
            raise DefinitionError(
                f"option {option!r}: {connection.name!r} is a connection to {connection.system}, and a source of "
                f"{source.connector} uses one to {wanted[option]}"
            )
        for each in connection.options:
            if each in given:
                other = f"connection {given[each]!r} too" if given[each] else f"source {source.name!r} too"
                raise DefinitionError(
                    f"option {each!r} is given by connection {connection.name!r} and by {other}; leave one out"
                )
            given[each] = connection.name
    return catalog.source_options(source)


def _connection(catalog: Catalog, option: str, name: str) -> Connection:
    try:
        return catalog.one(name, Connection, "connection")
    except DefinitionError as error:
        raise DefinitionError(f"option {option!r}: {error.message}") from None


def schema_of(core: Ground, statement: statements.CreateSource) -> Schema | None:
    """Return the columns that a source has by its definition, those of metadata included; None: it is no collection.

    A column of metadata that is not among the statement's columns comes behind them.
    """
    if not statement.columns:
        return None
    with within(statement.columns_at):
        schema = core.assembly.analyst.parse_ddl(statement.columns)
    return Schema((*schema, *_included(schema, statement.options)))


def _included(schema: Schema, options: Mapping[str, str]) -> Iterator[Column]:
    there = {name.lower() for name in schema.names}
    for what, kind in INCLUDED.items():
        name = options.get(f"{INCLUDE}{what}")
        if name and name.lower() not in there:
            yield Column(name, kind)


@contextmanager
def at_option(statement: Configured) -> Iterator[None]:
    """Place an error where the option stands that it names first; else at the name of what is defined."""
    try:
        yield
    except DefinitionError as error:
        named = re.search(r"\boption '?(\w+)", error.message)
        at = statement.options_at.get(named[1]) if named else None
        raise DefinitionError(error.message, error.position or at or statement.at) from error
