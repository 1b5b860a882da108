"""A reduced history leads to the same state as the full one, also when it goes on; wrong reductions are found out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.controller.instances import history
from strandline.frontier import EMPTY, MINIMUM, Frontier, join, meet
from strandline.instance.commands import (
    Advance,
    Collection,
    Output,
    RunDataflow,
    RunIngestion,
    RunMaterialization,
    inputs_of,
    outputs_of,
)
from strandline.instance.protocol.messages import (
    AllowCompaction,
    AllowWrites,
    CancelPeeks,
    Command,
    Create,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    RunIndex,
    Schedule,
    UpdateConfiguration,
)
from strandline.materialize.protocol.task import Binding, MaterializationSpec

SEEDS = 2_500
SEEDS_OF_A_PLANTED_BUG = 500


# ---- what a replica's state is, from the definition ------------------------------------------------------------------


def state(commands: Sequence[Command]) -> dict[str, Any]:
    """Return the state after ``commands``: each part of it as a question to the whole list."""
    found: dict[str, Any] = {"settings": {}, "runs": {}, "complete": InitializationComplete() in commands}
    for command in commands:
        if isinstance(command, Hello | CreateInstance | Advance):
            found[type(command).__name__] = command
        if isinstance(command, UpdateConfiguration):
            found["settings"].update(command.settings)
    ends = []
    for at, create in enumerate(commands):
        if not isinstance(create, Create):
            continue
        later = range(at + 1, len(commands))
        until = next((n for n in later if is_create(commands[n], create.id)), len(commands))
        end = next((n for n in range(at + 1, until) if all_ended(create, commands[at : n + 1])), None)
        if end is not None:
            ends.append((end, {create.id, *create.exports}))
        elif until == len(commands):
            since = commands[at + 1 :]
            found["runs"][create.id] = {
                "what": create.what,
                "sinces": sinces(create, since),
                "scheduled": Schedule(create.id) in since,
                "writes": AllowWrites(create.id) in since,
            }
    found["open"] = [
        command
        for at, command in enumerate(commands)
        if isinstance(command, Peek)
        and not any(isinstance(each, CancelPeeks) and command.uuid in each.uuids for each in commands[at:])
        and not any(at < end and command.id in names for end, names in ends)
    ]
    found["open"].sort(key=lambda each: each.uuid)
    return found


def is_create(command: Command, name: str) -> bool:
    """Return whether ``command`` creates ``name``."""
    return isinstance(command, Create) and command.id == name


def sinces(create: Create, later: Sequence[Command]) -> dict[str, Frontier]:
    """Return by export how far compaction is; of an endpoint only whether it has ended."""
    begin = MINIMUM if create.as_of is None else Frontier(create.as_of)
    allowed = [each for each in later if isinstance(each, AllowCompaction)]
    found = {name: join([begin, *(each.frontier for each in allowed if each.id == name)]) for name in create.exports}
    if isinstance(create.what, RunMaterialization):
        return {name: since if since.empty else MINIMUM for name, since in found.items()}
    return found


def all_ended(create: Create, commands: Sequence[Command]) -> bool:
    """Return whether ``commands`` end all that ``create`` exports."""
    return all(since.empty for since in sinces(create, commands).values())


# ---- histories -------------------------------------------------------------------------------------------------------


def collection(name: str) -> Collection:
    """Return a collection without columns."""
    return Collection(name, f"shard-{name}", Schema(()))


def view(output: str, *inputs: str, version: int) -> RunDataflow:
    """Return a view without stages."""
    reads = {each: collection(each) for each in inputs}
    return RunDataflow(collection(output), (), {}, reads, {"version": str(version)}, frozenset())


def create(name: str, chance: random.Random) -> Create:
    """Return a creation of ``name``, of one of its versions."""
    version = chance.randint(1, 3)
    as_of = chance.randint(0, 9)
    match name:
        case "s":
            tables = ("s1", "s2") if version == 1 else ("s1",)
            outputs = tuple(Output(collection(each), each) for each in tables)
            return Create(name, (name, *tables), RunIngestion(name, outputs, "files", {}, f"remap{version}", "p"))
        case "v":
            return Create(name, (name,), view("v", "s1", version=version))
        case "w":
            return Create(name, ("w1", "w2"), view("w", "v", "s2", version=version), as_of)
        case "i":
            return Create(name, (name,), RunIndex(collection("w" if version == 1 else "v"), ("a",)), as_of)
        case _:
            spec = MaterializationSpec(name, (Binding("w", f"t{version}", ("a",), Schema((Column("a", "int"),))),))
            inputs = (collection("w"), collection("v"))
            return Create(name, (name,), RunMaterialization(spec, "log", "duckdb", {}, inputs, continues=False))


IDS = ("s", "v", "w", "i", "m")
EXPORTS = ("s", "s1", "s2", "v", "w1", "w2", "i", "m", "gone")


def some_history(chance: random.Random) -> list[Command]:
    """Return commands in an order that no controller needs to keep to."""
    focus = chance.sample(IDS, chance.randint(1, len(IDS)))
    exports = [each for each in EXPORTS if each[0] in focus] + ["gone"]
    found: list[Command] = []
    for number in range(chance.randint(0, 30)):
        name, export, time = chance.choice(focus), chance.choice(exports), chance.randint(0, 9)
        uuids = tuple(chance.sample([str(each) for each in range(number + 1)], 1))
        found.append(
            chance.choices(
                [
                    create(name, chance),
                    AllowCompaction(export, EMPTY if chance.random() < 0.4 else Frontier(time)),
                    Schedule(name),
                    AllowWrites(name),
                    Peek(str(number), export, b"", time, 1),
                    CancelPeeks(uuids),
                    UpdateConfiguration({chance.choice("ab"): str(time)}),
                    Advance(number, step=chance.random() < 0.5),
                    Hello(number, 1, "here"),
                    CreateInstance("main", f"r{number}"),
                    InitializationComplete(),
                ],
                [7, 9, 3, 3, 3, 2, 2, 1, 1, 1, 1],
            )[0]
        )
    return found


def faults(seed: int) -> Iterator[str]:
    """Yield which claims about reductions the history of ``seed`` breaks."""
    chance = random.Random(seed)
    full = some_history(chance)
    short = history.reduced(full)
    cut = chance.randint(0, len(full))
    if state(short) != state(full):
        yield "the state differs"
    if history.reduced(short) != short:
        yield "reducing again changes something"
    if state([*history.reduced(full[:cut]), *full[cut:]]) != state(full):
        yield "the state differs once it goes on"
    if len(short) > len(full):
        yield "it is longer"
    for each in created(short):
        if each.as_of is not None and meet(sinces(each, short).values()) != Frontier(each.as_of):
            yield "an as_of could be later"
        if any(AllowCompaction(export, Frontier(each.as_of or 0)) in short for export in each.exports):
            yield "compaction is allowed as far as it is anyway"
    if out_of_order(created(short)):
        yield "a creation comes before what it reads"


def created(commands: Sequence[Command]) -> list[Create]:
    """Return the creations among ``commands``."""
    return [each for each in commands if isinstance(each, Create)]


def out_of_order(creates: Sequence[Create]) -> bool:
    """Return whether something is read before it is written."""
    read: set[str] = set()
    for each in creates:
        index = isinstance(each.what, RunIndex)
        read |= {one.shard for one in ((each.what.of,) if index else inputs_of(each.what))}
        if not index and any(one.shard in read for one in outputs_of(each.what)):
            return True
    return False


def test_the_state_after_a_reduced_history_is_that_after_the_full_one() -> None:
    """Damage: a replica that connects again runs other things than the one that stayed connected."""
    assert {seed: found for seed in range(SEEDS) if (found := list(faults(seed)))} == {}


# ---- wrong reductions ------------------------------------------------------------------------------------------------

obey = history._State.obey
commands_of = history._State.commands
compact = history._State._compact
begin = history._State._create
imports_first = history._imports_first


def deaf_to(kind: type) -> Callable[..., None]:
    """Return how a state obeys that ignores commands of one kind."""
    return lambda self, command: None if isinstance(command, kind) else obey(self, command)


def keep_permissions(self: history._State, command: Create) -> None:
    """Create in the place of what was there, scheduled and allowed to write if that was."""
    before = self.creations.get(command.id)
    begin(self, command)
    if before is not None:
        self.creations[command.id].scheduled = before.scheduled
        self.creations[command.id].writes = before.writes


def keep_peeks(self: history._State, creation: Any, export: str, frontier: Frontier) -> None:
    """Compact, and keep what looks at an export that ends."""
    peeks = dict(self.peeks)
    compact(self, creation, export, frontier)
    self.peeks = peeks


def replace_settings(self: history._State, command: Command) -> None:
    """Forget earlier settings at each change of them."""
    if isinstance(command, UpdateConfiguration):
        self.settings = {}
    obey(self, command)


def first_advance(self: history._State, command: Command) -> None:
    """Ignore each `Advance` but the first."""
    if not (isinstance(command, Advance) and self.advance):
        obey(self, command)


def compaction_first(self: history._State) -> list[Command]:
    """Return the commands with compaction before all others."""
    return sorted(commands_of(self), key=lambda each: not isinstance(each, AllowCompaction))


def go_back(self: Any, export: str, frontier: Frontier) -> None:
    """Compact to the last frontier, even if it is earlier."""
    self.sinces[export] = frontier


def without(kind: type) -> Callable[..., list[Command]]:
    """Return how a state is said without commands of one kind."""
    return lambda self: [each for each in commands_of(self) if not isinstance(each, kind)]


WRONG = {
    "what has ended stays": ("_Creation.ended", property(lambda self: False)),
    "one export that ends, ends all": (
        "_Creation.ended",
        property(lambda self: any(each.empty for each in self.sinces.values())),
    ),
    "an as_of is the join of the sinces": ("meet", lambda sinces: Frontier(max(each.at or 0 for each in sinces))),
    "an as_of stays": ("_Creation.reduced", lambda self: self.command),
    "an export beyond its as_of is forgotten": ("_Creation.compactions", lambda self: ()),
    "compaction is repeated": (
        "_Creation.compactions",
        lambda self: [AllowCompaction(*each) for each in self.sinces.items()],
    ),
    "a since goes back": ("_Creation.compact", go_back),
    "permissions outlive a definition": ("_State._create", keep_permissions),
    "peeks outlive an index": ("_State._compact", keep_peeks),
    "settings replace each other": ("_State.obey", replace_settings),
    "cancelled peeks stay": ("_State.obey", deaf_to(CancelPeeks)),
    "the first advance stays": ("_State.obey", first_advance),
    "compaction precedes creations": ("_State.commands", compaction_first),
    "creations follow no order": ("_imports_first", list),
    "creations follow the wrong order": ("_imports_first", lambda creations: imports_first(creations)[::-1]),
    **{f"{kind.__name__} is forgotten": ("_State.commands", without(kind)) for kind in (Schedule, AllowWrites, Create)},
    **{f"{kind.__name__} is not kept": ("_State.obey", deaf_to(kind)) for kind in (Peek, InitializationComplete)},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_reduction_is_found_out(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A property that no wrong rule breaks says nothing about the right ones."""
    place, rule = WRONG[wrong]
    monkeypatch.setattr(f"strandline.controller.instances.history.{place}", rule)
    assert any(next(faults(seed), None) for seed in range(SEEDS_OF_A_PLANTED_BUG))


# ---- peeks that can be answered --------------------------------------------------------------------------------------


def careful_history(chance: random.Random) -> list[Command]:
    """Return a history of an index and a dataflow whose peeks are readable, and hold the times that they read."""
    found: list[Command] = [create("i", chance), create("w", chance)]
    since = {name: Frontier(each.as_of) for each in found for name in each.exports}
    held: dict[str, Frontier] = dict.fromkeys(since, EMPTY)
    for number in range(chance.randint(0, 20)):
        export = chance.choice(sorted(since))
        time = (since[export].at or 0) + chance.randint(0, 4)
        if chance.random() < 0.4:
            found.append(Peek(str(number), export, b"", time, 1))
            held[export] = min(held[export], Frontier(time))
        else:
            since[export] = min(held[export], Frontier(time))
            found.append(AllowCompaction(export, since[export]))
    return found


@pytest.mark.parametrize("seed", range(200))
def test_open_peeks_stay_readable(seed: int) -> None:
    """Damage: a peek that waits for an answer gets an error, because its replica was replaced meanwhile."""
    short = history.reduced(careful_history(random.Random(seed)))
    for at, peek in enumerate(short):
        if isinstance(peek, Peek):
            [owner] = [each for each in created(short) if peek.id in each.exports]
            assert sinces(owner, short[:at])[peek.id] <= Frontier(peek.as_of)
