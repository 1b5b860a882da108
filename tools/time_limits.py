"""A time limit for every test: one that hangs fails by its name, with the stack of every thread, and the others go on.

Each phase of a test (its fixtures, the test itself, their end) has the limit of its stage (`LIMITS_S`), or the one that
its marker gives it: ``@pytest.mark.time_limit(600)``.  When the time is over, `HungError` is raised in the main thread,
wherever that is: in Python code, or in a call that waits (a lock, a join, a socket).  What catches it meets it again,
every `AGAIN_S`, until the phase has ended.

Trap: a call into C that neither returns nor lets signals through cannot be left.  `GRACE_S` after the limit such a
process writes all stacks and ends; `stages.py`, which runs the stage, names the test and runs the others again.

A debugger stops the clock (``--pdb``).  Warning: this file is a pytest plugin; it imports nothing but pytest, `stages`
and the standard library.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import pytest

import stages

LIMITS_S: Final = {
    "check": 300,
    "unit": 300,
    "properties": 300,
    "simulation": 900,
    "planted": 600,
    "spark": 600,
    "views": 600,
    "servers": 600,
    "kills": 900,
    "cluster": 600,
    "demo": 900,
    "damage": 600,
    "long": 5_400,
}
"""How long a phase of a test may take, by its stage: several times what it takes on a machine that is busy."""
GRACE_S: Final = 30
"""How long after that a process may still run that does not let itself be interrupted."""
AGAIN_S: Final = 1
"""After how long code that caught the error meets it again."""
ENDING_S: Final = 120
"""How long a process may take to end when all tests have."""

assert LIMITS_S.keys() == stages.STAGES.keys()

_stderr: Final = pytest.StashKey[int]()


class HungError(BaseException):
    """A test took longer than it may.  Not an `Exception`, so that no code under test takes it for one of its own."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and keep the standard error that no capture takes away."""
    config.addinivalue_line(
        "markers",
        "time_limit(seconds, grace_s=...): how long a phase of the test may take before it has failed; "
        "default: as its stage says (tools/time_limits.py)",
    )
    config.stash[_stderr] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let the process end even if a test left a thread that does not."""
    faulthandler.dump_traceback_later(ENDING_S, exit=True, file=config.stash[_stderr])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Limit how long the test's fixtures take."""
    with _limited(item, "its fixtures"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Limit how long the test takes."""
    with _limited(item, "the test"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Limit how long its fixtures take to end."""
    with _limited(item, "the end of its fixtures"):
        return (yield)


@contextmanager
def _limited(item: pytest.Item, what: str) -> Iterator[None]:
    """Raise `HungError` in the main thread if the context is not left in time."""
    if item.config.getoption("usepdb"):
        yield
        return
    seconds, grace_s = limit_of(item)
    told = f"{what} took longer than {seconds:g} s"
    first = True

    def overdue(_signal: int, _frame: FrameType | None) -> None:
        nonlocal told, first
        if first:
            first = False
            told = f"{told}; meanwhile:\n{stacks()}"
        raise HungError(told)

    before = signal.signal(signal.SIGALRM, overdue)
    faulthandler.dump_traceback_later(seconds + grace_s, exit=True, file=item.config.stash[_stderr])
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def limit_of(item: pytest.Item) -> tuple[float, float]:
    """Return how many seconds a phase of a test may take, and how many more until its process is ended."""
    marker = item.get_closest_marker("time_limit")
    if marker is None:
        return LIMITS_S[stages.stage_of_item(item)], GRACE_S
    (seconds,) = marker.args
    return seconds, marker.kwargs.get("grace_s", GRACE_S)


def stacks() -> str:
    """Return the stack of every thread, and of every task of the event loop that runs here."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        threads = file.read()
    try:
        tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    except RuntimeError:
        return threads  # no event loop runs in this thread
    waiting = io.StringIO()
    for task in tasks:
        task.print_stack(file=waiting)
    return threads + waiting.getvalue()
