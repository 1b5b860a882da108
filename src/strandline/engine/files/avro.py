"""Avro object container files, decoded in Python: each file in one task, record by record.

A record that a column cannot hold is an error, with the record's number in its file (from 1).  After a block that
cannot be read, nothing more of a file can be read: that is one error, and the records before it are rows.

`converter` makes values of records values of columns: exact, or refused.  Other code that reads Avro by fastavro
imports this module first, because it corrects how fastavro decodes decimals (`decimal`), and shows which types need
its slower reader (`nests`).

Rejected: Spark's own reader, which is a separate jar, of another release, and tells neither which record it could not
read nor what it would have held.

Source: the Avro specification, "decimal" and "complex types" (named types);
https://fastavro.readthedocs.io/en/latest/logical_types.html (custom types).
"""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import fastavro
import pyarrow as pa
from fastavro import _read_py as plain
from fastavro.read import LOGICAL_READERS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from strandline.algebra import types
from strandline.algebra.messages import DatedFile, of_record
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.algebra.unavailable import LEFT_OPEN, Sent, sent
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Local, dataframe


def decimal(data: bytes, schema: Any, _: Any = None) -> Decimal:
    """Return the number that the bytes of a decimal hold.

    fastavro rounds a decimal that has more digits than the precision of its schema, which no writer has to keep to.
    Avro's own library for Java gives the number as it was written, and so does this; the column decides whether it
    holds the number.

    >>> decimal(bytes([0x30, 0x39]), {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1})
    Decimal('1234.5')
    """
    digits = Decimal(int.from_bytes(data, "big", signed=True)).as_tuple()
    return Decimal((digits.sign, digits.digits, -schema.get("scale", 0)))


def meant(value: Any, schema: Any) -> Any:
    """Return what a value of this type stands for: the value itself, if its type is no logical one.

    >>> meant(1, {"type": "int", "logicalType": "date"}), meant(1, {"type": "int"})
    (datetime.date(1970, 1, 2), 1)
    """
    read = LOGICAL_READERS.get(f"{schema['type']}-{schema.get('logicalType')}")
    return value if read is None else read(value, schema, None)


LOGICAL_READERS["bytes-decimal"] = LOGICAL_READERS["fixed-decimal"] = decimal


def nests(named: Mapping[str, Any]) -> bool:
    """Return whether one of these named types, as fastavro has parsed them, holds itself in whatever depth.

    The values of such a type nest as deep as the writer likes.  fastavro's compiled reader takes stack for each level
    and does not check how much is left, so some kilobytes would end the process.  Its reader in Python is slow, and
    raises `RecursionError` instead.

    >>> nests({"r": {"fields": [{"type": ["null", {"items": "r"}]}]}})
    True
    >>> nests({"r": {"fields": [{"type": {"name": "s"}}]}, "s": {"fields": [{"type": "int"}]}})
    False
    """
    return any(_reaches(name, name, named, set()) for name in named)


def _reaches(start: str, goal: str, named: Mapping[str, Any], seen: set[str]) -> bool:
    """Return whether the type ``start`` holds the type ``goal``, in whatever depth."""
    for name in _held(named[start], named):
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            if _reaches(name, goal, named, seen):
                return True
    return False


def _held(schema: Any, named: Mapping[str, Any]) -> Iterator[str]:
    """Yield the named types that a type holds, but for those inside of these."""
    if isinstance(schema, list):
        inner = schema
    elif isinstance(schema, dict):
        inner = [*(each["type"] for each in schema.get("fields", ())), schema.get("items"), schema.get("values")]
    else:
        inner = []
    for each in inner:
        name = each.get("name") if isinstance(each, dict) else each
        if isinstance(name, str) and name in named:
            yield name
        else:
            yield from _held(each, named)


Converted: TypeAlias = Callable[[Any], Any]
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_DECIMAL_DIGITS_MAX: Final = 80
_EXACT: Final = Context(prec=_DECIMAL_DIGITS_MAX, traps=[Inexact, InvalidOperation])
_VALUE_CHARS_MAX: Final = 100
_ENTRY_FIELDS: Final = 2
_DOUBLE_DIGITS: Final = 1 << 53
_FLOAT_DIGITS: Final = 1 << 24


class Refused(Exception):
    """A value that its column cannot hold; the text says why."""


def converter(kind: types.Type) -> Converted:
    """Return the function that gives a value as one of this type, or raises `ValueError`.

    A value that its column cannot hold raises `Refused`, and is never rounded, cut or guessed.  Wider numbers hold
    narrower ones; a decimal holds every number that has its digits; text holds text, the names of symbols and UUIDs.

    >>> converter(types.Atom("tinyint"))(127), converter(types.Decimal(4, 2))(Decimal("1.5"))
    (127, Decimal('1.50'))
    >>> converter(types.Atom("tinyint"))(128)
    Traceback (most recent call last):
        ...
    ValueError
    """
    match kind:
        case types.Decimal(precision, scale):
            return partial(_decimal, precision, scale)
        case types.Array(element):
            return partial(_array, converter(element), _entry(element))
        case types.Struct(fields):
            return partial(_struct, [(name, converter(field)) for name, field in fields])
        case types.Atom(name):
            return partial(_integer, _BITS[name]) if name in _BITS else _ATOMS[name]


def named(column: str, kind: types.Type, text: str) -> Converted:
    """Return `converter` for a column whose type's text is ``text``: it takes None, and raises `Refused`."""
    convert = converter(kind)

    def converted(value: Any) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except (ValueError, ArithmeticError) as error:
            shown = str(value)[:_VALUE_CHARS_MAX]
            raise Refused(f"column `{column}`: '{shown}' is not a valid {text}") from error

    return converted


def sent_of(row: Mapping[str, Any], names: Iterable[str]) -> tuple[dict[str, Any], list[str] | None]:
    """Return a row of a change with NULL for each placeholder in the columns ``names``, and the names of those, if any.

    Raises `Refused` if a value may be a placeholder.
    """
    unsent = []
    for name in names:
        match sent(row.get(name)):
            case Sent.NO:
                unsent.append(name)
            case Sent.UNKNOWN:
                raise Refused(f"column `{name}`: {LEFT_OPEN}")
            case Sent.YES:
                pass
    return {**row, **dict.fromkeys(unsent)}, unsent or None


def _integer(bits: int, value: Any) -> int:
    if type(value) is not int or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError
    return value


def _double(value: Any) -> float:
    if type(value) is int and abs(value) <= _DOUBLE_DIGITS:
        return float(value)
    if type(value) is not float:
        raise ValueError
    return value


def _float(value: Any) -> float:
    if type(value) is int and abs(value) <= _FLOAT_DIGITS:
        return float(value)
    if type(value) is not float:
        raise ValueError
    if math.isfinite(value) and struct.unpack("f", struct.pack("f", value))[0] != value:
        raise ValueError
    return value


def _decimal(precision: int, scale: int, value: Any) -> Decimal:
    if type(value) is not int and not isinstance(value, Decimal):
        raise ValueError
    if not Decimal(value).is_finite():
        raise ValueError
    found = Decimal(value).quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    if len(found.as_tuple().digits) > precision:
        raise ValueError
    return found


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, uuid.UUID | dt.time):
        return str(value)
    raise ValueError


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    raise ValueError


def _date(value: Any) -> dt.date:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value
    raise ValueError


def _timestamp(value: Any) -> dt.datetime:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value
    raise ValueError


def _timestamp_ntz(value: Any) -> dt.datetime:
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return value
    raise ValueError


_ATOMS: Final[dict[str, Converted]] = {
    "float": _float,
    "double": _double,
    "boolean": _boolean,
    "string": _string,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}


def _array(convert: Converted, entry: tuple[str, str] | None, value: Any) -> list[Any]:
    if entry is not None and isinstance(value, dict):  # a map is an array of its entries
        value = [{entry[0]: name, entry[1]: each} for name, each in sorted(value.items())]
    if not isinstance(value, list | tuple):
        raise ValueError  # noqa: TRY004 - the caller's reason for all that does not fit
    return [None if each is None else convert(each) for each in value]


def _entry(element: types.Type) -> tuple[str, str] | None:
    """Return the names of the fields of a map's entries, if such an array can hold a map."""
    match element:
        case types.Struct(fields) if len(fields) == _ENTRY_FIELDS:
            return fields[0][0], fields[1][0]
    return None


def _struct(fields: list[tuple[str, Converted]], value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004 - see above
    return {name: None if value.get(name) is None else convert(value[name]) for name, convert in fields}


BATCH_ROWS: Final = 4_096
_PATH: Final = "path"
_NAME: Final = "name"
_PREFIX: Final = "prefix"


@dataclass(frozen=True, slots=True)
class AvroFiles:
    """What Python decodes of files; plain data, so that Spark can send it to its workers."""

    schema: Schema

    def frame(self, session: SparkSession, files: Sequence[DatedFile]) -> DataFrame:
        """Return the records of these files as updates (lazy), errors among them."""
        spread = dataframe(Local(_told(files), plain=True), session).repartition(len(files))
        return spread.mapInArrow(self.batches, from_arrow_schema(inline.update_schema(self.schema)))

    def batches(self, files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield updates; this is what runs in Spark's workers."""
        for batch in files:
            for file in batch.to_pylist():
                yield from self._batches(file)

    def of(self, file: DatedFile) -> Iterator[pa.RecordBatch]:
        """Yield the updates of one file, in this process."""
        (told,) = _told([file]).to_pylist()
        return self._batches(told)

    def _batches(self, file: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        target = inline.update_schema(self.schema)
        rows: list[dict[str, Any]] = []
        for row in self._rows(file):
            rows.append(row)
            if len(rows) == BATCH_ROWS:
                yield pa.RecordBatch.from_pylist(rows, target)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, target)

    def _rows(self, file: dict[str, Any]) -> Iterator[dict[str, Any]]:
        kinds = {column.name: column.type for column in self.schema}
        converters = [(name, named(name, kind, kinds[name])) for name, kind in types.columns(self.schema)]
        with Path(file[_PATH]).open("rb") as data:
            records = _records(data)
            written: Any = records.writer_schema
            fields = {field["name"].lower(): field["name"] for field in written["fields"]}
            found = [(name, fields[name.lower()], convert) for name, convert in converters]
            for number in count(1):
                try:
                    record = next(records)
                except StopIteration:
                    return
                except OSError:
                    raise  # the machine refused the file; its bytes may be whole
                except Exception as error:  # noqa: BLE001 - damaged bytes make it raise anything, with texts that differ
                    yield _error(file, number, f"from here on the file is damaged ({type(error).__name__})", "")
                    return
                yield _row(file, number, record, found)


def _told(files: Sequence[DatedFile]) -> pa.Table:
    """Return what decoding needs to know of each file."""
    return pa.table(
        {
            _PATH: [file.path for file in files],
            _NAME: [file.name for file in files],
            _PREFIX: [file.reason_prefix for file in files],
            TIME: pa.array([file.time for file in files], pa.int64()),
            DIFF: pa.array([file.diff for file in files], pa.int64()),
        }
    )


def _records(data: BinaryIO) -> Any:
    """Return fastavro's reader of a file: the one in Python where the records may be nested without end."""
    records = fastavro.reader(data)
    named: dict[str, Any] = {}
    fastavro.parse_schema(records.writer_schema or {}, named_schemas=named)
    if not nests(named):
        return records
    data.seek(0)
    return plain.reader(data)


def _row(
    file: dict[str, Any], number: int, record: Any, found: Sequence[tuple[str, str, Callable[[Any], Any]]]
) -> dict[str, Any]:
    try:
        values = {name: convert(record.get(field)) for name, field, convert in found}
    except Refused as refused:
        return _error(file, number, str(refused), json.dumps(record, default=str, ensure_ascii=False))
    return values | {TIME: file[TIME], DIFF: file[DIFF]}


def _error(file: dict[str, Any], number: int, reason: str, raw: str) -> dict[str, Any]:
    return {ERROR: of_record(file[_NAME], number, file[_PREFIX] + reason, raw), TIME: file[TIME], DIFF: 1}
