"""Rows as texts, for drivers that push them: JSON objects, names of key ranges, verdicts, and a stable order.

The values in JSON are those of `wire.values`.  Flat columns never become Python objects: Arrow writes the numbers, and
only texts with a quote, a backslash or a control character are handled one by one.

A replayed transaction has the same changes, but not in the same order: how Spark divides its work depends on how the
collection is stored at that moment.  An endpoint that numbers its pushed rows therefore sorts them into an order that
depends on nothing but the changes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.schema import DIFF, TIME, Column
from strandline.algebra.types import parse
from strandline.errors import DefinitionError, Determinate, first_line
from strandline.materialize.driver import Constraint, ConstraintKind, Validated
from strandline.materialize.protocol.messages import DELETE
from strandline.materialize.protocol.task import WHOLE, Binding, KeyRange
from strandline.materialize.spool import Spool
from strandline.materialize.wire.values import not_finite, plain

TRANSACTIONS: Final = "transactions"
"""In the state of a session: the number of the last transaction of each state key."""


def joined(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of what several key ranges are joined to: no number of a transaction comes again.

    >>> joined([{"transactions": {"t.v0": 3}}, {"transactions": {"t.v0": 5}}])
    {'transactions': {'t.v0': 5}}
    """
    numbers: dict[str, int] = {}
    for state in states:
        for key, number in state.get(TRANSACTIONS, {}).items():
            numbers[key] = max(number, numbers.get(key, 0))
    return {TRANSACTIONS: numbers}


def label(task: str, range_: KeyRange) -> str:
    """Return the name of a task's key range in what it pushes.

    >>> label("m", WHOLE), label("m", KeyRange(0, 9))
    ('m', 'm[00000000-00000009]')
    """
    return task if range_ == WHOLE else f"{task}[{range_}]"


_ESCAPED: Final = '["\\\\\x00-\x1f]'
"""What JSON does not let stand in a text, as a pattern."""
_NULL: Final = pa.scalar("null")
_encode: Final = msgspec.json.Encoder().encode


def objects(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    r"""Return the columns ``names`` of each row as the text of one JSON object, in their order.

    >>> objects(pa.table({"b": ['"', None], "a": [1, 2]}), ["a", "b"]).to_pylist()
    ['{"a":1,"b":"\\""}', '{"a":2,"b":null}']
    >>> objects(pa.table({"a": [1]}), []).to_pylist()
    ['{}']
    """
    if not names:
        return pa.array(["{}"] * len(rows), pa.string())
    parts: list[pa.Array | pa.Scalar] = []
    for place, name in enumerate(names):
        parts += [pa.scalar(("," if place else "{") + _encode(name).decode() + ":"), values(rows[name])]
    return pc.binary_join_element_wise(*parts, pa.scalar("}"), "")


def values(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return the JSON text of each value.

    >>> values(pa.array([0.5, None, float("nan")])).to_pylist()
    ['0.5', 'null', '"NaN"']
    """
    array = _flat(column)
    written = bare(array)
    if _is_text(array.type):
        written = _escaped(written)
    elif pa.types.is_floating(array.type):
        written = pc.if_else(pc.is_finite(array), written, _quoted(written))
    elif not _is_json(array.type):
        written = _quoted(written)
    return pc.fill_null(written, _NULL)


def bare(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return the text of each value without JSON's quotes, and NULL for NULL.

    >>> bare(pa.array(['a"b', None])).to_pylist(), bare(pa.array([[1.0, None]])).to_pylist()
    (['a"b', None], ['[1.0,null]'])
    """
    array = _flat(column)
    kind = array.type
    if pa.types.is_floating(kind):
        return _numbers(array)
    if _is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return array.cast(pa.string())
    return plain(array).cast(pa.string())


def _flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_json(kind: pa.DataType) -> bool:
    """Return whether the text of a value is JSON as it stands."""
    simple = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    return bool(simple or pa.types.is_nested(kind))


def _numbers(array: pa.Array) -> pa.Array:
    """Return the shortest digits of each number, as many as its own type tells apart."""
    written = array.cast(pa.string())
    odd = pc.invert(pc.fill_null(pc.is_finite(array), True))
    if not pc.any(odd).as_py():
        return written
    named = pa.array([not_finite(each) for each in array.filter(odd).to_pylist()], pa.string())
    return pc.replace_with_mask(written, odd, named)


def _quoted(written: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', written, '"', "")


def _escaped(texts: pa.Array) -> pa.Array:
    special = pc.fill_null(pc.match_substring_regex(texts, _ESCAPED), False)
    if not pc.any(special).as_py():
        return _quoted(texts)
    escaped = pa.array([_encode(each).decode() for each in texts.filter(special).to_pylist()], pa.string())
    return pc.replace_with_mask(_quoted(texts), special, escaped)


def keys(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Return the key of each row as the text of a JSON object: one text for values that SQL calls not distinct.

    >>> keys(pa.table({"k": [0.0, -0.0]}), ["k"]).to_pylist()
    ['{"k":0}', '{"k":0}']
    """
    return objects(one_zero(rows.select(list(names))), names)


def one_zero(rows: pa.Table) -> pa.Table:
    """Return the rows with 0.0 for -0.0, which SQL calls not distinct."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_floating(field.type):
            rows = rows.set_column(place, field, pc.add(rows.column(place), pa.scalar(0, field.type)))
    return rows


def push_only(binding: Binding, endpoint: str) -> Validated:
    """Return the verdict of ``endpoint`` (its name in a sentence): changes it takes, contents it cannot keep."""
    if binding.delta:
        return Validated({column.name: _pushed(binding, column) for column in binding.columns}, empties=False)
    refusal = Constraint(
        ConstraintKind.FIELD_FORBIDDEN,
        f"{endpoint} is pushed to and cannot be asked which rows it has; option delta = 'true' pushes the changes",
    )
    return Validated(dict.fromkeys(binding.schema.names, refusal))


def _pushed(binding: Binding, column: Column) -> Constraint:
    try:
        parse(column.name, column.type)
    except DefinitionError as error:
        return Constraint(ConstraintKind.INCOMPATIBLE, str(error))
    if column.name in binding.key:
        return Constraint(ConstraintKind.LOCATION_REQUIRED, "part of the key, pushed as JSON")
    return Constraint(ConstraintKind.FIELD_OPTIONAL, "pushed as JSON")


MEMORY_MAX: Final = "128MB"
"""What sorting takes of memory; beyond that it takes a temporary file."""
_ORDER: Final = "SELECT key, value FROM changes ORDER BY time, key, diff, value"
_KEY, _VALUE, _TIME, _DIFF = "key", "value", "time", "diff"


def texts(binding: Binding, rows: pa.Table) -> pa.Table:
    """Return the rows of a `Store` as JSON, and by what they are ordered.

    The key is NULL without one, the value is NULL where the row is gone.
    """
    values = objects(rows, [column.name for column in binding.columns])
    none = pa.nulls(len(rows), pa.string())
    zeros = pa.array([0] * len(rows), pa.int64())
    return pa.table(
        {
            _KEY: keys(rows, binding.key) if binding.key else none,
            _VALUE: pc.if_else(rows[DELETE].combine_chunks(), pa.scalar(None, pa.string()), values),
            _TIME: rows[TIME] if binding.times else zeros,
            _DIFF: rows[DIFF] if binding.diffs else zeros,
        }
    )


def ordered(changes: Spool, at_once: int) -> Generator[pa.RecordBatch, None, None]:
    """Yield key and value of all `texts`: by time, then those of one key together, what goes before what comes.

    Raises `Determinate` if they cannot be sorted here.
    """
    if not changes.rows:
        return
    try:
        with tempfile.TemporaryDirectory() as directory:
            config: dict[str, Any] = {"memory_limit": MEMORY_MAX, "temp_directory": directory, "threads": "1"}
            with closing(duckdb.connect(":memory:", config=config)) as connection:
                connection.register("changes", changes.relation())
                yield from connection.sql(_ORDER).to_arrow_reader(at_once)
    except (duckdb.Error, OSError) as error:
        raise Determinate(f"changes cannot be sorted in {tempfile.gettempdir()}: {first_line(error)}") from error
