"""Ids of schemas that messages name and the registry does not have: it may only be behind.

A registry is replicated, and a producer may be quicker than the replica that is asked.  So an id is waited for, for a
minute after it was first missed.  Only then is it taken for wrong, which makes its messages errors for ever.

Garbage looks like ids, too, and there may be new ones all the time.  So a source waits only so long in one go.

Source: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html (wire format).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from strandline.errors import Unavailable
from strandline.store.clock import Clock

WAIT_MS: Final = 60_000
"""How long an id is waited for."""
WAITS_MS_MAX: Final = 3 * WAIT_MS
"""How long a source waits in one go, whatever ids come meanwhile."""


class AwaitedSchemas:
    """The ids that one source has missed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._missed: dict[int, int] = {}  # when each was first missed
        self._since: int | None = None  # when the source began to wait

    def refuse(self, missing: Collection[int]) -> None:
        """Raise `Unavailable` if some of ``missing`` may still come; all others, from now on, will not."""
        now = self._clock.now_ms()
        for each in missing:
            self._missed[each] = min(now, self._missed.get(each, now))  # the clock may have been set back
        since = now if self._since is None else min(now, self._since)
        fresh = sorted(each for each in missing if now - self._missed[each] < WAIT_MS)
        if fresh and now - since < WAITS_MS_MAX:
            self._since = since
            raise Unavailable(
                f"the schema registry does not have {', '.join(f'the schema {each}' for each in fresh)} yet, which "
                "messages name: it is asked again for a minute, then these messages become errors; register "
                "schemas before messages name them"
            )
        self._since = None
        self._missed |= dict.fromkeys(fresh, now - WAIT_MS)
