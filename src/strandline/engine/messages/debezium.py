"""Changes as Debezium writes them in JSON: where their rows stand, and how it writes days.

Debezium writes a date as a number of days, and moments, by its configuration, as texts or as numbers of milli-, micro-
or nanoseconds.  Which of these a number is does not show in the message.  So here a number is a date, and is no
timestamp: Spark would take it for seconds.

Debezium: "data types" (io.debezium.time).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra import schema as columns
from strandline.algebra.formats import Encoding
from strandline.algebra.messages import MessageFormat
from strandline.algebra.schema import Schema
from strandline.engine.files.file_errors import HALF_A_PAIR, json_reason
from strandline.engine.files.file_paths import CORRUPT, decoding
from strandline.engine.files.json_lines import has_half_a_pair, one_value
from strandline.engine.messages.parsed import AFTER, BEFORE, OP, Part, as_file

_MOVED: Final = "__moved"
_MOMENTS: Final = frozenset({"date", "timestamp", "timestamp_ntz"})
_NUMBER: Final = r"^-?[0-9]+$"


def moments(part: Part) -> Schema:
    """Return the fields of a change in which dates and timestamps are texts."""
    return replace(part, held=_texts(part.held), before=_texts(part.before)).fields


def unmoved(frame: DataFrame, part: Part, form: MessageFormat) -> DataFrame:
    """Return ``frame`` with the texts of dates and timestamps as such; NULL is a change with one that is none."""
    if not any(column.type in _MOMENTS for column in part.held):
        return frame
    change = F.col(part.name)
    halves = {AFTER: part.held} | ({BEFORE: part.before} if part.before.columns else {})
    moved = F.struct(
        change[OP].alias(OP),
        *(
            F.when(change[half].isNotNull(), _moved(change[half], held, form)).alias(half)
            for half, held in halves.items()
        ),
    )
    failed = F.lit(False)
    for half, held in halves.items():
        for column in held:
            if column.type in _MOMENTS:
                given, found = change[half][column.name], F.col(_MOVED)[half][column.name]
                failed = failed | (given.isNotNull() & found.isNull())
    return (
        frame.withColumn(_MOVED, F.when(change.isNotNull(), moved))
        .withColumn(part.name, F.when(~failed, F.col(_MOVED)))
        .drop(_MOVED)
    )


def change_reason(text: Column, part: Part, form: MessageFormat) -> Column:
    """Say what is wrong with a change that cannot be decoded."""
    change = f"{OP} string, {AFTER} string, {BEFORE} string"
    outer = F.from_json(
        text, f"{change}, payload struct<{change.replace(' string', ':string')}>, {CORRUPT} string", _CORRUPT
    )
    after = F.when(outer["payload"].isNotNull(), outer["payload"][AFTER]).otherwise(outer[AFTER])
    options = decoding(as_file(form, Encoding.JSON))
    decoded = F.from_json(after, f"{_texts(part.held).ddl}, {CORRUPT} string", options)
    kinds = {column.name: column.type for column in part.held}

    def found(name: str) -> Column:
        return _moment(decoded[name], kinds[name], form) if kinds[name] in _MOMENTS else decoded[name]

    inner = F.concat(F.lit("in `after`: "), json_reason(after, found, part.held, None))
    return (
        F.when(~F.is_valid_utf8(text), F.lit("it is not UTF-8"))
        .when(has_half_a_pair(text), F.lit(HALF_A_PAIR))
        .when(outer.isNull() | outer[CORRUPT].isNotNull(), F.lit("it is not a JSON object"))
        .when(~one_value(text), F.lit("it holds more than one JSON object"))
        .when(after.isNull(), F.lit("a value inside it does not have its type"))
        .otherwise(inner)
    )


_CORRUPT: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}


def _texts(schema: Schema) -> Schema:
    return Schema(tuple(replace(c, type="string") if c.type in _MOMENTS else c for c in schema))


def _moved(half: Column, held: Schema, form: MessageFormat) -> Column:
    return F.struct(*_fields(half, held, form))


def _fields(half: Column, held: Schema, form: MessageFormat) -> Iterator[Column]:
    column: columns.Column
    for column in held:
        value = half[column.name]
        yield (_moment(value, column.type, form) if column.type in _MOMENTS else value).alias(column.name)


def _moment(text: Column, kind: str, form: MessageFormat) -> Column:
    """Return a text as a moment of this kind; NULL if it is none."""
    pattern = form.date_format if kind == "date" else form.timestamp_format
    read = text.try_cast(kind) if pattern is None else F.try_to_timestamp(text, F.lit(pattern)).cast(kind)
    number = F.date_from_unix_date(text.try_cast("int")) if kind == "date" else F.lit(None).cast(kind)
    return F.when(text.rlike(_NUMBER), number).otherwise(read)
