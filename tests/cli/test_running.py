"""`strandline run` goes on when a store fails a tick, and ends on request."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lost_bridge import refused_by_the_jvm

from strandline import console
from strandline.cli import running
from strandline.cli.running import Stop, Wanted, _ticks, run, until_stopped
from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.lasting import lasting, noted
from strandline.cli.terminal.output import Output
from strandline.cli.terminal.reporting import Report
from strandline.controller.defining.apply import Applied
from strandline.controller.location.catalog import Catalog
from strandline.errors import (
    ConfigError,
    CorruptionError,
    Determinate,
    ExecutorsGone,
    FencedError,
    Indeterminate,
    StrandlineError,
    Unavailable,
)

PATIENCE_S = 120.0


class Ticking:
    """An environment whose first tick fails with ``error``; the next is complete at 7."""

    def __init__(self, error: StrandlineError) -> None:
        self.errors = [error]

    def tick(self, *, wait: bool = False, timeout: float | None = None) -> int:
        if self.errors:
            raise self.errors.pop()
        return 7

    def progress(self) -> dict[str, object]:
        return {
            "sources": {},
            "steps": [],
            "problems": {},
            "late": [],
            "complete": 7,
            "notices": {},
            "waiting": {},
            "replaced": {},
        }


def ran(error: StrandlineError, *, once: bool = False) -> Exit:
    """Run until 7 is complete."""
    wanted = Wanted(once=once, until=7, take_over=False, tick_ms=1)
    return _ticks(Ticking(error), wanted, Stop(), Report(Output(json=True)), lambda _: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [Determinate("the disk is full"), Indeterminate("no answer"), Unavailable("gone")])
def test_a_store_that_fails_a_tick_is_asked_at_the_next_one(error: StrandlineError) -> None:
    """Damage: a disk that is full for a minute ends `strandline run`."""
    assert ran(error) is Exit.OK
    with pytest.raises(type(error)):
        ran(error, once=True)


def test_what_no_tick_mends_ends_the_run() -> None:
    """Damage: every tick meets a damaged object, and `run` does not report it."""
    with pytest.raises(CorruptionError):
        ran(CorruptionError("damaged"))


class Opening:
    """An opener of an environment whose Spark is gone from ``phase`` on; a signal may come after that."""

    def __init__(self, phase: str, *, signalled: bool) -> None:
        self._phase, self._signalled = phase, signalled
        apply, tick = partial(self._met, "apply"), partial(self._met, "tick")
        self._env = SimpleNamespace(
            watch=print, overdue=print, beginnings=tuple, apply=apply, tick=tick, catalog=Catalog(), config=None
        )

    @contextmanager
    def writing(self, *_: object, **__: object) -> Iterator[SimpleNamespace]:
        """Open it."""
        self._met("open")
        yield self._env

    def _met(self, phase: str, *_: object, **__: object) -> Applied:
        if phase == self._phase:
            if self._signalled:
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
            try:
                refused_by_the_jvm()
            except ConnectionRefusedError as error:
                raise ConfigError("Spark does not answer") from error
        return Applied((), ())


@pytest.mark.parametrize("phase", ["open", "apply", "tick"])
def test_a_run_ends_as_documented_if_the_signal_ended_spark_first(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a supervisor stops a service, and finds it failed: `Connection refused`, status 1."""
    wanted = Wanted(once=False, until=None, take_over=False, tick_ms=1)
    serving = SimpleNamespace(flight_sql=(), desk=SimpleNamespace(ticked=lambda: None))
    monkeypatch.setattr(running, "served", lambda *_: nullcontext(serving))
    seen = SimpleNamespace(http=None, ticked=lambda _: None)
    monkeypatch.setattr(console, "observed", lambda *_: nullcontext(seen))
    monkeypatch.setattr(running, "Door", SimpleNamespace(of=lambda _: None))
    project = cast("Any", SimpleNamespace(root=tmp_path, resolved=None, location="data", definitions=()))
    monkeypatch.setattr(running, "SIGNAL_SECONDS_MAX", 120)
    assert run(cast("Any", Opening(phase, signalled=True)), project, wanted, Output(json=True)) is Exit.OK
    monkeypatch.setattr(running, "SIGNAL_SECONDS_MAX", 0.1)
    with pytest.raises(ConfigError):  # no signal has asked it to end
        run(cast("Any", Opening(phase, signalled=False)), project, wanted, Output(json=True))


def test_after_a_promotion_what_cannot_be_applied_is_said_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage: one wrong file ends the process that has just fenced the one before, and none writes."""
    asked: list[bool] = []

    def apply(_: object, *, whole: bool) -> Applied:
        asked.append(whole)
        return Applied((), (), refused=("m.yml: 'b' has no key",), unanswered=("n.yml: no answer",))

    def tick(**_: object) -> int:
        raise FencedError("enough of it")

    env = SimpleNamespace(
        watch=print, overdue=print, beginnings=tuple, apply=apply, tick=tick, catalog=Catalog(), written_by=str
    )
    wanted = Wanted(once=True, until=None, take_over=False, tick_ms=1)
    project = cast("Any", SimpleNamespace(root=tmp_path, resolved=None, location="data", definitions=()))
    for promoted in (0.0, None):
        assert (
            running.going_on(cast("Any", env), project, wanted, Report(Output(json=True)), Stop(), promoted)
            is Exit.FENCED
        )
    assert asked == [False, True]
    said = capsys.readouterr().err
    assert "m.yml: 'b' has no key" in said
    assert 'event="not applied, will be retried" what="n.yml: no answer"' in said


def test_each_tick_says_what_was_adopted_meanwhile() -> None:
    """Damage: `run --once` ends without a word of the columns that its only tick has added."""
    said: list[str] = []
    report, env = Report(Output(json=True)), Ticking(Unavailable("not raised"))
    env.errors.clear()
    report.adopted = lambda: said.append("adopted")
    wanted = Wanted(once=True, until=None, take_over=False, tick_ms=1)
    assert _ticks(cast("Any", env), wanted, Stop(), report, lambda _: None) is Exit.OK
    assert said == ["adopted"]


def test_what_a_stop_interrupted_is_no_failure_of_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a view has a problem, and the command fails, because it was asked to end."""
    stop, env = Stop(), Ticking(Determinate("never raised"))
    env.errors.clear()

    def interrupted() -> dict[str, object]:
        stop._event.set()
        return {**Ticking.progress(env), "problems": {"v": "Connection refused"}}

    monkeypatch.setattr(env, "progress", interrupted)
    wanted = Wanted(once=True, until=None, take_over=False, tick_ms=1)
    assert _ticks(cast("Any", env), wanted, stop, Report(Output(json=True)), lambda _: None) is Exit.OK


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, "strandline: SIGINT: finishing; press again to stop now"),
        (signal.SIGTERM, "strandline: SIGTERM: finishing"),
    ],
)
def test_a_signal_is_acknowledged_while_whatever_is_done_goes_on(
    number: signal.Signals, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: who presses it again, as nothing seems to happen, ends the process without a word."""
    said: list[str] = []
    again = threading.Event()

    def note(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            again.set()

    def interrupted(stop: Stop) -> Exit:
        signal.raise_signal(number)
        assert stop.asked
        assert signal.getsignal(number) is signal.SIG_DFL, "the second one ends it at once"
        assert again.wait(PATIENCE_S), "it says how long it takes"
        return Exit.OK

    monkeypatch.setattr(running, "SAYS_S", 0.01)
    before = signal.getsignal(number)
    assert until_stopped(interrupted, note) is Exit.OK
    assert said[0] == line
    assert said[1].endswith(": finishing: 0 s so far")
    assert signal.getsignal(number) is before


def test_a_signal_that_comes_while_a_line_is_written_is_acknowledged_after_it() -> None:
    """Damage: of two lines at once Python writes one, and Ctrl-C seems not to be heard."""
    said: list[str] = []
    writing = threading.Lock()

    def note(text: str) -> None:
        with writing:
            said.append(text)

    def interrupted(stop: Stop) -> Exit:
        with writing:
            signal.raise_signal(signal.SIGINT)
        return Exit.OK

    assert until_stopped(interrupted, note) is Exit.OK
    assert said == ["strandline: SIGINT: finishing; press again to stop now"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_only_being_opened_is_given_up(number: signal.Signals) -> None:
    """Damage: Ctrl-C in the first minute waits until Spark has started and the whole project is applied."""
    closed: list[str] = []

    def opening(stop: Stop) -> Exit:
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        try:
            with stop.giving_up():
                raise AssertionError(f"it was not given up: {threading.Event().wait(PATIENCE_S)}")
        finally:
            closed.append("closed")

    assert until_stopped(opening, print) is Exit.OK
    assert closed == ["closed"]


@pytest.mark.parametrize("which", ["first", "later"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_project_that_is_being_applied_is_given_up(number: signal.Signals, which: str, tmp_path: Path) -> None:
    """Damage: Ctrl-C waits until the hundreds of views of a project are planned, for minutes."""

    def applied(*_: object, **__: object) -> Applied:
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        raise AssertionError(f"it was not given up: {threading.Event().wait(PATIENCE_S)}")

    @contextmanager
    def writing(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(watch=print, overdue=print, beginnings=tuple, apply=applied, catalog=Catalog())

    def following(stop: Stop) -> Exit:
        report = Report(Output(json=True))
        report.follow = applied  # type: ignore[assignment]
        return _ticks(cast("Any", None), wanted, stop, report, lambda _: None)

    wanted = Wanted(once=False, until=None, take_over=False, tick_ms=1)
    project = cast("Any", SimpleNamespace(root=tmp_path, resolved=None, location="data", definitions=()))
    if which == "first":
        assert run(cast("Any", SimpleNamespace(writing=writing)), project, wanted, Output(json=True)) is Exit.OK
    else:
        assert until_stopped(following, print) is Exit.OK


def test_what_is_to_be_opened_after_a_signal_is_not() -> None:
    """Damage: a process that was told to end starts Spark first."""

    def asked(stop: Stop) -> Exit:
        signal.raise_signal(signal.SIGTERM)
        with stop.giving_up():
            raise AssertionError("it is opened")

    assert until_stopped(asked, print) is Exit.OK


def test_an_interrupt_that_no_signal_sent_is_raised() -> None:
    """Damage: a fault that looks like Ctrl-C ends a service as if all was well."""

    def fails(_: Stop) -> Exit:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        until_stopped(fails, print)


@pytest.mark.parametrize("asked", [True, False])
def test_a_process_that_was_told_to_end_ends_well_also_without_executors(asked: bool) -> None:
    """Damage: a service that was stopped is marked as failed; or one that must be started again as well ended."""

    def waits(stop: Stop) -> Exit:
        if asked:
            signal.raise_signal(signal.SIGTERM)
        raise ExecutorsGone("Spark has had no executor for long")

    if asked:
        assert until_stopped(waits, print) is Exit.OK
    else:
        with pytest.raises(ExecutorsGone):
            until_stopped(waits, print)


def test_a_long_first_tick_is_a_line_for_each_reason_and_not_for_each_item() -> None:
    """Damage: the first thing that a new user sees of `run` is a screen of lines that look like trouble."""
    lines: list[tuple[str, dict[str, object]]] = []

    class Heard(Report):
        def say(self, event: str, **facts: object) -> None:
            lines.append((event, facts))

    report = Heard(Output(json=False))
    waits = {f"v{n}": "it waits for its turn in the tick" for n in range(13)} | {"s": "what was begun has not returned"}
    report.overdue(waits)
    assert lines == [
        ("waiting", {"of": "v0,v1,v2 and 10 more", "what": "it waits for its turn in the tick"}),
        ("waiting", {"of": "s", "what": "what was begun has not returned"}),
    ]
    report.overdue(waits)
    assert len(lines) == 2, "what was said is not said again"
    report.overdue({**waits, "v3": "it waits for 's'"})
    assert lines[2:] == [("waiting", {"of": "v3", "what": "it waits for 's'"})]


def test_what_several_items_lack_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: one variable that is not set fills the screen, and a problem that is mended does so again."""
    lines: list[tuple[str, dict[str, object]]] = []

    class Heard(Report):
        def say(self, event: str, **facts: object) -> None:
            lines.append((event, facts))

    report = Heard(Output(json=False))
    quiet: dict[str, Any] = {"steps": {}, "sources": {}, "notices": {}, "waiting": {}, "replaced": {}}
    lacking = "the configuration refers to the environment variable 'SHOP_PASSWORD', which is not set"
    problems = dict.fromkeys(["shop", "reports", "archive"], lacking)
    waits = "it waits for its source 'shop', which has a problem"
    stopped = {**quiet, "problems": problems, "waiting": dict.fromkeys(["orders", "lines"], waits)}
    for _ in range(3):
        report.looked(stopped)
    assert lines == [
        ("problem", {"of": "archive,reports,shop", "what": lacking}),
        ("waiting", {"of": "lines,orders", "what": waits}),
    ]
    report.looked({**quiet, "problems": {}})
    assert lines[2:] == [("mended", {"of": "archive,reports,shop", "what": "they go on"})]
    assert report.ended({**stopped, "problems": dict(reversed(problems.items()))}) is Exit.FAILED
    assert capsys.readouterr().err.splitlines()[0] == f"strandline: archive,reports,shop: {lacking}"


def test_a_problem_a_wait_and_a_notice_are_said_once_and_by_their_words() -> None:
    """Damage: what ends by itself looks like trouble; or a column that came is logged as a wait that never ends."""
    lines: list[tuple[str, dict[str, object]]] = []

    class Heard(Report):
        def say(self, event: str, **facts: object) -> None:
            lines.append((event, facts))

    report = Heard(Output(json=False))
    quiet: dict[str, Any] = {"steps": {}, "sources": {}, "replaced": {}, "problems": {}}
    column = "upstream has columns that are not read: `x` INT"
    looked = {**quiet, "notices": {"shop": [column]}, "waiting": {"v": "it waits for what was begun for it at noon"}}
    report.looked(looked)
    assert lines == [("notice", {"of": "shop", "what": column})], "most waits are over at the next tick"
    report.looked(looked)
    report.looked({**looked, "waiting": {}})
    assert lines[1:] == [("waiting", {"of": "v", "what": "it waits for what was begun for it at noon"})]
    assert report.ended({**looked, "waiting": {}}) is Exit.OK


def test_what_waits_after_a_problem_is_mended_once_it_goes_on() -> None:
    """Damage: the log says of a view that it goes on while it stands still."""
    lines: list[str] = []

    class Heard(Report):
        def say(self, event: str, **_: object) -> None:
            lines.append(event)

    report = Heard(Output(json=False))
    quiet: dict[str, Any] = {"steps": {}, "sources": {}, "replaced": {}, "problems": {}, "waiting": {}, "notices": {}}
    report.looked({**quiet, "problems": {"v": "no such function"}})
    report.looked({**quiet, "waiting": {"v": "it waits for 's'"}})
    assert lines == ["problem"]
    report.looked({**quiet, "waiting": {"v": "it waits for 's'"}})
    report.looked(quiet)
    report.looked(quiet)
    assert lines == ["problem", "waiting", "mended"]


def test_a_source_that_is_dropped_or_opened_anew_takes_nothing_back(capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: a tick logs that it has read fewer records than none."""
    report = Report(Output(json=False))

    def read(**counts: int) -> str:
        sources = {name: {"read_records": count} for name, count in counts.items()}
        report.ticked(1, 0.1, {"sources": sources, "steps": {"v": 1}})
        return capsys.readouterr().err.partition("read=")[2].partition(" ")[0]

    assert [read(a=363, b=5), read(b=7), read(b=7, a=10), read(b=7, a=4)] == ["368", "2", "10", "4"]


def test_what_is_started_is_said_at_once_and_while_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: for a minute nothing is printed, and a new user presses Ctrl-C."""
    said: list[int] = []
    heard = threading.Event()

    def say(seconds: int) -> None:
        said.append(seconds)
        if len(said) == 2:
            heard.set()

    with lasting(say, every_s=0.01):
        assert heard.wait(60)
    count = len(said)
    assert said == sorted(said)
    assert not threading.Event().wait(0.05)
    assert len(said) == count, "what has ended goes on no more"
    with noted("applying 3 changes", Output(json=True), every_s=0.01):
        while not (told := capsys.readouterr().err):
            threading.Event().wait(0.01)
    assert told.startswith("strandline: applying 3 changes: 0 s so far\n")
    far = iter(("", "compares state 2 of 3"))

    def known() -> str:
        if not (stage := next(far, None)) and stage is None:
            raise Unavailable("the process that writes is busy")
        return stage

    with noted("verifying v", Output(json=True), every_s=0.01, far=known):
        lines = ""
        while (lines := lines + capsys.readouterr().err).count("\n") < 3:
            threading.Event().wait(0.01)
    assert [line.partition(" 0 s so far")[2] for line in lines.splitlines()[:3]] == ["", ", compares state 2 of 3", ""]
    with Report(Output(json=False)).starting("Spark"):
        assert "event=starting what=Spark" in capsys.readouterr().err
