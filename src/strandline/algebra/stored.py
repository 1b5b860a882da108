"""Types and values as files and lake tables store them: which column type reads a stored one, and how.

Reading asks `fit` whether a declared type holds a stored one.  Discovery proposes `type_of`, which always fits, so no
proposal is refused when it is run.  `converted` makes the values: exact, or refused.  Files, Delta and Iceberg use
these three.  `ParquetSchema` and `first_record` find the columns of a Parquet and of a CSV file.

A type holds another one if each of its values is a value here: a smaller integer, float as double, a decimal with
fewer digits on both sides of the point.  Types that a collection lacks have one form each: see `type_of`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.algebra.arrow_types import arrow
from strandline.algebra.messages import FileFormat
from strandline.algebra.schema import Schema, quote
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type, parse

BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_SIGNED: Final = {bits: name for name, bits in BITS.items()}
_UNSIGNED: Final = {8: "smallint", 16: "int", 32: "bigint", 64: "decimal(20,0)"}
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
"""How many digits a signed integer of so many bits has at most."""
_UNSIGNED_DIGITS: Final = _DIGITS | {64: 20}
_DOUBLE_BITS: Final = 53
_OTHERS: Final = ("boolean", "string", "binary", "float", "double", "date")
"""The atoms that are no integer and no timestamp; of two that hold a type, the first is its own."""
_DECIMAL_DIGITS_MAX: Final = 38


class Fit(IntEnum):
    """How much of a stored type a declared one holds."""

    NEVER = 0
    BY_VALUE = 1
    """Some of its values."""
    ALWAYS = 2


def plain(stored: pa.DataType) -> pa.DataType:
    """Return the type of the values, however they are laid out: without dictionaries, views and large offsets.

    >>> plain(pa.dictionary(pa.int8(), pa.large_string())), plain(pa.list_(pa.string_view(), 2))
    (DataType(string), ListType(list<item: string>))
    """
    match stored:
        case pa.UuidType():
            return stored
        case pa.BaseExtensionType():
            return plain(stored.storage_type)
        case pa.DictionaryType():
            return plain(stored.value_type)
        case pa.MapType():
            return pa.map_(plain(stored.key_type), plain(stored.item_type))
        case pa.StructType():
            return pa.struct([field.with_type(plain(field.type)) for field in fields_of(stored)])
    if _is_list(stored):
        return pa.list_(plain(stored.value_type))
    if pa.types.is_large_string(stored) or pa.types.is_string_view(stored):
        return pa.string()
    if pa.types.is_large_binary(stored) or pa.types.is_binary_view(stored) or pa.types.is_fixed_size_binary(stored):
        return pa.binary()
    return pa.date32() if pa.types.is_date64(stored) else stored


def fit(kind: Type, stored: pa.DataType) -> Fit:
    """Tell how much of ``stored`` a column of ``kind`` holds.

    >>> [fit(kind, pa.int32()).name for kind in (Decimal(12, 2), Decimal(11, 2), Atom("int"), Atom("smallint"))]
    ['ALWAYS', 'NEVER', 'ALWAYS', 'NEVER']
    >>> [fit(Atom(name), pa.uint64()).name for name in ("bigint", "int")], fit(Atom("date"), pa.null()).name
    (['BY_VALUE', 'NEVER'], 'ALWAYS')
    """
    return _fit(kind, plain(stored))


def _fit(kind: Type, stored: pa.DataType) -> Fit:
    if pa.types.is_null(stored):
        return Fit.ALWAYS
    match kind:
        case Array(Struct(((_, key), (_, value)))) if pa.types.is_map(stored):
            ordered = Fit.ALWAYS if isinstance(key, Atom | Decimal) else Fit.NEVER
            return min(ordered, _fit(key, stored.key_type), _fit(value, stored.item_type))
        case Array(element):
            return _fit(element, stored.value_type) if pa.types.is_list(stored) else Fit.NEVER
        case Struct(fields):
            there = fields_of(stored) if pa.types.is_struct(stored) else []
            if [name for name, _ in fields] != [each.name for each in there]:
                return Fit.NEVER
            return min(_fit(inner, each.type) for (_, inner), each in zip(fields, there, strict=True))
        case Decimal(precision, scale):
            return Fit.ALWAYS if _holds(precision, scale, stored) else Fit.NEVER
        case Atom("timestamp" | "timestamp_ntz" as name):
            if not pa.types.is_timestamp(stored) or (stored.tz is None) == (name == "timestamp"):
                return Fit.NEVER
            return Fit.BY_VALUE if stored.unit == "ns" else Fit.ALWAYS
        case Atom(name) if name in BITS:
            return _fit_integer(BITS[name], stored)
        case Atom(name):
            return Fit.ALWAYS if _is_one(name, stored) else Fit.NEVER


def _fit_integer(bits: int, stored: pa.DataType) -> Fit:
    if pa.types.is_duration(stored):
        return Fit.ALWAYS if bits == stored.bit_width else Fit.NEVER
    if not pa.types.is_integer(stored) or stored.bit_width > bits:
        return Fit.NEVER
    wider = pa.types.is_signed_integer(stored) or stored.bit_width < bits
    return Fit.ALWAYS if wider else Fit.BY_VALUE


def _is_one(name: str, stored: pa.DataType) -> bool:
    """Tell whether each value of ``stored`` is a value of the atom ``name``, which is no integer and no timestamp."""
    match name:
        case "string":
            return bool(pa.types.is_string(stored) or pa.types.is_time(stored) or isinstance(stored, pa.UuidType))
        case "binary":
            return bool(pa.types.is_binary(stored) or isinstance(stored, pa.UuidType))
        case "float":
            return bool(pa.types.is_floating(stored) and stored.bit_width <= pa.float32().bit_width)
        case "double":
            exact = pa.types.is_integer(stored) and stored.bit_width < _DOUBLE_BITS
            return bool(exact or pa.types.is_floating(stored))
        case "boolean":
            return bool(pa.types.is_boolean(stored))
        case _:
            return bool(pa.types.is_date32(stored))


def _holds(precision: int, scale: int, stored: pa.DataType) -> bool:
    if pa.types.is_integer(stored):
        digits = _DIGITS if pa.types.is_signed_integer(stored) else _UNSIGNED_DIGITS
        return precision - scale >= digits[stored.bit_width]
    return bool(
        pa.types.is_decimal(stored) and stored.scale <= scale and stored.precision - stored.scale <= precision - scale
    )


def located(schema: Schema, there: pa.Schema, least: Fit = Fit.ALWAYS) -> dict[str, str]:
    """Return for each declared column the name that it has ``there``, found without case.

    ``least``: how much of its stored type a column must hold.  Raises `ValueError` saying which column is not there, is
    there twice, or has a type that does not fit.

    >>> from strandline.algebra.schema import Column
    >>> schema = Schema((Column("ID", "bigint"),))
    >>> located(schema, pa.schema([("id", pa.int32()), ("more", pa.string())]))
    {'ID': 'id'}
    >>> located(schema, pa.schema([("id", pa.string())]))
    Traceback (most recent call last):
        ...
    ValueError: column `ID` is string there, which bigint does not hold
    """
    if wrong := schema.not_once_in(there.names):
        raise ValueError(f"it has {wrong}")
    known = {field.name.lower(): field for field in there}
    for column in schema:
        field = known[column.name.lower()]
        if fit(parse(column.name, column.type), field.type) < least:
            raise ValueError(f"column `{column.name}` is {field.type} there, which {column.type} does not hold")
    return {name: known[name.lower()].name for name in schema.names}


def same(kind: Type, stored: pa.DataType) -> bool:
    """Tell whether ``stored`` is ``kind``'s own form, so that whatever reads one reads the other.

    >>> same(Atom("bigint"), pa.int64()), same(Atom("bigint"), pa.int32()), same(Atom("string"), pa.time64("us"))
    (True, False, False)
    """
    return _same(kind, plain(stored))


def _same(kind: Type, stored: pa.DataType) -> bool:
    match kind:
        case Array(element):
            return bool(pa.types.is_list(stored)) and _same(element, stored.value_type)
        case Struct(fields):
            return (
                _fit(kind, stored) is Fit.ALWAYS
                and bool(pa.types.is_struct(stored))
                and all(_same(inner, stored.field(n).type) for n, (_, inner) in enumerate(fields))
            )
        case Atom("timestamp"):
            return bool(pa.types.is_timestamp(stored)) and stored.unit == "us" and stored.tz is not None
        case _:
            return bool(stored == arrow(kind))


def type_of(stored: pa.DataType) -> str | None:
    """Return the text of the type to read ``stored`` as, or None: no type holds it.

    Types that a collection lacks are read as these:

    | stored | read as |
    | --- | --- |
    | null (a column without any value) | every type |
    | unsigned integer | a signed one that is wider; of the same width, if the value fits |
    | half float | `float`, `double` |
    | nanoseconds | `timestamp`, `timestamp_ntz`, if the value is whole microseconds |
    | time of day, UUID | `string`: the text that ISO 8601 and RFC 9562 give it |
    | duration | `bigint`: its number of units |
    | map | an array of structs of two fields, in the order of the keys |

    >>> type_of(pa.list_(pa.struct([("a b", pa.decimal128(10, 2))])))
    'array<struct<`a b`:decimal(10,2)>>'
    >>> [type_of(kind) for kind in (pa.uint64(), pa.timestamp("ns"), pa.null(), pa.month_day_nano_interval())]
    ['decimal(20,0)', 'timestamp_ntz', 'string', None]
    """
    return _type_of(plain(stored))


def _type_of(stored: pa.DataType) -> str | None:
    if pa.types.is_map(stored):
        key, value = _type_of(stored.key_type), _type_of(stored.item_type)
        plain_key = not pa.types.is_nested(stored.key_type)
        return f"array<struct<key:{key},value:{value}>>" if plain_key and key and value else None
    if pa.types.is_list(stored):
        element = _type_of(stored.value_type)
        return element and f"array<{element}>"
    if pa.types.is_struct(stored):
        return struct_text([(each.name, _type_of(each.type)) for each in fields_of(stored)])
    if pa.types.is_integer(stored):
        return (_SIGNED if pa.types.is_signed_integer(stored) else _UNSIGNED)[stored.bit_width]
    if pa.types.is_decimal(stored):
        return f"decimal({stored.precision},{stored.scale})" if stored.precision <= _DECIMAL_DIGITS_MAX else None
    if pa.types.is_timestamp(stored):
        return "timestamp_ntz" if stored.tz is None else "timestamp"
    if pa.types.is_duration(stored):
        return "bigint"
    if pa.types.is_null(stored):
        return "string"
    return next((name for name in _OTHERS if _is_one(name, stored)), None)


def type_of_all(stored: Sequence[pa.DataType]) -> str | None:
    """Return the text of the narrowest type that holds all of ``stored``, or None: no type does.

    >>> type_of_all([pa.int32(), pa.int64()]), type_of_all([pa.null(), pa.int64()])
    ('bigint', 'bigint')
    >>> type_of_all([pa.int32(), pa.decimal128(4, 2)]), type_of_all([pa.float32(), pa.int16()])
    ('decimal(12,2)', 'double')
    >>> type_of_all([pa.int64(), pa.float64()]) is None
    True
    """
    known = [each for each in stored if not pa.types.is_null(each)] or [pa.null()]
    own = [kind for each in known if (kind := type_of(each))]
    if len(own) < len(known):
        return None
    parsed = {kind: parse("", kind) for kind in own}
    least = [fit(parsed[kind], each) for kind, each in zip(own, known, strict=True)]
    candidates = parsed | {kind: parse("", kind) for kind in (*_decimal_of(parsed.values()), "double")}
    for kind, each in candidates.items():
        if all(fit(each, there) >= needed for there, needed in zip(known, least, strict=True)):
            return kind
    return None


def _decimal_of(kinds: Iterable[Type]) -> Sequence[str]:
    """Return the decimal with the digits of numbers of all ``kinds``, if there is one."""
    digits = []
    for kind in kinds:
        match kind:
            case Decimal(precision, scale):
                digits.append((precision - scale, scale))
            case Atom(name) if name in BITS:
                digits.append((_DIGITS[BITS[name]], 0))
            case _:
                return []
    whole, scale = (max(each) for each in zip(*digits, strict=True))
    return [f"decimal({whole + scale},{scale})"] if whole + scale <= _DECIMAL_DIGITS_MAX else []


def struct_text(fields: Sequence[tuple[str, str | None]]) -> str | None:
    """Return the text of a struct; None if a field has no type, or no collection can hold such fields.

    >>> struct_text([("a", "int"), ("b c", "date")]), struct_text([("a", "int"), ("A", "int")]), struct_text([])
    ('struct<`a`:int,`b c`:date>', None, None)
    """
    names = {name.lower() for name, _ in fields}
    if not fields or len(names) < len(fields) or "" in names or any(kind is None for _, kind in fields):
        return None
    return f"struct<{','.join(f'{quote(name)}:{kind}' for name, kind in fields)}>"


def _is_list(stored: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(stored)
        or pa.types.is_large_list(stored)
        or pa.types.is_fixed_size_list(stored)
        or pa.types.is_list_view(stored)
        or pa.types.is_large_list_view(stored)
    )


def fields_of(stored: pa.StructType) -> list[pa.Field]:
    """Return the fields of a struct."""
    return [stored.field(n) for n in range(stored.num_fields)]


BLANK: Final = "".join(map(chr, range(33)))
"""What Spark's CSV reader trims of a line to see whether it is empty."""
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line with its end, as Hadoop's reader of text has it."""


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The first record: the line that it begins at (from 1), the text of that line, and its fields as written.

    ``ends``: the line end behind it, where a quoted field has another one before that; else empty.
    """

    line: int
    text: str
    fields: tuple[str, ...]
    ends: str = ""

    def names(self, declared: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the column that each field names, where columns are ``declared``.

        A field names the declared column that is called just so, without regard to case.  Any other one is taken
        without the blanks around it, which many programs write behind a delimiter.

        >>> record = FirstRecord(1, "id, a,b ", ("id", " a", "b "))
        >>> record.names(["ID", " A"]), record.names()
        (('id', ' a', 'b'), ('id', 'a', 'b'))
        """
        exact = {name.lower() for name in declared}
        return tuple(field if field.lower() in exact else field.strip() for field in self.fields)


def first_record(head: str, form: FileFormat) -> FirstRecord | None:
    r"""Return the first record of a file that begins with ``head``; None: it has no line that is not blank.

    A CSV file with a header has the names of its columns there; without a header the record shows how many fields it
    has.

    >>> from strandline.algebra.messages import Encoding
    >>> first_record('\n\t\na,"b c", d\r\n1,2,3\n', FileFormat(Encoding.CSV))
    FirstRecord(line=3, text='a,"b c", d', fields=('a', 'b c', ' d'), ends='')
    """
    lines = _LINE.findall(head)
    blank = next((n for n, line in enumerate(lines) if line.strip(BLANK)), len(lines))
    lines = lines[blank:]
    if not lines:
        return None
    doubled = form.escape == form.quote
    text = lines[0].rstrip("\r\n")
    read = csv.reader(
        io.StringIO("".join(lines) if form.multiline else text, newline=""),
        delimiter=form.delimiter,
        quotechar=form.quote,
        doublequote=doubled,
        escapechar=None if doubled else form.escape,
    )
    fields = next(read)
    ends = _end(lines[read.line_num - 1])
    return FirstRecord(1 + blank, text, tuple(fields), ends if ends != _end(lines[0]) else "")


def _end(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]


def converted(values: pa.Array, kind: Type) -> pa.Array:
    """Return values of a type that `fit` as values of ``kind``.

    >>> converted(pa.array([[("b", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8())), _ENTRIES).to_pylist()
    [[{'k': 'a', 'v': 2}, {'k': 'b', 'v': 1}]]

    Raises Arrow's `ArrowInvalid` if a value is none of ``kind``: nothing is rounded or cut.
    """
    stored = plain(values.type)
    return _converted(values.cast(_without_uuids(stored)), stored, kind)


def _without_uuids(stored: pa.DataType) -> pa.DataType:
    """Return the type with UUIDs as their bytes: Arrow can do little with lists and maps of them."""
    if isinstance(stored, pa.UuidType):
        return stored.storage_type
    if pa.types.is_map(stored):
        return pa.map_(_without_uuids(stored.key_type), _without_uuids(stored.item_type))
    if pa.types.is_list(stored):
        return pa.list_(_without_uuids(stored.value_type))
    if pa.types.is_struct(stored):
        return pa.struct([field.with_type(_without_uuids(field.type)) for field in fields_of(stored)])
    return stored


def _converted(values: pa.Array, stored: pa.DataType, kind: Type) -> pa.Array:
    target = arrow(kind)
    if pa.types.is_null(stored):
        return pa.nulls(len(values), target)
    match kind:
        case Array(Struct(((_, key), (_, value))) as entry) if pa.types.is_map(stored):
            return _entries(values, stored, arrow(entry), key, value)
        case Array(element):
            lengths = pc.fill_null(pc.list_value_length(values), 0)
            inner = _converted(values.flatten(), stored.value_type, element)
            return _listed(lengths, inner, target, values.is_null())
        case Struct(fields):
            there = zip(values.flatten(), fields_of(stored), fields, strict=True)
            inners = [_converted(each, field.type, own) for each, field, (_, own) in there]
            return pa.StructArray.from_arrays(inners, fields=list(target), mask=values.is_null())
        case Atom("string") if pa.types.is_time(stored):
            return _clock_texts(values)
        case Atom("string") if isinstance(stored, pa.UuidType):
            return pa.array([None if each is None else str(UUID(bytes=each)) for each in values.to_pylist()], target)
        case Atom("string"):
            return values.cast(pa.binary()).cast(target)  # this way round its bytes are looked at
        case _:
            return values.cast(target)


_ENTRIES: Final = Array(Struct((("k", Atom("string")), ("v", Atom("int")))))


def _entries(values: pa.MapArray, stored: pa.MapType, entry: pa.DataType, key: Type, value: Type) -> pa.Array:
    """Return maps as lists of their entries, in the order of the keys."""
    lists = values.cast(pa.list_(pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])))
    raw_keys, raw_items = lists.flatten().flatten()
    keys, items = _converted(raw_keys, stored.key_type, key), _converted(raw_items, stored.item_type, value)
    order = pc.sort_indices(
        pa.table({"owner": pc.list_parent_indices(lists), "key": keys}),
        [("owner", "ascending"), ("key", "ascending")],
    )
    entries = pa.StructArray.from_arrays([keys.take(order), items.take(order)], fields=list(entry))
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return _listed(lengths, entries, pa.list_(pa.field("element", entry)), values.is_null())


def _listed(lengths: pa.Array, values: pa.Array, target: pa.DataType, null: pa.Array) -> pa.Array:
    """Return lists of such lengths, whose elements are ``values`` in order."""
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, values, type=target, mask=null)


def _clock_texts(values: pa.Array) -> pa.Array:
    """Return times of day as Python writes them: without a fraction if there is none."""
    texts = values.cast(pa.time64("ns")).cast(pa.string())
    return pc.replace_substring_regex(pc.replace_substring_regex(texts, r"000$", ""), r"\.0+$", "")


_SPARK: Final = b"org.apache.spark.version"
_OF_OLD_CALENDAR: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_FIRST_MODERN: Final = b"3"
_INT96: Final = "INT96"


@dataclass(frozen=True)
class ParquetSchema:
    """What ``file`` says of its columns, in its order.

    The columns have the types of their values.  Arrow's own schema gives them for all but times of 96 bits (INT96),
    which Spark writes by default and Arrow takes for times without a zone.  They are instants, with nanoseconds: Spark
    writes microseconds in them, other programs any.

    >>> import io
    >>> sink = io.BytesIO()
    >>> table = pa.table({"at": pa.array([1], pa.timestamp("us")), "n": pa.nulls(1)})
    >>> pq.write_table(table, sink, use_deprecated_int96_timestamps=True)
    >>> ParquetSchema(pq.ParquetFile(sink)).columns
    [('at', 'timestamp'), ('n', 'string')]
    """

    file: pq.ParquetFile

    @property
    def by_spark(self) -> bool:
        """Whether Spark wrote it."""
        return _SPARK in (self.file.metadata.metadata or {})

    @property
    def old_calendar(self) -> bool:
        """Whether dates before 1900 may be of the calendar that Spark had before version 3."""
        metadata = self.file.metadata.metadata or {}
        return any(key in metadata for key in _OF_OLD_CALENDAR) or metadata.get(_SPARK, _FIRST_MODERN) < _FIRST_MODERN

    @cached_property
    def leaves(self) -> Sequence[Sequence[int]]:
        """Of each column the numbers of the stored columns that hold it: the leaves of its type."""
        numbers = iter(range(len(self.file.schema)))
        return [list(_leaves(plain(field.type), numbers)) for field in self.file.schema_arrow]

    @cached_property
    def stored(self) -> pa.Schema:
        """The columns with their types."""
        unit = "us" if self.by_spark else "ns"
        return pa.schema(
            field.with_type(self._instants(plain(field.type), iter(leaves), unit))
            for field, leaves in zip(self.file.schema_arrow, self.leaves, strict=True)
        )

    @property
    def columns(self) -> list[tuple[str, str | None]]:
        """The columns with the types to read them as; None: nothing reads it."""
        return [
            (field.name, None if self.hides_digits(number) else type_of(field.type))
            for number, field in enumerate(self.stored)
        ]

    def has_nanoseconds(self, number: int) -> bool:
        """Tell whether times of 96 bits are in a column, and may have nanoseconds."""
        return not self.by_spark and any(self._is_int96(leaf) for leaf in self.leaves[number])

    def hides_digits(self, number: int) -> bool:
        """Tell whether such times stand inside lists, maps or structs, where Arrow does not say all their digits."""
        return self.has_nanoseconds(number) and bool(pa.types.is_nested(self.stored.field(number).type))

    def _is_int96(self, leaf: int) -> bool:
        return bool(self.file.schema.column(leaf).physical_type == _INT96)

    def _instants(self, kind: pa.DataType, leaves: Iterator[int], unit: str) -> pa.DataType:
        """Return a type whose times of 96 bits are the instants that they are."""
        if pa.types.is_struct(kind):
            inner = [kind.field(n) for n in range(kind.num_fields)]
            return pa.struct([field.with_type(self._instants(field.type, leaves, unit)) for field in inner])
        if pa.types.is_map(kind):
            return pa.map_(*(self._instants(each, leaves, unit) for each in (kind.key_type, kind.item_type)))
        if pa.types.is_list(kind):
            return pa.list_(self._instants(kind.value_type, leaves, unit))
        return pa.timestamp(unit, "UTC") if self._is_int96(next(leaves)) else kind


def _leaves(kind: pa.DataType, numbers: Iterator[int]) -> Iterator[int]:
    if not pa.types.is_nested(kind):
        yield next(numbers)
    elif pa.types.is_map(kind):
        yield from _leaves(kind.key_type, numbers)
        yield from _leaves(kind.item_type, numbers)
    else:
        for n in range(kind.num_fields):
            yield from _leaves(kind.field(n).type, numbers)
