"""Tables that are only added to, and the contract of pushed changes for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from strandline.materialize.driver import require_all
from strandline.materialize.drivers.staged.driver import StagedDriver
from strandline.materialize.drivers.staged.table import DELETED, Lake, Piece
from strandline.materialize.protocol.task import Binding, Checkpoint, MaterializationSpec
from strandline.testing.contracts.drivers.push_contract import (
    FOUR,
    KEYED,
    PushContract,
    Pushed,
    PushWorld,
    advance_through,
)


class LakeEndpoint(Protocol):
    """An endpoint for the contract of drivers, and the order in which commits added its files."""

    lake: Lake

    def driver(self) -> StagedDriver: ...

    def ordered(self, resource: str, pieces: Sequence[Piece]) -> Sequence[Piece]: ...


class PushedTables:
    """The rows of each table, in the order of the commits that added them."""

    exactly_once = True

    def __init__(self, endpoint: LakeEndpoint, stride: int = 1) -> None:
        self.endpoint = endpoint
        self.stride = stride

    def driver(self) -> StagedDriver:
        return self.endpoint.driver()

    def checkpoint(self, name: str) -> Checkpoint | None:
        return None

    def pushed(self, resource: str) -> list[Pushed]:
        table = self.endpoint.lake.table(resource)
        seen = table.snapshot("")
        if seen is None:
            return []
        (binding,) = (each for each in FOUR.bindings if each.resource == resource)
        names = [name for name, _ in seen.shape]
        found = []
        for piece in self.endpoint.ordered(resource, seen.pieces):
            rows = [row for some in table.read(piece, seen.shape, names) for row in some.to_pylist()]
            for place, row in enumerate(rows):
                gone = row.pop(DELETED, False)
                key: Any = {name: row[name] for name in binding.key} if binding.key else None
                found.append(Pushed((piece.name, place), key, None if gone else row))
        return found


class AddedContract(PushContract):
    """The contract of pushed changes, but for what a table does in another way than a topic."""

    def test_a_bumped_backfill_pushes_everything_anew(self, make_endpoint: Callable[[], PushedTables]) -> None:
        """Damage: changes stay of before the backfill, and sums over the table are wrong."""

        async def body() -> None:
            world = PushWorld(make_endpoint())
            world.write_over()
            await world.runtime().advance()
            world.bump(1)
            world.write_round()
            await advance_through(world, world.runtime(), (world.upper,))
            world.check(world.upper)

        asyncio.run(body())

    def test_contents_are_refused_with_the_option_that_pushes_changes(
        self, make_endpoint: Callable[[], PushedTables]
    ) -> None:
        """Damage: a table takes a collection's changes, or its contents, and not both."""
        driver = make_endpoint().driver()
        for spec in (FOUR, MaterializationSpec("m", (Binding("v", "v", ("k",), KEYED),))):
            require_all(spec, asyncio.run(driver.validate(spec)))
