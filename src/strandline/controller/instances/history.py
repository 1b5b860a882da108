"""History: what the controller has commanded the replicas of one instance, short enough to be sent again.

A replica that connects, for the first time or again, receives the history.  The history is *reduced*: commands that a
later one has made void are removed, and those that remain are in a fixed order.  A replica that obeys the reduced
history reaches the same state as one that obeyed the full history, and both stay equal whatever follows.

What each command does to the state of a replica:

- `Create` begins anew.  If its id runs already, the new creation takes its place: the controller must schedule it,
  allow it to write and allow compaction again.  Permission to write belongs to a definition, not to its name.
- `Schedule` and `AllowWrites` apply to the creation of that id, `AllowCompaction` to the creation with that export.
  Without such a creation they do nothing, even if one follows.
- `AllowCompaction` never moves a since back.  When all exports of a creation are at the empty frontier, it ends, with
  the peeks of its exports.  Until then, ending one export leaves the creation as it is.  A materialization has no
  times to read, so only the empty frontier means something to it.
- A creation with an ``as_of`` must be readable from there on.  In the reduced history its ``as_of`` is the meet of
  its exports' sinces, so that a new replica need not read older times of its inputs.
- A `Peek` stays until it is answered, cancelled, or ends with its creation; without a creation it stays too, because
  it is owed one answer.
- Of `Hello`, `CreateInstance` and `Advance` the newest counts; settings merge, the newest value of each name counts.

Compaction follows peeks, which hold the times that they read: the controller never allows compaction beyond a peek
that is open.  `Advance` comes last, because nothing may be bound to a time before everything runs.

Trap: a peek that ends with its creation is in no reduced history.  A replica that connects later cannot answer it, so
the controller answers it itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from strandline.frontier import MINIMUM, Frontier, meet
from strandline.instance.commands import Advance, RunMaterialization, inputs_of, outputs_of
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
    Runnable,
    Schedule,
    UpdateConfiguration,
)


class History:
    """The commands for the replicas of one instance, in order.

    It is reduced whenever it is longer than twice its last reduced length, so a command costs a constant amount of
    work on average, and the history is never much longer than what runs.
    """

    def __init__(self) -> None:
        self._commands: list[Command] = []
        self._reduced_length = 0

    def __len__(self) -> int:
        return len(self._commands)

    def append(self, command: Command) -> None:
        """Add a command that is sent to all replicas."""
        self._commands.append(command)
        if len(self._commands) > 2 * self._reduced_length:
            self._reduce()

    def answered(self, uuid: str) -> None:
        """Forget a peek because its answer has arrived; an unknown one is ignored."""
        self.append(CancelPeeks((uuid,)))

    def reduced(self) -> tuple[Command, ...]:
        """Return what a replica that connects now must obey."""
        self._reduce()
        return tuple(self._commands)

    def _reduce(self) -> None:
        self._commands = reduced(self._commands)
        self._reduced_length = len(self._commands)


def reduced(commands: Iterable[Command]) -> list[Command]:
    """Return the shortest list of commands that leads to the same state as ``commands``.

    The order is: `Hello`, `CreateInstance`, `UpdateConfiguration`, creations (each after those whose collections it
    reads, otherwise in order of creation), `Schedule`, `Peek`, `AllowCompaction`, `AllowWrites`,
    `InitializationComplete`, `Advance`.

    >>> from strandline.algebra.schema import Schema
    >>> from strandline.frontier import EMPTY
    >>> from strandline.instance.commands import Collection, RunIndex
    >>> create = Create("i", ("i",), RunIndex(Collection("v", "shard-v", Schema(())), ()), as_of=5)
    >>> [each.as_of for each in reduced([create, AllowCompaction("i", Frontier(9))])]
    [9]
    >>> reduced([create, Schedule("i"), AllowCompaction("i", EMPTY)])
    []
    """
    state = _State()
    for command in commands:
        state.obey(command)
    return list(state.commands())


@dataclass(slots=True)
class _Creation:
    """Something that runs, or will run once it is scheduled.  ``sinces``: by export, what compaction has reached."""

    command: Create
    sinces: dict[str, Frontier]
    scheduled: bool = False
    writes: bool = False

    @classmethod
    def begun(cls, command: Create) -> _Creation:
        since = MINIMUM if command.as_of is None else Frontier(command.as_of)
        return cls(command, dict.fromkeys(command.exports, since))

    @property
    def ended(self) -> bool:
        return all(since.empty for since in self.sinces.values())

    def compact(self, export: str, frontier: Frontier) -> None:
        if frontier.empty or not isinstance(self.command.what, RunMaterialization):
            self.sinces[export] = max(self.sinces[export], frontier)

    def reduced(self) -> Create:
        """Return its command, with the latest as_of that all its exports allow."""
        if self.command.as_of is None:
            return self.command
        return replace(self.command, as_of=meet(self.sinces.values()).at)

    def compactions(self) -> Iterator[AllowCompaction]:
        """Yield what `reduced` does not say about its exports' sinces."""
        said = _Creation.begun(self.reduced()).sinces
        for export, since in self.sinces.items():
            if since != said[export]:
                yield AllowCompaction(export, since)


@dataclass(slots=True)
class _State:
    """The state of a replica that has obeyed some commands.  ``owners``: the id of the creation of each export."""

    hello: Hello | None = None
    instance: CreateInstance | None = None
    settings: dict[str, str] = field(default_factory=dict)
    creations: dict[str, _Creation] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    peeks: dict[str, Peek] = field(default_factory=dict)
    complete: bool = False
    advance: Advance | None = None

    def obey(self, command: Command) -> None:
        """Change the state as a replica does that receives ``command``."""
        match command:
            case Hello():
                self.hello = command
            case CreateInstance():
                self.instance = command
            case UpdateConfiguration(settings=settings):
                self.settings |= settings
            case Create():
                self._create(command)
            case Schedule(id=name):
                if name in self.creations:
                    self.creations[name].scheduled = True
            case AllowWrites(id=name):
                if name in self.creations:
                    self.creations[name].writes = True
            case AllowCompaction(id=export, frontier=frontier):
                if export in self.owners:
                    self._compact(self.creations[self.owners[export]], export, frontier)
            case Peek(uuid=uuid):
                self.peeks[uuid] = command
            case CancelPeeks(uuids=uuids):
                for uuid in uuids:
                    self.peeks.pop(uuid, None)
            case InitializationComplete():
                self.complete = True
            case Advance():
                self.advance = command

    def _create(self, command: Create) -> None:
        assert command.exports, f"{command.id} exports nothing, so nothing could end it"
        self._forget_exports(command.id)
        for export in command.exports:
            assert export not in self.owners, f"{command.id} and {self.owners[export]} both export {export}"
            self.owners[export] = command.id
        self.creations[command.id] = _Creation.begun(command)

    def _compact(self, creation: _Creation, export: str, frontier: Frontier) -> None:
        creation.compact(export, frontier)
        if not creation.ended:
            return
        name = creation.command.id
        self._forget_exports(name)
        del self.creations[name]
        gone = {name, *creation.command.exports}
        self.peeks = {uuid: each for uuid, each in self.peeks.items() if each.id not in gone}

    def _forget_exports(self, name: str) -> None:
        if name in self.creations:
            for export in self.creations[name].command.exports:
                del self.owners[export]

    def commands(self) -> Iterator[Command]:
        """Yield the fewest commands that lead to this state, in the order of a reduced history."""
        creations = _imports_first(self.creations.values())
        if self.hello is not None:
            yield self.hello
        if self.instance is not None:
            yield self.instance
        if self.settings:
            yield UpdateConfiguration(dict(self.settings))
        for creation in creations:
            yield creation.reduced()
        for creation in creations:
            if creation.scheduled:
                yield Schedule(creation.command.id)
        yield from self.peeks.values()
        for creation in creations:
            yield from creation.compactions()
        for creation in creations:
            if creation.writes:
                yield AllowWrites(creation.command.id)
        if self.complete:
            yield InitializationComplete()
        if self.advance is not None:
            yield self.advance


def _imports_first(creations: Iterable[_Creation]) -> list[_Creation]:
    """Return ``creations`` so that each follows those that write what it reads, otherwise in the order given.

    Creations that read each other stay in the order given: a redefinition can make a circle until its second half
    arrives.  The usual list is in order already, which costs one pass.
    """
    remaining = [(each, _read(each.command.what), _written(each.command.what)) for each in creations]
    unwritten = {shard for _, _, written in remaining for shard in written}
    placed = []
    while remaining:
        ready = (place for place, (_, read, written) in enumerate(remaining) if not (read - written) & unwritten)
        creation, _, written = remaining.pop(next(ready, 0))
        unwritten -= written
        placed.append(creation)
    return placed


def _written(what: Runnable) -> frozenset[str]:
    return frozenset(each.shard for each in outputs_of(what))


def _read(what: Runnable) -> frozenset[str]:
    return frozenset(each.shard for each in inputs_of(what))
