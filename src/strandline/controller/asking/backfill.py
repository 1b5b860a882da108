"""Backfill: fill tables of an endpoint again, from the start of their collections.

For a table that was dropped or changed by hand, or that needs other types.  What will happen is said beforehand;
with ``apply`` it raises the counters of the bindings in the catalog, by one compare-and-set, and that is all: the next
tick runs what the catalog holds, here or in the environment that opens the location after a crash.  The endpoint's
checkpoint knows nothing of the new counters, so the task begins from nothing there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from strandline.controller.commanded import spec_of
from strandline.controller.core import Core
from strandline.controller.location.catalog import Catalog, unknown
from strandline.controller.location.items import Materialization


@dataclass(frozen=True, slots=True)
class Refill:
    """One table to be filled again: from which collection, and under which counter."""

    collection: str
    table: str
    backfill: int


async def backfill(core: Core, name: str, collection: str | None, *, apply: bool) -> dict[str, Any]:
    """Return which tables of a materialization a backfill fills again, and what its endpoint does to them.

    ``collection``: only the one that is bound to it; None: all.  ``apply``: do it; the next tick fills them.  Else
    nothing is changed, here or at the endpoint.

    Raises:
        DefinitionError: there is no such materialization, or it does not bind ``collection``; with candidates.  Or the
            endpoint cannot hold the collection.
        InvalidUsage: it is to be applied, and this environment does not write.
        Unavailable: the endpoint does not answer.
    """
    if apply:
        core.require_writing()
    item = materialization(core.catalog, name)
    bound = {each.collection for each in item.bindings}
    if collection is not None and collection.lower() not in bound:
        raise unknown(f"binding of {item.name!r} to", collection, bound)
    wanted = bound if collection is None else {collection.lower()}
    bumped = _bumped(item, wanted)
    actions = await core.assembly.drivers(item.endpoint, item.endpoint_options).preview(spec_of(bumped, core.catalog))
    if apply:
        epoch = core.require_writing().epoch
        await core.catalogs.change(epoch, lambda catalog: _with_bumped(catalog, item.name, wanted))
    refills = [Refill(each.collection, each.table, each.backfill) for each in bumped.bindings]
    return {
        "name": item.name,
        "applied": apply,
        "tables": [asdict(each) for each in refills if each.collection in wanted],
        "actions": list(actions),
    }


def materialization(catalog: Catalog, name: str) -> Materialization:
    """Return the materialization called ``name``.  Raises `DefinitionError` with candidates if there is none."""
    item = catalog.find(name)
    if not isinstance(item, Materialization):
        raise unknown("materialization", name, (n for n, i in catalog.items.items() if isinstance(i, Materialization)))
    return item


def _with_bumped(catalog: Catalog, name: str, collections: set[str]) -> Catalog:
    return catalog.with_item(_bumped(materialization(catalog, name), collections))


def _bumped(item: Materialization, collections: set[str]) -> Materialization:
    bindings = tuple(
        msgspec.structs.replace(each, backfill=each.backfill + (each.collection in collections))
        for each in item.bindings
    )
    return msgspec.structs.replace(item, bindings=bindings)
