"""The writes of a stream: transitions of its shard at times that are not complete yet, and the queue of calls.

An *unsealed* batch is durable, but no read shows it, because more updates may come at its times.  Sealing through a
time turns everything written before that time into one batch of the trace.  A written batch that straddles that time
must be cut there first: the transition answers `Straddling`, and the caller cuts the batch (an I/O) and calls again
with the pieces.

A *pour* is a run of such steps in call order; one version commits all of it, or none.  If a step can never be done,
the answer is `Refused` with the first such step, and nothing is done.  A client's calls wait in a `Line`, and
whichever task awaits one performs those before it.

Traps: a token says that a whole pour landed, so a refusal must commit nothing; each piece of a cut batch is a batch,
and nothing names the parts of the original batch afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from strandline.errors import FencedError, Indeterminate, Stopped, StrandlineError
from strandline.frontier import MINIMUM, Frontier, join
from strandline.persist.shard.batch import NOTHING, Staged
from strandline.persist.shard.state import (
    WRITERS_MAX,
    Append,
    Appended,
    Fenced,
    ShardState,
    append,
    compare_and_downgrade,
    refuse_swept,
    register_critical,
    remember,
)
from strandline.store.clock import Clock

OWNER: Final = "stream"
"""The owner of streamed shards: only streams append to them, and a stream appends to no other shard."""
HOLD: Final = "stream"
"""The critical reader that keeps a stream's past until `Allow`.  All writers share it, so it has a fixed token."""
HOLD_TOKEN: Final = 0


class Write(msgspec.Struct, frozen=True):
    """Keep ``staged``, whose times are not sealed, under ``name``, which is never used again."""

    name: str
    staged: Staged


class Seal(msgspec.Struct, frozen=True):
    """Complete all times before ``upper``; times that are complete stay complete."""

    upper: Frontier


@dataclass(frozen=True, slots=True)
class Allow:
    """Release the stream's hold on times before ``since``."""

    since: Frontier


Step: TypeAlias = Write | Seal | Allow


class Pour(msgspec.Struct, frozen=True):
    """Steps to commit together.

    ``pieces``: what batches were cut into, by the name of the batch that was cut.  ``doubt``: the version and the upper
    of the first attempt whose outcome is unknown; None: no attempt has landed.
    """

    writer: str
    token: str
    epoch: int
    steps: tuple[Step, ...]
    pieces: Mapping[str, tuple[Write, ...]] = msgspec.field(default_factory=dict)
    doubt: tuple[int, Frontier] | None = None


@dataclass(frozen=True, slots=True)
class Poured:
    """All steps are done and durable, by this call or an earlier one."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The step ``index`` writes at times that are sealed up to ``upper``; nothing was done."""

    index: int
    upper: Frontier


@dataclass(frozen=True, slots=True)
class Straddling:
    """These batches must be cut at ``at`` first; nothing was done."""

    batches: Mapping[str, Staged]
    at: Frontier


Outcome: TypeAlias = Poured | Refused | Straddling | Fenced


def pour(state: ShardState, request: Pour) -> tuple[ShardState, Outcome]:
    """Do the steps of ``request``, all of them or none; at most once per token.

    Raises `Indeterminate` if an attempt is in doubt, and the state no longer shows whether it landed.
    """
    if _landed(state, request):
        return state, Poured()
    if request.epoch < state.epoch:
        return state, Fenced(state.epoch)
    upper, since = state.upper, MINIMUM
    unsealed = dict(_cut(state.unsealed, request.pieces))
    for index, step in enumerate(request.steps):
        match step:
            case Write(name, staged):
                refuse_swept(state, staged)
                if not upper <= staged.lower:
                    return state, Refused(index, upper)
                unsealed |= _cut({name: staged}, request.pieces)
            case Seal(to):
                upper = join((upper, to))
            case Allow(to):
                since = join((since, to))
    straddling = {n: s for n, s in unsealed.items() if s.lower < upper and not s.upper <= upper}
    if straddling:
        return state, Straddling(straddling, upper)
    return _done(state, request, upper, since, unsealed), Poured()


def hold(state: ShardState) -> tuple[ShardState, Frontier]:
    """Register the hold that keeps a fresh stream's past until `Allow`; return the since it holds."""
    after, held = register_critical(state, HOLD)
    return after, held.since


def _landed(state: ShardState, request: Pour) -> bool:
    """Return whether ``request`` landed: by its token, or, if that may be forgotten, by what it wrote."""
    if any(last.token == request.token for last in state.writers.values()):
        return True
    if request.doubt is None:
        return False
    seqno, seen = request.doubt
    if len(state.writers) < WRITERS_MAX or seqno == state.seqno or not seen <= state.forgotten:
        return False  # if it had landed, the state would remember its token
    written = [step for step in request.steps if isinstance(step, Write)]
    batches = _cut({step.name: step.staged for step in written}, request.pieces)
    # A batch beyond the upper was neither sealed nor cut, so if it landed, it is still there under its name.
    beyond = [name in state.unsealed for name, staged in batches.items() if state.upper <= staged.lower]
    if written and not beyond:
        raise Indeterminate(
            f"shard {state.shard!r}: whether a write tried at version {seqno} landed is no longer known: its times "
            f"are sealed, and of more than {WRITERS_MAX} writers only the last are remembered"
        )
    return any(beyond)  # repeating a seal or an allow does no harm


def _done(
    state: ShardState, request: Pour, upper: Frontier, since: Frontier, unsealed: Mapping[str, Staged]
) -> ShardState:
    after = state
    if unsealed != state.unsealed or state.upper < upper:
        left = {name: staged for name, staged in unsealed.items() if not staged.upper <= upper}
        sealed = tuple(unsealed[name] for name in sorted(unsealed.keys() - left.keys()))
        whole = Append(request.writer, request.token, request.epoch, sealed, state.upper, upper, OWNER)
        after = replace(after, unsealed=left)
        if state.upper < upper:
            after, answer = append(after, whole)
            assert isinstance(answer, Appended), "the upper, the epoch and the token were looked at before"
        else:
            after = remember(replace(after, epoch=request.epoch), whole)
    held = state.criticals.get(HOLD)
    if held is not None and held.since < since:
        after, _ = compare_and_downgrade(after, HOLD, HOLD_TOKEN, HOLD_TOKEN, since)
    return after


def _cut(batches: Mapping[str, Staged], pieces: Mapping[str, tuple[Write, ...]]) -> Mapping[str, Staged]:
    """Return ``batches``, with each batch that was cut replaced by its pieces, recursively."""
    found: dict[str, Staged] = {}
    for name, staged in batches.items():
        if name not in pieces:
            found[name] = staged
            continue
        parts = pieces[name]
        assert sum((p.staged.digest for p in parts), NOTHING) == staged.digest, f"batch {name!r} is not its pieces"
        found |= _cut({piece.name: piece.staged for piece in parts}, pieces)
    return found


S = TypeVar("S")

RUN_CALLS_MAX: Final = 256
"""How many calls share one commit at most."""
PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 0.05
"""How long a task sleeps, while another drives the line, before it looks again."""
assert PAUSE_S_MIN <= PAUSE_S_MAX
UNRAISED_MAX: Final = 64
"""How many refusals of calls that were never awaited are kept for `Line.finish`: the newest ones."""


class Call(Generic[S]):
    """One queued request: ``step``.  Awaiting it returns once it is done and durable; it may be awaited again.

    Raises:
        InvalidUsage: it is refused, for good: it writes at a time that is sealed, or a value that the codec refuses.
        DefinitionError: it is refused, for good: the collection's schema has a type that cannot be stored.
        FencedError: a newer epoch has taken over.
        Indeterminate: it may have happened, or may still happen; await it again to find out.
        Unavailable: it did not happen yet; await it again to try.
    """

    def __init__(self, line: Line, run: Callable[[list[Call[S]]], Run], step: S) -> None:
        self.run = run
        self.step = step
        self.done = False
        self.refusal: StrandlineError | None = None
        self._line = line

    def __await__(self) -> Generator[Any, Any, None]:
        return self._line.drive(self).__await__()

    def settle(self, refusal: StrandlineError | None = None) -> None:
        """Record the outcome."""
        self.done = True
        self.refusal = refusal
        if refusal is not None:
            self._line.refused(self)


class Run(Protocol):
    """Calls that share a commit."""

    async def go(self) -> None:
        """Settle all calls; if this raises, the next task to drive the line retries it."""
        ...


class Line:
    """The calls of a client and its clones, in order; one of the awaiting tasks drives it.

    Nothing runs in the background.  Awaiting a `Call` also performs the calls queued before it: the first task to
    await *drives* the line.  A second task waits for the first, and takes over if the first is cancelled.  Adjacent
    calls for one collection share one *run*.

    Awaiting a refused call raises its refusal.  Stopping the client raises the refusal of a call that was never
    awaited.

    A run that raises stays at the head of the line.  The next task to drive retries the very same run before any later
    call, so calls are never skipped and never overtake each other.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: deque[Call[Any]] = deque()
        self._run: Run | None = None
        self._driven = False
        self._unraised: deque[Call[Any]] = deque(maxlen=UNRAISED_MAX)
        self.stopped = False
        self.clones = 1

    def enqueue(self, call: Call[S]) -> Call[S]:
        """Queue a call.  Raises `Stopped` if the client was stopped."""
        if self.stopped:
            raise Stopped("this stream client was stopped: it takes no new calls")
        self._calls.append(call)
        return call

    async def drive(self, call: Call[Any] | None = None) -> None:
        """Perform queued calls until ``call`` is done (None: all of them), and raise its refusal."""
        pause = PAUSE_S_MIN
        while not (call.done if call is not None else self._idle):
            if self._driven:
                await self._clock.sleep(pause)
                pause = min(2 * pause, PAUSE_S_MAX)
                continue
            self._driven = True
            try:
                if self._run is None:
                    self._run = self._next()
                await self._run.go()
                self._run = None
            finally:
                self._driven = False
        if call is not None and call.refusal is not None:
            if call in self._unraised:
                self._unraised.remove(call)
            raise call.refusal

    async def finish(self) -> None:
        """Perform all queued calls; then raise one refusal that was not raised yet, preferably `FencedError`."""
        await self.drive()
        refusals = [call.refusal for call in self._unraised if call.refusal is not None]
        self._unraised.clear()
        if refusals:
            first = next((error for error in refusals if isinstance(error, FencedError)), refusals[0])
            if len(refusals) > 1:
                first.add_note(f"{len(refusals)} refused calls were never awaited; this is the refusal of one")
            raise first

    def refused(self, call: Call[Any]) -> None:
        """Keep the refusal of a call until a caller awaits it or stops the client."""
        self._unraised.append(call)

    @property
    def _idle(self) -> bool:
        return self._run is None and not self._calls

    def _next(self) -> Run:
        together = [self._calls.popleft()]
        while self._calls and self._calls[0].run == together[0].run and len(together) < RUN_CALLS_MAX:
            together.append(self._calls.popleft())
        return together[0].run(together)
