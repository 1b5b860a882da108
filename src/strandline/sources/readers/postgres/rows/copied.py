"""The rows of a table as a snapshot has them: the server's CSV as typed columns, some thousand rows at a time.

A good chunk is cast by columns; one with a value that has none of its column's type goes row by row, as changes do, so
that the same row is the same good row or the same error whichever way it came.

Source: PostgreSQL's manual, "COPY" (CSV: an unquoted empty field is NULL).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyarrow import csv

from strandline.algebra import types
from strandline.algebra.keyed import GONE, KEPT, ORDER
from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.plane.staging import Aside
from strandline.sources.readers.postgres.rows.columns import LSN, table_of
from strandline.sources.readers.postgres.rows.values import typed
from strandline.sources.readers.postgres.server import Snapshot, UpstreamTable
from strandline.sources.readers.postgres.tables import Change, Reading


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
