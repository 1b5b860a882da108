"""Rows of one PostgreSQL table as typed Arrow columns, from changes and from a snapshot: good rows, and errors.

A row in which one value is not of its column's type is an error as a whole: a JSON object with ``place`` (table and
position in the log), ``reason`` and ``raw`` (the texts of the declared columns).  An error that takes back an erroneous
row has the same reason and raw text, so that both leave (`algebra.messages`).

A whole column is cast at once, and value by value only where that fails.  A text that is no value of the type becomes
NULL and a reason, by which its row becomes an error: nothing is rounded, cut off or guessed.  A session's settings
(`postgres_forms`) fix the text forms, so that all readers see the same.

The rows of a snapshot come as the server's CSV, some thousand at a time.  A good chunk is cast by columns; one with a
wrong value goes row by row, as changes do, so that a row is the same good row or the same error whichever way it came.

Source: PostgreSQL's manual, "Data Types" (output forms), "COPY" (CSV: an unquoted empty field is NULL).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Number
from decimal import localcontext
from functools import cache
from re import DOTALL, Pattern, escape
from re import compile as compiled
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from strandline.algebra import arrow_types, types
from strandline.algebra.messages import GONE, KEPT, ORDER, TAKES_BACK
from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type
from strandline.errors import DefinitionError
from strandline.plane import Aside
from strandline.sources.readers.postgres.pgoutput import lsn_text
from strandline.sources.readers.postgres.server import Snapshot, UpstreamTable
from strandline.sources.readers.postgres.tables import Change, Reading, Texts

_DIGITS_MAX: Final = 38
_YEAR: Final = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY: Final = f"{_YEAR}-[0-9]{{2}}-[0-9]{{2}}"
_SHOWN: Final = f"{_DAY} [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:[.][0-9]{{1,6}})?"
_WHOLE: Final = "-?[0-9]{1,30}"
_PLAIN: Final[Mapping[str, str]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _WHOLE),
    **dict.fromkeys(("float", "double"), "-?[0-9]+(?:[.][0-9]*)?(?:e[+-][0-9]{1,4})?"),
    "date": _DAY,
    "timestamp": f"{_SHOWN}[+]00",
    "timestamp_ntz": _SHOWN,
}
"""The texts of each type that are cast at once."""
_INTEGER: Final = compiled(_WHOLE)
_REAL: Final = compiled(_PLAIN["double"])
_NUMBER: Final = compiled("-?[0-9]+(?:[.][0-9]+)?")
_DATE: Final = compiled(f"({_YEAR})-([0-9]{{2}})-([0-9]{{2}})")
_TIME: Final = compiled(
    f"({_DAY}) ([0-9]{{2}}):([0-9]{{2}}):([0-9]{{2}})(?:[.]([0-9]{{1,6}}))?"
    "(?:([+-])([0-9]{2})(?::([0-9]{2}))?(?::([0-9]{2}))?)?"
)


def arrow(kind: Type) -> pa.DataType:
    """Return the Arrow type of a column's values.

    Raises `DefinitionError`: no value of PostgreSQL is read as this type.
    """
    match kind:
        case Struct() | Array(Array() | Struct()):
            raise DefinitionError("a value of PostgreSQL is read as a plain type, or as an array of one")
        case _:
            return arrow_types.arrow(kind)


def typed(
    texts: pa.Array | Sequence[bytes | None], kind: Type, delimiter: str = ","
) -> tuple[pa.Array, dict[int, str]]:
    """Return the values of a column, and why there is none, by position, where a text is no value of ``kind``.

    ``delimiter``: what stands between the elements of an array.

    >>> typed([b"7", None, b"x"], Atom("int"))[1]
    {2: 'it is no int'}

    A string takes every type of PostgreSQL, as its text.  A decimal takes what it holds exactly; NaN and infinity are
    no decimals.  A ``timestamp`` is read from a text with a zone, and one without is taken as UTC; a ``timestamp_ntz``
    is what the clock shows in UTC.  Dates and times beyond the years 1 to 9999, and infinite ones, have no value.
    Arrays have one dimension.
    """
    target = arrow(kind)
    try:
        return _at_once(texts if isinstance(texts, pa.Array) else pa.array(texts, pa.binary()), kind, target), {}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, _OneByOne):
        pass
    values: list[Any] = []
    reasons: dict[int, str] = {}
    for n, text in enumerate(texts.to_pylist() if isinstance(texts, pa.Array) else texts):
        try:
            values.append(None if text is None else value(text, kind, delimiter))
        except ValueError as error:
            reasons[n] = str(error)
            values.append(None)
    return pa.array(values, target), reasons


class _OneByOne(Exception):
    """The column is not cast at once."""


def _at_once(texts: pa.Array, kind: Type, target: pa.DataType) -> pa.Array:
    """Return the values of a column whose texts are all plain: those give the same values one by one."""
    if kind == Atom("boolean"):
        found = pc.index_in(texts, pa.array([b"f", b"t"], pa.binary()))
        if found.null_count != texts.null_count:
            raise _OneByOne
        return found.cast(pa.bool_())
    strings = texts.cast(pa.string())
    if kind == Atom("string"):
        return strings
    pattern = _fitting(kind) if isinstance(kind, Decimal) else _PLAIN.get(kind.name) if isinstance(kind, Atom) else None
    if pattern is None or pc.all(pc.match_substring_regex(strings, f"^(?:{pattern})$")).as_py() is False:
        raise _OneByOne
    cast = strings.cast(target)
    return _finite(cast) if pa.types.is_floating(target) else cast


def _fitting(kind: Decimal) -> str:
    """Return the pattern of numbers that need no rescaling: Arrow's overflows silently."""
    whole = f"[0-9]{{1,{kind.precision - kind.scale}}}" if kind.precision > kind.scale else "0"
    return f"-?{whole}" + (f"(?:[.][0-9]{{1,{kind.scale}}})?" if kind.scale else "")


def _finite(floats: pa.Array) -> pa.Array:
    """Return floats with −0.0 as 0.0; refuse infinite ones, because a plain text writes none."""
    if pc.any(pc.is_inf(floats)).as_py():
        raise _OneByOne
    return pc.add(floats, pa.scalar(0.0, floats.type))


def value(text: bytes, kind: Type, delimiter: str = ",") -> Any:
    """Return the one value that ``text`` writes.  Raises `ValueError` saying why there is none.

    >>> value(b"1.50", Decimal(10, 1)), value(b"2024-02-29", Atom("date")), value(b"{1,NULL}", Array(Atom("int")))
    (Decimal('1.5'), datetime.date(2024, 2, 29), [1, None])
    """
    try:
        written = text.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    match kind:
        case Decimal(precision, scale):
            return _decimal(written, precision, scale)
        case Array(element):
            return [None if item is None else value(item.encode(), element) for item in items(written, delimiter)]
        case Atom(name):
            return _READ[name](written)
        case Struct():
            raise ValueError("a value of PostgreSQL is not read as a struct")


def _decimal(text: str, precision: int, scale: int) -> Number:
    if text in {"NaN", "Infinity", "-Infinity"}:
        raise ValueError(f"a decimal({precision},{scale}) cannot be {text}")
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"it is no decimal({precision},{scale})")
    number = Number(text)
    with localcontext(prec=len(text) + _DIGITS_MAX):
        scaled = number.scaleb(scale)
        whole = int(scaled)
        if whole != scaled:
            raise ValueError(f"it has more digits after the point than decimal({precision},{scale})")
        if abs(whole) >= 10**precision:
            raise ValueError(f"it has more digits than decimal({precision},{scale})")
        return Number(whole).scaleb(-scale)


def _integer(bits: int, name: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        if _INTEGER.fullmatch(text) is None:
            raise ValueError(f"it is no {name}")
        number = int(text)
        if not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise ValueError(f"it lies outside {name}")
        return number

    return read


def _float(target: pa.DataType, name: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        if text in {"NaN", "Infinity", "-Infinity"}:
            return float(text)
        if _REAL.fullmatch(text) is None:
            raise ValueError(f"it is no {name}")
        number = float(pa.array([text]).cast(target)[0].as_py())
        if number in {float("inf"), float("-inf")}:
            raise ValueError(f"it lies outside {name}")
        return number + 0.0

    return read


def _boolean(text: str) -> bool:
    if text not in {"t", "f", "true", "false"}:
        raise ValueError("it is no boolean")
    return text[0] == "t"


def _binary(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError("it is no bytea")
    return bytes.fromhex(text[2:])


def _date(text: str) -> date:
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError("it is no date of the years 1 to 9999")
    return date(int(found[1]), int(found[2]), int(found[3]))


def _clock(text: str) -> datetime:
    """Return what the clock shows in UTC; a text without a zone is in UTC."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("it is no time of the years 1 to 9999")
    day, fraction = _date(found[1]), (found[5] or "").ljust(6, "0")
    shown = datetime(day.year, day.month, day.day, int(found[2]), int(found[3]), int(found[4]), int(fraction))  # noqa: DTZ001
    if found[6] is None:
        return shown
    ahead = timedelta(hours=int(found[7]), minutes=int(found[8] or 0), seconds=int(found[9] or 0))
    try:
        return shown - ahead if found[6] == "+" else shown + ahead
    except OverflowError:
        raise ValueError("it is no time of the years 1 to 9999") from None


def _instant(text: str) -> datetime:
    return _clock(text).replace(tzinfo=UTC)


_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "boolean": _boolean,
    "tinyint": _integer(8, "tinyint"),
    "smallint": _integer(16, "smallint"),
    "int": _integer(32, "int"),
    "bigint": _integer(64, "bigint"),
    "float": _float(pa.float32(), "float"),
    "double": _float(pa.float64(), "double"),
    "string": str,
    "binary": _binary,
    "date": _date,
    "timestamp": _instant,
    "timestamp_ntz": _clock,
}


def items(text: str, delimiter: str = ",") -> list[str | None]:
    r"""Return the texts of an array of one dimension.

    >>> items('{1,NULL,"a,\\"b","NULL"}'), items("{}")
    (['1', None, 'a,"b', 'NULL'], [])
    >>> items("{(3,4),(1,2);(7,8),(5,6)}", ";")
    ['(3,4),(1,2)', '(7,8),(5,6)']
    """
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("it is no array that begins at 1")
    return list(_items(text[1:-1], delimiter))


@cache
def _item(delimiter: str) -> Pattern[str]:
    """Return the pattern of an element, in quotes or not."""
    other = rf'"{{}}\\{escape(delimiter)}'
    return compiled(rf'"((?:[^"\\]|\\.)*)"|([^{other}\s](?:[^{other}]|\\.)*)', DOTALL)


def _items(inner: str, delimiter: str) -> Iterator[str | None]:
    at = 0
    while at < len(inner) or (at and inner[at - 1] == delimiter):
        found = _item(delimiter).match(inner, at)
        if found is None:
            raise ValueError("it is no array of one dimension")
        quoted, plain = found[1], found[2]
        if quoted is None and plain.upper() == "NULL":
            yield None
        else:
            yield _UNESCAPED.sub(r"\1", plain if quoted is None else quoted)
        at = found.end()
        if at < len(inner):
            if inner[at] != delimiter:
                raise ValueError("it is no array of one dimension")
            at += 1


_UNESCAPED: Final = compiled(r"\\(.)", DOTALL)


def spark_type(name: str) -> str:
    """Return the type of a collection's column that holds every value of a type of PostgreSQL (`format_type`), or text.

    >>> [spark_type(name) for name in ("integer", "numeric(10,2)", "numeric", "timestamp(3) with time zone", "uuid")]
    ['int', 'decimal(10,2)', 'string', 'timestamp', 'string']
    >>> spark_type("bigint[]"), spark_type("json[]")
    ('array<bigint>', 'array<string>')
    """
    if name.endswith("[]"):
        return f"array<{spark_type(name[:-2])}>"
    digits = _NUMERIC.fullmatch(name)
    if digits is not None and int(digits[1]) <= _DIGITS_MAX and 0 <= int(digits[2]) <= int(digits[1]):
        return f"decimal({digits[1]},{digits[2]})"
    return _SPARK.get(_MODIFIER.sub("", name), "string")


_NUMERIC: Final = compiled(r"numeric\((\d+),(-?\d+)\)")
_MODIFIER: Final = compiled(r"\(\d+\)")
_SPARK: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "date": "date",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
    "bytea": "binary",
}


LSN: Final = "__lsn"
"""Where in the log a change was committed; instead of its time, which a read knows."""


def table_of(reading: Reading, changes: Sequence[Change], lsns: Sequence[int], orders: Sequence[int]) -> pa.Table:
    """Return changes with their columns, `ERROR`, `DIFF`, `LSN`, and if they are keyed `ORDER`, `GONE` and `KEPT`."""
    names, kinds = reading.schema.names, [kind for _, kind in types.columns(reading.schema)]
    columns, bad = [], dict[int, list[str]]()
    for n, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        delimiter = reading.note.columns[n].delimiter
        values, reasons = typed([change.texts[n] for change in changes], kind, delimiter)
        columns.append(values)
        for row, why in reasons.items():
            if not (changes[row].gone and reading.key is not None and n not in reading.key):
                bad.setdefault(row, []).append(f"column {name!r}: {why}")
    unkeyed = _unkeyed(reading, bad, names)
    for row, change in enumerate(changes):
        if change.reason:
            bad.setdefault(row, []).insert(0, change.reason)
    errors = [
        _error(reading, change, lsn, bad[row]) if row in bad else None
        for row, (change, lsn) in enumerate(zip(changes, lsns, strict=True))
    ]
    table = pa.table(dict(zip(names, _withheld(reading, columns, bad, unkeyed), strict=True)))
    table = table.append_column(ERROR, pa.array(errors, pa.string()))
    diffs = [1 if row in bad else change.diff for row, change in enumerate(changes)]
    table = table.append_column(DIFF, pa.array(diffs, pa.int64()))
    table = table.append_column(LSN, pa.array(lsns, pa.int64()))
    if reading.key is None:
        return table
    gone = [None if row in unkeyed else change.gone and row not in bad for row, change in enumerate(changes)]
    kept = [
        [names[n] for n in change.kept] if change.kept and row not in bad else None
        for row, change in enumerate(changes)
    ]
    table = table.append_column(ORDER, pa.array(orders, pa.int64()))
    table = table.append_column(GONE, pa.array(gone, pa.bool_()))
    return table.append_column(KEPT, pa.array(kept, pa.list_(pa.string())))


def _unkeyed(reading: Reading, bad: dict[int, list[str]], names: Sequence[str]) -> frozenset[int]:
    """Return the rows whose key has no value."""
    if reading.key is None:
        return frozenset()
    marks = tuple(f"column {names[n]!r}: " for n in reading.key)
    return frozenset(row for row, reasons in bad.items() if any(reason.startswith(marks) for reason in reasons))


def _withheld(
    reading: Reading, columns: Sequence[pa.Array], bad: dict[int, list[str]], unkeyed: frozenset[int]
) -> list[pa.Array]:
    """Return the columns with NULL in the rows that are errors; a known key stays."""
    if not bad:
        return list(columns)
    found = []
    for n, column in enumerate(columns):
        keeps = reading.key is not None and n in reading.key
        out = [row in bad and not (keeps and row not in unkeyed) for row in range(len(column))]
        found.append(pa.compute.if_else(pa.array(out), pa.scalar(None, column.type), column))
    return found


def _error(reading: Reading, change: Change, lsn: int, reasons: Sequence[str]) -> str:
    told = {
        "place": f"{reading.reference}@{lsn_text(lsn)}",
        "reason": (TAKES_BACK if change.diff < 0 else "") + "; ".join(reasons),
        "raw": _raw(reading.schema.names, change.texts),
    }
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False)


def _raw(names: Sequence[str], texts: Texts) -> str:
    told = {name: None if text is None else _shown(text) for name, text in zip(names, texts, strict=True)}
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False)


def _shown(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(text).decode()


async def copied(
    snapshot: Snapshot, upstream: UpstreamTable, reading: Reading, time: int, into: Aside, seen: Callable[[int], None]
) -> None:
    """Put the rows of a table into ``into``, at ``time``, before all changes; say how many each time.

    ``seen`` is called in the thread that copies.
    """
    columns = [column.name for column in reading.note.columns]

    def take(lines: Sequence[bytes]) -> None:
        if lines:
            table = _table_of(reading, parsed(lines, len(columns)), snapshot.position)
            into.add(table.append_column(TIME, pa.array([time] * table.num_rows, pa.int64())))
            seen(table.num_rows)

    await snapshot.copy(upstream, columns, take)


def parsed(lines: Sequence[bytes], width: int) -> list[pa.Array]:
    r"""Return the columns of lines of CSV, as bytes; an empty field is NULL, and a quoted one is empty.

    >>> [column.to_pylist() for column in parsed([b'1,"a,\nb"\n', b',""\n'], 2)]
    [[b'1', None], [b'a,\nb', b'']]
    """
    names = [str(n) for n in range(width)]
    table = csv.read_csv(
        pa.py_buffer(b"".join(lines)),
        csv.ReadOptions(column_names=names, use_threads=False, block_size=1 << 30),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    assert table.num_rows == len(lines)
    return [column.combine_chunks() for column in table.columns]


def _table_of(reading: Reading, texts: Sequence[pa.Array], position: int) -> pa.Table:
    columns = {}
    for (name, kind), note, text in zip(types.columns(reading.schema), reading.note.columns, texts, strict=True):
        columns[name], reasons = typed(text, kind, note.delimiter)
        if reasons:
            return _row_by_row(reading, texts, position)
    rows = len(texts[0])
    table = pa.table({**columns, ERROR: pa.nulls(rows, pa.string()), DIFF: pa.array([1] * rows, pa.int64())})
    if reading.key is None:
        return table
    table = table.append_column(ORDER, pa.array([0] * rows, pa.int64()))
    table = table.append_column(GONE, pa.array([False] * rows, pa.bool_()))
    return table.append_column(KEPT, pa.nulls(rows, pa.list_(pa.string())))


def _row_by_row(reading: Reading, texts: Sequence[pa.Array], position: int) -> pa.Table:
    changes = [Change(row) for row in zip(*(text.to_pylist() for text in texts), strict=True)]
    table = table_of(reading, changes, [position] * len(changes), [0] * len(changes))
    return table.drop_columns([LSN])
