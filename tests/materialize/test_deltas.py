"""What a delta binding is given: the changes themselves, or the last row of each key that changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.errors import DefinitionError
from strandline.frontier import Frontier
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol.messages import DELETE, EXISTS, Load, Request, Response, Store
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.materialize.runtime import Task
from strandline.store.memory import MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.endpoints import Endpoint, KeyValueSession, MemoryDriver
from strandline.testing.feed import ListFeed

SCHEMA = Schema((Column("k", "bigint"), Column("x", "string")))
TYPES = {"k": pa.int64(), "x": pa.string()}
Row = dict[str, Any]


class Recording(KeyValueSession):
    """Keeps what was pushed, in order, and asks for nothing to be known of it."""

    pushed: list[Row]

    def answers(self, message: Request) -> list[Response]:
        assert not isinstance(message, Load), "nothing of a delta binding is ever loaded"
        if isinstance(message, Store):
            self.pushed.extend(message.rows.to_pylist())
            return []
        return super().answers(message)


async def push(binding: Binding, rounds: list[list[tuple[Row, int, int]]]) -> list[list[Row]]:
    """Return what each transaction pushes, given each one's ``(row, time, diff)``; the n-th ends before 10 * n."""

    class Session(Recording):
        pushed: list[Row] = []  # noqa: RUF012 - of this run

    feed = ListFeed("v", SCHEMA, TYPES)
    log = RecoveryLog(HandClock(), CountingIds(), MemoryConsensus(), "log/m", 1)
    task = Task(MaterializationSpec("m", (binding,)), MemoryDriver(Endpoint(), Session), log, [feed])
    found = []
    for n, changes in enumerate(rounds, 1):
        for row, time, diff in changes:
            feed.write(time, (row, diff))
        feed.seal(Frontier(10 * n))
        await task.advance()
        found.append(Session.pushed[:])
        Session.pushed.clear()
    await task.close()
    return found


def pushed(binding: Binding, *rounds: list[tuple[Row, int, int]]) -> list[list[Row]]:
    """Return `push`, from outside a loop."""
    return asyncio.run(push(binding, list(rounds)))


def of(k: int, x: str) -> Row:
    """Return a row of `SCHEMA`."""
    return {"k": k, "x": x}


CHANGES = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 9), st.sampled_from((1, 2, -1)))),
    max_size=4,
)


@given(CHANGES, st.booleans())
def test_a_consumer_that_adds_the_diffs_up_has_the_collection(drawn: list[list[Any]], times: bool) -> None:
    """Damage: who keeps a table from the changes of another one cannot trust it."""
    rounds = [[(of(k, x), 10 * n + at, diff) for k, x, at, diff in each] for n, each in enumerate(drawn)]
    binding = Binding("v", "t", (), SCHEMA, delta=True, diffs=True, times=times)
    wanted: Counter[tuple[Any, ...]] = Counter()
    for row, time, diff in (change for each in rounds for change in each):
        wanted[(*row.values(), *((time,) if times else ()))] += diff
    found: Counter[tuple[Any, ...]] = Counter()
    for row in (row for each in pushed(binding, *rounds) for row in each):
        assert not row.pop(EXISTS)
        assert not row.pop(DELETE)
        diff = row.pop(DIFF)
        assert list(row) == ["k", "x", *([TIME] if times else [])]
        found[tuple(row.values())] += diff
    assert {row: n for row, n in found.items() if n} == {row: n for row, n in wanted.items() if n}


def test_of_a_key_the_last_row_is_pushed_or_that_it_is_gone() -> None:
    """Damage: a consumer keeps a row for ever, or sees rows that were never true at the end of a transaction."""
    binding = Binding("v", "t", ("k",), SCHEMA, delta=True)
    first, second, third = pushed(
        binding,
        [(of(1, "a"), 1, 1), (of(2, "b"), 2, 1)],
        [(of(1, "a"), 11, -1), (of(1, "c"), 11, 1), (of(1, "c"), 12, -1), (of(1, "d"), 12, 1), (of(2, "b"), 13, -1)],
        [(of(2, "e"), 21, 1), (of(3, "f"), 22, 1), (of(3, "f"), 23, -1)],
    )
    assert first == [{**of(1, "a"), EXISTS: False, DELETE: False}, {**of(2, "b"), EXISTS: False, DELETE: False}]
    assert second == [{**of(1, "d"), EXISTS: True, DELETE: False}, {**of(2, "b"), EXISTS: True, DELETE: True}]
    assert third == [{**of(2, "e"), EXISTS: False, DELETE: False}]


def test_with_times_each_time_has_its_own_row_of_a_key() -> None:
    """Damage: a history that was asked for has only its last row of each transaction."""
    binding = Binding("v", "t", ("k",), SCHEMA, delta=True, times=True)
    (found,) = pushed(binding, [(of(1, "a"), 1, 1), (of(1, "a"), 2, -1), (of(1, "b"), 2, 1), (of(1, "b"), 3, -1)])
    assert [(row["x"], row[TIME], row[EXISTS], row[DELETE]) for row in found] == [
        ("a", 1, False, False),
        ("b", 2, True, False),
        ("b", 3, True, True),
    ]


def test_without_diffs_a_row_that_came_twice_is_pushed_twice() -> None:
    """Damage: of equal events in an append-only collection one is lost."""
    (found,) = pushed(Binding("v", "t", (), SCHEMA, delta=True), [(of(1, "a"), 1, 2), (of(2, "b"), 1, 1)])
    assert [row["k"] for row in found] == [1, 1, 2]


def test_without_diffs_a_row_that_went_is_an_error_that_names_it() -> None:
    """Damage: what went is pushed as if it had come."""
    binding = Binding("v", "t", (), SCHEMA, delta=True)
    with pytest.raises(DefinitionError, match=r"'v' into 't': the row \{'k': 1, 'x': 'a'\} went"):
        pushed(binding, [(of(1, "a"), 1, 1)], [(of(1, "a"), 11, -1)])


@pytest.mark.parametrize("how", [{"times": True}, {"diffs": True}])
def test_only_changes_have_times_and_diffs(how: dict[str, bool]) -> None:
    """Damage: a table that is to equal its collection has a column that no row of it can fill."""
    with pytest.raises(DefinitionError, match="only what is pushed as changes has times and diffs"):
        Binding("v", "t", ("k",), SCHEMA, **how)  # type: ignore[arg-type]
