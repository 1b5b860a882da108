"""Failures of Spark and of the machine are raised as our errors, and their types say what the caller must do."""

from __future__ import annotations

import errno
from importlib import import_module

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException

from strandline.engine.frames.failures import as_ours
from strandline.errors import CollectionError, CorruptionError, Determinate, EvaluationError, Unavailable

py4j = import_module("py4j.protocol")  # PySpark brings it
LOST = """An error occurred while calling o42.toArrow.
: org.apache.spark.SparkException: Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
"""
DAMAGED = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/x. SQLSTATE: KD001"
FULL = """An error occurred while calling o42.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
Caused by: java.io.FileNotFoundException: /data/blob/s-1/part.parquet (No space left on device)
"""
UNANSWERED = (
    "An error occurred while calling o66.count.\n: org.apache.spark.SparkException: Job aborted\nCaused by: "
    "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/x. "
    "SQLSTATE: KD001\nCaused by: org.apache.hadoop.fs.s3a.AWSApiCallTimeoutException: open s3a://b/x: timeout"
)
SPILLED = "[FAILED_READ_FILE.NO_HINT] Encountered error\nCaused by: java.io.IOException: No space left on device"
WORDS = "[CAST_INVALID_INPUT] The value 'No space left on device' cannot be cast SQLSTATE: 22018"
DIVIDED = "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"
RAISED = "[USER_RAISED_EXCEPTION] no such shop SQLSTATE: P0001"
SEVERAL = "[SCALAR_SUBQUERY_TOO_MANY_ROWS] Scalar subquery returned more than one row. SQLSTATE: 21000"
NEGATIVE = (
    """[CAST_INVALID_INPUT] The value 'a row has the negative count -1: {"k":"it's"}' of the type "STRING" cannot """
)
PATTERN = "Caused by: java.util.regex.PatternSyntaxException: Unclosed group near index 1"
HINTED = (
    '[CAST_INVALID_INPUT] The value is malformed. If necessary set "spark.sql.ansi.enabled" to "false" to bypass this '
    "error. SQLSTATE: 22018"
)


@pytest.mark.parametrize(
    ("error", "ours", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), Determinate, "No space left on device"),
        (py4j.Py4JError(LOST), Unavailable, "executor 1 exited"),
        (py4j.Py4JNetworkError("Answer from Java side is empty"), Unavailable, "its JVM has ended"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Unavailable, "its JVM has ended"),
        (py4j.Py4JError(f"{LOST}{DAMAGED}"), CorruptionError, "fails its check"),
        (py4j.Py4JError(f"{LOST}{DIVIDED}"), EvaluationError, "Division by zero"),
        (py4j.Py4JError(f"{LOST}{RAISED}"), EvaluationError, "no such shop"),
        (py4j.Py4JError(f"{LOST}{SEVERAL}"), EvaluationError, "Scalar subquery returned more than one row"),
        (py4j.Py4JError(f"{LOST}Caused by: java.time.DateTimeException: too far"), EvaluationError, "too far"),
        (
            py4j.Py4JError(f"{LOST}Caused by: java.time.format.DateTimeParseException: no date"),
            EvaluationError,
            "no date",
        ),
        (py4j.Py4JError(f"{LOST}Caused by: java.util.IllegalFormatConversionException: d"), EvaluationError, "Format"),
        (py4j.Py4JError(f"{LOST}[_LEGACY_ERROR_TEMP_3243] Illegal boundaries"), EvaluationError, "Illegal boundaries"),
        (py4j.Py4JError(f"{LOST}{NEGATIVE}"), CollectionError, """a row has the negative count -1: {"k":"it's"}"""),
        (py4j.Py4JError(f"{LOST}{PATTERN}"), EvaluationError, "Unclosed group"),
        (py4j.Py4JError(f"{LOST}{HINTED}"), EvaluationError, "CAST_INVALID_INPUT: The value is malformed."),
        (py4j.Py4JError(f"{LOST}Caused by: javax.xml.transform.TransformerException: //["), EvaluationError, "//["),
        (IllegalArgumentException("Illegal sequence boundaries: 1 to 5 by 0"), EvaluationError, "1 to 5 by 0"),
        (
            AnalysisException("[INVALID_FORMAT.ESC_AT_THE_END] It ends. SQLSTATE: 42601"),
            EvaluationError,
            "ends.",
        ),
        (py4j.Py4JError(UNANSWERED), Unavailable, "a store does not answer Spark"),
        (py4j.Py4JError(WORDS.replace("No", "java.net.SocketException: no")), EvaluationError, "cannot be cast"),
        (py4j.Py4JError(FULL), Determinate, "No space left on device: /data/blob/s-1/part.parquet"),
        (py4j.Py4JError(SPILLED), Determinate, "No space left on device"),
        (py4j.Py4JError(WORDS), EvaluationError, "cannot be cast"),
    ],
)
def test_whose_move_it_is_follows_from_what_failed(error: Exception, ours: type[Exception], text: str) -> None:
    """Damage: `strandline run` ends with a traceback for a full disk or a lost executor, and again when restarted."""
    found = as_ours(error)
    assert type(found) is ours
    assert text in str(found)
    assert "ansi" not in str(found), "no statement of ours sets it"
    assert "the type" not in str(found)
    assert "\n" not in str(found)


def test_a_bug_is_not_translated() -> None:
    """Damage: a mistake of ours is tried again for ever, and no traceback shows where it is."""
    assert as_ours(TypeError("an int is no str")) is None
