"""Intervals of time as users write them: ``1 hour``, ``90 seconds``, ``1 day 12 hours``, ``0``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from strandline.options import Kind

UNITS_MS: Final = {"ms": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_NAMES: Final = {
    **{f"{unit}{plural}": ms for unit, ms in UNITS_MS.items() if unit != "ms" for plural in ("", "s")},
    "ms": 1,
    "millisecond": 1,
    "milliseconds": 1,
    "s": 1_000,
    "sec": 1_000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)
YEARS_MAX: Final = 1_000
TEXTS_REMEMBERED: Final = 1_000
"""Of how many texts it is remembered how long they are; those that were asked for last: every tick asks."""
_MS_MAX: Final = YEARS_MAX * 365 * UNITS_MS["day"]


@lru_cache(maxsize=TEXTS_REMEMBERED)
def milliseconds(text: str) -> int:
    """Return the interval in milliseconds, whole ones.

    >>> [milliseconds(text) for text in ("1 hour", "1 day 12 hours", "1.5 s", "250ms", "0", "0 days")]
    [3600000, 129600000, 1500, 250, 0, 0]
    >>> milliseconds("an hour")
    Traceback (most recent call last):
        ...
    ValueError: 'an hour' is no interval: write '1 hour' or '1 day 12 hours', with ms, second, minute, hour, day; or 0

    Raises `ValueError`, one sentence, for what is no interval or longer than `YEARS_MAX` years.
    """
    words = text.strip().lower()
    if words == "0":
        return 0
    total, at = 0.0, 0
    while at < len(words) and (part := _PART.match(words, at)) and part[2] in _NAMES:
        total, at = total + float(part[1]) * _NAMES[part[2]], part.end()
    if not words or at < len(words):
        units = ", ".join(UNITS_MS)
        raise ValueError(f"{text!r} is no interval: write '1 hour' or '1 day 12 hours', with {units}; or 0")
    if total > _MS_MAX:
        raise ValueError(f"{text!r} is longer than {YEARS_MAX} years")
    return round(total)


INTERVAL_MS: Final = Kind(milliseconds, {"minLength": 1})
"""An option that is an interval, in milliseconds."""


def refuse_no_interval(keep_history: str) -> None:
    """Raise `ValueError`, naming the setting, if that is none."""
    try:
        milliseconds(keep_history)
    except ValueError as error:
        raise ValueError(f"keep_history: {error}") from None
