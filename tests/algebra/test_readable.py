"""Dates and times of all years are shown, though Python has those of 1 to 9999 only."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pytest

from strandline.algebra.notation import readable
from strandline.cli.shell import tables
from strandline.cli.terminal.output import as_json, rows_document, rows_table
from strandline.engine.frames.compare import differences
from strandline.serving.remote import Answer

FAR: Final = 10**18
"""Microseconds, in the year 33658."""
UTC: Final = pa.timestamp("us", "UTC")
EARLY: Final = pa.array([-735_525, None, 3_663_728], pa.int32()).cast(pa.date32())


def _far(kind: pa.DataType) -> pa.Array:
    return pa.array([FAR], pa.int64()).cast(kind)


COLUMNS: Final[dict[str, tuple[pa.Array, list[Any]]]] = {
    "days": (EARLY, ["-0044-03-15", None, "12000-12-12"]),
    "times": (_far(UTC), ["33658-09-27 01:46:40Z"]),
    "before year 1": (pa.array([-62_135_596_800_000_001]).cast(pa.timestamp("us")), ["0000-12-31 23:59:59.999999"]),
    "in a list": (pa.ListArray.from_arrays([0, 3], EARLY), [["-0044-03-15", None, "12000-12-12"]]),
    "in a struct": (
        pa.StructArray.from_arrays([_far(UTC), pa.array([1])], ["t", "n"]),
        [{"t": "33658-09-27 01:46:40Z", "n": 1}],
    ),
    "in a map": (pa.MapArray.from_arrays([0, 1], ["k"], EARLY[:1]), [[("k", "-0044-03-15")]]),
    "of this time": (pa.array([dt.date(2024, 2, 29)]), [dt.date(2024, 2, 29)]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_date_that_python_lacks_is_a_text(name: str) -> None:
    """Damage: one row of the year 12000 ends a subscription, or hides the answer, by a raw OverflowError."""
    column, expected = COLUMNS[name]
    rows = readable(pa.table([column, column], names=["a", "a"]))
    assert [each.to_pylist() for each in rows.columns] == [expected, expected]


def _drawn(rows: pa.Table) -> Iterator[str]:
    return (line.plain for line in tables.lines(rows, tables.Look(80)))


SHOWS: Final[dict[str, Callable[[pa.Table], object]]] = {
    "--json": lambda rows: as_json(rows_document(rows)),
    "a command's table": lambda rows: [*rows_table(rows).columns[0].cells],
    "the shell": lambda rows: [*_drawn(rows)],
    "a client's frame": lambda rows: str(Answer(rows)),
    "a client's rows": lambda rows: Answer(rows).collect(),
}


@pytest.mark.parametrize("name", SHOWS)
def test_whatever_shows_rows_shows_every_year(name: str) -> None:
    """Damage: `strandline query`, the shell or a client fails over rows that the view holds rightly."""
    assert "-0044-03-15" in str(SHOWS[name](pa.table({"d": pa.ListArray.from_arrays([0, 3], EARLY)})))


def test_a_difference_in_dates_inside_a_list_is_reported() -> None:
    """Damage: `verify` of what differs fails by a raw OverflowError, in place of the difference."""
    rows = pa.table({"d": pa.ListArray.from_arrays([0, 3], EARLY), "x": [1.0], "__diff": [-1]})
    assert differences(rows, 12).missing == 1
