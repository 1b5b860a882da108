"""`Spread`: how the keys of a change lie."""

from __future__ import annotations

from enum import Enum


class Spread(Enum):
    """How the keys of a change lie."""

    UNIFORM = "uniform"
    """Anywhere."""
    CLUSTERED = "clustered"
    """Side by side; new keys are larger than all before, as those of a sequence are."""
