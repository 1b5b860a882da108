"""The stores in memory keep the contracts."""

from __future__ import annotations

from functools import partial

import pytest

from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.contracts.blob_contract import BlobContract, ObjectStoreContract, OpenBlob, OpenObjectStore
from strandline.testing.contracts.consensus_contract import ConsensusContract, OpenConsensus


class TestMemoryBlob(BlobContract):
    @pytest.fixture
    def open_blob(self) -> OpenBlob:
        return partial(MemoryBlob, {})


class TestMemoryBlobDecidesRaces(ObjectStoreContract):
    @pytest.fixture
    def open_blob(self) -> OpenObjectStore:
        return partial(MemoryBlob, {})


class TestMemoryConsensus(ConsensusContract):
    @pytest.fixture
    def open_consensus(self) -> OpenConsensus:
        return partial(MemoryConsensus, {})
