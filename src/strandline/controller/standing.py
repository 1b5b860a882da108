"""What stands still: no item may be behind a tick without saying why.

An item that failed has its own problem.  Any other that is not where the tick wanted it gets one here, from the uppers
of the shards and the positions of the endpoints alone, so that a mistake anywhere above cannot hide it.  While a tick
runs long, `waiting` says the same of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import (
    Collected,
    Connection,
    IndexItem,
    InstanceItem,
    Item,
    Materialization,
    SharedSource,
    SourceTable,
    Table,
    View,
)
from strandline.errors import WAITS
from strandline.frontier import MINIMUM, Frontier, as_time
from strandline.persist.together.transactions import SHARD as TRANSACTIONS
from strandline.problem import Problem, Stopped, Way
from strandline.store.clock import utc_text

Timeless: TypeAlias = Connection | InstanceItem | SharedSource
"""What is complete at no time of its own: for a source the tables that it feeds are, for an instance its views."""


ANOTHER: Final = Problem("waits-for-item", WAITS + "{item!r}", Stopped.VIEW)
COLLECTION: Final = Problem("waits-for-collection", WAITS + "its collection", Stopped.NOTHING)
COLLECTIONS: Final = Problem("waits-for-collections", WAITS + "its collections", Stopped.ENDPOINT)
BEGUN: Final = Problem("waits-for-call", WAITS + "what was begun for it at {since}", Stopped.VIEW)
UNSEALED: Final = Problem(
    "waits-for-transactions", WAITS + "the transactions, which cannot be sealed: {why}", Stopped.WRITES
)
ITS_SOURCE: Final = Problem("waits-for-source", WAITS + "its source {item!r}, which has a problem", Stopped.TABLE)
TURN: Final = Problem("waits-for-turn", WAITS + "its turn in {tick}", Stopped.VIEW)
END: Final = Problem("waits-for-tick", WAITS + "the end of {tick}", Stopped.VIEW)
UNEXPLAINED: Final = Problem(
    "unexplained",
    "it stands still, and nothing that is known stands in its way",
    Stopped.VIEW,
    (Way("report it as a bug of Strandline, and restart the process that writes"),),
)


def standing(
    catalog: Catalog,
    problems: Mapping[str, str],
    frontiers: Mapping[str, Frontier],
    time: Frontier,
    going_on: Mapping[str, int | None] = MappingProxyType({}),
    notices: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, str]:
    """Return why each item that has none of ``problems`` is not complete at ``time``.

    A text says nothing of ``time`` and of frontiers: what is behind has one text for as long as it is, and is reported
    once.

    ``frontiers`` are by the item's name: a collection's upper, or the time before which an endpoint has everything.
    ``going_on``: the items that are on their way to ``time``, and since when that takes long (None: it does not).  They
    stand still, and so does what reads them, only once it does; or if they have a problem, of which those know nothing.
    ``notices``: a materialization that has one waits as its schedule says, and has said so.
    """
    found = {}
    late = {name for name in catalog.items if frontiers.get(name, MINIMUM) <= time}
    awaited = _awaited(catalog, {name: since for name, since in going_on.items() if name not in problems})
    for name, item in catalog.items.items():
        if name in problems or isinstance(item, Timeless) or _scheduled(name, item, notices):
            continue
        if name not in late:
            continue
        if name in awaited:
            if (since := going_on[awaited[name]]) is not None:
                found[name] = _begun(since) if awaited[name] == name else ANOTHER.said(item=awaited[name])
            continue
        if isinstance(item, IndexItem):
            found[name] = COLLECTION.said()
        elif isinstance(item, Materialization):
            found[name] = COLLECTIONS.said()
        else:
            found[name] = _why(item, problems, late) or UNEXPLAINED.said()
    return found


def complete(
    catalog: Catalog,
    problems: Container[str],
    frontiers: Mapping[str, Frontier],
    time: int,
    notices: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> int:
    """Return the last time, ``time`` at most, at which every item is complete that has none of ``problems``.

    ``notices``: see `standing`.
    """
    judged = [
        name
        for name, item in catalog.items.items()
        if name not in problems and not isinstance(item, Timeless) and not _scheduled(name, item, notices)
    ]
    return min([time, *(as_time(frontiers.get(name, MINIMUM)) - 1 for name in judged)])


def _scheduled(name: str, item: Item, notices: Container[str]) -> bool:
    """Return whether an item is behind because its schedule says so."""
    return isinstance(item, Materialization) and name in notices


def _awaited(catalog: Catalog, going_on: Mapping[str, int | None]) -> dict[str, str]:
    """Return, for each item that is on its way or reads one that is, which one that is: first those that take long."""
    found: dict[str, str] = {}
    for name in sorted(going_on, key=lambda each: going_on[each] is None):
        found = dict.fromkeys(catalog.downstream(name), name) | found
    return found


def _begun(since_ms: int) -> str:
    return BEGUN.said(since=utc_text(since_ms))


def _why(item: Collected, problems: Mapping[str, str], late: Container[str]) -> str:
    """Return what else has the problem for which it stands still, or is ``late`` too; empty: nothing that is known."""
    if isinstance(item, Table) and (sealed := problems.get(TRANSACTIONS)):
        return UNSEALED.said(why=sealed)
    if isinstance(item, SourceTable) and item.source in problems:
        return ITS_SOURCE.said(item=item.source)
    if isinstance(item, View):
        return next((ANOTHER.said(item=each) for each in item.imports if each in problems or each in late), "")
    return ""


def waiting(items: Iterable[str], behind: Container[str], under_way: Mapping[str, int], tick_ms: int) -> dict[str, str]:
    """Return what each of ``items`` waits for while a tick runs that began at ``tick_ms``.

    The tick wants to bring on those that are ``behind``; the others wait for the next one.  For those in ``under_way``,
    items or not, something was begun then that has not returned.
    """
    tick = f"the tick that began at {utc_text(tick_ms)}"
    turns = {name: (TURN if name in behind else END).said(tick=tick) for name in items}
    return turns | {name: _begun(since) for name, since in under_way.items()}
