"""Relocating: a project's directory may move, and what its files say of paths below it moves along.

Items keep paths as the process that opens them needs them: absolute.  The catalog remembers from where they were seen
(`Catalog.root`).  An item that a definition of the project describes, seen from there, is the same item seen from where
the project is now; any other difference is a change of the definition, and stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path

import msgspec

from strandline.controller.defining.project.files import resolved
from strandline.controller.defining.project.settings import Project, shares_location
from strandline.controller.location import on_error
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Connection, Item, Materialization, SharedSource, Source


def relocated(project: Project, catalog: Catalog, *, adopts: bool = False) -> Catalog:
    """Return ``catalog`` as seen from where ``project`` is now.

    That of another project, which is still there at the same location, stays as it is; unless this one ``adopts`` it.
    """
    here, before = str(project.root), catalog.root
    if before == here or (before and not adopts and shares_location(Path(before), project)):
        return catalog
    after = msgspec.structs.replace(catalog, root=here)
    if not before:
        return after
    for defined in project.definitions:
        present = catalog.find(defined.statement.name)
        if isinstance(present, Source | SharedSource | Connection | Materialization):
            was, defaults = resolved(project, defined.written, Path(before)), defined.by_default
            if lasting(present.options, defaults) == lasting(options_of(was)):
                moved = {**present.options, **lasting(options_of(defined.statement), defaults)}
                after = after.with_item(msgspec.structs.replace(present, options=moved))
    return after


def seen_by(project: Project | None) -> Callable[[Catalog], Catalog]:
    """Return how a process of ``project`` sees a catalog; without a project, as it is."""
    return (lambda catalog: catalog) if project is None else partial(relocated, project)


def differing(before: Catalog, after: Catalog) -> list[Item]:
    """Return the items of ``after`` that ``before`` has otherwise, or not at all."""
    return [item for name, item in after.items.items() if before.items.get(name) != item]


def options_of(statement: object) -> Mapping[str, str]:
    """Return the options of a definition; none if its kind has no options."""
    options: Mapping[str, str] = getattr(statement, "options", {})
    return options


def lasting(options: Mapping[str, str], by_default: AbstractSet[str] = frozenset()) -> dict[str, str]:
    """Return the options that cannot change while an item is there, without those that a default gave."""
    changing = by_default | {*on_error.ALTERABLE_OF_SOURCES}
    return {name: text for name, text in options.items() if name not in changing}
