"""PostgreSQL keeps the contract, and does what every SQL endpoint does."""

from __future__ import annotations

import pytest
from tests.materialize.drivers.sql.claims import SqlClaims

from strandline.testing.contracts.drivers.driver_contract import DriverContract
from strandline.testing.contracts.drivers.fencing_contract import FencingContract
from strandline.testing.contracts.drivers.reduction_contract import ReductionContract
from strandline.testing.contracts.drivers.splits_contract import SplitsContract, SplitsUnderFaultsContract

pytestmark = pytest.mark.server


class TestPostgres(DriverContract, FencingContract, SplitsContract):
    pass


class TestPostgresReductions(ReductionContract):
    pass


class TestPostgresTables(SqlClaims):
    pass


@pytest.mark.slow
class TestPostgresSplitsUnderFaults(SplitsUnderFaultsContract):
    pass
