"""A view corrects itself: after any foreign write to its shards, the next step restores desired (law K3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from strandline.client import Environment

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark
Rows = Callable[..., list[dict[str, Any]]]
WRONG = [{"city": "Atlantis", "n": 7}]


def _start(place: Place) -> Environment:
    env = place.open()
    env.execute("CREATE TABLE orders (id INT, city STRING)")
    env.execute("CREATE MATERIALIZED VIEW sales AS SELECT city, count(*) AS n FROM orders GROUP BY city")
    env.insert("orders", [{"id": 1, "city": "Delft"}, {"id": 2, "city": "Ghent"}])
    env.tick()
    return env


def _runs(env: Environment) -> Any:
    return env._core.require_writing().instance._views.dataflows.runs_of("sales")


def test_a_row_planted_while_it_runs_is_found_and_gone_after_the_next_step(place: Place, rows: Rows) -> None:
    """Else a stray writer would make the view wrong for ever."""
    with _start(place) as env:
        sink = _runs(env)[-1].sink
        place.tamper(sink.writer.shard, sink.schema, WRONG)
        found = env.verify("sales")
        env.tick()

        assert (found.missing, found.extra) == (0, 1)
        assert "Atlantis" in str(found)
        assert env.verify("sales").ok
        assert sink.counters.conflicts == 1
        assert [r["city"] for r in rows(env, "SELECT city FROM sales")] == ["Delft", "Ghent"]


def test_a_row_withdrawn_while_it_runs_comes_back_and_changes_of_the_same_step_are_kept(place: Place) -> None:
    """Else a correction would undo, or be undone by, the step that it is part of."""
    with _start(place) as env:
        sink = _runs(env)[-1].sink
        place.tamper(sink.writer.shard, sink.schema, [{"city": "Delft", "n": 1}], diff=-1)
        env.insert("orders", [{"id": 3, "city": "Delft"}])
        env.tick()

        assert env.verify("sales").ok


def test_a_row_planted_while_nothing_runs_is_gone_after_the_next_step(place: Place) -> None:
    """Damage: a foreign write while no process runs is taken for the view's own."""
    env = _start(place)
    sink = _runs(env)[-1].sink
    env.close()
    place.tamper(sink.writer.shard, sink.schema, WRONG)
    with place.open() as env:
        assert env.verify("sales").extra == 1
        env.tick()

        assert env.verify("sales").ok
        assert _runs(env)[-1].sink.counters.audits == 1
        assert _runs(env)[0].sink.counters.audits == 0, "the certificate of the internal stage still holds"


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_a_row_planted_in_an_internal_state_shard_heals_there_and_in_the_view(place: Place, *, running: bool) -> None:
    """Damage: accumulators, which no user reads, make every later result wrong."""
    env = _start(place)
    sink = _runs(env)[0].sink
    row = {column.name: "Ghent" if column.type == "string" else 5 for column in sink.schema}
    if not running:
        env.close()
    place.tamper(sink.writer.shard, sink.schema, [row])
    if not running:
        env = place.open()
    with env:
        env.insert("orders", [{"id": 3, "city": "Ghent"}])
        env.tick()
        env.tick()

        assert env.verify("sales").ok
        assert env.query("SELECT n FROM sales WHERE city = 'Ghent'").collect()[0][0] == 2


def test_repair_recomputes_even_what_its_certificate_vouches_for(place: Place) -> None:
    """Else a bug of yesterday's version, certified in good faith, could never be mended."""
    with _start(place) as env:
        run = _runs(env)[-1]
        place.tamper(run.sink.writer.shard, run.sink.schema, WRONG)
        certified = run.sink.writer
        env._run(certified.refresh())
        upper = certified.state.upper
        env._run(certified.compare_and_append([], upper, type(upper)(upper.at + 1), certify=run.sink.fingerprint))
        env._run(run.sink.open())
        env.tick()
        assert env.verify("sales").extra == 1, "the forged certificate is believed"

        assert env.verify("sales", repair=True).repaired
        assert env.verify("sales").ok
