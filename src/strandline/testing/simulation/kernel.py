"""The simulation kernel: runs the real code over stores, clock and ids that one list of choices controls.

Actors are coroutines.  When an actor awaits a store, the clock, or anything else that a world simulates, it awaits an
`IoPoint`, which describes an I/O and does nothing.  The kernel picks the next actor and the `Fate` of its point: the
I/O is done, done without an answer to the caller, done later, lost or refused; or the actor crashes before or after it,
or is paused.  There is no event loop, no thread and no socket, and nothing is random: a run is a function of its
choices (`strandline.testing.simulation.exploration`).

An actor may begin calls that run beside it (`Simulation.beside`).  They are a *process* with it: each is scheduled like
an actor, all of them crash together, and those that are left end with the actor.

Every run guarantees:

- A crashed actor never runs again, its cleanup does no I/O, and its next incarnation knows only what is durable.
- An I/O with `Fate.LATE` may happen at any later step, even after its caller saw it fail, retried, crashed or ended.
- Each step takes `STEP_MS` of simulated time; time jumps only when all actors sleep.
- After ``calm_after`` steps no more faults happen: a run that does not end then within ``steps_max`` never ends.
"""

from __future__ import annotations

import inspect
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

import msgspec

from strandline.errors import Determinate, Indeterminate, InvalidUsage, StrandlineError
from strandline.store.clock import Call, Inline, Running
from strandline.store.unreliable import Choose, Outcome
from strandline.testing.simulation.exploration import FAULT

T = TypeVar("T")

_encode: Final = msgspec.msgpack.Encoder().encode

START_MS: Final = 1_700_000_000_000
STEP_MS: Final = 1
PAUSES_MS: Final = (20, 1_000, 3_600_000)
"""How long an actor may be paused: a few steps, a good part of a run, longer than any lease."""
CLEANUP_POINTS_MAX: Final = 100
STEPS_MAX: Final = 100_000
NEVER_MS: Final = 1 << 62
"""A duration that only an event ends."""
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
    ``ready``: the duration ends as soon as this holds.
    """

    __slots__ = ("arguments", "delay_ms", "fates", "partly", "ready", "run", "site")

    def __init__(
        self,
        site: str,
        arguments: tuple[object, ...],
        run: Callable[[], T],
        fates: tuple[Fate, ...] = CHANGE,
        delay_ms: int = 0,
        partly: Callable[[Choose], object] | None = None,
        ready: Callable[[], bool] | None = None,
    ) -> None:
        self.site = site
        self.arguments = arguments
        self.run = run
        self.fates = fates
        self.delay_ms = delay_ms
        self.partly = partly
        self.ready = ready

    def __await__(self) -> Generator[IoPoint[Any], Any, T]:
        if _Cleanup.under_way():
            raise Crashed
        reply: T = yield self
        return reply


class Crashed(BaseException):
    """Raised in an actor where its process crashes.

    It is not the `GeneratorExit` of ``close``: before Python 3.13 that does not reach an asynchronous
    generator that the coroutine waits for, and the generator's ``aclose`` then says that it is already running.
    """


class _Cleanup:
    """The cleanup of a crashed actor, while one is made: how many points it has awaited."""

    points: ClassVar[int | None] = None

    @classmethod
    def under_way(cls) -> bool:
        """Return whether the point that is awaited now belongs to a cleanup, which is to end there.

        A cleanup that goes on all the same comes to suspend in the end, and Python calls that an error.
        """
        if cls.points is None:
            return False
        cls.points += 1
        return cls.points <= CLEANUP_POINTS_MAX


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
class _Process:
    """An incarnation of an actor, and what runs beside it."""

    start: Start
    incarnation: int
    members: list[_Actor] = field(default_factory=list)
    """The actor first, once it has begun."""
    begun: int = 0
    """How many calls were begun beside it."""


@dataclass(slots=True, eq=False)
class _Actor:
    name: str
    process: _Process
    coroutine: Acting
    point: IoPoint[Any]
    wake_ms: int
    paused: bool = False
    cancelled: bool = False  # and does not know it yet
    ended: bool = False
    received: int = 0  # a hash of all replies to this incarnation since its last call of `remember`

    def is_ready(self, now_ms: int) -> bool:
        """Return whether it may go on."""
        if self.wake_ms <= now_ms or self.cancelled:
            return True
        return self.point.ready is not None and not self.paused and self.point.ready()


class _Beside:
    """A call that runs beside an actor: see `strandline.store.clock.Running`."""

    def __init__(self, actor: _Actor) -> None:
        self._actor = actor

    async def wait(self, seconds: float | None) -> bool:
        """See `Running.wait`."""
        if not self._actor.ended and seconds != 0:
            delay_ms = NEVER_MS if seconds is None else round(seconds * 1000)
            await IoPoint("beside.wait", (seconds,), nothing, WAIT, delay_ms, ready=lambda: self._actor.ended)
        return self._actor.ended

    async def cancel(self) -> None:
        """See `Running.cancel`."""
        if not self._actor.ended:
            self._actor.cancelled = True
            await IoPoint("beside.cancel", (), nothing, WAIT, NEVER_MS, ready=lambda: self._actor.ended)


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

    def beside(self, call: Call) -> Running:
        """Begin a call beside the actor that runs now; it must deal with its own errors."""
        if self._running is None:
            return Inline(call)  # the cleanup of a crash wants to begin it, and does not come to wait for it
        waits: IoPoint[Any] = IoPoint("beside.begin", (), nothing, (Fate.DONE,))
        process = self._running.process
        process.begun += 1
        actor = _Actor(f"{process.members[0].name}/{process.begun}", process, call(), waits, self.now_ms)
        process.members.append(actor)
        self._actors.append(actor)
        return _Beside(actor)

    def drive(self) -> None:
        """Run until every actor has returned and all late effects have happened.

        Raises:
            StepBudgetExceeded: the run did not end.
            Exception: an actor's exception ends the run; its note has the choices that replay the run.
        """
        try:
            while self._actors or self._late:
                if self.steps == self._steps_max:
                    raise StepBudgetExceeded(f"the run did not end within {self._steps_max} steps: {self._stuck()}")
                if self._arrived is not None:
                    self._arrived()
                self.steps += 1
                self._step()
        except Exception as error:
            error.add_note(f"replayed by Listed({self.choices})")
            raise
        finally:
            self._running = None
            for actor in self._actors:
                bury(actor.coroutine)

    def trace_hash(self) -> str:
        """Return a hash of the whole trace.  Equal choices give equal hashes in any process, unless a run is impure."""
        steps = [(s.actor, s.site, s.arguments, s.fate and s.fate._name_) for s in self.trace]
        return blake2b(_encode(steps), digest_size=16).hexdigest()

    def fingerprint(self) -> int:
        """Return a hash of what decides the actors' future: what each has received, and the late effects.

        Two runs that agree in it and in the durable data have the same future.  It is valid only within this process,
        and only for runs with ``arrived``.
        """
        actors = sorted((actor.name, actor.process.incarnation, actor.received) for actor in self._actors)
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
        ready = [actor for actor in self._actors if actor.is_ready(now) or (calm and actor.paused)]
        if not ready:
            self.now_ms = now = min(actor.wake_ms for actor in self._actors)
            if now >= NEVER_MS:
                raise StepBudgetExceeded(f"all wait for ever: {self._stuck()}")
            ready = [actor for actor in self._actors if actor.is_ready(now)]
        self.now_ms = now + STEP_MS
        actor = ready[self.choose("next", len(ready))]
        self._actors.remove(actor)
        point = actor.point
        if actor.cancelled:
            self._cancel(actor)
            return
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
                    self._actors.append(actor)
                    raise
            case Outcome.DONE_UNREPORTED:
                try:
                    self._do_unreported(point)
                except BaseException:
                    self._actors.append(actor)
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
            process = actor.process
            self._end(process)
            self._begin(process.members[0].name, process.start, process.incarnation + 1)
        else:
            self._resume(actor, reply, error)

    def _cancel(self, actor: _Actor) -> None:
        """Let an actor know that it was cancelled; what it had asked for may happen all the same."""
        point = actor.point
        outcomes = (Outcome.LOST, Outcome.DONE_UNREPORTED, Outcome.LATE) if point.fates is CHANGE else (Outcome.LOST,)
        match outcomes[self.choose("cancelled", len(outcomes))]:
            case Outcome.DONE_UNREPORTED:
                self._do_unreported(point)
            case Outcome.LATE:
                self._late.append((actor.name, point))
        self.trace.append(Traced(actor.name, "beside.cancelled", (point.site,), None))
        actor.cancelled = False
        self._resume(actor, None, CancelledError())

    def _end(self, process: _Process) -> None:
        """End all that is left of a process: it has crashed, or its actor has returned."""
        self._running = None
        for member in process.members:
            if not member.ended:
                member.ended = True
                if member in self._actors:
                    self._actors.remove(member)
                bury(member.coroutine)

    def _stuck(self) -> str:
        return ", ".join(f"{actor.name} at {actor.point.site}" for actor in self._actors) or "late I/O"

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
            waits: IoPoint[Any] = IoPoint("start", (), nothing)
            process = _Process(start, incarnation)
            process.members.append(_Actor(name, process, coroutine, waits, self.now_ms))
            self._resume(process.members[0], None, None)

    def _resume(self, actor: _Actor, reply: object, error: BaseException | None) -> None:
        """Run an actor up to its next I/O, or to its end."""
        if self._arrived is not None:
            heard = tuple(reply) if isinstance(reply, list) else reply
            actor.received = hash((actor.received, heard, error and str(error)))
        self._running = actor
        try:
            point = actor.coroutine.send(reply) if error is None else actor.coroutine.throw(error)
        except StopIteration as end:
            self._ended(actor, end.value)
            return
        except CancelledError:
            if actor is actor.process.members[0]:
                raise
            self._ended(actor, None)
            return
        if not isinstance(point, IoPoint):
            raise InvalidUsage(f"actor {actor.name} awaits {point!r}, which is not simulated")
        actor.point = point
        actor.wake_ms = self.now_ms + point.delay_ms
        actor.paused = False
        self._actors.append(actor)

    def _ended(self, actor: _Actor, result: object) -> None:
        actor.ended = True
        if actor is actor.process.members[0]:
            self.results[actor.name] = result
            self._end(actor.process)


def nothing() -> None:
    """Do nothing: the point at which an actor waits before it starts."""


def bury(coroutine: Acting) -> None:
    """End a crashed actor.  Python runs its cleanup; a crash would not, so no cleanup reaches a store.

    Each point that the cleanup awaits gets the crash again, and is never run.
    """
    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED:
        return
    before, _Cleanup.points = _Cleanup.points, 0
    try:
        coroutine.throw(Crashed())
    except (Crashed, StopIteration):
        return
    finally:
        _Cleanup.points = before
    raise InvalidUsage(f"{coroutine!r} does not end when it crashes: it goes on after `Crashed`")


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
