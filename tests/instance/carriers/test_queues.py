"""The carrier inside one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from strandline.instance.carriers.buffer import QueueCarrier, pair
from strandline.instance.protocol.carrier import Carrier
from strandline.testing.contracts.carrier_contract import CarrierContract, OpenPlace, Place


class QueuePlace:
    async def connect(self) -> tuple[Carrier, Carrier]:
        return pair()

    def cut(self, end: Carrier) -> None:
        assert isinstance(end, QueueCarrier)
        end.cut()


@asynccontextmanager
async def queue_place() -> AsyncIterator[Place]:
    """Open the place where queues are made."""
    yield QueuePlace()


class TestQueueCarrier(CarrierContract):
    """Damage: what works in one process breaks in two, or the reverse."""

    @pytest.fixture
    def open_place(self) -> OpenPlace:
        return queue_place
