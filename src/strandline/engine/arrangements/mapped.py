"""Tables that are too large for the heap: Arrow files without a name, mapped into memory.

They take page cache and disk.  Nothing is left of them when the process ends, however it ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import pyarrow as pa

MAPPED_BYTES_MIN: Final = 4 << 20
"""A table of fewer bytes stays in the heap."""
BATCH_BYTES: Final = 32 << 20
"""Record batches have so many bytes or a little more, if the tables that they are made of are smaller."""


def mapped(schema: pa.Schema, tables: Iterable[pa.Table]) -> pa.Table:
    """Return ``tables``, which are read one by one, as one; in a file if it is large."""
    few: list[pa.Table] = []
    rest = _collected(schema, tables)
    for table in rest:
        few.append(table)
        if sum(each.nbytes for each in few) >= MAPPED_BYTES_MIN:
            break
    else:
        return pa.concat_tables([schema.empty_table(), *few]).combine_chunks()
    with tempfile.NamedTemporaryFile(prefix="strandline-", suffix=".arrow") as file:
        with pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
            for table in chain(few, rest):
                writer.write_table(table)
        file.flush()
        return pa.ipc.open_file(pa.memory_map(file.name)).read_all()


def _collected(schema: pa.Schema, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of ``tables`` in tables of one chunk, few of them."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(each.nbytes for each in waiting) >= BATCH_BYTES:
            yield from _chunks(schema, waiting)
            waiting = []
    if waiting:
        yield from _chunks(schema, waiting)


def _chunks(schema: pa.Schema, tables: list[pa.Table]) -> Iterator[pa.Table]:
    together = pa.concat_tables(tables).cast(schema).combine_chunks()
    for batch in together.to_batches():
        if batch.num_rows:
            yield pa.Table.from_batches([batch])
