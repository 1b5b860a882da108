"""A transaction is applied at most once, by any process and at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.materialize.drivers.staged.late import BINDING, SCENARIOS, Hand, applied_while_a_successor_goes_on
from tests.materialize.drivers.staged.memory_lake import MemoryFormat, MemoryLake

from strandline.errors import DefinitionError
from strandline.materialize.drivers.staged.applying import Applier, KeyIndex, named, owner_of
from strandline.materialize.drivers.staged.table import Lake, Snapshot
from strandline.materialize.protocol.messages import Acknowledge, Flush, Open, Opened, StartCommit, StartedCommit
from strandline.materialize.protocol.task import WHOLE, Checkpoint, MaterializationSpec
from strandline.problem import cases_of
from strandline.testing.doubles import CountingIds


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_late_apply_changes_nothing(scenario: Callable[[Lake], None]) -> None:
    """Damage: a process that was presumed dead stores rows twice, or takes its successor's back."""
    scenario(MemoryLake())


def test_a_commit_without_the_check_of_the_version_is_caught() -> None:
    """Damage: a format whose commit does not depend on what was seen passes these scenarios."""

    class Planted(MemoryFormat):
        def _next(self, seen: Snapshot, **changes: Any) -> bool:
            newest = self.stored.newest
            assert newest is not None
            return super()._next(Snapshot(newest.number, seen.shape, seen.owner, 0, ()), **changes)

    with pytest.raises(AssertionError):
        applied_while_a_successor_goes_on(MemoryLake(form=Planted))


def test_what_a_backfill_has_made_moot_holds_no_other_binding_up() -> None:
    """Damage: splits that join after a backfill whose first session died are stuck, with the other tables' rows."""
    lake = MemoryLake()
    hand, driver = Hand(lake), lake.driver()
    anew, other = replace(BINDING, backfill=1), replace(BINDING, collection="u", resource="u")

    async def body() -> None:
        await driver.apply(MaterializationSpec("m", (BINDING, other)), {})
        state = {BINDING.state_key: named(hand.entry(1, (1, "old", False, False)))}
        await driver.apply(MaterializationSpec("m", (anew, other)), {})  # its runtime dies before it says so in the log
        without = MaterializationSpec("m", (other,))
        applied = await driver.apply(without, state)
        assert applied.state is not None
        assert (await driver.apply(without, applied.state.apply(state))).state is None
        assert not hand.rows()

    asyncio.run(body())


def test_a_split_that_fills_rows_without_a_key_says_what_helps() -> None:
    """Damage: a person empties the table, as a message about other tables advises, and nothing changes."""
    lake = MemoryLake()
    asyncio.run(lake.driver().apply(MaterializationSpec("m", (BINDING,)), {}))
    entry = Hand(lake).entry(1, (1, "a", False, False))
    assert entry.work is not None
    alone = msgspec.structs.replace(entry.work, key=(), replaces=True, end=2**31)
    with pytest.raises(DefinitionError, match="a row without a key") as caught:
        Applier(CountingIds("a"), KeyIndex()).apply(lake.table("t"), msgspec.structs.replace(entry, work=alone))
    (case,) = cases_of(caught.value.args[0])
    assert [way.command for way in case.ways] == ["ALTER MATERIALIZATION `m` SET (splits '1')"]


def test_a_table_that_is_gone_is_empty() -> None:
    """Damage: a table is dropped there before its rows are taken out, and the task waits for it for ever."""
    hand = Hand(MemoryLake())
    owner = owner_of("m", replace(BINDING, backfill=1, gives_up=True).state_key)
    assert hand.table.snapshot("") is None
    assert not hand.apply(hand.entry(1, (1, "a", False, False), replaces=True, owner=owner))


def _left_behind(lake: MemoryLake, number: int = 1) -> tuple[MaterializationSpec, dict[str, Any]]:
    """Return a task whose view of table t was dropped, and a state that names what was staged for that table."""
    hand = Hand(lake)
    other = replace(BINDING, collection="u", resource="u")
    asyncio.run(lake.driver().apply(MaterializationSpec("m", (BINDING, other)), {}))
    entry = hand.entry(number, (1, "a", True, False))
    return MaterializationSpec("m", (other,)), {BINDING.state_key: named(entry)}


def _lost(lake: MemoryLake) -> None:
    lake.tables["t"].files.clear()


def _rolled_back(lake: MemoryLake) -> None:
    """Do nothing: the state names a transaction that the table is too old for."""


def _altered(lake: MemoryLake) -> None:
    """Do nothing: the row to replace is not there."""


def _taken(lake: MemoryLake) -> None:
    stored = lake.table("t")
    seen = stored.snapshot("")
    assert seen is not None
    assert stored.own(seen, owner_of("m2", BINDING.state_key), ())


@pytest.mark.parametrize(
    ("happened", "number", "why"),
    [
        (_lost, 1, "is gone before it was applied"),
        (_rolled_back, 5, "has transaction 0, and 4 was applied"),
        (_altered, 1, "of 1 rows to replace or delete 0 were there"),
        (_taken, 1, "is filled by another"),
    ],
)
def test_what_a_dropped_view_had_staged_holds_no_other_view_up(
    happened: Callable[[MemoryLake], None], number: int, why: str
) -> None:
    """Damage: the view was dropped for its table's sake, and all others stop at each tick for ever, for that table."""
    lake = MemoryLake()
    without, state = _left_behind(lake, number)
    happened(lake)

    async def body() -> None:
        applied = await lake.driver().apply(without, state)
        assert applied.state is not None
        assert "'t'" in applied.action
        assert why in applied.action
        assert (await lake.driver().apply(without, applied.state.apply(state))).state is None

    asyncio.run(body())


def test_a_binding_that_begins_later_keeps_its_table_until_then() -> None:
    """Damage: the rows that a view has left are gone before it has come back, in the replay of a transaction."""
    lake = MemoryLake()
    other = replace(BINDING, collection="u", resource="u")
    spec = MaterializationSpec("m", (BINDING, other))

    async def body() -> None:
        driver = lake.driver()
        await driver.apply(spec, {})
        session = await driver.open()
        await session.send(Open(spec, "1", WHOLE, {}))
        assert await session.receive() == Opened(None)
        for message in (Acknowledge(), Flush(), StartCommit(Checkpoint(((BINDING.state_key, 5),)))):
            await session.send(message)
            answer = await session.receive()
        assert isinstance(answer, StartedCommit)
        assert answer.state is not None
        assert BINDING.state_key in answer.state.updated
        assert other.state_key not in answer.state.updated

    asyncio.run(body())
