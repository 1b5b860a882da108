"""Which error a connector's failure is, by the reason that it gave.

Our own drivers, when they are served, begin their last line with the class of the error.  Any other program says it in
its own words: then it is `Unavailable`, so that the task tries again, unless the words say that the session was fenced.
"""

from __future__ import annotations

from typing import Final

from strandline.errors import (
    ConfigError,
    CorruptionError,
    DefinitionError,
    FencedError,
    InvalidUsage,
    ProtocolViolation,
    StrandlineError,
    Unavailable,
)
from strandline.materialize.protocol.refusals import OTHER_OPTIONS
from strandline.materialize.wire.process.guard import NOT_STARTED
from strandline.problem import Problem, Stopped, Way

_CLASSES: Final = {
    kind.__name__: kind
    for kind in (
        ConfigError,
        CorruptionError,
        DefinitionError,
        FencedError,
        InvalidUsage,
        ProtocolViolation,
        Unavailable,
    )
}
NO_PROGRAM: Final = Problem(
    "connector-not-started",
    "connector {connector} could not be started when {when}: {why}",
    Stopped.ENDPOINT,
    (Way("install the connector's program where Strandline looks for it"), OTHER_OPTIONS),
)
_FENCED: Final = "fenced off"


def line(error: Exception) -> str:
    r"""Return the last line of a served driver that ends by an error; `failure` understands it.

    >>> line(DefinitionError("a column\nis missing")), line(KeyError("x"))
    ('DefinitionError: a column is missing', "KeyError: 'x'")
    """
    name = next((name for name, kind in _CLASSES.items() if isinstance(error, kind)), type(error).__name__)
    return f"{name}: {' '.join(str(error).split()) or name}"


def failure(connector: str, reason: str, status: int | None, while_: str) -> StrandlineError:
    """Return the error for a connector that ended.

    >>> failure("x", "ConfigError: no", 1, "Apply was sent"), failure("x", "", 137, "Flush was sent")
    (ConfigError('no'), Unavailable('connector x ended (status 137) when Flush was sent, without a word'))
    """
    name, _, text = reason.partition(": ")
    if name in _CLASSES and text:
        return _CLASSES[name](text)
    ended = f"connector {connector} ended ({'status unknown' if status is None else f'status {status}'})"
    said = f"{ended} when {while_}: {reason}" if reason else f"{ended} when {while_}, without a word"
    if _FENCED in reason.lower():
        return FencedError(said)
    if status == NOT_STARTED:
        return ConfigError(NO_PROGRAM.said(connector=connector, when=while_, why=reason or "without a word"))
    return Unavailable(said)
