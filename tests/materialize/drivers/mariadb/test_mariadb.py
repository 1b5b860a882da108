"""MariaDB keeps the contract, and does what every SQL endpoint does."""

from __future__ import annotations

import pytest
from tests.materialize.drivers.sql.claims import SqlClaims

from strandline.testing.contracts.drivers.driver_contract import DriverContract
from strandline.testing.contracts.drivers.fencing_contract import FencingContract
from strandline.testing.contracts.drivers.splits_contract import SplitsContract, SplitsUnderFaultsContract

pytestmark = pytest.mark.server


@pytest.mark.time_limit(600)
class TestMariaDB(DriverContract, FencingContract, SplitsContract):
    pass


class TestMariaDBTables(SqlClaims):
    pass


@pytest.mark.slow
class TestMariaDBSplitsUnderFaults(SplitsUnderFaultsContract):
    pass
