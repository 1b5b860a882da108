"""A session stages files, and a later one, which removes what earlier ones left, removes them meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.materialize.drivers.delta.delta_endpoint import DeltaEndpoint
from tests.materialize.drivers.staged.late import BINDING
from tests.materialize.drivers.staged.memory_lake import MemoryLake

from strandline.errors import DefinitionError, Unavailable
from strandline.materialize.drivers.staged import stage
from strandline.materialize.drivers.staged.place import LocalPlace
from strandline.materialize.drivers.staged.table import Change
from strandline.materialize.protocol.messages import DELETE, EXISTS, Acknowledge, Flush, Open, Store
from strandline.materialize.protocol.task import WHOLE, Binding, MaterializationSpec
from strandline.testing.contracts.drivers.coming_and_going import ORDERS, PEOPLE, begun
from strandline.testing.contracts.drivers.world import World


@pytest.mark.parametrize("call", ["create", "size"])
def test_a_file_that_a_successor_removes_while_it_is_staged_is_no_fault_of_ours(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a zombie ends with a traceback, and does not say that it was fenced."""
    world = World(DeltaEndpoint(tmp_path))
    world.write_round()
    runtime = world.runtime()
    real = getattr(LocalPlace, call)

    def late(self: LocalPlace, name: str) -> Any:
        if call == "create":  # its directory goes once the file is written
            raise FileNotFoundError(2, "No such file or directory", name)
        self.remove(name)
        return real(self, name)

    monkeypatch.setattr(LocalPlace, call, late)
    with pytest.raises(Unavailable, match="was removed while it was staged"):
        asyncio.run(runtime.advance())


@pytest.mark.parametrize("gone", [False, True])
def test_what_was_staged_for_a_view_is_removed_though_the_view_was_dropped(
    gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: each view that is dropped after a crash leaves files in its table's directory, which no one names."""
    monkeypatch.setattr(stage, "PIECE_BYTES", 1)  # each row is written at once
    lake = MemoryLake()
    other = replace(BINDING, collection="u", resource="u")
    stored = pa.table({"k": [1], "x": ["a"], EXISTS: [False], DELETE: [False]})

    async def opened(*bindings: Binding, state: Any) -> Any:
        spec = MaterializationSpec("m", bindings)
        await lake.driver().apply(spec, state)
        session = await lake.driver().open()
        await session.send(Open(spec, "1", WHOLE, state))
        await session.receive()
        await session.send(Acknowledge())
        return session, await session.receive()

    async def body() -> None:
        cut, _ = await opened(BINDING, other, state={})
        await cut.send(Flush())
        state = (await cut.receive()).state.apply({})
        await cut.send(Store(0, stored))
        assert lake.tables["t"].files, "it is staged, and the process dies"
        if gone:
            lake.tables["t"].newest = None
        _, acknowledged = await opened(other, state=state)
        assert acknowledged.state.apply(state) == {}
        assert gone or not lake.tables["t"].files

    asyncio.run(body())


def test_rows_that_come_to_a_table_that_was_given_up_stay() -> None:
    """Damage: who has emptied a table, and wants it again, deletes what another program has stored there since."""

    async def body() -> None:
        lake = MemoryLake()
        world = await begun(lake)
        world.bind((ORDERS, PEOPLE))
        await world.caught_up()
        world.drop(PEOPLE, removes=True, others=(ORDERS,))
        await world.caught_up()
        world.forget()
        table = lake.table("People")
        seen = table.snapshot("")
        assert seen is not None
        rows = pa.table({"s": ["theirs"], "f": [1.5], "k": [9]})
        piece = table.write("theirs", iter([rows]), seen.shape)
        assert piece is not None
        assert table.commit(seen, Change("theirs", 1, 0, (), (piece,)))
        world.bind((ORDERS, world.next(PEOPLE)))
        with pytest.raises(DefinitionError, match="'People' holds rows that this materialization did not write"):
            await world.caught_up()
        assert lake.rows("People") == rows.to_pylist()

    asyncio.run(body())
