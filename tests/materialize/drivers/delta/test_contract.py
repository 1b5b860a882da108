"""Delta tables keep the contract of drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.materialize.drivers.delta.delta_endpoint import DeltaEndpoint
from tests.materialize.drivers.staged.late import SCENARIOS
from tests.materialize.drivers.staged.pushed_tables import AddedContract, PushedTables

from s3_server import S3Server
from strandline.materialize.drivers.staged.table import Lake
from strandline.testing.contracts.drivers.driver_contract import DriverContract, follow, put_back
from strandline.testing.contracts.drivers.splits_contract import SplitsContract, SplitsUnderFaultsContract


@pytest.fixture
def make_endpoint(tmp_path: Path) -> Callable[[], DeltaEndpoint]:
    """Return a new directory each time."""
    numbers = count()
    return lambda: DeltaEndpoint(tmp_path / str(next(numbers)))


@pytest.mark.time_limit(600)
class TestDelta(DriverContract, SplitsContract):
    pass


@pytest.mark.time_limit(600)
class TestDeltaThatIsAddedTo(AddedContract):
    @pytest.fixture
    def make_endpoint(self, tmp_path: Path) -> Callable[[], PushedTables]:
        numbers = count()
        return lambda: PushedTables(DeltaEndpoint(tmp_path / str(next(numbers))), stride=7)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_late_apply_changes_nothing(scenario: Callable[[Lake], None], tmp_path: Path) -> None:
    """Damage: a process that was presumed dead stores rows twice, or takes its successor's back."""
    scenario(DeltaEndpoint(tmp_path).lake)


@pytest.mark.server
def test_tables_in_s3_follow_their_collections(s3_server: S3Server) -> None:
    """Damage: the options of an object store are not those that its clients need, or its commits are not exclusive."""
    asyncio.run(follow(DeltaEndpoint(f"s3://{s3_server.bucket}/delta-out/a", storage=s3_server.storage)))
    asyncio.run(put_back(DeltaEndpoint(f"s3://{s3_server.bucket}/delta-out/b", storage=s3_server.storage)))


@pytest.mark.server
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_late_apply_changes_nothing_in_s3(scenario: Callable[[Lake], None], s3_server: S3Server) -> None:
    """Damage: the same, where a commit is a conditional put."""
    root = f"s3://{s3_server.bucket}/delta-late/{scenario.__name__}"
    scenario(DeltaEndpoint(root, storage=s3_server.storage).lake)


@pytest.mark.slow
class TestDeltaSplitsUnderFaults(SplitsUnderFaultsContract):
    pass
