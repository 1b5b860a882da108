"""Translate errors of Spark, and of the machine under it, into our own.

The remedy must not depend on the component that failed.  The caller tries again after a full disk or a lost executor,
as after an error of a store.  It does not after a damaged part, or a row that fails to evaluate.

See `strandline/errors.py` (whose move it is).
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.errors import IllegalArgumentException

from strandline.engine.frames.inline import NEGATIVE
from strandline.errors import (
    CollectionError,
    CorruptionError,
    Determinate,
    EvaluationError,
    StrandlineError,
    Unavailable,
)

_UNREADABLE: Final = re.compile(r"\[FAILED_READ_FILE[A-Z_.]*\]\s*([^\n]*)")
_NEGATIVE: Final = re.compile(re.escape(NEGATIVE) + r"[^\n]*?(?=' of the type \"STRING\"|\n|$)")
_DATA: Final = re.compile(r"\[([A-Z][A-Z0-9_.]*)\]\s*([^\n]*?)\s*SQLSTATE: (?:2[123]|54|P0)")
"""What is a function of the rows.  SQLSTATE class 22 is the data exception: a value that the expression has no answer
for; 21 a subquery of more rows than one, 23 a key that is there twice, 54 a result that is too large, P0 what the query
raises itself."""
_BARE: Final = re.compile(
    r"java\.(?:lang\.(?:Arithmetic|NumberFormat|IllegalArgument)|util\.(?:regex\.)?\w*(?:Format|Syntax)\w*"
    r"|time\.(?:\w+\.)*\w+)Exception:?[^\n]*|javax\.xml\.[\w.]*Exception:?[^\n]*"
    r"|\[(?:_LEGACY_ERROR_TEMP_\d+|INCONSISTENT_BEHAVIOR_CROSS_VERSION[A-Z_.]*)\][^\n]*"
)
"""The same, where Spark lets Java's own exception through, or has given its error no class yet."""
_PYTHON: Final = re.compile(
    r"thrown from the Python worker[^\n]*(?:\s*^Traceback[^\n]*\n(?:[ \t][^\n]*\n)*(\S[^\n]*))?", re.MULTILINE
)
"""What a function of the caller's raised for a row."""
_CONSTANT: Final = re.compile(r"\[INVALID_FORMAT\b")
"""A constant that Spark looks at as late as it does at a row's values."""
_NO_SPACE: Final = re.compile(r"(?:(/[^\s():]+)[\s():]*)?(No space left on device)")
"""The operating system's words, behind the file's path where Java says it."""
_SILENT: Final = re.compile(
    r"(?:org\.apache\.hadoop\.(?:fs\.s3a\.(?:AWS(?:ApiCallTimeout|NoResponse|ServiceThrottled|Status500)"
    r"|HttpChannelEOF)|net\.ConnectTimeout)|java\.net\.(?:SocketTimeout|Socket|Connect|NoRouteToHost|UnknownHost))"
    r"Exception:?[^\n]*"
)
"""A store that Spark's tasks could not reach, or that gave them no answer: what a file holds was not seen."""
_THROWN: Final = re.compile(r"^: ([^\n]*)", re.MULTILINE)
"""What was thrown, in py4j's report of it."""
_ADVICE: Final = re.compile(r' If necessary set "?spark\.sql\.ansi\.enabled"? to "?false"? to bypass this error\.')
"""What Spark advises and an environment does not let its users do."""
_STATE: Final = re.compile(r"\s*SQLSTATE:.*")


def as_ours(error: Exception) -> StrandlineError | None:
    """Return our error for a failure of Spark or of the machine; None for any other exception: a bug.

    What is wrong with stored rows is known by its text, because the class depends on the call: PySpark's own from most,
    py4j's from ``toArrow``.  Trap: py4j asks the JVM for an error's text, so without a JVM there is none.
    """
    py4j = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "py4j.protocol"}
    if "Py4JNetworkError" in py4j or isinstance(error, ConnectionError):
        return Unavailable("Spark does not answer: its JVM has ended or was stopped; open the environment again")
    if isinstance(error, OSError):  # nothing names what a failed call has written
        return Determinate(f"the machine refused a file: {error}")
    text = str(error)
    if found := _NEGATIVE.search(text):
        return CollectionError(_STATE.sub("", found[0]))
    if (found := _NO_SPACE.search(text)) and not _DATA.search(text):  # a row may hold these words
        return Determinate(f"the machine refused a file: {found[2]}{f': {found[1]}' if found[1] else ''}")
    if (found := _SILENT.search(text)) and not _DATA.search(text):
        return Unavailable(f"a store does not answer Spark: {found[0]}")
    if found := _UNREADABLE.search(text):
        return CorruptionError(f"a file fails its check: {_STATE.sub('', found[1])}")
    if found := _DATA.search(text):
        return EvaluationError(f"a row cannot be evaluated: {found[1]}: {_ADVICE.sub('', found[2])}")
    if found := _BARE.search(text):
        return EvaluationError(f"a row cannot be evaluated: {found[0]}")
    if found := _PYTHON.search(text):
        return EvaluationError(f"a row cannot be evaluated: a function raised {found[1] or 'an exception'}")
    if isinstance(error, IllegalArgumentException) or _CONSTANT.match(text):
        return EvaluationError(f"a row cannot be evaluated: {_STATE.sub('', text.splitlines()[0])}")
    if py4j:
        return Unavailable(f"Spark failed, and may succeed when it is tried again: {thrown(error)}")
    return None


def thrown(error: BaseException) -> str:
    """Return what the JVM threw, in one line, without Spark's error class and state code."""
    text = str(error)
    found = _THROWN.search(text)
    first = found[1] if found else next(iter(text.strip().splitlines()), "")
    return _STATE.sub("", re.sub(r"^\[[A-Z_.0-9]+\]\s*", "", first))


def is_sparks(error: BaseException) -> bool:
    """Return whether an error comes from Spark, or from its bridge, which passes on what the JVM threw."""
    return any(kind.__module__.startswith(("pyspark.", "py4j.")) for kind in type(error).__mro__)
