"""JSON lines: each line is one object, whole, or an error.

Spark's own reader takes the first object of a line and says nothing of what follows it, and reads bytes that are no
text as replacement characters.  Here a line that holds anything but one object is a record that cannot be decoded.

That is seen in the same pass.  The text is put into an object of our own, as the first of two entries (`whole`).  If it
holds more than one value, or closes that object, the object has not these two entries.

Where a record is known to be wrong, `one_value` says whether that is why, by another test: a line that is put between
brackets, with and without one more element, is an array of two and of one element iff it is exactly one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.formats import DatedFile, FileFormat
from strandline.engine.files.file_paths import CORRUPT, PATH, decoding, load

LINE: Final = "__line"
_FOUND: Final = "__found"
_RECORD: Final = "__record"
_WHOLE: Final = "this message and what follows it"
_VALUE: Final = "this message"
_END: Final = "what follows this message"
"""The names of the object around a text and of its two entries; a text that knows them might pass for one value."""
_ENTRIES: Final = 2
_BRACES: Final = 2
_BLANK: Final = r"^\s*$"
_HIGH: Final = r"u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_SOUND_ESCAPE: Final = rf"\\(?:{_HIGH}\\{_LOW}|(?!u[dD][89a-fA-F])[\s\S])"
_HALF_A_PAIR: Final = r"\\u[dD][89a-fA-F]"


def decoded(session: SparkSession, files: Sequence[DatedFile], ddl: str, form: FileFormat) -> DataFrame:
    """Return the columns of ``ddl``, `PATH` and `CORRUPT`: a row a line that is not blank."""
    text = load(session.read, "text", files)
    return parsed(text.select(F.col("value").alias(LINE), F.col("_metadata.file_path").alias(PATH)), ddl, form)


def parsed(text: DataFrame, ddl: str, form: FileFormat) -> DataFrame:
    """Return the columns of ``ddl`` of `LINE`, what is beside these, and `CORRUPT`: a row a line that is not blank."""
    beside = [name for name in text.columns if name != LINE]
    lines = text.where(F.col(LINE).startswith("{") | ~F.col(LINE).rlike(_BLANK))
    found = lines.withColumn(_FOUND, whole(F.col(LINE), f"struct<{ddl}>", form))
    # Steps of their own, so that Spark evaluates each of them once.
    sound = F.coalesce(is_whole(F.col(_FOUND), F.col(LINE)), F.lit(False))
    record = found.withColumn(_RECORD, F.when(sound, value_of(F.col(_FOUND))))
    broken = F.when(F.col(_RECORD).isNull(), F.col(LINE))
    return record.select(f"{_RECORD}.*", *beside, broken.alias(CORRUPT))


def whole(text: Column, kind: str, form: FileFormat) -> Column:
    """Return what Spark reads of a text as a value of type ``kind``; `is_whole` and `value_of` look into it."""
    wrapped = F.concat(F.lit(f'{{"{_WHOLE}":{{"{_VALUE}":'), text, F.lit(f',"{_END}":{{}}}}}}'))
    return F.from_json(wrapped, f"`{_WHOLE}` map<string,{kind}>, {CORRUPT} string", decoding(form))


def is_whole(found: Column, text: Column) -> Column:
    """Return whether the text is one value and nothing besides, and all in it has its type."""
    entries = found[_WHOLE]
    return found[CORRUPT].isNull() & (F.size(entries) == _ENTRIES) & entries[_END].isNotNull() & is_text(text)


def is_text(text: Column) -> Column:
    """Return whether a JSON text stands for characters alone: it is UTF-8, and so is what its escapes say."""
    return F.is_valid_utf8(text) & ~has_half_a_pair(text)


def has_half_a_pair(text: Column) -> Column:
    """Return whether an escape is one half of a surrogate pair without the other, which Spark reads as ``?``."""
    others = F.regexp_replace(text, _SOUND_ESCAPE, " ")
    return F.when(text.contains("\\ud") | text.contains("\\uD"), others.rlike(_HALF_A_PAIR)).otherwise(False)


def value_of(found: Column) -> Column:
    """Return the value, if `is_whole`."""
    return found[_WHOLE][_VALUE]


def one_value(line: Column) -> Column:
    """Return whether a line that begins with a JSON object holds nothing else, and is text.

    The longer test is made only where braces leave it open.
    """
    trimmed = F.trim(line)
    flat = (F.length(trimmed) - F.length(F.translate(trimmed, "{}", ""))) == _BRACES
    return F.is_valid_utf8(line) & ((trimmed.endswith("}") & flat) | is_alone(line))


def is_alone(text: Column) -> Column:
    """Return whether a text is one JSON value of any kind, and nothing besides."""
    first = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
    return F.coalesce(first & (F.json_array_length(F.concat(F.lit("["), text, F.lit(",0]"))) == 2), F.lit(False))
