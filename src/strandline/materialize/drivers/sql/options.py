"""The options that every endpoint with tables takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from strandline.options import one_of, option


class Delete(Enum):
    """What becomes of a row that went."""

    HARD = "hard"
    SOFT = "soft"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """How rows are kept in tables."""

    delete: Delete = option(
        one_of(Delete),
        "What becomes of a row that went: it is deleted (`hard`), or kept as it was, with `__deleted` true (`soft`).",
        default="hard",
    )

    @property
    def soft(self) -> bool:
        """Whether deleted rows are kept."""
        return self.delete is Delete.SOFT
