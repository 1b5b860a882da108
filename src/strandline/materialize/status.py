"""The status of a materialization: how far it is, what it has committed, and what is under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FAILED: Final = "Failed"
"""The phase of a task whose last call failed."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Transactions, and the rows in them."""

    transactions: int = 0
    stored: int = 0
    deleted: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.transactions + other.transactions, self.stored + other.stored, self.deleted + other.deleted)


@dataclass(frozen=True, slots=True)
class Moving:
    """The transaction in flight: rows ``read``, of about ``about`` updates, and rows ``sent`` to the endpoint.

    ``about`` is an upper bound, because updates that cancel give no rows.
    """

    read: int = 0
    about: int = 0
    sent: int = 0

    def __add__(self, other: Moving) -> Moving:
        return Moving(self.read + other.read, self.about + other.about, self.sent + other.sent)


@dataclass(frozen=True, slots=True)
class Status:
    """The status for people.

    ``checkpoint``: the time before which everything is in the endpoint, as the endpoint or the log says
    it.  ``position``: the same or later; nothing changed in between, so the endpoint is right up to
    here.  ``committed``: by this runtime.  ``moving``: in the transaction under way, or that failed.  ``applied``: what
    was done to the endpoint's tables since it was opened, until a transaction has filled them.
    """

    name: str
    phase: str
    checkpoint: int
    position: int
    committed: Counts
    moving: Moving
    applied: tuple[str, ...]
    error: str | None
    waits: str = ""
    """What its collections wait for; empty if they wait for nothing."""
    splits: tuple[Status, ...] = ()
    """Those of its splits, if it has several; each is named by its key range."""


def together(name: str, splits: tuple[Status, ...]) -> Status:
    """Return the status of a task, given those of its splits."""
    phases = [each.phase for each in splits]
    return Status(
        name=name,
        phase=FAILED if FAILED in phases else phases[0],
        checkpoint=min(each.checkpoint for each in splits),
        position=min(each.position for each in splits),
        committed=sum((each.committed for each in splits), Counts()),
        moving=sum((each.moving for each in splits), Moving()),
        applied=tuple(dict.fromkeys(said for each in splits for said in each.applied)),
        error=next((each.error for each in splits if each.error), None),
        waits=splits[0].waits,
        splits=splits,
    )


def unwatched(status: Status) -> None:
    """Ignore a status: the default ``watch`` of a task."""
