"""The messages of a materialization, and their grammar: imperative from the runtime, past tense from the driver.

    -> Open                  <- Opened
    then per transaction:
    -> Acknowledge           <- Acknowledged     each exactly once, unordered with each other, before everything else
    -> Load*                 <- Loaded*          Loads are answered only after Acknowledged
    -> Flush                 <- Loaded* Flushed  Flush is never sent before Acknowledged was received
    -> Store*                                    no answer allowed
    -> StartCommit           <- StartedCommit    then the runtime's log commits, and the next Acknowledge begins

This is the native form: `Load`, `Loaded` and `Store` carry many rows as one Arrow table, and a transaction has as many
of these messages as keep each of them small.  ``binding`` is the index into ``Open.spec.bindings``.  Both sides may
speak at once.  A driver may send `StartedCommit` before it has committed; it sends `Acknowledged` when it has.

`Conversation` checks the grammar: a driver checks its requests and answers with it, and a test wraps a session in it.
The runtime does not need it: `fsm` cannot send what the grammar forbids, and a test compares the two.

Law: M1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from strandline.algebra.schema import RESERVED
from strandline.errors import ProtocolViolation
from strandline.materialize.protocol.task import Checkpoint, KeyRange, MaterializationSpec, StateUpdate

EXISTS: Final = f"{RESERVED}exists"
DELETE: Final = f"{RESERVED}delete"


def flagged(rows: pa.Table, exists: np.ndarray[Any, Any], delete: np.ndarray[Any, Any]) -> pa.Table:
    """Return ``rows`` with their flags, one of each a row, for a `Store`."""
    return rows.append_column(EXISTS, pa.array(exists, pa.bool_())).append_column(DELETE, pa.array(delete, pa.bool_()))


def unflagged(rows: pa.Table) -> pa.Table:
    """Return ``rows`` for a `Store`, neither flag set in any."""
    neither = np.zeros(len(rows), bool)
    return flagged(rows, neither, neither)


@dataclass(frozen=True, slots=True)
class Open:
    """Begin a session for ``range``: from now on no older session that overlaps it can commit."""

    spec: MaterializationSpec
    version: str
    range: KeyRange
    state: Any


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The previous transaction is durable in the runtime's log: apply its rows that are still staged."""


@dataclass(frozen=True, slots=True)
class Load:
    """Return the stored rows that have these keys: the binding's key columns, in their order, no key twice."""

    binding: int
    keys: pa.Table


@dataclass(frozen=True, slots=True)
class Flush:
    """No more Loads will come: answer the outstanding ones, then send `Flushed`."""


@dataclass(frozen=True, slots=True)
class Store:
    """Keep these rows, or drop those marked `DELETE`.

    A row that is not marked `EXISTS` and whose key is there is a second row of that key.  An endpoint that said
    `Opened.refuses` refuses the transaction, with `DefinitionError`, and commits nothing of it; any other endpoint was
    asked for the key beforehand, by `Load`, unless the transaction is the first one into an empty resource.

    The table has `task.Binding.columns` in their order plus the booleans `EXISTS` (the resource has a row with this
    key) and `DELETE` (the row must be deleted).  No key is twice in a transaction, or at one time of it, if the binding
    keeps times.  Rows of a delta binding with diffs, or without a key, are changes: neither flag is ever set.
    """

    binding: int
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class StartCommit:
    """No more Stores will come: begin to commit them, with ``checkpoint`` if the endpoint keeps one."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Opened:
    """The session has begun.

    ``checkpoint`` present: the endpoint is authoritative, continue from there (from the start if it is empty).  Absent:
    the runtime's log is authoritative.

    ``refuses``: the endpoint itself refuses a second row of a key (see `Store`).  Otherwise it is asked, by `Load`, for
    every key that is said to be new.

    ``loads_all``: also for those that are greater than all that were ever stored (`greatest`), since the endpoint may
    know two keys as one.
    """

    checkpoint: Checkpoint | None
    refuses: bool = False
    loads_all: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Everything committed so far is applied and can be loaded."""

    state: StateUpdate | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """The requested rows that exist: the binding's columns, in the order of its schema."""

    binding: int
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Flushed:
    """Every Load is answered."""

    state: StateUpdate | None = None


@dataclass(frozen=True, slots=True)
class StartedCommit:
    """The commit has begun; the runtime's log must hold ``state`` to finish it after a crash."""

    state: StateUpdate | None = None


Request: TypeAlias = Open | Acknowledge | Load | Flush | Store | StartCommit
Response: TypeAlias = Opened | Acknowledged | Loaded | Flushed | StartedCommit
Message: TypeAlias = Request | Response


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
