"""The one commit path of a shard, and the maintenance that a commit makes due.

A `Machine` holds the newest state it knows and changes it by compare-and-set: a *command* (a pure transition of
`state.py`) is evaluated, the laws are checked, the diff is sent.  After a lost race or an unknown outcome the machine
fetches the newest state and evaluates the command anew; the command recognises its own earlier success.  A command's
refusal counts only on a state that was fetched after the command was issued.

After a commit the machine does the maintenance that became due: a rollup every `ROLLUP_EVERY` versions, and the other
jobs that its owner added to its `Upkeep`.  Maintenance may fail without harm, and the committer does not see the
failure.

Trap: if a machine raises `Indeterminate`, the last attempt may still land, so the caller must not delete anything that
it names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from strandline.errors import CorruptionError, Indeterminate, InvalidUsage, StoreError, StrandlineError, Unavailable
from strandline.persist.notices import Notice, Notifier, Polling, Subscription, notice_of
from strandline.persist.shard import codec
from strandline.persist.shard.batch import parts_prefix, rollups_prefix
from strandline.persist.shard.invariants import check
from strandline.persist.shard.patience import ATTEMPTS_MAX, PATIENCE_S, Deadline, Metrics
from strandline.persist.shard.state import FIRST_SEQNO, Rollup, ShardState, add_rollup
from strandline.store.clock import Clock, Ids
from strandline.store.protocols import Blob, Committed, CompareAndSet, Consensus, Versioned

LEFT_OUT_MAX: Final = 512
"""The most commits in a row that skip a job which keeps failing."""

Job: TypeAlias = Callable[[], Awaitable[bool]]


class Upkeep:
    """The jobs of one shard in one process, by name, in the order in which they run.

    A *job* checks what is due and does it; it returns False if it postponed even the check.  An error of a job is
    noted (`Upkeep.problems`, `Metrics.upkeep_failures`) and not raised: the commit is durable, and an error would
    suggest that it failed.  The caller might then write the same rows again, or delete what the shard names.

    If a job fails because of a store, the next commit retries it.  A job that failed for any other reason (a damaged
    part, a job that Spark cannot run) would fail again and take time at every commit, so the next 1, 2, 4, … commits
    skip it, `LEFT_OUT_MAX` at most.  It resumes by itself once its cause is gone.

    Trap: a failed assertion is a bug, in Strandline or in the test that observes it, so it is raised.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._jobs: dict[str, Job] = {}
        self._failures: dict[str, int] = {}
        self._left_out: dict[str, int] = {}
        self._running = False
        self.problems: dict[str, str] = {}
        """The last error of each failing job, by its name."""

    def add(self, name: str, job: Job) -> None:
        """Add ``job``, unless there is one of that name."""
        self._jobs.setdefault(name, job)

    async def run(self) -> None:
        """Run the jobs.  The jobs' own commits start no further run: the next commit does what they make due."""
        if self._running:
            return
        self._running = True
        try:
            for name, job in list(self._jobs.items()):  # a writer that is opened meanwhile adds jobs
                await self.do(name, job)
        finally:
            self._running = False

    async def do(self, name: str, job: Job) -> None:
        """Run ``job``, unless it must be skipped after recent failures; its errors are noted."""
        if self._left_out.get(name):
            self._left_out[name] -= 1
        else:
            await self._try(name, job)

    async def _try(self, name: str, job: Job) -> None:
        try:
            looked = await job()
        except AssertionError:
            raise
        except (StoreError, Unavailable) as error:
            self._note(name, error)
        except Exception as error:  # noqa: BLE001  # the commit is durable, whatever the error
            self._note(name, error)
            self._failures[name] = self._failures.get(name, 0) + 1
            self._left_out[name] = min(LEFT_OUT_MAX, 2 ** (self._failures[name] - 1))
        else:
            if looked:
                self._failures.pop(name, None)
                self.problems.pop(name, None)

    def _note(self, name: str, error: Exception) -> None:
        self._metrics.upkeep_failures += 1
        self.problems[name] = str(error) or type(error).__name__


T = TypeVar("T")
Command = Callable[[ShardState], tuple[ShardState, T]]

ROLLUP_EVERY: Final = 128
CAS_RETRIES_MAX: Final = ATTEMPTS_MAX
SCAN_LIMIT: Final = 256
ROLLUP_EVERY_MIN: Final = 2
"""Naming a rollup is a version itself: one for each version would never end."""
assert ROLLUP_EVERY_MIN <= ROLLUP_EVERY <= SCAN_LIMIT


class Machine:
    """One shard as one process knows it.  Coroutines may share a machine; each process has its own."""

    def __init__(
        self,
        shard: str,
        clock: Clock,
        ids: Ids,
        blob: Blob,
        consensus: Consensus,
        *,
        rollup_every: int = ROLLUP_EVERY,
        notifier: Notifier | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        assert rollup_every >= ROLLUP_EVERY_MIN, f"a rollup every {rollup_every} versions would never end"
        self.shard = shard
        self._clock = clock
        self._ids = ids
        self._blob = blob
        self._consensus = consensus
        self._rollup_every = rollup_every
        self._notifier = notifier or Polling(clock)
        self.metrics = metrics or Metrics()
        self._state: ShardState | None = None
        self.made = False  # whether it is known that this machine made the shard, and no other process did
        self.upkeep = Upkeep(self.metrics)
        self.upkeep.add("rollup", self._roll_up_if_due)

    @property
    def opened(self) -> bool:
        """Whether a state is known."""
        return self._state is not None

    @property
    def state(self) -> ShardState:
        """The newest state known here (other processes may have committed since)."""
        assert self._state is not None, f"shard {self.shard!r} is used before it was opened"
        return self._state

    async def open(self, *, create: bool = True) -> bool:
        """Load the state, creating the shard if it is missing and ``create``; return whether it exists."""
        if self._state is not None:
            await self.refresh()
            return True
        last: StoreError | None = None
        patience = self._patience()
        for attempt in range(CAS_RETRIES_MAX):
            try:
                if await self._load():
                    return True
                if not create:
                    return False
                await self._create()
            except StoreError as error:
                last = error
                await self._back_off(attempt, error, patience)
            except CorruptionError:
                self.metrics.corruption_errors += 1
                raise
        raise Unavailable(f"shard {self.shard!r} could not be opened in {CAS_RETRIES_MAX} attempts ({last})")

    async def refresh(self, deadline: Deadline | None = None) -> ShardState:
        """Fetch the versions committed since, and return the newest state.

        Raises `Unavailable` when the attempts are used up, or ``deadline`` has passed.
        """
        last: StoreError | None = None
        deadline = deadline or self._patience()
        for attempt in range(CAS_RETRIES_MAX):
            try:
                await self._catch_up()
            except StoreError as error:
                last = error
                await self._back_off(attempt, error, deadline)
            except CorruptionError:
                self.metrics.corruption_errors += 1
                raise
            else:
                return self.state
        raise Unavailable(f"shard {self.shard!r} could not be read in {CAS_RETRIES_MAX} attempts ({last})")

    def within(self, timeout_s: float | None) -> Deadline | None:
        """Return the deadline of a caller that waits for ``timeout_s``; None if it sets none."""
        return None if timeout_s is None else Deadline(self._clock, timeout_s)

    async def commit(
        self,
        command: Command[T],
        *,
        unknown: Indeterminate | None = None,
        in_doubt: Callable[[], None] | None = None,
        deadline: Deadline | None = None,
    ) -> T:
        """Apply ``command`` to the newest state, durably, and return its answer.

        ``unknown``: why an attempt that the caller made itself, from the newest state known here, may still land.
        ``in_doubt`` is called whenever the outcome of an attempt is unknown.  Commands use it if later commits could
        hide whether they landed.

        Raises:
            Indeterminate: the attempts are used up, or ``deadline`` has passed, and the last one may still land; delete
                nothing that it names.
            Unavailable: the same, and none of them landed.
        """
        deadline = deadline or self._patience()
        current = False  # whether self.state was fetched after this call began
        doubted = unknown is not None  # whether the outcome of any attempt is unknown
        try:
            for attempt in range(CAS_RETRIES_MAX):
                before = self.state
                prepared = self._evaluate(command, before, refuse=current)
                if prepared is not None:
                    after, answer = prepared
                    if after is before:
                        self.metrics.witness_hits += doubted
                        return answer
                    later, request = self.prepare(before, after)
                    try:
                        outcome = await self._consensus.compare_and_set(request)
                    except StoreError as error:
                        unknown = error if isinstance(error, Indeterminate) else unknown
                        doubted = doubted or unknown is not None
                        if in_doubt is not None and isinstance(error, Indeterminate):
                            in_doubt()
                        await self._back_off(attempt, error, deadline)
                    else:
                        if isinstance(outcome, Committed):
                            self.committed(later, request)
                            await self.maintain()
                            return answer
                        self.metrics.retries += 1
                await self.refresh(deadline)
                current = True
                if self.state.seqno > before.seqno:
                    # The version we aimed at is taken: by us, which the command will see, or for ever by another
                    # writer.
                    unknown = None
            if unknown is None:
                after, answer = command(self.state)
                if after is self.state:
                    self.metrics.witness_hits += doubted
                    return answer  # the last attempt landed and only its answer was lost; or a refusal
        except StrandlineError as error:
            if unknown is None or isinstance(error, Indeterminate):
                raise
            raise Indeterminate(f"shard {self.shard!r}: a commit may or may not have happened ({error})") from error
        if unknown is not None:
            raise Indeterminate(f"shard {self.shard!r}: a commit may or may not have happened ({unknown})")
        raise Unavailable(f"shard {self.shard!r}: no commit in {CAS_RETRIES_MAX} attempts; too many writers at once")

    @staticmethod
    def _evaluate(command: Command[T], state: ShardState, *, refuse: bool) -> tuple[ShardState, T] | None:
        """Evaluate ``command``; None if it refuses a state that may be stale (``refuse`` is False)."""
        try:
            after, answer = command(state)
        except InvalidUsage:
            if refuse:
                raise
            return None
        return None if after is state and not refuse else (after, answer)

    def prepare(self, before: ShardState, after: ShardState) -> tuple[ShardState, CompareAndSet]:
        """Return the next version and the request that installs it; every law holds between the two."""
        after = replace(after, seqno=before.seqno + 1, walltime_ms=max(before.walltime_ms, self._clock.now_ms()))
        check(before, after)
        data = codec.encode_diff(self.shard, codec.difference(before, after))
        return after, CompareAndSet(self.shard, before.seqno, Versioned(after.seqno, data))

    def committed(self, state: ShardState, request: CompareAndSet) -> None:
        """Adopt the version that the ``request`` of `prepare` installed, and publish a notice of it."""
        self.adopt(state)
        self._notifier.publish(notice_of(self.shard, state.seqno, request.new.data))

    async def subscribe(self) -> Subscription:
        """Subscribe to new versions.  `refresh` first; pass each notice to `heard`, and `refresh` if none comes."""
        return await self._notifier.subscribe(self.shard)

    def heard(self, notice: Notice) -> bool:
        """Apply a notice of a version; return whether everything up to that version is now known here.

        A diff that does not follow the state known here, or fails its check, changes nothing.
        """
        state = self.state
        if notice.seqno == state.seqno + 1 and notice.diff:
            try:
                version = codec.decode_diff(self.shard, notice.seqno, notice.diff)
                self.adopt(codec.apply(state, [version]))
            except CorruptionError:
                self.metrics.corruption_errors += 1
                return False
            self.metrics.notices += 1
        return notice.seqno <= self.state.seqno

    def adopt(self, state: ShardState) -> None:
        """Keep a version that is committed, by this process or another, if it is newer."""
        if self._state is None or state.seqno > self._state.seqno:
            self._state = state

    # ---- reading what is there ---------------------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        state = self.state
        versions = await self._consensus.scan(self.shard, state.seqno + 1, SCAN_LIMIT)
        if not versions:
            return
        if versions[0].seqno != state.seqno + 1 or len(versions) == SCAN_LIMIT:
            await self._load()  # truncated, or far behind: start from the newest rollup
            return
        self.adopt(self._replay(state, versions))

    async def _load(self) -> bool:
        head = await self._consensus.head(self.shard)
        while head is not None:
            found = await self._load_from(head)
            if isinstance(found, ShardState):
                self.adopt(found)
                return True
            newest = await self._consensus.head(self.shard)
            if newest is None or newest.seqno == head.seqno:
                raise CorruptionError(f"shard {self.shard!r}: {found}, which version {head.seqno} needs, is missing")
            head = newest  # a newer version superseded this one meanwhile, and its objects were collected
        return False

    async def _load_from(self, head: Versioned) -> ShardState | str:
        """Return the state at ``head`` or later; or what is missing of it."""
        rollup = codec.decode_diff(self.shard, head.seqno, head.data).rollup
        data = await self._blob.get(rollup.key)
        if data is None:
            return f"rollup {rollup.key!r}"
        state = codec.restore(self.shard, *codec.decode_rollup(self.shard, rollup.key, data))
        while state.seqno < head.seqno:
            versions = await self._consensus.scan(self.shard, state.seqno + 1, SCAN_LIMIT)
            if not versions or versions[0].seqno != state.seqno + 1:
                return f"version {state.seqno + 1}"
            state = self._replay(state, versions)
        return state

    def _replay(self, state: ShardState, versions: Sequence[Versioned]) -> ShardState:
        found = [version.seqno for version in versions]
        if found != list(range(state.seqno + 1, state.seqno + 1 + len(found))):
            raise CorruptionError(f"shard {self.shard!r}: version {state.seqno} is followed by {found} in Consensus")
        return codec.apply(state, [codec.decode_diff(self.shard, v.seqno, v.data) for v in versions])

    # ---- writing -----------------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        key = self._rollup_key(FIRST_SEQNO)
        empty = ShardState(self.shard, walltime_ms=self._clock.now_ms())
        first = replace(empty, seqno=FIRST_SEQNO, rollups=(Rollup(FIRST_SEQNO, key),))
        await self._blob.set(key, codec.encode_rollup(key, first))
        data = codec.encode_diff(self.shard, codec.difference(empty, first))
        request = CompareAndSet(self.shard, None, Versioned(FIRST_SEQNO, data))
        if isinstance(await self._consensus.compare_and_set(request), Committed):
            self.made = True
        else:
            await self._blob.delete(key)  # another process created the shard: nothing names our rollup

    async def maintain(self) -> None:
        """Run the jobs that the last commits made due; their errors are noted, not raised (`shard/machine.py`)."""
        await self.upkeep.run()

    async def _roll_up_if_due(self) -> bool:
        if self.state.seqno - self.state.rollups[-1].seqno >= self._rollup_every:
            await self.roll_up()
        return True

    async def roll_up(self) -> None:
        """Write a rollup of the newest state known here, and name it.  Raises what the stores raise."""
        state = self.state
        key = self._rollup_key(state.seqno)
        await self._blob.set(key, codec.encode_rollup(key, state))
        if not await self.commit(lambda s: add_rollup(s, Rollup(state.seqno, key))):
            await self._blob.delete(key)

    def fresh_prefix(self) -> str:
        """Return a Blob prefix for one batch's parts; it is never given again, and says when it was given."""
        now = max(self.state.walltime_ms, self._clock.now_ms())
        return f"{parts_prefix(self.shard)}{now}-{self._ids.fresh('b')}/"

    def _rollup_key(self, seqno: int) -> str:
        return f"{rollups_prefix(self.shard)}{seqno}-{self._ids.fresh('r')}"

    def _patience(self) -> Deadline:
        return Deadline(self._clock, PATIENCE_S)

    async def _back_off(self, attempt: int, error: StoreError, deadline: Deadline) -> None:
        self.metrics.retries += 1
        self.metrics.indeterminate += isinstance(error, Indeterminate)
        if not await deadline.pause(attempt):
            raise Unavailable(f"shard {self.shard!r}: a store does not answer in the time that was given ({error})")
