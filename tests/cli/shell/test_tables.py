"""Rows are shown within the width of the terminal, and nothing in them can be taken for something else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from strandline.cli.shell.tables import Look, Scroll, counted, fit, lines
from strandline.client import Progress, Updates

HOSTILE = "\x1b[2J\x1b]0;gone\x07 two\nlines \u202e"
VALUES = st.one_of(st.none(), st.text(max_size=60))


def shown(rows: Any, width: int = 80, **look: Any) -> list[str]:
    """The lines that show rows."""
    table = rows if isinstance(rows, pa.Table) else pa.table(rows)
    return [line.plain for line in lines(table, Look(width, **look))]


def test_numbers_stand_at_the_right_and_texts_at_the_left() -> None:
    """Damage: sizes of numbers are not seen at a glance."""
    assert shown({"city": ["Delft", "Bern"], "n": [5, 1200]}) == [
        " city  │    n",
        "───────┼──────",
        " Delft │    5",
        " Bern  │ 1200",
    ]


def test_null_an_empty_text_and_the_word_differ() -> None:
    """Damage: a person takes a missing value for an empty one."""
    assert [line.strip() for line in shown({"a": [None, "", "NULL"]})[2:]] == ["NULL", "''", "'NULL'"]


@given(st.lists(st.tuples(VALUES, VALUES, st.integers(0, 10**12)), max_size=5), st.integers(20, 120), st.booleans())
def test_no_line_is_wider_than_the_terminal_and_all_of_it_is_printable(
    rows: list[tuple[Any, ...]], width: int, expanded: bool
) -> None:
    """Damage: a row breaks into several lines, or moves the cursor, or types into the terminal."""
    columns = {name: [row[n] for row in rows] for n, name in enumerate(("a", "b\x1b[H", "n"))}
    types = [pa.string(), pa.string(), pa.int64()]
    table = pa.table([pa.array(c, t) for c, t in zip(columns.values(), types, strict=True)], names=list(columns))
    for line in shown(table, width, expanded=expanded):
        assert cell_len(line) <= width
        assert line.isprintable()


def test_what_does_not_fit_is_cut_with_a_mark_and_numbers_never_are() -> None:
    """Damage: half a number is taken for the number."""
    found = shown({"note": ["x" * 100], "other": ["y" * 30], "n": [123_456_789_012]}, 50)
    assert found[2] == " xxxxxxxxxxxxxx… │ yyyyyyyyyyyyyy… │ 123456789012"


def test_rows_with_too_many_columns_are_shown_one_value_a_line() -> None:
    """Damage: each value is cut to nothing."""
    found = shown({f"column_{n}": [10**11 + n] for n in range(12)}, 60)
    assert found[0].startswith("─[ 1 ]─")
    assert found[1:3] == [" column_0  │ 100000000000", " column_1  │ 100000000001"]


def test_wide_characters_are_counted_as_the_terminal_does() -> None:
    """Damage: columns do not line up behind Chinese texts."""
    found = shown({"a": ["漢字", "ab"], "n": [1, 2]})
    assert [cell_len(line) for line in found] == [9, 10, 9, 9], "the line below the head is longer by a sign"


def test_the_first_rows_are_shown_and_how_to_see_the_others_is_said() -> None:
    """Damage: a million rows scroll by; or a person believes that they saw all."""
    rows = pa.table({"n": range(5000)})
    assert len(shown(rows, limit=100)) == 102
    assert counted(rows, Look(80, 100)).startswith("100 of 5,000 rows; the others are shown after \\limit off")
    assert counted(rows, Look(80)) == "5,000 rows"


def test_an_answer_without_rows_shows_its_columns() -> None:
    """Damage: no rows look like an error."""
    assert shown(pa.table({"city": pa.array([], pa.string())})) == [" city", "──────"]


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.booleans()), min_size=1, max_size=8),
    st.integers(10, 200),
)
def test_columns_are_within_the_width_and_cut_only_if_they_must_be(
    columns: list[tuple[int, int, bool]], width: int
) -> None:
    """Damage: a table is cut though there is room, or is wider than the terminal."""
    widths, names, fixed = ([each[n] for each in columns] for n in range(3))
    found = fit([int(w) for w in widths], [int(n) for n in names], [bool(f) for f in fixed], width)
    natural = sum(widths) + 3 * (len(columns) - 1) + 2
    if natural <= width:
        assert found == widths
    elif found is not None:
        assert sum(found) + 3 * (len(columns) - 1) + 2 <= width
        assert all(f == w for f, w, keep in zip(found, widths, fixed, strict=True) if keep)


def test_a_subscription_scrolls_with_time_and_sign() -> None:
    """Damage: a person cannot tell a row that came from one that went."""
    scroll = Scroll(80)

    def line(city: str, n: int, diff: int, time: int) -> Updates:
        rows = {"city": [city], "n": [n], "__time": [time], "__diff": [diff]}
        return Updates(pa.RecordBatch.from_pydict(rows))

    found = [
        each.plain
        for event in (line("Delft", 5, 1, 1_000), line(HOSTILE, 7, -1, 2_500))
        for each in scroll.lines(event)
    ]
    assert found == [
        "time                      diff  city                     n",
        "1970-01-01T00:00:01.000Z    +1  Delft                    5",
        "1970-01-01T00:00:02.500Z    -1  \\x1b[2J\\x1b…             7",
    ]
    assert list(scroll.lines(Progress(5))) == []


@pytest.mark.parametrize("value", [HOSTILE, {HOSTILE: [HOSTILE]}, [HOSTILE]])
def test_no_value_speaks_to_the_terminal(value: Any) -> None:
    """Damage: a row of a stranger changes the terminal's title, or hides what stands before it."""
    assert all(line.isprintable() for line in shown({"a": [value]}, 200))
