"""The state machine: every pair of state and event, and every reachable conversation of a small task."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pyarrow as pa
import pytest

from strandline.errors import ProtocolViolation
from strandline.materialize.protocol import fsm, messages, states
from strandline.materialize.protocol.fsm import QUIET_TIMES_MAX, RULES, step
from strandline.materialize.protocol.messages import Acknowledged, Conversation, Flushed, Loaded, Opened, StartedCommit
from strandline.materialize.protocol.states import EVENTS, HEADS, TAIL_EVENTS, TAILS, Machine
from strandline.materialize.protocol.task import NOTHING, WHOLE, Checkpoint, Extent, Progress, StateUpdate

KEYS = ("a.v0", "b.v0")
UPPERS = (2, 4, 4 + QUIET_TIMES_MAX)
ROWS = pa.table({"k": [1]})
STATE = StateUpdate({})


def at(time: int) -> Checkpoint:
    """Return the checkpoint of both bindings at ``time``."""
    return NOTHING.advance(KEYS, time)


AT_2 = Checkpoint(((KEYS[0], 2),))
LOGS = (
    Progress(),
    Progress(at(2), at(2), Extent(at(2), at(2), 4)),
    Progress(at(4), at(4), Extent(at(2), at(3), 4)),
    Progress(at(2), at(3)),
    Progress(AT_2, AT_2, Extent(AT_2, AT_2, 4, KEYS[:1])),
)
"""What a log may hold: nothing; a transaction in flight; one that the endpoint may not have; a quiet position; a
transaction in flight that began before the second binding came."""


@dataclass(frozen=True)
class World:
    """A machine, what was said, and the events it is owed."""

    machine: Machine
    said: Conversation
    owed: tuple[states.Event, ...] = ()


def answers(action: states.Action) -> list[tuple[states.Event, ...]]:
    """Return what an action may be answered with, besides by the driver."""
    match action:
        case states.ReadChanges(binding):
            return [(states.Read(binding, 0),), (states.Read(binding, 3),)]
        case states.SendStore(binding):
            return [(states.Sent(binding),)]
        case states.PersistQuiet():
            return [(states.QuietPersisted(),)]
        case states.PersistExtent():
            return [(states.ExtentPersisted(),)]
        case states.PersistCommit():
            return [(states.CommitPersisted(),)]
        case states.PersistState():
            return [(states.StatePersisted(),)]
    return [()]


def message(action: states.Action) -> messages.Request | None:
    """Return the message that an action sends."""
    match action:
        case states.SendOpen():
            return messages.Open(None, "", WHOLE, {})  # type: ignore[arg-type]
        case states.SendAcknowledge():
            return messages.Acknowledge()
        case states.SendLoad(binding):
            return messages.Load(binding, ROWS)
        case states.SendFlush():
            return messages.Flush()
        case states.SendStore(binding):
            return messages.Store(binding, ROWS)
        case states.SendStartCommit(checkpoint):
            return messages.StartCommit(checkpoint)
    return None


RESPONSES: tuple[messages.Response, ...] = (
    Opened(None),
    Opened(NOTHING),
    Opened(at(2)),
    Acknowledged(),
    Acknowledged(STATE),
    Loaded(0, ROWS),
    Loaded(1, ROWS),
    Flushed(),
    Flushed(STATE),
    StartedCommit(),
)


def happenings(world: World) -> Iterator[tuple[states.Event, World]]:
    """Yield what may happen next: something owed comes, the driver says what it may, a transaction is due."""
    for i, event in enumerate(world.owed):
        yield event, replace(world, owed=world.owed[:i] + world.owed[i + 1 :])
    for response in RESPONSES:
        try:
            said = world.said.then(response)
        except ProtocolViolation:
            continue
        yield response, replace(world, said=said)
    for upper in UPPERS:
        if world.machine.due(upper) is not None:
            yield states.Extend(world.machine.due(upper) or 0), world


def after(world: World, event: states.Event) -> tuple[tuple[states.Action, ...], list[World]]:
    """Take one step; every message sent must be grammatical."""
    machine, actions = step(world.machine, event)
    said, owed = world.said, [world.owed]
    for action in actions:
        sent = message(action)
        if sent is not None:
            said = said.then(sent)
        owed = [before + more for before in owed for more in answers(action)]
    return actions, [World(machine, said, tuple(sorted(each, key=repr))) for each in owed]


@cache
def explored() -> tuple[dict[tuple[type, type], list[tuple[Machine, Machine, tuple[states.Action, ...]]]], int]:
    """Walk every conversation of two bindings; return what each rule was seen to do, and the number of worlds."""
    begin = [World(Machine(KEYS), Conversation(), (states.Start(log),)) for log in LOGS]
    seen = {repr(world) for world in begin}
    todo = deque(begin)
    steps: dict[tuple[type, type], list[tuple[Machine, Machine, tuple[states.Action, ...]]]] = {}
    while todo:
        world = todo.popleft()
        for event, changed in happenings(world):
            part = world.machine.tail if isinstance(event, TAIL_EVENTS) else world.machine.head
            actions, worlds = after(changed, event)
            steps.setdefault((type(part), type(event)), []).append((world.machine, worlds[0].machine, actions))
            for each in worlds:
                if repr(each) not in seen:
                    seen.add(repr(each))
                    todo.append(each)
    return steps, len(seen)


def test_every_conversation_is_grammatical_and_no_legal_answer_is_refused() -> None:
    """Damage: a driver gets a message that it must refuse, or is refused although it is right (law M1)."""
    _, worlds = explored()
    assert worlds > 500


def moves_beside(rule: fsm.Rule, old: Machine, new: Machine) -> bool:
    """Tell whether the machine that did not get the event moved."""
    pair = (old.head, new.head) if rule.state in TAILS else (old.tail, new.tail)
    return type(pair[0]) is not type(pair[1])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.state.__name__}-{rule.event.__name__}")
def test_a_rule_does_what_the_table_says_no_more_and_no_less(rule: fsm.Rule) -> None:
    """Damage: the documented protocol is not the one that runs."""
    steps = explored()[0][rule.state, rule.event]
    heads = {type(new.head) for old, new, _ in steps if rule.head or type(new.head) is not type(old.head)}
    tails = {type(new.tail) for old, new, _ in steps if rule.tail or type(new.tail) is not type(old.tail)}
    assert heads == set(rule.head)
    assert tails == set(rule.tail)
    besides = (old.head if rule.state in TAILS else old.tail for old, new, _ in steps if moves_beside(rule, old, new))
    assert {type(each) for each in besides} == ({rule.beside} if rule.beside else set())
    assert {type(action) for _, _, actions in steps for action in actions} == set(rule.actions)


SAMPLES: dict[type, tuple[states.Event, ...]] = {
    states.Start: (states.Start(Progress()),),
    states.Extend: (states.Extend(4),),
    states.Read: (states.Read(0, 1),),
    states.Sent: (states.Sent(0),),
    Opened: (Opened(None),),
    Loaded: (Loaded(0, ROWS),),
}


@cache
def machines() -> dict[type, Machine]:
    """Return one reachable machine in each state of the head and of the tail."""
    found: dict[type, Machine] = {}
    for seen in explored()[0].values():
        for old, new, _ in seen:
            for machine in (old, new):
                found.setdefault(type(machine.head), machine)
                found.setdefault(type(machine.tail), machine)
    return found


PAIRS = [
    (state, event)
    for event in EVENTS
    for state in (TAILS if event in TAIL_EVENTS else HEADS)
    if (state, event) not in {(rule.state, rule.event) for rule in RULES}
]


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=lambda each: each.__name__)
def test_every_other_event_is_a_violation_that_names_both(state: type, event: type) -> None:
    """Damage: a message of another moment counts as one of this moment."""
    for sample in SAMPLES.get(event, ()) or (event(),):
        with pytest.raises(ProtocolViolation, match=rf"^{event.__name__} came in {state.__name__}$"):
            step(machines()[state], sample)


def test_every_pair_is_either_in_the_table_or_refused() -> None:
    """Damage: a pair of state and event without a decision."""
    heads, tails = len(EVENTS) - len(TAIL_EVENTS), len(TAIL_EVENTS)
    assert len(PAIRS) + len(RULES) == heads * len(HEADS) + tails * len(TAILS)


def test_a_planted_flush_before_acknowledged_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the exploration above would let it pass (law M5)."""
    close = fsm._close
    monkeypatch.setattr(fsm, "_close", lambda machine, head: close(replace(machine, tail=states.Done()), head))
    with pytest.raises(ProtocolViolation, match="Flush came when a transaction is open, before Acknowledged"):
        explored.__wrapped__()


def run(machine: Machine, *events: states.Event) -> tuple[Machine, tuple[states.Action, ...]]:
    """Take steps; return the last one's actions."""
    actions: tuple[states.Action, ...] = ()
    for event in events:
        machine, actions = step(machine, event)
    return machine, actions


@pytest.mark.parametrize(
    ("log", "checkpoint", "reads"),
    [
        pytest.param(Progress(), None, (0, 0), id="nothing was ever done"),
        pytest.param(Progress(at(5), at(7)), None, (7, 7), id="the log is the authority"),
        pytest.param(Progress(at(5), at(7)), at(5), (7, 7), id="a quiet position of the same checkpoint counts"),
        pytest.param(Progress(at(5), at(7)), at(4), (4, 4), id="the endpoint's checkpoint is the authority"),
        pytest.param(Progress(at(5), at(7)), NOTHING, (0, 0), id="present but empty means from the start"),
        pytest.param(
            Progress(at(5), at(7)), Checkpoint((("a.v0", 5),)), (5, 0), id="a new binding begins from nothing"
        ),
        pytest.param(
            Progress(at(5), at(5), Extent(at(2), at(3), 5)), at(2), (3, 3), id="the log is ahead of the endpoint"
        ),
    ],
)
def test_recovery_begins_where_the_authority_says(
    log: Progress, checkpoint: Checkpoint | None, reads: tuple[int, int]
) -> None:
    """Damage: changes are skipped or repeated after a restart (law M2)."""
    machine, _ = run(Machine(KEYS), states.Start(log), Opened(checkpoint))
    upper = machine.due(9)
    assert upper is not None
    _, actions = step(machine, states.Extend(upper))
    assert actions == tuple(states.ReadChanges(i, lower, upper) for i, lower in enumerate(reads))


def test_an_extent_in_flight_is_replayed_exactly() -> None:
    """Damage: an endpoint without transactions gets half of one transaction and half of another."""
    log = Progress(at(2), at(2), Extent(at(2), at(2), 5))
    machine, _ = run(Machine(KEYS), states.Start(log), Opened(None), Acknowledged())
    assert [machine.due(upper) for upper in (4, 5, 9)] == [None, 5, 5]
    with pytest.raises(ProtocolViolation, match="not due"):
        step(machine, states.Extend(9))
    _, actions = run(machine, states.Extend(5), states.Read(0, 1))
    assert actions == (states.SendLoad(0, new=False),), "which of its rows are there must be asked"


def test_a_binding_that_has_come_since_takes_no_part_in_a_replay() -> None:
    """Damage: its collection cannot be read as early as where the replay ends, and the task stands still for ever."""
    log = Progress(AT_2, AT_2, Extent(AT_2, AT_2, 5, KEYS[:1]))
    machine, _ = run(Machine(KEYS), states.Start(log), Opened(None), Acknowledged())
    machine, actions = step(machine, states.Extend(5))
    assert actions == (states.ReadChanges(0, 2, 5),)
    machine, _ = run(machine, states.Read(0, 1))
    machine, actions = run(machine, Flushed())
    (persisted,) = actions
    assert isinstance(persisted, states.PersistExtent)
    assert persisted.progress.extent == log.extent
    machine, _ = run(machine, states.ExtentPersisted(), states.Sent(0), StartedCommit(), states.CommitPersisted())
    machine, actions = step(machine, Acknowledged())
    assert actions == (states.Hold(0, 5),)
    assert machine.due(9) == 9
    _, actions = step(machine, states.Extend(9))
    assert actions == (states.ReadChanges(0, 5, 9), states.ReadChanges(1, 0, 9)), "now both are brought to one time"


def test_an_endpoint_without_a_checkpoint_is_asked_for_the_keys_that_are_new() -> None:
    """Damage: a key gets a second row, the last one wins, and no transaction after it is right."""
    begun = states.Start(Progress(at(2), at(2)))
    machine, _ = run(Machine(KEYS), begun, Opened(None), Acknowledged(), states.Extend(4))
    machine, actions = step(machine, states.Read(0, 1))
    assert actions == (states.SendLoad(0, new=True),)
    machine, actions = run(machine, states.Read(1, 0))
    assert actions == (states.SendFlush(),)
    known = Loaded(0, ROWS)
    assert step(machine, known)[1] == (states.Refuse(known),)
    for start, opened in ((begun, Opened(at(2), refuses=True)), (states.Start(Progress()), Opened(None))):
        machine, _ = run(Machine(KEYS), start, opened, Acknowledged(), states.Extend(4))
        assert step(machine, states.Read(0, 1))[1] == (), "the endpoint refuses by itself; or it has no row yet"


def test_flush_waits_for_acknowledged() -> None:
    """Damage: rows are loaded before the previous transaction's are applied (law M5)."""
    machine, _ = run(Machine(KEYS), states.Start(Progress()), Opened(None), states.Extend(4))
    machine, actions = run(machine, states.Read(0, 1), states.Read(1, 1))
    assert actions == ()
    assert not machine.rests
    assert step(machine, Acknowledged())[1] == (states.SendFlush(),)


def test_holds_wait_for_acknowledged() -> None:
    """Damage: history that the endpoint still needs is compacted away."""
    events = (states.Start(Progress()), Opened(None), Acknowledged(), states.Extend(4), states.Read(0, 1))
    machine, _ = run(Machine(KEYS), *events, states.Read(1, 0), Flushed(), states.ExtentPersisted(), states.Sent(0))
    machine, actions = run(machine, StartedCommit(), states.CommitPersisted())
    assert actions == (states.SendAcknowledge(),)
    assert step(machine, Acknowledged())[1] == (states.Hold(0, 4), states.Hold(1, 4))


def test_the_extent_is_durable_before_the_first_row_is_sent() -> None:
    """Damage: after a crash another extent is stored over half of the first."""
    for (state, _), steps in explored()[0].items():
        for _, _, actions in steps:
            if any(isinstance(action, states.SendStore) for action in actions):
                assert state in {states.PersistingExtent, states.Storing}


def test_a_quiet_extent_sends_nothing_and_is_recorded_in_time() -> None:
    """Damage: an idle task either writes at every tick, or keeps history from being compacted for ever."""
    opened = (states.Start(Progress(at(5), at(5))), Opened(None), Acknowledged())
    machine, _ = run(Machine(KEYS), *opened)
    machine, actions = run(machine, states.Extend(9), states.Read(0, 0), states.Read(1, 0))
    assert actions == ()
    assert isinstance(machine.head, states.Idle)
    assert (machine.head.position, machine.head.progress.position) == (at(9), at(5))
    late = 5 + QUIET_TIMES_MAX
    machine, actions = run(machine, states.Extend(late), states.Read(0, 0), states.Read(1, 0))
    assert actions == (states.PersistQuiet(Progress(at(5), at(late))),)
    assert step(machine, states.QuietPersisted())[1] == (states.Hold(0, late), states.Hold(1, late))


def test_machines_of_every_state_are_reachable() -> None:
    """Damage: a state that is never met is dead code."""
    assert set(machines()) == set(HEADS) | set(TAILS)


def test_states_are_values() -> None:
    """Damage: a step changes the state it came from, and a retry acts on something else."""
    machine = Machine(KEYS)
    step(machine, states.Start(Progress()))
    assert machine == Machine(KEYS)
    assert all(each.__dataclass_params__.frozen for each in (*HEADS, *TAILS))  # type: ignore[attr-defined]


def test_an_endpoint_that_keeps_its_checkpoint_is_not_tied_to_the_extent_in_flight() -> None:
    """Damage: a binding added after the crash, whose history begins later, can never be read that far back."""
    log = Progress(at(2), at(2), Extent(at(2), at(2), 5))
    machine, _ = run(Machine(KEYS), states.Start(log), Opened(at(2), refuses=True), Acknowledged())
    assert machine.due(9) == 9
    assert run(machine, states.Extend(9), states.Read(0, 1))[1] == ()
