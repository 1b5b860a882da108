"""`strandline run`: apply the project, then tick until a signal or a limit; follow the project's files meanwhile.

Ticks come at their interval, whatever takes longer: a view that is computed for the first time, a source that reads its
snapshot, an endpoint that is silent.  These go on beside the ticks, and everything else keeps its freshness.  Where
nothing is new, one tick in five is made.  What is reported is the time at which everything is complete that has no
problem; what takes very long has one, which says so.

After SIGTERM or SIGINT the current tick finishes, then the environment is closed: status 0.  A supervisor may send the
signal to Spark's JVM too.  Then the tick cannot finish and is given up: status 0 as well, whichever of the two ends
first.  A second signal ends the process at once, which is as safe as a SIGKILL: the next `run` continues from the
durable state.  If another environment takes over, this one names it and ends with status 4.

If Spark's JVM ends and no signal follows, the tick that meets it reports problems, and the next one ends this process
with status 1: nothing here could go on without Spark, so a supervisor is to start it again.

If a whole tick fails because a store refuses or does not answer, the next tick retries.  An error of one item is that
item's problem, which `run` and `status` report, and the other items go on.

Long because what `run` does at each tick and what it says of it are one subject.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final

from rich.text import Text

from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.following import Following
from strandline.cli.terminal.living import Living
from strandline.cli.terminal.moving import Pace, Pacer
from strandline.cli.terminal.opening import Opener
from strandline.cli.terminal.output import Output, printable
from strandline.client import Environment
from strandline.controller.defining.project.files import resolved
from strandline.controller.defining.project.settings import Project
from strandline.engine.session.start import spark_is_gone
from strandline.errors import ExecutorsGone, FencedError, StoreError, Unavailable
from strandline.instance.beginnings import Beginning
from strandline.materialize.status import Status
from strandline.serving import Door
from strandline.serving import serve as served

IDLE_TICKS_MAX: Final = 4
"""So many ticks are left out in a row where nothing is new: the next says that all is complete as it was."""
FINISHING: Final = "strandline: finishing; press again to stop now"
NAMES_MAX: Final = 4
"""How many names a log line has."""
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

    ``note`` tells a person at a terminal, who has pressed Ctrl-C, that this takes a moment.
    """
    stop = Stop(note)
    with stop.listening():
        try:
            return call(stop)
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
    with opener.writing(project, take_over=wanted.take_over, tick_ms=wanted.tick_ms) as env:
        return going_on(env, project, wanted, output, stop)


def going_on(
    env: Environment, project: Project, wanted: Wanted, output: Output, stop: Stop, promoted: float | None = None
) -> Exit:
    """Apply the project to an open environment, and tick; ``promoted``: since when a promotion is under way."""
    with _reporting(project, output) as report:
        report.promoted = promoted
        env.watch(report.moved)
        env.overdue(report.overdue)
        report.beginnings = env.beginnings
        try:
            applied = env.apply(project, whole=promoted is None)  # if this process ended now, none would write
            report.applied(applied.created, applied.replaced)
            for why in applied.refused:
                report.say("not applied", what=why)
            following = Following(project, report.say, applied.later)
            report.follow, report.waits = partial(following.look, env), partial(following.waits, env)
            if wanted.once:
                return _ticks(env, wanted, stop, report, lambda _: None)
            return _served(env, project, wanted, stop, report)
        except FencedError as error:
            writer = env.written_by()
            output.note(f"strandline: fenced: {writer or 'another environment'} has taken over ({error})")
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
        with opener.replicating(project, listen) as replica:
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
            if wanted.once and report.waits():  # what reads views that are in place now is made now
                continue
            if wanted.once or (wanted.until is not None and complete >= wanted.until):
                return report.ended(progress["problems"])
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
    def listening(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may handle signals; in another thread, the caller handles them
            return
        before = {each: signal.signal(each, self._ask) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._event.set()
        self._awake.set()
        signal.signal(number, signal.SIG_DFL)
        if number == signal.SIGINT:
            with suppress(RuntimeError, OSError):  # the signal came while a line was written, or the terminal is gone
                self._note(FINISHING)


class Report:
    """The log of `run`: with ``--json`` a document per tick, else lines about changes."""

    pause_s = 10.0
    """How long a transaction runs before its progress is reported."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._pacer = Pacer(time.monotonic, self.pause_s)
        self._read = 0
        self._problems: dict[str, str] = {}
        self._waiting: set[tuple[str, str]] = set()
        self._shown: set[tuple[str, str]] = set()
        self._overdue: dict[str, str] = {}
        self._begun: dict[str, Beginning] = {}
        self._replaced: dict[str, int] = {}
        self._evolved: dict[str, int] = {}  # how many columns were said to be added
        self.quiet = False
        """Whether the last tick found nothing new."""
        self.promoted: float | None = None
        """Since when a promotion is under way; None: none is."""
        self.follow: Callable[[], object] = tuple
        """Looks whether the project's files have changed."""
        self.waits: Callable[[], bool] = bool
        """Says whether a part of the project can be applied that could not before the last tick."""
        self.beginnings: Callable[[], Sequence[Beginning]] = tuple
        """What is read or computed for the first time; any thread may ask."""

    def applied(self, created: Sequence[str], replaced: Sequence[str] = ()) -> None:
        """The project was applied; views are computed anew beside those that they replace."""
        self.say("running", **({"created": ",".join(created)} if created else {}))
        if replaced:
            self.say("replacing", views=",".join(replaced))

    def serves(self, flight_sql: Sequence[str], http: str | None) -> None:
        """Clients are served from now on, at these places; ``http``: people, too."""
        if self._output.json:
            self._output.result({"serving": {"flight_sql": list(flight_sql), "http": http}}, "")
        for place in flight_sql:
            self.say("serving", at=place)
        if http is not None:
            self.say("console", at=http)

    def ticked(self, complete: int, seconds: float, progress: dict[str, Any]) -> None:
        """Everything that has no problem is complete at ``complete``, which is later than it was."""
        if self.promoted is not None:
            self.say("promoted", time=complete, seconds=round(time.monotonic() - self.promoted, 3))
            self.promoted = None
        if self._output.json:
            self._output.result({"time": complete, "seconds": round(seconds, 4), **progress}, "")
        read = sum(source["read_records"] for source in progress["sources"].values())
        if progress["steps"] or read != self._read:
            self.say(
                "tick", time=complete, seconds=round(seconds, 3), read=read - self._read, steps=len(progress["steps"])
            )
        else:
            self.idle(complete)
        self.quiet = not progress["steps"] and read == self._read
        self._read = read

    def looked(self, progress: dict[str, Any]) -> None:
        """A tick has ended, whatever is complete by now."""
        self._say_begun()
        problems = progress["problems"]
        fresh = {name: why for name, why in sorted(problems.items()) if self._problems.get(name) != why}
        for why, names in by_reason(fresh).items():
            self.say("problem", of=listed(names), what=why)
        if mended := sorted(self._problems.keys() - problems.keys()):
            self.say("mended", of=listed(mended), what="it goes on" if len(mended) == 1 else "they go on")
        self._problems = problems
        waiting = {(name, notice) for name, notices in progress["notices"].items() for notice in notices}
        self._say_waiting(waiting & self._waiting)  # the next tick usually resolves a wait of a single tick
        self._waiting = waiting
        for name, last in progress["replaced"].items():
            if self._replaced.get(name) != last:
                self.say("replaced", of=name, after=last)
        self._replaced = dict(progress["replaced"])
        for name, columns in progress["evolved"].items():
            if fresh := columns[self._evolved.get(name, 0) :]:
                self.say("evolved", of=name, columns=", ".join(fresh))
            self._evolved[name] = len(columns)

    def _say_waiting(self, lasting: set[tuple[str, str]]) -> None:
        for name, notice in sorted(lasting - self._shown):
            self.say("waiting", of=name, what=notice)
        self._shown = lasting

    def ended(self, problems: dict[str, str]) -> Exit:
        """Report what the last tick could not do, and what still waits, one sentence each."""
        self._say_waiting(self._waiting | self._shown)
        for why, names in by_reason(dict(sorted(problems.items()))).items():
            self._output.note(f"strandline: {listed(names)}: {why}")
        return Exit.FAILED if problems else Exit.OK

    def failed(self, error: Exception) -> None:
        """A whole tick failed."""
        self.say("tick failed, will be retried", what=str(error))

    def moved(self, status: Status) -> None:
        """A task has read or sent a batch of rows; called on another thread, while the tick goes on."""
        pace = self._pacer.pace(status)
        if pace is not None:
            self.paced(pace)

    def overdue(self, waits: Mapping[str, str]) -> None:
        """A tick runs long; called on another thread, every few seconds.

        This says it even if no other process can learn it, because the store that is silent keeps what is published.
        """
        if waits != self._overdue and self._output.json:
            self._output.result({"waiting": waits}, "")
        for what, names in by_reason({n: w for n, w in waits.items() if self._overdue.get(n) != w}).items():
            self.say("waiting", of=listed(names), what=what)
        self._overdue = dict(waits)
        self._say_begun()

    def _say_begun(self) -> None:
        """Report how far what begins has come, where that is further than was reported last."""
        now = {each.name: each for each in self.beginnings() if each.since_ms is not None and each.rows}
        for name, each in now.items():
            if self._begun.get(name) != each:
                self.say(each.verb, of=name, rows=each.rows, **({} if each.about is None else {"about": each.about}))
        self._begun = now

    def paced(self, pace: Pace) -> None:
        """Report the progress of a transaction."""
        self.say(pace.verb, of=pace.name, rows=pace.done, about=pace.about, rows_per_s=pace.rows_per_s)

    def say(self, event: str, **facts: object) -> None:
        """Write a log line."""
        self._output.log(event, **facts)

    def idle(self, complete: int) -> None:
        """A tick had nothing to do."""


class TerminalReport(Report):
    """The log on a terminal: a line for each tick that changed something, and a status line that is updated."""

    pause_s = 0.25

    def __init__(self, output: Output, title: str) -> None:
        super().__init__(output)
        self._title = printable(title, lines=False)
        self.living = Living(output.progress, Text(f"{self._title}: starting"), self._beginnings_now)

    def say(self, event: str, **facts: object) -> None:
        """Print a line above the status line."""
        shown = ", ".join(f"{name} {value}" for name, value in facts.items())
        self._output.note(f"{event}: {shown}" if shown else event)

    def _say_begun(self) -> None:
        """Report nothing more: it has a bar."""

    def _beginnings_now(self) -> Sequence[Beginning]:
        return self.beginnings()

    def paced(self, pace: Pace) -> None:
        """Show the progress in the status line."""
        self.living.update(Text(f"{self._title}: {printable(str(pace))}"))

    def idle(self, complete: int) -> None:
        """Show the latest complete time in the status line."""
        self.living.update(Text(f"{self._title}: up to date at {complete}"))


def by_reason(said: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names for each reason: each is one line, however many items have the same.

    >>> by_reason({"a": "no disk", "v": "late", "b": "no disk"})
    {'no disk': ['a', 'b'], 'late': ['v']}
    """
    found: dict[str, list[str]] = {}
    for name, why in said.items():
        found.setdefault(why, []).append(name)
    return found


def listed(names: Sequence[str]) -> str:
    """Return names as a log line has them: some, if they are many.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a,b', 'a,b,c and 2 more')
    """
    return (
        ",".join(names)
        if len(names) <= NAMES_MAX
        else f"{','.join(names[: NAMES_MAX - 1])} and {len(names) - NAMES_MAX + 1} more"
    )


@contextmanager
def _reporting(project: Project, output: Output) -> Iterator[Report]:
    if not output.progress.is_terminal:
        yield Report(output)
        return
    report = TerminalReport(output, project.root.name)
    with report.living:
        yield report
