"""Windows: the hours of the week in which transactions may begin, by the clock of a place.

A window is written ``08:00-18:00 mon-fri Europe/Berlin``: from when to when, on which days (each, if none is named),
and in which time zone.  One that ends before it begins ends on the next day: its days are those on which it begins.

Clocks are set forward and back.  A moment is inside iff the wall clock shows it there: an hour that is skipped is in no
window, and one that comes twice is in its window twice, although that may close in between.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES: Final = 24 * 60
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = _DAY_MINUTES * _MINUTE_MS
_DAYS_MAX: Final = 3 * len(DAYS)
"""So soon a window opens: on its day of the next week but one, if clocks are set forward over this and the next."""
_FORM: Final = re.compile(r"(\d\d):([0-5]\d)-(\d\d):([0-5]\d)(?:\s+([a-z,-]+))?\s+(\S+)", re.ASCII | re.IGNORECASE)
_HOW: Final = "write hours, days if not all, and a time zone, as 08:00-18:00 mon-fri Europe/Berlin"


@dataclass(frozen=True, slots=True)
class Window:
    """Minutes of the day from ``begin`` to before ``end``, on ``days`` (0 is Monday), in ``zone``.

    >>> office = window("08:00-18:00 mon-fri Europe/Berlin")
    >>> sunday = 1_700_000_000_000 - 2 * 86_400_000
    >>> office.opens(sunday) - sunday, datetime.fromtimestamp(office.opens(sunday) / 1000, UTC).isoformat()
    (31600000, '2023-11-13T07:00:00+00:00')
    """

    begin: int
    end: int
    days: frozenset[int]
    zone: ZoneInfo

    def open(self, ms: int) -> bool:
        """Return whether ``ms`` (since the epoch) is inside."""
        here = datetime.fromtimestamp(ms / 1000, UTC).astimezone(self.zone)
        minute, day = here.hour * 60 + here.minute, here.weekday()
        if self.begin < self.end:
            return self.begin <= minute < self.end and day in self.days
        return (minute >= self.begin and day in self.days) or (minute < self.end and (day - 1) % 7 in self.days)

    def opens(self, ms: int) -> int:
        """Return the first moment at or after ``ms`` that is inside."""
        if self.open(ms):
            return ms
        for begin in range(ms, ms + _DAYS_MAX * _DAY_MS, _DAY_MS):
            end = begin + _DAY_MS
            at = self._in(begin) if self._offset(begin) == self._offset(end) else self._set_in(begin, end)
            if at < end:
                return at
        raise AssertionError(f"no place leaves out its days for {_DAYS_MAX} days")

    def _in(self, ms: int) -> int:
        """Return when it opens in the day from ``ms``, in which clocks are not set; the end of that day if it does not.

        It opens where it begins and nowhere else.
        """
        wall = ms + self._offset(ms)
        at = ms + (self.begin * _MINUTE_MS - wall) % _DAY_MS
        return at if self.open(at) else ms + _DAY_MS

    def _set_in(self, begin: int, end: int) -> int:
        """Return the first moment inside from ``begin`` to before ``end``, between which clocks are set; else ``end``.

        They may be set into a window, and over its beginning, which may come twice.  So each minute is looked at.
        """
        minutes = range(-(-begin // _MINUTE_MS) * _MINUTE_MS, end, _MINUTE_MS)
        return next((at for at in minutes if self.open(at)), end)

    def _offset(self, ms: int) -> int:
        """Return by how much the wall clock is ahead of UTC, in milliseconds."""
        offset = datetime.fromtimestamp(ms / 1000, UTC).astimezone(self.zone).utcoffset()
        assert offset is not None, "a zone has an offset"
        return round(offset / timedelta(milliseconds=1))


@lru_cache(maxsize=1_000)
def window(text: str) -> Window:
    """Return the window that ``text`` says.

    >>> [sorted(window(f"22:00-06:00 {days} UTC").days) for days in ("fri-mon", "sat,sun", "")]
    [[0, 4, 5, 6], [5, 6], [0, 1, 2, 3, 4, 5, 6]]

    Raises `ValueError`, whose text has the form of a window.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(_HOW)
    begin, end = int(found[1]) * 60 + int(found[2]), int(found[3]) * 60 + int(found[4])
    if begin >= _DAY_MINUTES or end > _DAY_MINUTES or begin == end:
        raise ValueError(f"it must begin before 24:00, and end at another time, at 24:00 at the latest; {_HOW}")
    try:
        zone = ZoneInfo(found[6])
    except (OSError, ValueError, KeyError):
        raise ValueError(f"there is no time zone {found[6]!r} here; {_HOW}") from None
    return Window(begin, end, _days(found[5]), zone)


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(len(DAYS)))
    found: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"{part!r} is no day of {', '.join(DAYS)}, and no range of these; {_HOW}")
        at, count = DAYS.index(first), (DAYS.index(last) - DAYS.index(first)) % 7 if dash else 0
        found |= {(at + ahead) % 7 for ahead in range(count + 1)}
    return frozenset(found)
