"""Writers that race are measured, and a place that loses or repeats what it promised is found out."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from strandline.bench.appends import append_and_open
from strandline.bench.load import Load, drive
from strandline.errors import InvalidUsage, StrandlineError
from strandline.persist.client import PersistClient
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import Blob, Committed, CompareAndSet, Consensus, Mismatch
from strandline.store.unreliable import UnreliableConsensus
from strandline.testing.doubles import CountingIds, HandClock

LOAD = Load(writers=3, batches=5, records=4, record_bytes=32)
ROWS = 3 * 5 * 4


class Forgetful(MemoryConsensus):
    """Says that every seventh change is durable, and forgets it."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = itertools.count(1)

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        if next(self._calls) % 7 == 0:
            return Committed()
        return await super().compare_and_set(request)


def driven(consensus: Consensus, blob: Blob) -> dict[str, object]:
    """Drive the load over these stores."""
    numbers = itertools.count()
    return asyncio.run(
        drive(LOAD, lambda: PersistClient(HandClock(), CountingIds(f"c{next(numbers)}"), blob, consensus))
    )


def test_all_that_a_load_is_asked_for_is_measured(tmp_path: Path) -> None:
    """Damage: a bad store is noticed only in production."""
    told = append_and_open(tmp_path, load=LOAD, appends=5, growth=20)["load"]
    assert {name: told[name] for name in ("writers", "batch_records", "record_bytes", "rows")} == {
        "writers": 3,
        "batch_records": 4,
        "record_bytes": 32,
        "rows": ROWS,
    }
    assert all(told[name] > 0 for name in ("rows_per_s", "mb_per_s", "cas_per_s", "append_ms_p50", "append_ms_p99"))
    assert told["append_ms_p50"] <= told["append_ms_p99"]


def test_what_is_acknowledged_is_there_on_a_place_that_fails() -> None:
    """Damage: the load itself loses acknowledged records, and blames the store."""
    rng = random.Random(3)
    consensus = UnreliableConsensus(MemoryConsensus(), lambda _, n: rng.randrange(n) if rng.random() < 0.2 else 0)
    assert driven(consensus, MemoryBlob())["rows"] == ROWS


def test_a_place_that_forgets_is_found_out() -> None:
    """Damage: a store that acknowledges what it loses looks fast."""
    with pytest.raises((AssertionError, StrandlineError)):
        driven(Forgetful(), MemoryBlob())


@pytest.mark.parametrize("wrong", [{"writers": 0}, {"records": 0}, {"record_bytes": 8, "batches": 100_000}])
def test_a_load_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    """Damage: records that are equal are counted as one, and a loss is not seen."""
    with pytest.raises(InvalidUsage):
        Load(**wrong)
