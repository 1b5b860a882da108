"""Adopted: what a catalog has got otherwise, for the log of the process that writes.

A definition may come from the project's files, from another process's `strandline apply` or statement, or from an
upstream that has got a column.  The log says each of them in one way, by the item's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from strandline.controller.location.catalog import Catalog
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
    kind_of,
)
from strandline.controller.location.version import asked_for, others, successor

_WithOptions: TypeAlias = Source | SharedSource | SourceTable | Materialization
"""What has options that may change while it is there, none of them a secret."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """One line of a log: an ``event``, and its ``facts`` by their names."""

    event: str
    facts: Mapping[str, str]


def adopted(before: Catalog, after: Catalog) -> Iterator[Adopted]:
    """Yield what ``after`` defines otherwise than ``before``: what was created, dropped, is replaced, or was altered.

    That a replacement has taken its place is `Writing.replaced`, with the time.  The views of subscriptions are left
    out.
    """
    if after is before:
        return
    was, now = _items(before), _items(after)
    moved = {name: now[to].name for name in sorted(was.keys() - now.keys()) if (to := _renamed(was[name], was, now))}
    anew = {name for name in sorted(was.keys() & now.keys()) if _is_another(was[name], now[name], before)}
    if dropped := [item.name for name, item in was.items() if (name not in now or name in anew) and name not in moved]:
        yield Adopted("applied", {"dropped": ",".join(dropped)})
    come = [item.name for name, item in now.items() if name not in was or name in anew]
    if created := [name for name in come if name not in moved.values()]:
        yield Adopted("applied", {"created": ",".join(created)})
    for name, to in moved.items():
        yield Adopted("renamed", {"of": was[name].name, "to": to})
    known = {(each.name, each.sql, each.refresh) for each in asked_for(before)}
    if fresh := [each.replaces for each in asked_for(after) if (each.name, each.sql, each.refresh) not in known]:
        yield Adopted("replacing", {"views": ",".join(now[name].name for name in fresh)})
    for name in [name for name in now if name in was and name not in anew]:
        item = now[name]
        if columns := _columns_since(was[name], item):
            yield Adopted("evolved", {"of": item.name, "columns": ", ".join(columns)})
        if said := ", ".join(_altered(was[name], item)):
            yield Adopted("altered", {"of": item.name, "what": said})


def _items(catalog: Catalog) -> dict[str, Item]:
    return {name: item for name, item in others(catalog).items() if not name.startswith(SUBSCRIBED)}


def _renamed(item: Item, was: Mapping[str, Item], now: Mapping[str, Item]) -> str:
    """Return the name, in lower case, that a table has now which is no longer called as before; empty: it is gone."""
    if not isinstance(item, Table):
        return ""
    return next((name for name in sorted(now.keys() - was.keys()) if getattr(now[name], "shard", "") == item.shard), "")


def _is_another(before: Item, after: Item, catalog: Catalog) -> bool:
    """Return whether an item was dropped and created again under its name; ``catalog``: of before.

    A view that is replaced by one with other columns has that one's shard.
    """
    if isinstance(before, View) and successor(before.name) in catalog.items:
        return not isinstance(after, View)
    return (kind_of(before), _identity(before)) != (kind_of(after), _identity(after))


def _identity(item: Item) -> object:
    """Return what an item has for as long as it is not created again."""
    match item:
        case Source() | SharedSource():
            return item.progress
        case Table() | SourceTable() | View():
            return item.shard
        case Materialization():
            return item.id
        case IndexItem():
            return item.collection, item.key, item.instance
    return ""


def _columns_since(before: Item, after: Item) -> list[str]:
    """Return the columns that a table or a source has got; those of a view change by its query."""
    if not isinstance(before, Table | Source | SourceTable) or not isinstance(after, Table | Source | SourceTable):
        return []
    return [f"{column.name} {column.type}" for column in after.schema.columns[len(before.columns) :]]


def _altered(before: Item, after: Item) -> Iterator[str]:
    """Yield what differs of an item besides its columns; of a connection no value is said."""
    match before, after:
        case Connection(), Connection():
            if (before.system, before.options) != (after.system, after.options):
                yield "other options"
        case InstanceItem(), InstanceItem():
            if before.replicas != after.replicas:
                yield "other replicas"
        case Materialization(), Materialization():
            were, are = ([*dict.fromkeys(each.collection for each in item.bindings)] for item in (before, after))
            yield from (f"view {view!r}" for view in are if view not in were)
            yield from (f"view {view!r} no longer" for view in were if view not in are)
    if isinstance(before, _WithOptions) and isinstance(after, _WithOptions):
        yield from _options(before.options, after.options)
    if isinstance(before, Collected) and isinstance(after, Collected) and before.keep_history != after.keep_history:
        kept = after.keep_history
        yield "a history as the settings say" if kept is None else f"KEEP HISTORY FOR {kept!r}"


def _options(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Yield the options that differ; their values name secrets, and hold none."""
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"{name} {after[name]!r}" if name in after else f"no {name}"
