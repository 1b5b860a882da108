"""Whatever parts a history lies in, the tasks of a read give each row exactly as often as it is there.

Compared with a reader that knows nothing of parts: it adds up the history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.datasource.rows import scan
from strandline.datasource.rows.scan import Look, planned
from strandline.engine.frames import inline
from strandline.engine.parts.part_store import PartStore
from strandline.errors import CollectionError, CorruptionError
from strandline.frontier import EMPTY, Frontier
from strandline.persist.handles.contents import Contents
from strandline.persist.shard.batch import NOTHING, Batch, InlinePart, Part, Window

SCHEMA: Final = Schema(
    (
        Column("deep", "array<struct<a:int,at:timestamp>>"),
        Column("k", "int"),
        Column("name", "string"),
        Column("price", "decimal(10,2)"),
        Column("x", "double"),
    )
)
COLUMNS: Final = inline.update_schema(SCHEMA)
LAST: Final = 12
SOME_COLUMNS: Final = [SCHEMA.names, ("k",), ("name", "deep")]
LATE: Final = datetime(9999, 12, 31, tzinfo=ZoneInfo("UTC"))
DEEP: Final = (None, [], [None], [{"a": 1, "at": None}], [{"a": 1, "at": LATE}], [{"a": None, "at": LATE}, None])
ROWS: Final = [
    {"deep": deep, "k": k, "name": name, "price": None, "x": x}
    for deep in DEEP
    for k, name, x in ((None, None, float("nan")), (3, "", 0.5), (3, None, None), (4, "zoë", -1.0))
]


@dataclass(frozen=True)
class Update:
    """The row of this number, at a time, with a diff; and in which part it lies."""

    row: int
    time: int
    diff: int
    part: int


@st.composite
def histories(draw: st.DrawFn) -> list[Update]:
    """Return a history in which no row is ever there less than 0 times."""
    found: list[Update] = []
    there: Counter[int] = Counter()
    for time in range(LAST):
        for row in draw(st.lists(st.integers(0, len(ROWS) - 1), max_size=8)):
            diff = draw(st.sampled_from([1, 1, 2, -1, -there[row]]))
            if diff and there[row] + diff >= 0:
                there[row] += diff
                found.append(Update(row, time, diff, draw(st.integers(0, 3))))
    return found


def table_of(history: Sequence[Update], *, errs: bool) -> pa.Table:
    """Return updates as a part stores them, perhaps with one of the err half."""
    rows = [ROWS[each.row] | {ERROR: None, TIME: each.time, DIFF: each.diff} for each in history]
    wrong = dict.fromkeys(SCHEMA.names) | {ERROR: "{}", TIME: 0, DIFF: -1}
    return pa.Table.from_pylist([*rows, *([wrong] if errs else [])], schema=COLUMNS)


def part_of(store: PartStore, table: pa.Table, number: int, window: Window | None) -> Part:
    """Return a part that holds ``table``: every other one lies in the state."""
    if number % 2:
        return InlinePart(inline.encode(table), table.num_rows, window)
    part = store.write(f"s/parts/{number}.parquet", inline.parquet(table)).part
    return type(part)(part.key, part.size, part.rows, part.footer_crc, part.sidecar, window)


def contents_of(store: PartStore, history: Sequence[Update], lower: int, upper: int, advance: int) -> Contents:
    """Return the contents of a shard in which the history lies in parts, the last of them behind a window."""
    parts = []
    for number in sorted({each.part for each in history}):
        own = [each for each in history if each.part == number]
        parts.append(
            part_of(store, table_of(own, errs=number == 1), number, Window(0, EMPTY, 0) if number == 3 else None)
        )
    batch = Batch(Frontier(0), Frontier(LAST), Frontier(0), tuple(parts), len(history), 0, NOTHING, plain=False)
    return Contents("s", SCHEMA, (batch,), lower, upper, advance)


def naive(history: Sequence[Update], look: Look, lower: int, upper: int, advance: int) -> Counter[str]:
    """Return what a read gives, by its definition."""
    found: Counter[str] = Counter()
    for each in history:
        if lower <= each.time < upper:
            values = [ROWS[each.row][name] for name in look.names]
            found[repr((values, max(each.time, advance) if look.times else None))] += each.diff
    return Counter({row: count for row, count in found.items() if count})


def read(store: PartStore, contents: Contents, look: Look) -> tuple[Counter[str], list[scan.Share]]:
    """Return what all tasks give together, and the tasks."""
    found: Counter[str] = Counter()
    tasks = planned(store, contents)
    for task in tasks:
        for table in scan.given(store, scan.decode(scan.encode(task)), look):
            whole = (
                table if look.times else pa.concat_tables([table.slice(0, 0).drop_columns([DIFF]), *scan.copies(table)])
            )
            for row in whole.to_pylist():
                diff = row.pop(DIFF, 1)
                time = row.pop(TIME, None)
                found[repr(([row[name] for name in look.names], time))] += diff
    return Counter({row: count for row, count in found.items() if count}), tasks


def the_same(store: PartStore, history: Sequence[Update], look: Look, window: tuple[int, int, int]) -> set[scan.Gives]:
    """Hold a read against its definition; return the ways in which its tasks read."""
    found, tasks = read(store, contents_of(store, history, *window), look)
    assert found == naive(history, look, *window)
    return {task.gives for task in tasks}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make everything large: a handful of updates takes several tasks."""
    monkeypatch.setattr(scan, "TASK_ROWS", 4)
    monkeypatch.setattr(scan, "ALONE_ROWS_MAX", 6)
    monkeypatch.setattr(scan, "WITHDRAWN_ROWS_MAX", 24)


@pytest.mark.usefixtures("small")
def test_tasks_give_what_the_history_adds_up_to(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Damage: a program of Spark's counts a row twice, misses one, or sees one that was withdrawn."""
    ways: set[scan.Gives] = set()

    @given(histories(), st.integers(0, LAST - 1), st.sampled_from(SOME_COLUMNS), st.booleans())
    @settings(max_examples=120)
    def holds(history: list[Update], time: int, names: tuple[str, ...], times: bool) -> None:
        store = PartStore(tmp_path_factory.mktemp("parts"))
        look = Look("s", SCHEMA, names, times=times)
        ways.update(the_same(store, history, look, (0, time + 1, time)))
        if times:  # changes between two times
            ways.update(the_same(store, history, look, (time, LAST, time)))

    holds()
    assert ways == {*scan.Gives}, "not every way to read was taken"


def some(tmp_path: Path) -> tuple[PartStore, list[Update], Look]:
    """Return a history that takes several tasks, some of which leave out what was withdrawn."""
    history = [Update(row, 0, 1, 0) for row in range(12)] + [Update(row, 2, -1, 1) for row in (1, 2)]
    return PartStore(tmp_path), history, Look("s", SCHEMA, SCHEMA.names, times=False)


@pytest.mark.usefixtures("small")
def test_a_planted_task_that_is_given_twice_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the comparison above could not fail: here the updates of a part are counted twice."""
    store, history, look = some(tmp_path)
    assert the_same(store, history, look, (0, LAST, LAST - 1)) == {scan.Gives.OTHERS, scan.Gives.WITHDRAWN}
    plan = scan.shares
    monkeypatch.setattr(scan, "shares", lambda known, cuts: [*plan(known, cuts), plan(known, cuts)[0]])
    with pytest.raises(AssertionError):
        the_same(store, history, look, (0, LAST, LAST - 1))


@pytest.mark.usefixtures("small")
def test_a_planted_task_that_forgets_what_was_withdrawn_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the comparison above could not fail: here a task gives rows that another part withdraws."""
    store, history, look = some(tmp_path)
    monkeypatch.setattr(scan, "among", lambda table, _: np.zeros(table.num_rows, np.bool_))
    with pytest.raises((AssertionError, CollectionError)):
        the_same(store, history, look, (0, LAST, LAST - 1))


def test_ranges_read_only_row_groups_that_reach_into_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a large collection is read as often as it has tasks."""
    schema = Schema((Column("k", "bigint"),))
    store, many = PartStore(tmp_path), 1000
    for name, most in (("TASK_ROWS", 300), ("ALONE_ROWS_MAX", 10), ("WITHDRAWN_ROWS_MAX", 10)):
        monkeypatch.setattr(scan, name, most)
    parts = []
    for number in range(4):
        keys = np.arange(number * many, (number + 1) * many)
        diffs = np.where(keys % 2, 1, -1) if number == 3 else np.ones(many, np.int64)
        table = pa.table({"k": keys, TIME: np.zeros(many, np.int64), DIFF: diffs})
        parts.append(store.write(f"s/parts/{number}.parquet", inline.parquet(table)).part)
    batch = Batch(Frontier(0), Frontier(1), Frontier(0), tuple(parts), 4 * many, 0, NOTHING, plain=False)
    tasks = planned(store, Contents("s", schema, (batch,), 0, 1, 0))
    assert len(tasks) > 4
    scanned = 0
    conform = inline.conform

    def counted(table: pa.Table, target: pa.Schema) -> pa.Table:
        nonlocal scanned
        scanned += table.num_rows
        return conform(table, target)

    monkeypatch.setattr(inline, "conform", counted)
    rows = [pa.concat_tables(scan.given(store, task, Look("s", schema, ("k",), times=True))) for task in tasks]
    assert sum(table.num_rows for table in rows) == 4 * many
    assert scanned <= (len(tasks) + 4) * many, "a task reads what its range does not reach into"


def test_a_damaged_part_is_never_read_as_rows(tmp_path: Path) -> None:
    """Damage: a task gives what is left of a part, and the application takes it for all of it."""
    store, history, look = some(tmp_path)
    contents = contents_of(store, history, 0, LAST, LAST - 1)
    tasks = planned(store, contents)
    path = tmp_path / "s" / "parts" / "0.parquet"
    whole = path.read_bytes()
    for at in range(4, len(whole) - 8, max(1, len(whole) // 40)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptionError):
            [list(scan.given(store, task, look)) for task in tasks]
    path.unlink()
    with pytest.raises(CorruptionError, match="missing"):
        [list(scan.given(store, task, look)) for task in tasks]
