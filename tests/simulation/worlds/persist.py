"""The world of persist: the real handles on a few shards, a swarm of users, and laws that watch.

One seed is one history: which users there are, how much each does, how large the batches, how often rollups are
written, how soon persist gives up on a store; whose clock is wrong; and what becomes of each I/O (the kernel's part).
Every user has a client of its own, as a process has: all they share is durable, except that a reader may sit in a
writer's process.  A user that crashes begins anew with nothing but its name and its task.

Trap: persist's patience is a constant of its modules; it is replaced while a run lasts, so that callers meet
`Indeterminate` and `Unavailable` at all.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from unittest import mock

from laws.broken import LawBrokenError, judged, require
from laws.history import History, Update
from laws.observed import Observed
from laws.places import WatchedPlaces
from laws.registers import RegisterHistory
from strandline.errors import AsOfError, InvalidUsage, StoreError, Unavailable
from strandline.persist.client import PersistClient
from strandline.persist.handles import read, records, register
from strandline.persist.handles.contents import Contents
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.records import SCHEMA as RECORDS_SCHEMA
from strandline.persist.handles.records import RecordMerger
from strandline.persist.handles.register import Register
from strandline.persist.shard import codec, holds, machine, patience, trace
from strandline.persist.shard.state import ShardState
from strandline.persist.together.transactions import SHARD as TRANSACTIONS
from strandline.persist.together.transactions import open_transactions
from strandline.persist.upkeep import collect
from strandline.store.unreliable import Choose
from strandline.testing.simulation.exploration import FAULT, Seeded
from strandline.testing.simulation.kernel import Fate, Simulation, run_sync
from strandline.testing.simulation.places import SimBlob, SimClock, SimConsensus, SimIds
from worlds.limits import LIMITS, Limit, turned
from worlds.rows import SCHEMA, GoneError, multiset, updates_of
from worlds.trouble import DAMAGES, MISDIRECTED, TroubledBlob, TroubledConsensus, TroubledMerger

T = TypeVar("T")

PLAIN: Final = "a"
"""Appended to directly, by two writers."""
RECORDS: Final = "log"
"""A record shard, appended to by two users."""
TABLES: Final = ("t1", "t2")
"""Appended to by transactions only."""
SHARDS: Final = (PLAIN, RECORDS, TRANSACTIONS, *TABLES)
LEASED: Final = (PLAIN, *TABLES)
"""Shards whose since may be moved: no user of this world reads old times in them."""
REGISTER: Final = "register/words"

CALM_AFTER: Final = (80, 200, 400)
"""After how many steps the faults of a run end; which of these is part of the seed."""
STEPS_MAX: Final = 10_000
"""L1: what has not ended by then never will (what runs need: docs/reliability.md)."""
ROLLUPS_EVERY: Final = (2, 4, 8, 13)
PATIENCE: Final = (64, 2, 1, 1)
"""How often persist tries before it gives up: its own patience, or next to none."""
SKEWS_MS: Final = (0, -5_000, 5_000, -3_600_000, 3_600_000)
"""By how much a clock may be wrong: less than `WRITER_MEMORY_MS`, beyond which persist promises less."""
SWEPT: Final = (PLAIN, RECORDS)
"""Shards whose parts nothing else ever names."""
GRACES_MS: Final = (None, 0, 0, 20, 3_600_000, 86_400_000)
"""How long parts outlive the last version that names them; None: only the collectors delete them."""
LEAKED_AFTER_MS: Final = (3_600_000, 3_600_000, 86_400_000)
"""After how long a part that nothing names is leaked; a writer that pauses for longer is refused, and stages anew."""
LEASES_MS: Final = (50, 1_000, 900_000)
FANS: Final = (2, 3, 8)
"""How many batches of a size are merged into one."""
INLINE_PART_BYTES: Final = (0, 16_384, 16_384)
"""Up to how many bytes a part of records stays in the state."""
INLINE_BYTES: Final = (100, 1_000, 200_000)
"""From how many inline bytes on a shard's parts are moved to Blob."""
BEATS_UNTOLD_MAX: Final = 4
DAMAGE: Final = FAULT + "damage"
DAWDLES_S: Final = (0, 0.02, 0.2, 2)
"""How long it may take from one step of a user to its next."""
DAMAGES_MAX: Final = 2
"""How many reads of a history are damaged at most: each makes a user begin anew."""
MERGE: Final = FAULT + "merge"
PARTIAL: Final = FAULT + "partial listing"
FOCI: Final = (
    "",
    "",
    "consensus.compare_and_set",
    "consensus.compare_and_set",
    "consensus.compare_and_set_many",
    "blob.set",
)
"""The site that fails half the time in a run, or none: only repeated failure brings callers to unknown outcomes."""
AFTERWARDS_MS: Final = 2 * 86_400_000
COLLECTIONS_MAX: Final = 3
ACKNOWLEDGED_MIN: Final = 1
"""W1: in every run a task of some user is done, or the run shows nothing.  How many are done on average is a figure of
each campaign: one user that crashes 27 times, and finds two of its commits too late, gets one done."""
assert max(CALM_AFTER) < STEPS_MAX


class World:
    """One run's shards, users and observers."""

    def __init__(
        self,
        choose: Choose,
        *,
        calm_after: int | None = None,
        fates: Sequence[Fate] = tuple(Fate),
        patience: int = 64,
        arrived: Callable[[], None] | None = None,
    ) -> None:
        self.simulation = Simulation(choose, fates, calm_after, STEPS_MAX, arrived)
        self.choose = self.simulation.choose
        self.places = WatchedPlaces(lambda key: key != REGISTER)
        self.history = History()
        self.words = RegisterHistory()
        self.ids = SimIds()
        self.clocks: list[SimClock] = []
        self.processes: dict[str, PersistClient] = {}
        self.marks: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.troubled = False  # whether reads may be damaged, and listings have holes
        self.damages = 0
        self.serial = 0
        self.observed = Observed()
        self.handles: dict[Hashable, Any] = {}
        self.epochs: dict[str, int] = {}
        self.skews = [0]
        self.dates: dict[str, int] = {}
        self.limits: dict[Limit, float] = {}
        self.newest_epoch = 1
        self.rollup_every = ROLLUPS_EVERY[0]
        self.lease_ms = LEASES_MS[-1]
        self.fan = FANS[-1]
        self.inline_bytes = INLINE_BYTES[-1]
        self.inline_part_bytes = INLINE_PART_BYTES[-1]
        self.merging = True
        self.merges_apart = False
        self.grace_ms: int | None = None
        self.leaked_after_ms = LEAKED_AFTER_MS[-1]
        self.places.now_ms = lambda: self.simulation.now_ms
        self.places.logs = frozenset({TRANSACTIONS})
        self.tidied = True  # whether the run checks, after the end, that no object is left that no state names
        self.patience = patience
        self._seen: dict[tuple[PersistClient, str], ShardState] = {}

    def one_of(self, label: str, options: Sequence[T]) -> T:
        """Choose one of ``options``."""
        return options[self.choose(label, len(options))]

    def client(self, name: str) -> PersistClient:
        """Start a process: a client that knows nothing yet."""
        clock = SimClock(self.simulation)
        self.clocks.append(clock)
        blob = SimBlob(TroubledBlob(self.places.blob, self._damaged, self._listed))
        consensus = SimConsensus(TroubledConsensus(self.places.consensus, self._damaged))
        merger = TroubledMerger(RecordMerger(blob), self._merge_fails) if self.merging else None
        self.processes[name] = PersistClient(
            clock,
            self.ids,
            blob,
            consensus,
            merger,
            rollup_every=self.rollup_every,
            grace_ms=self.grace_ms,
            merges_apart=self.merges_apart,
        )
        return self.processes[name]

    def _damaged(self, data: bytes) -> bytes:
        """Return what a read gives: the bytes themselves, or damaged ones."""
        if not self.troubled or self.simulation.calm or self.damages == DAMAGES_MAX or not data:
            return data
        kind = self.choose(DAMAGE, len(DAMAGES) + 2)
        if kind == 0:
            return data
        where = self.choose("where", 8 * len(data))
        self.damages += 1
        if kind - 1 < MISDIRECTED:
            return DAMAGES[kind - 1](data, where)
        others = sorted(self.places.objects.values()) or [b""]
        return others[where % len(others)]

    def _merge_fails(self) -> bool:
        return self.troubled and not self.simulation.calm and self.choose(MERGE, 2) > 0

    def _listed(self, keys: list[str]) -> list[str]:
        """Return what a listing shows: all, or all but some."""
        if not self.troubled or self.simulation.calm or not self.choose(PARTIAL, 2):
            return keys
        return [key for key in keys if self.choose("seen", 2)]

    def register(self, client: PersistClient) -> Register:
        """Return the register of words, as ``client``'s process sees it."""
        return Register(REGISTER, client.clock, client.ids, client.consensus)

    async def shared(self, client: PersistClient, what: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the handle ``what`` that another coroutine of the process opened, or open one of one's own."""
        known = self.handles.get((client, what))
        if known is not None and self.choose("share", 4):
            self.marks["shared"] += 1
            return known
        self.handles[client, what] = handle = await make()
        return handle

    async def refresh(self, handle: ReadHandle) -> ShardState:
        """Refresh, and check that nothing is missing that was committed before."""
        committed = len(self.places.states[handle.state.shard])
        state = await handle.refresh()
        require("fresh", committed <= state.seqno, f"{state.shard} was at {committed}, and is shown at {state.seqno}")
        return state

    async def closed(self, handle: ReadHandle) -> None:
        """Close a reader that may have a lease."""
        if handle._lease is not None:
            self.places.leaving.add(handle._lease._reader)
        await handle.close()

    def turned(self, clock: SimClock, skew_ms: int) -> None:
        """Set a clock wrong; the grace period is as long as the clocks agree."""
        clock.skew_ms = skew_ms
        self.skews.append(skew_ms)
        self._spare()

    def _spare(self) -> None:
        self.places.grace_ms = max(0, (self.grace_ms or 0) - (max(self.skews) - min(self.skews)))

    def epoch(self) -> int:
        """Return an epoch to write under: the newest one, as a replica does, or one of our own, as a successor does."""
        return self.newest_epoch if self.choose("share the epoch", 2) else self.fresh_epoch()

    def fresh_epoch(self) -> int:
        """Return an epoch greater than any before."""
        self.newest_epoch += 1
        return self.newest_epoch

    def purpose(self, name: str) -> str:
        """Return a purpose that no other attempt has."""
        self.serial += 1
        return f"{name}.{self.serial}"

    def row(self, purpose: str, time: int) -> bytes:
        """Return a row that no other attempt writes."""
        self.serial += 1
        return f"{purpose}/{self.serial}@{time}".encode()

    def saw(self, client: PersistClient, state: ShardState) -> None:
        """Hold a state that a handle shows against what was committed, and against what the process saw before."""
        where = (client, state.shard)
        last = self._seen.get(where)
        if state is last:
            return
        before = last.seqno if last else 0
        require("P2", before <= state.seqno, f"version {state.seqno} of {state.shard} is shown after {before}")
        self._seen[where] = state
        for what, value in (("since", state.since), ("upper", state.upper), ("epoch", state.epoch)):
            self.observed.look(client, f"{what} of {state.shard}", value)
        committed = self.places.states[state.shard][state.seqno - 1]
        shown = codec.entries(state)
        if shown != committed:
            names = sorted(shown.keys() | committed.keys())
            different = [name for name in names if shown.get(name) != committed.get(name)]
            raise LawBrokenError("P2", f"version {state.seqno} of {state.shard} is shown with other {different}")

    async def read(
        self, client: PersistClient, handle: ReadHandle, time: int, timeout_s: float | None, *, at_once: bool = False
    ) -> None:
        """Read a shard at ``time`` and note what was there.  Raises what the handle and the Blob raise."""
        began = self.history.tick()
        contents = await handle.snapshot(time, timeout_s=timeout_s)
        if not at_once and (handle._lease is not None or self.choose("dawdle", 2)):
            await self._dawdle(client, handle)
        rows = multiset(await self.updates(client, handle, contents))
        self.history.read(contents.shard, time, rows, began)
        self.saw(client, handle.state)

    async def _dawdle(self, client: PersistClient, handle: ReadHandle) -> None:
        """Let time pass between what is handed out and its being read, while others compact and collect; beat."""
        await client.clock.sleep(self.one_of("dawdle", DAWDLES_S))
        if handle._lease is None:
            return
        meanwhile = self.choose("meanwhile", 4) == 0
        if meanwhile:
            await self._merge(handle.state.shard)
        await self.refresh(handle)
        await handle.beat()
        if meanwhile:
            await self._collect(handle.state.shard)
        await client.clock.sleep(self.one_of("dawdle", DAWDLES_S))

    async def _merge(self, shard: str) -> None:
        """Let another process merge all of a shard, as far as the stores answer."""
        other = self.client("meanwhile")
        with suppress(StoreError, Unavailable):
            compactor = await other.compactor(shard, RecordMerger(other.blob))
            assert compactor is not None, f"{shard} is being read"
            await compactor.whole()

    async def _collect(self, shard: str) -> None:
        """Let it collect what that has left, as far as the stores answer."""
        other = self.client("meanwhile")
        with suppress(StoreError, Unavailable):
            collector = await other.collector(shard)
            await other._machine(shard).roll_up()
            assert collector is not None, f"{shard} is being read"
            await collector.collect()

    async def held(self, handle: ReadHandle) -> None:
        """Check that the shard knows a reader whose beat just succeeded, or that the next beat reports the loss.

        A lease may be lost right after the beat, in the upkeep that its commit made due: then the next beat says so.
        """
        lease = handle._lease
        assert lease is not None
        for _ in range(BEATS_UNTOLD_MAX):
            if lease._reader in handle.state.leased or handle.state.since.empty:
                return
            await handle.beat()
        told = f"a beat of {lease._reader} said that it holds {handle.state.shard}, which does not know it"
        raise LawBrokenError("holds", told)

    async def updates(self, client: PersistClient, handle: ReadHandle, contents: Contents) -> list[Update]:
        """Return what ``contents`` names, and give it back.  Raises `AsOfError` if it was collected meanwhile."""
        try:
            return await updates_of(client.blob, contents)
        except GoneError as error:
            self.places.check_unnamed(contents.shard, error.key)
            if handle._lease is not None:
                await handle.beat()  # says so if the lease was lost
                raise LawBrokenError("P5", f"{error}, and a lease holds it") from error
            self.marks["read: gone"] += 1
            raise AsOfError(str(error)) from error
        finally:
            handle.release(contents)

    def run(self) -> None:
        """Drive the users to their ends, then read everything from scratch.  Raises `LawBrokenError` or what broke."""
        with (
            mock.patch.object(machine, "CAS_RETRIES_MAX", self.patience),
            mock.patch.object(patience, "ATTEMPTS_MAX", self.patience),
            mock.patch.object(register, "RETRIES_MAX", self.patience),
            mock.patch.object(holds, "LEASE_MS", self.lease_ms),
            mock.patch.object(read, "BEAT_MS", self.lease_ms // holds.BEATS_PER_LEASE),
            mock.patch.object(collect, "LEAKED_AFTER_MS", self.leaked_after_ms),
            mock.patch.object(trace, "FAN", self.fan),
            mock.patch.object(trace, "INLINE_BYTES_FULL", self.inline_bytes),
            mock.patch.object(records, "INLINE_PART_BYTES_MAX", self.inline_part_bytes),
            turned(self.limits),
        ):
            self._spare()
            self.places.lease_ms = self.lease_ms
            with judged(lambda: self.damages > 0):
                self.simulation.drive()
            run_sync(self._finish())

    async def _finish(self) -> None:
        """Open everything anew, as the first process after all the others are gone, and check what needs the end."""
        clock = SimClock(self.simulation)
        client = PersistClient(clock, self.ids, self.places.blob, self.places.consensus)
        if TRANSACTIONS in self.places.versions:
            try:
                await open_transactions(client, self.fresh_epoch())
            except InvalidUsage as error:
                raise LawBrokenError("swept", f"what is committed can never be applied: {error}") from error
        times = sorted({attempt.lower for attempt in self.history.attempts})
        for shard in SHARDS:
            handle = await client.reader(shard, SCHEMA, shard)
            if handle is None:
                continue
            self.saw(client, handle.state)
            since, upper = handle.state.since.at, handle.state.upper.at
            assert since is not None
            assert upper is not None
            began = self.history.tick()
            found = await self.updates(client, handle, await handle.history(upper)) if since < upper else []
            readable = [time for time in sorted({since, upper - 1, *times}) if since <= time < upper]
            self.history.read_whole(shard, found, readable, began)
            if readable:
                await self.read(client, handle, readable[len(readable) // 2], timeout_s=0, at_once=True)
        began = self.words.began()
        self.words.read((await self.register(client).read() or b"").split(), began)
        self.history.finish()
        self.places.check_all_there()
        if self.tidied:
            await self._tidy_up()

    async def _tidy_up(self) -> None:
        """Collect until there is nothing to collect, long after everything: what is left is named."""
        self.places.grace_ms = 0  # no reader is left
        clock = SimClock(self.simulation, AFTERWARDS_MS)
        client = PersistClient(clock, self.ids, self.places.blob, self.places.consensus, grace_ms=0)
        for shard in SWEPT:
            if shard not in self.places.versions:
                continue
            schema, owner = (SCHEMA.ddl, "") if shard == PLAIN else (RECORDS_SCHEMA, RECORDS_SCHEMA)
            await client.writer(shard, self.fresh_epoch(), schema=schema, owner=owner)  # by now every lease is over
            await client._machine(shard).roll_up()  # so that a rollup which was never named never will be
            collector = await client.collector(shard)
            assert collector is not None
            for _ in range(COLLECTIONS_MAX):
                done = await collector.collect()
                if done.nothing:
                    break
            require("L1", done.nothing, f"collecting {shard} does not come to an end: {done}")
            if not self.damages:  # what a damaged rollup would have led to is left to the sweep
                self.places.check_collected(shard)
            await collector.sweep()
            self.places.check_no_garbage(shard)

    def unapplied(self) -> bool:
        """Return whether some table lags behind the transactions, so that opening them has work to do first."""
        uppers = [states[-1]["upper"] for shard, states in self.places.states.items() if shard in TABLES]
        return bool(uppers) and min(uppers) < self.places.states[TRANSACTIONS][-1]["upper"]

    @property
    def acknowledged(self) -> int:
        """How many updates of shards and of the register were acknowledged."""
        return self.history.acknowledged + self.words.acknowledged

    @property
    def io_points(self) -> int:
        """How many calls to Blob and Consensus were made."""
        return sum(step.fate is not None and step.site.startswith(("blob.", "consensus.")) for step in self.trace)

    @property
    def trace(self) -> list[Any]:
        """Every step of the run."""
        return self.simulation.trace


Populate = Callable[[World], None]


def play(seed: int, populate: Populate) -> World:
    """Make the history of ``seed``.  Raises `LawBrokenError` (or what else broke), with the seed in a note."""
    rng = random.Random(seed)
    calm_after, focus, patience = (
        options[int(rng.random() * len(options))] for options in (CALM_AFTER, FOCI, PATIENCE)
    )
    world = World(Seeded(rng, focus), calm_after=calm_after, patience=patience)
    try:
        world.rollup_every = world.one_of("rollup every", ROLLUPS_EVERY)
        world.lease_ms = world.one_of("lease", LEASES_MS)
        world.fan = world.one_of("fan", FANS)
        world.inline_part_bytes = world.one_of("inline part", INLINE_PART_BYTES)
        world.inline_bytes = world.one_of("inline bytes", INLINE_BYTES)
        world.grace_ms = world.one_of("grace", GRACES_MS)
        world.leaked_after_ms = world.one_of("leaked after", LEAKED_AFTER_MS)
        world.troubled = True
        world.tidied = world.choose("tidied", 4) == 0
        world.merging = world.choose("merging", 3) > 0
        world.merges_apart = world.choose("merges apart", 2) > 0
        world.limits = {limit: world.one_of("limit", limit.options) for limit in LIMITS}
        populate(world)
        world.run()
        least = ACKNOWLEDGED_MIN
        require("W1", world.acknowledged >= least, f"{world.acknowledged} acknowledged, at least {least} are needed")
    except Exception as error:
        error.add_note(f"replay this history: make sim SEED={seed}")
        raise
    return world


def law_of(error: BaseException) -> str:
    """Return the name of the law that ``error`` says is broken: ours, or one of persist's own (`invariants.py`)."""
    if isinstance(error, LawBrokenError):
        return error.law
    words = str(error).split()
    return words[1] if isinstance(error, AssertionError) and words[:1] == ["law"] else type(error).__name__
