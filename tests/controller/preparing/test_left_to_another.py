"""A table is another materialization's once what had it before can write nothing more, wherever that runs.  Over lists.

What runs in a replica that no controller reaches is played by a task of its own.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from deployed import BASE, Deployed

from strandline.controller import writing
from strandline.controller.commanded import command
from strandline.controller.location.items import Materialization
from strandline.errors import FencedError, Unavailable
from strandline.instance.commands import RunMaterialization
from strandline.instance.tasks import fence_task, start_task
from strandline.materialize.splits import Splits
from strandline.store.clock import Inline
from strandline.testing.doubles import Crash

GIVER = "CREATE MATERIALIZATION g IN INSTANCE i INTO out AS counts TO C KEY (word), many TO T KEY (word)"
GIVEN = {
    "materializations/g.sql": GIVER.replace(", many TO T KEY (word)", ""),
    "materializations/z.sql": "CREATE MATERIALIZATION z INTO out AS notes TO N KEY (id), few TO T KEY (word)",
}
FILES = {
    **{name: text for name, text in BASE.items() if not name.startswith("materializations/")},
    "instances/i.sql": "CREATE INSTANCE i REPLICAS (r 'localhost:9')",
    "views/few.sql": "CREATE MATERIALIZED VIEW few AS SELECT word, n FROM counts WHERE n <= 1",
    "materializations/g.sql": GIVER,
}


def cut_off(found: Deployed) -> Splits:
    """Return what a replica runs as ``g``, which hears nothing more."""
    core, catalog = found.core, found.catalog
    have, client = core.assembly, core.client
    wanted = command(catalog.items["g"], catalog, core.require_writing().plans, core.config)
    assert isinstance(wanted, RunMaterialization)
    epoch = catalog.writes + wanted.fence

    async def begun() -> Splits:
        readers = [await client.reader(each.shard, each.schema, each.name) for each in wanted.inputs]
        there = [each for each in readers if each is not None]
        endpoint = have.drivers(wanted.endpoint, wanted.options)
        return (await start_task(wanted, there, client, have.engine, endpoint, epoch, lambda _: None, Inline))[0]

    task: Splits = found.run(begun())
    for _ in range(2):
        found.run(task.advance())
    assert found.pushed(table="T") == [("a", 2)]
    return task


def emptied(found: Deployed) -> None:
    """Drop the table at the endpoint, as the problem of ``z`` advises."""
    with closing(sqlite3.connect(found.root / "out.db")) as database:
        database.execute("DROP TABLE T")


def writes_nothing(found: Deployed, late: Splits) -> None:
    """Fail unless what the replica runs cannot write, and ``z`` has the table to itself."""
    found.note("q", "q", "single")
    before = found.pushed(table="T")
    assert before == [("b", 1), ("single", 1)]
    for _ in range(2):
        with pytest.raises(FencedError):
            found.run(late.advance())
    found.note("x")
    assert found.pushed(table="T") == [*before, ("x", 1)]


@pytest.fixture
def found(tmp_path: Path) -> Deployed:
    """A location with rows, whose materialization only runs in a replica that this process does not reach."""
    made = Deployed(tmp_path, FILES)
    made.note("a", "a", "b")
    return made


def test_what_a_cut_off_replica_runs_writes_nothing_into_a_table_that_was_given_away(found: Deployed) -> None:
    """Damage: rows of a view stand in a table of another one, whose materialization knows nothing of them."""
    late = cut_off(found)
    found.write(GIVEN)
    found.deploy()
    emptied(found)
    found.tick()
    writes_nothing(found, late)


def test_the_taker_waits_until_the_giver_is_fenced(found: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: where a store does not answer for a moment, or a process dies, the table is given away too early."""
    late = cut_off(found)

    async def unanswered(log: str, epoch: int, client: object) -> None:
        raise Unavailable("Consensus does not answer")

    async def dies(log: str, epoch: int, client: object) -> None:
        raise Crash

    found.write(GIVEN)
    with monkeypatch.context() as patched:
        patched.setattr(writing, "fence_task", unanswered)
        found.deploy()
        emptied(found)
        found.tick()
        assert "Consensus does not answer" in found.core.health.problems()["z"]
        patched.setattr(writing, "fence_task", dies)
        with pytest.raises(Crash):
            found.tick()
    found.open()
    found.tick()
    writes_nothing(found, late)


def test_each_table_that_is_let_go_fences_anew(found: Deployed) -> None:
    """Damage: a materialization that lets a second table go is not fenced, since it was for the first one."""
    found.write(GIVEN)
    found.deploy()
    first = found.catalog.one("g", Materialization, "materialization").fence
    found.write(
        {"materializations/g.sql": GIVER.replace("counts TO C KEY (word), many", "many").replace("TO T", "TO U")}
    )
    found.deploy()
    assert 0 < first < found.catalog.one("g", Materialization, "materialization").fence


def test_to_fence_a_giver_again_stops_nothing(found: Deployed) -> None:
    """Damage: each start of the taker ends what the giver runs by then."""
    found.write(GIVEN)
    found.deploy()
    giver = found.catalog.one("g", Materialization, "materialization")
    epoch = found.catalog.writes + giver.fence
    found.run(fence_task(giver.log, epoch, found.core.client))
    wanted = command(giver, found.catalog, found.core.require_writing().plans, found.core.config)
    assert isinstance(wanted, RunMaterialization)
    assert wanted.fence == giver.fence
    found.note("c")
    core = found.core

    async def begun() -> Splits:
        readers = [await core.client.reader(each.shard, each.schema, each.name) for each in wanted.inputs]
        there = [each for each in readers if each is not None]
        endpoint = core.assembly.drivers(wanted.endpoint, wanted.options)
        given = there, core.client, core.engine, endpoint, epoch, lambda _: None, Inline
        return (await start_task(wanted, *given))[0]

    task: Splits = found.run(begun())
    for word in "def":
        found.note(word)
        found.run(task.advance())
        found.run(fence_task(giver.log, epoch, core.client))
    found.run(task.advance())
    assert found.pushed(table="C") == [("a", 2), *((word, 1) for word in "bcdef")]
