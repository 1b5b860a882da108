"""Errors of Spark and of the machine translated into our own, and the frames that are handed out to users.

The remedy must not depend on the component that failed.  The caller retries after a full disk or a lost executor, as
after an error of a store.  It does not retry after a damaged part, or a row that fails to evaluate.  See
`strandline/errors.py` (whose move it is).

The classes of what was thrown, Spark's conditions and their SQLSTATEs (`causes`) decide whose error it is: from the
outside in, the first that is known decides.  A message decides nothing, because it quotes the rows.  So a row that
holds the words of a full disk is a row that fails.  Rows with an unknown error are tried apart (`Unsettled`).

`hand_out` gives users plain DataFrames that hold what they read for as long as they live.
"""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import ismethod
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame

from strandline.engine.frames.inline import NEGATIVE, REFUSING
from strandline.engine.session.causes import Cause, behind, causes
from strandline.errors import (
    AsOfError,
    CollectionError,
    CorruptionError,
    Determinate,
    EvaluationError,
    StrandlineError,
    Unavailable,
    Unsettled,
)

_ROWS: Final = ("21", "22", "23", "39", "54", "P0")
"""The classes of SQLSTATE that say that it is a function of the rows: 22 is the data exception, a value that an
expression has no answer for; 21 a subquery of more rows than one, 23 a key that is there twice, 39 a function that
raised, 54 a result that is too large, P0 what the query raises itself."""
_FILE: Final = "FAILED_READ_FILE"
_SPARKS: Final = "org.apache.spark.SparkException"
_FUNCTION: Final = "org.apache.spark.api.python.PythonException"
_ANALYSIS: Final = "org.apache.spark.sql.AnalysisException"
_INPUT: Final = ("java.io.IOException", "java.io.UncheckedIOException", "org.apache.hadoop.fs.FSError")
"""What the operating system or a network refused."""
_OF_VALUES: Final = (
    "com.fasterxml.jackson.core.JacksonException",
    "com.fasterxml.jackson.core.JsonProcessingException",
    "java.io.CharConversionException",
    "java.io.UTFDataFormatException",
    "java.io.UnsupportedEncodingException",
    "java.nio.charset.CharacterCodingException",
    "java.util.zip.ZipException",
)
"""Those of them that parsers throw at a value."""
_SILENT: Final = (
    "java.net.SocketException",
    "java.net.SocketTimeoutException",
    "java.net.UnknownHostException",
    "org.apache.hadoop.fs.s3a.AWSNoResponseException",
    "org.apache.hadoop.fs.s3a.AWSServiceThrottledException",
    "org.apache.hadoop.fs.s3a.AWSStatus500Exception",
    "org.apache.hadoop.fs.s3a.HttpChannelEOFException",
)
"""Those of a store that Spark's tasks could not reach, or that gave them no answer: what a file holds was not seen."""
_MACHINE: Final = (
    "java.lang.InterruptedException",
    "java.lang.LinkageError",
    "java.lang.VirtualMachineError",
    "java.util.concurrent.CancellationException",
    "java.util.concurrent.TimeoutException",
    "org.apache.spark.TaskKilledException",
)
"""What ended a job that no row and no file ended."""
_CANCELLED: Final = "SPARK_JOB_CANCELLED"
_NO_SPACE: Final = re.compile(r"(?:(/.*?)[\s:]*)?\(?(No space left on device)\)?")
"""The whole of what Java says, behind the file's path in some of its classes."""
_ADVICE: Final = re.compile(r"(?<=[.!?] )(?:[^.]|\.(?! ))*spark\.sql\.(?:[^.]|\.(?! ))*(?:\. |$)")
"""A sentence, not the first, about a setting of Spark: an environment does not let its users change one."""
_STATE: Final = re.compile(r"\s*SQLSTATE:.*", re.DOTALL)
_CLASS: Final = re.compile(r"^\[[A-Z_.0-9]+\]\s*")
T = TypeVar("T")
SHOWN_MAX: Final = 600
"""So many characters of a message are shown: it may quote a row of any size."""


def as_ours(error: Exception) -> StrandlineError | None:
    """Return our error for a failure of Spark or of the machine; None for any other exception: a bug."""
    py4j = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "py4j.protocol"}
    if "Py4JNetworkError" in py4j or isinstance(error, ConnectionError):
        return _ended()
    if isinstance(error, OSError):  # nothing names what a failed call has written
        return Determinate(f"the machine refused a file: {error}")
    try:
        chain = causes(error)
    except Exception as lost:
        if is_sparks(lost) or isinstance(lost, ConnectionError):
            return _ended()
        raise
    if chain:
        return whose(chain)
    return Unavailable(f"Spark failed, and may succeed when it is tried again: {thrown(error)}") if py4j else None


def translated(call: Callable[[], T]) -> T:
    """Return what a call returns, and raise what it raises as our error (`as_ours`), if it is one."""
    try:
        return call()
    except Exception as error:
        ours = as_ours(error)
        if ours is None:
            raise
        raise ours from error


def whose(chain: Sequence[Cause]) -> StrandlineError | None:
    """Return our error for what was thrown, outermost first; None if it is Spark's refusal of a text: a bug of ours."""
    file: Cause | None = None
    for cause in chain:
        if cause.condition.startswith(_FILE) and cause.is_a(_SPARKS):
            file = cause
        elif file is None and (found := _of_rows(cause)) is not None:
            return found
        elif cause.is_a(*_INPUT) and not cause.is_a(*_OF_VALUES):
            found = _refused(cause)
            if found is not None:
                return found
            if file is None and cause is chain[-1]:
                return Unavailable(f"Spark failed, and may succeed when it is tried again: {_shown(cause)}")
        elif cause.condition == _CANCELLED or cause.is_a(*_MACHINE):
            return Unavailable(f"Spark failed, and may succeed when it is tried again: {_shown(cause)}")
    if file is not None:
        return CorruptionError(f"a file fails its check: {_sentence(file)}")
    evaluated = next((each for each in chain if each.evaluating), None)
    if evaluated is not None:
        return EvaluationError(f"a row cannot be evaluated: {_shown(evaluated)}")
    if chain[0].is_a(_ANALYSIS):
        return None
    return Unsettled(f"Spark failed, and may succeed when it is tried again: {_shown(chain[-1])}")


def _of_rows(cause: Cause) -> StrandlineError | None:
    """Return our error if this says that it is a function of the rows."""
    if cause.parameters.get("format") == REFUSING and (said := cause.parameters.get("input", "")).startswith(NEGATIVE):
        return CollectionError(_line(said))
    if cause.is_a(_FUNCTION):
        return EvaluationError(f"a row cannot be evaluated: a function raised {_raised(cause)}")
    if cause.state[:2] in _ROWS:
        return EvaluationError(f"a row cannot be evaluated: {_shown(cause)}")
    return None


def _refused(cause: Cause) -> StrandlineError | None:
    """Return our error if this says what the operating system or a network refused."""
    if cause.is_a(*_SILENT):
        return Unavailable(f"a store does not answer Spark: {_shown(cause)}")
    if found := _NO_SPACE.fullmatch(cause.message.strip()):
        return Determinate(f"the machine refused a file: {found[2]}{f': {found[1]}' if found[1] else ''}")
    return None


def _raised(cause: Cause) -> str:
    """Return what a function of the caller's raised: what stands in its traceback behind the last frame."""
    lines = cause.parameters.get("traceback", cause.message).strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.lstrip().startswith("File ")]
    below = lines[frames[-1] + 1 :] if frames else lines
    return _line(next((line for line in below if line[:1].strip()), "")) or "an exception"


def _ended() -> StrandlineError:
    return Unavailable("Spark does not answer: its JVM has ended or was stopped; open the environment again")


def _shown(cause: Cause) -> str:
    """Return a cause for people, in one line: its condition, or its class, and its message."""
    name = cause.condition or (cause.classes[0] if cause.classes else "")
    said = _sentence(cause)
    return f"{name}: {said}" if name and said else name or said


def _sentence(cause: Cause) -> str:
    """Return a message in one line, without the condition, the state and the text of the query that follow it."""
    said = cause.message
    if cause.condition:
        said = _CLASS.sub("", said)
        before, state, _ = said.rpartition(f"SQLSTATE: {cause.state}")
        said = before if state and cause.state else said
    return _unadvised(said)


def _unadvised(message: str) -> str:
    """Return a message in one line, without what Spark advises to set.

    >>> _unadvised('The value 3 cannot be cast. Use `try_cast`. If necessary set "spark.sql.ansi.enabled" to "false".')
    'The value 3 cannot be cast. Use `try_cast`.'
    """
    return _line(_ADVICE.sub("", " ".join(message.split())))


def _line(message: str) -> str:
    r"""Return a message in one line that is not too long.

    >>> _line(" two\nlines ")
    'two lines'
    """
    line = " ".join(message.split())
    return line if len(line) <= SHOWN_MAX else f"{line[:SHOWN_MAX]}…"


def thrown(error: BaseException) -> str:
    """Return what the JVM threw, in one line, without Spark's error class and state code: for people."""
    chain = causes(error)
    if chain:
        return _sentence(chain[0])
    return _unadvised(_STATE.sub("", _CLASS.sub("", next(iter(str(error).strip().splitlines()), ""))))


def is_sparks(error: BaseException) -> bool:
    """Return whether an error comes from Spark, or from its bridge, which passes on what the JVM threw."""
    return any(kind.__module__.startswith(("pyspark.", "py4j.")) for kind in type(error).__mro__)


GONE: Final = "FAILED_READ_FILE.FILE_NOT_EXIST"
"""What Spark calls a file that was there when the read was planned."""


def hand_out(frame: DataFrame, check: Callable[[], None], give_back: Callable[[], None]) -> DataFrame:
    """Return ``frame`` for a caller: ``check`` is called before each use, ``give_back`` after the last.

    That is called once, by whichever thread collects the frame.

    Once its environment is closed a frame refuses to be used, and so do the frames that its methods gave.  What was
    derived otherwise (a grouping, a view) is not stopped: it reads the right rows, or fails because a part is not
    there.
    """
    own: Any = held_until_unused(frame.select("*"), give_back)
    own._strandline_check = check  # noqa: SLF001  # ours
    own.__class__ = _checked(type(frame))
    found: DataFrame = own
    return found


def held_until_unused(frame: DataFrame, give_back: Callable[[], object]) -> DataFrame:
    """Return ``frame``, which nothing else has yet, and call ``give_back`` once no frame derived from it is left.

    A frame and all frames that are derived from it share one session object, made for them (the same session of Spark
    behind it).  When Python collects the last of them, it collects that object too, and the hold is given back.  Trap:
    a join takes its session from its left side alone; the right side is held as long as its own frame lives.

    Why private names: PySpark has no public way to say which frames descend from which; ``_session`` is what a frame
    and its descendants share, in classic and Connect alike.
    """
    own: Any = frame
    own._session = copy.copy(frame.sparkSession)  # noqa: SLF001  # see above
    weakref.finalize(own._session, give_back)  # noqa: SLF001
    return frame


_kinds: Final[dict[type, type]] = {}


def _checked(kind: Any) -> Any:
    """Return the class of frames of ``kind`` that ask before they are used."""

    def asking(frame: Any, name: str) -> Any:
        if name.startswith("_"):
            return kind.__getattribute__(frame, name)
        check = object.__getattribute__(frame, "_strandline_check")
        check()
        found = kind.__getattribute__(frame, name)
        return _telling(found, check) if ismethod(found) else found

    if kind not in _kinds:
        _kinds[kind] = type(kind.__name__, (kind,), {"__getattribute__": asking, "__doc__": kind.__doc__})
    return _kinds[kind]


def _telling(method: Callable[..., Any], check: Callable[[], None]) -> Callable[..., Any]:
    """Return ``method`` of a frame.  Frames that it returns check too; a part that was deleted is an `AsOfError`."""

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        try:
            found = method(*args, **options)
        except Exception as error:
            if _is_gone(error):
                raise AsOfError("garbage collection has deleted what this frame reads; read it again") from error
            raise
        if isinstance(found, DataFrame) and type(found) not in _kinds.values():
            own: Any = found
            own._strandline_check = check  # noqa: SLF001  # ours
            own.__class__ = _checked(type(found))
        return found

    return call


def _is_gone(error: BaseException) -> bool:
    """Tell whether a part was not there, also where PySpark raised a warning about that in its place."""
    return any(thrown.condition == GONE for each in behind(error, hidden=True) for thrown in causes(each))
