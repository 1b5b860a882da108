"""The entry point of persist: opens shards as writers, readers, holds and record shards.

A process has one `PersistClient` for each location.  Handles to one shard share one `Machine`, so they see each other's
commits at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from strandline.algebra.schema import Schema
from strandline.errors import CorruptionError, Indeterminate, StoreError, StrandlineError, Unavailable
from strandline.frontier import Frontier
from strandline.persist.handles.contents import Merger
from strandline.persist.handles.read import Lease, ReadHandle, SinceHandle
from strandline.persist.handles.records import SCHEMA, RecordMerger, RecordShard
from strandline.persist.handles.register import KEY, OWNERS, Names, Register
from strandline.persist.handles.updates import RowCodec
from strandline.persist.handles.write import WriteHandle, fenced
from strandline.persist.notices import Notifier, Polling
from strandline.persist.shard.evolution import parse_schema, widened
from strandline.persist.shard.machine import ROLLUP_EVERY, Command, Machine
from strandline.persist.shard.patience import Metrics, PatientBlob
from strandline.persist.shard.state import (
    Append,
    AppendOutcome,
    OpaqueMismatch,
    ShardState,
    admit,
    append,
    describe,
    expire_critical,
    mark_swept,
)
from strandline.persist.shard.trace import due
from strandline.persist.upkeep.collect import DELETION_GRACE_MS, Collector, Inspection, inspect, retire
from strandline.persist.upkeep.compact import Compactor
from strandline.store.clock import Clock, Ids
from strandline.store.protocols import Blob, Committed, CompareAndSet, Consensus

AWAY_AFTER: Final = 2
"""After so many machines in a row that a store did not answer, `commit_many` asks it no more."""


class PersistClient:
    """Opens shards of one location."""

    def __init__(
        self,
        clock: Clock,
        ids: Ids,
        blob: Blob,
        consensus: Consensus,
        merger: Merger | None = None,
        *,
        rollup_every: int = ROLLUP_EVERY,
        grace_ms: int | None = DELETION_GRACE_MS,
        notifier: Notifier | None = None,
        merges_apart: bool = False,
    ) -> None:
        """``merger`` reads and rewrites parts of rows: the engine; without it their batches are never merged.

        ``grace_ms``: how long parts outlive the last version that names them; None: another process collects garbage.
        ``merges_apart``: no commit waits for a large merge; then the caller must call `merge` regularly.
        """
        self.clock = clock
        self.ids = ids
        self.blob = blob
        self.consensus = consensus
        self.notifier = notifier or Polling(clock)
        self.metrics = Metrics()
        self._merger = merger
        self._rollup_every = rollup_every
        self._grace_ms = grace_ms
        self._merges_apart = merges_apart
        self._machines: dict[str, Machine] = {}
        self._compactors: dict[str, Compactor] = {}

    async def writer(
        self,
        shard: str,
        epoch: int,
        *,
        schema: str,
        owner: str = "",
        sort: tuple[str, ...] = (),
        merger: Merger | None = None,
        widens: bool = False,
    ) -> WriteHandle:
        """Open ``shard`` for writing under ``epoch``, creating it if need be; older epochs are fenced from here on.

        ``sort``: the columns by which its batches are sorted from now on (default: all); merges keep to it.
        ``merger`` rewrites the shard's parts when its trace grows long (default: as `compactor` says).  ``widens``: a
        shard that lacks the last columns of ``schema`` gets them, and the handle appends only until it gets others.

        Raises:
            FencedError: a newer epoch has been admitted.
            InvalidUsage: the shard is registered with another schema or owner.
        """
        known = self._machine(shard).opened
        machine = await self._open(shard)

        def described(state: ShardState) -> tuple[ShardState, None]:
            if widens and epoch < state.epoch:
                return state, None  # it is fenced, whatever columns its successor has added
            return describe(widened(state, schema) if widens else state, schema, owner, sort)

        await machine.commit(described)
        self._look_after(machine, merger or await self._merger_of(machine.state, self._merger))
        held_to = schema if widens else ""
        handle = WriteHandle(machine, self.ids, epoch, owner=owner, made=machine.made and not known, schema=held_to)
        await handle.admit()
        return handle

    async def fence(self, shard: str, epoch: int) -> None:
        """Let no writer of an epoch below ``epoch`` append to ``shard`` from here on."""
        machine = await self._open(shard)
        await machine.commit(lambda state: admit(state, epoch))

    async def records(self, shard: str, epoch: int) -> RecordShard:
        """Open ``shard`` as a record shard for writing under ``epoch``."""
        blob = self._for_records()
        handle = await self.writer(shard, epoch, schema=SCHEMA, owner=SCHEMA, merger=RecordMerger(blob))
        return RecordShard(self._machines[shard], handle, blob)

    async def recorded(self, shard: str) -> RecordShard | None:
        """Open ``shard`` as a record shard for reading; None if it does not exist.  Writes nothing, and cannot."""
        machine = self._machine(shard)
        if not await machine.open(create=False):
            return None
        unadmitted = WriteHandle(machine, self.ids, 0, owner=SCHEMA, made=False)
        return RecordShard(machine, unadmitted, self._for_records())

    async def reader(
        self, shard: str, schema: Schema, name: str, *, kept: str = "", begins: int = 0
    ) -> ReadHandle | None:
        """Open ``shard`` for reading without a lease; None if it does not exist.  Writes nothing.

        ``kept``, ``begins``: see `ReadHandle`.
        """
        machine = self._machine(shard)
        if not await machine.open(create=False):
            return None
        return ReadHandle(machine, schema, name, kept=kept, begins=begins)

    async def leased_reader(
        self, shard: str, schema: Schema, name: str, *, kept: str = "", begins: int = 0, lease: str | None = None
    ) -> ReadHandle | None:
        """Open ``shard`` for reading under a lease of its own; None if the shard does not exist.

        ``lease``: its name, by which another process may take it up; without one it is a fresh one.  One with a name
        holds what any of these processes was handed out, until one of them closes it.
        """
        machine = self._machine(shard)
        if not await machine.open(create=False):
            return None
        name_of_lease = self.ids.fresh("r") if lease is None else lease
        held = Lease(machine, self.clock, name_of_lease, shared=lease is not None)
        await held.register()
        return ReadHandle(machine, schema, name, held, kept=kept, begins=begins)

    async def since(self, shard: str, reader: str, epoch: int) -> SinceHandle:
        """Register (or take over) the critical reader ``reader`` of ``shard`` under ``epoch``."""
        handle = SinceHandle(await self._open(shard), reader, epoch)
        await handle.register()
        return handle

    async def release(self, shard: str, reader: str, epoch: int) -> None:
        """Release the hold of the critical reader ``reader`` of ``shard``, which no one has any longer, for good.

        It stays if an epoch above ``epoch`` has taken it meanwhile: it is that one's now.
        """
        machine = await self._open(shard)

        def gone(state: ShardState) -> tuple[ShardState, OpaqueMismatch | None]:
            held = state.criticals.get(reader)
            if held is None or held.opaque > epoch:
                return state, None
            return expire_critical(state, reader, held.opaque)

        await machine.commit(gone)

    async def advance_many(
        self, moves: Sequence[tuple[WriteHandle, Frontier, str]]
    ) -> list[AppendOutcome | StrandlineError]:
        """Advance each upper, from the newest state known here, by an empty append: all in one durable flush.

        This is what a tick costs for shards with nothing new.  Each move is ``(writer, upper, fingerprint)``; a
        fingerprint that is not empty certifies the shard, as of where it is moved from: what its inputs hold beyond,
        some of which are moved with it, is not durable yet.  The outcomes are independent: one shard's error is its
        outcome.
        """
        requests = [
            (w, w.request((), w.state.upper, upper, certify=name, read=w.state.upper)) for w, upper, name in moves
        ]
        outcomes = await commit_many(
            self.consensus, [(self._machines[w.shard], partial(_append, request)) for w, request in requests]
        )
        for (writer, request), outcome in zip(requests, outcomes, strict=True):
            if not isinstance(outcome, StrandlineError):
                writer.settled(request)
        return outcomes

    async def downgrade_many(self, moves: Sequence[tuple[SinceHandle, Frontier]]) -> None:
        """Release the times before each frontier: all shards in one durable flush.

        Raises the error of the first shard whose hold could not be moved (`FencedError`: a newer epoch owns the hold);
        the other holds are moved.
        """
        commands = [(self._machines[hold.shard], hold.command(since)) for hold, since in moves]
        failed: StrandlineError | None = None
        for (hold, since), answer in zip(moves, await commit_many(self.consensus, commands), strict=True):
            if isinstance(answer, StrandlineError):
                failed = failed or answer
            else:
                await hold.settled(since, answer)
        if failed is not None:
            raise failed

    async def merge(self) -> None:
        """Carry out the large merges that commits of this client left due; what fails is among `problems`.

        It may run beside anything else that this client does: nothing waits for it.
        """
        for machine, compactor in [(self._machines[shard], each) for shard, each in self._compactors.items()]:
            if compactor.merger is not None and due(machine.state) is not None:
                await machine.upkeep.do("merge", compactor.catch_up)

    async def compactor(self, shard: str, merger: Merger | None = None) -> Compactor | None:
        """Return the compactor of ``shard``, opening the shard if need be; None if it does not exist."""
        if not await self._machine(shard).open(create=False):
            return None
        found = self._compactors[shard]
        if found.merger is None:
            found.merger = await self._merger_of(self._machines[shard].state, merger or self._merger)
        return found

    async def mend(self) -> None:
        """Do again what upkeep failed: nothing may be committed to that shard any time soon.  Raises nothing."""
        for machine in [each for each in self._machines.values() if each.upkeep.problems]:
            await machine.maintain()

    async def _merger_of(self, state: ShardState, rows: Merger | None) -> Merger | None:
        """Return the merger of a shard's parts: ``rows`` if the engine wrote them, else a merger of records.

        The schema text of a named shard is in its codec's own words and may look like columns, so this looks up the
        codec.
        """
        codec = RowCodec.name
        if parse_schema(state.schema) is None:
            codec = ""
        elif state.owner in OWNERS:
            named = await self.names().all()
            codec = next((each.codec for each in named.values() if each.shard == state.shard), codec)
        return rows if codec == RowCodec.name else RecordMerger(self._for_records())

    def names(self) -> Names:
        """Return the names of the location."""
        return Names(Register(KEY, self.clock, self.ids, self.consensus), self.ids)

    async def look(self, shard: str) -> None:
        """Learn how far a shard is that another process writes; nothing, if it does not exist yet."""
        machine = self._machine(shard)
        if await machine.open(create=False):
            await machine.refresh()

    def known(self, shard: str) -> ShardState | None:
        """Return the newest state known here of a shard; None if it is not open."""
        machine = self._machines.get(shard)
        return machine.state if machine is not None and machine.opened else None

    def state_of(self, shard: str) -> ShardState:
        """Return the newest state known here of a shard that is open."""
        return self._machines[shard].state

    def problems(self) -> dict[str, str]:
        """Return, for each shard whose upkeep failed, which job failed and why."""
        return {
            shard: "; ".join(f"{job} failed: {why}" for job, why in sorted(machine.upkeep.problems.items()))
            for shard, machine in self._machines.items()
            if machine.upkeep.problems
        }

    async def inspect(self, shard: str, held: Collection[str] = ()) -> Inspection | None:
        """Look at a shard, for people; None if it does not exist.  ``held``: see `Collector.leaked`."""
        collector = await self.collector(shard)
        return None if collector is None else await inspect(self._machines[shard], collector, self.blob, held)

    async def collector(self, shard: str) -> Collector | None:
        """Return the garbage collector of ``shard``; None if it does not exist."""
        machine = self._machine(shard)
        if not await machine.open(create=False):
            return None
        return self._collector(machine, self._grace_ms or 0)

    async def mark_swept(self, shard: str, before_ms: int) -> None:
        """From now on, refuse appends to ``shard`` that name parts begun before ``before_ms``."""
        machine = await self._open(shard)
        await machine.commit(partial(mark_swept, before_ms=before_ms))

    def _for_records(self) -> PatientBlob:
        return PatientBlob(self.blob, self.clock, self.metrics)

    async def close_shard(self, shard: str, epoch: int) -> None:
        """Close ``shard`` for good, release its past, and delete it as `clear` says; idempotent (see `retire`).

        Raises `FencedError` if a newer epoch has been admitted.
        """
        machine, token = await self._open(shard), self.ids.fresh("t")
        outcome = await machine.commit(lambda state: retire(state, epoch, token))
        if outcome is not None:
            raise fenced(shard, outcome, epoch)
        await self.clear(shard)

    async def clear(self, shard: str) -> None:
        """Collect the garbage of ``shard``, which was given up, if this process collects garbage.

        While a reader holds the shard or a store does not answer, this leaves the rest in place and raises nothing.  A
        later collection deletes the rest as it deletes all other garbage.
        """
        if self._grace_ms is not None:
            with suppress(StoreError, Unavailable, CorruptionError):
                await self._collector(await self._open(shard), self._grace_ms).collect()

    def forget(self, shard: str) -> None:
        """Drop from memory what is known of ``shard``, which was closed; handles of it go on as they are."""
        self._machines.pop(shard, None)
        self._compactors.pop(shard, None)

    def _collector(self, machine: Machine, grace_ms: int) -> Collector:
        return Collector(machine, self.clock, self.ids, self.blob, self.consensus, grace_ms)

    def _look_after(self, machine: Machine, merger: Merger | None) -> None:
        """Compact and collect after commits from now on.  Only writers do so; a reader's beat deletes nothing."""
        compactor = self._compactors[machine.shard]
        compactor.merger = merger
        machine.upkeep.add("merge", compactor.keep_up)
        if self._grace_ms is not None:
            machine.upkeep.add("collection", self._collector(machine, self._grace_ms).keep_up)

    async def _open(self, shard: str) -> Machine:
        machine = self._machine(shard)
        await machine.open()
        return machine

    def _machine(self, shard: str) -> Machine:
        if shard not in self._machines:
            machine = Machine(
                shard,
                self.clock,
                self.ids,
                self.blob,
                self.consensus,
                rollup_every=self._rollup_every,
                notifier=self.notifier,
                metrics=self.metrics,
            )
            self._machines[shard] = machine
            self._compactors[shard] = Compactor(machine, self.blob, apart=self._merges_apart)
        return self._machines[shard]


def _append(request: Append, state: ShardState) -> tuple[ShardState, AppendOutcome]:
    return append(state, request)


async def commit_many(
    consensus: Consensus, commands: Sequence[tuple[Machine, Command[Any]]]
) -> list[Any | StrandlineError]:
    """Commit one command on each of several machines; return each one's answer, or the error that it raised.

    A command that does not succeed in the shared flush is committed by its own machine.
    """
    prepared: dict[int, tuple[ShardState, Any, CompareAndSet]] = {}
    for index, (machine, command) in enumerate(commands):
        # A command that refuses this state may accept a newer one: the commit below decides.
        with suppress(StrandlineError):
            before = machine.state
            after, answer = command(before)
            if after is not before:
                later, request = machine.prepare(before, after)
                prepared[index] = (later, answer, request)
    answers: dict[int, Any] = {}
    unknown: Indeterminate | None = None
    if prepared:
        try:
            outcomes = await consensus.compare_and_set_many([request for _, _, request in prepared.values()])
        except StoreError as error:
            unknown = error if isinstance(error, Indeterminate) else None  # each machine looks for itself below
            metrics = commands[0][0].metrics
            metrics.retries, metrics.indeterminate = metrics.retries + 1, metrics.indeterminate + (unknown is not None)
        else:
            for (index, (later, answer, request)), outcome in zip(prepared.items(), outcomes, strict=True):
                if isinstance(outcome, Committed):
                    commands[index][0].committed(later, request)
                    answers[index] = answer
    for index in answers:
        await commands[index][0].maintain()
    # After a store did not answer one machine for a minute, the next asks it only once.  If it does not answer that one
    # either, it is away for the others too: one call may take a minute.
    away = 0
    for index, (machine, command) in enumerate(commands):
        if index in answers:
            continue
        if away == AWAY_AFTER:
            away_for = f"shard {machine.shard!r}: a store is away"
            answers[index] = (
                Unavailable(away_for)
                if unknown is None
                else Indeterminate(f"{away_for}, a commit may or may not have happened ({unknown})")
            )
            continue
        try:
            deadline = machine.within(0) if away else None
            answers[index] = await machine.commit(command, unknown=unknown, deadline=deadline)
        except StrandlineError as error:
            answers[index] = error
            away += isinstance(error, StoreError | Unavailable)
        else:
            away = 0
    return [answers[index] for index in range(len(commands))]
