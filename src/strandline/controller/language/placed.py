"""Placed: what statements have in common that are about something with a name."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.errors import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """``at``: where the name of what it is about stands; None if it comes from no text."""

    at: Position | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Placed):
    """``keep_history``: the interval of KEEP HISTORY FOR as it was written, which stands at ``keep_history_at``."""

    keep_history: str | None = None
    keep_history_at: Position | None = field(default=None, compare=False, repr=False)
