r"""Arrow tables as what COPY takes: CSV, which Arrow writes column by column, without a Python object per value.

NULL is an empty field, and an empty text is one in quotes.  Arrow quotes every text, so no line begins with ``\\.``.
A timestamp is written as UTC says it, without a zone: UTC is the session's, and with a zone Arrow takes far longer.
A year before 1 is written as PostgreSQL says it, with BC.

Source: PostgreSQL's manual, "COPY" (CSV Format), "Binary Data Types" (hex format).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from strandline.materialize.protocol.holds import DAY
from strandline.materialize.wire.values import not_finite, plain

_FIRST, _END = -719_162, 2_932_897
"""The days of the years 1 to 9999, which Arrow writes as PostgreSQL reads them."""
_LEAST, _GREATEST = 1e-6, 1e16
OPTIONS: Final = csv.WriteOptions(include_header=False, batch_size=1 << 16)


def csv_of(rows: pa.Table) -> memoryview:
    r"""Return rows as CSV.

    >>> bytes(csv_of(pa.table({"a": [1, None], "b": ["", None], "c": [b"\x00\xff", None]})))
    b'1,"","\\x00ff"\n,,\n'
    >>> bytes(csv_of(pa.table({"at": pa.array([0], pa.timestamp("us", "UTC"))})))
    b'1970-01-01 00:00:00.000000\n'
    """
    sink = pa.BufferOutputStream()
    csv.write_csv(pa.table([_texts(column) for column in rows.columns], names=rows.column_names), sink, OPTIONS)
    return memoryview(sink.getvalue())


def written_ahead(parts: Iterator[pa.Table]) -> Iterator[memoryview]:
    r"""Yield each part as CSV; the next one is written meanwhile, in a thread, while the server takes this one.

    >>> [bytes(part) for part in written_ahead(iter([pa.table({"a": [1]}), pa.table({"a": [2]})]))]
    [b'1\n', b'2\n']
    """
    written = map(csv_of, parts)
    with ThreadPoolExecutor(1, "strandline-copy") as writer:
        following = writer.submit(next, written, None)
        while (part := following.result()) is not None:
            following = writer.submit(next, written, None)
            yield part


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array((None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()), pa.string())
    if pa.types.is_timestamp(kind):
        naive = column.cast(pa.int64()).cast(pa.timestamp(kind.unit))
        return naive if _common(naive, pa.int64(), DAY) else _with_eras(naive)
    if pa.types.is_date(kind):
        return column if _common(column, pa.int32(), 1) else _with_eras(column)
    return plain(column, short).cast(pa.string()) if pa.types.is_nested(kind) else column


def short(value: float) -> float | str:
    """Return what stands for a double in ``jsonb``, which spells out all digits of a number, and knows no -0.

    >>> [short(each) for each in (1.5, 1e300, -2.5e-9, 0.0, -0.0, float("nan"))]
    [1.5, '1e+300', '-2.5e-09', 0.0, '-0.0', 'NaN']
    """
    if not math.isfinite(value):
        return not_finite(value)
    small = abs(value) < _LEAST and str(value) != "0.0"
    return repr(value) if small or abs(value) >= _GREATEST else value


def _common(column: pa.ChunkedArray, whole: pa.DataType, unit: int) -> bool:
    least, greatest = pc.min_max(column.cast(whole)).values()
    return not least.is_valid or (least.as_py() >= _FIRST * unit and greatest.as_py() < _END * unit)


def _with_eras(column: pa.ChunkedArray) -> pa.Array:
    return pa.array((None if text is None else with_era(text) for text in plain(column).to_pylist()), pa.string())


def with_era(text: str) -> str:
    """Return a date or time of ISO 8601 as PostgreSQL says it, which has no year 0.

    >>> with_era("-0043-03-15"), with_era("0000-01-01T00:00:00"), with_era("12000-01-01")
    ('0044-03-15 BC', '0001-01-01T00:00:00 BC', '12000-01-01')
    """
    year, rest = text[: text.index("-", 1)], text[text.index("-", 1) :]
    return text if int(year) > 0 else f"{1 - int(year):04d}{rest} BC"


def without_era(text: str) -> str:
    """Return a date or time of PostgreSQL's (in UTC) as ISO 8601 says it.

    >>> without_era("0044-03-15 BC"), without_era("12000-01-01 00:00:00.5+00")
    ('-0043-03-15', '12000-01-01 00:00:00.5')
    """
    said = text.removesuffix(" BC")
    moment = said.removesuffix("+00")
    if said == text:
        return moment
    year, _, rest = moment.partition("-")
    return f"{'-' if int(year) > 1 else ''}{int(year) - 1:04d}-{rest}"
