"""The simulation kernel: runs the real code over stores, clock and ids that one list of choices controls.

Actors are coroutines.  When an actor awaits a store, the clock, or anything else that a world simulates, it awaits an
`IoPoint`, which describes an I/O and does nothing.  The kernel picks the next actor and the `Fate` of its point: the
I/O is done, done without an answer to the caller, done later, lost or refused; or the actor crashes before or after it,
or is paused.  There is no event loop, no thread and no socket, and nothing is random: a run is a function of its
choices (`strandline.testing.simulation.choices`).

Every run guarantees:

- A crashed actor never runs again, its cleanup does no I/O, and its next incarnation knows only what is durable.
- An I/O with `Fate.LATE` may happen at any later step, even after its caller saw it fail, retried, crashed or ended.
- Each step takes `STEP_MS` of simulated time; time jumps only when all actors sleep.
- After ``calm_after`` steps no more faults happen: a run that does not end then within ``steps_max`` never ends.

Long because one loop decides every fate, and a replay depends on the order of its choices.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Generator, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from strandline.errors import Determinate, Indeterminate, InvalidUsage, StrandlineError
from strandline.store.blob import Blob
from strandline.store.consensus import Committed, CompareAndSet, Consensus, Mismatch, Versioned
from strandline.store.unreliable import Choose, Outcome, some_of
from strandline.testing.simulation.choices import FAULT

T = TypeVar("T")

_encode: Final = msgspec.msgpack.Encoder().encode

START_MS: Final = 1_700_000_000_000
STEP_MS: Final = 1
PAUSES_MS: Final = (20, 1_000, 3_600_000)
"""How long an actor may be paused: a few steps, a good part of a run, longer than any lease."""
CLEANUP_POINTS_MAX: Final = 100
STEPS_MAX: Final = 100_000
assert STEP_MS < PAUSES_MS[0] < PAUSES_MS[-1]


class Fate(Enum):
    """The fate of an actor's I/O: its outcome (None: not yet), and whether the actor crashes at it."""

    DONE = (Outcome.DONE, False)
    DONE_UNREPORTED = (Outcome.DONE_UNREPORTED, False)
    LATE = (Outcome.LATE, False)
    LOST = (Outcome.LOST, False)
    REFUSED = (Outcome.REFUSED, False)
    CRASH_BEFORE = (Outcome.LOST, True)
    CRASH_AFTER = (Outcome.DONE_UNREPORTED, True)
    CRASH_LATE = (Outcome.LATE, True)
    PAUSE = (None, False)

    def __init__(self, outcome: Outcome | None, crash: bool) -> None:
        self.outcome = outcome
        self.crash = crash

    __hash__ = object.__hash__  # a step's fate is hashed often, and `Enum` hashes a member's name anew


CHANGE: Final = tuple(Fate)
"""The fates of I/O that changes something."""
READ: Final = (Fate.DONE, Fate.LOST, Fate.REFUSED, Fate.CRASH_BEFORE, Fate.PAUSE)
WAIT: Final = (Fate.DONE, Fate.CRASH_BEFORE, Fate.PAUSE)


class IoPoint(Generic[T]):
    """One I/O whose fate the kernel decides; awaiting it returns the result of ``run``, or raises.

    ``site`` names the protocol's method and ``arguments`` its arguments: both go into the trace.
    ``fates`` are its possible fates, `Fate.DONE` first, and always the same for one site; ``delay_ms`` is its minimum
    duration.  ``run`` must not suspend.  ``partly`` performs a part of an unreported call that is not atomic.
    """

    __slots__ = ("arguments", "delay_ms", "fates", "partly", "run", "site")

    def __init__(
        self,
        site: str,
        arguments: tuple[object, ...],
        run: Callable[[], T],
        fates: tuple[Fate, ...] = CHANGE,
        delay_ms: int = 0,
        partly: Callable[[Choose], object] | None = None,
    ) -> None:
        self.site = site
        self.arguments = arguments
        self.run = run
        self.fates = fates
        self.delay_ms = delay_ms
        self.partly = partly

    def __await__(self) -> Generator[IoPoint[Any], Any, T]:
        reply: T = yield self
        return reply


Acting: TypeAlias = Coroutine[IoPoint[Any], Any, Any]
Start: TypeAlias = "Callable[[int], Acting | None]"
"""Return the coroutine of an actor's incarnation (0, 1, …), or None if it does not restart after its last crash."""


class Traced(msgspec.Struct, frozen=True):
    """One step of a run: the actor, its I/O, and the fate.  A late effect that lands has no fate."""

    actor: str
    site: str
    arguments: tuple[object, ...]
    fate: Fate | None


class StepBudgetExceeded(StrandlineError):
    """A run did not end within its steps: the named actors loop for ever, or wait for ever."""


@dataclass(slots=True, eq=False)
class _Actor:
    name: str
    start: Start
    incarnation: int
    coroutine: Acting
    point: IoPoint[Any]
    wake_ms: int
    paused: bool
    received: int = 0  # a hash of all replies to this incarnation since its last call of `remember`


class Simulation:
    """One run.  `spawn` the actors, then `drive` them to their ends; then check the results.

    ``fates`` limits the fates of all sites (for exhaustive runs); `Fate.DONE` is always allowed.  An exhaustive search
    passes ``arrived``, which is called before each step (`strandline.testing.simulation.exploration`).
    """

    def __init__(
        self,
        choose: Choose,
        fates: Sequence[Fate] = tuple(Fate),
        calm_after: int | None = None,
        steps_max: int = STEPS_MAX,
        arrived: Callable[[], None] | None = None,
    ) -> None:
        self._choose = choose
        self._arrived = arrived
        self._fates = frozenset(fates) | {Fate.DONE}
        self._calm_after = steps_max if calm_after is None else calm_after
        self._steps_max = steps_max
        self._actors: list[_Actor] = []  # the least recently run first: the choice 0 is fair
        self._running: _Actor | None = None
        self._late: list[tuple[str, IoPoint[Any]]] = []
        # By site: its fates, the label of the choice, and the fates that this run allows.
        self._allowed: dict[str, tuple[tuple[Fate, ...], str, tuple[Fate, ...]]] = {}
        self.now_ms = START_MS
        self.steps = 0
        self.choices: list[int] = []
        self.trace: list[Traced] = []
        self.results: dict[str, object] = {}

    def choose(self, label: str, n: int) -> int:
        """Make one of the run's choices, for the kernel or for the world: one of ``0 .. n - 1``."""
        if n == 1:
            return 0
        value = self._choose(label, n)
        self.choices.append(value)
        return value

    @property
    def calm(self) -> bool:
        """Whether the run is past its last fault."""
        return self.steps > self._calm_after

    def spawn(self, name: str, start: Start) -> None:
        """Add an actor, and run its first incarnation up to its first I/O."""
        self._begin(name, start, 0)

    def drive(self) -> None:
        """Run until every actor has returned and all late effects have happened.

        Raises:
            StepBudgetExceeded: the run did not end.
            Exception: an actor's exception ends the run; its note has the choices that replay the run.
        """
        try:
            while self._actors or self._late:
                if self.steps == self._steps_max:
                    stuck = ", ".join(f"{actor.name} at {actor.point.site}" for actor in self._actors) or "late I/O"
                    raise StepBudgetExceeded(f"the run did not end within {self._steps_max} steps: {stuck}")
                if self._arrived is not None:
                    self._arrived()
                self.steps += 1
                self._step()
        except Exception as error:
            error.add_note(f"replayed by Listed({self.choices})")
            raise
        finally:
            for actor in self._actors:
                _bury(actor.coroutine)

    def trace_hash(self) -> str:
        """Return a hash of the whole trace.  Equal choices give equal hashes in any process, unless a run is impure."""
        steps = [(s.actor, s.site, s.arguments, s.fate and s.fate._name_) for s in self.trace]
        return blake2b(_encode(steps), digest_size=16).hexdigest()

    def fingerprint(self) -> int:
        """Return a hash of what decides the actors' future: what each has received, and the late effects.

        Two runs that agree in it and in the durable data have the same future.  It is valid only within this process,
        and only for runs with ``arrived``.
        """
        actors = sorted((actor.name, actor.incarnation, actor.received) for actor in self._actors)
        late = sorted((name, point.site, hash(point.arguments)) for name, point in self._late)
        return hash((tuple(actors), tuple(late)))

    def remember(self, memory: Hashable) -> None:
        """Declare, as the running actor, that ``memory`` is all that this incarnation keeps of what it received.

        From here on `fingerprint` treats histories with the same memory as one state.
        """
        assert self._running is not None, "only an actor that runs remembers"
        self._running.received = hash(memory)

    def coverage(self) -> frozenset[tuple[str, Fate]]:
        """Return the fates that occurred, by site."""
        return frozenset((step.site, step.fate) for step in self.trace if step.fate is not None)

    def _step(self) -> None:
        calm = self.calm
        if self._late and self._land(calm):
            return
        now = self.now_ms
        ready = [actor for actor in self._actors if actor.wake_ms <= now or (calm and actor.paused)]
        if not ready:
            self.now_ms = now = min(actor.wake_ms for actor in self._actors)
            ready = [actor for actor in self._actors if actor.wake_ms <= now]
        self.now_ms = now + STEP_MS
        actor = ready[self.choose("next", len(ready))]
        self._actors.remove(actor)
        point = actor.point
        fate = Fate.DONE if calm else self._fate(point)
        self.trace.append(Traced(actor.name, point.site, point.arguments, fate))
        reply, error = None, None
        match fate.outcome:
            case Outcome.DONE:
                try:
                    reply = point.run()
                except StrandlineError as refusal:
                    error = refusal
                except BaseException:  # a law is broken: end the run, and the actor too
                    _bury(actor.coroutine)
                    raise
            case Outcome.DONE_UNREPORTED:
                try:
                    self._do_unreported(point)
                except BaseException:
                    _bury(actor.coroutine)
                    raise
                error = Indeterminate(f"{point.site}: the answer was lost")
            case Outcome.LATE:
                self._late.append((actor.name, point))
                error = Indeterminate(f"{point.site}: no answer yet")
            case Outcome.LOST:
                error = Indeterminate(f"{point.site}: the request was lost")
            case Outcome.REFUSED:
                error = Determinate(f"{point.site}: refused")
            case None:
                actor.paused = True
                actor.wake_ms = now + PAUSES_MS[self.choose("pause", len(PAUSES_MS))]
                self._actors.append(actor)
                return
        if fate.crash:
            _bury(actor.coroutine)
            self._begin(actor.name, actor.start, actor.incarnation + 1)
        else:
            self._resume(actor, reply, error)

    def _fate(self, point: IoPoint[Any]) -> Fate:
        """Choose among the fates that this site and this run allow, which are computed once for each site."""
        known = self._allowed.get(point.site)
        if known is None:
            known = (point.fates, FAULT + point.site, tuple(fate for fate in point.fates if fate in self._fates))
            self._allowed[point.site] = known
        given, label, allowed = known
        if given is not point.fates and given != point.fates:
            raise InvalidUsage(f"site {point.site} is given other fates than before: name it otherwise")
        return allowed[self.choose(label, len(allowed))]

    def _land(self, calm: bool) -> bool:
        """Perhaps perform a late effect; certainly if nothing else can run, or the run is calm."""
        if calm or not self._actors:
            landed = self.choose("land", len(self._late))
        else:
            landed = self.choose(FAULT + "land", len(self._late) + 1) - 1
        if landed < 0:
            return False
        name, point = self._late.pop(landed)
        self.trace.append(Traced(name, point.site, point.arguments, None))
        self._do_unreported(point)
        return True

    def _do_unreported(self, point: IoPoint[Any]) -> None:
        try:
            if point.partly is None:
                point.run()
            else:
                point.partly(self.choose)
        except StrandlineError:
            pass  # refused, and no caller waits for the answer

    def _begin(self, name: str, start: Start, incarnation: int) -> None:
        coroutine = start(incarnation)
        if coroutine is not None:
            waits = IoPoint("start", (), _nothing)
            self._resume(_Actor(name, start, incarnation, coroutine, waits, self.now_ms, paused=False), None, None)

    def _resume(self, actor: _Actor, reply: object, error: Exception | None) -> None:
        """Run an actor up to its next I/O, or to its end."""
        if self._arrived is not None:
            heard = tuple(reply) if isinstance(reply, list) else reply
            actor.received = hash((actor.received, heard, error and str(error)))
        self._running = actor
        try:
            point = actor.coroutine.send(reply) if error is None else actor.coroutine.throw(error)
        except StopIteration as end:
            self.results[actor.name] = end.value
            return
        if not isinstance(point, IoPoint):
            raise InvalidUsage(f"actor {actor.name} awaits {point!r}, which is not simulated")
        actor.point = point
        actor.wake_ms = self.now_ms + point.delay_ms
        actor.paused = False
        self._actors.append(actor)


def _nothing() -> None:
    """Do nothing: the point at which an actor waits before it starts."""


def _bury(coroutine: Acting) -> None:
    """End a crashed actor.  Python runs its cleanup; a crash would not, so no cleanup reaches a store.

    Each point that the cleanup awaits gets the crash again, and is never run.
    """
    for _ in range(CLEANUP_POINTS_MAX):
        try:
            coroutine.close()
            return
        except RuntimeError:
            continue  # it awaited something instead of ending
    raise InvalidUsage(f"{coroutine!r} does not end when it is closed: it catches GeneratorExit for ever")


class SideBySide:
    """Runs the coroutines of one actor concurrently, as a process does; the run chooses whose I/O is next.

    If one of them raises, the others are cancelled, and the error is raised.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    async def __call__(self, calls: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Return when all have ended."""
        await _Interleaved(list(calls), self._choose)


class _Interleaved:
    def __init__(self, calls: list[Acting], choose: Choose) -> None:
        self._calls = calls
        self._choose = choose

    def __await__(self) -> Generator[IoPoint[Any], Any, None]:
        waiting: list[tuple[Acting, IoPoint[Any]]] = []
        try:
            for call in self._calls:
                _go_on(call, None, None, waiting)
            while waiting:
                call, point = waiting.pop(self._choose("sibling", len(waiting)) if len(waiting) > 1 else 0)
                reply, error = yield from _replied(point)
                _go_on(call, reply, error, waiting)
        except GeneratorExit:  # the process crashed
            for call in self._calls:
                _bury(call)
            raise
        except Exception:
            for call, _ in waiting:
                yield from _cancelled(call)
            raise


def _replied(point: IoPoint[Any]) -> Generator[IoPoint[Any], Any, tuple[object, Exception | None]]:
    try:
        reply = yield point
    except Exception as error:  # noqa: BLE001  # the error belongs to the coroutine that waited
        return None, error
    return reply, None


def _go_on(
    call: Acting, reply: object, error: BaseException | None, waiting: list[tuple[Acting, IoPoint[Any]]]
) -> None:
    """Run ``call`` up to its next I/O, which is added to ``waiting``, or to its end."""
    try:
        point = call.send(reply) if error is None else call.throw(error)
    except StopIteration:
        return
    waiting.append((call, point))


def _cancelled(call: Acting) -> Generator[IoPoint[Any], Any, None]:
    """Cancel ``call`` and let it clean up; errors of the cleanup are dropped, as in a task group."""
    waiting: list[tuple[Acting, IoPoint[Any]]] = []
    try:
        _go_on(call, None, CancelledError(), waiting)
        while waiting:
            reply, error = yield from _replied(waiting.pop()[1])
            _go_on(call, reply, error, waiting)
    except (Exception, CancelledError):  # noqa: BLE001  # the first failure is raised
        return


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, such as any over the stores in memory, without an event loop.

    Raises:
        InvalidUsage: it did suspend.
    """
    try:
        waits = coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise InvalidUsage(f"the coroutine suspends, waiting for {waits!r}")


def _point(
    site: str,
    method: Callable[..., Coroutine[Any, Any, T]],
    arguments: tuple[object, ...],
    fates: tuple[Fate, ...] = CHANGE,
) -> IoPoint[T]:
    """Return the I/O point that is ``method`` of a place, called with ``arguments``."""
    return IoPoint(site, arguments, lambda: run_sync(method(*arguments)), fates)


class SimBlob:
    """A `Blob` whose every call is an I/O point, performed on ``place``, a Blob that never suspends."""

    def __init__(self, place: Blob) -> None:
        self._place = place

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None."""
        return await _point("blob.get", self._place.get, (key,), READ)

    async def set(self, key: str, data: bytes) -> None:
        """Store ``data``."""
        await _point("blob.set", self._place.set, (key, data))

    async def delete(self, key: str) -> bool:
        """Remove ``key``; return whether it existed."""
        return await _point("blob.delete", self._place.delete, (key,))

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        return await _point("blob.list", self._place.list, (prefix,), READ)


class SimConsensus:
    """A `Consensus` whose every call is an I/O point, performed on ``place``, which never suspends."""

    def __init__(self, place: Consensus) -> None:
        self._place = place

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version, or None if the key was never set."""
        return await _point("consensus.head", self._place.head, (key,), READ)

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Install a version iff the head is as expected."""
        return await _point("consensus.compare_and_set", self._place.compare_and_set, (request,))

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """Do each request as if alone; of an unreported call any part may have happened."""
        site, asked = "consensus.compare_and_set_many", tuple(requests)

        def do(these: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
            return run_sync(self._place.compare_and_set_many(these))

        return await IoPoint(site, asked, lambda: do(asked), partly=lambda choose: do(some_of(asked, choose)))

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` versions with ``seqno >= start``, ascending."""
        return await _point("consensus.scan", self._place.scan, (key, start, limit), READ)

    async def truncate(self, key: str, seqno: int) -> int:
        """Delete the versions before ``seqno``; return how many."""
        return await _point("consensus.truncate", self._place.truncate, (key, seqno))

    async def list_keys(self) -> list[str]:
        """Return all keys, sorted."""
        return await _point("consensus.list_keys", self._place.list_keys, (), READ)


class SimClock:
    """A `Clock` with the simulation's time plus ``skew_ms``, which a world may change at any step."""

    def __init__(self, simulation: Simulation, skew_ms: int = 0) -> None:
        self._simulation = simulation
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        """Return milliseconds since the epoch by this clock."""
        return self._simulation.now_ms + self.skew_ms

    async def sleep(self, seconds: float) -> None:
        """Wait for at least ``seconds`` of simulated time."""
        await IoPoint("clock.sleep", (seconds,), _nothing, WAIT, delay_ms=max(0, round(seconds * 1000)))


class SimIds:
    """`Ids` that count; all actors of a simulation share one."""

    def __init__(self) -> None:
        self._given = 0

    def fresh(self, kind: str) -> str:
        """Return a new name that starts with ``kind``."""
        self._given += 1
        return f"{kind}-{self._given}"
