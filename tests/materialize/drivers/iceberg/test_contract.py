"""Iceberg tables keep the contract of drivers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.materialize.drivers.iceberg.iceberg_endpoint import FolderCatalog, IcebergEndpoint
from tests.materialize.drivers.staged.late import SCENARIOS
from tests.materialize.drivers.staged.pushed_tables import AddedContract, PushedTables

from strandline.materialize.drivers.staged.table import Lake
from strandline.testing.contracts.drivers.driver_contract import DriverContract


@pytest.mark.time_limit(1200)
class TestIceberg(DriverContract):
    @pytest.fixture
    def make_endpoint(self, tmp_path: Path) -> Callable[[], IcebergEndpoint]:
        numbers = count()
        return lambda: IcebergEndpoint(lambda: FolderCatalog(tmp_path / str(next(numbers))))


@pytest.mark.time_limit(1200)
class TestIcebergThatIsAddedTo(AddedContract):
    @pytest.fixture
    def make_endpoint(self, tmp_path: Path) -> Callable[[], PushedTables]:
        numbers = count()
        return lambda: PushedTables(IcebergEndpoint(lambda: FolderCatalog(tmp_path / str(next(numbers)))), stride=17)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_late_apply_changes_nothing(scenario: Callable[[Lake], None], tmp_path: Path) -> None:
    """Damage: a process that was presumed dead stores rows twice, or takes its successor's back."""
    scenario(IcebergEndpoint(lambda: FolderCatalog(tmp_path)).lake)
