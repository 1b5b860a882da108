"""Audits of views that run in replicas: how often each was asked for, in the catalog.

An audit recomputes a view in full, whatever the certificates of its shards say.  Replicas come and go, so it is not
asked of one of them: the count is part of what a certificate is about, and no replica trusts one of another count.
Views that share an internal stage share its certificate, and so the count.
"""

from __future__ import annotations

from msgspec.structs import replace

from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import View


def audited(catalog: Catalog, name: str) -> Catalog:
    """Return ``catalog`` with one more audit of a view, and of those that share stages with it.

    The same catalog if there is no such view.
    """
    view = catalog.items.get(name.lower())
    if not isinstance(view, View):
        return catalog
    count = audits_of(catalog, view) + 1
    changed = {each: replace(item, audits=count) for each, item in _sharing(catalog, view).items()}
    return catalog.having({**catalog.items, **changed})


def audits_of(catalog: Catalog, view: View) -> int:
    """Return how often ``view`` was to be audited, or one that shares stages with it."""
    return max([view.audits, *(item.audits for item in _sharing(catalog, view).values())])


def _sharing(catalog: Catalog, view: View) -> dict[str, View]:
    """Return the view by its name, and those that share an internal stage with it or with one that does."""
    views = {name: item for name, item in catalog.items.items() if isinstance(item, View)}
    found = {name: item for name, item in views.items() if item.shard == view.shard}
    shards = {*view.stages.values()}
    while more := {name: v for name, v in views.items() if name not in found and shards & {*v.stages.values()}}:
        found |= more
        shards.update(shard for item in more.values() for shard in item.stages.values())
    return found
