"""Ending: Ctrl-C ends a command, whatever it waits for.

The first one is raised as `KeyboardInterrupt`: what the command asked for is cancelled, and what it opened is closed.
If that takes longer than `ENDING_S`, or Ctrl-C comes again, the process ends at once: that is as safe as a SIGKILL.
`strandline run` and the shell, which do more with Ctrl-C, have handlers of their own.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING_S: Final = 1.5
INTERRUPTED: Final = 130
"""The exit status of a command that a signal ended: what a shell calls SIGINT's."""


@contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """End what is done inside at Ctrl-C, in the main thread, unless SIGINT is ignored or has a handler of its own."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield
        return
    over = threading.Event()

    def end() -> None:
        if not over.wait(ENDING_S):
            os._exit(INTERRUPTED)

    def heard(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        threading.Thread(target=end, daemon=True).start()  # noqa: TID251 - nothing else may be needed to end
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        over.set()
        signal.signal(signal.SIGINT, before)
