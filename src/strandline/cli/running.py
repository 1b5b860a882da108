"""`strandline run`: apply the project, then tick until a signal or a limit; follow the project's files meanwhile.

Ticks come at their interval, whatever takes longer: a view that is computed for the first time, a source that reads its
snapshot, an endpoint that is silent.  These go on beside the ticks, and everything else keeps its freshness.  Where
nothing is new, one tick in five is made.  The reported time is that at which everything without a problem is complete;
an item that takes very long has a problem that says so.

If another environment takes over, this one names it and ends with status 4.  If Spark's JVM ends and no signal follows,
the tick that meets it reports problems, and the next one ends this process with status 1: nothing here could go on
without Spark, so a supervisor is to start it again.  If a whole tick fails because a store refuses or does not answer,
the next tick retries.  An error of one item is that item's problem, which `run` and `status` report, and the other
items go on.
"""

from __future__ import annotations

import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final, Protocol, TypeAlias

from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.lasting import SAYS_S
from strandline.cli.terminal.opening import Opener
from strandline.cli.terminal.output import Output
from strandline.cli.terminal.reporting import Report, reporting
from strandline.client import Environment
from strandline.controller.defining.apply import Applied
from strandline.controller.defining.changing.order import read_by
from strandline.controller.defining.project.files import DIRECTORIES, load, resolved
from strandline.controller.defining.project.settings import SETTINGS_FILE, Project
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Materialization
from strandline.controller.location.version import successors
from strandline.controller.observing.adopted import adopted
from strandline.engine.session.start import spark_is_gone
from strandline.errors import ConfigError, DefinitionError, ExecutorsGone, FencedError, StoreError, Unavailable
from strandline.instance.carriers.exchange import start_thread
from strandline.serving import Door
from strandline.serving import serve as served

Files: TypeAlias = tuple[tuple[str, int, int], ...]
"""What a look finds of each file: its name below the project, its size, and when it was modified."""
SETTINGS_LATER: Final = f"{SETTINGS_FILE}: changed settings take effect when `strandline run` is started again"


class Applying(Protocol):
    """An environment that applies a project."""

    def apply(self, project: Project, *, whole: bool = True) -> Applied:
        """See `Environment.apply`."""
        ...

    @property
    def catalog(self) -> Catalog:
        """See `Environment.catalog`."""
        ...


class Following:
    """The files of a project that was ``applied`` to ``env`` as ``project``; ``say`` logs an event with its facts.

    The first looks find what has changed since the project was read, which is before Spark was started; what was
    refused then was said then.  The project is applied again where that may come to more: at the next look, if
    something did not answer; for `Applied.later`, once the catalog has changed since, as views are put in place and
    tables at endpoints are emptied.

    While `strandline run` lives, definitions change; it applies what the project's files say without a drop.  Applied
    changes are logged by name, whether they came from the files, another process, or an upstream that got a column.

    The files are looked at between ticks, by their names, sizes and times: no unchanged file is read.  A change is
    applied once two looks in a row find the same, so that no file is read that an editor has not finished.  A change
    that cannot be applied is logged once, with what to do: a definition that differs, a file that is gone, a setting.
    """

    def __init__(self, env: Applying, project: Project, say: Callable[..., object], applied: Applied) -> None:
        self._env = env
        self._catalog = env.catalog
        self._project = project
        self._say = say
        self._last, self._after = applied, env.catalog
        self._applied: Files = ()
        self._seen: Files = ()
        self._lacks: frozenset[str] = frozenset()
        """The names, in lower case, of what the project defines and the environment does not have."""

    def look(self) -> None:
        """Look at the files, and apply what has changed.  Raises `FencedError`."""
        before, self._seen = self._seen, found(self._project.root)
        again = self._last.unanswered or self._due
        if self._seen != before or (self._seen == self._applied and not again):
            return
        if self._applied and self._seen != self._applied:  # of what is still wrong, that is said again
            self._last = replace(self._last, refused=(), unanswered=())
        self._applied = self._seen
        try:
            project = load(self._project.root)
            applied = self._env.apply(project, whole=False)
        except (DefinitionError, ConfigError) as error:
            self._say("not applied", what=str(error))
            self._take(Applied((), ()))  # and nothing comes of these files
            return
        except (StoreError, Unavailable) as error:
            self._say_new("not applied, will be retried", [str(error)])
            self._take(replace(self._last, unanswered=(str(error),)))
            return
        self.say_adopted()
        self._say_new("not applied", (*applied.refused, *_left(self._project, project, self._lacks)))
        self._say_new("not applied, will be retried", applied.unanswered)
        self._take(applied)
        self._project = project
        made = {name.lower() for name in (*applied.created, *applied.kept, *applied.replaced, *applied.later)}
        self._lacks = frozenset(each.statement.name.lower() for each in project.definitions) - made

    def _say_new(self, event: str, whys: Iterable[str]) -> None:
        for why in whys:
            if why not in {*self._last.refused, *self._last.unanswered}:
                self._say(event, what=why)

    def _take(self, applied: Applied) -> None:
        self._last, self._after = applied, self._env.catalog

    @property
    def _due(self) -> bool:
        """Whether what comes later may come now: the catalog has changed since, and no view is being replaced."""
        catalog = self._env.catalog
        return bool(self._last.later) and catalog != self._after and not successors(catalog)

    def waits(self, progress: Mapping[str, Any]) -> bool:
        """Return whether another tick may let more of the project be applied; ``progress``: the environment's.

        A table that is being emptied is forgotten by a later tick, unless its materialization stands still.
        """
        stopped = progress["problems"].keys() | progress["waiting"].keys()
        items = self._env.catalog.of_kind(Materialization)
        emptying = [each for each in items if any(left.empties for left in each.left)]
        return self._due or (bool(self._last.later) and any(each.name.lower() not in stopped for each in emptying))

    def say_adopted(self) -> None:
        """Say what is defined otherwise than it was when this was called last."""
        before, self._catalog = self._catalog, self._env.catalog
        for each in adopted(before, self._catalog):
            self._say(each.event, **each.facts)


def found(root: Path) -> Files:
    """Return what a look finds of the files that say what a project is."""
    return tuple(sorted(_found(root)))


def _found(root: Path) -> Iterator[tuple[str, int, int]]:
    for path in (root / SETTINGS_FILE, *(each for name in DIRECTORIES for each in (root / name).glob("*"))):
        try:
            state = path.stat()
        except OSError:
            continue  # it was deleted meanwhile
        yield str(path.relative_to(root)), state.st_size, state.st_mtime_ns


def _left(before: Project, now: Project, lacks: AbstractSet[str]) -> Iterator[str]:
    """Yield what a project no longer says, and the environment still has; and whether its settings are others.

    ``lacks``: the names of what it never had.
    """
    names = {each.statement.name.lower() for each in now.definitions}
    for each in before.definitions:
        name = each.statement.name.lower()
        if name not in names and name not in lacks:
            readers = [other.statement.name for other in now.definitions if name in read_by(other)]
            reads = f" ({', '.join(readers)} read{'s' if len(readers) == 1 else ''} it)" if readers else ""
            yield (
                f"{each.file}: {each.statement.name!r} is defined here no longer, and is kept up to date all the same"
                f"{reads}: drop it with `strandline apply --drop {shlex.quote(name)}`, or put the definition back"
            )
    if (before.config, before.location, before.consensus, before.tick_ms) != (
        now.config,
        now.location,
        now.consensus,
        now.tick_ms,
    ):
        yield SETTINGS_LATER


IDLE_TICKS_MAX: Final = 4
"""So many ticks are left out in a row where nothing is new: the next says that all is complete as it was."""
FINISHING: Final = "strandline: {signal}: finishing"
AGAIN: Final = "; press again to stop now"
"""For a person at a terminal."""
SIGNAL_SECONDS_MAX: Final = 5.0
"""How much later than Spark's JVM this process may get the signal that ended it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How long to run, and how."""

    once: bool
    until: int | None
    take_over: bool
    tick_ms: int


def run(opener: Opener, project: Project, wanted: Wanted, output: Output) -> Exit:
    """Run the environment of ``project``; return the exit status.

    Raises `ConfigError` if another process holds the location, `DefinitionError` if a definition is wrong.
    """
    return until_stopped(lambda stop: _run(opener, project, wanted, output, stop), output.note)


def until_stopped(call: Callable[[Stop], Exit], note: Callable[[str], object]) -> Exit:
    """Make a call that ends when a signal says stop, and return its status; also if the signal ended Spark first.

    ``note`` gets what there is to say: that the signal was heard, and how long it takes to end.

    SIGTERM or SIGINT is acknowledged at once, in a line.  The current tick finishes, then the environment is closed:
    status 0.  An environment that is only being opened is given up: nothing was changed there.  So is a project that is
    being applied, which is then there in whole or not at all.  A supervisor may send the signal to Spark's JVM too.
    Then the tick cannot finish and is given up: status 0 as well, whichever of the two ends first.  A second signal
    ends the process at once, which is as safe as a SIGKILL: the next `run` continues from the durable state.
    """
    stop = Stop(note)
    with stop.listening():
        try:
            return call(stop)
        except KeyboardInterrupt:
            if not stop.asked:
                raise
            return Exit.OK  # it was being opened
        except ExecutorsGone:
            if not stop.asked:
                raise
            return Exit.OK  # it ends anyway
        except Exception as error:
            if not spark_is_gone(error):
                raise
            stop.wait(SIGNAL_SECONDS_MAX)
            if not stop.asked:
                raise
            return Exit.OK


def _run(opener: Opener, project: Project, wanted: Wanted, output: Output, stop: Stop) -> Exit:
    with reporting(project, output) as report, ExitStack() as opened:
        with report.starting(f"Spark, and the location {project.location}"), stop.giving_up():
            env = opened.enter_context(opener.writing(project, take_over=wanted.take_over, tick_ms=wanted.tick_ms))
        return going_on(env, project, wanted, report, stop)


def going_on(
    env: Environment, project: Project, wanted: Wanted, report: Report, stop: Stop, promoted: float | None = None
) -> Exit:
    """Apply the project to an open environment, and tick; ``promoted``: since when a promotion is under way."""
    report.promoted = promoted
    env.watch(report.moved)
    env.overdue(report.overdue)
    report.beginnings = env.beginnings
    try:
        with report.starting(f"the {len(project.definitions)} definitions of the project"), stop.giving_up():
            before = env.catalog
            applied = env.apply(project, whole=promoted is None)  # if this process ended now, none would write
        following = Following(env, project, report.say, applied)
        report.applied(applied.created, adopted(before, env.catalog))
        for why in applied.refused:
            report.say("not applied", what=why)
        for why in applied.unanswered:
            report.say("not applied, will be retried", what=why)
        report.follow, report.waits, report.adopted = following.look, following.waits, following.say_adopted
        if wanted.once:
            return _ticks(env, wanted, stop, report, lambda _: None)
        return _served(env, project, wanted, stop, report)
    except FencedError as error:
        writer = env.written_by()
        report.note(f"strandline: fenced: {writer or 'another environment'} has taken over ({error})")
        return Exit.FENCED


def _served(env: Environment, project: Project, wanted: Wanted, stop: Stop, report: Report) -> Exit:
    from strandline.console import observed  # with an HTTP server, which no other command needs

    resolve = partial(resolved, project)
    with served(env, Door.of(env.config), stop.hurry, resolve) as serving, observed(env, serving) as seen:
        report.serves(serving.flight_sql, seen.http)

        def ticked(seconds: float) -> None:
            serving.desk.ticked()
            seen.ticked(seconds)

        return _ticks(env, wanted, stop, report, ticked)


def serve(opener: Opener, project: Project, listen: str, output: Output) -> Exit:
    """Run a replica of the project's location: what a `strandline run` has it run, until a signal says stop.

    Raises `ConfigError` once its Spark has ended, so that a supervisor starts another one.
    """

    def listening(stop: Stop) -> Exit:
        with ExitStack() as opened:
            with stop.giving_up():
                replica = opened.enter_context(opener.replicating(project, listen))
            output.log("listening", at=replica.address)
            while not stop.asked:
                replica.require_running()
                stop.wait(SIGNAL_SECONDS_MAX)
        return Exit.OK

    return until_stopped(listening, output.note)


def _ticks(env: Environment, wanted: Wanted, stop: Stop, report: Report, ticked: Callable[[float], None]) -> Exit:
    reported: int | None = None
    idle = 0  # ticks that were left out, one after the other
    while not stop.asked:
        begun = time.monotonic()
        with stop.giving_up():
            report.follow()
        idle = idle + 1 if report.quiet and idle < IDLE_TICKS_MAX and _idle(env, wanted) else 0
        if idle:
            stop.pause(wanted.tick_ms / 1000 - (time.monotonic() - begun))
            continue
        try:
            at = env.tick(wait=wanted.once, timeout=None if wanted.once else wanted.tick_ms / 1000)
        except (StoreError, Unavailable) as error:
            if wanted.once:
                raise
            report.failed(error)
        else:
            progress = env.progress()
            complete = progress["complete"]
            reported = at - 1 if reported is None else reported  # nothing from before this process is news
            if wanted.once or complete > reported:
                report.ticked(complete, time.monotonic() - begun, progress)
                reported = complete
            report.looked(progress)
            ticked(time.monotonic() - begun)
            if stop.asked:  # what Spark could not finish is no problem of an item
                break
            if wanted.once and report.waits(progress):  # what comes later may come now
                continue
            if wanted.once or (wanted.until is not None and complete >= wanted.until):
                return report.ended(progress)
        stop.pause(wanted.tick_ms / 1000 - (time.monotonic() - begun))
    return Exit.OK


def _idle(env: Environment, wanted: Wanted) -> bool:
    """Return whether a tick would find nothing new, and no caller waits for a time."""
    try:
        return not wanted.once and wanted.until is None and env.idle()
    except (StoreError, Unavailable):
        return False  # the tick says so


class Stop:
    """Records whether a signal requested a stop; ``note``: see `until_stopped`."""

    def __init__(self, note: Callable[[str], object] = lambda _: None) -> None:
        self._event = threading.Event()
        self._awake = threading.Event()
        self._note = note
        self._heard = SimpleQueue[int]()
        self._gives_up = False

    @property
    def asked(self) -> bool:
        """Whether a stop was requested."""
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        """Return when a stop is requested, or after ``seconds``."""
        self._event.wait(max(0.0, seconds))

    def pause(self, seconds: float) -> None:
        """Return when a stop or a tick is asked for, or after ``seconds``."""
        self._awake.wait(max(0.0, seconds))
        self._awake.clear()

    def hurry(self) -> None:
        """Ask for a tick now; called on any thread."""
        self._awake.set()

    @contextmanager
    def giving_up(self) -> Iterator[None]:
        """Break off what is done inside as soon as a stop is requested.  Raises KeyboardInterrupt then."""
        self._gives_up = True
        try:
            self._refuse()
            yield
        finally:
            self._gives_up = False
        self._refuse()  # Python drops what a handler raises in a finalizer

    def _refuse(self) -> None:
        if self.asked:
            raise KeyboardInterrupt

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may handle signals; in another thread, the caller handles them
            return
        over = threading.Event()
        acknowledged = start_thread(partial(self._acknowledge, over), "stopping")
        before = {each: signal.signal(each, self._ask) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
            over.set()
            self._heard.put(0)
            acknowledged.wait(SAYS_S)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._event.set()
        self._awake.set()
        self._heard.put(number)  # a line may be under way in this thread, which could not begin another one
        signal.signal(number, signal.SIG_DFL)
        if self._gives_up:
            raise KeyboardInterrupt

    def _acknowledge(self, over: threading.Event) -> None:
        """Say that a signal was heard, and again while the process has not ended."""
        if (number := self._heard.get()) == 0:
            return
        said, begun = FINISHING.format(signal=signal.Signals(number).name), time.monotonic()
        with suppress(OSError, ValueError):  # the terminal is gone
            self._note(said + (AGAIN if number == signal.SIGINT else ""))
            while not over.wait(SAYS_S):
                self._note(f"{said}: {time.monotonic() - begun:.0f} s so far")
