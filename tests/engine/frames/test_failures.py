"""Failures of Spark and of the machine are raised as our errors, and their types say what the caller must do."""

from __future__ import annotations

import errno
from importlib import import_module

import pytest

from strandline.engine.frames.failures import SHOWN_MAX, as_ours, whose
from strandline.engine.frames.inline import NEGATIVE, REFUSING
from strandline.engine.session.causes import Cause
from strandline.errors import CollectionError, CorruptionError, Determinate, EvaluationError, Unavailable, Unsettled

py4j = import_module("py4j.protocol")  # PySpark brings it
IO = "java.io.IOException"
SPARKS = ("org.apache.spark.SparkException", "java.lang.Exception")
ANALYSIS = ("org.apache.spark.sql.AnalysisException", "java.lang.Exception")
AWAITED = Cause(SPARKS, "Exception thrown in awaitResult: ")
ABORTED = Cause(SPARKS, "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: …")
FILE = Cause(
    SPARKS,
    "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/x. SQLSTATE: KD001",
    "FAILED_READ_FILE.NO_HINT",
    "KD001",
)
LOST = Cause(SPARKS, "Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)")
FULL = Cause(("java.io.FileNotFoundException", IO), "/data/blob/s-1/part.parquet (No space left on device)")
SPILLED = Cause(("org.apache.hadoop.fs.FSError", "java.lang.Error"), "java.io.IOException: No space left on device")
NO_SPACE = Cause((IO,), "No space left on device")
REFUSED = Cause(("java.net.ConnectException", "java.net.SocketException", IO), "refused")
UNANSWERED = Cause(
    ("org.apache.hadoop.fs.s3a.AWSApiCallTimeoutException", "java.net.SocketTimeoutException", IO), "s3a"
)
PARQUET = Cause(
    ("org.apache.parquet.io.ParquetDecodingException", "java.lang.RuntimeException"), "page", evaluating=True
)
JSON = Cause(("com.fasterxml.jackson.core.JsonParseException", "com.fasterxml.jackson.core.JacksonException", IO), "{")
STORIES = [
    "No space left on device",
    "java.net.ConnectException: x",
    "[FAILED_READ_FILE.NO_HINT] x SQLSTATE: KD001",
    "two\nlines",
    NEGATIVE,
    "ExecutorLostFailure",
    "x" * 10_000,
]


def of_a_row(condition: str, state: str, said: str, **parameters: str) -> Cause:
    """Return what Spark throws at a value."""
    message = f"[{condition}] The value '{said}' is odd. SQLSTATE: {state}\n== SQL (line 1) ==\nCAST(s AS INT)"
    return Cause(("org.apache.spark.SparkRuntimeException",), message, condition, state, parameters, evaluating=True)


DIVIDED = of_a_row("DIVIDE_BY_ZERO", "22012", "0")
COUNT = of_a_row("INVALID_FORMAT.MISMATCH_INPUT", "42601", "-1", format=REFUSING, input=f"{NEGATIVE} -1: {{}}")
LEGACY = Cause(("java.lang.RuntimeException",), "[_LEGACY_ERROR_TEMP_3243] bounds", "_LEGACY_ERROR_TEMP_3243", "")
PYTHON = Cause(
    ("org.apache.spark.api.python.PythonException", "java.lang.RuntimeException"),
    "Traceback (most recent call last):\n  File 'x', line 1\n    f()\nValueError: no shop\n",
)


@pytest.mark.parametrize(
    ("chain", "ours", "text"),
    [
        ([LOST], Unsettled, "executor 1 exited"),
        ([AWAITED, ABORTED, FILE, PARQUET], CorruptionError, "fails its check: Encountered error while reading file"),
        ([AWAITED, ABORTED, DIVIDED], EvaluationError, "DIVIDE_BY_ZERO: The value '0' is odd."),
        ([of_a_row("USER_RAISED_EXCEPTION", "P0001", "no such shop")], EvaluationError, "no such shop"),
        ([of_a_row("SCALAR_SUBQUERY_TOO_MANY_ROWS", "21000", "2")], EvaluationError, "TOO_MANY_ROWS"),
        ([of_a_row("DUPLICATED_MAP_KEY", "23505", "a")], EvaluationError, "DUPLICATED_MAP_KEY"),
        ([of_a_row("MALFORMED_RECORD_IN_PARSING", "22023", "{"), JSON], EvaluationError, "MALFORMED_RECORD"),
        ([Cause(("java.lang.RuntimeException",), "loading", evaluating=True), JSON], EvaluationError, "loading"),
        ([Cause(("java.lang.IllegalArgumentException",), "by 0", evaluating=True)], EvaluationError, "by 0"),
        ([Cause(ANALYSIS, "[X] It ends.", "INVALID_FORMAT.ESC", "42601", evaluating=True)], EvaluationError, "ends."),
        ([ABORTED, LEGACY], Unsettled, "bounds"),
        ([AWAITED, COUNT], CollectionError, f"{NEGATIVE} -1"),
        ([ABORTED, PYTHON], EvaluationError, "a function raised ValueError: no shop"),
        ([ABORTED, FILE, UNANSWERED], Unavailable, "a store does not answer Spark"),
        ([REFUSED], Unavailable, "a store does not answer Spark"),
        ([ABORTED, FULL], Determinate, "No space left on device: /data/blob/s-1/part.parquet"),
        ([ABORTED, FILE, NO_SPACE], Determinate, "No space left on device"),
        ([ABORTED, SPILLED, NO_SPACE], Determinate, "No space left on device"),
        ([ABORTED, Cause(("java.io.EOFException", IO), "end")], Unavailable, "may succeed"),
        (
            [Cause(("java.lang.StackOverflowError", "java.lang.VirtualMachineError"), "")],
            Unavailable,
            "tried again: java.lang.StackOverflowError",
        ),
        ([Cause(SPARKS, "Job 5 cancelled", "SPARK_JOB_CANCELLED", "XXKDA")], Unavailable, "cancelled"),
    ],
)
def test_whose_move_it_is_follows_from_what_failed(chain: list[Cause], ours: type[Exception], text: str) -> None:
    """Damage: `strandline run` ends with a traceback for a full disk or a lost executor, and again when restarted."""
    found = whose(chain)
    assert type(found) is ours
    assert text in str(found)
    assert "SQLSTATE" not in str(found), "people are told what is wrong, not its number"
    assert "\n" not in str(found)
    assert not str(found).endswith((" ", ":")), "what says nothing is not announced"


@pytest.mark.parametrize("said", STORIES)
def test_the_words_of_a_row_never_tell_the_story(said: str) -> None:
    """Damage: a stranger's row stops a view, and makes its owner look for a full disk."""
    thrown = of_a_row("CAST_INVALID_INPUT", "22018", said, expression=said)
    unknown = Cause(("com.acme.Odd", "java.lang.RuntimeException"), said, evaluating=True)
    silent = Cause(SPARKS, f"Job aborted due to stage failure: Task 0 failed: com.acme.Odd: {said}")
    for chain in ([thrown], [AWAITED, ABORTED, thrown], [ABORTED, unknown]):
        assert type(whose(chain)) is EvaluationError
        assert len(str(whose(chain))) < SHOWN_MAX + 200
    assert type(whose([silent])) is Unsettled, "the rows are tried apart"


def test_a_refused_text_and_a_bug_are_not_translated() -> None:
    """Damage: a mistake of ours is tried again for ever, and no traceback shows where it is."""
    assert as_ours(TypeError("an int is no str")) is None
    assert whose([Cause(ANALYSIS, "[UNRESOLVED_COLUMN] a", "UNRESOLVED_COLUMN", "42703")]) is None


@pytest.mark.parametrize(
    ("error", "ours", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), Determinate, "No space left on device"),
        (py4j.Py4JNetworkError("Answer from Java side is empty"), Unavailable, "its JVM has ended"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Unavailable, "its JVM has ended"),
        (py4j.Py4JError("Target Object ID does not exist for this gateway: o42"), Unavailable, "may succeed"),
    ],
)
def test_what_is_thrown_outside_of_the_jvm_has_a_type_of_ours(
    error: Exception, ours: type[Exception], text: str
) -> None:
    """Damage: a JVM that is gone looks like a bug, and `strandline run` ends with a traceback."""
    found = as_ours(error)
    assert type(found) is ours
    assert text in str(found)
