"""ALTER MATERIALIZATION name SET (option value, …): options that change while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.controller.language import clauses
from strandline.controller.language.cursor import Cursor
from strandline.controller.language.placed import Placed
from strandline.errors import Position


@dataclass(frozen=True, slots=True)
class AlterMaterialization(Placed):
    """ALTER MATERIALIZATION … SET; each option stands at its place in ``places``."""

    name: str
    options: dict[str, str]
    places: dict[str, Position] = field(default_factory=dict, compare=False, repr=False)


def alter(cursor: Cursor) -> AlterMaterialization:
    """Take ALTER MATERIALIZATION.  Raises `DefinitionError`, with its place, for any other text."""
    cursor.take("ALTER", "MATERIALIZATION")
    at, name = cursor.position, cursor.only_name()
    cursor.take("SET")
    given = clauses.options(cursor)
    if not given.options:
        raise cursor.fail("an option between the brackets")
    return AlterMaterialization(name, given.options, given.at, at=at)
