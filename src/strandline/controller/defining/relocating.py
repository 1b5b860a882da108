"""Relocating: a project's directory may move, and what its files say of paths below it moves along.

Items keep paths as the process that opens them needs them: absolute.  The catalog remembers from where they were seen
(`Catalog.root`).  An item that a definition of the project describes, seen from there, is the same item seen from where
the project is now; any other difference is a change of the definition, and stays one.

Where the directory of before is still there and is a directory of this location, nothing moves: it is the same one by
another spelling, or another checkout.  Then the project's definitions are compared as they would be seen from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from strandline.controller.defining.project.files import load, resolved
from strandline.controller.defining.project.settings import Project, shares_location
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Connection, Materialization, SharedSource, Source
from strandline.errors import ConfigError, DefinitionError


def relocated(project: Project, catalog: Catalog, *, adopts: bool = False) -> Catalog:
    """Return ``catalog`` as seen from where ``project`` is now.

    That of another project, which is still there at the same location, stays as it is; unless this one ``adopts`` it.
    """
    here, before = str(project.root), catalog.root
    if before == here or project.unread or _is(before, project):
        return catalog
    if before and not adopts and shares_location(Path(before), project):
        return catalog
    after = msgspec.structs.replace(catalog, root=here)
    if not before:
        return after
    for defined in project.definitions:
        present = catalog.find(defined.statement.name)
        if isinstance(present, Source | SharedSource | Connection | Materialization):
            was, defaults = resolved(project, defined.written, Path(before)), defined.by_default
            now = options_of(defined.statement)
            as_seen = {
                name: now[name]
                for name, text in options_of(was).items()
                if name not in defaults and present.options.get(name) == text
            }
            after = after.with_item(msgspec.structs.replace(present, options={**present.options, **as_seen}))
    return after


def _is(directory: str, project: Project) -> bool:
    """Return whether this is the project's directory by another spelling."""
    try:
        return bool(directory) and project.root.samefile(directory)
    except OSError:
        return False


def is_checkout(directory: Path, project: Project) -> bool:
    """Return whether there is another project in ``directory``, at this one's location, that defines the same."""
    if project.unread or not shares_location(directory, project):
        return False
    try:
        other = load(directory)
    except (ConfigError, DefinitionError):
        return False
    return _meant(other) == _meant(project)


def _meant(project: Project) -> tuple[object, ...]:
    written = [(each.file, each.written, each.by_default) for each in project.definitions]
    return project.endpoints, written


def seen_from(project: Project, root: str) -> Project:
    """Return ``project`` with its definitions as seen from ``root``, where paths of the catalog were seen.

    That is so where this directory is the project's by another spelling, or is still there, at the project's location.
    """
    if root in {"", str(project.root)} or not (_is(root, project) or shares_location(Path(root), project)):
        return project
    found = []
    for each in project.definitions:
        seen: Any = resolved(project, each.written, Path(root))
        if options := options_of(seen):
            given = {name: text for name, text in options_of(each.statement).items() if name in each.by_default}
            seen = replace(seen, options={**options, **given})
        found.append(replace(each, statement=seen))
    return replace(project, definitions=tuple(found))


def seen_by(project: Project | None) -> Callable[[Catalog], Catalog]:
    """Return how a process of ``project`` sees a catalog; without a project, as it is."""
    return (lambda catalog: catalog) if project is None else partial(relocated, project)


def options_of(statement: object) -> Mapping[str, str]:
    """Return the options of a definition; none if its kind has no options."""
    options: Mapping[str, str] = getattr(statement, "options", {})
    return options
