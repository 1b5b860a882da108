"""Announcements: after transactions of a materialization its trigger is called, with the time that is reached.

A trigger is called beside the transactions, which never wait for it.  One call is made at a time; while it is made, or
fails and is to be made again, further transactions come to one call, the one after.  So for each transaction a call is
made afterwards, at least once, that names its time or a later one.  The last one before the process ended may not have
been made, so a process begins by naming the time that it finds.

Ticks make the next attempt; after a failure not before a pause, which grows.
"""

from __future__ import annotations

from typing import Final

import msgspec

from strandline.errors import reason
from strandline.instance.connections import Trigger
from strandline.instance.loop import Loop
from strandline.instance.problems import Problems
from strandline.problem import Problem, Stopped, Way
from strandline.store.beside import Beside
from strandline.store.clock import Clock

PAUSE_MS: Final = 1_000
PAUSE_MS_MAX: Final = 60_000
"""How long to wait after the first failure, and at most: each time twice as long."""


REFUSED: Final = Problem(
    "trigger-refused",
    "its trigger {why}; it is called again",
    Stopped.NOTHING,
    (
        Way("mend what it calls"),
        Way("call it no longer", "ALTER MATERIALIZATION {item:sql} RESET (trigger)"),
    ),
    "The endpoint is up to date; what the trigger starts may not know of it.",
)


class Announcer:
    """The announcements of one materialization.  Its loop is woken by the owner."""

    def __init__(self, name: str, key: str, trigger: Trigger, clock: Clock, beside: Beside, problems: Problems) -> None:
        """``key``: another one for each materialization, also for one of a name that was used before."""
        self._name = name
        self._key = key
        self._trigger = trigger
        self._clock = clock
        self._problems = problems
        self._wanted = self._done = 0
        self._pause = PAUSE_MS
        self._next_ms = 0
        self.trouble = ""
        """Why the last call failed; empty if it did not."""
        self.loop = Loop(beside, self._turn)

    @property
    def behind(self) -> bool:
        """Whether a call is to be made."""
        return self._done < self._wanted

    def reached(self, checkpoint: int) -> None:
        """Take note of a time before which everything is at the endpoint; 0: of nothing yet."""
        self._wanted = max(self._wanted, checkpoint)

    async def _turn(self) -> None:
        now = self._clock.now_ms()
        while self.behind and not self._next_ms - PAUSE_MS_MAX <= now < self._next_ms:
            wanted, before = self._wanted, self.trouble
            body = msgspec.json.encode({"materialization": self._name, "checkpoint": wanted})
            try:
                refusal = await self._trigger(body, f"{self._key}-{wanted}")
            except Exception as error:  # noqa: BLE001 - a trigger never stops its materialization
                refusal = reason(error)
            if refusal:
                self.trouble = REFUSED.said(why=refusal, item=self._name)
                self._next_ms, self._pause = now + self._pause, min(2 * self._pause, PAUSE_MS_MAX)
                self._problems.setdefault(self._name, self.trouble)
                return
            self._done, self._pause, self._next_ms, self.trouble = wanted, PAUSE_MS, 0, ""
            if before and self._problems.get(self._name) == before:
                self._problems.note(self._name, "")
