"""The slow doubles keep the contracts, and take exactly the injected time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from strandline.store.consensus import Versioned
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.slow import SlowConsensus, SlowObjectStore
from strandline.testing.contracts.blob_contract import BlobContract, ObjectStoreContract, OpenBlob, OpenObjectStore
from strandline.testing.contracts.consensus_contract import ConsensusContract, OpenConsensus, step
from strandline.testing.doubles import HandClock


class TestSlowBlob(BlobContract):
    @pytest.fixture
    def open_blob(self) -> OpenBlob:
        place = MemoryBlob()
        return lambda: SlowObjectStore(HandClock(), place, lambda _: 0.01)


class TestSlowObjectStore(ObjectStoreContract):
    @pytest.fixture
    def open_blob(self) -> OpenObjectStore:
        place = MemoryBlob()
        return lambda: SlowObjectStore(HandClock(), place, lambda _: 0.01)


class TestSlowConsensus(ConsensusContract):
    @pytest.fixture
    def open_consensus(self) -> OpenConsensus:
        place = MemoryConsensus()
        return lambda: SlowConsensus(HandClock(), place, lambda _: 0.01)


CALLS: dict[str, Callable[[SlowObjectStore, SlowConsensus], Awaitable[Any]]] = {
    "blob.get": lambda blob, _: blob.get("k"),
    "blob.set": lambda blob, _: blob.set("k", b""),
    "blob.delete": lambda blob, _: blob.delete("k"),
    "blob.list": lambda blob, _: blob.list(""),
    "blob.create": lambda blob, _: blob.create("k", b""),
    "blob.read": lambda blob, _: blob.read("k"),
    "blob.replace": lambda blob, _: blob.replace("k", "tag", b""),
    "consensus.head": lambda _, consensus: consensus.head("k"),
    "consensus.compare_and_set": lambda _, consensus: consensus.compare_and_set(step("other", None)),
    "consensus.compare_and_set_many": lambda _, consensus: consensus.compare_and_set_many([step("other", None)]),
    "consensus.scan": lambda _, consensus: consensus.scan("k", 0, 1),
    "consensus.truncate": lambda _, consensus: consensus.truncate("k", 0),
    "consensus.list_keys": lambda _, consensus: consensus.list_keys(),
}


@pytest.mark.parametrize("site", CALLS)
def test_each_call_takes_the_time_of_its_site(site: str) -> None:
    """Damage: an injected latency is missing, and a test that needs it shows nothing."""
    clock = HandClock()
    place = MemoryConsensus({"k": [Versioned(0, b"")]})

    def delay(asked: str) -> float:
        return 3.0 if asked == site else 1.0

    stores = SlowObjectStore(clock, MemoryBlob(), delay), SlowConsensus(clock, place, delay)
    asyncio.run(CALLS[site](*stores))  # type: ignore[arg-type]
    assert clock.now_ms() == 3000


def test_others_see_the_effect_before_the_caller_does() -> None:
    """Damage: no test covers what happens while an answer is in flight."""
    place = MemoryBlob()

    class Watching(HandClock):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[bytes | None] = []

        async def sleep(self, seconds: float) -> None:
            self.seen.append(await place.get("k"))

    clock = Watching()
    asyncio.run(SlowObjectStore(clock, place, lambda _: 2.0).set("k", b"data"))
    assert clock.seen == [None, b"data"]
