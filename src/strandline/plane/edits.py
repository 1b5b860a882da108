"""`Edit`: what an UPDATE or a DELETE says of a table's rows, in its author's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.algebra.excerpt import Excerpt


@dataclass(frozen=True, slots=True)
class Edit:
    """The rows of a table for which ``where`` is true (None: all); their names may be qualified by ``alias``.

    ``values``: what columns (by name in lower case) become; empty: the rows are deleted.
    """

    alias: str
    where: Excerpt | None
    values: Mapping[str, Excerpt]

    @property
    def excerpts(self) -> tuple[Excerpt, ...]:
        """Its expressions, in the order of the text."""
        return (*self.values.values(), *([] if self.where is None else [self.where]))
