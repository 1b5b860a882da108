"""The contract of reductions, for every driver: what an endpoint has after rows of one key were reduced.

`ReductionContract` is for endpoints whose tables are kept, `PushedReductionContract` for those that are given changes.
Subclass them as `driver_contract.DriverContract` and `push_contract.PushContract`.

Law: M4.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pytest

from strandline.algebra.schema import Column, Schema
from strandline.materialize.protocol.task import Binding, MaterializationSpec, canonical
from strandline.testing.contracts.drivers.push_contract import MakePushed
from strandline.testing.contracts.drivers.world import EndpointUnderTest, MakeEndpoint, World
from strandline.testing.simulation.crashes import Crash, CrashPlan

SCHEMA: Final = Schema((Column("k", "bigint"), Column("n", "bigint"), Column("last", "string")))
TYPES: Final = {"k": pa.int64(), "n": pa.int64(), "last": pa.string()}
SUM: Final = json.dumps(
    {"reduce": {"strategy": "merge"}, "properties": {"n": {"type": "integer", "reduce": {"strategy": "sum"}}}}
)
"""Of the rows of a key ``n`` is added up, and ``last`` is that of the last one."""
REDUCED: Final = Binding("amounts", "Amounts", ("k",), SCHEMA, reduce=SUM)
EXAMPLE: Final = ((-1, 3, 2), (6, -7, -1))
"""What is appended in two transactions: it comes to 4, and then to 2; pushed are 4 and -2."""


class ReducedWorld(World):
    """One append-only collection, which is reduced; see `World`."""

    def __init__(self, endpoint: Any, *, delta: bool = False) -> None:
        spec = MaterializationSpec("m", (replace(REDUCED, delta=delta),))
        super().__init__(endpoint, spec, TYPES)

    def append(self, *numbers: int, key: int = 1) -> None:
        """Append a row of ``key`` for each of ``numbers``, each at a time of its own, and seal."""
        for number in numbers:
            row = {"k": key, "n": number, "last": f"at {self.upper}"}
            self.feeds[0].write(self.upper, (row, 1))
            self.seal(self.upper + 1)

    def write_round(self) -> None:
        """Append a few rows of three keys."""
        self._rounds += 1
        for key in range(3):
            self.append(*(n * self._rounds for n in range(1, 1 + (self._rounds + key) % 3)), key=key)
        self.seal(self.upper + 1)

    def truth(self, index: int, time: int) -> list[str]:
        """Return the rows that the changes before ``time`` come to."""
        reduced: dict[int, dict[str, Any]] = {}
        for row, _ in self.feeds[index].before(time):
            before = reduced.get(row["k"])
            reduced[row["k"]] = row if before is None else {**row, "n": before["n"] + row["n"]}
        return sorted(canonical(each) for each in reduced.values())


async def example(endpoint: EndpointUnderTest) -> None:
    """Reduce the example, by one runtime and then by another one, and a key that comes between."""
    world = ReducedWorld(endpoint)
    for numbers, comes_to in zip(EXAMPLE, (4, 2), strict=True):
        runtime = world.runtime()
        world.append(*numbers)
        await runtime.advance()
        assert [row["n"] for row in endpoint.rows("Amounts") if row["k"] == 1] == [comes_to]
        world.check(world.upper)
        world.append(7, key=2)
        await runtime.advance()
        world.check(world.upper)
        await runtime.close()


async def crash_everywhere(make_endpoint: MakeEndpoint) -> None:
    """Crash a runtime at every point of a transaction that reduces; let another one go on."""
    world = ReducedWorld(make_endpoint())
    at, alive = 0, True
    while alive:
        at += 1
        for plan in (CrashPlan(at), CrashPlan(at, after=True)):
            world.write_round()
            with suppress(Crash):
                await world.runtime(plan).advance()
            world.write_round()
            successor = world.runtime()
            while await successor.advance():
                pass
            world.check(world.upper)
            await successor.close()
            alive = plan.happened
    assert at > 1


class ReductionContract:
    """The tests of an endpoint whose tables are kept.  ``exact``: a transaction that is replayed is stored once."""

    exact = True

    def test_a_table_has_the_reduction_of_all_rows(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a total begins anew with each transaction, or counts one twice."""
        asyncio.run(example(make_endpoint()))

    def test_a_crash_at_any_point_counts_nothing_twice(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: after a restart a total is too high, for ever."""
        if not self.exact:
            pytest.skip("this endpoint stores a transaction again that is replayed: its page says so")
        asyncio.run(crash_everywhere(make_endpoint))


class PushedReductionContract:
    """The tests of an endpoint that is given changes."""

    def test_each_transaction_pushes_its_own_reduction(self, make_endpoint: MakePushed) -> None:
        """Damage: a consumer that reduces what it gets counts something twice."""
        endpoint = make_endpoint()
        world = ReducedWorld(endpoint, delta=True)

        async def body() -> None:
            runtime = world.runtime()
            for numbers in EXAMPLE:
                world.append(*numbers)
                await runtime.advance()
            await runtime.close()

        asyncio.run(body())
        values = [record.value for record in endpoint.pushed("Amounts")]
        sums = [value["n"] for value in values if value is not None]
        assert sums == [4, -2]
        assert sum(sums) == 2
