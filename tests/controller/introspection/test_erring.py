"""Errors as rows: each is there since it last came, in whatever order its updates are read."""

from __future__ import annotations

from strandline.controller.introspection.relations import _row

ERROR = '{"place": "t@1", "reason": "it is no JSON", "raw": "x"}'


def test_an_error_is_there_since_the_first_of_its_updates_by_time() -> None:
    """Damage: a person looks for the cause of an error at a time when it was there long before."""
    for changes in ({5: 1, 7: 1}, {7: 1, 5: 1}, {7: 1, 1: 1, 3: -1, 5: 1}):
        row = _row(ERROR, changes)
        assert row is not None
        assert (row["since"], row["count"]) == (5, 2)
    assert _row(ERROR, {7: -1, 5: 1}) is None
