"""Grammar: which message may come next, for code that observes a stream of messages.

A driver checks its requests and answers with it; a test wraps a session in it.  (The runtime does not need it: `fsm`
cannot send what the grammar forbids, and a test compares the two.)

Law: M1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from strandline.errors import ProtocolViolation
from strandline.materialize.protocol.messages import (
    Acknowledge,
    Acknowledged,
    Flush,
    Flushed,
    Load,
    Loaded,
    Message,
    Open,
    Opened,
    StartCommit,
    StartedCommit,
    Store,
)


class Place(Enum):
    """The place of a conversation in the cycle."""

    NEW = "nothing was said"
    OPENING = "Open was sent"
    LOADING = "a transaction is open"
    FLUSHING = "Flush was sent"
    STORING = "Flushed was received"
    STARTING = "StartCommit was sent"


@dataclass(frozen=True, slots=True)
class Conversation:
    """The history of a conversation, as far as it decides which message may come next.

    >>> Conversation().then(Flush())
    Traceback (most recent call last):
        ...
    strandline.errors.ProtocolViolation: Flush came when nothing was said
    """

    place: Place = Place.NEW
    acknowledge: bool = False
    acknowledged: bool = False
    loading: frozenset[int] = field(default=frozenset())

    def then(self, message: Message) -> Conversation:
        """Return the conversation after ``message``.

        Raises:
            ProtocolViolation: the message is not allowed here; the sender has a bug.
        """
        ready = self.acknowledge and self.acknowledged
        match message, self.place:
            case Open(), Place.NEW:
                return replace(self, place=Place.OPENING)
            case Opened(), Place.OPENING:
                return Conversation(Place.LOADING)
            case Acknowledge(), Place.LOADING if not self.acknowledge:
                return replace(self, acknowledge=True)
            case Acknowledged(), Place.LOADING if not self.acknowledged:
                return replace(self, acknowledged=True)
            case Load(binding), Place.LOADING if self.acknowledge:
                return replace(self, loading=self.loading | {binding})
            case Loaded(binding), (Place.LOADING | Place.FLUSHING) if ready and binding in self.loading:
                return self
            case Flush(), Place.LOADING if ready:
                return replace(self, place=Place.FLUSHING)
            case Flushed(), Place.FLUSHING:
                return replace(self, place=Place.STORING)
            case Store(), Place.STORING:
                return self
            case StartCommit(), Place.STORING:
                return replace(self, place=Place.STARTING)
            case StartedCommit(), Place.STARTING:
                return Conversation(Place.LOADING)
            case _:
                raise ProtocolViolation(f"{type(message).__name__} came when {self._said()}")

    def _said(self) -> str:
        if self.place is not Place.LOADING or (self.acknowledge and self.acknowledged):
            return self.place.value
        missing = [
            name for name, said in (("Acknowledge", self.acknowledge), ("Acknowledged", self.acknowledged)) if not said
        ]
        return f"{self.place.value}, before {' and '.join(missing)}"
