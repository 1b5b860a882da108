"""The vocabulary of the runtime's state machine: its states, its events and its actions.

A state holds only data that is valid in it; an action is one I/O.  `fsm` has the transitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from strandline.materialize.protocol.messages import Acknowledged, Flushed, Loaded, Opened, StartedCommit
from strandline.materialize.protocol.task import NOTHING, Checkpoint, Extent, Progress, StateUpdate

# ---------------------------------------------------------------------------------------------------------------------
# Head states


@dataclass(frozen=True, slots=True)
class Closed:
    """No session."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Open was sent; ``logged`` is the progress in the log, ``restart`` where the driver's state asks to begin."""

    logged: Progress
    restart: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """No transaction.  ``progress`` is durable, ``position`` may be ahead of it while nothing changes.

    ``client.extent`` is set iff some of its rows may be in an endpoint without a checkpoint: it must be replayed
    exactly, and the endpoint must be asked which of its rows exist.
    """

    progress: Progress
    position: Checkpoint


@dataclass(frozen=True, slots=True)
class Extending:
    """The changes up to ``upper`` are being read.

    ``unread`` bindings are not read yet; ``filled`` ones have rows; for those in ``loading`` a `Load` of their keys was
    sent.  ``settles``: the transaction is committed although nothing may have changed.
    """

    progress: Progress
    position: Checkpoint
    upper: int
    unread: frozenset[int]
    filled: tuple[int, ...] = ()
    loading: frozenset[int] = frozenset()
    settles: bool = False


@dataclass(frozen=True, slots=True)
class PersistingQuiet:
    """Nothing changed; the new position is being written to the log."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Flushing:
    """Flush was sent."""

    progress: Progress
    position: Checkpoint
    upper: int
    filled: tuple[int, ...]
    loading: frozenset[int]


@dataclass(frozen=True, slots=True)
class PersistingExtent:
    """The extent is being made durable, before the first Store."""

    progress: Progress
    extent: Extent
    filled: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Storing:
    """Rows are being sent; of the ``remaining`` bindings the first is being sent now."""

    progress: Progress
    extent: Extent
    remaining: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StartingCommit:
    """StartCommit was sent."""

    progress: Progress
    committing: Progress


@dataclass(frozen=True, slots=True)
class PersistingCommit:
    """The log's commit: checkpoint and driver state in one record."""

    progress: Progress
    committing: Progress


# ---------------------------------------------------------------------------------------------------------------------
# Tail states


@dataclass(frozen=True, slots=True)
class Done:
    """The previous transaction is acknowledged and its state durable."""


@dataclass(frozen=True, slots=True)
class Committing:
    """StartedCommit came, Acknowledge is not sent yet; a transactional driver may have answered ``early``."""

    early: Acknowledged | None = None


@dataclass(frozen=True, slots=True)
class Acknowledging:
    """Acknowledge was sent."""


@dataclass(frozen=True, slots=True)
class PersistingState:
    """Acknowledged came with a state, which is being written to the log."""


Head: TypeAlias = (
    Closed
    | Opening
    | Idle
    | Extending
    | PersistingQuiet
    | Flushing
    | PersistingExtent
    | Storing
    | StartingCommit
    | PersistingCommit
)
Tail: TypeAlias = Done | Committing | Acknowledging | PersistingState

HEADS: Final[tuple[type[Any], ...]] = (
    Closed,
    Opening,
    Idle,
    Extending,
    PersistingQuiet,
    Flushing,
    PersistingExtent,
    Storing,
    StartingCommit,
    PersistingCommit,
)
TAILS: Final[tuple[type[Any], ...]] = (Done, Committing, Acknowledging, PersistingState)


@dataclass(frozen=True, slots=True)
class Machine:
    """Both machines, over the bindings named by ``state_keys``.

    ``deltas``: those of which nothing is ever loaded.  ``reduces``: those whose rows are reduced with what is stored,
    which is loaded each time.  ``asks``: the endpoint does not refuse a second row of a key by itself; the runtime asks
    it beforehand whether it has the keys that are said to be new.
    """

    state_keys: tuple[str, ...]
    deltas: frozenset[int] = frozenset()
    reduces: frozenset[int] = frozenset()
    asks: bool = False
    head: Head = field(default_factory=Closed)
    tail: Tail = field(default_factory=Done)

    @property
    def rests(self) -> bool:
        """Return whether nothing is under way."""
        return isinstance(self.head, Idle) and isinstance(self.tail, Done)

    @property
    def begun(self) -> tuple[str, ...]:
        """The state keys that the endpoint's checkpoint has, as far as it is known."""
        checkpoint = self.head.progress.checkpoint if isinstance(self.head, Idle | Extending) else NOTHING
        return tuple(key for key in self.state_keys if checkpoint.of(key) is not None)

    @property
    def replays(self) -> bool:
        """Whether a transaction is to be done again, of which the endpoint may have rows."""
        return self._cut_off is not None

    @property
    def replays_to(self) -> int:
        """Where the transaction ends that is to be done again; 0: there is none."""
        return 0 if self._cut_off is None else self._cut_off.upper

    @property
    def _cut_off(self) -> Extent | None:
        return self.head.progress.extent if isinstance(self.head, Idle | Extending) else None

    def taking_part(self, progress: Progress) -> tuple[str, ...]:
        """Return the state keys of the next transaction: all, but in a replay those that it began with.

        A replay that an earlier version began does not say with which; then it was all.
        """
        replay = progress.extent
        begun = () if replay is None else replay.keys
        return tuple(key for key in self.state_keys if not begun or key in begun)

    def due(self, upper: int, *, settles: bool = False) -> int | None:
        """Return where the next transaction ends if the collections are complete up to ``upper``, or None.

        ``settles``: one is due as well if the endpoint's checkpoint is not there, though nothing has changed.
        """
        if not isinstance(self.head, Idle):
            return None
        replay = self.head.progress.extent
        if replay is not None:
            return replay.upper if replay.upper <= upper else None
        reached = [self.head.position.of(key) or 0 for key in self.state_keys]
        if upper < max(reached):
            return None
        if settles and any(self.head.progress.checkpoint.of(key) != upper for key in self.state_keys):
            return upper
        return upper if upper > min(reached) else None


# ---------------------------------------------------------------------------------------------------------------------
# Events besides the driver's messages, and actions


@dataclass(frozen=True, slots=True)
class Start:
    """Begin, from the progress in the log; ``restart``: from an earlier checkpoint, which the driver's state names."""

    logged: Progress
    restart: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Extend:
    """A transaction up to ``upper`` is due (see `Machine.due`)."""

    upper: int
    settles: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """The changes of a binding were read and reduced to ``rows`` rows to store."""

    binding: int
    rows: int


@dataclass(frozen=True, slots=True)
class Sent:
    """The rows of a binding were sent to the driver."""

    binding: int


@dataclass(frozen=True, slots=True)
class QuietPersisted:
    """The write of `PersistQuiet` is durable."""


@dataclass(frozen=True, slots=True)
class ExtentPersisted:
    """The write of `PersistExtent` is durable."""


@dataclass(frozen=True, slots=True)
class CommitPersisted:
    """The write of `PersistCommit` is durable: the transaction is committed."""


@dataclass(frozen=True, slots=True)
class StatePersisted:
    """The write of `PersistState` is durable."""


Event: TypeAlias = (
    Start
    | Extend
    | Read
    | Sent
    | QuietPersisted
    | ExtentPersisted
    | CommitPersisted
    | StatePersisted
    | Opened
    | Acknowledged
    | Loaded
    | Flushed
    | StartedCommit
)
EVENTS: Final[tuple[type[Any], ...]] = (
    Start,
    Opened,
    Extend,
    Read,
    QuietPersisted,
    Loaded,
    Flushed,
    ExtentPersisted,
    Sent,
    StartedCommit,
    CommitPersisted,
    Acknowledged,
    StatePersisted,
)
TAIL_EVENTS: Final = (Acknowledged, StatePersisted)


@dataclass(frozen=True, slots=True)
class SendOpen:
    """Send `Open`."""


@dataclass(frozen=True, slots=True)
class SendAcknowledge:
    """Send `Acknowledge`."""


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """Read a binding's changes over ``[lower, upper)`` and reduce them to rows; answer with `Read`."""

    binding: int
    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class SendLoad:
    """Send `Load`s for every key that was read of a binding; ``new``: for those that are said to be new."""

    binding: int
    new: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """Fail with `DefinitionError`: the endpoint has rows of these keys, and the collection adds others to them.

    Fail with `FencedError` instead if another runtime has the task: then the rows may be its own.
    """

    loaded: Loaded


@dataclass(frozen=True, slots=True)
class SendFlush:
    """Send `Flush`."""


@dataclass(frozen=True, slots=True)
class SendStore:
    """Send `Store`s with a binding's rows; answer with `Sent`."""

    binding: int


@dataclass(frozen=True, slots=True)
class SendStartCommit:
    """Send `StartCommit`."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class PersistQuiet:
    """Write the log: ``progress`` moved, nothing was committed."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class PersistExtent:
    """Write the log: the extent in flight, and the driver's state."""

    progress: Progress
    state: StateUpdate | None


@dataclass(frozen=True, slots=True)
class PersistCommit:
    """Write the log: the commit."""

    progress: Progress
    state: StateUpdate | None


@dataclass(frozen=True, slots=True)
class PersistState:
    """Write the log: the driver's state, and that nothing is under way that the endpoint has not acknowledged."""

    progress: Progress
    state: StateUpdate


@dataclass(frozen=True, slots=True)
class Hold:
    """Move the since hold of a binding: from now on its changes are only read from ``time`` on."""

    binding: int
    time: int


Action: TypeAlias = (
    SendOpen
    | SendAcknowledge
    | ReadChanges
    | SendLoad
    | Refuse
    | SendFlush
    | SendStore
    | SendStartCommit
    | PersistQuiet
    | PersistExtent
    | PersistCommit
    | PersistState
    | Hold
)
