"""Schedules: when a view is refreshed, read as a value.

    REFRESH {ON COMMIT | EVERY 'interval' [ALIGNED TO 'time'] | AT 'time' | AT CREATION}, …

A time is a date, or a date and a time of day, as ISO 8601 writes them; without an offset it is UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime

from strandline.controller.language.cursor import Cursor
from strandline.controller.location.interval import milliseconds
from strandline.errors import DefinitionError
from strandline.frontier.antichain import TIME_MAX
from strandline.frontier.refresh import Every, Refresh


def refresh(cursor: Cursor) -> Refresh | None:
    """Take the clause REFRESH if it comes; None: at each time.

    Raises `DefinitionError`, with its place, for a wrong interval or time, or for ON COMMIT beside another.
    """
    if not cursor.accept("REFRESH"):
        return None
    begin, everies, ats = cursor.position, list[Every](), list[int]()
    follows = at_creation = False
    while True:
        if cursor.accept("ON", "COMMIT"):
            follows = True
        elif cursor.accept("EVERY"):
            everies.append(_every(cursor))
        elif cursor.accept("AT", "CREATION"):
            at_creation = True
        elif cursor.accept("AT"):
            ats.append(_time(cursor))
        else:
            raise cursor.fail("ON COMMIT, EVERY, AT or AT CREATION")
        if not cursor.accept(","):
            break
    found = Refresh(tuple(everies), tuple(ats), at_creation)
    if follows and found != Refresh():
        raise DefinitionError("REFRESH ON COMMIT is at each time; leave out the others, or it", begin)
    return None if follows else found


def _every(cursor: Cursor) -> Every:
    at, text = cursor.position, cursor.value()
    try:
        interval = milliseconds(text)
    except ValueError as error:
        raise DefinitionError(f"REFRESH EVERY: {error}", at) from None
    if interval == 0:
        raise DefinitionError("REFRESH EVERY: an interval of 0 has no next refresh; write ON COMMIT", at)
    return Every(interval, _time(cursor) if cursor.accept("ALIGNED", "TO") else None)


def _time(cursor: Cursor) -> int:
    at, text = cursor.position, cursor.value()
    try:
        given = datetime.fromisoformat(text.strip())
        time = round((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise DefinitionError(
            f"{text!r} is no time: write '2026-01-31 06:00:00', with an offset if not UTC", at
        ) from None
    if not 0 <= time < TIME_MAX:
        raise DefinitionError(f"{text!r} is before 1970", at)
    return time
