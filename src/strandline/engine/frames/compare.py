"""What two collections differ in: the updates that do not cancel, floats compared to a number of significant digits.

Rounding alone would call 0.49999… and 0.5 different when they fall on two sides of a rounding step, so it only thins
out: what is left after it, a few rows at worst, is paired here by value, a row too few with a row too many whose floats
are close and whose other columns are equal.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Final

import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.notation import readable
from strandline.algebra.schema import DIFF, Schema, quote
from strandline.algebra.types import Atom
from strandline.engine.frames import forms
from strandline.plane import Differences

SAMPLE_ROWS_MAX: Final = 20
PAIRED_ROWS_MAX: Final = 100_000
"""More rows than this are not close calls but another collection: they are counted, not paired."""
assert SAMPLE_ROWS_MAX < PAIRED_ROWS_MAX


def rounded(schema: Schema, significant: int | None) -> list[str]:
    """Return the select list that rounds the float columns to ``significant`` digits.

    >>> from strandline.algebra.schema import Column
    >>> rounded(Schema((Column("a", "int"),)), 12), len(rounded(Schema((Column("a", "double"),)), 12))
    (['`a`'], 1)
    """
    selected = []
    for name, kind in types.columns(schema):
        value = forms.normalised(quote(name), kind)
        if significant is not None and kind in _FLOATS:
            wide = f"CAST({value} AS double)"
            digits = f"CAST(format_string('%.{significant - 1}e', {wide}) AS double)"
            finite = f"abs({wide}) < double('Infinity')"  # NaN is greater than infinity here, NULL neither
            value = f"CASE WHEN {finite} THEN {digits} ELSE {wide} END"
        selected.append(value if value == quote(name) else f"{value} AS {quote(name)}")
    return selected


def differences(left: pa.Table, significant: int | None) -> Differences:
    """Return the differences among the rows ``left`` over (``__diff`` never zero), close floats paired off.

    >>> caesar = pa.table({"a": pa.array([-735525], pa.int32()).cast(pa.date32()), DIFF: [-1]})
    >>> found = differences(caesar, 12)
    >>> found.missing, found.sample.equals(caesar)
    (1, True)
    """
    rows = readable(left).to_pylist()
    floats = {field.name for field in left.schema if pa.types.is_floating(field.type)}
    if significant is not None and floats:
        _pair(rows, floats, significant)
    kept = sorted((place for place, row in enumerate(rows) if row[DIFF]), key=lambda place: rows[place][DIFF])
    missing = -sum(row[DIFF] for row in rows if row[DIFF] < 0)
    extra = sum(row[DIFF] for row in rows if row[DIFF] > 0)
    shown = kept[:SAMPLE_ROWS_MAX]
    at = left.schema.get_field_index(DIFF)
    diffs = pa.array([rows[place][DIFF] for place in shown], left.schema.field(at).type)
    sample = left.take(pa.array(shown, pa.int64())).set_column(at, left.schema.field(at), diffs)
    return Differences(missing, extra, sample)


def _pair(rows: list[dict[str, Any]], floats: set[str], significant: int) -> None:
    """Cancel diffs of opposite sign between rows that are equal but for close floats, in place."""
    groups: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[repr([value for name, value in row.items() if name not in floats and name != DIFF])].append(row)
    for group in groups.values():
        few = [row for row in group if row[DIFF] < 0]
        many = [row for row in group if row[DIFF] > 0]
        for one in few:
            for other in many:
                if all(_close(one[name], other[name], significant) for name in floats):
                    settled = min(-one[DIFF], other[DIFF])
                    one[DIFF] += settled
                    other[DIFF] -= settled


def _close(one: float | None, other: float | None, significant: int) -> bool:
    """Tell whether two floats are equal to that many significant digits, the last one give or take one."""
    if one is None or other is None:
        return one is other
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=10.0 ** (1 - significant), abs_tol=0.0)


_FLOATS: Final = (Atom("float"), Atom("double"))
