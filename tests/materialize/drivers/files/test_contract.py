"""Tables of files keep the contract of drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.materialize.drivers.files.files_endpoint import FilesEndpoint
from tests.materialize.drivers.staged.late import SCENARIOS
from tests.materialize.drivers.staged.pushed_tables import AddedContract, PushedTables

from s3_server import S3Server
from strandline.materialize.drivers.staged.table import Lake
from strandline.testing.contracts.drivers.driver_contract import DriverContract, follow, put_back
from strandline.testing.contracts.drivers.odd_values import odd_values
from strandline.testing.contracts.drivers.splits_contract import SplitsContract, SplitsUnderFaultsContract


@pytest.fixture
def make_endpoint(tmp_path: Path) -> Callable[[], FilesEndpoint]:
    """Return a new directory each time."""
    numbers = count()
    return lambda: FilesEndpoint(tmp_path / str(next(numbers)))


@pytest.mark.time_limit(600)
class TestFiles(DriverContract, SplitsContract):
    pass


@pytest.mark.time_limit(600)
class TestFilesThatAreAddedTo(AddedContract):
    @pytest.fixture
    def make_endpoint(self, tmp_path: Path) -> Callable[[], PushedTables]:
        numbers = count()
        return lambda: PushedTables(FilesEndpoint(tmp_path / str(next(numbers))), stride=7)


def test_csv_files_follow_their_collections(tmp_path: Path) -> None:
    """Damage: a value in a text is read back as another one, so its key is never found again."""
    asyncio.run(follow(FilesEndpoint(tmp_path / "a", options={"format": "csv"})))
    asyncio.run(put_back(FilesEndpoint(tmp_path / "b", options={"format": "csv"})))
    odd = FilesEndpoint(tmp_path / "c", options={"format": "csv"})
    odd.flat, odd.unholdable = True, ("last date", "last time")
    asyncio.run(odd_values(odd))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_late_apply_changes_nothing(scenario: Callable[[Lake], None], tmp_path: Path) -> None:
    """Damage: a process that was presumed dead stores rows twice, or takes its successor's back."""
    scenario(FilesEndpoint(tmp_path).lake)


@pytest.mark.server
def test_tables_in_s3_follow_their_collections(s3_server: S3Server) -> None:
    """Damage: the options of an object store are not those that its client needs, or its commits are not exclusive."""
    for name, scenario in (("a", follow), ("b", put_back)):
        endpoint = FilesEndpoint(f"s3://{s3_server.bucket}/files-out/{name}", options=s3_server.storage)
        asyncio.run(scenario(endpoint))


@pytest.mark.server
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_late_apply_changes_nothing_in_s3(scenario: Callable[[Lake], None], s3_server: S3Server) -> None:
    """Damage: the same, where a commit is a conditional put."""
    root = f"s3://{s3_server.bucket}/files-late/{scenario.__name__}"
    scenario(FilesEndpoint(root, options=s3_server.storage).lake)


@pytest.mark.slow
class TestFilesSplitsUnderFaults(SplitsUnderFaultsContract):
    pass
