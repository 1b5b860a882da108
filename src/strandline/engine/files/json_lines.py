"""JSON lines: each line is one object, whole, or an error.

Spark's own reader takes the first object of a line and says nothing of what follows it, and reads bytes that are no
text as replacement characters.  Here a line that holds anything but one object is a record that cannot be decoded.

This test needs no parser of our own: a line that is put between brackets, with and without one more element, is an
array of two and of one element iff it is exactly one value.

Source: design page "sources" (undecodable input goes to the error half; nothing is dropped silently).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.formats import DatedFile, FileFormat
from strandline.engine.files.file_paths import CORRUPT, PATH, decoding, load

_LINE: Final = "__line"
_FOUND: Final = "__found"
_BRACES: Final = 2
_BLANK: Final = r"^\s*$"


def decoded(session: SparkSession, files: Sequence[DatedFile], ddl: str, form: FileFormat) -> DataFrame:
    """Return the columns of ``ddl``, `CORRUPT` among them, and `PATH`: a row a line that is not blank."""
    text = load(session.read, "text", files).select(
        F.col("value").alias(_LINE), F.col("_metadata.file_path").alias(PATH)
    )
    parsed = text.where(~F.col(_LINE).rlike(_BLANK)).withColumn(_FOUND, F.from_json(_LINE, ddl, decoding(form)))
    fields = parsed.select(f"{_FOUND}.*", _LINE, PATH)
    broken = F.coalesce(F.col(CORRUPT), F.when(~one_value(F.col(_LINE)), F.col(_LINE)))
    return fields.withColumn(CORRUPT, broken).drop(_LINE)


def one_value(line: Column) -> Column:
    """Return whether a line that begins with a JSON object holds nothing else, and is text.

    The longer test is made only where braces leave it open.
    """
    trimmed = F.trim(line)
    flat = (F.length(trimmed) - F.length(F.translate(trimmed, "{}", ""))) == _BRACES
    alone = (F.json_array_length(F.concat(F.lit("["), line, F.lit("]"))) == 1) & (
        F.json_array_length(F.concat(F.lit("["), line, F.lit(",0]"))) == 2
    )
    return F.is_valid_utf8(line) & ((trimmed.endswith("}") & flat) | F.coalesce(alone, F.lit(False)))
