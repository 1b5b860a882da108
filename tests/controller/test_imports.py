"""A view and what its text names and its answer does not depend on, from CREATE to the next process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from strandline.errors import DefinitionError

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark
Rows = Callable[..., list[dict[str, Any]]]

VIEWS = {
    "cte": "WITH unused AS (SELECT * FROM u) SELECT x FROM t",
    "total": "WITH unused AS (SELECT * FROM u) SELECT count(*) AS x FROM t",
    "inside": "SELECT x FROM t WHERE EXISTS (WITH unused AS (SELECT a FROM u) SELECT 1)",
    "never": "SELECT x FROM t WHERE false AND x IN (SELECT a FROM u)",
}


def test_a_view_lives_with_what_it_only_names(place: Place, rows: Rows) -> None:
    """Damage: `verify` fails, the table is dropped under the view, and after a restart the view stands still."""
    with place.open() as env:
        env.execute("CREATE TABLE t (x INT)")
        env.execute("CREATE TABLE u (a INT)")
        for name, sql in VIEWS.items():
            env.execute(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
        for number in (1, 2):
            env.insert("t", [{"x": number}])
            env.insert("u", [{"a": number}] * 2)
            env.tick()
            assert env.status()["problems"] == {}
        assert [env.verify(name).ok for name in VIEWS] == [True] * len(VIEWS)
        env.insert("u", [{"a": 3}])  # a window in which only this changes
        env.tick()
        assert rows(env, "SELECT * FROM cte") == [{"x": 1}, {"x": 2}]
        with pytest.raises(DefinitionError, match="cte, inside, never, total"):
            env.execute("DROP TABLE u")
    with place.open() as env:
        env.insert("t", [{"x": 4}])
        env.tick()
        assert env.status()["problems"] == {}
        assert rows(env, "SELECT * FROM total") == [{"x": 3}]
        assert env.verify("cte").ok
        for name in VIEWS:
            env.execute(f"DROP MATERIALIZED VIEW {name}")
        env.execute("DROP TABLE u")


def test_a_view_of_a_version_that_noted_less_is_mended_when_it_is_opened(place: Place) -> None:
    """Damage: a view that was defined before this rule cannot be verified until it is defined anew."""
    with place.open() as env:
        env.execute("CREATE TABLE t (x INT)")
        env.execute("CREATE TABLE u (a INT)")
        env.execute(f"CREATE MATERIALIZED VIEW v AS {VIEWS['cte']}")
        core = env._core
        view = core.catalog.collection("v")
        older = msgspec.structs.replace(view, imports=("t",))
        epoch = core.require_writing().epoch
        asyncio.run(core.catalogs.change(epoch, lambda catalog: catalog.with_changed(view, older)))
    with place.open() as env:
        env.tick()
        assert env.verify("v").ok
        with pytest.raises(DefinitionError, match="'u' is read by v"):
            env.execute("DROP TABLE u")
