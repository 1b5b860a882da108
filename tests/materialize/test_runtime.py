"""The runtime over endpoints whose commit is its recovery log."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from strandline.materialize.task import Checkpoint
from strandline.testing.driver_contract import DriverContract, MakeEndpoint
from strandline.testing.endpoints import Endpoint, KeyValueSession, MemoryDriver, MemorySession, StagingSession


class MemoryEndpoint:
    """An endpoint that keeps no checkpoint."""

    def __init__(self, session: type[MemorySession], *, fences: bool) -> None:
        self.fences = fences
        self._endpoint = Endpoint()
        self._session = session

    def driver(self) -> MemoryDriver:
        return MemoryDriver(self._endpoint, self._session)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self._endpoint.rows(table)

    def checkpoint(self, name: str) -> Checkpoint | None:
        return None


class TestKeyValue(DriverContract):
    @pytest.fixture
    def make_endpoint(self) -> MakeEndpoint:
        return partial(MemoryEndpoint, KeyValueSession, fences=False)


class TestStaging(DriverContract):
    @pytest.fixture
    def make_endpoint(self) -> MakeEndpoint:
        return partial(MemoryEndpoint, StagingSession, fences=True)
