"""Listed: what SHOW and DESCRIBE answer, from the definitions alone: no store is read and nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from strandline.algebra.arrow_types import arrow_schema
from strandline.algebra.notation import within
from strandline.algebra.schema import Column, Schema
from strandline.controller.introspection.definition import definition, named
from strandline.controller.language.showing import Show, Shown
from strandline.controller.location.catalog import Catalog, unknown
from strandline.controller.location.items import (
    SUBSCRIBED,
    Collected,
    Connection,
    IndexItem,
    InstanceItem,
    Item,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    Table,
    View,
    connections_of,
    kind_of,
)
from strandline.errors import DefinitionError

Row: TypeAlias = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True)
class _List:
    """What is shown of each item of a kind; ``rows`` yields nothing for an item of another kind."""

    schema: Schema
    rows: Callable[[Item, Catalog], Iterator[Row]]


def schema_of(statement: Show) -> Schema:
    """Return the columns that a statement answers with."""
    match statement.what:
        case Shown.COLUMNS:
            return _DESCRIBED
        case Shown.CREATE:
            return _schema("name", "statement")
        case Shown.PLAN:
            return _schema("plan")
        case what:
            return _LISTS[what].schema


def listed(statement: Show, catalog: Catalog) -> pa.Table:
    """Return what SHOW or DESCRIBE answers.

    Raises `DefinitionError`, with its place, if there is nothing with the name, or it has no columns.
    """
    match statement.what:
        case Shown.COLUMNS:
            rows: Iterable[Row] = _described(statement, catalog)
        case Shown.CREATE:
            found = _item(statement, catalog, "item", catalog.items)
            rows = [(found.name, definition(found))]
        case what:
            items = sorted(catalog.items.items())
            rows = [
                row
                for name, item in items
                if not name.startswith(SUBSCRIBED)
                for row in _LISTS[what].rows(item, catalog)
            ]
    return table(statement, rows)


def table(statement: Show, rows: Iterable[Row]) -> pa.Table:
    """Return ``rows`` with the columns of a statement's answer."""
    found, schema = list(rows), arrow_schema(schema_of(statement))
    columns = [pa.array([row[n] for row in found], field.type) for n, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema.remove_metadata())


def _described(statement: Show, catalog: Catalog) -> list[Row]:
    known = [name for name, item in catalog.items.items() if isinstance(item, Collected)]
    found = _item(statement, catalog, "collection", known)
    if not isinstance(found, Collected):
        kind = kind_of(found)
        a = "an" if kind[0] in "aeiou" else "a"
        raise DefinitionError(
            f"{found.name!r} is {a} {kind}, which has no columns; SHOW CREATE {named(found.name)} shows what it is",
            statement.at,
        )
    comments = {} if isinstance(found, View) else found.comments
    return [(column.name, column.type, comments.get(column.name.lower())) for column in found.schema]


def _item(statement: Show, catalog: Catalog, kind: str, known: Iterable[str]) -> Item:
    found = catalog.find(statement.name)
    if found is None:
        with within(statement.at):
            raise unknown(kind, statement.name, known)
    return found


def _tables(item: Item, catalog: Catalog) -> Iterator[Row]:
    match item:
        case Table():
            yield item.name, None, item.keep_history
        case SourceTable():
            source = catalog.find(item.source)
            yield item.name, item.source if source is None else source.name, item.keep_history


def _sources(item: Item, catalog: Catalog) -> Iterator[Row]:
    if isinstance(item, Source | SharedSource):
        feeds = [
            each.name
            for each in catalog.items.values()
            if isinstance(each, SourceTable) and each.source == item.name.lower()
        ]
        by = _names(connections_of(item.options).values(), catalog)
        yield item.name, item.connector, by, ", ".join(feeds) if feeds else None, _at(item.instance, catalog)


def _views(item: Item, catalog: Catalog) -> Iterator[Row]:
    if isinstance(item, View):
        refresh = None if item.refresh is None else str(item.refresh.clause)
        yield item.name, _names(item.imports, catalog), refresh, _at(item.instance, catalog)


def _materializations(item: Item, catalog: Catalog) -> Iterator[Row]:
    if isinstance(item, Materialization):
        collections = _names((bound.collection for bound in item.bindings), catalog)
        yield item.name, item.endpoint, collections, _at(item.instance, catalog)


def _indexes(item: Item, catalog: Catalog) -> Iterator[Row]:
    if isinstance(item, IndexItem):
        key = ", ".join(map(named, item.key))
        yield item.name, _names((item.collection,), catalog), key, _at(item.instance, catalog)


def _collections(item: Item, _: Catalog) -> Iterator[Row]:
    if isinstance(item, Collected):
        yield item.name, kind_of(item), len(item.columns)


def _connections(item: Item, _: Catalog) -> Iterator[Row]:
    if isinstance(item, Connection):
        yield item.name, item.system


def _instances(item: Item, _: Catalog) -> Iterator[Row]:
    if isinstance(item, InstanceItem):
        yield item.name, ", ".join(f"{name} {address}" for name, address in item.replicas.items()) or None


def _names(known: Iterable[str], catalog: Catalog) -> str | None:
    """Return items by name, as their authors wrote them; None: there are none."""
    found = [(name, catalog.find(name)) for name in dict.fromkeys(known)]
    return ", ".join(name if item is None else item.name for name, item in found) or None


def _at(instance: str, catalog: Catalog) -> str | None:
    return _names([instance] if instance else [], catalog)


def _schema(*names: str) -> Schema:
    return Schema(tuple(Column(name, "string") for name in names))


_DESCRIBED: Final = _schema("column", "type", "comment")
_LISTS: Final[Mapping[Shown, _List]] = {
    Shown.TABLES: _List(_schema("name", "source", "keep_history"), _tables),
    Shown.SOURCES: _List(_schema("name", "connector", "connections", "tables", "instance"), _sources),
    Shown.VIEWS: _List(_schema("name", "reads", "refresh", "instance"), _views),
    Shown.MATERIALIZATIONS: _List(_schema("name", "endpoint", "collections", "instance"), _materializations),
    Shown.INDEXES: _List(_schema("name", "collection", "columns", "instance"), _indexes),
    Shown.COLLECTIONS: _List(Schema((*_schema("name", "kind"), Column("columns", "int"))), _collections),
    Shown.CONNECTIONS: _List(_schema("name", "system"), _connections),
    Shown.INSTANCES: _List(_schema("name", "replicas"), _instances),
}
"""What SHOW says of all items of a kind."""
