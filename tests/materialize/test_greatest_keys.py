"""Keys that are greater than all that were ever stored are not asked for, and nothing else changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.materialize.duckdb_endpoint import DuckDBEndpoint

from strandline.errors import CorruptionError, DefinitionError
from strandline.materialize import runtime
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol.greatest import Greatest, Key
from strandline.materialize.protocol.messages import Load, Opened, Request, Response
from strandline.materialize.protocol.task import Progress
from strandline.testing.contracts.drivers.reduction_contract import ReducedWorld
from strandline.testing.contracts.drivers.world import MakeEndpoint
from strandline.testing.endpoints import MemoryEndpoint, StagingSession
from strandline.testing.simulation.crashes import Crash, CrashPlan


class Asked(StagingSession):
    """Keeps the keys that it was asked for."""

    keys: list[Any] = []  # noqa: RUF012 - of all sessions of one test

    def answers(self, message: Request) -> list[Response]:
        if isinstance(message, Load):
            self.keys += message.keys["k"].to_pylist()
        return super().answers(message)


class LoadsAll(Asked):
    """Cannot do with less."""

    def answers(self, message: Request) -> list[Response]:
        return [
            Opened(each.checkpoint, loads_all=True) if isinstance(each, Opened) else each
            for each in super().answers(message)
        ]


def appended(session: type[Asked], times: int = 5) -> ReducedWorld:
    """Append a new key in each transaction, and one that is there; start another runtime in between."""
    session.keys = []
    world = ReducedWorld(MemoryEndpoint(session))

    async def body() -> None:
        for number in range(1, times + 1):
            runtime = world.runtime()
            world.append(number, key=number)
            await runtime.advance()
            world.append(10 * number, key=1)
            await runtime.advance()
            await runtime.close()
            world.check(world.upper)

    asyncio.run(body())
    return world


def test_a_new_key_that_is_greater_is_not_asked_for_and_one_that_is_not_is() -> None:
    """Damage: an endpoint is asked for each new key; or a total begins anew."""
    appended(Asked)
    assert set(Asked.keys) == {1}


def test_an_endpoint_that_may_know_two_keys_as_one_is_asked_for_all() -> None:
    """Damage: a connector that folds keys stores a row over another one."""
    appended(LoadsAll)
    assert set(LoadsAll.keys) == {1, 2, 3, 4, 5}


async def grown(make_endpoint: MakeEndpoint, rounds: int = 12) -> None:
    """Append ever greater keys, and to the last one again; crash each time at another point, and let another go on."""
    world = ReducedWorld(make_endpoint())
    for at in range(1, rounds):
        for plan in (CrashPlan(None), CrashPlan(3 * at), CrashPlan(3 * at, after=True)):
            world.append(1, key=at)
            with suppress(Crash):
                await world.runtime(plan).advance()
            world.append(2, 3, key=at)
            successor = world.runtime()
            while await successor.advance():
                pass
            world.check(world.upper)
            await successor.close()


@pytest.fixture(params=["log", "endpoint"])
def make_endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeEndpoint]:
    """Return an endpoint whose commit is the log's, or one that keeps its own checkpoint."""
    if request.param == "log":
        yield partial(MemoryEndpoint, StagingSession)
        return
    endpoint = DuckDBEndpoint(tmp_path / "e.duckdb")
    yield lambda: endpoint
    endpoint.kept.close()


def test_what_is_stored_is_as_if_every_key_were_asked_for(make_endpoint: MakeEndpoint) -> None:
    """Damage: a total begins anew after a crash, or a row is stored twice."""
    asyncio.run(grown(make_endpoint))


_written = RecoveryLog.write


async def _never_again(self: RecoveryLog, progress: Progress, state: Any, greatest: Greatest | None = None) -> None:
    """Make the first greatest keys durable, and no later ones."""
    await _written(self, progress, state, None if self.record.greatest else greatest)


async def _one_late(self: RecoveryLog, progress: Progress, state: Any, greatest: Greatest | None = None) -> None:
    """Make the greatest keys of a transaction durable with the extent of the next one."""
    late = getattr(self, "late", self.record.greatest) or greatest
    if greatest is not None:
        self.late = greatest  # type: ignore[attr-defined]
    await _written(self, progress, state, None if greatest is None else late)


def _smaller(one: Key | None, other: Key | None) -> Key | None:
    return min((key for key in (one, other) if key is not None), default=None)


def _by_text(one: Key | None, other: Key | None) -> Key | None:
    """Compare numbers as texts."""
    found = [key for key in (one, other) if key is not None]
    return max(found, key=lambda key: [str(value) for value in key], default=None)


@pytest.mark.parametrize(
    ("where", "name", "defect"),
    [
        (RecoveryLog, "write", _never_again),
        (RecoveryLog, "write", _one_late),
        (runtime, "greater", _smaller),
        (runtime, "greater", _by_text),
    ],
)
def test_a_greatest_key_that_is_late_or_wrong_is_caught(
    where: Any, name: str, defect: Any, make_endpoint: MakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the test above would pass whatever is left out."""
    monkeypatch.setattr(where, name, defect)
    with pytest.raises((AssertionError, CorruptionError, DefinitionError)):
        asyncio.run(grown(make_endpoint))


async def _unknown(self: RecoveryLog, progress: Progress, state: Any, greatest: Greatest | None = None) -> None:
    """Make no greatest keys durable, as an earlier version did."""
    await _written(self, progress, state, {})


def test_where_a_log_knows_no_greatest_key_each_key_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the greatest key of one transaction is taken for that of all, and a greater one begins anew."""
    Asked.keys = []
    world = ReducedWorld(MemoryEndpoint(Asked))

    async def stored(*keys: int) -> None:
        runtime = world.runtime()
        for key in keys:
            world.append(1, key=key)
            await runtime.advance()
        await runtime.close()
        world.check(world.upper)

    with monkeypatch.context() as earlier:
        earlier.setattr(RecoveryLog, "write", _unknown)
        asyncio.run(stored(5))
    asyncio.run(stored(3, 5))
    assert Asked.keys == [3, 5]
