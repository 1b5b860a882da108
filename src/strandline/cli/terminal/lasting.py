"""Lasting: what takes more than a few seconds says so, again and again, so that its user does not take it for stuck."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from strandline.cli.terminal.opening import Asked, Opener
from strandline.cli.terminal.output import Output
from strandline.controller.defining.project.settings import Project
from strandline.errors import StrandlineError
from strandline.instance.carriers.exchange import start_thread

SAYS_S: Final = 5.0
"""After so many seconds it is said that something goes on, and each time that as many have passed."""


@contextmanager
def lasting(say: Callable[[int], object], every_s: float = SAYS_S) -> Iterator[None]:
    """Have ``say`` called, in a thread of its own, with the seconds since the context began, while that lasts.

    It is called no longer once the context has ended; it must not raise.
    """
    begun, over = time.monotonic(), threading.Event()

    def tell() -> None:
        while not over.wait(every_s):
            say(round(time.monotonic() - begun))

    ended = start_thread(tell, "lasting")
    try:
        yield
    finally:
        over.set()
        ended.wait(SAYS_S)


def stage(env: Asked, text: str) -> str:
    """Return what a call does now that the register of running queries has as ``text``; empty: it is not there."""
    return next((str(each["stage"]) for each in env.queries() if each["text"] == text), "")


@contextmanager
def noted(what: str, output: Output, every_s: float = SAYS_S, far: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Have it noted on standard error that ``what`` goes on, and since how long, while the context lasts.

    ``far``: says how far it is, as far as that is known; it is called in another thread.
    """

    def say(seconds: int) -> None:
        known = ""
        with suppress(StrandlineError):
            known = far()
        output.note(f"strandline: {what}: {seconds} s so far{known and f', {known}'}")

    with lasting(say, every_s):
        yield


@contextmanager
def changing(opener: Opener, project: Project, output: Output, *, whole: bool = True) -> Iterator[Asked]:
    """Yield the environment of a project to change it, and note what the command waits for until it has one.

    Raises as `Opener.changing`.
    """
    with noted("opening the location", output):
        opened = opener.changing(project, output.note, whole=whole)
    with opened as env:
        yield env
