"""Moments: times as people write and read them, beside the milliseconds that programs use."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from strandline.errors import InvalidUsage
from strandline.frontier.antichain import TIME_MAX

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS: Final = dt.timedelta(milliseconds=1)


def moment(text: str) -> int:
    """Return the time that ``text`` is: milliseconds, or a date and time of ISO 8601 (without a zone: in UTC).

    >>> moment("1700000000000"), moment("2023-11-14T22:13:20"), moment("2023-11-14 23:13:20.5+01:00")
    (1700000000000, 1700000000000, 1700000000500)

    Raises `InvalidUsage` for any other text.
    """
    if text.isascii() and text.isdigit() and int(text) <= TIME_MAX:
        return int(text)
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or text.lstrip("-").isdigit():  # a date without separators is taken for a number that is wrong
        raise InvalidUsage(
            f"{text!r} is no time: give milliseconds since 1970, or a date and time like 2026-01-31T12:00"
        )
    at = found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    if at < _EPOCH:
        raise InvalidUsage(f"{text!r} is before 1970, where time begins here")
    return (at - _EPOCH) // _MS


def shown(time: int) -> str:
    """Return a time as people read it, with its milliseconds.

    >>> shown(1_700_000_000_500), shown(2**62)
    ('2023-11-14T22:13:20.500Z (1700000000500)', '4611686018427387904')
    """
    at = clock(time)
    return at if at == str(time) else f"{at} ({time})"


def clock(time: int) -> str:
    """Return a time as people read it; one that no calendar has, as milliseconds.

    >>> clock(1_700_000_000_500), clock(2**62)
    ('2023-11-14T22:13:20.500Z', '4611686018427387904')
    """
    try:
        at = _EPOCH + time * _MS
    except OverflowError:
        return str(time)
    return f"{at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def told(lag: Mapping[str, Any]) -> str:
    """Return for people how far something is behind: in milliseconds (``ms``), and in counts of what is to come.

    >>> told({"ms": 1_234, "rows": 7}), told({"ms": 125_000, "rows": None, "bytes": 0}), told({"ms": None, "files": 1})
    ('1.2 s, 7 rows', '2 min 5 s', '1 files')
    """
    ms, counts = lag["ms"], [f"{count:,} {unit}" for unit, count in lag.items() if unit != "ms" and count]
    time = "" if ms is None else f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms // 60_000} min {ms // 1000 % 60} s"
    return ", ".join(filter(None, (time, *counts)))
