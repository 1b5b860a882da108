"""Rows that do not fit their table are refused by column and row, before anything is stored."""

from __future__ import annotations

import datetime as dt
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from strandline.algebra.notation import Excerpt
from strandline.algebra.schema import Column, Schema
from strandline.client import writing
from strandline.client.access import Access
from strandline.controller.language import arguments, literals
from strandline.engine.frames.failures import thrown
from strandline.engine.frames.inline import stamped
from strandline.errors import DefinitionError, InvalidUsage, Position

SCHEMA = Schema((Column("n", "int"), Column("day", "date"), Column("name", "string")))


class _Engine:
    """Keeps the rows that would be stored."""

    async def local(self, table: pa.Table, schema: Schema, *, time: int, diff: int) -> Any:
        """The rows, as the engine over Spark casts them."""
        return stamped(table, schema, time=time, diff=diff).to_pylist()


def inserted(rows: Any) -> list[dict[str, Any]]:
    """What would be stored of rows for a table."""
    table = SimpleNamespace(name="t", schema=SCHEMA)
    core = SimpleNamespace(table=lambda _: table, engine=_Engine())

    def wait(call: Any) -> Any:
        try:
            call.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("it waits for nothing")

    access = SimpleNamespace(core=core, refuse_closed=lambda: None, wait=wait)
    return cast("list[dict[str, Any]]", writing.change(cast("Access", access), "t", rows, deletes=False).frame)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"n": "7"}, "column 'n' is int, and the rows have string in it"),
        ({"n": True}, "column 'n' is int, and the rows have bool in it"),
        ({"day": "2026-01-01"}, "column 'day' is date, and the rows have string in it"),
        ({"day": 20_000}, "column 'day' is date, and the rows have int64 in it"),
        ({"name": ["a"]}, "column 'name' is string, and the rows have list<.*> in it"),
    ],
)
def test_a_value_of_another_kind_is_refused(row: dict[str, Any], why: str) -> None:
    """Damage: a text is stored as a number, or a number as a day, though the page says that it is not."""
    with pytest.raises(InvalidUsage, match=f"table 't': {why}: convert"):
        inserted([row])


def test_what_fits_is_stored() -> None:
    """Damage: a program that inserts what Spark would take is refused."""
    (row,) = inserted([{"n": 7.0, "day": dt.date(2026, 1, 1), "name": 3}])
    assert (row["n"], row["day"], row["name"]) == (7, dt.date(2026, 1, 1), "3")
    assert [row["n"] for row in inserted(pa.table({"N": pa.array([1], pa.uint8())}))] == [1]
    assert inserted([{"n": None, "day": None, "name": None}])[0]["n"] is None


def test_a_number_out_of_range_names_its_column_and_row() -> None:
    """Damage: of a million rows, the caller does not know which one is refused."""
    with pytest.raises(InvalidUsage, match=r"^row 3: column 'n' cannot be cast to int32: Integer value 3000000000 not"):
        inserted([{"n": 1}, {"n": 2}, {"n": 3_000_000_000}, {"n": 4}])
    with pytest.raises(InvalidUsage, match=r"^table 't': row 2: column 'n' cannot be read: Python int too large"):
        arguments.arrow([{"n": 1}, {"n": 2**70}], "t", ["n"])
    with pytest.raises(InvalidUsage, match=r"^table 't': row 2: column 'n' cannot be read: Could not convert 'a'"):
        arguments.arrow([{"n": 1}, {"n": "a"}, {"n": 2}], "t", ["n"])


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_time_of_day_is_not_cut_off_to_store_a_date(zone: str | None) -> None:
    """Damage: a table keeps less than it was given, without a word."""
    kind = pa.timestamp("us", zone)
    midnight, noon = (pa.scalar(seconds * 1_000_000, kind).as_py() for seconds in (1_767_225_600, 1_767_270_840))
    days = pa.array([midnight, None, noon], kind)
    assert [row["day"] for row in inserted(pa.table({"day": days[:2]}))] == [dt.date(2026, 1, 1), None]
    with pytest.raises(InvalidUsage, match="^row 3: column 'day' cannot be cast to date32.*lose the time of day"):
        inserted(pa.table({"day": days}))
    schema = Schema((Column("d", "array<struct<a:date>>"),))
    for each, fits in ((midnight, True), (noon, False)):
        nested = pa.table({"d": pa.array([[{"a": each}]], pa.list_(pa.struct([("a", kind)])))})
        with nullcontext() if fits else pytest.raises(InvalidUsage, match="lose the time of day"):
            stamped(nested, schema, time=1, diff=1)


@pytest.mark.parametrize(("cell", "given"), [("300", ()), ("-129", ()), ("?", (pa.scalar(300),))])
def test_a_literal_out_of_range_names_its_column_and_row(cell: str, given: tuple[pa.Scalar, ...]) -> None:
    """Damage: Spark names no row, and takes a second to say so."""
    query = Excerpt(f"VALUES (1, 'a'), ({cell}, 'b')", Position(2, 1), given)
    with pytest.raises(DefinitionError, match=r"^row 2: column 'n' is tinyint, which holds -128 to 127, and not -?\d+"):
        literals.rows(query, [Column("n", "tinyint"), Column("s", "string")])


def test_no_message_advises_a_setting_that_is_refused() -> None:
    """Damage: an author who follows the advice reads that this setting cannot be set."""
    advice = (
        'If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error, and return NULL instead.',
        'If you have to cast "INT" to "DATE", you can set "spark.sql.ansi.enabled" as "\'false\'".',
        'To restore previous behavior set "spark.sql.legacy.allowHashOnMapType" to "true".',
    )
    for each in advice:
        said = thrown(
            ValueError(f'[CAST_OVERFLOW] The value 3.5 of "x" does not fit. Use `try_cast`. {each} SQLSTATE: 22')
        )
        assert said == 'The value 3.5 of "x" does not fit. Use `try_cast`.'
