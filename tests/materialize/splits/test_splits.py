"""Splits of a task over endpoints in memory."""

from __future__ import annotations

import asyncio
from functools import partial
from unittest import mock

import pyarrow as pa
import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import Unavailable
from strandline.frontier import Frontier
from strandline.materialize.protocol.task import Binding, divided
from strandline.materialize.splits import Part, Shared
from strandline.testing.contracts.drivers.splits_contract import SplitsContract, SplitsUnderFaultsContract, SplitWorld
from strandline.testing.contracts.drivers.world import MakeEndpoint
from strandline.testing.endpoints import KeyValueSession, MemoryEndpoint, StagingSession
from strandline.testing.feed import ListFeed
from strandline.testing.simulation.kernel import run_sync


class TestKeyValueSplits(SplitsContract, SplitsUnderFaultsContract):
    @pytest.fixture
    def make_endpoint(self) -> MakeEndpoint:
        return partial(MemoryEndpoint, KeyValueSession, fences=False)


class TestStagingSplits(SplitsContract, SplitsUnderFaultsContract):
    @pytest.fixture
    def make_endpoint(self) -> MakeEndpoint:
        return partial(MemoryEndpoint, StagingSession)


def test_each_part_of_a_collection_is_as_far_as_the_collection_is() -> None:
    """Damage: a split that asks for itself how far it may read goes beyond what is known, or never on."""
    schema = Schema((Column("k", "string"),))
    feed, ranges = ListFeed("v", schema, {"k": pa.string()}), divided(2)
    shared = Shared(feed, Binding("v", "t", ("k",), schema), ranges)
    for upper in (Frontier(3), Frontier(7)):
        feed.seal(upper)
        assert [run_sync(Part(shared, each).upper()) for each in ranges] == [upper, upper]


def test_a_split_that_failed_comes_to_where_the_others_are_though_nothing_changes() -> None:
    """Damage: the rows of one split are old until the next change, and the endpoint is said to be up to date."""
    asyncio.run(brought_on(MemoryEndpoint(StagingSession)))


async def brought_on(endpoint: MemoryEndpoint) -> None:
    """Let one split fail while the others come to where the collections are."""
    world = SplitWorld(endpoint)
    world.splits = 3
    runtime = world.runtime()
    world.write_round()
    await runtime.advance()
    world.write_round()
    failing = next(iter(runtime._tasks.values()))

    async def fails(upto: int | None = None) -> bool:
        raise Unavailable("the endpoint refused one of several connections")

    with mock.patch.object(failing, "advance", fails), pytest.raises(Unavailable, match="one of several"):
        await runtime.advance()
    await runtime.advance()
    world.check(world.upper)
    await runtime.close()
