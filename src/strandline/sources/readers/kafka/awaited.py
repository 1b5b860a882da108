"""Ids of schemas that messages name and the registry does not have: it may only be behind.

A registry is replicated, and a producer may be quicker than the replica that is asked.  So an id is waited for, for a
minute after it was first missed.  Only then is it taken for wrong, which makes its messages errors for ever.

Garbage looks like ids, too, and there may be new ones all the time.  So a source waits only so long in one *go*: at one
place of its topic, and without a pause in which it could not ask.

Source: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html (wire format).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from strandline.errors import Unavailable
from strandline.frontier.gauge import Offsets
from strandline.store.clock import Clock

WAIT_MS: Final = 60_000
"""How long an id is waited for.  A source that could not ask for so long begins a new go."""
WAITS_MS_MAX: Final = 3 * WAIT_MS
"""How long a source waits in one go, whatever ids come meanwhile."""
KEPT_MS: Final = 10 * WAIT_MS
"""How long after an id was last missed it is forgotten: a schema may have got it since."""


class _Missed(NamedTuple):
    first: int
    last: int


class _Go(NamedTuple):
    place: Offsets
    since: int
    last: int  # when it was last waited


class AwaitedSchemas:
    """The ids that one source has missed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._missed: dict[int, _Missed] = {}
        self._go: _Go | None = None

    def refuse(self, missing: Collection[int], place: Offsets) -> None:
        """Raise `Unavailable` if some of ``missing`` may still come; all others, from now on, will not.

        ``place``: from where on messages are read; it moves when some got through.
        """
        now = self._clock.now_ms()
        self._note(missing, now)
        fresh = sorted(each for each in missing if now - self._missed[each].first < WAIT_MS)
        if not fresh:
            return
        go = self._go
        if go is None or go.place != place or now - go.last >= WAIT_MS:
            go = _Go(place, now, now)
        if now - go.since < WAITS_MS_MAX:
            self._go = _Go(place, min(now, go.since), now)
            raise Unavailable(
                f"the schema registry does not have {', '.join(f'the schema {each}' for each in fresh)} yet, which "
                "messages name: it is asked again for a minute, then these messages become errors; register "
                "schemas before messages name them"
            )
        self._go = None
        self._missed |= {each: _Missed(now - WAIT_MS, now) for each in fresh}

    def _note(self, missing: Collection[int], now: int) -> None:
        """Take note of what is missed now, and forget what was missed long ago.  The clock may have been set back."""
        known = {
            each: _Missed(min(now, at.first), min(now, at.last))
            for each, at in self._missed.items()
            if now - at.last < KEPT_MS
        }
        self._missed = known | {each: _Missed(known[each].first if each in known else now, now) for each in missing}
