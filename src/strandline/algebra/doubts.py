"""What in a query may leave it without one answer, as Spark's own analysis of its text says.

The engine finds them in the analysed plan; `compute.plan.scalars.definite` says which of them are refused, and why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from strandline.errors import Position

OF_CLOCK: Final = r"(?:(?:now|today|yesterday|tomorrow)\b|T\d|\d{1,2}:)"
"""How a text begins that Spark makes a time of the clock: by its name, or for want of a date."""


def of_clock(said: str) -> bool:
    """Tell whether Spark makes the constant text ``said`` a time of the clock where a time is wanted.

    >>> [of_clock(each) for each in (" NOW", "today UTC", "12:30", "epoch", "2024-01-01 12:30", "nowhere")]
    [True, True, True, False, False, False]
    """
    return re.match(rf"[\x00-\x20]*{OF_CLOCK}", said, re.IGNORECASE) is not None


class DoubtKind(Enum):
    """What kind of thing it is; ``name`` of a `Doubt` says which."""

    CALL = "a function without parentheses, as user"
    CLOCK = "a constant text that becomes a time of the clock, as 'now'"
    CUT = "LIMIT or OFFSET"
    WINDOW = "a window function that may look at the order of rows"
    COLLATION = "one of several texts that a collation calls equal is chosen"


@dataclass(frozen=True, slots=True)
class Doubt:
    """One such thing: what it is called, and where it stands in the text, if Spark knows.

    ``rows``: it is a window whose frame counts ROWS.  ``collation``: by which texts are compared.
    """

    kind: DoubtKind
    name: str
    place: Position | None = None
    rows: bool = False
    collation: str = ""
