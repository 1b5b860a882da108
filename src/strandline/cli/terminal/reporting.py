"""Reporting: what `strandline run` prints about itself: documents with ``--json``, lines, or lines above a status line.

A line is printed when something has changed, never again because time has passed.  While `strandline run` waits for a
transaction into an endpoint, its progress is reported regularly.

On a terminal the living lines show the current activity, and a bar for each first load and first result.  A first
snapshot may take hours, in one tick.  Its bar moves meanwhile: the figures are asked for from memory, several times a
second, on the thread that draws.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.lasting import lasting
from strandline.cli.terminal.output import Output, printable
from strandline.controller.defining.project.settings import Project
from strandline.controller.observing.adopted import Adopted
from strandline.instance.beginnings import Beginning
from strandline.materialize.status import Status

BAR_WIDTH: Final = 30
FRAMES_PER_S: Final = 4


class Living:
    """Lines that are drawn again and again while the context lasts, and then are gone."""

    def __init__(self, console: Console, text: Text, beginnings: Callable[[], Sequence[Beginning]]) -> None:
        self._spinner = Spinner("dots", text)
        self._beginnings = beginnings
        self._live = Live(
            console=console,
            get_renderable=self.shown,
            refresh_per_second=FRAMES_PER_S,
            transient=True,
            redirect_stdout=False,
        )

    def update(self, text: Text) -> None:
        """Say what is done now."""
        self._spinner.update(text=text)

    def shown(self) -> RenderableType:
        """Return the lines as they are now."""
        begun = [each for each in self._beginnings() if each.since_ms is not None]
        return Group(self._spinner, bars(begun)) if begun else self._spinner

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._live.stop()


def bars(beginnings: Sequence[Beginning]) -> Table:
    """Return a bar for each: one that moves to and fro where it is not known how many rows there are."""
    shown = Table.grid(padding=(0, 1))
    for each in beginnings:
        total = max(each.about, each.rows, 1) if each.about is not None and each.rows else None
        about = "" if each.about is None else f" of about {each.about:,}"
        bar = ProgressBar(total=total, completed=each.rows, width=BAR_WIDTH, pulse=total is None)
        name = Text(printable(each.name, lines=False))
        shown.add_row(Text(f"  {each.verb}"), name, bar, Text(f"{each.rows:,}{about} rows"))
    return shown


@dataclass(frozen=True, slots=True)
class Pace:
    """One task's rows so far: ``done`` of about ``about``, read from its collections or sent to its endpoint."""

    name: str
    verb: str
    done: int
    about: int
    rows_per_s: int

    def __str__(self) -> str:
        share = f" ({100 * self.done // self.about} %)" if self.about else ""
        return f"{self.name}: {self.verb} {self.done:,} of about {self.about:,} rows{share}, {self.rows_per_s:,} rows/s"


class Pacer:
    """Turns a task's statuses into paces, at most one per ``pause_s`` seconds; ``now`` is a monotonic clock."""

    def __init__(self, now: Callable[[], float], pause_s: float) -> None:
        self._now = now
        self._pause_s = pause_s
        # By task: the verb, when it began, when it was last reported.
        self._begun: dict[str, tuple[str, float, float]] = {}

    def pace(self, status: Status) -> Pace | None:
        """Return the pace to report now; None if one was reported a moment ago, or no transaction is in flight."""
        moving, now = status.moving, self._now()
        match status.phase:
            case "Extending":
                verb, done, about = "read", moving.read, moving.about
            case "Storing":
                verb, done, about = "sent", moving.sent, moving.read
            case _:
                return None
        last, begun, shown_s = self._begun.get(status.name, ("", now, now))
        if last != verb or not done:
            last, begun, shown_s = verb, now, now
        due = done > 0 and now - shown_s >= self._pause_s
        self._begun[status.name] = (last, begun, now if due else shown_s)
        return Pace(status.name, verb, done, about, round(done / (now - begun))) if due else None


NAMES_MAX: Final = 4
"""How many names a log line has."""


class Report:
    """The log of `run`: with ``--json`` a document per tick, else lines about changes."""

    pause_s = 10.0
    """How long a transaction runs before its progress is reported."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._pacer = Pacer(time.monotonic, self.pause_s)
        self._read: dict[str, int] = {}
        self._problems: dict[str, str] = {}
        self._stopped: set[str] = set()
        """What had a problem and has not gone on since."""
        self._waiting: dict[str, str] = {}
        self._shown: dict[str, str] = {}
        self._noticed: set[tuple[str, str]] = set()
        self._overdue: dict[str, str] = {}
        self._begun: dict[str, Beginning] = {}
        self._replaced: dict[str, int] = {}
        self.quiet = False
        """Whether the last tick found nothing new."""
        self.promoted: float | None = None
        """Since when a promotion is under way; None: none is."""
        self.follow: Callable[[], object] = tuple
        """Looks whether the project's files have changed."""
        self.waits: Callable[[Mapping[str, Any]], bool] = lambda _: False
        """Says, of an environment's progress, whether another tick may let more of the project be applied."""
        self.adopted: Callable[[], object] = tuple
        """Says which definitions have changed, here or by another process."""
        self.beginnings: Callable[[], Sequence[Beginning]] = tuple
        """What is read or computed for the first time; any thread may ask."""

    @contextmanager
    def starting(self, what: str) -> Iterator[None]:
        """Say what is started while the context lasts; if that is long, say again that it goes on."""
        self.say("starting", what=what)
        with lasting(lambda seconds: self.say("starting", what=what, seconds=seconds)):
            yield

    def applied(self, created: Sequence[str], changes: Iterable[Adopted]) -> None:
        """The project was applied; ``changes``: what became otherwise by that."""
        self.say("running", **({"created": ",".join(created)} if created else {}))
        for each in changes:
            if "created" not in each.facts:
                self.say(each.event, **each.facts)

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
        read = self._freshly_read({name: source["read_records"] for name, source in progress["sources"].items()})
        if progress["steps"] or read:
            self.say("tick", time=complete, seconds=round(seconds, 3), read=read, steps=len(progress["steps"]))
        else:
            self.idle(complete)
        self.quiet = not progress["steps"] and not read

    def _freshly_read(self, counts: dict[str, int]) -> int:
        """Return how many records were read since the tick before; a source that is opened anew counts from zero."""
        before, self._read = self._read, counts
        return sum(count - (known if (known := before.get(name, 0)) <= count else 0) for name, count in counts.items())

    def looked(self, progress: dict[str, Any]) -> None:
        """A tick has ended, whatever is complete by now."""
        self.adopted()
        self._say_begun()
        problems = progress["problems"]
        fresh = {name: why for name, why in sorted(problems.items()) if self._problems.get(name) != why}
        for why, names in by_reason(fresh).items():
            self.say("problem", of=listed(names), what=why)
        waiting = progress["waiting"]
        self._stopped |= problems.keys()
        if mended := sorted(self._stopped - problems.keys() - waiting.keys()):
            self.say("mended", of=listed(mended), what="it goes on" if len(mended) == 1 else "they go on")
        self._stopped.difference_update(mended)
        self._problems = problems
        # of what waited before, too: the next tick usually resolves a wait
        self._say_waiting({name: why for name, why in waiting.items() if self._waiting.get(name) == why})
        self._waiting = dict(waiting)
        notices = {(name, notice) for name, said in progress["notices"].items() for notice in said}
        for name, notice in sorted(notices - self._noticed):
            self.say("notice", of=name, what=notice)
        self._noticed = notices
        for name, last in progress["replaced"].items():
            if self._replaced.get(name) != last:
                self.say("replaced", of=name, after=last)
        self._replaced = dict(progress["replaced"])

    def _say_waiting(self, waiting: dict[str, str]) -> None:
        fresh = {name: why for name, why in sorted(waiting.items()) if self._shown.get(name) != why}
        for why, names in by_reason(fresh).items():
            self.say("waiting", of=listed(names), what=why)
        self._shown = waiting

    def ended(self, progress: dict[str, Any]) -> Exit:
        """Report what the last tick could not do, and what still waits, one sentence each."""
        self._say_waiting(self._shown | self._waiting)
        problems = progress["problems"]
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

    def note(self, text: str) -> None:
        """Say something in a sentence."""
        self._output.note(text)

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

    @contextmanager
    def starting(self, what: str) -> Iterator[None]:
        """Show what is started in the status line, which moves."""
        self.living.update(Text(f"{self._title}: starting {printable(what, lines=False)}"))
        with lasting(
            lambda seconds: self.living.update(
                Text(f"{self._title}: starting {printable(what, lines=False)} ({seconds} s)")
            )
        ):
            yield

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
def reporting(project: Project, output: Output) -> Iterator[Report]:
    """Report what becomes of a project, as the output is: in lines, or on a terminal beside a status line."""
    if not output.progress.is_terminal:
        yield Report(output)
        return
    report = TerminalReport(output, project.root.name)
    with report.living:
        yield report
