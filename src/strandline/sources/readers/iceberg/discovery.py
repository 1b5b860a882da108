"""What there is to read in an Iceberg catalog: its tables, or those of one namespace, with their columns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NotInstalledError
from pyiceberg.typedef import Identifier

from strandline.algebra.schema import Schema
from strandline.connections.iceberg import catalog_of
from strandline.connections.iceberg_answers import failed, unavailable
from strandline.errors import DefinitionError, SourceError, Unavailable, first_line
from strandline.options import without_login
from strandline.sources.kinds import Discovered, discovered
from strandline.sources.readers.iceberg.options import IcebergLooked, IcebergOptions
from strandline.sources.readers.iceberg.table import StoredTable
from strandline.sources.readers.tabular.declared import declarable


async def find(options: IcebergLooked) -> Sequence[Discovered]:
    """Return the tables there are; one that is listed and cannot be read has a note that says why, and no columns.

    Raises `DefinitionError` if there is none, `SourceError` if one that is named cannot be read, `Unavailable` if the
    catalog does not answer.
    """
    return await asyncio.to_thread(_find, options)


def _find(options: IcebergLooked) -> list[Discovered]:
    if options.path is not None:
        return [_table(options.named(None))]
    try:
        names = sorted(_names(catalog_of(options), options.table))
    except Exception as error:
        if failed(error):
            raise unavailable(_shown(options), error) from error
        if isinstance(error, NotInstalledError | ValueError):
            raise SourceError(f"{_shown(options)} cannot be asked by pyiceberg: {first_line(error)}") from error
        raise
    if not names:
        where = "the catalog" if options.table is None else f"namespace {options.table!r}"
        raise DefinitionError(f"there is no table in {where}")
    listed = [".".join(name) for name in names]
    if listed == [options.table]:
        return [_table(options.named(options.table))]
    return [_noted(options, name) for name in listed]


def _shown(options: IcebergLooked) -> str:
    assert options.catalog is not None, "a path has no catalog"
    return f"the {options.catalog.value} catalog{f' at {without_login(options.uri)}' if options.uri else ''}"


def _names(catalog: Catalog, wanted: str | None) -> Iterator[Identifier]:
    """Yield the names of all tables, of the tables of one namespace and those within, or of the one table."""
    if wanted is None:
        for namespace in catalog.list_namespaces():
            yield from _within(catalog, namespace)
    elif catalog.namespace_exists(wanted):
        yield from _within(catalog, tuple(wanted.split(".")))
    else:
        yield tuple(wanted.split("."))


def _within(catalog: Catalog, namespace: Identifier) -> Iterator[Identifier]:
    try:
        yield from catalog.list_tables(namespace)
        for each in catalog.list_namespaces(namespace):
            yield from _within(catalog, each)
    except NoSuchNamespaceError:
        return  # it was dropped meanwhile


def _noted(options: IcebergLooked, name: str) -> Discovered:
    try:
        return _table(options.named(name))
    except (SourceError, Unavailable) as error:  # it alone: the catalog has answered just now
        return Discovered(name, Schema(()), {"table": name}, str(error))


def _table(options: IcebergOptions) -> Discovered:
    place = {"path": options.path, "table": options.table}
    said = {name: text for name, text in place.items() if text is not None}
    (name,) = said.values()
    stored = StoredTable(options, name)
    stored.load()
    return discovered(name, declarable(stored.schema, stored.columns), said)
