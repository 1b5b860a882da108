"""Splits of a task over endpoints in memory."""

from __future__ import annotations

from functools import partial

import pytest

from strandline.testing.contracts.drivers.splits_contract import SplitsContract, SplitsUnderFaultsContract
from strandline.testing.contracts.drivers.world import MakeEndpoint
from strandline.testing.endpoints import KeyValueSession, MemoryEndpoint, StagingSession


class TestKeyValueSplits(SplitsContract, SplitsUnderFaultsContract):
    @pytest.fixture
    def make_endpoint(self) -> MakeEndpoint:
        return partial(MemoryEndpoint, KeyValueSession, fences=False)


class TestStagingSplits(SplitsContract, SplitsUnderFaultsContract):
    @pytest.fixture
    def make_endpoint(self) -> MakeEndpoint:
        return partial(MemoryEndpoint, StagingSession)
