"""CREATE MATERIALIZATION … OPTIONS (trigger '…'): what is called after transactions, at least once.  Over lists."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from strandline.bench.environment import ITEMS, VIEWS, _change, over_lists
from strandline.controller.core import Core
from strandline.controller.defining.creating import create
from strandline.controller.language.statements import CreateTable, CreateView, parse
from strandline.controller.location.config import Config, Mode
from strandline.errors import DefinitionError, Position
from strandline.testing.endpoints import Endpoint, KeyValueSession, MemoryDriver
from strandline.testing.simulation.kernel import run_sync


class World:
    """An environment with an endpoint, and a trigger that answers as a test says."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str]] = []
        self.refusal = ""
        self.dies = False
        endpoint = Endpoint()
        place = over_lists()
        self.clock = place.clock
        self.assembly = replace(
            place.assembly, drivers=lambda *_: MemoryDriver(endpoint, KeyValueSession), triggers=lambda _: self.call
        )
        self.core = run_sync(Core.open(self.assembly, Config(), Mode.FULL))
        run_sync(create(self.core, CreateTable("items", ITEMS)))
        run_sync(create(self.core, CreateView("highest", VIEWS["highest"], Position(1, 1))))
        text = "CREATE MATERIALIZATION Out INTO memory OPTIONS (trigger 'https://h/x') AS highest KEY (grp)"
        run_sync(create(self.core, cast("Any", parse(text))))

    async def call(self, body: bytes, key: str) -> str:
        """Be called."""
        said = json.loads(body)
        assert said["materialization"] == "out"
        self.calls.append((said["checkpoint"], key))
        if self.dies:
            raise RuntimeError("a bug of the trigger")
        return self.refusal

    def change(self, n: int, seconds: float = 1) -> int:
        """Change something, and tick; return the time that the endpoint has come to."""
        self.clock.now += round(1000 * seconds)
        run_sync(_change(self.core, n))
        run_sync(self.core.tick())
        return run_sync(self._checkpoint())

    async def _checkpoint(self) -> int:
        assert self.core.writing is not None
        return self.core.writing.running.report().tasks["out"].checkpoint


@pytest.fixture
def world() -> World:
    """Return the world of this test."""
    return World()


def test_a_trigger_is_called_after_each_transaction_and_after_no_other_tick(world: World) -> None:
    """Damage: a report that waits for new rows does not begin, or begins with each tick."""
    reached = []
    for n in range(3):
        reached.append(world.change(n))
        run_sync(world.core.tick())
    assert [checkpoint for checkpoint, _ in world.calls] == reached
    assert len({key for _, key in world.calls}) == 3


@pytest.mark.parametrize("dies", [False, True])
def test_a_call_that_fails_is_made_again_and_holds_nothing_back(world: World, dies: bool) -> None:
    """Damage: a call is lost; or a hook that is down stops the materialization, and no one learns why."""
    world.refusal, world.dies = "https://h answers 503", dies
    first = world.change(0)
    said = world.core.problems["out"]
    assert said.startswith("its trigger ")
    assert "; it is called again; mend what it calls; or " in said
    second = world.change(1, seconds=0.1)
    assert second > first, "transactions do not wait"
    assert world.core.problems["out"] == said
    tried = len(world.calls)
    run_sync(world.core.tick())
    assert len(world.calls) == tried, "it is left alone for a while"
    world.refusal, world.dies = "", False
    world.clock.now += 60_000
    run_sync(world.core.tick())
    assert world.calls[-1][0] == second, "the newest stands for those before it"
    assert "out" not in world.core.problems


def test_a_process_that_begins_calls_once_with_what_it_finds(world: World) -> None:
    """Damage: the call after the last transaction of a process that died is never made."""
    world.refusal = "https://h does not answer"
    reached = world.change(0)
    run_sync(world.core.close())
    world.refusal, world.calls = "", []
    world.core = run_sync(Core.open(world.assembly, Config(), Mode.FULL))
    run_sync(world.core.tick())
    assert [checkpoint for checkpoint, _ in world.calls] == [reached]


def test_a_login_in_the_url_is_refused(world: World) -> None:
    """Damage: a password is stored in a definition, and shown."""
    text = "CREATE MATERIALIZATION o INTO memory OPTIONS (trigger 'https://me:pw@h/x') AS highest TO t KEY (grp)"
    with pytest.raises(DefinitionError, match="secret") as refused:
        run_sync(create(world.core, cast("Any", parse(text))))
    assert "pw" not in str(refused.value)
