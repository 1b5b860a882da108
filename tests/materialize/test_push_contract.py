"""The contract of pushes: endpoints in memory keep it, and planted defects do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.materialize.push_endpoints import RepeatingSession, StreamEndpoint

from strandline.testing.contracts.push_contract import PushContract


class TestATransactionalStream(PushContract):
    @pytest.fixture
    def make_endpoint(self) -> Callable[[], StreamEndpoint]:
        """Return endpoints whose transactions are whole."""
        return StreamEndpoint


class TestARepeatingStream(PushContract):
    @pytest.fixture
    def make_endpoint(self) -> Callable[[], StreamEndpoint]:
        """Return endpoints that may get a transaction again."""
        return lambda: StreamEndpoint(RepeatingSession)
