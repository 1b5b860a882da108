r"""Arrow tables as what COPY takes: CSV, which Arrow writes column by column, without a Python object per value.

NULL is an empty field, and an empty text is one in quotes.  Arrow quotes every text, so no line begins with ``\\.``.

Source: PostgreSQL's manual, "COPY" (CSV Format), "Binary Data Types" (hex format).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyarrow import csv

from strandline.materialize.wire.values import plain

OPTIONS: Final = csv.WriteOptions(include_header=False, batch_size=1 << 16)


def csv_of(rows: pa.Table) -> memoryview:
    r"""Return rows as CSV.

    >>> bytes(csv_of(pa.table({"a": [1, None], "b": ["", None], "c": [b"\x00\xff", None]})))
    b'1,"","\\x00ff"\n,,\n'
    """
    sink = pa.BufferOutputStream()
    csv.write_csv(pa.table([_texts(column) for column in rows.columns], names=rows.column_names), sink, OPTIONS)
    return memoryview(sink.getvalue())


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array((None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()), pa.string())
    return plain(column).cast(pa.string()) if pa.types.is_nested(kind) else column
