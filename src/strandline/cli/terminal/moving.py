"""The progress of a transaction into an endpoint, reported regularly while `strandline run` waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.materialize.status import Status


@dataclass(frozen=True, slots=True)
class Pace:
    """One task's rows so far: ``done`` of about ``about``, read from its collections or sent to its endpoint."""

    name: str
    verb: str
    done: int
    about: int
    rows_per_s: int

    def __str__(self) -> str:
        share = f" ({100 * self.done // self.about} %)" if self.about else ""
        return f"{self.name}: {self.verb} {self.done:,} of about {self.about:,} rows{share}, {self.rows_per_s:,} rows/s"


class Pacer:
    """Turns a task's statuses into paces, at most one per ``pause_s`` seconds; ``now`` is a monotonic clock."""

    def __init__(self, now: Callable[[], float], pause_s: float) -> None:
        self._now = now
        self._pause_s = pause_s
        # By task: the verb, when it began, when it was last reported.
        self._begun: dict[str, tuple[str, float, float]] = {}

    def pace(self, status: Status) -> Pace | None:
        """Return the pace to report now; None if one was reported a moment ago, or no transaction is in flight."""
        moving, now = status.moving, self._now()
        match status.phase:
            case "Extending":
                verb, done, about = "read", moving.read, moving.about
            case "Storing":
                verb, done, about = "sent", moving.sent, moving.read
            case _:
                return None
        last, begun, shown_s = self._begun.get(status.name, ("", now, now))
        if last != verb or not done:
            last, begun, shown_s = verb, now, now
        due = done > 0 and now - shown_s >= self._pause_s
        self._begun[status.name] = (last, begun, now if due else shown_s)
        return Pace(status.name, verb, done, about, round(done / (now - begun))) if due else None
