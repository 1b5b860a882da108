"""The shell asks the process that writes, and says whom it asks; it takes the place of none that may come back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.cli.shell import connection
from strandline.cli.shell.connection import Connection
from strandline.cli.shell.running import followed, interruptible
from strandline.client import Environment
from strandline.errors import DefinitionError, InvalidUsage, Unavailable
from strandline.serving import RemoteEnvironment

PATIENCE_S = 120.0


class Far(RemoteEnvironment):
    """The process that writes, while it lives."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._process = place.process

    def written_by(self, timeout: float | None = None) -> str | None:
        """Answer, or not."""
        if self._place.process != self._process:
            raise Unavailable("gone")
        return "it"

    def close(self) -> None:
        """Nothing is open."""


class Here(Environment):
    """An environment that the shell opened itself."""

    def __init__(self, *, writes: bool) -> None:
        self._writes, self.closed = writes, False

    @property
    def writes(self) -> bool:
        """As it was opened."""
        return self._writes

    def close(self) -> None:
        """Note it."""
        self.closed = True


class Place:
    """A location, the process that writes it (None: none does), and what opens it."""

    def __init__(self, process: int | None) -> None:
        self.process = process
        self.said: list[str] = []
        self.waits = 0
        self.back_at: int | None = None
        self.begins: int | None = None
        project = SimpleNamespace(location="file:///data", root=Path())
        self.connection = Connection(cast("Any", self), cast("Any", project), self.said.append, self.wait)

    def wait(self, _: float) -> None:
        """Wait; the process is back after some waits."""
        self.waits += 1
        if self.waits == self.back_at:
            self.process = 99

    def living(self, _: object) -> Far | None:
        """As `Opener.living`."""
        return None if self.process is None else Far(self)

    def answering(self, project: object, _: object) -> Far | None:
        """As `Opener.answering`."""
        return self.living(project)

    def beside(self, *_: object) -> Here:
        """As `Opener.beside`."""
        return Here(writes=False)

    def awaited(self, connect: Callable[[], Far | None], _: object) -> Far | None:
        """As `Opener.awaited`, of a process that answers at once."""
        return connect()

    def changing(self, project: object, _: object) -> Far | Here:
        """As `Opener.changing`; a process may begin while this one opens the location."""
        self.process = self.process if self.begins is None else self.begins
        return self.living(project) or Here(writes=True)


@pytest.fixture(params=[7])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A location that process 7 writes."""
    made = Place(request.param)
    monkeypatch.setattr(connection, "writer", lambda _: made.process)
    return made


no_writer = pytest.mark.parametrize("place", [None], indirect=True)


def test_it_asks_the_process_that_writes(place: Place) -> None:
    """Damage: the shell opens what another process writes, or does not say whom it asks."""
    assert place.connection.open() == "connected to the process that writes file:///data (process 7)"
    assert isinstance(place.connection.ready(changes=True), Far)


def test_it_waits_for_a_process_that_ended_and_goes_on_with_the_next(place: Place) -> None:
    """Damage: after a restart a person has to leave and come again."""
    asked = place.connection
    asked.open()
    place.process = None
    assert asked.lost(Unavailable("no answer"))
    place.back_at = 3
    assert isinstance(asked.ready(changes=True), Far)
    assert place.said[0] == "the process that writes has ended"
    assert place.said[-1] == "it is back: connected (process 99)"


def test_an_error_of_a_process_that_lives_is_its_answer(place: Place) -> None:
    """Damage: a busy process is taken for a dead one."""
    place.connection.open()
    assert not place.connection.lost(Unavailable("too many queries"))
    assert not place.connection.lost(DefinitionError("wrong"))


def test_it_never_takes_the_place_of_a_process_that_ended(place: Place) -> None:
    """Damage: a person types one INSERT while `strandline run` is restarted, and it cannot start again."""
    place.connection.open()
    place.process = None
    assert place.connection.lost(Unavailable("no answer"))
    with pytest.raises(Unavailable, match="start `strandline run`"):
        place.connection.ready(changes=True)


def test_it_says_that_the_process_was_started_again(place: Place) -> None:
    """Damage: a transaction is lost, and no message says why."""
    place.connection.open()
    place.process = 8
    place.connection.ready(changes=False)
    assert place.said == ["the process that writes was started again (process 8)"]


@no_writer
def test_it_reads_by_itself_where_no_process_writes_until_one_does(place: Place) -> None:
    """Damage: a shell that only reads keeps `strandline run` from starting."""
    assert "this shell reads it itself" in place.connection.open()
    first = place.connection.ready(changes=False)
    assert isinstance(first, Here)
    assert not place.connection.writes
    place.process = 5
    assert isinstance(place.connection.ready(changes=True), Far)
    assert first.closed
    assert place.said == ["a process writes the location now: connected to it (process 5)"]


@no_writer
def test_it_writes_only_once_something_is_changed_and_says_so(place: Place) -> None:
    """Damage: `strandline run` is refused, and no message says by which process."""
    place.connection.open()
    place.connection.ready(changes=True)
    assert place.connection.writes
    assert "`strandline run` cannot start meanwhile" in place.said[0]
    place.connection.ready(changes=True)
    assert len(place.said) == 1


@no_writer
def test_it_joins_a_process_that_began_when_it_was_about_to_write(place: Place) -> None:
    """Damage: the first change of a shell takes the location from the `strandline run` that has just been started."""
    place.connection.open()
    place.begins = 6
    assert isinstance(place.connection.ready(changes=True), Far)
    assert not place.connection.writes
    assert place.said[-1] == "a process writes the location now: connected to it (process 6)"


def interrupt_soon() -> None:
    """Press Ctrl-C in a moment; where the tests run in the background, it is ignored until now."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_cancels_what_runs_and_the_shell_goes_on() -> None:
    """Damage: a statement that takes hours can be ended only with the shell."""
    cancelled = threading.Event()

    def call() -> None:
        assert cancelled.wait(PATIENCE_S)
        raise InvalidUsage("the query was cancelled")

    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        interruptible(call, cancelled.set, nullcontext)
    assert cancelled.is_set()
    assert interruptible(lambda: 7, cancelled.clear, nullcontext) == 7
    with pytest.raises(DefinitionError, match="wrong"):
        interruptible(lambda: fail("wrong"), cancelled.clear, nullcontext)


def fail(why: str) -> None:
    """Raise an error."""
    raise DefinitionError(why)


class Events(Iterator[int]):
    """What comes of a subscription: three events, then nothing until it is closed."""

    def __init__(self, end: DefinitionError | None = None) -> None:
        self._next, self._end = 0, end
        self.closed = threading.Event()

    def __next__(self) -> int:
        self._next += 1
        if self._next <= 3:
            return self._next
        if self._end is not None:
            raise self._end
        assert self.closed.wait(PATIENCE_S)
        raise StopIteration

    def close(self) -> None:
        """End it."""
        self.closed.set()


def test_ctrl_c_ends_a_subscription_and_closes_it() -> None:
    """Damage: a subscription holds history for ever that no_writer reads."""
    events = Events()
    interrupt_soon()
    assert list(followed(events)) == [1, 2, 3]
    assert events.closed.is_set()


def test_a_subscription_that_fails_says_why_after_what_came() -> None:
    """Damage: a subscription ends without a word."""
    events, seen = Events(DefinitionError("dropped")), []
    with pytest.raises(DefinitionError, match="dropped"):
        seen.extend(followed(events))
    assert seen == [1, 2, 3]
    assert events.closed.is_set()
