"""The end of a command: its exit status, its error as one sentence without a traceback, and Ctrl-C.

Ctrl-C ends a command, whatever it waits for.  The first one is raised as `KeyboardInterrupt`: the command's requests
are cancelled, and what it opened is closed.  If that takes longer than `ENDING_S`, or Ctrl-C comes again, the process
ends at once: that is as safe as a SIGKILL.  `strandline run` and the shell, which do more with Ctrl-C, have handlers of
their own.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Final

from strandline.errors import ExecutorsGone, FencedError, StrandlineError, first_line
from strandline.extras import lacking

TRACEBACK_VARIABLE: Final = "STRANDLINE_TRACEBACK"
"""Set to 1 (``--debug`` does so) to see tracebacks, and Spark's output on standard error."""


class Exit(IntEnum):
    """The meaning of exit statuses.  The command line's parser itself returns 2 (usage)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DIFFERENCE = 3
    FENCED = 4
    STANDS_STILL = 5
    NO_EXECUTORS = 6


def exit_of(error: Exception) -> Exit:
    """Return the exit status for an error.

    >>> exit_of(FencedError("gone")), exit_of(ExecutorsGone("none")), exit_of(StrandlineError("no"))
    (<Exit.FENCED: 4>, <Exit.NO_EXECUTORS: 6>, <Exit.FAILED: 1>)
    """
    match error:
        case FencedError():
            return Exit.FENCED
        case ExecutorsGone():
            return Exit.NO_EXECUTORS
        case _:
            return Exit.FAILED


def sentence(error: Exception) -> str:
    """Return one line that describes any error.

    >>> sentence(FileNotFoundError(2, "No such file or directory", "/x")), sentence(KeyError("k"))[:53]
    ('No such file or directory: /x', "KeyError('k'): this is a fault of Strandline itself; ")
    """
    if isinstance(error, StrandlineError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (said := lacking(error)):
        return said
    from strandline.engine.frames.failures import is_sparks  # it imports Spark's Python

    first = first_line(error)
    if is_sparks(error):
        return f"Spark cannot do this: {first}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return (
        f"{type(error).__name__}({first}): this is a fault of Strandline itself; "
        "run it again as `strandline --debug …` and report what that prints"
    )


def wants_traceback(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment requests tracebacks.

    >>> wants_traceback({}), wants_traceback({"STRANDLINE_TRACEBACK": "1"})
    (False, True)
    """
    return environment.get(TRACEBACK_VARIABLE, "") not in {"", "0"}


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
