"""Every error that Strandline raises, and what to do after it.

    StrandlineError
    ├── StoreError              a call to Blob or Consensus did not answer as it should
    │   ├── Determinate         it did not happen and never will: the caller may retry
    │   └── Indeterminate       it may have happened or may still happen: look before you retry
    ├── InvalidUsage            the calling code is wrong: fix the call
    ├── ConfigError             the machine or the configuration is wrong: the operator must act
    │   ├── NothingStored       the location or its consensus is not there yet
    │   ├── Held                another process writes the location, or is about to: wait for it, or stop it
    │   └── ExecutorsGone       Spark has no executor and gets none: start the process again, or mend the cluster
    ├── DefinitionError         the SQL of a definition is wrong: its author must fix it (has a position if known)
    │   └── RepeatedColumn      two of its columns have one name
    ├── AsOfError               the time asked for cannot be read: ask for another one
    ├── CollectionError         the collection holds errors at this time: mend the rows that caused them
    │   └── EvaluationError     an expression has no value for some row; the row is not known
    ├── SourceError             upstream broke its promise (a file changed or vanished): the operator must act
    ├── FencedError             a newer writer has taken over: stop
    ├── CorruptionError         a stored object is not what was stored: restore it, or repair from a replica
    ├── ProtocolViolation       a driver or runtime sent what the protocol forbids: a bug on that side
    ├── Stopped                 the client was stopped: open another one
    └── Unavailable             a dependency does not answer in time: retry later
        ├── Unsettled           what failed may be a dependency, or a row: see which, or retry later
        ├── NoExecutor          jobs were cancelled that waited for executors: retry when there is one
        ├── Silent              a process is there and does not answer
        └── Disconnected        the connection to a process broke

An expected outcome (a compare-and-set that lost, an upper that moved) is a value, never one of these.  All of them can
be pickled, because they cross Spark's processes.  ``Determinate`` is an allowlist: any call that is not known to have
failed is ``Indeterminate``.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


class StrandlineError(Exception):
    """Any error of this package.  ``str(error)`` is one sentence: what happened, to which object, and what to do."""


class StoreError(StrandlineError):
    """A call to Blob or Consensus failed."""


class Determinate(StoreError):
    """The call did not take effect and never will."""


class Indeterminate(StoreError):
    """The call may have taken effect or may still do so: look for your own witness before you try again."""


class InvalidUsage(StrandlineError):
    """The caller broke the contract of the function; nothing was changed."""


class ConfigError(StrandlineError):
    """The configuration or the machine does not allow this; the message names the setting or the missing thing."""


class ExecutorsGone(ConfigError):
    """Spark has had no executor for as long as the configuration allows; the supervisor of this process restarts it."""


class NothingStored(ConfigError):
    """The store that must exist does not exist; the open created nothing."""


class Held(ConfigError):
    """A living process of this machine holds the location, or opens it; the message names the process."""


@dataclass(frozen=True)
class Position:
    """A position in a text; lines and columns count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"

    def after(self, start: Position) -> Position:
        """Translate a position in an excerpt that begins at ``start`` to a position in the whole text.

        >>> str(Position(1, 5).after(Position(3, 10))), str(Position(2, 5).after(Position(3, 10)))
        ('line 3, column 14', 'line 4, column 5')
        """
        column = self.column + start.column - 1 if self.line == 1 else self.column
        return Position(self.line + start.line - 1, column)


class DefinitionError(StrandlineError):
    """A definition cannot be accepted.  ``position`` is the place in its text, if known."""

    def __init__(self, message: str, position: Position | None = None) -> None:
        super().__init__(message, position)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return self.message if self.position is None else f"{self.message} (at {self.position})"


class RepeatedColumn(DefinitionError):
    """Two columns have one name.  ``place`` is that of the second, counted from 0."""

    def __init__(self, name: str, place: int) -> None:
        super().__init__(f"column {name!r} occurs twice (names are compared without case)")
        self.args = (name, place)
        self.name = name
        self.place = place


class AsOfError(StrandlineError):
    """The time asked for is before ``since`` (history is compacted away) or not before ``upper`` (not yet known)."""


class CollectionError(StrandlineError):
    """The collection's error half is not empty at the time read; the message names the first errors.

    ``errors`` are the first of them, each as the error half holds it (a source's: ``file``, ``line``, ``reason``,
    ``raw``; a view's: ``collection``, ``expression``, ``row``).  ``since`` is the first time of the unbroken run of
    times with errors; if history is compacted, the first time that is still readable.
    """

    def __init__(self, message: str, errors: Sequence[Mapping[str, object]] = (), since: int | None = None) -> None:
        super().__init__(message, errors, since)
        self.message = message
        self.errors = errors
        self.since = since

    def __str__(self) -> str:
        return self.message


class EvaluationError(CollectionError):
    """An expression has no value for some row; the message says why, but not which row."""


class SourceError(StrandlineError):
    """Upstream broke its promise: announced data changed or vanished before it was durable here."""


class FencedError(StrandlineError):
    """A writer of a newer epoch has taken over; this one changed nothing and must stop."""


class CorruptionError(StrandlineError):
    """A stored object fails its check; the message names the object and what was expected."""


class ProtocolViolation(StrandlineError):
    """The current state does not allow the message received; the error's text names both."""


class Stopped(StrandlineError):
    """The client was stopped and takes no new work; the work it took before is done."""


class Unavailable(StrandlineError):
    """A dependency did not answer before the deadline; nothing acknowledged is lost, try again later."""


class NoExecutor(Unavailable):
    """Spark has no executor, so the jobs of this call were cancelled; nothing was changed, try again later."""


class Unsettled(Unavailable):
    """Spark failed, and says neither that a store or the machine did nor that an expression has no value for a row.

    Where rows can be tried apart, that decides it.
    """


class Silent(Unavailable):
    """A process is there and does not answer: it is stopped, or its machine is too busy; try again later."""


class Disconnected(Unavailable):
    """The connection to another process was cut, or cannot be made; what was under way may or may not have arrived."""


WAITS: Final = "it waits for "
"""How a sentence begins that says of an item what it waits for: it goes on by itself once that is done or there."""


def is_wait(said: str) -> bool:
    """Return whether a sentence about an item says that it waits, and for what; else it is a problem, or a notice.

    >>> is_wait("it waits for 'orders'"), is_wait("the store does not answer")
    (True, False)
    """
    return said.startswith(WAITS)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type's name: other lines may show a client's settings."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def reason(error: BaseException) -> str:
    """Return one sentence about what failed, for a list of problems.

    An error that is not a `StrandlineError` is named by its type: it is a bug, in Strandline or in a library.

    >>> reason(Unavailable("the store does not answer")), reason(KeyError("a"))
    ('the store does not answer', "unexpected KeyError: 'a'")
    """
    if isinstance(error, StrandlineError):
        given = next(iter(error.args), "")  # the sentence itself where it is the whole: that knows what it tells of
        return (given if isinstance(given, str) and given == str(error) else str(error)) or type(error).__name__
    first = next(iter(str(error).splitlines()), "")
    return f"unexpected {type(error).__name__}: {first}" if first else f"unexpected {type(error).__name__}"


def is_full(error: OSError) -> bool:
    """Return whether a call failed because there was no space for it, on the disk or within a quota."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}
