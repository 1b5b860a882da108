"""What several stages ask for alike is found once, and is what each of them would have found."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from strandline.engine.frames.transforms import ANSWER_BYTES, Shared


def table(rows: int) -> pa.Table:
    """Return a table of eight bytes a row."""
    return pa.table({"n": pa.array(range(rows), pa.int64())})


def size(found: pa.Table) -> int:
    """Return its bytes."""
    return int(found.nbytes)


def test_the_same_question_of_the_same_tables_is_answered_once() -> None:
    """Damage: each of fifty views looks up the same rows."""
    shared, of = Shared(), table(3)
    first = shared.get("q", [of], lambda: table(1), size)
    assert shared.get("q", [of], lambda: table(2), size) is first


def test_another_question_or_another_table_is_another_answer() -> None:
    """Damage: a view gets the rows of another one: tables with equal rows may be of different times."""
    shared, of = Shared(), table(3)
    first = shared.get("q", [of], lambda: table(1), size)
    assert shared.get("r", [of], lambda: table(2), size) is not first
    assert shared.get("q", [table(3)], lambda: table(2), size) is not first


def test_a_table_is_kept_for_as_long_as_it_names_an_answer() -> None:
    """Damage: a table gets the identity of one that is gone, and its rows."""
    shared = Shared()
    answers = [shared.get("q", [table(n)], lambda n=n: n, lambda _: 8) for n in range(200)]
    assert answers == list(range(200))


def test_what_was_used_longest_ago_goes_first() -> None:
    """Damage: the process grows by what it once looked up."""
    shared, of = Shared(bytes_max=800 + 2 * ANSWER_BYTES), table(1)
    asked: list[str] = []

    def ask(key: str) -> None:
        shared.get(key, [of], lambda: asked.append(key) or table(40), size)  # type: ignore[func-returns-value]

    for key in "abacab":
        ask(key)
    assert asked == ["a", "b", "c", "b"]


def test_a_failure_is_that_callers_alone_and_no_answer_is_kept_of_it() -> None:
    """Damage: one refusal of a store stops all stages that ask for the same."""
    shared, of = Shared(), table(1)
    begun, go = threading.Event(), threading.Event()

    def fails() -> pa.Table:
        begun.set()
        go.wait(120)
        raise OSError("gone")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shared.get, "q", [of], fails, size)
        begun.wait(120)
        second = pool.submit(shared.get, "q", [of], lambda: table(7), size)
        go.set()
        with pytest.raises(OSError, match="gone"):
            first.result()
        assert second.result().num_rows == 7
    assert shared.get("q", [of], lambda: table(8), size).num_rows == 8


def test_what_has_no_size_is_not_kept() -> None:
    """Damage: a lazy frame outlives the files that it reads."""
    shared, of = Shared(), table(1)
    assert shared.get("q", [of], lambda: 1, lambda _: None) == 1
    assert shared.get("q", [of], lambda: 2, lambda _: None) == 2
