"""ALTER MATERIALIZATION name {SET (option value, …) | RESET (option, …)}: options that change while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.controller.language import clauses
from strandline.controller.language.cursor import Cursor
from strandline.controller.language.placed import Placed
from strandline.errors import Position


@dataclass(frozen=True, slots=True)
class AlterMaterialization(Placed):
    """ALTER MATERIALIZATION; each option stands at its place in ``places``.

    ``options``: what they are set to; None: to what they are if they are not given.
    """

    name: str
    options: dict[str, str | None]
    places: dict[str, Position] = field(default_factory=dict, compare=False, repr=False)


def alter(cursor: Cursor) -> AlterMaterialization:
    """Take ALTER MATERIALIZATION.  Raises `DefinitionError`, with its place, for any other text."""
    cursor.take("ALTER", "MATERIALIZATION")
    at, name = cursor.position, cursor.only_name()
    sets = cursor.accept("SET")
    if not sets and not cursor.accept("RESET"):
        raise cursor.fail("SET or RESET")
    given = clauses.options(cursor) if sets else clauses.options_named(cursor)
    if not given.options:
        raise cursor.fail("an option between the brackets")
    return AlterMaterialization(name, dict(given.options if sets else dict.fromkeys(given.options)), given.at, at=at)
