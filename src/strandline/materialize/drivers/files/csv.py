"""Rows as CSV files: a header, and texts that are read back as the same values.

NULL is an empty field, an empty text is `""`.  What has no text that is read back (binary, arrays, structs) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from strandline.algebra.types import Atom, Decimal, parse
from strandline.materialize.drivers.staged.place import Place
from strandline.materialize.drivers.staged.table import aligned

SUFFIX: Final = ".csv"


def refusal(name: str, kind: str) -> str:
    """Return why a column cannot be in a CSV file; empty: it can.

    >>> refusal("a", "array<int>"), refusal("a", "decimal(9,2)")
    ('array<int> has no text in CSV; use format parquet', '')
    """
    match parse(name, kind):
        case Decimal():
            return ""
        case Atom(atom) if atom != "binary":
            return ""
        case _:
            return f"{kind} has no text in CSV; use format parquet"


def write(place: Place, name: str, rows: Iterator[pa.Table], schema: pa.Schema) -> int:
    """Write ``rows`` as a new file; return how many they are.  Without rows there is no file."""
    some = (each for each in rows if each.num_rows)
    first = next(some, None)
    if first is None:
        return 0
    count = int(first.num_rows)
    with place.create(name) as sink, csv.CSVWriter(sink, schema) as writer:
        writer.write_table(aligned(first, schema))
        for each in some:
            writer.write_table(aligned(each, schema))
            count += each.num_rows
    return count


def read(place: Place, name: str, schema: pa.Schema, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a file, in bounded tables of these columns of ``schema``; one that is not there is NULL.

    Raises `FileNotFoundError`.
    """
    wanted = pa.schema([schema.field(schema.names.index(each)) for each in columns])
    convert = csv.ConvertOptions(
        column_types={each.name: pa.string() if _is_moment(each.type) else each.type for each in schema},
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parsing = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    with place.open(name) as source:
        for batch in csv.open_csv(source, parse_options=parsing, convert_options=convert):
            rows = pa.Table.from_batches([batch])
            for number, each in enumerate(rows.column_names):
                kind = schema.field(each).type
                if _is_moment(kind):
                    rows = rows.set_column(number, each, _moments(rows[each], kind))
            yield aligned(rows, wanted)


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _moments(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return moments from the texts that Arrow writes, also those that it does not read: their years lack four digits.

    >>> _moments(pa.chunked_array([["-0043-03-15", None, "12000-01-02"]]), pa.date32()).cast(pa.int32()).to_pylist()
    [-735160, None, 3663383]
    """
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        plain = pc.replace_substring_regex(texts.combine_chunks(), "Z$", "")
        values = np.array(plain.to_pylist(), "datetime64[us]")
        return pa.chunked_array([pa.array(values, pa.timestamp("us")).cast(kind)])
