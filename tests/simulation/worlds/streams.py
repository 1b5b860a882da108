"""The world of streams: clients that call without waiting, on streams of their own, a shared one, several at once.

One seed is one history.  Each client is a process with a queue of calls: it writes, seals, releases the past, awaits
some of its calls and not others, and awaits them again when no answer comes.  Others write two collections together,
each time by a token.  Readers read whatever is complete.  A client that crashes restarts with its name and task only.

The laws are those of `laws.history` (P1, P3, P6, atomic; no bounds: streams may write at any unsealed time), and:

- order: of the calls of one incarnation, if one took effect then so did every earlier one that was not refused.
- refused: a write is refused only at a time that was asked to be sealed before the call, or that another client seals.
- told: a refusal reaches the caller that awaits its call, else the caller that stops the client.
- L1: every history ends.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from laws.broken import judged, require
from laws.history import Answer, Attempt, History, Update
from laws.places import WatchedPlaces
from strandline.errors import (
    AsOfError,
    Determinate,
    Indeterminate,
    InvalidUsage,
    Unavailable,
)
from strandline.persist.client import PersistClient
from strandline.persist.handles import register
from strandline.persist.handles.register import KEY as NAMES
from strandline.persist.handles.updates import ValueCodec
from strandline.persist.shard import machine, patience
from strandline.persist.together.multi import MultiWriteHandle, open_multi
from strandline.persist.together.stream import Call, StreamClient, StreamReader, StreamWriter
from strandline.store.unreliable import Choose
from strandline.testing.simulation.exploration import Seeded
from strandline.testing.simulation.kernel import Simulation, run_sync
from strandline.testing.simulation.places import SimBlob, SimClock, SimConsensus, SimIds

SHARED: Final = "shared"
TOGETHER: Final = ("left", "right")
CLIENTS: Final = ("x", "y")
CALLS: Final = (4, 8, 12)
"""How many calls an incarnation makes."""
MULTI_WRITES: Final = 2
CALM_AFTER: Final = (60, 150, 300)
STEPS_MAX: Final = 6_000
PATIENCE: Final = (64, 2, 1)
FOCI: Final = ("", "consensus.compare_and_set", "consensus.compare_and_set", "blob.set")
"""The site that fails half the time in a run, or none."""
UNANSWERED: Final = (Indeterminate, Determinate, Unavailable)
EPOCH: Final = 1
ACKNOWLEDGED_MIN: Final = 2
LATEST: Final = 10**6
"""Beyond all times of a run."""


@dataclass(eq=False, slots=True)
class Asked:
    """A call and what was noted of it; ``sealed``: the time up to which clients had asked to seal there before.

    ``told``: whether the caller that awaited it received its refusal.
    """

    call: Call
    attempt: Attempt | None
    collection: str
    sealed: int
    told: bool = False


class StreamWorld:
    """One run's places, clients and observers."""

    def __init__(self, choose: Choose, calm_after: int, patience: int) -> None:
        self.simulation = Simulation(choose, calm_after=calm_after, steps_max=STEPS_MAX)
        self.choose = self.simulation.choose
        self.places = WatchedPlaces(lambda key: key != NAMES)
        self.history = History()
        self.ids = SimIds()
        self.marks: Counter[str] = Counter()
        self.sealed: Counter[str] = Counter()
        self.lines: list[list[Asked]] = []
        self.patience = patience
        self.serial = 0

    def codec(self, client: PersistClient) -> ValueCodec[bytes]:
        """Return the codec of all collections here."""
        return ValueCodec(client.blob, "raw", bytes, bytes)

    def process(self) -> PersistClient:
        """Start a process that knows nothing."""
        blob, consensus = SimBlob(self.places.blob), SimConsensus(self.places.consensus)
        return PersistClient(SimClock(self.simulation), self.ids, blob, consensus, rollup_every=4)

    def value(self, purpose: str) -> bytes:
        """Return a value that no other client writes; one in four is too large to be kept inline."""
        self.serial += 1
        large = self.choose("large", 4) == 0
        return f"{purpose}/{self.serial}".encode().ljust(20_000 if large else 1, b".")

    def run(self) -> None:
        """Drive everybody to the end, then read everything from scratch."""
        with (
            mock.patch.object(machine, "CAS_RETRIES_MAX", self.patience),
            mock.patch.object(patience, "ATTEMPTS_MAX", self.patience),
            mock.patch.object(register, "RETRIES_MAX", self.patience),
            judged(),
        ):
            self.simulation.drive()
        run_sync(self._finish())

    async def read(self, reader: StreamReader[bytes], collection: str, time: int) -> None:
        """Read a collection at ``time``, which is complete, and hold it against what is known."""
        began = self.history.tick()
        found = await reader.snapshot(time, timeout_s=0)
        self.history.read(collection, time, {u.value: u.diff for u in found}, began)

    async def _finish(self) -> None:
        client = PersistClient(SimClock(self.simulation), self.ids, self.places.blob, self.places.consensus)
        streams = StreamClient(client, EPOCH)
        last: dict[str, set[bytes]] = {}
        for collection in (SHARED, *CLIENTS):
            writer, reader = await streams.create_or_load(collection, self.codec(client))
            await writer.seal(LATEST)
            last[collection] = await self._read_all(reader, collection)
        multi = await open_multi(client, EPOCH, self.both(client))
        await multi.seal(LATEST)
        for collection in TOGETHER:
            await self._read_all(multi.reader(collection), collection)
        for line in self.lines:
            self._check_order(line, last)
        self.places.check_all_there()

    async def _read_all(self, reader: StreamReader[bytes], collection: str) -> set[bytes]:
        times = {u.time for a in self.history.attempts for u in a.updates.get(collection, ())} | {LATEST - 1}
        since = reader._reader.state.since.at or 0
        for time in sorted(times):
            if since <= time < LATEST:
                await self.read(reader, collection, time)
        return {u.value for u in await reader.snapshot(LATEST - 1, timeout_s=0)}

    def _check_order(self, line: list[Asked], last: dict[str, set[bytes]]) -> None:
        missing = ""
        for asked in line:
            if asked.attempt is None:
                effective = asked.call.done and asked.call.refusal is None
            else:
                refused = asked.call.refusal is not None  # which a crash may have kept from being noted
                effective = asked.attempt.marker(asked.collection).row in last[asked.collection]
                if not effective and not refused:
                    missing = missing or asked.attempt.purpose
                    continue
            require("order", not (effective and missing), f"a call took effect, and {missing}, called before, did not")

    def both(self, client: PersistClient) -> dict[str, Any]:
        """Return the codecs of the collections that are written together."""
        return dict.fromkeys(TOGETHER, self.codec(client))

    @property
    def acknowledged(self) -> int:
        """How many writes were acknowledged."""
        return self.history.acknowledged


# ---- their users -----------------------------------------------------------------------------------------------------


async def call(world: StreamWorld, name: str, incarnation: int) -> None:
    """Make calls on a stream of one's own and on the shared one; await some; stop in the end."""
    client = StreamClient(world.process(), EPOCH)
    writers: dict[str, StreamWriter[bytes]] = {}
    for collection in (name, SHARED):
        writers[collection], _ = await _answered(
            lambda collection=collection: client.create_or_load(collection, world.codec(client._client))
        )
    line: list[Asked] = []
    world.lines.append(line)
    for number in range(CALLS[world.choose("calls", len(CALLS))]):
        collection = (name, SHARED)[world.choose("whose", 2)]
        purpose = f"{name}{incarnation}.{number}"
        line.append(_ask(world, writers[collection], collection, purpose))
        if world.choose("await", 3) == 0:
            await _settled(world, line[world.choose("which", len(line))], name)
            _note(world, line, name)
    await _stopped(client, line)
    _note(world, line, name)
    require("L1", all(asked.call.done for asked in line), f"{name} stopped, and not all its calls are done")


def _ask(world: StreamWorld, writer: StreamWriter[bytes], collection: str, purpose: str) -> Asked:
    known = max(world.sealed[collection], writer.upper.at or 0)
    match world.choose("step", 5):
        case 0:
            to = known + world.choose("by", 4)
            asked = Asked(writer.seal(to), None, collection, known)
            world.sealed[collection] = max(known, to)
            return asked
        case 1:
            return Asked(writer.allow_compaction(max(0, known - 6)), None, collection, known)
        case _:
            first = max(0, known - (world.choose("late", 8) == 0)) + world.choose("time", 3)
            times = [first, *(first + world.choose("time", 4) for _ in range(world.choose("updates", 3)))]
            updates = [Update(world.value(purpose), time, 1) for time in times]
            attempt = world.history.ask(purpose, {collection: updates}, first, max(times) + 1)
            return Asked(writer.write([tuple(u) for u in updates]), attempt, collection, known)


async def _settled(world: StreamWorld, asked: Asked, name: str) -> None:
    for _ in range(1 + world.choose("patience", 3)):
        try:
            await asked.call
            return
        except UNANSWERED:
            world.marks["call: unanswered"] += 1
        except InvalidUsage:
            asked.told = True
            return


async def _stopped(client: StreamClient, line: list[Asked]) -> None:
    told = False
    try:
        await _answered(client.stop)
    except InvalidUsage:
        told = True
    untold = any(asked.call.refusal is not None and not asked.told for asked in line)
    require("told", told == untold, f"stopping raised a refusal: {told}; there was one to raise: {untold}")


def _note(world: StreamWorld, line: list[Asked], name: str) -> None:
    """Note every answer that is known now, whichever caller awaited it."""
    for asked in line:
        if asked.attempt is None or not asked.call.done or asked.attempt.answer is not Answer.NONE:
            continue
        if asked.call.refusal is None:
            world.history.tell(asked.attempt, Answer.YES)
            world.marks["write: done"] += 1
            continue
        world.history.tell(asked.attempt, Answer.NO)
        world.marks["write: refused"] += 1
        own = asked.collection == name
        late = asked.attempt.lower < asked.sealed
        require("refused", late or not own, f"{asked.attempt.purpose} was refused, and its time was not sealed")


async def write_together(world: StreamWorld, name: str) -> None:
    """Write two collections at once, each time by a token that survives a crash."""
    client = world.process()

    async def opened() -> MultiWriteHandle:
        return await open_multi(client, EPOCH, world.both(client))

    handle = await _answered(opened)
    for number in range(MULTI_WRITES):
        token = f"{name}.{number}"
        await _write_once(world, handle, token)
        if world.choose("seal", 3) == 0:
            await _answered(lambda: handle.seal((handle.upper.at or 0) + 2))
        if world.choose("allow", 3) == 0:
            await _answered(lambda: handle.allow_compaction(max(0, (handle.upper.at or 0) - 3)))


async def _write_once(world: StreamWorld, handle: MultiWriteHandle, token: str) -> None:
    """Write until it is known to be done.  Its time is known from the answer alone, so it is noted then."""
    row = token.encode()
    while True:
        try:
            time = await handle.write({c: [(row, 1)] for c in TOGETHER}, token=token)
        except UNANSWERED:
            world.marks["together: unanswered"] += 1
            continue
        key = (token, time)
        if key not in world.marks:
            updates = {c: [Update(row, time, 1)] for c in TOGETHER}
            world.history.tell(world.history.ask(token, updates, time, time + 1), Answer.YES)
        world.marks[key] += 1
        return


async def look(world: StreamWorld, name: str) -> None:
    """Read collections at times that are complete."""
    for _ in range(6):
        client = world.process()
        streams = StreamClient(client, EPOCH)
        collection = (SHARED, *CLIENTS)[world.choose("collection", 1 + len(CLIENTS))]
        try:
            _, reader = await streams.create_or_load(collection, world.codec(client))
            state = await reader._reader.refresh()
            since, upper = state.since.at or 0, state.upper.at or 0
            if since < upper:
                await world.read(reader, collection, since + world.choose("time", upper - since))
                world.marks["read"] += 1
        except AsOfError:
            world.marks["read: no more"] += 1
        except UNANSWERED:
            world.marks["read: unanswered"] += 1
        await client.clock.sleep(0.02)


async def _answered(work: Any) -> Any:
    while True:
        try:
            return await work()
        except UNANSWERED:
            continue


def play(seed: int) -> StreamWorld:
    """Make the history of ``seed``.  Raises `LawBrokenError` (or what else broke), with the seed in a note."""
    rng = random.Random(seed)
    calm_after, focus, patience = (
        options[int(rng.random() * len(options))] for options in (CALM_AFTER, FOCI, PATIENCE)
    )
    world = StreamWorld(Seeded(rng, focus), calm_after, patience)
    try:
        for name in CLIENTS:
            world.simulation.spawn(name, lambda n, name=name: call(world, name, n))
        for name in ("m", "n")[: 1 + world.choose("writers", 2)]:
            world.simulation.spawn(name, lambda _, name=name: write_together(world, name))
        world.simulation.spawn("r", lambda _: look(world, "r"))
        world.run()
        require("W1", world.acknowledged >= ACKNOWLEDGED_MIN, f"only {world.acknowledged} writes were acknowledged")
    except Exception as error:
        error.add_note(f"the history of seed {seed} in worlds.streams")
        raise
    return world
