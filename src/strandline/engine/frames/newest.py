"""Frames of keyed records: their plan, and the way in for a table of them.

Source: design page "sources" (envelopes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.keyed import GONE, KEPT, ORDER
from strandline.algebra.nodes import NOTHING, Get, Newest, Node
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Frame, Local
from strandline.errors import InvalidUsage

RECORDS: Final = "records"
HELD: Final = "held"
ERRORS: Final = "errors"
"""The names of the frames that a plan of `plan` reads."""

_RECORD: Final[Mapping[str, pa.DataType]] = {
    ERROR: pa.string(),
    ORDER: pa.int64(),
    GONE: pa.bool_(),
    KEPT: pa.list_(pa.string()),
    TIME: pa.int64(),
    DIFF: pa.int64(),
}
_OPTIONAL: Final = frozenset({ERROR, KEPT, DIFF})


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


def table_of(records: pa.Table, schema: Schema) -> pa.Table:
    """Return records with columns of the right types in order, and a diff of 1 where they have none.

    Raises:
        InvalidUsage: a column is missing, unknown or of a type that cannot be cast; the message names it.
    """
    of_schema = inline.update_schema(schema)
    target = {**{name: of_schema.field(name).type for name in schema.names}, **_RECORD}
    given = set(records.column_names)
    missing, unknown = target.keys() - given - _OPTIONAL, given - target.keys()
    if missing or unknown:
        raise InvalidUsage(
            f"keyed records have the columns {', '.join(target)}; "
            f"missing: {', '.join(sorted(missing)) or 'none'}; unknown: {', '.join(sorted(unknown)) or 'none'}"
        )
    columns = {}
    for name, kind in target.items():
        if name in given:
            try:
                columns[name] = records[name].cast(kind)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InvalidUsage(f"column {name!r} cannot be cast to {kind}: {error}") from error
        elif name == DIFF:
            columns[name] = pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), records.num_rows)])
    return pa.table(columns)


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
