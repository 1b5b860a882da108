"""Splits of a task over endpoints in memory."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest

from strandline.algebra.schema import Column, Schema
from strandline.frontier.antichain import Frontier
from strandline.materialize.protocol.task import Binding, divided
from strandline.materialize.splits.sharing import Part, Shared
from strandline.testing.contracts.drivers.splits_contract import SplitsContract, SplitsUnderFaultsContract
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
