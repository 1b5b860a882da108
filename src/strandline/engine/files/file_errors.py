"""Where an undecodable record stands, and what is wrong with it.

An error is a JSON object ``{"file", "line", "reason", "raw"}``: the file's name, the line that the record starts at
(from 1; null where it is not known), a sentence, and the record's text (at most `RAW_CHARS_MAX` characters of it).

*Line.*  Decoding a line depends on its text alone, so every line of the file with the text of a bad record is a bad
record: the bad texts are joined with the file's lines.  Lines are numbered without a sort: Spark counts rows within a
partition, and the blocks of a file, in order, give each block's first line.  Records that span lines are looked for
in the whole text of their file.

*Reason.*  The record's text is decoded once more with every field as text.  If that fails it has another shape than
the schema; otherwise the first field that is there as text and not as its type is the one to blame.  In a file that
takes records back, the reason says that first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra import types
from strandline.algebra.messages import (
    HALF_A_PAIR,
    LONG_NAME,
    NAME_CHARS_MAX,
    NO_OBJECT,
    RAW_CHARS_MAX,
    TOO_DEEP,
    TOO_LONG,
    VALUE_CHARS_MAX,
    DatedFile,
    Encoding,
    FileFormat,
)
from strandline.algebra.schema import ERROR, Schema, quote, struct
from strandline.algebra.schema import Column as Field
from strandline.engine.files import json_lines
from strandline.engine.files.json_lines import has_half_a_pair, is_alone, one_value, value_of
from strandline.engine.files.notations import JsonValues
from strandline.engine.files.paths import CORRUPT, PATH, decoding, load, paths_table
from strandline.engine.files.small import Layout

SEARCH_BYTES_MAX: Final = 256 << 20
"""Files up to this size are searched as a whole for records that span lines; in larger ones the line is null."""
_RAW: Final = "__raw"
_LINE: Final = "__line"
_REASON: Final = "__reason"
_NAME: Final = "__name"
_HEADER: Final = "__header"
_PREFIX: Final = "__prefix"


def described(file: DatedFile, line: int, reason: str, raw: str) -> str:
    """Return the error of a whole file; ``line`` 0: it has none."""
    return json.dumps(
        {
            "file": file.name,
            "line": line or None,
            "reason": file.reason_prefix + reason,
            "raw": raw[:RAW_CHARS_MAX],
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )


def locate(session: SparkSession, bad: DataFrame, layout: Layout, schema: Schema, form: FileFormat) -> DataFrame:
    """Return a row a bad record: `PATH`, ``__error``.  ``bad`` has what Spark decoded of it, `CORRUPT` and `PATH`."""
    raw = F.col(_RAW)
    if form.encoding is Encoding.CSV:
        reason = csv_reason(raw, _decoded, layout.names, schema, form)
    elif form.multiline:
        reason = _of_a_file(raw, schema, form)
    else:
        reason = json_reason(raw, schema, JsonValues(form), "its line")
    records = bad.withColumnRenamed(CORRUPT, _RAW).withColumn(_REASON, reason).select(PATH, _RAW, _REASON)
    files = paths_table(
        session,
        layout.files,
        {
            _NAME: pa.array([file.name for file in layout.files]),
            _PREFIX: pa.array([file.reason_prefix for file in layout.files]),
            _HEADER: pa.array(layout.header_lines, pa.int64()),
        },
    )
    if form.multiline:
        found = _found_in_texts(session, records, layout)
    else:
        found = _found_in_lines(session, records, layout, files)
    line = F.col(_LINE).cast("bigint").alias("line")
    raw = F.substring(_RAW, 1, RAW_CHARS_MAX).alias("raw")
    body = F.struct(F.col(_NAME).alias("file"), line, F.concat(_PREFIX, _REASON).alias("reason"), raw)
    error = F.to_json(body, {"ignoreNullFields": "false"}).alias(ERROR)
    return found.join(files, PATH).select(PATH, error)


def _found_in_lines(session: SparkSession, records: DataFrame, layout: Layout, files: DataFrame) -> DataFrame:
    """Return the records, each as often as its text is a line of its file (once if it is none), with the line."""
    lines = load(session.read, "text", layout.files).select(
        F.col("_metadata.file_path").alias(PATH),
        F.col("_metadata.file_block_start").alias("__block"),
        F.monotonically_increasing_id().alias("__row"),
        F.col("value").alias(_RAW),
    )
    blocks = lines.groupBy(PATH, "__block").agg(F.min("__row").alias("__first"), F.count(F.lit(1)).alias("__lines"))
    earlier = Window.partitionBy(PATH).orderBy("__block").rowsBetween(Window.unboundedPreceding, -1)
    starts = blocks.select(
        PATH, "__block", (F.coalesce(F.sum("__lines").over(earlier), F.lit(0)) - F.col("__first")).alias("__shift")
    )
    numbered = (
        lines.join(F.broadcast(starts), [PATH, "__block"])
        .withColumn(_LINE, F.col("__row") + F.col("__shift") + 1)
        .join(F.broadcast(files), PATH)
        .where(F.col(_LINE) > F.col(_HEADER))
        .select(PATH, _RAW, _LINE)
    )
    return records.dropDuplicates([PATH, _RAW]).join(numbered, [PATH, _RAW], "left")


def _found_in_texts(session: SparkSession, records: DataFrame, layout: Layout) -> DataFrame:
    """Return the records, the k-th of equal ones with the line where their text starts for the k-th time."""
    small = [file for file in layout.files if file.size <= SEARCH_BYTES_MAX]
    numbered = records.withColumn("__k", F.row_number().over(Window.partitionBy(PATH, _RAW).orderBy(_REASON)))
    if not small:
        return numbered.withColumn(_LINE, F.lit(None))
    texts = load(session.read.option("wholetext", "true"), "text", small).select(
        F.col("_metadata.file_path").alias(PATH), F.concat(F.lit("\n"), _newlines("value"), F.lit("\n")).alias("__text")
    )
    record = F.concat(F.lit("\n"), F.rtrim(_newlines(_RAW), F.lit("\n")), F.lit("\n"))
    before = F.expr("substring_index(__text, __record, __k)")
    line = F.when(F.length(before) < F.length("__text"), F.regexp_count(before, F.lit("\n")) + 1)
    return numbered.withColumn("__record", record).join(texts, PATH, "left").withColumn(_LINE, line)


def _newlines(column: str) -> Column:
    return F.replace(F.col(column), F.lit("\r\n"), F.lit("\n"))


def _decoded(name: str) -> Column:
    return F.col(quote(name))


def csv_reason(
    raw: Column, decoded: Callable[[str], Column], names: Sequence[str], schema: Schema, form: FileFormat
) -> Column:
    """Say what is wrong with a CSV record of which ``decoded`` is what Spark could decode; ``names`` are its fields."""
    texts = F.from_csv(raw, _as_text(names), decoding(form) | {"header": "false"})
    fields = F.length(F.regexp_replace(unquoted(raw, form), f"[^{_in_class(form.delimiter)}]", "")) + 1
    shape = F.concat(F.lit("it has "), fields, F.lit(f" fields; {len(names)} are expected"))
    shape_or_text = F.when(~F.is_valid_utf8(raw), F.lit("it is not UTF-8")).when(texts[CORRUPT].isNotNull(), shape)
    return shape_or_text.otherwise(_field_to_blame(texts, lambda field: decoded(field.name).isNull(), schema))


def unquoted(raw: Column, form: FileFormat) -> Column:
    """Return a CSV record without its fields in quotes."""
    return F.regexp_replace(raw, f"(^|{re.escape(form.delimiter)}){_quoted_field(form)}", "$1")


def json_reason(raw: Column, schema: Schema, values: JsonValues, whole: str | None) -> Column:
    """Say what is wrong with a JSON record; ``whole``: what may hold nothing else than the record, in words."""
    texts = F.from_json(raw, _as_text(schema.names), _PERMISSIVE)
    shape = F.when(texts.isNull() | texts[CORRUPT].isNotNull(), no_object(raw))
    shape = shape.when(~F.is_valid_utf8(raw), F.lit("it is not UTF-8"))
    shape = shape.when(has_half_a_pair(raw), F.lit(HALF_A_PAIR))
    if whole is not None:
        shape = shape.when(~one_value(raw), F.lit(f"{whole} holds more than one JSON object"))
    kind = struct(schema)
    found = value_of(json_lines.whole(raw, kind, values))
    doubtful = values.is_doubtful(found, types.parse("", kind), raw)
    again = F.when(doubtful, json_lines.again(raw, kind, values))

    def refused(field: Field) -> Column:
        own = types.parse(field.name, field.type)
        made = values.made(found[field.name], own, again[field.name], doubtful)
        return made.isNull() | values.lost(found[field.name], made, own)

    return shape.otherwise(_field_to_blame(texts, refused, schema))


_PERMISSIVE: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
_UNBOUNDED: Final = str(2**31 - 1)
_LONG_NAME: Final = rf'"[^"]{{{NAME_CHARS_MAX + 1},}}+(?<!\\)"\s*+:'
"""Counts a name with an escaped quote in it from there, and an escape as its letters; only possessive, so no stack."""


def no_object(raw: Column) -> Column:
    """Say why a text is no JSON object to the parser, which takes long numbers, names and deep nesting for none."""

    def read(**options: str) -> Column:
        found = F.from_json(raw, f"{CORRUPT} string, {_RAW} string", {**_PERMISSIVE, **options})
        return found.isNotNull() & found[CORRUPT].isNull()

    return (
        F.when(read(maxNumLen=_UNBOUNDED), F.lit(TOO_LONG))
        .when(read(maxNumLen=_UNBOUNDED, maxNestingDepth=_UNBOUNDED), F.lit(TOO_DEEP))
        .when(raw.rlike(_LONG_NAME), F.lit(LONG_NAME))
        .otherwise(F.lit(NO_OBJECT))
    )


def _of_a_file(raw: Column, schema: Schema, form: FileFormat) -> Column:
    """Say what is wrong with a JSON file whose records span lines."""
    objects = F.from_json(raw, "array<map<string,string>>", _PERMISSIVE)
    several = F.when(~is_alone(raw) | objects.isNull(), F.lit("it is not a JSON array of objects")).otherwise(
        F.lit("a value inside it does not have its type")
    )
    return F.when(F.ltrim(raw).startswith("["), several).otherwise(json_reason(raw, schema, JsonValues(form), "it"))


def _field_to_blame(texts: Column, refused: Callable[[Field], Column], schema: Schema) -> Column:
    """Say which is the first field that is there as text and not as its type."""
    reason = F.lit("a value inside it does not have its type")
    for column in reversed(tuple(schema)):
        value = texts[column.name]
        wrong = F.concat(
            F.lit(f"column `{column.name}`: '"),
            F.substring(value, 1, VALUE_CHARS_MAX),
            F.lit(f"' is not a valid {column.type}"),
        )
        reason = F.when(value.isNotNull() & refused(column), wrong).otherwise(reason)
    return reason


def _as_text(names: Sequence[str]) -> str:
    return ", ".join(f"{quote(name)} string" for name in (*names, CORRUPT))


def _quoted_field(form: FileFormat) -> str:
    """A regular expression (Java's) of a field in quotes; possessive, so that it needs no stack for a long one."""
    mark, escape = _in_class(form.quote), _in_class(form.escape)
    escaped = re.escape(form.quote) * 2 if form.quote == form.escape else f"{re.escape(form.escape)}."
    return f"{re.escape(form.quote)}[^{mark}{escape}]*+(?:{escaped}[^{mark}{escape}]*+)*+{re.escape(form.quote)}"


def _in_class(character: str) -> str:
    return f"\\{character}" if character in "\\]^-[&" else character
