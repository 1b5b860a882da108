"""Every error that Strandline raises, and whose move it is after one.

    StrandlineError
    ├── StoreError              a call to Blob or Consensus did not answer as it should
    │   ├── Determinate         it did not happen and never will: retry, if you like
    │   └── Indeterminate       it may have happened, or may yet: look before you retry
    ├── InvalidUsage            the calling code is wrong: fix the call
    ├── ConfigError             the machine or the configuration is wrong: the operator's move
    ├── DefinitionError         the SQL of a definition is wrong: its author's move (has a position where one is known)
    ├── AsOfError               the time asked for cannot be read: ask for another one
    ├── CollectionError         the collection holds errors at this time: mend the rows that caused them
    ├── SourceError             upstream broke its promise (a file changed or vanished): the operator's move
    ├── FencedError             a newer writer has taken over: stop
    ├── CorruptionError         a stored object is not what was stored: restore it, or repair from a replica
    ├── ProtocolViolation       a driver or runtime sent what the protocol forbids: a bug on that side
    ├── Stopped                 the client was stopped: open another one
    └── Unavailable             a dependency does not answer in time: retry later

An expected outcome (a compare-and-set that lost, an upper that moved) is a value, never one of these.  All of them
can be pickled, since they cross Spark's processes.  ``Determinate`` is an allowlist: whatever is not known to have
failed is ``Indeterminate``.

Source: design pages "persist" (errors are three-valued) and "the public face" (names of the public ones).
"""

from __future__ import annotations

from dataclasses import dataclass


class StrandlineError(Exception):
    """Any error of this package.  ``str(error)`` is one sentence: what happened, to which object, whose move it is."""


class StoreError(StrandlineError):
    """A call to Blob or Consensus failed."""


class Determinate(StoreError):
    """The call did not take effect and never will."""


class Indeterminate(StoreError):
    """The call may have taken effect, or may yet: look for your own witness before you try again."""


class InvalidUsage(StrandlineError):
    """The calling code broke the contract of what it called; nothing was changed."""


class ConfigError(StrandlineError):
    """The configuration or the machine does not allow this; the message names the setting or the missing thing."""


@dataclass(frozen=True)
class Position:
    """Where in a text: both from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"

    def after(self, start: Position) -> Position:
        """Return this position, of a text that begins at ``start`` of another, as one of the other.

        >>> str(Position(1, 5).after(Position(3, 10))), str(Position(2, 5).after(Position(3, 10)))
        ('line 3, column 14', 'line 4, column 5')
        """
        column = self.column + start.column - 1 if self.line == 1 else self.column
        return Position(self.line + start.line - 1, column)


class DefinitionError(StrandlineError):
    """A definition cannot be accepted.  ``position`` is where in its text, when that is known."""

    def __init__(self, message: str, position: Position | None = None) -> None:
        super().__init__(message, position)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return self.message if self.position is None else f"{self.message} (at {self.position})"


class AsOfError(StrandlineError):
    """The time asked for is before ``since`` (history is compacted away) or not before ``upper`` (not yet known)."""


class CollectionError(StrandlineError):
    """The collection's error half is not empty at the time read; the message names the first errors."""


class SourceError(StrandlineError):
    """Upstream broke its promise: what was announced changed or vanished before it was durable here."""


class FencedError(StrandlineError):
    """A writer of a newer epoch has taken over; this one changed nothing and must stop."""


class CorruptionError(StrandlineError):
    """A stored object fails its check; the message names the object and what was expected of it."""


class ProtocolViolation(StrandlineError):
    """A message came that the state it came in does not allow; the message names both."""


class Stopped(StrandlineError):
    """The client was stopped, and takes no new work; what it had taken is done."""


class Unavailable(StrandlineError):
    """A dependency did not answer before the deadline; nothing acknowledged is lost, try again later."""


def reason(error: BaseException) -> str:
    """Return one sentence that says what failed, for a list of problems.

    An error that is not ours is named by its type: it is a bug, here or in what we stand on.

    >>> reason(Unavailable("the store does not answer")), reason(KeyError("a"))
    ('the store does not answer', "unexpected KeyError: 'a'")
    """
    if isinstance(error, StrandlineError):
        return str(error) or type(error).__name__
    first = next(iter(str(error).splitlines()), "")
    return f"unexpected {type(error).__name__}: {first}" if first else f"unexpected {type(error).__name__}"
