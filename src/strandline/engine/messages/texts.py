"""Parts of messages that Spark's own expressions parse: JSON, CSV, text and bytes.

A text is parsed once, by the same expressions as the records of files (`strandline.engine.files.json_lines`).  Why a
part cannot be decoded is found by parsing it again, only when decoding fails.

The JSON of Debezium has two cases of its own: `change_reason`, what is wrong with a change that cannot be decoded, and
`withheld`, the values that Debezium did not send.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra import types
from strandline.algebra.messages import FRAME_BYTES, HALF_A_PAIR, Encoding, MessageEncoding, MessageFormat, Shape
from strandline.algebra.schema import quote, struct
from strandline.algebra.unavailable import (
    AMBIGUOUS,
    ANYWHERE,
    FORM,
    INSIDE,
    LEFT_OPEN,
    NOISE,
    NUMBERS,
    QUOTED,
)
from strandline.engine.files.csv_lines import as_texts
from strandline.engine.files.file_errors import csv_reason, json_reason, no_object, unquoted
from strandline.engine.files.json_lines import (
    again,
    has_half_a_pair,
    is_alone,
    is_whole,
    made,
    one_value,
    value_of,
    whole,
    without_mark,
)
from strandline.engine.files.notations import JsonValues, value
from strandline.engine.files.paths import CORRUPT, decoding
from strandline.engine.messages.parsed import AFTER, BEFORE, NOT_UTF8, OP, UNLOCATED, UNSENT, Part, as_file, wrong


def change_reason(text: Column, part: Part, values: JsonValues) -> Column:
    """Say what is wrong with a change that cannot be decoded."""
    change = f"{OP} string, {AFTER} string, {BEFORE} string"
    outer = F.from_json(
        text, f"{change}, payload struct<{change.replace(' string', ':string')}>, {CORRUPT} string", _CORRUPT
    )
    after = F.when(outer["payload"].isNotNull(), outer["payload"][AFTER]).otherwise(outer[AFTER])
    inner = F.concat(F.lit("in `after`: "), json_reason(after, part.held, values, None))
    return (
        F.when(~F.is_valid_utf8(text), F.lit("it is not UTF-8"))
        .when(has_half_a_pair(text), F.lit(HALF_A_PAIR))
        .when(outer.isNull() | outer[CORRUPT].isNotNull(), no_object(text))
        .when(~one_value(text), F.lit("it holds more than one JSON object"))
        .when(after.isNull(), F.lit("a value inside it does not have its type"))
        .otherwise(inner)
    )


_CORRUPT: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}


_GIVEN: Final = "__given"
_REST: Final = "__rest"


def withheld(frame: DataFrame, text: str, part: Part, *, locate: bool) -> DataFrame:
    """Return ``frame`` with `UNSENT`, why that is not known (`wrong`), and NULL for each placeholder in ``text``.

    ``text``: the column of the changes' texts, and of what is returned.

    Debezium puts placeholders for values that it did not send (`algebra.unavailable`).  The text of a change is
    rewritten where a member with the name of a column is a placeholder, because the column's type may be one that
    cannot read it.  Which columns were not sent is read from the text before that.  A placeholder that was taken out
    of another member of that name, inside a column, makes the change an error.

    Few changes have a placeholder, so each text is searched once for what all forms have in common, and parsed only if
    that is found.
    """
    names = part.sendable
    if not names:
        return frame
    given = frame.withColumn(_GIVEN, F.when(F.col(text).rlike(ANYWHERE), _texts(F.col(text), names)))
    rest = F.regexp_replace(text, _member(names), "$1null")
    given = given.withColumn(text, F.when(F.col(_GIVEN).isNotNull(), rest).otherwise(F.col(text)))
    given = given.withColumn(_REST, F.when(F.col(_GIVEN).isNotNull(), _texts(F.col(text), names)))
    # A lambda for all columns, so that the plan does not grow with their number.
    columns = F.array(*(_column(name) for name in names))
    unsent = F.transform(F.filter(columns, lambda each: _is_placeholder(each["given"])), lambda each: each["name"])
    wrongly = F.filter(columns, lambda each: _is_open(each) | _is_changed(each))
    told = F.when(F.size(wrongly) > 0, _reason(wrongly[0]) if locate else F.lit(UNLOCATED))
    found = given.withColumn(UNSENT, F.when(F.col(_GIVEN).isNotNull() & (F.size(unsent) > 0), unsent))
    return found.withColumn(wrong(UNSENT), F.when(F.col(_GIVEN).isNotNull(), told)).drop(_GIVEN, _REST)


def _column(name: str) -> Column:
    """Return a column of a change: its name, its text, and its text without placeholders."""
    texts = (F.lit(name).alias("name"), F.col(_GIVEN)[name].alias("given"), F.col(_REST)[name].alias("rest"))
    return F.struct(*texts)


def _is_placeholder(text: Column) -> Column:
    numbers = text.startswith("[") & F.regexp_replace(text, NOISE, "").isin(*sorted(NUMBERS))
    return F.coalesce(text.rlike(FORM) | numbers, F.lit(False))


def _is_open(column: Column) -> Column:
    return F.coalesce(column["given"].rlike(AMBIGUOUS), F.lit(False))


def _is_changed(column: Column) -> Column:
    return ~_is_placeholder(column["given"]) & ~column["given"].eqNullSafe(column["rest"])


def _reason(column: Column) -> Column:
    reason = F.when(_is_open(column), F.lit(LEFT_OPEN)).otherwise(F.lit(INSIDE))
    return F.concat(F.lit(f"in `{AFTER}`: column `"), column["name"], F.lit("`: "), reason)


def _member(names: Sequence[str]) -> str:
    """Return a pattern of members with these names whose value is a placeholder that not every type can read."""
    written = "|".join(re.escape(json.dumps(name, ensure_ascii=False)) for name in names)
    return rf"((?:{written})\s*+:\s*+){QUOTED}(?=\s*+[,}}])"


def _texts(change: Column, names: Sequence[str]) -> Column:
    """Return what a change has in its columns, as texts."""
    after = f"{AFTER}:struct<{','.join(f'{quote(name)}:string' for name in names)}>"
    found = F.from_json(change, f"struct<{after},payload:struct<{after}>>", _OPTIONS)
    return F.coalesce(found["payload"][AFTER], found[AFTER])


_OPTIONS: Final[Mapping[str, str]] = {"mode": "PERMISSIVE"}


_BYTES: Final = "__bytes"
_TEXT: Final = "__text"
_FOUND: Final = "__found"
_PAYLOAD: Final = "payload"


def parse(frame: DataFrame, part: Part, form: MessageFormat, *, locate: bool) -> DataFrame:
    """Return ``frame`` with the struct of ``part`` and what is wrong with it."""
    source = F.col(part.source)
    if part.coding.framed:
        framed = F.substring(source, 1, 1) == F.lit(b"\x00")
        bytes_ = F.when(framed & (F.length(source) >= FRAME_BYTES), F.substring(source, FRAME_BYTES + 1, 2**31 - 1))
    else:
        bytes_ = source
    text = F.col(_BYTES).cast("string")
    text = text if part.coding.encoding.single else without_mark(text)
    given = frame.withColumn(_BYTES, bytes_).withColumn(_TEXT, text)
    if part.change:
        given = withheld(given, _TEXT, part, locate=locate)
    match part.coding.encoding:
        case MessageEncoding.JSON:
            found, good, reason = _json(part, form)
        case MessageEncoding.CSV:
            found, good, reason = _csv(part, form)
        case MessageEncoding.TEXT:
            found, good, reason = _text(part, form)
        case _:
            found, good, reason = _bytes(part, form)
    given = given.withColumn(_FOUND, found)
    told = reason if locate else F.lit(UNLOCATED)
    if locate and part.coding.framed:
        told = F.when(F.col(_BYTES).isNull(), F.lit("it does not begin with a schema's id")).otherwise(told)
    there = source.isNotNull()
    read, sound = good
    # Two steps, so that Spark evaluates what is long once.
    stepped = given.withColumn(part.name, F.when(F.coalesce(sound, F.lit(False)), read))
    if part.coding.encoding is MessageEncoding.JSON:
        values = _values(form)
        read = _unwrapped(again(_json_text(part), _maybe_wrapped(part), values), part)
        stepped = made(stepped, part.name, struct(part.fields), F.col(_TEXT), read, values)
    bad = there & F.col(part.name).isNull()
    return stepped.withColumn(wrong(part.name), F.when(bad, told)).drop(_BYTES, _TEXT, _FOUND)


_Parsed = tuple[Column, tuple[Column, Column], Column]
"""What parses a text; the struct in that and whether it is right; and why it is not."""


def _json(part: Part, form: MessageFormat) -> _Parsed:
    text, values = _json_text(part), _values(form)
    found = whole(text, _maybe_wrapped(part), values)
    sound = is_whole(F.col(_FOUND), F.col(_TEXT))
    if part.alone:  # what stands behind a bare value could name the field again
        sound = sound & (_is_named(part) | is_alone(F.col(_TEXT)))
    reason = change_reason(text, part, values) if part.change else _json_reason(text, part, values)
    return found, (_unwrapped(value_of(F.col(_FOUND)), part), sound), reason


def _values(form: MessageFormat) -> JsonValues:
    return JsonValues(as_file(form, Encoding.JSON), days=form.shape is Shape.DEBEZIUM)


def _json_text(part: Part) -> Column:
    return _named(part) if part.alone else F.col(_TEXT)


def _maybe_wrapped(part: Part) -> str:
    kind = struct(part.fields)
    return f"{kind[:-1]},{_PAYLOAD}:{kind}>" if part.wrapped else kind


def _unwrapped(found: Column, part: Part) -> Column:
    if not part.wrapped:
        return found
    bare = F.struct(*(found[name].alias(name) for name in part.fields.names))
    return F.when(found[_PAYLOAD].isNotNull(), found[_PAYLOAD]).when(found.isNotNull(), bare)


def _named(part: Part) -> Column:
    """Return the text as an object, where it is the bare value of the one field."""
    name = json.dumps(part.held.names[0])
    return F.when(_is_named(part), F.col(_TEXT)).otherwise(F.concat(F.lit(f"{{{name}:"), F.col(_TEXT), F.lit("}")))


def _is_named(part: Part) -> Column:
    """Return whether the text is an object that has the one field, and not that field's value."""
    struct = isinstance(types.columns(part.held)[0][1], types.Struct)
    return F.lit(False) if struct else F.ltrim(F.col(_TEXT)).startswith("{")


def _json_reason(text: Column, part: Part, values: JsonValues) -> Column:
    reason = json_reason(text, part.held, values, "it")
    if part.alone:
        reason = F.when(~_is_named(part) & ~is_alone(F.col(_TEXT)), F.lit("it is not one JSON value")).otherwise(reason)
    return F.when(F.trim(F.col(_TEXT)) == "", F.lit("it is empty")).otherwise(reason)


def _csv(part: Part, form: MessageFormat) -> _Parsed:
    own = as_file(form, Encoding.CSV)
    line = F.regexp_replace(F.col(_TEXT), r"\r?\n$", "")
    texts = [F.col(_FOUND)[name] for name in part.held.names]
    found = F.from_csv(line, f"{as_texts(part.held)}, {CORRUPT} string", decoding(own) | {"header": "false"})
    values = {c.name: value(text, c.type, own) for text, c in zip(texts, part.held, strict=True)}
    row = F.struct(*(each.alias(name) for name, each in values.items()))
    all_are = reduce(
        Column.__and__,
        (text.isNull() | each.isNotNull() for text, each in zip(texts, values.values(), strict=True)),
    )
    lines = F.when(line.contains("\n") | line.contains("\r"), unquoted(line, own).rlike("[\r\n]")).otherwise(False)
    empty = F.length(F.col(_TEXT)) == 0
    sound = F.col(_FOUND)[CORRUPT].isNull() & F.is_valid_utf8(F.col(_TEXT)) & ~lines & ~empty & all_are
    reason = (
        F.when(empty, F.lit("it is empty"))
        .when(~F.is_valid_utf8(F.col(_TEXT)), F.lit(NOT_UTF8))
        .when(lines, F.lit("it holds more than one line"))
        .otherwise(csv_reason(line, values.__getitem__, part.held.names, part.held, own))
    )
    return found, (row, sound), reason


def _text(part: Part, form: MessageFormat) -> _Parsed:
    (column,) = part.held
    read = value(F.col(_TEXT), column.type, as_file(form, Encoding.CSV))
    row = F.struct(F.col(_FOUND).alias(column.name))
    sound = F.col(_FOUND).isNotNull() & F.is_valid_utf8(F.col(_TEXT))
    refused = F.concat(F.lit("'"), F.substring(_TEXT, 1, 100), F.lit(f"' is not a valid {column.type}"))
    return read, (row, sound), F.when(~F.is_valid_utf8(F.col(_TEXT)), F.lit(NOT_UTF8)).otherwise(refused)


def _bytes(part: Part, form: MessageFormat) -> _Parsed:
    (column,) = part.held
    if column.type == "binary":
        read = F.col(_BYTES)
    else:
        return _text(part, form)
    return read, (F.struct(F.col(_FOUND).alias(column.name)), F.col(_FOUND).isNotNull()), F.lit(UNLOCATED)
