"""From parsed messages to rows: which rows the shape of a message adds or removes, and its errors.

Columns of keyed records: `algebra.messages`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra import types
from strandline.algebra.messages import GONE, KEPT, OFFSET_BITS, ORDER, RAW_CHARS_MAX, MessageFormat, Metadata, Shape
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema, quote
from strandline.algebra.unavailable import IN_THE_KEY, OF_A_KEY
from strandline.engine.frames import forms
from strandline.engine.messages.parsed import (
    AFTER,
    AS_METADATA,
    BEFORE,
    KEY,
    NULL_VALUE,
    OP,
    UNLOCATED,
    UNSENT,
    VALUE,
    wrong,
)

RAW_BYTES_MAX: Final = RAW_CHARS_MAX // 4 * 3
"""So many bytes are `RAW_CHARS_MAX` characters in base 64."""


def described(reason: Column, raw: Column) -> Column:
    """Return the error of a message for ``reason``; NULL without a reason.  ``raw``: its bytes.

    An error is a JSON object ``{"place": "<topic>[<partition>]@<offset>", "reason", "raw"}``: where the message is, a
    sentence, and the bytes that cannot be decoded (at most `RAW_CHARS_MAX` characters of them).  Bytes that are no
    text are in base 64, and ``"encoding": "base64"`` says so.  A null value has no ``raw``.
    """
    text = raw.cast("string")
    readable = F.is_valid_utf8(text)
    shown = F.when(readable, F.substring(text, 1, RAW_CHARS_MAX)).otherwise(
        F.base64(F.substring(raw, 1, RAW_BYTES_MAX))
    )
    place = F.concat(F.col("topic"), F.lit("["), F.col("partition"), F.lit("]@"), F.col("offset"))
    body = F.struct(
        place.alias("place"),
        reason.alias("reason"),
        shown.alias("raw"),
        F.when(~readable, F.lit("base64")).alias("encoding"),
    )
    return F.when(reason.isNotNull(), F.to_json(body)).alias(ERROR)


_REASON: Final = "__reason"
_GONE: Final = "__is_gone"
_LEFT: Final = "__is_left"
"""Whether a row of a frame is of the key that a change leaves, and not of the one that it writes."""
_DELETED: Final = "d"
_WRITTEN: Final = ("c", "r", "u")
_TRUNCATED: Final = "t"


def shaped(frame: DataFrame, schema: Schema, form: MessageFormat, *, locate: bool) -> DataFrame:
    """Return the rows of parsed messages: the columns of ``schema``, ``__error``, times, diffs, and those of keys."""
    match form.shape:
        case Shape.PLAIN:
            return _plain(frame, schema, form, locate=locate)
        case Shape.UPSERT:
            return _upserts(frame, schema, form, locate=locate)
        case Shape.DEBEZIUM:
            return _changes(frame, schema, form, locate=locate)


def _plain(frame: DataFrame, schema: Schema, form: MessageFormat, *, locate: bool) -> DataFrame:
    null = F.when(F.col("value").isNull(), _told(NULL_VALUE, locate=locate))
    reasoned = frame.withColumn(_REASON, F.coalesce(null, *_reasons(frame, VALUE, AS_METADATA)))
    return _rows(reasoned, schema, form, _sources(schema, form), {})


def _upserts(frame: DataFrame, schema: Schema, form: MessageFormat, *, locate: bool) -> DataFrame:
    sources = _sources(schema, form)
    no_key = F.when(F.col("key").isNull(), _told("its key is null", locate=locate))
    unknown = F.coalesce(no_key, *_reasons(frame, KEY), _null_key(form, sources, locate=locate))
    gone = F.col("value").isNull()
    reasoned = frame.withColumn(_GONE, F.when(unknown.isNull(), gone)).withColumn(
        _REASON, F.coalesce(unknown, *(F.when(~gone, each) for each in _reasons(frame, VALUE, AS_METADATA)))
    )
    return _rows(reasoned, schema, form, sources, {ORDER: _order(), GONE: F.col(_GONE)})


def _changes(frame: DataFrame, schema: Schema, form: MessageFormat, *, locate: bool) -> DataFrame:
    change = F.col(VALUE)
    deleted = change[OP] == _DELETED
    row = _sources(schema, form)
    held = form.held_by_value(schema).names
    by_row = form.of_key is None
    if by_row:
        row |= {n: F.when(deleted, change[BEFORE][n]).otherwise(change[AFTER][n]) for n in form.key if n in held}
        misplaced: tuple[Column, ...] = ()
    else:
        misplaced = (F.when(F.col("key").isNull(), _told("its key is null", locate=locate)),)
    unknown_op = F.concat(F.lit("op '"), F.coalesce(change[OP], F.lit("null")), F.lit("' is not one of c, r, u, d"))
    whole = F.coalesce(
        *_reasons(frame, VALUE, UNSENT),
        F.when(change[OP] == _TRUNCATED, _told(_NOT_FOLLOWED, locate=locate)),
        F.when(change[OP].isNull() | ~change[OP].isin(_DELETED, *_WRITTEN), unknown_op if locate else F.lit(UNLOCATED)),
        F.when(~deleted & change[AFTER].isNull(), _told("it has no `after`", locate=locate)),
    )
    # An error of the value still has its key, where the message has one.
    key_fails = F.coalesce(
        *misplaced,
        *_reasons(frame, KEY),
        *([whole] if by_row else []),
        _null_key(form, row, locate=locate),
        *_unsent_key(schema, form, row, locate=locate),
    )
    reasoned = frame.where(F.col("value").isNotNull()).withColumn(_GONE, F.when(key_fails.isNull(), deleted))
    reasoned = reasoned.withColumn(_REASON, F.coalesce(whole, key_fails, *_reasons(frame, AS_METADATA)))
    # A truncation has no key, and an error that has one is not a deletion.
    gone = F.when(F.col(_REASON).isNull(), F.col(_GONE)).when(key_fails.isNull(), False)
    if by_row:
        reasoned = reasoned.withColumn(_LEFT, F.explode(_of_both_keys(change, form.key, deleted)))
        row |= {name: F.when(F.col(_LEFT), change[BEFORE][name]).otherwise(row[name]) for name in form.key}
        gone = F.when(F.col(_LEFT), True).otherwise(gone)
    ours = {ORDER: _order(), GONE: gone}
    if UNSENT in frame.columns:
        ours[KEPT] = F.col(UNSENT)
    return _rows(reasoned, schema, form, row, ours)


def _of_both_keys(change: Column, key: Sequence[str], deleted: Column) -> Column:
    """Return an entry for the key that a change writes or deletes, and before it one for another key that it leaves."""
    before = [change[BEFORE][name] for name in key]
    known = reduce(Column.__and__, (each.isNotNull() for each in before))
    other = reduce(
        Column.__or__, (~each.eqNullSafe(change[AFTER][name]) for each, name in zip(before, key, strict=True))
    )
    left = F.col(_REASON).isNull() & ~deleted & known & other
    return F.when(left, F.array(F.lit(True), F.lit(False))).otherwise(F.array(F.lit(False)))


_NOT_FOLLOWED: Final = "it truncates the table, and does not say which rows were there"


def _rows(
    frame: DataFrame, schema: Schema, form: MessageFormat, row: Mapping[str, Column], ours: Mapping[str, Column]
) -> DataFrame:
    """Return the rows: all columns of a good one, the key's of one that deletes, and of an error with a known key."""
    failed = F.col(_REASON).isNotNull()
    raw = F.col("value")
    if form.of_key is not None and form.shape.keyed:
        raw = F.when(F.col(wrong(KEY)).isNotNull(), F.col("key")).otherwise(raw)
    gone = ours.get(GONE)
    named = {}
    held = form.held_by_value(schema).names
    alone = len(_reasons(frame, VALUE, AS_METADATA)) == 1
    for name in schema.names:
        if gone is None and alone and name in held:  # nothing else can fail, and where the value fails it is NULL
            named[name] = row[name]
        elif gone is not None and name in form.key:
            named[name] = F.when(gone.isNotNull(), row[name])
        elif gone is not None:
            named[name] = F.when(~failed & ~gone, row[name])
        else:
            named[name] = F.when(~failed, row[name])
    kept = {KEPT: F.when(~failed & ~gone, ours[KEPT])} if KEPT in ours and gone is not None else {}
    made = frame.select(
        *(column.alias(name) for name, column in named.items()),
        described(F.col(_REASON), raw).alias(ERROR),
        F.col(TIME),
        F.lit(1).cast("bigint").alias(DIFF),
        *(column.alias(name) for name, column in {**ours, **kept}.items()),
    )
    if not any(forms.has_floats(kind) for _, kind in types.columns(schema)):
        return made
    normal = [F.expr(forms.normalised(quote(name), kind)).alias(name) for name, kind in types.columns(schema)]
    return made.select(*normal, ERROR, TIME, DIFF, *ours)


def _sources(schema: Schema, form: MessageFormat) -> dict[str, Column]:
    """Return where each column comes from."""
    found = {}
    by_value = F.col(VALUE)[AFTER] if form.shape is Shape.DEBEZIUM else F.col(VALUE)
    by_key = set(form.held_by_key(schema).names)
    for column in schema:
        metadata = form.included.get(column.name)
        if metadata is Metadata.KEY:
            found[column.name] = F.col(AS_METADATA)[column.name]
        elif metadata is Metadata.PARTITION:  # one that is no number has none
            found[column.name] = F.col(metadata.value).try_cast(column.type)
        elif metadata is not None:
            found[column.name] = F.col(metadata.value)
        elif column.name in by_key:
            found[column.name] = F.col(KEY)[column.name]
        else:
            found[column.name] = by_value[column.name]
    return found


def _reasons(frame: DataFrame, *names: str) -> list[Column]:
    """Return what is wrong with these parts, those that are decoded."""
    return [F.col(wrong(name)) for name in names if wrong(name) in frame.columns]


def _order() -> Column:
    """Return what `algebra.messages.order` says."""
    partition = F.coalesce(F.col("partition").try_cast("bigint"), F.lit(0).cast("bigint"))
    return F.shiftleft(partition, OFFSET_BITS) + F.col("offset")


def _null_key(form: MessageFormat, row: Mapping[str, Column], *, locate: bool) -> Column:
    """Return the reason if a column of the key is NULL."""
    told = [F.when(row[n].isNull(), _told(f"key column `{n}` is null", locate=locate)) for n in form.key]
    return F.coalesce(*told)


def _unsent_key(schema: Schema, form: MessageFormat, row: Mapping[str, Column], *, locate: bool) -> Iterator[Column]:
    """Yield the reason for each column of the key that may be a placeholder."""
    for column in schema:
        if column.name in form.key and column.type in {"string", "binary"}:
            kind = str if column.type == "string" else bytes
            wanted = [F.lit(each) for each in OF_A_KEY if isinstance(each, kind)]
            told = _told(f"key column `{column.name}`: {IN_THE_KEY}", locate=locate)
            yield F.when(row[column.name].isin(wanted), told)


def _told(reason: str, *, locate: bool) -> Column:
    return F.lit(reason if locate else UNLOCATED)
