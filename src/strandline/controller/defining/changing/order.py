"""The order in which definitions are made: each after what it reads, and after what it waits for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

from strandline.compute.plan.sql import parse, relations, words
from strandline.controller.defining.project.settings import Defined
from strandline.controller.language.instances import CreateIndex, CreateInstance
from strandline.controller.language.statements import (
    CreateConnection,
    CreateMaterialization,
    CreateSource,
    CreateSourceTable,
    CreateTable,
    CreateView,
)
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import connections_of
from strandline.controller.location.version import successors
from strandline.errors import DefinitionError


def in_order(defined: Sequence[Defined]) -> list[Defined]:
    """Return definitions with each view after the views that it reads; else in the order given.

    Raises `DefinitionError` naming views that read each other in a circle.
    """
    views = {each.statement.name.lower(): each for each in defined if isinstance(each.statement, CreateView)}
    graph = {name: [other for other in read_by(each) if other in views] for name, each in views.items()}
    order = behind(graph, {name: each.statement.name for name, each in views.items()}, "read")
    ranked = [each for each in defined if not isinstance(each.statement, CreateView)]
    ranked.sort(key=lambda each: _RANKS[type(each.statement)])
    before = [each for each in ranked if not isinstance(each.statement, CreateIndex | CreateMaterialization)]
    return [*before, *(views[name] for name in order), *ranked[len(before) :]]


_RANKS: Final[Mapping[type, int]] = {
    CreateConnection: 0,
    CreateInstance: 0,
    CreateTable: 1,
    CreateSource: 1,
    CreateSourceTable: 2,
    CreateIndex: 3,
    CreateMaterialization: 4,
}
"""What is created before what, views left out."""


def behind(read: Mapping[str, Collection[str]], names: Mapping[str, str], how: str) -> list[str]:
    """Return the keys of ``read``, each after those that it reads; ``names``: what messages call each.

    Raises `DefinitionError` naming views that read each other in a circle; ``how``: whether they do, or would.
    """
    try:
        return list(TopologicalSorter({name: sorted(each) for name, each in read.items()}).static_order())
    except CycleError as error:
        circle = [repr(names[each]) for each in reversed(error.args[1])]
        raise DefinitionError(f"views {how} each other in a circle: {' reads '.join(circle)}") from error


def sorted_out(
    catalog: Catalog, missing: Sequence[Defined], replaced: Sequence[Defined]
) -> tuple[list[Defined], list[Defined]]:
    """Return what is created before views are replaced, and what after that, since it reads one, directly or not."""
    follows = {each.statement.name.lower() for each in replaced} | {each.replaces for each in successors(catalog)}
    before, after = [], []
    for each in missing:
        if follows.isdisjoint(read_by(each)):
            before.append(each)
        else:
            after.append(each)
            follows.add(each.statement.name.lower())
    return before, after


def read_by(defined: Defined) -> list[str]:
    """Return the names of what an item reads by its definition, in lower case."""
    match defined.statement:
        case CreateView(query=query):
            return mentions(query)
        case CreateIndex(collection=collection):
            return [collection.lower()]
        case CreateMaterialization(bindings=bindings):
            return [each.collection.lower() for each in bindings]
        case _:
            return []


def needed_by(defined: Defined) -> set[str]:
    """Return the names of what an item cannot be without by its definition, in lower case."""
    found, statement = {*read_by(defined)}, defined.statement
    match statement:
        case CreateSource(options=options):
            found |= {name.lower() for name in connections_of(options).values()}
        case CreateSourceTable(source=source):
            found.add(source.lower())
        case _:
            pass
    if isinstance(statement, CreateSource | CreateView | CreateMaterialization | CreateIndex):
        found.add(statement.instance.lower())
    return found - {""}


def mentions(sql: str) -> list[str]:
    """Return the relations that a query names, in lower case; where only Spark can read it, every word in it.

    >>> mentions("WITH b AS (SELECT * FROM c) SELECT * FROM b")
    ['c']
    """
    query = parse(sql)
    if query is None:
        return sorted({word.text.lower() for word in words(sql)})
    return sorted({table.name.lower() for table in relations(query)})
