"""Reductions, on every endpoint: tables that are kept have the full one, what is pushed is that of each transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from tests.materialize.drivers.delta.delta_endpoint import DeltaEndpoint
from tests.materialize.duckdb_endpoint import DuckDBEndpoint

from strandline.testing.contracts.drivers.reduction_contract import ReductionContract
from strandline.testing.endpoints import KeyValueSession, MemoryEndpoint, StagingSession


class TestDuckDB(ReductionContract):
    @pytest.fixture
    def make_endpoint(self, tmp_path: Path) -> Iterator[Callable[[], DuckDBEndpoint]]:
        numbers = count()
        with ExitStack() as closing:

            def make() -> DuckDBEndpoint:
                endpoint = DuckDBEndpoint(tmp_path / f"{next(numbers)}.duckdb")
                closing.callback(endpoint.kept.close)
                return endpoint

            yield make


class TestDelta(ReductionContract):
    @pytest.fixture
    def make_endpoint(self, tmp_path: Path) -> Callable[[], DeltaEndpoint]:
        numbers = count()
        return lambda: DeltaEndpoint(tmp_path / str(next(numbers)))


class TestStaging(ReductionContract):
    @pytest.fixture
    def make_endpoint(self) -> Callable[[], MemoryEndpoint]:
        return partial(MemoryEndpoint, StagingSession)


class TestKeyValue(ReductionContract):
    exact = False

    @pytest.fixture
    def make_endpoint(self) -> Callable[[], MemoryEndpoint]:
        return partial(MemoryEndpoint, KeyValueSession, fences=False)
