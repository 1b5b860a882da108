"""Consensus by conditional put keeps the contract on every object store (a real one: `test_objects.py`)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from strandline.store.consensus_kinds.object_consensus import ObjectConsensus
from strandline.store.memory import MemoryBlob
from strandline.store.unreliable import AT_ONCE, Outcome, UnreliableObjectStore
from strandline.testing.contracts.consensus_contract import ConsensusContract, OpenConsensus
from strandline.testing.simulation.exploration import Listed
from strandline.testing.simulation.kernel import Simulation
from strandline.testing.simulation.places import SimObjects

T = TypeVar("T")


class TestObjectConsensusInMemory(ConsensusContract):
    @pytest.fixture
    def open_consensus(self) -> OpenConsensus:
        place: dict[str, bytes] = {}
        return lambda: ObjectConsensus(MemoryBlob(place))


class TestObjectConsensusSimulated(ConsensusContract):
    @pytest.fixture
    def open_consensus(self) -> OpenConsensus:
        place: dict[str, bytes] = {}
        return lambda: ObjectConsensus(SimObjects(MemoryBlob(place)))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        simulation = Simulation(Listed(()))
        simulation.spawn("alone", lambda _: coroutine)
        simulation.drive()
        return simulation.results["alone"]  # type: ignore[return-value]


class TestObjectConsensusInFairWeather(ConsensusContract):
    @pytest.fixture
    def open_consensus(self) -> OpenConsensus:
        place = MemoryBlob()
        return lambda: ObjectConsensus(UnreliableObjectStore(place, lambda _, __: AT_ONCE.index(Outcome.DONE)))
