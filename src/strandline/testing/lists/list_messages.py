"""A `MessageDecoder` over lists: JSON, text and bytes, for simulations without Spark.

It says the same of a message as `strandline.engine.messages`, of the values that a simulation makes: what is a row,
what deletes one, what is an error, and of which key.  It knows no CSV, no Avro and no Protobuf.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from strandline.algebra import notation, types
from strandline.algebra.messages import (
    DIGITS_MAX,
    GONE,
    KEPT,
    LONG_NAME,
    NAME_CHARS_MAX,
    NO_OBJECT,
    ORDER,
    TOO_DEEP,
    TOO_LONG,
    Coding,
    MessageEncoding,
    MessageFormat,
    Metadata,
    Shape,
    TopicRanges,
    check,
    order,
)
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.algebra.unavailable import IN_THE_KEY, OF_A_KEY
from strandline.engine.files.avro import Refused, named, sent_of
from strandline.errors import InvalidUsage
from strandline.persist.handles.contents import Rows
from strandline.testing.lists.list_engine import Listed

_WRITTEN: Final = frozenset("cru")


class ListMessages:
    """Decodes messages as lists."""

    connector = False

    async def messages(self, raw: pa.Table, schema: Schema, form: MessageFormat, *, locate: bool) -> Rows:
        """See `MessageDecoder.messages`."""
        check(form, schema)
        own = (ORDER, GONE, KEPT) if form.shape is Shape.DEBEZIUM else (ORDER, GONE) if form.shape.keyed else ()
        names = (*schema.names, ERROR, TIME, DIFF, *own)
        rows = [row for message in raw.to_pylist() for row in _rows(message, schema, form, locate=locate)]
        filled = tuple({name: row.get(name) for name in names} for row in rows)
        return Rows(Listed(names, filled))

    async def ranges(self, topic: TopicRanges, schema: Schema, form: MessageFormat, *, locate: bool) -> Rows:
        """See `MessageDecoder.ranges`: lists have no broker."""
        raise InvalidUsage(f"topic {topic.topic!r}: an engine over lists has no connector")


def _rows(message: Mapping[str, Any], schema: Schema, form: MessageFormat, *, locate: bool) -> Iterator[dict[str, Any]]:
    """Yield the update that a message makes, and before it the deletion of another key that a change leaves."""
    row = _row(message, schema, form, locate=locate)
    if row is None:
        return
    if form.shape is Shape.DEBEZIUM and form.of_key is None and row[GONE] is False and ERROR not in row:
        key = Schema(tuple(column for column in schema if column.name in form.key))
        left = _converted(_payload(message["value"]).get("before") or {}, key, days=True)
        if None not in left.values() and any(row[name] != value for name, value in left.items()):
            yield left | {name: row[name] for name in (TIME, DIFF, ORDER)} | {GONE: True}
    yield row


def _row(message: Mapping[str, Any], schema: Schema, form: MessageFormat, *, locate: bool) -> dict[str, Any] | None:
    """Return the update that a message makes; None if it says nothing new."""
    if form.shape is Shape.DEBEZIUM and message["value"] is None:
        return None
    row: dict[str, Any] = {TIME: message[TIME], DIFF: 1}
    if form.shape.keyed:
        row |= {ORDER: order(message["partition"], message["offset"]), GONE: None}
    try:
        match form.shape:
            case Shape.PLAIN:
                if message["value"] is None:
                    raise Refused("its value is null")
                row |= _decoded(message["value"], form.of_value, form.held_by_value(schema))
            case Shape.UPSERT:
                row |= _key(message, schema, form) | {GONE: message["value"] is None}
                if not row[GONE]:
                    row |= _decoded(message["value"], form.of_value, form.held_by_value(schema))
            case Shape.DEBEZIUM:
                _change(message, schema, form, row)
        if not row.get(GONE):
            row |= _metadata(message, schema, form)
    except Refused as refused:
        key = {name: row[name] for name in form.key if name in row} if row.get(GONE) is not None else {}
        ours = {name: row[name] for name in (TIME, DIFF, ORDER, GONE) if name in row}
        row = ours | key | {ERROR: _error(message, str(refused)) if locate else "not located"}
    return row


def _key(message: Mapping[str, Any], schema: Schema, form: MessageFormat) -> dict[str, Any]:
    if message["key"] is None:
        raise Refused("its key is null")
    coding, held = form.of_key, form.held_by_key(schema)
    assert coding is not None, "the format was checked"
    found = _decoded(message["key"], coding, held, bare=True, wrapped=form.shape is Shape.DEBEZIUM)
    return _known(found, form)


def _known(key: dict[str, Any], form: MessageFormat) -> dict[str, Any]:
    for name in form.key:
        if key.get(name) is None:
            raise Refused(f"key column `{name}` is null")
        if key[name] in OF_A_KEY:
            raise Refused(f"key column `{name}`: {IN_THE_KEY}")
    return key


def _change(message: Mapping[str, Any], schema: Schema, form: MessageFormat, row: dict[str, Any]) -> None:
    """Add to ``row`` what a change says, the key first."""
    held = form.held_by_value(schema)
    if form.of_key is not None and message["key"] is not None:
        row |= _key(message, schema, form) | {GONE: False}
    change = _payload(message["value"])
    op = change.get("op")
    if op == "t":
        raise Refused("it truncates the table, and does not say which rows were there")
    if op != "d" and op not in _WRITTEN:
        raise Refused(f"op '{'null' if op is None else op}' is not one of c, r, u, d")
    half = change.get("before" if op == "d" else "after")
    if op != "d" and half is None:
        raise Refused("it has no `after`")
    others = [] if op == "d" else [name for name in held.names if name not in form.key]
    half, unsent = sent_of(half or {}, others)
    values = _converted(half, held, days=True)
    if form.of_key is None:
        row |= _known({name: values.get(name) for name in form.key}, form)
    elif row[GONE] is None:
        raise Refused("its key is null")
    row[GONE] = op == "d"
    if op != "d":
        row |= values | {KEPT: unsent}


def _payload(data: bytes) -> dict[str, Any]:
    change = _object(_text(data))
    return change["payload"] if isinstance(change.get("payload"), dict) else change


def _metadata(message: Mapping[str, Any], schema: Schema, form: MessageFormat) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, metadata in form.included.items():
        (column,) = (each for each in schema if each.name == name)
        value = message[metadata.value]
        if metadata is Metadata.KEY and value is not None:
            coding = form.of_key or Coding(MessageEncoding.BYTES if column.type == "binary" else MessageEncoding.TEXT)
            value = _decoded(value, coding, Schema((column,)), bare=True)[name]
        elif metadata is Metadata.PARTITION and column.type != "string":
            value = int(value)
        found[name] = value
    return found


def _decoded(data: bytes, coding: Coding, held: Schema, *, bare: bool = False, wrapped: bool = False) -> dict[str, Any]:
    match coding.encoding:
        case MessageEncoding.BYTES if held.columns[0].type == "binary":
            return {held.names[0]: data}
        case MessageEncoding.TEXT | MessageEncoding.BYTES:
            (column,), text = held, _text(data)
            read = notation.value(types.parse(column.name, column.type), text)
            if read is None:
                raise Refused(f"'{text}' is not a valid {column.type}")
            return {column.name: read}
        case MessageEncoding.JSON:
            text = _text(data)
            if bare and not text.lstrip().startswith("{"):
                text = f"{{{json.dumps(held.names[0])}:{text}}}"
            found = _object(text)
            if wrapped and isinstance(found.get("payload"), dict):
                found = found["payload"]
            return _converted(found, held, days=wrapped)
        case other:
            raise InvalidUsage(f"an engine over lists decodes no {other.value}")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Refused("it is not UTF-8") from error


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(
            text.removeprefix("\ufeff"),
            parse_int=_bounded(int),
            parse_float=_bounded(Decimal),
            object_pairs_hook=_fields,
        )
    except ValueError as error:
        raise Refused("it is empty" if not text.strip() else NO_OBJECT) from error
    except RecursionError as error:
        raise Refused(TOO_DEEP) from error
    if not isinstance(found, dict):
        raise Refused(NO_OBJECT)
    return found


def _fields(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, as Spark's parser reads it, which refuses a name of too many characters."""
    if any(len(name) > NAME_CHARS_MAX for name, _ in pairs):
        raise Refused(LONG_NAME)
    return dict(pairs)


def _bounded(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return what reads a number in JSON as Spark's parser does, which refuses one of too many digits."""

    def bounded(text: str) -> Any:
        if sum(map(str.isdecimal, text)) > DIGITS_MAX:
            raise Refused(TOO_LONG)
        return read(text)

    return bounded


def _converted(found: Mapping[str, Any], held: Schema, *, days: bool = False) -> dict[str, Any]:
    """Return the values of columns.  ``days``: a number is a number of days of a date, and no timestamp."""
    kinds = {column.name: column.type for column in held}
    made = {}
    for name, kind in types.columns(held):
        value = found.get(name)
        try:
            read = _read(value, kind, days=days)
        except ValueError as error:
            raise Refused(f"column `{name}`: '{value}' is not a valid {kinds[name]}") from error
        made[name] = named(name, kind, kinds[name])(read)
    return made


def _read(value: Any, kind: types.Type, *, days: bool) -> Any:
    """Return JSON's number or text as the value that the column has; raise `ValueError` if it is none of its type."""
    number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    read: Any
    match kind:
        case types.Atom("double" | "float") if number:
            read = float(value) + 0.0 if abs(value) < _INFINITE else math.copysign(math.inf, value)
        case types.Atom("double" | "float") if value in _NO_NUMBERS:
            read = notation.value(kind, value)
        case types.Decimal() if number:
            read = notation.digits(kind, Decimal(value))
        case types.Decimal() | types.Atom("date" | "timestamp" | "timestamp_ntz") if isinstance(value, str):
            read = notation.value(kind, value)
        case types.Atom("binary") if isinstance(value, str):
            read = notation.of_base64(value)
        case types.Atom("date") if days and type(value) is int and notation.DAYS_MIN <= value <= notation.DAYS_MAX:
            return _EPOCH.date() + dt.timedelta(days=value)
        case types.Atom("timestamp") if not days and type(value) is int:
            read = _EPOCH + dt.timedelta(seconds=value) if _SECONDS[0] <= value <= _SECONDS[1] else None
        case types.Array(element) if isinstance(value, list):
            return [_read(each, element, days=days) for each in value]
        case types.Struct(fields) if isinstance(value, dict):
            return {name: _read(value.get(name), field, days=days) for name, field in fields}
        case _:
            return value
    if read is None:
        raise ValueError
    return read


_NO_NUMBERS: Final = ("NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF")
_SECONDS: Final = (notation.SECONDS_MIN, notation.SECONDS_MAX)
_INFINITE: Final = 2**1024
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _error(message: Mapping[str, Any], reason: str) -> str:
    place = f"{message['topic']}[{message['partition']}]@{message['offset']}"
    raw = message["value"]
    told = {"place": place, "reason": reason}
    if raw is not None:
        told["raw"] = raw.decode(errors="replace")
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False)
