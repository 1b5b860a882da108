"""Working: a call that takes long is made beside the terminal, so that Ctrl-C reaches the shell."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from strandline.client import Outcome
from strandline.errors import Unavailable
from strandline.instance.carriers.exchange import start_thread

T = TypeVar("T")
E_co = TypeVar("E_co", covariant=True)

_LOOK_S: Final = 0.1
"""So often the shell looks whether Ctrl-C was pressed."""
_LOOKS: Final = 10
"""After so many looks the call is shown to run."""
LET_GO_S: Final = 1.5
"""For so long a call that was cancelled may take to end; after that it is left alone."""


class Stream(Protocol[E_co]):
    """What comes as it comes, until it is closed."""

    def __iter__(self) -> Iterator[E_co]:
        """Yield it."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@dataclass(frozen=True, slots=True)
class _Came(Generic[T]):
    """Something has come."""

    value: T


@dataclass(frozen=True, slots=True)
class _Ended:
    """Nothing more comes; ``error``: because of that."""

    error: BaseException | None


def interruptible(
    call: Callable[[], T], cancel: Callable[[], object], shown: Callable[[], AbstractContextManager[object]]
) -> T:
    """Make ``call`` in a thread of its own, and return what it returns.  ``shown`` is entered if it takes a while.

    Ctrl-C calls ``cancel``, and raises `KeyboardInterrupt` when the call has ended, or will not.
    """
    outcome, looks = Outcome(call), 0
    start_thread(outcome.make, "shell")
    try:
        with ExitStack() as entered:
            while True:
                try:
                    return outcome.result(_LOOK_S)
                except queue.Empty:
                    looks += 1
                    if looks == _LOOKS:
                        entered.enter_context(shown())
    except KeyboardInterrupt:
        _let_go(cancel, outcome)
        raise


def within(seconds: float, call: Callable[[], T]) -> T:
    """Make ``call`` in a thread of its own, and return what it returns; one that takes longer is left alone.

    A process waits at its end for the threads of a pool, and a server that was killed may never answer a call.

    Raises what the call raises; `Unavailable` if it takes longer than ``seconds``.
    """
    outcome = Outcome(call)
    start_thread(outcome.make, "shell")
    try:
        return outcome.result(seconds)
    except queue.Empty:
        raise Unavailable(f"there was no answer within {seconds:g} s") from None


def followed(stream: Stream[T]) -> Iterator[T]:
    """Yield what comes, until Ctrl-C, which ends the stream.  Raises what the stream raises."""
    found: queue.SimpleQueue[_Came[T] | _Ended] = queue.SimpleQueue()

    def read() -> None:
        try:
            for each in stream:
                found.put(_Came(each))
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            found.put(_Ended(error))
        else:
            found.put(_Ended(None))

    start_thread(read, "shell")
    with closing(stream), suppress(KeyboardInterrupt):
        while True:
            try:
                event = found.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            match event:
                case _Came(value):
                    yield value
                case _Ended(None):
                    return
                case _Ended(BaseException() as error):
                    raise error


def _let_go(cancel: Callable[[], object], outcome: Outcome[T]) -> None:
    cancelling = Outcome(cancel)
    start_thread(cancelling.make, "shell")
    with suppress(Exception, KeyboardInterrupt):  # how it ends is of no interest now
        outcome.result(LET_GO_S)
