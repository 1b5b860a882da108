"""The one commit path of a shard.

A `Machine` holds the newest state it knows and changes it by compare-and-set: a *command* (a pure transition of `state.py`) is evaluated,
the laws are checked, the diff is sent.  After a lost race or an unknown outcome the newest state is fetched and the command is evaluated
anew; it recognises its own earlier success.  A command's refusal counts only on a state that was fetched after the command was issued.

After a commit the machine does the maintenance that the commit made necessary (a rollup every `ROLLUP_EVERY` versions); that may fail
without harm, since the next committer will find it still to be done.

Trap: an `Indeterminate` that leaves here means that the last attempt may still land, so nothing it names may be deleted.

Source: design page "persist" (shard state, errors, details that cost others years).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from strandline.errors import CorruptionError, Indeterminate, StoreError, Unavailable
from strandline.persist import codec
from strandline.persist.invariants import check
from strandline.persist.state import FIRST_SEQNO, Rollup, ShardState, add_rollup
from strandline.store.blob import Blob
from strandline.store.clock import Clock, Ids
from strandline.store.consensus import Committed, CompareAndSet, Consensus, Mismatch, Versioned

T = TypeVar("T")
Command = Callable[[ShardState], tuple[ShardState, T]]

ROLLUP_EVERY: Final = 128
CAS_RETRIES_MAX: Final = 64
BACKOFF_S_MAX: Final = 1.0
SCAN_LIMIT: Final = 256
assert SCAN_LIMIT >= ROLLUP_EVERY


class Machine:
    """One shard, as one process knows it.  Several coroutines may share it; several processes have one each."""

    def __init__(
        self, shard: str, clock: Clock, ids: Ids, blob: Blob, consensus: Consensus, *, rollup_every: int = ROLLUP_EVERY
    ) -> None:
        self.shard = shard
        self._clock = clock
        self._ids = ids
        self._blob = blob
        self._consensus = consensus
        self._rollup_every = rollup_every
        self._state: ShardState | None = None

    @property
    def state(self) -> ShardState:
        """The newest state known here (others may have gone on since)."""
        assert self._state is not None, f"shard {self.shard!r} is used before it was opened"
        return self._state

    async def open(self, *, create: bool = True) -> bool:
        """Load the state, creating the shard at version 1 if it does not exist and ``create``; tell whether it exists."""
        last: StoreError | None = None
        for attempt in range(CAS_RETRIES_MAX):
            try:
                if await self._load():
                    return True
                if not create:
                    return False
                await self._create()
            except StoreError as error:
                last = error
                await self._back_off(attempt)
        raise Unavailable(f"shard {self.shard!r} could not be opened in {CAS_RETRIES_MAX} attempts ({last})")

    async def refresh(self) -> ShardState:
        """Fetch what others have committed since, and return the newest state."""
        last: StoreError | None = None
        for attempt in range(CAS_RETRIES_MAX):
            try:
                await self._catch_up()
            except StoreError as error:
                last = error
                await self._back_off(attempt)
            else:
                return self.state
        raise Unavailable(f"shard {self.shard!r} could not be read in {CAS_RETRIES_MAX} attempts ({last})")

    async def commit(self, command: Command[T]) -> T:
        """Apply ``command`` to the newest state, durably, and return its answer.

        Raises:
            Indeterminate: the attempts are used up and the last one may still land; delete nothing that it names.
            Unavailable: the attempts are used up and none of them landed.
        """
        current = False  # whether self.state was fetched after this call began
        unknown: Indeterminate | None = None  # why our newest attempt may still land
        try:
            for attempt in range(CAS_RETRIES_MAX):
                before = self.state
                after, answer = command(before)
                if after is before:
                    if current:
                        return answer
                else:
                    later, request = self.prepare(before, after)
                    try:
                        outcome = await self._consensus.compare_and_set(request)
                    except StoreError as error:
                        unknown = error if isinstance(error, Indeterminate) else unknown
                        await self._back_off(attempt)
                    else:
                        if isinstance(outcome, Committed):
                            self._adopt(later)
                            await self._maintain()
                            return answer
                await self.refresh()
                current = True
                if self.state.seqno > before.seqno:
                    unknown = None  # the version we aimed at is taken: by us, as the command will see, or for ever by another
        except Unavailable as error:
            if unknown is None:
                raise
            raise Indeterminate(f"shard {self.shard!r}: a commit may or may not have happened ({error})") from error
        if unknown is not None:
            raise Indeterminate(f"shard {self.shard!r}: a commit may or may not have happened ({unknown})")
        raise Unavailable(f"shard {self.shard!r}: no commit in {CAS_RETRIES_MAX} attempts; too many writers at once")

    def prepare(self, before: ShardState, after: ShardState) -> tuple[ShardState, CompareAndSet]:
        """Return the next version and the request that installs it; every law holds between the two."""
        after = replace(after, seqno=before.seqno + 1, walltime_ms=max(before.walltime_ms, self._clock.now_ms()))
        check(before, after)
        data = codec.encode_diff(self.shard, codec.difference(before, after))
        return after, CompareAndSet(self.shard, before.seqno, Versioned(after.seqno, data))

    def adopt(self, state: ShardState) -> None:
        """Take over a version that the caller has committed by a request of `prepare`."""
        self._adopt(state)

    # ---- reading what is there ---------------------------------------------------------------------------------------

    def _adopt(self, state: ShardState) -> None:
        if self._state is None or state.seqno > self._state.seqno:
            self._state = state

    async def _catch_up(self) -> None:
        state = self.state
        versions = await self._consensus.scan(self.shard, state.seqno + 1, SCAN_LIMIT)
        if not versions:
            return
        if versions[0].seqno != state.seqno + 1 or len(versions) == SCAN_LIMIT:
            await self._load()  # truncated, or far behind: start from the newest rollup
            return
        self._adopt(self._replay(state.seqno, codec.entries(state), versions))

    async def _load(self) -> bool:
        while True:
            head = await self._consensus.head(self.shard)
            if head is None:
                return False
            rollup = codec.decode_diff(self.shard, head.seqno, head.data).rollup
            data = await self._blob.get(rollup.key)
            if data is None:
                newest = await self._consensus.head(self.shard)
                if newest is not None and newest.seqno > head.seqno:
                    continue  # the head we saw was superseded, and its rollup collected
                raise CorruptionError(
                    f"shard {self.shard!r}: rollup {rollup.key!r}, which version {head.seqno} names, is missing in Blob"
                )
            seqno, flat = codec.decode_rollup(self.shard, rollup.key, data)
            versions: list[Versioned] = []
            while not versions or versions[-1].seqno < head.seqno:
                start = versions[-1].seqno + 1 if versions else seqno + 1
                more = await self._consensus.scan(self.shard, start, SCAN_LIMIT)
                if not more:
                    break
                versions += more
            self._adopt(self._replay(seqno, flat, versions))
            return True

    def _replay(self, seqno: int, flat: codec.Entries, versions: list[Versioned]) -> ShardState:
        for version in versions:
            if version.seqno != seqno + 1:
                raise CorruptionError(f"shard {self.shard!r}: version {seqno} is followed by {version.seqno} in Consensus")
            flat = codec.apply(flat, codec.decode_diff(self.shard, version.seqno, version.data))
            seqno = version.seqno
        return codec.restore(self.shard, seqno, flat)

    # ---- writing -----------------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        key = self._rollup_key(FIRST_SEQNO)
        empty = ShardState(self.shard, walltime_ms=self._clock.now_ms())
        first = replace(empty, seqno=FIRST_SEQNO, rollups=(Rollup(FIRST_SEQNO, key),))
        await self._blob.set(key, codec.encode_rollup(key, first))
        data = codec.encode_diff(self.shard, codec.difference(empty, first))
        request = CompareAndSet(self.shard, None, Versioned(FIRST_SEQNO, data))
        if isinstance(await self._consensus.compare_and_set(request), Mismatch):
            await self._blob.delete(key)  # somebody else created the shard: ours is named by nothing

    async def _maintain(self) -> None:
        state = self.state
        if state.seqno - state.rollups[-1].seqno < self._rollup_every:
            return
        key = self._rollup_key(state.seqno)
        try:
            await self._blob.set(key, codec.encode_rollup(key, state))
            if not await self.commit(lambda s: add_rollup(s, Rollup(state.seqno, key))):
                await self._blob.delete(key)
        except (StoreError, Unavailable):
            return  # the next committer finds the rollup still missing

    def _rollup_key(self, seqno: int) -> str:
        return f"{self.shard}/rollup/{seqno}-{self._ids.fresh('r')}"

    async def _back_off(self, attempt: int) -> None:
        await self._clock.sleep(min(BACKOFF_S_MAX, 0.005 * 2 ** min(attempt, 10)))
