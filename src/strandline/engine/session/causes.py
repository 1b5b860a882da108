"""What failed, and why: the exceptions of Python behind one, and what Spark's JVM threw, as values.

Each throwable of the JVM that reached Python comes with what caused it, and so on.

Whose error it is follows from these (`frames.failures`), and never from the words of a message: they quote the rows,
and a row may hold any words.  Py4J hands the throwable over; PySpark's own exceptions keep it.

Trap: Py4J asks the JVM for all of this, so a JVM that has ended meanwhile makes it raise what any call of Py4J raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark import SparkContext

DEPTH_MAX: Final = 24
"""A chain of causes is followed so far; a longer one goes in circles."""
_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions."
"""The package of Spark's expressions, and of the code that it makes for a query."""
_ANALYSIS: Final = "org.apache.spark.sql.catalyst.analysis."


@dataclass(frozen=True, slots=True)
class Cause:
    """One throwable.

    ``classes``: the name of its class, then of those that this extends.  ``condition``, ``state`` (the SQLSTATE) and
    ``parameters``: of Spark's error conditions; empty if it has none.  ``evaluating``: whether it was thrown while an
    expression was evaluated, or beneath the code that Spark made for a query.
    """

    classes: tuple[str, ...]
    message: str = ""
    condition: str = ""
    state: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    evaluating: bool = False

    def is_a(self, *names: str) -> bool:
        """Tell whether its class is one of ``names``, or extends one.

        >>> Cause(("java.net.ConnectException", "java.net.SocketException")).is_a("java.net.SocketException")
        True
        """
        return not set(names).isdisjoint(self.classes)


def behind(error: BaseException, *, hidden: bool = False) -> Iterator[BaseException]:
    """Yield ``error``, then what Python says it was raised for, and so on, each once.

    ``hidden``: also what an exception hides that was raised ``from None``: PySpark hides what the JVM threw.

    >>> try:
    ...     try:
    ...         raise KeyError("k")
    ...     except KeyError:
    ...         raise ValueError("v") from None
    ... except ValueError as error:
    ...     found = [[type(each).__name__ for each in behind(error, hidden=hidden)] for hidden in (False, True)]
    >>> found
    [['ValueError'], ['ValueError', 'KeyError']]
    """
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and not any(following is each for each in seen):
        yield following
        seen.append(following)
        context = None if following.__suppress_context__ and not hidden else following.__context__
        following = following.__cause__ or context


def causes(error: BaseException) -> tuple[Cause, ...]:
    """Return what the JVM threw, outermost first; nothing if ``error`` does not come from there.

    Raises what a call of Py4J raises if the JVM does not answer.
    """
    found: list[Cause] = []
    thrown = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while thrown is not None and len(found) < DEPTH_MAX:
        found.append(_cause(thrown))
        thrown = thrown.getCause()
    return tuple(found)


def _cause(thrown: Any) -> Cause:
    context: Any = SparkContext
    jvm = context._jvm  # noqa: SLF001 - no public call asks the JVM
    condition, state = "", ""
    parameters: Mapping[str, str] = {}
    if jvm.java.lang.Class.forName("org.apache.spark.SparkThrowable").isInstance(thrown):
        condition = jvm.PythonErrorUtils.getCondition(thrown) or ""
        if condition:
            state = jvm.PythonErrorUtils.getSqlState(thrown) or ""
            parameters = dict(jvm.PythonErrorUtils.getMessageParameters(thrown))
    # In one call, because a stack has a hundred frames.  It holds names of classes and methods, and nothing of a row.
    frames = jvm.scala.runtime.ScalaRunTime.stringOf(thrown.getStackTrace())
    evaluating = _EXPRESSIONS in frames and _ANALYSIS not in frames
    return Cause(_classes(thrown), thrown.getMessage() or "", condition, state, parameters, evaluating)


def _classes(thrown: Any) -> tuple[str, ...]:
    names: list[str] = []
    kind = thrown.getClass()
    while kind is not None:
        names.append(kind.getName())
        kind = kind.getSuperclass()
    return tuple(names)
