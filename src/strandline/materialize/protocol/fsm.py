"""The runtime's state machine as a pure function: which message to send, and what to make durable.

Two machines run side by side.  The *head* takes one transaction from reading its extent to the log's commit; the *tail*
waits until the previous one is acknowledged.  The head extends the next transaction while the tail is still busy, and
does not close it before (law M5).  A state holds only data that is valid in it, an action is one I/O, and every event
that is not in `RULES` is a `ProtocolViolation`.

    head   Closed > Opening > Idle > Extending > Flushing > PersistingExtent > Storing > StartingCommit >
           PersistingCommit > Idle
    tail   Done > Committing > Acknowledging > PersistingState > Done

Where the design says Rotate: the log's commit moves the transaction from the head to the tail, in the one step of
`CommitPersisted`.

An extent without changes is *quiet*, unless it settles the task: no message is sent.  The position moves on, and once
it is `QUIET_TIMES_MAX` ahead of the durable position the log records it, so that since holds can follow.  The
endpoint's checkpoint may therefore lag, but it is still right: the endpoint equals the collections there and at every
time up to the position.

A replay has the bindings that it began with and no others.  A binding that came since begins with the next transaction:
its collection may be readable only later than where the replay ends.

`RULES` is the only definition: `step` dispatches on it, tests enumerate it, and docs/materialize-protocol.md is
generated from it.

Laws: M1, M5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from strandline.errors import ProtocolViolation
from strandline.materialize.protocol.messages import Acknowledged, Flushed, Loaded, Opened, StartedCommit
from strandline.materialize.protocol.states import (
    TAIL_EVENTS,
    Acknowledging,
    Action,
    Closed,
    CommitPersisted,
    Committing,
    Done,
    Event,
    Extend,
    Extending,
    ExtentPersisted,
    Flushing,
    Head,
    Hold,
    Idle,
    Machine,
    Opening,
    PersistCommit,
    PersistExtent,
    PersistingCommit,
    PersistingExtent,
    PersistingQuiet,
    PersistingState,
    PersistQuiet,
    PersistState,
    QuietPersisted,
    Read,
    ReadChanges,
    Refuse,
    SendAcknowledge,
    SendFlush,
    SendLoad,
    SendOpen,
    SendStartCommit,
    SendStore,
    Sent,
    Start,
    StartingCommit,
    StatePersisted,
    Storing,
    Tail,
)
from strandline.materialize.protocol.task import Extent, Progress

Step: TypeAlias = tuple[Machine, tuple[Action, ...]]

QUIET_TIMES_MAX: Final = 10_000
"""How far, in milliseconds of time, a quiet position may be ahead of the durable one."""


def step(machine: Machine, event: Event) -> Step:
    """Return the machine after ``event``, and the actions to do now, in order.

    Raises:
        ProtocolViolation: the event may not come in this state; the message names both.
    """
    state = machine.tail if isinstance(event, TAIL_EVENTS) else machine.head
    rule = _BY_PAIR.get((type(state), type(event)))
    if rule is None:
        raise _violation(state, event)
    return rule.apply(machine, state, event)


def _violation(state: Head | Tail, event: Event) -> ProtocolViolation:
    return ProtocolViolation(f"{type(event).__name__} came in {type(state).__name__}")


# ---------------------------------------------------------------------------------------------------------------------
# Head rules


def _start(machine: Machine, _head: Closed, event: Start) -> Step:
    return replace(machine, head=Opening(event.logged, event.restart)), (SendOpen(),)


def _opened(machine: Machine, head: Opening, event: Opened) -> Step:
    logged = head.logged
    named = event.checkpoint if event.checkpoint is not None else head.restart
    base = logged.checkpoint if named is None else named
    begun = logged.extent if logged.extent is not None and logged.extent.base == base else None
    if begun is not None and not begun.concerns(machine.state_keys):
        begun = None  # its rows are gone with the backfills, and it may be one that could never be stored
    reached = logged.position if logged.checkpoint == base else base
    position = reached if begun is None else begun.start
    replay = begun if named is None else None  # an endpoint whose checkpoint is known has kept nothing else
    idle = Idle(Progress(base, position, replay), position)
    return replace(machine, asks=not event.refuses, head=idle, tail=Acknowledging()), (SendAcknowledge(),)


def _extend(machine: Machine, head: Idle, event: Extend) -> Step:
    if machine.due(event.upper, settles=event.settles) != event.upper:
        raise ProtocolViolation(f"Extend up to {event.upper} came in Idle, where it is not due")
    taking_part = machine.taking_part(head.progress)
    reads = tuple(
        ReadChanges(i, head.position.of(key) or 0, event.upper)
        for i, key in enumerate(machine.state_keys)
        if key in taking_part
    )
    unread = frozenset(each.binding for each in reads)
    return replace(
        machine, head=Extending(head.progress, head.position, event.upper, unread, settles=event.settles)
    ), reads


def _read(machine: Machine, head: Extending, event: Read) -> Step:
    if event.binding not in head.unread:
        raise ProtocolViolation(f"Read of binding {event.binding} came in Extending, where it is not outstanding")
    filled = (*head.filled, event.binding) if event.rows else head.filled
    extending = replace(head, unread=head.unread - {event.binding}, filled=filled)
    loads: tuple[Action, ...] = ()
    replays = head.progress.extent is not None
    every = replays or event.binding in machine.reduces
    known = replays or ((machine.asks or every) and head.position.of(machine.state_keys[event.binding]))
    if event.rows and known and event.binding not in machine.deltas:
        extending = replace(extending, loading=head.loading | {event.binding})
        loads = (SendLoad(event.binding, new=not every),)
    machine, closing = _close(replace(machine, head=extending), extending)
    return machine, loads + closing


def _close(machine: Machine, head: Extending) -> Step:
    """Close the transaction if all changes are read and the previous one is acknowledged; otherwise wait."""
    if head.unread or not isinstance(machine.tail, Done):
        return machine, ()
    begun = all(head.progress.checkpoint.of(key) is not None for key in machine.state_keys)
    if head.filled or head.settles or not begun:
        flushing = Flushing(head.progress, head.position, head.upper, head.filled, head.loading)
        return replace(machine, head=flushing), (SendFlush(),)
    position = head.position.advance(machine.state_keys, head.upper)
    if head.upper - head.progress.position.time(machine.state_keys) < QUIET_TIMES_MAX:
        return replace(machine, head=Idle(replace(head.progress, extent=None), position)), ()
    quiet = Progress(head.progress.checkpoint, position)
    return replace(machine, head=PersistingQuiet(quiet)), (PersistQuiet(quiet),)


def _quiet_persisted(machine: Machine, head: PersistingQuiet, _event: QuietPersisted) -> Step:
    return replace(machine, head=Idle(head.progress, head.progress.position)), _holds(machine, head.progress)


def _loaded(machine: Machine, head: Extending | Flushing, event: Loaded) -> Step:
    if event.binding not in head.loading or not isinstance(machine.tail, Done | PersistingState):
        raise _violation(head, event)
    if head.progress.extent is None and event.binding not in machine.reduces and event.rows.num_rows:
        return machine, (Refuse(event),)
    return machine, ()


def _flushed(machine: Machine, head: Flushing, event: Flushed) -> Step:
    extent = Extent(head.progress.checkpoint, head.position, head.upper, machine.taking_part(head.progress))
    progress = replace(head.progress, extent=extent)
    return (
        replace(machine, head=PersistingExtent(progress, extent, head.filled)),
        (PersistExtent(progress, event.state),),
    )


def _extent_persisted(machine: Machine, head: PersistingExtent, _event: ExtentPersisted) -> Step:
    return _store(machine, head.progress, head.extent, head.filled)


def _sent(machine: Machine, head: Storing, event: Sent) -> Step:
    if event.binding != head.remaining[0]:
        raise ProtocolViolation(f"Sent of binding {event.binding} came in Storing, which is at {head.remaining[0]}")
    return _store(machine, head.progress, head.extent, head.remaining[1:])


def _store(machine: Machine, progress: Progress, extent: Extent, remaining: tuple[int, ...]) -> Step:
    """Send the next binding's rows, or begin the commit when there are none."""
    if remaining:
        return replace(machine, head=Storing(progress, extent, remaining)), (SendStore(remaining[0]),)
    checkpoint = extent.base.advance(extent.keys, extent.upper)
    committing = Progress(checkpoint, checkpoint, extent)
    return replace(machine, head=StartingCommit(progress, committing)), (SendStartCommit(checkpoint),)


def _started_commit(machine: Machine, head: StartingCommit, event: StartedCommit) -> Step:
    persisting = PersistingCommit(head.progress, head.committing)
    return (
        replace(machine, head=persisting, tail=Committing()),
        (PersistCommit(head.committing, event.state),),
    )


def _commit_persisted(machine: Machine, head: PersistingCommit, _event: CommitPersisted) -> Step:
    assert isinstance(machine.tail, Committing), "the tail began to commit when the head did"
    idle = Idle(replace(head.committing, extent=None), head.committing.position)
    rotated = replace(machine, head=idle, tail=Acknowledging())
    if machine.tail.early is None:
        return rotated, (SendAcknowledge(),)
    rotated, actions = _acknowledged(rotated, Acknowledging(), machine.tail.early)
    return rotated, (SendAcknowledge(), *actions)


# ---------------------------------------------------------------------------------------------------------------------
# Tail rules


def _acknowledged_early(machine: Machine, tail: Committing, event: Acknowledged) -> Step:
    if tail.early is not None:
        raise ProtocolViolation("Acknowledged came in Committing, for the second time")
    return replace(machine, tail=Committing(event)), ()


def _acknowledged(machine: Machine, _tail: Acknowledging, event: Acknowledged) -> Step:
    if event.state is not None:
        assert isinstance(machine.head, Idle | Extending), "the head cannot be closed while the tail is busy"
        return replace(machine, tail=PersistingState()), (PersistState(machine.head.progress, event.state),)
    return _done(machine)


def _state_persisted(machine: Machine, _tail: PersistingState, _event: StatePersisted) -> Step:
    return _done(machine)


def _done(machine: Machine) -> Step:
    """End the previous transaction: holds may advance, and the next transaction may close."""
    assert isinstance(machine.head, Idle | Extending), "the head cannot be closed while the tail is busy"
    holds = _holds(machine, machine.head.progress)
    machine = replace(machine, tail=Done())
    if isinstance(machine.head, Extending):
        machine, closing = _close(machine, machine.head)
        return machine, holds + closing
    return machine, holds


def _holds(machine: Machine, progress: Progress) -> tuple[Action, ...]:
    """Return the holds that the durable ``progress`` allows; none for a binding that starts from nothing."""
    times = [progress.position.of(key) for key in machine.state_keys]
    return tuple(Hold(i, time) for i, time in enumerate(times) if time is not None)


# ---------------------------------------------------------------------------------------------------------------------
# The table


@dataclass(frozen=True, slots=True)
class Rule:
    """One allowed event in one state: the possible next states of either machine (empty: unchanged), and why.

    ``beside``: the state of the other machine, if this moves it.
    """

    state: type[Any]
    event: type[Any]
    apply: Callable[[Machine, Any, Any], Step]
    head: tuple[type[Any], ...]
    tail: tuple[type[Any], ...]
    actions: tuple[type[Any], ...]
    why: str
    beside: type[Any] | None = None


RULES: Final[tuple[Rule, ...]] = (
    Rule(Closed, Start, _start, (Opening,), (), (SendOpen,), "the log was read; every older session is fenced by Open"),
    Rule(
        Opening,
        Opened,
        _opened,
        (Idle,),
        (Acknowledging,),
        (SendAcknowledge,),
        "the endpoint's checkpoint counts if there is one; else the log's, and an extent in flight is replayed exactly",
        beside=Done,
    ),
    Rule(
        Idle,
        Extend,
        _extend,
        (Extending,),
        (),
        (ReadChanges,),
        "every binding is read up to the same time; in a replay, those that it began with",
    ),
    Rule(
        Extending,
        Read,
        _read,
        (Extending, Flushing, Idle, PersistingQuiet),
        (),
        (SendLoad, SendFlush, PersistQuiet),
        "closed when all changes are read and the tail is done; quiet when nothing changed",
    ),
    Rule(PersistingQuiet, QuietPersisted, _quiet_persisted, (Idle,), (), (Hold,), "holds follow the durable position"),
    Rule(
        Extending,
        Loaded,
        _loaded,
        (),
        (),
        (Refuse,),
        "only for a binding with a Load, and only after Acknowledged; outside a replay no new key may be there",
    ),
    Rule(Flushing, Loaded, _loaded, (), (), (Refuse,), "only for a binding with a Load; likewise"),
    Rule(Flushing, Flushed, _flushed, (PersistingExtent,), (), (PersistExtent,), "the extent is durable before a row"),
    Rule(
        PersistingExtent,
        ExtentPersisted,
        _extent_persisted,
        (Storing, StartingCommit),
        (),
        (SendStore, SendStartCommit),
        "from now on a crash replays exactly this extent",
    ),
    Rule(
        Storing,
        Sent,
        _sent,
        (Storing, StartingCommit),
        (),
        (SendStore, SendStartCommit),
        "one binding after the other",
    ),
    Rule(
        StartingCommit,
        StartedCommit,
        _started_commit,
        (PersistingCommit,),
        (Committing,),
        (PersistCommit,),
        "checkpoint and driver state in one record",
        beside=Done,
    ),
    Rule(
        PersistingCommit,
        CommitPersisted,
        _commit_persisted,
        (Idle,),
        (Acknowledging, PersistingState, Done),
        (SendAcknowledge, PersistState, Hold),
        "the transaction moves from the head to the tail",
        beside=Committing,
    ),
    Rule(
        Committing,
        Acknowledged,
        _acknowledged_early,
        (),
        (Committing,),
        (),
        "a transactional driver need not wait for Acknowledge",
    ),
    Rule(
        Acknowledging,
        Acknowledged,
        _acknowledged,
        (Idle, Extending, Flushing, PersistingQuiet),
        (PersistingState, Done),
        (PersistState, Hold, SendFlush, PersistQuiet),
        "the transaction has ended; the next one may close",
        beside=Extending,
    ),
    Rule(
        PersistingState,
        StatePersisted,
        _state_persisted,
        (Idle, Extending, Flushing, PersistingQuiet),
        (Done,),
        (Hold, SendFlush, PersistQuiet),
        "likewise",
        beside=Extending,
    ),
)
_BY_PAIR: Final = {(rule.state, rule.event): rule for rule in RULES}
assert len(_BY_PAIR) == len(RULES), "one rule for one state and event"
