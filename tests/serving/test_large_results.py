"""A large result, of an environment of its own: no result of another test counts beside it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from strandline.engine.session.collecting import HELD_BYTES_MAX
from strandline.errors import InvalidUsage
from strandline.serving import RemoteEnvironment, Serving, desk

pytestmark = pytest.mark.spark


def wait_for_results(served: Serving, size: int) -> None:
    """Return once the results that wait or are sent have ``size`` bytes: a stream ends after its last row came."""
    for _ in range(2400):
        if served.desk.results_bytes == size:
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"{served.desk.results_bytes} bytes, not {size}")


def test_a_result_of_more_than_is_held_in_memory_comes_whole(
    served: Serving, remote: RemoteEnvironment, cursor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: rows of a large result are missing, or a client that asks for too much fills the disk."""
    query = "SELECT id, repeat('x', 100) AS t FROM range(200000) ORDER BY id"
    found, _ = remote.answer(query)
    assert found["id"].to_pylist() == list(range(200_000))
    assert found.nbytes > HELD_BYTES_MAX
    cursor.execute(query)
    wait_for_results(served, found.nbytes)
    assert cursor.fetch_arrow_table().equals(found)
    wait_for_results(served, 0)
    monkeypatch.setattr(desk, "RESULT_BYTES_MAX", 1_000_000)
    with pytest.raises(InvalidUsage, match="the result has more than 1000000 bytes: ask for fewer rows or columns"):
        remote.answer(query)
