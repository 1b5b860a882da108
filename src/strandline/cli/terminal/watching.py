"""`strandline status --watch`: the status again and again, in place on a terminal, block after block elsewhere."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from strandline.cli.terminal.exits import sentence
from strandline.cli.terminal.output import Output, printable
from strandline.cli.terminal.standing import counters, parts, written_by
from strandline.errors import ConfigError, StoreError, Unavailable


def watch(look: Callable[[], Mapping[str, Any]], output: Output, seconds: float) -> None:
    """Show what ``look`` returns, every ``seconds``, until Ctrl-C; with ``--json``, a document each time.

    Raises what the first look raises; later ones may fail while the process that writes starts again.
    """
    live = None if output.json or not output.console.is_terminal else Live(console=output.console, auto_refresh=False)
    pause = threading.Event()
    with suppress(KeyboardInterrupt), nullcontext() if live is None else live:
        found, at, before, passed = look(), time.monotonic(), dict[str, int](), 0.0
        while True:
            now = counters(found)
            rates = {name: (now[name] - before[name]) / passed for name in sorted(now.keys() & before.keys()) if passed}
            before = now
            _show(output, live, found, Group(Text(printable(written_by(found))), *parts(found, rates)))
            while True:
                pause.wait(seconds)
                try:
                    found = look()
                except (ConfigError, StoreError, Unavailable) as error:
                    output.note(f"strandline: {sentence(error)}")
                    continue
                break
            passed, at = time.monotonic() - at, time.monotonic()


def _show(output: Output, live: Live | None, found: Mapping[str, Any], block: RenderableType) -> None:
    if live is not None:
        live.update(block, refresh=True)
    elif output.json:
        output.result(found, "")
    else:
        output.console.print(block)
        output.console.print()


@contextmanager
def interrupted() -> Iterator[None]:
    """Let SIGTERM end what goes on as SIGINT does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
