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

from strandline.algebra import types
from strandline.algebra.messages import DatedFile, FileFormat
from strandline.algebra.schema import Column as Field
from strandline.algebra.schema import struct
from strandline.engine.files.notations import JsonValues
from strandline.engine.files.paths import CORRUPT, PATH, decoding, load

LINE: Final = "__line"
_FOUND: Final = "__found"
_ALL: Final = "__all"
_MADE: Final = "__made"
_AGAIN: Final = "__again"
_IS_AGAIN: Final = "__is_again"
_RECORD: Final = "__record"
_RECORDS: Final = "__records"
_WHOLE: Final = "this message and what follows it"
_VALUE: Final = "this message"
_END: Final = "what follows this message"
"""The names of the object around a text and of its two entries; a text that knows them might pass for one value."""
_ENTRIES: Final = 2
_BRACES: Final = 2
_BLANK: Final = r"\A\s*\z"
_MARK: Final = "\ufeff"
_LONG_EXPONENT: Final = r"([0-9.][eE][+-]?)[0-9]{5,}+"
_ARRAY: Final = r"\A\s*+\["
_HIGH: Final = r"u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_SOUND_ESCAPE: Final = rf"\\(?:{_HIGH}\\{_LOW}|(?!u[dD][89a-fA-F])[\s\S])"
_HALF_A_PAIR: Final = r"\\u[dD][89a-fA-F]"


def decoded(session: SparkSession, files: Sequence[DatedFile], fields: Sequence[Field], form: FileFormat) -> DataFrame:
    """Return the ``fields``, `PATH` and `CORRUPT`: a row a line that is not blank; with `multiline` see `_spanning`."""
    if form.multiline:
        return _spanning(session, files, fields, form)
    text = load(session.read, "text", files)
    return parsed(text.select(F.col("value").alias(LINE), F.col("_metadata.file_path").alias(PATH)), fields, form)


def parsed(text: DataFrame, fields: Sequence[Field], form: FileFormat) -> DataFrame:
    """Return the ``fields`` of `LINE`, what is beside these, and `CORRUPT`: a row a line that is not blank."""
    beside = [name for name in text.columns if name != LINE]
    lines = text.where(F.col(LINE).startswith("{") | ~F.col(LINE).rlike(_BLANK))
    kind, values = struct(fields), JsonValues(form)
    found = lines.withColumn(_FOUND, whole(F.col(LINE), kind, values))
    sound = F.coalesce(is_whole(F.col(_FOUND), F.col(LINE)), F.lit(False))
    record = found.withColumn(_RECORD, F.when(sound, value_of(F.col(_FOUND)))).drop(_FOUND)
    record = made(record, _RECORD, kind, F.col(LINE), again(F.col(LINE), kind, values), values)
    broken = F.when(F.col(_RECORD).isNull(), F.col(LINE))
    return record.select(f"{_RECORD}.*", *beside, broken.alias(CORRUPT))


def _spanning(
    session: SparkSession, files: Sequence[DatedFile], fields: Sequence[Field], form: FileFormat
) -> DataFrame:
    """Return the same of files that hold an object, or an array of objects, over any lines.

    A file that holds anything else, or a wrong value in one of its objects, is one row, and `CORRUPT` is its text.
    """
    text = load(session.read.option("wholetext", "true"), "text", files)
    lines = text.select(without_mark(F.col("value")).alias(LINE), F.col("_metadata.file_path").alias(PATH))
    lines = lines.where(~F.col(LINE).rlike(_BLANK))
    one, values, line = struct(fields), JsonValues(form), F.col(LINE)
    several, all_ = line.rlike(_ARRAY), f"array<{one}>"
    found = lines.withColumn(_FOUND, F.when(~several, whole(line, one, values)))
    found = found.withColumn(_ALL, F.when(several, whole(line, all_, values)))
    array = value_of(F.col(_ALL))
    objects = F.when(is_whole(F.col(_FOUND), line), F.array(value_of(F.col(_FOUND)))).when(
        is_whole(F.col(_ALL), line) & ~F.exists(array, lambda each: each.isNull()), array
    )
    records = found.select(objects.alias(_RECORDS), PATH, LINE)
    read = F.when(several, again(line, all_, values)).otherwise(F.array(again(line, one, values)))
    records = made(records, _RECORDS, all_, line, read, values)
    rows = records.select(F.explode(F.coalesce(_RECORDS, F.array(F.lit(None).cast(one)))).alias(_RECORD), PATH, LINE)
    return rows.select(f"{_RECORD}.*", PATH, F.when(F.col(_RECORD).isNull(), line).alias(CORRUPT))


def without_mark(text: Column) -> Column:
    """Return a text without a byte order mark before it."""
    return F.when(text.startswith(_MARK), F.substring(text, 2, 2**31 - 1)).otherwise(text)


def whole(text: Column, kind: str, values: JsonValues) -> Column:
    """Return what Spark reads of a text as a value of type ``kind``: `is_whole`, `value_of` and `made` look into it."""
    return _read(text, values.read_as(types.parse("", kind)), values.form)


def again(text: Column, kind: str, values: JsonValues) -> Column:
    """Return the value that is read of a text another time (`JsonValues.read_again_as`).

    Exponents are cut: Spark would write out their digits for minutes.  A number stays as far beyond all decimals.
    """
    bounded = F.regexp_replace(text, _LONG_EXPONENT, "$19999")
    return value_of(_read(bounded, values.read_again_as(types.parse("", kind)), values.form))


def made(frame: DataFrame, name: str, kind: str, text: Column, read: Column, values: JsonValues) -> DataFrame:
    """Return ``frame`` with values of ``kind`` in the column that has what `value_of` found, or NULL.

    ``read``: the same values as `again` has them in ``text``; it is evaluated only where it is needed.
    """
    own, found = types.parse("", kind), F.col(name)
    if values.is_plain(own):
        return frame
    # Steps of their own, so that Spark evaluates each of them once.
    given = frame.withColumn(_IS_AGAIN, values.is_doubtful(found, own, text))
    given = given.withColumn(_AGAIN, F.when(F.col(_IS_AGAIN), read))
    given = given.withColumn(_MADE, values.made(found, own, F.col(_AGAIN), F.col(_IS_AGAIN)))
    lost = values.lost(found, F.col(_MADE), own)
    return given.withColumn(name, F.when(~lost, F.col(_MADE))).drop(_MADE, _AGAIN, _IS_AGAIN)


def _read(text: Column, kind: str, form: FileFormat) -> Column:
    nothing = "[]" if kind.startswith("array<") else "{}"
    wrapped = F.concat(F.lit(f'{{"{_WHOLE}":{{"{_VALUE}":'), text, F.lit(f',"{_END}":{nothing}}}}}'))
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
