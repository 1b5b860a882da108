"""The bounds of results hold: while a result waits, while it is sent, and when its client has gone away."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from strandline.errors import InvalidUsage, Unavailable
from strandline.plane import Queries
from strandline.serving import desk as module
from strandline.serving.desk import Desk, Prepared
from strandline.serving.kept import COUNT_MAX
from strandline.testing.doubles import CountingIds, HandClock

ROWS = pa.table({"n": list(range(1_000))})
SIZE = ROWS.nbytes


class Answers:
    """An environment that has one answer, which it keeps."""

    listed = Queries(HandClock()).asked

    def answer(self, *_: object, **__: object) -> tuple[pa.Table, int]:
        """Return it."""
        return ROWS, 7

    def execute(self, *_: object) -> int:
        """Return when a statement was committed."""
        return 8


def desk(clock: HandClock | None = None) -> Desk:
    """A desk over this environment."""
    return Desk(cast("Any", Answers()), clock or HandClock(), CountingIds(), lambda: None)


def test_a_result_that_no_client_fetches_goes_with_a_tick() -> None:
    """Damage: gigabytes of a client that went away stay on the disk until another client asks."""
    clock = HandClock()
    asked = desk(clock)
    handle, _, _ = asked.asked("SELECT 1")
    asked.ticked()
    assert asked.results_bytes == SIZE
    clock.now += 61_000
    asked.ticked()
    assert asked.results_bytes == 0
    with pytest.raises(InvalidUsage, match="there is no such result"):
        asked.fetched(handle)


def test_a_thousand_statements_whose_answers_no_client_fetches_are_taken() -> None:
    """Damage: a driver fetches no answer of an INSERT, and its hundred-and-first within a minute is refused."""
    asked = desk()
    handles = [asked.asked("INSERT INTO t VALUES (1)")[0] for _ in range(COUNT_MAX + 1)]
    assert asked.fetched(handles[-1]).to_pylist() == [{"committed_at": 8}]
    assert asked.fetched(asked.asked("SELECT 1")[0]) == ROWS
    with pytest.raises(InvalidUsage, match="there is no such result"):
        asked.fetched(handles[0])  # the oldest one has gone, and it alone
    assert asked.fetched(handles[1]).num_rows == 1


def test_a_statement_that_is_bound_to_no_rows_changes_nothing() -> None:
    """Damage: a program that inserts an empty list gets an internal error."""
    asked = desk()
    handle = asked._prepared.put(
        Prepared("INSERT INTO t VALUES (?)", b"", rows=pa.table({"1": pa.array([], pa.int64())}))
    )
    assert asked.fetched(asked.asked_prepared(handle)[0]).to_pylist() == [{"committed_at": None}]


def test_a_result_counts_until_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a hundred clients that read slowly, or fetch nothing, fill the disk with their results."""
    monkeypatch.setattr(module, "RESULTS_BYTES_MAX", SIZE * 3 // 2)
    asked = desk()
    handle, _, _ = asked.asked("SELECT 1")
    with pytest.raises(Unavailable, match="the results that this server keeps are too large together: try again later"):
        asked.asked("SELECT 1")
    sent = asked.fetched(handle)
    with pytest.raises(Unavailable, match="too large together"):
        asked.answer("SELECT 1")
    assert sent == ROWS
    del sent
    assert asked.answer("SELECT 1")[0] == ROWS
    assert asked.results_bytes == 0


def test_the_results_of_a_prepared_query_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a client that binds a thousand rows gets a thousand results as one, and fills the disk."""
    monkeypatch.setattr(module, "RESULT_BYTES_MAX", SIZE * 5 // 2)
    asked = desk()
    two, three = (asked._prepared.put(Prepared("SELECT ?", b"", pa.table({"1": [1] * times}))) for times in (2, 3))
    assert asked.asked_prepared(two)[2] == 2_000
    assert asked.results_bytes == 2 * SIZE
    with pytest.raises(InvalidUsage, match=r"the results have more than \d+ bytes: bind fewer rows at a time"):
        asked.asked_prepared(three)
    assert asked.results_bytes == 2 * SIZE, "what was refused counts no longer"
