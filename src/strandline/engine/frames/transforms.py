"""Frames made of frames before anything is written: plans over plans, narrowed tables, and withdrawn errors.

Also the frames of keyed records (`plan`), and the answers that stages share in one tick (`Shared`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import date
from functools import reduce
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra import types
from strandline.algebra.messages import GONE, KEPT, ORDER, TAKES_BACK
from strandline.algebra.nodes import NOTHING, Get, Newest, Node, Project, rebuilt, with_frames
from strandline.algebra.scalar import Comparison, Condition, Scalar, column
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.engine.frames import forms, inline
from strandline.engine.frames.rows import Behind, Distributed, Frame, Local, Planned, dataframe


@dataclass(frozen=True, slots=True)
class Whole:
    """The plan ``node`` over ``tables``, whose times count from ``origin``; and the same ``behind`` the inner plans."""

    node: Node
    tables: Mapping[str, pa.Table]
    origin: int
    behind: Behind


def derived(node: Node, drafted: Mapping[str, tuple[Schema, Frame]]) -> Whole | None:
    """Return the plan of ``node`` over what is drafted; None if the rows cannot be handed on.

    If the inner plans are run in the same call, the outer one reads what they gave.  Otherwise all of it is one plan
    over the tables of the inner ones.  Rows that are written become normal first (`frames.forms`), and rows inside one
    plan do not.  So rows with floats in them are not handed on.
    """
    inner: dict[str, Node] = {}
    plans: dict[str, Planned] = {}
    tables: dict[str, pa.Table] = {}
    origins: set[int] = set()
    for name, (schema, frame) in drafted.items():
        if not isinstance(frame, Planned) or any(forms.has_floats(kind) for _, kind in types.columns(schema)):
            return None
        own = {each: f"{name}/{each}" for each in frame.tables}  # two of them may read different columns of one frame
        inner[name] = with_frames(frame.node, own.__getitem__)
        tables |= {own[each]: table for each, table in frame.tables.items()}
        plans[name] = frame
        origins.add(frame.origin)
    if len(origins) != 1:
        return None
    return Whole(_over(node, inner), tables, origins.pop(), Behind(node, plans))


def _over(node: Node, inner: Mapping[str, Node]) -> Node:
    """Return ``node`` over the plans ``inner`` in place of frames."""
    if not isinstance(node, Get):
        return rebuilt(node, lambda below: _over(below, inner))
    return Project(inner[node.frame], tuple((name, Scalar(column(stored))) for name, stored in node.columns))


_TYPES: Final[Mapping[type, tuple[Callable[[pa.DataType], bool], pa.DataType]]] = {
    str: (pa.types.is_string, pa.string()),
    int: (pa.types.is_signed_integer, pa.int64()),
    date: (pa.types.is_date32, pa.date32()),
}
"""By the type of a value: which columns have it, and in which type the two are compared."""
_TESTS: Final[Mapping[Comparison, Callable[[Any, Any], Any]]] = {
    Comparison.LESS: pc.less,
    Comparison.AT_MOST: pc.less_equal,
    Comparison.MORE: pc.greater,
    Comparison.AT_LEAST: pc.greater_equal,
    Comparison.STARTS: lambda column, value: pc.starts_with(column, value.as_py()),
    Comparison.ENDS: lambda column, value: pc.ends_with(column, value.as_py()),
    Comparison.HOLDS: lambda column, value: pc.match_substring(column, value.as_py()),
}


def narrowed(table: pa.Table, conditions: Sequence[Condition]) -> pa.Table:
    """Return the rows of ``table`` for which all ``conditions`` are true that can be judged here.

    A condition is judged only if the column has the type of its values: Spark casts other values before it compares
    them.
    """
    found = [mask for each in conditions if (mask := _mask(table[each.column], each)) is not None]
    return table.filter(reduce(pc.and_, found)) if found else table


def _mask(column: pa.ChunkedArray, condition: Condition) -> pa.ChunkedArray | None:
    has, common = _TYPES[type(condition.values[0])]
    if not has(column.type) or any(type(value) is not type(condition.values[0]) for value in condition.values):
        return None
    try:
        values = pa.array(condition.values, common)
    except OverflowError:
        return None
    if condition.comparison is Comparison.IN:
        return pc.is_in(column.cast(common), value_set=values)
    return _TESTS[condition.comparison](column.cast(common), values[0])


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


_OWN: Final = "__own"
_THERE: Final = "__there"
_REASON: Final = "__reason"
_RAW: Final = "__raw"
_SIDE: Final = "__side"


def cancelled(updates: Frame, errors_before: Frame, time: int, session: SparkSession) -> Distributed:
    """Return ``updates`` with the errors withdrawn that cancel one another, or one of ``errors_before``.

    The errors of the result are consolidated; the other rows are as they were.

    It does for any number of errors on Spark what `algebra.messages.cancelled` does for a few texts: an undecodable
    record that upstream takes back cancels its error.  That takes two windows over the errors, none over the good
    rows.
    """
    rows, held = dataframe(updates, session), dataframe(errors_before, session)
    zero = F.lit(0).cast("bigint")
    new = rows.where(F.col(ERROR).isNotNull()).select(ERROR, F.col(DIFF).alias(_OWN), F.col(DIFF).alias(_THERE))
    errors = (
        new.unionAll(held.select(ERROR, zero, F.col(DIFF)))
        .groupBy(ERROR)
        .agg(F.sum(_OWN).alias(_OWN), F.sum(_THERE).alias(_THERE))
    )
    reason = F.coalesce(F.get_json_object(ERROR, "$.reason"), F.col(ERROR))
    takes_back = reason.startswith(TAKES_BACK)
    sided = errors.select(
        "*",
        F.when(takes_back, F.substr(reason, F.lit(len(TAKES_BACK) + 1))).otherwise(reason).alias(_REASON),
        F.get_json_object(ERROR, "$.raw").alias(_RAW),
        takes_back.alias(_SIDE),
    )
    matching = Window.partitionBy(_REASON, _RAW)
    before = Window.partitionBy(_REASON, _RAW, _SIDE).orderBy(ERROR).rowsBetween(Window.unboundedPreceding, -1)
    pairs = F.least(
        *(F.sum(F.when(F.col(_SIDE) == side, F.col(_THERE)).otherwise(0)).over(matching) for side in (True, False))
    )
    left = pairs - F.coalesce(F.sum(_THERE).over(before), zero)
    diff = F.col(_OWN) - F.greatest(zero, F.least(F.col(_THERE), left))
    withdrawn = sided.select(ERROR, F.lit(time).cast("bigint").alias(TIME), diff.alias(DIFF)).where(F.col(DIFF) != 0)
    good = rows.where(F.col(ERROR).isNull())
    return Distributed(good.unionByName(withdrawn, allowMissingColumns=True), plain=False)


BYTES_MAX: Final = 64 << 20
ANSWER_BYTES: Final = 2048
"""What an answer takes besides its rows: its key, and its place here."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer, or one that a thread is finding.  ``of`` are the tables that its key names by their identities."""

    found: Future[Any]
    of: Sequence[pa.Table]


class Shared:
    """Answers by what they were found of.  Safe to call from several threads.

    The stages of a wave read the same changes and look up the same rows; each answer is found once and shared.  An
    answer is a value, and so is what it was found of: definite contents, or tables, which are the same if they are one
    object.  So an answer is right for as long as it is kept.  The least recently used answers are dropped first.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._sizes: dict[Hashable, int] = {}
        self._total = 0  # of the sizes
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()
        self._lock = threading.Lock()  # held for moments

    def get(
        self, key: Hashable, of: Sequence[pa.Table], find: Callable[[], _T], size: Callable[[_T], int | None]
    ) -> _T:
        """Return what ``find`` returns, or has returned for this ``key`` and the same tables ``of``.

        ``size``: bytes of an answer; None: it is not kept.  What ``find`` raises is this caller's alone.
        """
        whole = (key, *map(id, of))
        with self._lock:
            answer = self._answers.get(whole)
            if first := answer is None:
                answer = self._answers[whole] = _Answer(Future(), of)
            self._answers.move_to_end(whole)
        if not first:
            return find() if answer.found.exception() is not None else answer.found.result()
        try:
            found = find()
        except BaseException as error:
            self._keep(whole, None)
            answer.found.set_exception(error)
            raise
        self._keep(whole, size(found))
        answer.found.set_result(found)
        return found

    def _keep(self, whole: Hashable, size: int | None) -> None:
        with self._lock:
            if size is None:
                self._answers.pop(whole, None)
                return
            self._sizes[whole] = size + ANSWER_BYTES
            self._total += size + ANSWER_BYTES
            while self._total > self._bytes_max:
                oldest = next(key for key in self._answers if key in self._sizes)
                del self._answers[oldest]
                self._total -= self._sizes.pop(oldest)
