"""Every order of two sessions, on the endpoints that keep a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from tests.materialize.duckdb_endpoint import DuckDBEndpoint

from strandline.testing.contracts.drivers.fencing_contract import FencingContract


class TestDuckDB(FencingContract):
    @pytest.fixture
    def make_endpoint(self, tmp_path: Path) -> Iterator[Callable[[], DuckDBEndpoint]]:
        """Each endpoint is a file of its own."""
        numbers = count()
        with ExitStack() as closing:

            def make() -> DuckDBEndpoint:
                endpoint = DuckDBEndpoint(tmp_path / f"{next(numbers)}.duckdb")
                closing.callback(endpoint.kept.close)
                return endpoint

            yield make
