"""Frames of keyed records: their plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.keyed import GONE, KEPT, ORDER
from strandline.algebra.nodes import NOTHING, Get, Newest, Node
from strandline.algebra.schema import DIFF, ERROR, Schema
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Frame, Local

RECORDS: Final = "records"
HELD: Final = "held"
ERRORS: Final = "errors"
"""The names of the frames that a plan of `plan` reads."""


def plan(
    columns: Sequence[str], schema: Schema, key: Sequence[str], *, held: bool, errors: bool, once: bool = False
) -> Newest:
    """Return the plan of what records with ``columns`` change, beside rows and errors that are there, if any are.

    ``once``: no key has two records.
    """
    own = [*schema.names, ORDER, GONE, *(name for name in (KEPT, ERROR) if name in columns)]
    there: Node = Get(HELD, _as_they_are(schema.names)) if held else NOTHING
    erring: Node = Get(ERRORS, _as_they_are((ERROR,))) if errors else NOTHING
    return Newest(Get(RECORDS, _as_they_are(own)), there, erring, schema, tuple(key), once)


def without_idle(records: Frame) -> Frame:
    """Return records without the columns of errors and of what was left out, where no record has one.

    Most steps have neither, and their plan is the shorter one.
    """
    match records:
        case Local(table, plain):
            idle = [n for n in (ERROR, KEPT) if n in table.column_names and table[n].null_count == table.num_rows]
            return Local(table.drop_columns(idle), plain) if idle else records
        case _:
            return records


def is_once(records: Frame, key: Sequence[str]) -> bool:
    """Tell whether it is known that no key has two records: then their plan needs no order."""
    match records:
        case Local(table, _):
            keys = table.filter(pc.is_valid(table[GONE])).select(list(key))
            once = keys.append_column(DIFF, pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), keys.num_rows)]))
            return bool(inline.summed(once).num_rows == keys.num_rows)
        case _:
            return False


def _as_they_are(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)
