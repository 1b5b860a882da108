"""A row that a stranger writes is one row's error under views of every kind, and is healed when it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from failing_calls import STORIES
from tests.engine.test_whose_error import failing, raised, rows_with

from strandline.client import Environment
from strandline.compute import step
from strandline.engine.session.start import adopt
from strandline.errors import CollectionError, DefinitionError

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark

Rows = Callable[..., list[dict[str, Any]]]
ROWS = {
    "cast": "SELECT id, CAST(s AS INT) AS v FROM t",
    "raised": "SELECT id, IF(s = '1', 1, raise_error(s)) AS v FROM t",
    "parsed": "SELECT id, from_json(IF(s = '1', '{}', concat('{', s)), 'x INT', map('mode', 'FAILFAST')).x AS v FROM t",
    "path": "SELECT id, xpath(IF(s = '1', '<a/>', s), 'a/b') AS v FROM t",
    "zone": "SELECT id, from_utc_timestamp(TIMESTAMP '2020-01-01 00:00:00', IF(s = '1', 'UTC', s)) AS v FROM t",
    "joined": "SELECT t.id, u.name FROM u JOIN t ON u.k = CAST(t.s AS INT)",
    "exploded": "SELECT id, explode(sequence(1, CAST(s AS INT))) AS v FROM t",
    "below": "SELECT x.id, u.name FROM (SELECT id, CAST(s AS INT) AS v FROM t) x JOIN u ON x.v = u.k"
    " AND x.id IN (SELECT k FROM u)",
}
WHOLE = {
    "recomputed": "SELECT id, rank() OVER (ORDER BY CAST(s AS INT), id) AS r FROM t",
    "subquery": "SELECT u.k FROM u JOIN t ON u.k = t.id AND CAST(t.s AS INT) IN (SELECT k FROM u)",
    "summed": "SELECT sum(CAST(s AS INT)) AS n FROM t",
}
VIEWS = ROWS | WHOLE


OF_A_CALL = (
    "SELECT id, IF(id = 1, NULL, {call}) AS v FROM t",
    "SELECT {call} AS v FROM t WHERE id > 1",
)
"""Views that make a call for the row 2: a call of a scalar function, or of one over several rows."""
AS_TEXT = "CAST({call} AS STRING)"
"""How a view makes a call, as a view has no columns of some types; not all that fails does so as a text.

A constant part that fails, as a date of '$.[', fails a plan by itself, and in a branch only where it is needed.
"""
TRIED = 12
"""So many calls of each function."""

FEW = ("cast", "parsed", "joined", "recomputed")
"""Views whose large windows are tried."""


def _shop(env: Environment, views: Iterable[str]) -> None:
    env.execute("CREATE TABLE t (id INT, s STRING)")
    env.execute("CREATE TABLE u (k INT, name STRING)")
    for name in views:
        env.execute(f"CREATE MATERIALIZED VIEW {name} AS {VIEWS[name]}")
    env.insert("u", [{"k": 1, "name": "one"}])
    env.insert("t", [{"id": 1, "s": "1"}])
    env.tick()


def _comes_and_goes(env: Environment, rows: Rows, views: Iterable[str], said: str) -> None:
    """Let a row come that says ``said``, and go."""
    env.insert("t", [{"id": 2, "s": said}])
    env.tick()
    found = env.status()["collections"]
    assert {name: found[name]["problem"] for name in views if found[name]["problem"]} == {}
    counts = {name: found[name]["errors"]["rows"] for name in views}
    assert {name: count for name, count in counts.items() if count != 1} == {}
    for name in views:
        with pytest.raises(CollectionError):
            rows(env, f"SELECT * FROM {name}")
    env.delete("t", [{"id": 2, "s": said}])
    env.tick()
    for name in views:
        assert env.verify(name).ok, name


@pytest.mark.drawn(len(STORIES))
@pytest.mark.parametrize("said", STORIES)
def test_a_strangers_row_is_an_error_of_its_own(place: Place, rows: Rows, said: str) -> None:
    """Damage: one row stops a view for all others, and its text says that a disk is full or a store silent."""
    with place.open() as env:
        _shop(env, VIEWS)
        _comes_and_goes(env, rows, VIEWS, said)


def test_in_large_windows_it_is_one_too(place: Place, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: what Spark's own writer wraps is taken for a failure of the machine."""
    monkeypatch.setattr(step, "SMALL_ROWS_MAX", 0)
    with place.open() as env:
        _shop(env, FEW)
        _comes_and_goes(env, rows, FEW, STORIES[3])


def _created(env: Environment, name: str, call: str) -> bool:
    """Create a view that makes a call; return whether one of its forms may be a view."""
    for form in OF_A_CALL:
        try:
            env.execute(f"CREATE MATERIALIZED VIEW {name} AS {form.format(call=call)}")
        except DefinitionError:
            continue
        return True
    return False


def _odd(env: Environment, views: dict[str, str], errors: int) -> dict[str, object]:
    """Return the calls whose views stand still, or have another number of errors."""
    found = env.status()["collections"]
    told = {name: (found[name]["problem"], found[name]["errors"]["rows"]) for name in views}
    return {views[name]: each for name, each in told.items() if each[0] or each[1] != errors}


@pytest.mark.slow
@pytest.mark.time_limit(3600)
@pytest.mark.parametrize("seed", range(2))
def test_a_call_of_any_function_that_fails_is_the_rows_error(place: Place, tmp_path: Path, seed: int) -> None:
    """Damage: a function's exception is on no list, and one row stops all views that call it."""
    session = adopt(place.spark)
    rows_with(session, said := STORIES[seed])
    calls = {
        name: call
        for name, call, _ in failing(session, TRIED, seed, tmp_path / "out", AS_TEXT)
        # what Spark's generated code and its interpreter evaluate in another order fails in one of them alone
        if all(raised(session, way, f"IF(id = 2, NULL, {call})", tmp_path / "out") for way in ("in a job", "local"))
    }
    with place.open() as env:
        env.execute("CREATE TABLE t (id INT, s STRING, n INT, d DOUBLE)")
        env.insert("t", [{"id": 1, "s": "1", "n": 1, "d": 0.5}])
        views = {name: call for number, call in enumerate(calls.values()) if _created(env, name := f"v{number}", call)}
        assert len(views) * 3 > len(calls), "so many calls that fail have views"
        env.tick()
        assert _odd(env, views, 0) == {}
        stranger = [{"id": 2, "s": said, "n": 1, "d": 0.5}]
        env.insert("t", stranger)
        env.tick()
        assert _odd(env, views, 1) == {}
        env.delete("t", stranger)
        env.tick()
        assert _odd(env, views, 0) == {}
        assert [views[name] for name in views if not env.verify(name).ok] == []
