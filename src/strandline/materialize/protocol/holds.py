"""What an endpoint can hold: the ranges that a driver declares, and the one check of all rows against them.

The runtime checks what is new in a window before the window's extent is durable (`transfer`).  So a row that an
endpoint cannot hold stops the task before anything of it is sent, with one sentence that says which row it is; and once
that row is gone, the task goes on.  A driver that is served to other runtimes checks by the same function.

No endpoint holds a text that is not UTF-8, such as half of a surrogate pair, though Spark allows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.schema import DIFF
from strandline.errors import DefinitionError
from strandline.materialize.protocol.messages import DELETE
from strandline.materialize.protocol.task import Binding
from strandline.problem import Problem, Stopped, Way

DAY: Final = 86_400_000_000
"""The microseconds of a day."""
SHOWN_MAX: Final = 80
"""How much of a value a message shows."""

UNHELD: Final = Problem(
    "value-not-storable",
    "{collection!r} into {resource!r}: {row} has the {what} {value} in column {column!r}{inside}, which {system} "
    "cannot store: {limit}",
    Stopped.ENDPOINT,
    (Way("take the row out, or {advice}"),),
)
LONG_KEY: Final = Problem(
    "key-too-long",
    "{collection!r} into {resource!r}: {row} has a key of {bytes} bytes, which {system} cannot store: a key has at "
    "most {most} bytes",
    Stopped.ENDPOINT,
    (Way("take the row out, or declare a shorter key, as by md5"),),
)
NOT_TEXT: Final = Problem(
    "text-not-utf-eight",
    "{collection!r} into {resource!r}: {row} has a text in column {column!r} that is not UTF-8, which no endpoint can "
    "store",
    Stopped.ENDPOINT,
    (Way("mend it, or make the column BINARY"),),
)


@dataclass(frozen=True, slots=True)
class Days:
    """The dates and times from a first day to a last one, counted from 1970, and how a message says that."""

    first: int
    last: int
    said: str


@dataclass(frozen=True, slots=True)
class Holds:
    """What the endpoint called ``system`` can hold of what Spark can.

    Attributes:
        system: its name in a message.
        dates: the dates that it holds; None: all.
        times: the days whose times it holds; None: those of ``dates``.
        finite: it has no NaN and no infinity.
        nul: a text may have a NUL character.
        key_bytes: how many bytes the texts of a key may have together; None: any number.
        inside: what holds inside of arrays and structs, if they are kept in another form (as JSON).
    """

    system: str = ""
    dates: Days | None = None
    times: Days | None = None
    finite: bool = False
    nul: bool = True
    key_bytes: int | None = None
    inside: Holds | None = None

    @property
    def within(self) -> Holds:
        """What holds inside of arrays and structs."""
        return self if self.inside is None else self.inside


EVERYTHING: Final = Holds()


@dataclass(frozen=True, slots=True)
class _Fault:
    """Which values cannot be held, by a mask over an array, and why."""

    values: pa.Array
    mask: pa.Array
    what: str
    limit: str
    instead: str


def require_held(binding: Binding, batch: pa.RecordBatch | pa.Table, holds: Holds) -> None:
    """Raise `DefinitionError` for the first row that the endpoint cannot hold; rows that go are not looked at."""
    rows = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
    _require_texts(binding, rows)
    if holds == EVERYTHING:
        return
    if DIFF in rows.column_names:
        rows = rows.filter(pc.greater(rows[DIFF], 0))
    elif DELETE in rows.column_names:
        rows = rows.filter(pc.invert(rows[DELETE]))
    if not rows.num_rows:
        return
    for name in binding.schema.names:
        for fault in _faults(_whole(rows[name]), holds):
            raise _refused(binding, rows, name, holds, fault)
    if holds.key_bytes is not None and binding.key and not binding.delta:
        _require_short_keys(binding, rows, holds)


def key_text(binding: Binding, rows: pa.Table, row: int) -> str:
    """Return the key of a row, for a message."""
    values = {name: _shown(rows[name].slice(row, 1)) for name in binding.key}
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _about(binding: Binding, rows: pa.Table, row: int) -> dict[str, str]:
    return {"collection": binding.collection, "resource": binding.resource, "row": _row_text(binding, rows, row)}


def _row_text(binding: Binding, rows: pa.Table, row: int) -> str:
    return f"the row with the key ({key_text(binding, rows, row)})" if binding.key else "a row"


def _whole(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


# --- each value -------------------------------------------------------------------------------------------------------
def _faults(array: pa.Array, holds: Holds) -> Iterator[_Fault]:
    kind = array.type
    if pa.types.is_struct(kind):
        for child in array.flatten():
            yield from _faults(child, holds.within)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _faults(array.flatten(), holds.within)
    elif pa.types.is_date(kind) and holds.dates is not None:
        yield from _far(array, array.cast(pa.int32()), holds.dates, 1, "date")
    elif pa.types.is_timestamp(kind) and (holds.times or holds.dates) is not None:
        days = holds.times or holds.dates
        assert days is not None
        yield from _far(array, array.cast(pa.int64()), days, DAY, "time")
    elif pa.types.is_floating(kind) and holds.finite:
        odd = pc.invert(pc.is_finite(array))
        yield from _any(_Fault(array, odd, "number", "it holds no NaN and no infinity", "nanvl({c}, NULL)"))
    elif (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and not holds.nul:
        nul = pc.match_substring(array, "\0")
        yield from _any(_Fault(array, nul, "text", "it holds no NUL character", "replace({c}, char(0), '')"))


def _far(array: pa.Array, numbers: pa.Array, days: Days, unit: int, what: str) -> Iterator[_Fault]:
    extremes = pc.min_max(numbers)
    first, last = max(days.first * unit, -(2**63)), min((days.last + 1) * unit - 1, 2**63 - 1)
    least, greatest = extremes["min"].as_py(), extremes["max"].as_py()
    if least is None or (least >= first and greatest <= last):
        return
    mask = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
    instead = "CASE WHEN year({c}) BETWEEN … THEN {c} END"
    yield from _any(_Fault(array, mask, what, f"it holds {days.said}", instead))


def _any(fault: _Fault) -> Iterator[_Fault]:
    if pc.any(fault.mask).as_py():
        yield fault


def _refused(binding: Binding, rows: pa.Table, name: str, holds: Holds, fault: _Fault) -> DefinitionError:
    """Return the error for the first row that has the fault; ``name``: its column."""
    at = next((row for row in range(rows.num_rows) if any(_faults(_whole(rows[name].slice(row, 1)), holds))), 0)
    found = next(iter(_faults(_whole(rows[name].slice(at, 1)), holds)), fault)
    value = _shown(found.values.filter(pc.fill_null(found.mask, False)))
    inside = "" if found.values.type == rows[name].type else " (inside of it)"
    column = f"`{name.replace('`', '``')}`"
    advice = "mend it" if inside else f"give it another value, as by {found.instead.format(c=column)}"
    what = {"what": found.what, "value": value, "column": name, "inside": inside, "limit": found.limit}
    return DefinitionError(UNHELD.said(**_about(binding, rows, at), **what, system=holds.system, advice=advice))


def _require_short_keys(binding: Binding, rows: pa.Table, holds: Holds) -> None:
    assert holds.key_bytes is not None
    sizes: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(rows.num_rows, np.int64)
    for name in binding.key:
        values = _whole(rows[name])
        if pa.types.is_string(values.type) or pa.types.is_binary(values.type) or pa.types.is_large_string(values.type):
            sizes += pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not (sizes > holds.key_bytes).any():
        return
    at = int(np.argmax(sizes))
    sized = {"bytes": sizes[at], "most": holds.key_bytes}
    raise DefinitionError(LONG_KEY.said(**_about(binding, rows, at), **sized, system=holds.system))


# --- texts ------------------------------------------------------------------------------------------------------------
def _require_texts(binding: Binding, rows: pa.Table) -> None:
    for name in binding.schema.names:
        if _are_texts(rows[name]):
            continue
        at = next((row for row in range(rows.num_rows) if not _are_texts(_alone(rows[name], row))), None)
        if at is None:
            continue  # the text is in an array of a row that is not in this slice
        raise DefinitionError(NOT_TEXT.said(**_about(binding, rows, at), column=name))


def _alone(column: pa.ChunkedArray, row: int) -> pa.ChunkedArray:
    return column.take(pa.array([row]))


def _are_texts(values: pa.ChunkedArray) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _shown(values: pa.ChunkedArray | pa.Array) -> str:
    """Return the first of some values, for a message: also a year that Python does not have, and bytes of no text."""
    kind = values.type
    try:
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            naive = values.cast(pa.timestamp("us")) if pa.types.is_timestamp(kind) else values
            value = naive.cast(pa.string())[0].as_py()
            text = "NULL" if value is None else str(value)
        else:
            found = values[0].as_py()
            text = "NULL" if found is None else repr(found)
    except UnicodeDecodeError:
        text = repr(values[0].cast(pa.binary()).as_py())
    except (OverflowError, ValueError):  # a date in a struct
        text = str(values[0])
    return f"{text[:SHOWN_MAX]}…" if len(text) > SHOWN_MAX else text
