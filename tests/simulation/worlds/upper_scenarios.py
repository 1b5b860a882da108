"""Small scripts over whole environments, each of which shows one thing that the floors above persist do.

They are performed (`performer.py`) alone, with one fault at a time (`upper_points.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final
from unittest import mock

from strandline.controller.asking import housekeeping as upkeep
from strandline.controller.asking.verification import backfill
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.language.statements import Drop
from strandline.testing.simulation.kernel import Fate, IoPoint
from worlds.instance import create, parsed
from worlds.meanings import PREPARED, VIEWS, Row, Wanted
from worlds.performer import Act, Performer, Script
from worlds.whole import DDL, overtake

A_DAY_S: Final = 86_400 + 1


# ---- acts ------------------------------------------------------------------------------------------------------------


async def tick(by: Performer, core: Core) -> None:
    """Bring everything to one new time."""
    await by.tick(core)


async def bind(by: Performer, core: Core) -> None:
    """Bind a time at every source, and make no data durable."""
    await by._ticked(core, core.ingest(step=False))


async def tick_and_be_succeeded(by: Performer, core: Core) -> None:
    """Tick; when the first stage is computed, another instance begins to take the location over."""
    evaluate = core.engine.evaluate

    async def evaluated(node, frames, *, origin=0):
        by.stage.take_over()
        return await evaluate(node, frames, origin=origin)

    with mock.patch.object(core.engine, "evaluate", evaluated):
        await by.tick(core)


async def begin_promotion(by: Performer, core: Core) -> None:
    """Let another instance begin to prepare the next version."""
    by.stage.take_over()


def insert(table: str, *rows: Row) -> Act:
    """Return the act that commits ``rows`` to a table."""
    return change({table: [(row, 1) for row in rows]})


def change(rows: dict[str, list[tuple[Row, int]]]) -> Act:
    """Return the act that commits ``rows``, by table, at one time."""

    async def commit(by: Performer, core: Core) -> None:
        await by.commit(core, {table: list(each) for table, each in rows.items()})

    return commit


def produce(name: str, partition: str, *values: int) -> Act:
    """Return the act in which messages come to an upstream."""

    async def come(by: Performer, core: Core) -> None:
        at = (by.name, by.stage.over[by.name])

        def once() -> None:
            if by.stage.marks[f"came {at}"] == 0:
                by.stage.marks[f"came {at}"] = 1
                by.stage.upstreams[name].produce(partition, *values)

        await IoPoint("outside", (), once, (Fate.DONE,))

    return come


def define(text: str) -> Act:
    """Return the act that creates what ``text`` says, if it is not there."""

    async def made(by: Performer, core: Core) -> None:
        await core.settle()
        if core.catalog.find(parsed(text).name) is None:
            await create(core, text)

    return made


def drop(kind: str, name: str) -> Act:
    """Return the act that drops an item."""

    async def dropped(by: Performer, core: Core) -> None:
        await core.settle()
        await definitions.drop(core, Drop(kind, name, if_exists=True))

    return dropped


def ambush(name: str) -> Act:
    """Return the act in which another writer lies in wait for the next flush that moves a view, to get there first."""

    async def lain(by: Performer, core: Core) -> None:
        view = core.catalog.collection(name)
        by.stage.ambushes[view.shard] = partial(overtake, by.stage, view)

    return lain


def reach(place: str, *, down: bool) -> Act:
    """Return the act in which an endpoint ceases, or begins again, to answer."""

    async def turned(by: Performer, core: Core) -> None:
        by.stage.places[place].down = down

    return turned


async def keep_up(by: Performer, core: Core) -> None:
    """Merge and collect whatever can be."""
    await core.merge()
    await upkeep.compact(core, None, apply=True)
    await upkeep.collect(core, apply=True)


async def wait_a_day(by: Performer, core: Core) -> None:
    """Let everything grow older than garbage is spared."""
    await core.client.clock.sleep(A_DAY_S)


def fill_again(name: str) -> Act:
    """Return the act that fills the tables of a materialization again, once."""

    async def refilled(by: Performer, core: Core) -> None:
        await core.settle()
        item = core.catalog.find(name)
        assert item is not None
        if not any(bound.backfill for bound in item.bindings):
            await backfill(core, name, None, apply=True)

    return refilled


# ---- scripts ---------------------------------------------------------------------------------------------------------


def _table(name: str) -> str:
    return f"CREATE TABLE {name} ({DDL[name]})"


def _source(name: str) -> str:
    return f"CREATE SOURCE {name} ({DDL[name]}) USING list OPTIONS (upstream {name!r})"


def _view(name: str, views: Mapping[str, Wanted] = VIEWS) -> str:
    return f"CREATE MATERIALIZED VIEW {name} AS {views[name].sql}"


def _into(place: str, view: str, key: str) -> str:
    return f"CREATE MATERIALIZATION m_{place} INTO {place} OPTIONS (at {place!r}) AS {view} KEY ({key})"


_SOME: Final = insert("t1", (0, 2, 1), (1, 3, 2))
_LESS: Final = change({"t1": [((0, 2, 1), -1), ((1, 1, 3), 1)]})

STRANGER: Final = "move_over_a_stranger"
PROMOTE: Final = "promote"
SCRIPTS: Final = (
    Script(
        "commit_and_follow",
        (_table("t1"), _table("t2"), _view("joined")),
        (
            insert("t1", (0, 2, 1)),
            tick,
            change({"t1": [((1, 3, 2), 1)], "t2": [((0, 1, 3), 1), ((1, 1, 4), 1)]}),
            tick,
            change({"t1": [((0, 2, 1), -1)], "t2": [((1, 2, 5), 1)]}),
            tick,
        ),
    ),
    Script(
        "ingest",
        (_source("u1"), _view("total")),
        (produce("u1", "p", 1, 2), bind, produce("u1", "q", 3), bind, tick, produce("u1", "p", 0), tick),
    ),
    Script(
        "create_and_drop",
        (_table("t1"),),
        (
            define(_source("u1")),
            produce("u1", "p", 1, 2),
            define(_view("extremes")),
            define(_into("checkpointing", "extremes", "p")),
            tick,
            drop("materialization", "m_checkpointing"),
            drop("materialized view", "extremes"),
            drop("source", "u1"),
            tick,
        ),
        patience=(64, 2),  # with a single attempt no shard is ever made
    ),
    Script(
        "take_over",
        (_table("t1"), _view("linear"), _view("sums")),
        (_SOME, tick_and_be_succeeded, _LESS, tick),
        (insert("t1", (2, 3, 7)), tick),
    ),
    Script(
        "deliver_with_checkpoints",
        (_table("t1"), _view("linear"), _into("checkpointing", "linear", "id")),
        (_SOME, tick, reach("checkpointing", down=True), _LESS, tick, reach("checkpointing", down=False), tick),
    ),
    Script(
        "stage_and_deliver",
        (_table("t1"), _view("linear"), _into("staging", "linear", "id"), _into("direct", "linear", "id")),
        (_SOME, tick, _LESS, tick),
    ),
    Script(
        "fail_and_heal",
        (_table("t1"), _view("quotients"), _view("above"), _into("checkpointing", "quotients", "id")),
        (
            insert("t1", (0, 2, 1)),
            tick,
            insert("t1", (0, 0, 2), (0, 4, 3)),
            tick,
            change({"t1": [((0, 0, 2), -1)]}),
            tick,
        ),
    ),
    Script(
        STRANGER,
        (_table("t1"), _view("quotients"), _view("above")),
        (insert("t1", (0, 2, 1)), tick, ambush("quotients"), tick, tick, insert("t1", (0, 4, 3)), tick),
    ),
    Script(
        "let_go_of_history",
        (_table("t1"), _view("sums")),
        (
            _SOME,
            tick,
            _LESS,
            tick,
            keep_up,
            wait_a_day,
            insert("t1", (0, 1, 5)),
            tick,
            keep_up,
        ),
        keep_history="0 seconds",
        upkeep=True,
    ),
    Script(
        PROMOTE,
        (_table("t1"), _view("sums"), _view("many"), _into("checkpointing", "sums", "k")),
        (
            _SOME,
            tick,
            begin_promotion,
            _LESS,
            tick,
            *(act for n in range(4) for act in (insert("t1", (n, 3, 10 + n)), tick)),
        ),
        (insert("t1", (2, 3, 7)), tick),
        promoted=(_table("t1"), _view("sums", PREPARED), _view("many")),
    ),
    Script(
        "fill_again",
        (_table("t1"), _view("linear"), _into("checkpointing", "linear", "id")),
        (_SOME, tick, fill_again("m_checkpointing"), tick),
    ),
)
