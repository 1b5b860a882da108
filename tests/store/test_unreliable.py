"""The unreliable doubles fail exactly as chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from strandline.errors import Determinate, Indeterminate, StoreError
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import Committed, Versioned
from strandline.store.unreliable import (
    AT_ONCE,
    Choose,
    Outcome,
    UnreliableBlob,
    UnreliableConsensus,
    UnreliableObjectStore,
)
from strandline.testing.contracts.blob_contract import BlobContract, ObjectStoreContract, OpenBlob, OpenObjectStore
from strandline.testing.contracts.consensus_contract import ConsensusContract, OpenConsensus, fill, step


def always(outcome: Outcome) -> Choose:
    """Choose the same outcome at every call."""
    return lambda _, n: AT_ONCE.index(outcome) if n == len(AT_ONCE) else 0


class TestUnreliableBlobInFairWeather(BlobContract):
    @pytest.fixture
    def open_blob(self) -> OpenBlob:
        return partial(UnreliableBlob, MemoryBlob(), always(Outcome.DONE))


class TestUnreliableObjectStoreInFairWeather(ObjectStoreContract):
    @pytest.fixture
    def open_blob(self) -> OpenObjectStore:
        return partial(UnreliableObjectStore, MemoryBlob(), always(Outcome.DONE))


class TestUnreliableConsensusInFairWeather(ConsensusContract):
    @pytest.fixture
    def open_consensus(self) -> OpenConsensus:
        return partial(UnreliableConsensus, MemoryConsensus(), always(Outcome.DONE))


FATES = [
    (Outcome.DONE, True, None),
    (Outcome.DONE_UNREPORTED, True, Indeterminate),
    (Outcome.LOST, False, Indeterminate),
    (Outcome.REFUSED, False, Determinate),
]


def outcome_of(call: Coroutine[Any, Any, object]) -> type[StoreError] | None:
    """Return the class of the error that a call ends in, or None."""
    try:
        asyncio.run(call)
    except StoreError as error:
        return type(error)
    return None


@pytest.mark.parametrize(("outcome", "happens", "error"), FATES)
def test_each_outcome_has_its_effect_and_its_report(
    outcome: Outcome, happens: bool, error: type[StoreError] | None
) -> None:
    """Damage: code is tested against failures that no store has, and not against those that stores have."""
    inner = MemoryConsensus()
    asyncio.run(fill(inner, "k", 1, 2))
    consensus = UnreliableConsensus(inner, always(outcome))
    assert outcome_of(consensus.compare_and_set(step("k", 2, b"new"))) == error
    assert (asyncio.run(inner.head("k")) == Versioned(3, b"new")) is happens
    assert outcome_of(consensus.compare_and_set_many([step("a", None), step("b", None)])) == error
    assert (asyncio.run(inner.list_keys()) == ["a", "b", "k"]) is happens
    assert outcome_of(consensus.truncate("k", 2)) == error
    assert (asyncio.run(inner.scan("k", 0, 1)) != [Versioned(1, b"1")]) is happens

    place = MemoryBlob({"old": b""})
    blob = UnreliableBlob(place, always(outcome))
    assert outcome_of(blob.set("new", b"")) == error
    assert outcome_of(blob.delete("old")) == error
    assert asyncio.run(place.list("")) == (["new"] if happens else ["old"])


@pytest.mark.parametrize(("outcome", "happens", "error"), FATES)
def test_conditional_puts_fail_like_others(outcome: Outcome, happens: bool, error: type[StoreError] | None) -> None:
    """Damage: consensus on an object store is tried only where nothing fails."""
    place = MemoryBlob({"old": b"old"})
    tag = asyncio.run(place.read("old"))
    assert tag is not None
    store = UnreliableObjectStore(place, always(outcome))
    assert outcome_of(store.create("new", b"")) == error
    assert outcome_of(store.replace("old", tag.tag, b"replaced")) == error
    assert outcome_of(store.read("old")) == error
    assert (asyncio.run(place.get("new")) == b"") is happens
    assert (asyncio.run(place.get("old")) == b"replaced") is happens


READS: list[Callable[[UnreliableBlob, UnreliableConsensus], Coroutine[Any, Any, object]]] = [
    lambda blob, _: blob.get("k"),
    lambda blob, _: blob.list(""),
    lambda _, consensus: consensus.head("k"),
    lambda _, consensus: consensus.scan("k", 0, 1),
    lambda _, consensus: consensus.list_keys(),
]


@pytest.mark.parametrize(("outcome", "happens", "error"), FATES)
@pytest.mark.parametrize("read", READS)
def test_reads_fail_like_writes(
    read: Callable[[UnreliableBlob, UnreliableConsensus], Coroutine[Any, Any, object]],
    outcome: Outcome,
    happens: bool,
    error: type[StoreError] | None,
) -> None:
    """Damage: recovery, which only reads, is never tried under failures."""
    choose = always(outcome)
    assert (
        outcome_of(read(UnreliableBlob(MemoryBlob(), choose), UnreliableConsensus(MemoryConsensus(), choose))) == error
    )


def test_a_call_of_many_that_is_not_reported_may_have_happened_in_part() -> None:
    """Damage: the tick's advance of all idle shards is believed to be atomic."""
    labels: list[str] = []
    answers = iter([AT_ONCE.index(Outcome.DONE_UNREPORTED), 0, 1, 0])

    def choose(label: str, n: int) -> int:
        labels.append(f"{label} of {n}")
        return next(answers)

    inner = MemoryConsensus()
    consensus = UnreliableConsensus(inner, choose)
    with pytest.raises(Indeterminate):
        asyncio.run(consensus.compare_and_set_many([step(key, None) for key in "abc"]))
    assert asyncio.run(inner.list_keys()) == ["a", "c"]
    assert labels == ["consensus.compare_and_set_many of 4"] + ["consensus.compare_and_set_many.some of 2"] * 3


def test_an_unreported_effect_is_visible_to_a_reader() -> None:
    """Damage: the witness that exactly-once depends on is missing in the double."""
    inner = MemoryConsensus()
    unsure = UnreliableConsensus(inner, always(Outcome.DONE_UNREPORTED))
    with pytest.raises(Indeterminate):
        asyncio.run(unsure.compare_and_set(step("k", None, b"mine")))
    assert asyncio.run(inner.compare_and_set(step("k", 0, b"next"))) == Committed()
    assert asyncio.run(inner.scan("k", 0, 9)) == [Versioned(0, b"mine"), Versioned(1, b"next")]
