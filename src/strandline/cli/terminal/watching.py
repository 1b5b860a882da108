"""`strandline status --watch`: the status again and again, in place on a terminal, block after block elsewhere."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from strandline.cli.terminal.exits import sentence
from strandline.cli.terminal.output import Output, printable
from strandline.cli.terminal.standing import Rates, counters, parts, waiting, written_by
from strandline.errors import ConfigError, StoreError, Unavailable


def watch(look: Callable[[], Mapping[str, Any]], output: Output, seconds: float) -> None:
    """Show what ``look`` returns, every ``seconds``, until SIGINT (Ctrl-C) or SIGTERM; with ``--json``, as documents.

    Raises what the first look raises; later ones may fail while the process that writes starts again.
    """
    live = None if output.json or not output.console.is_terminal else Live(console=output.console, auto_refresh=False)
    stop = _Stop()
    with suppress(KeyboardInterrupt), stop.heeded(), nullcontext() if live is None else live:
        found, at, before, passed = look(), time.monotonic(), dict[str, int](), 0.0
        while True:
            now = counters(found)
            rates = {name: (now[name] - before[name]) / passed for name in sorted(now.keys() & before.keys()) if passed}
            before = now
            _show(output, live, found, rates)
            while True:
                stop.wait(seconds)
                try:
                    found = look()
                except (ConfigError, StoreError, Unavailable) as error:
                    _note(output, live, f"strandline: {sentence(error)}")
                    continue
                break
            passed, at = time.monotonic() - at, time.monotonic()


def _show(output: Output, live: Live | None, found: Mapping[str, Any], rates: Rates) -> None:
    if output.json:
        output.result(found, "")
        return
    block = _block(found, output.console.width, rates)
    if live is not None:
        live.update(block, refresh=True)
    else:
        output.console.print(block)
        output.console.print()


def _block(found: Mapping[str, Any], width: int, rates: Rates) -> Group:
    """Return what is shown of a status.  What waits comes first: a screen that is too small loses its end."""
    head, rest = [Text(printable(written_by(found))), *waiting(found), Text("")], parts(found, width, rates)
    for each in (every := [*head, *rest]):
        if isinstance(each, Text):
            each.no_wrap, each.overflow = False, "fold"  # otherwise a screen cuts what it has no room for
    return Group(*every)


def _note(output: Output, live: Live | None, text: str) -> None:
    """Say why there was nothing new to show: on a screen in its first line, until there is."""
    if live is None:
        output.note(text)
    elif isinstance(live.renderable, Group):
        _, *others = live.renderable.renderables
        live.update(Group(Text(printable(text), "red", no_wrap=False, overflow="fold"), *others), refresh=True)


class _Stop:
    """Ends a loop at a signal: at once while it waits, else when what it does is done.

    A look that is broken off may leave an environment half closed, whose threads the process then waits for.  A second
    signal breaks it off all the same.
    """

    def __init__(self) -> None:
        self._asked = False
        self._waits = False

    def wait(self, seconds: float) -> None:
        """Wait.  Raises KeyboardInterrupt at a signal, or if one has come before."""
        self._waits = True  # from here on a signal raises
        try:
            if self._asked:
                raise KeyboardInterrupt
            threading.Event().wait(seconds)
        finally:
            self._waits = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Heed the signals."""
        before = {each: signal.signal(each, self._heard) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _heard(self, *_: object) -> None:
        if self._waits or self._asked:
            raise KeyboardInterrupt
        self._asked = True


@contextmanager
def interrupted() -> Iterator[None]:
    """Let SIGTERM end what goes on as SIGINT does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
