"""Every Consensus answers the register's cases, which are data (`tests/cases/consensus.json`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import InvalidUsage
from strandline.store.consensus_kinds.object_consensus import ObjectConsensus
from strandline.store.consensus_kinds.postgres import PostgresConsensus
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import Committed, CompareAndSet, Consensus, Versioned

CASES = json.loads((Path(__file__).parent.parent / "cases" / "consensus.json").read_text())["steps"]


@pytest.fixture(params=["memory", "sqlite", "objects", pytest.param("postgres", marks=pytest.mark.server)])
def consensus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Consensus]:
    """One implementation after the other."""
    match request.param:
        case "memory":
            yield MemoryConsensus()
        case "objects":
            yield ObjectConsensus(MemoryBlob())
        case "sqlite":
            sqlite = SQLiteConsensus(tmp_path / "consensus.db")
            yield sqlite
            sqlite.close()
        case "postgres":
            postgres = PostgresConsensus(request.getfixturevalue("postgres_server").url, schema="cases")
            yield postgres
            postgres.close()


async def answer(consensus: Consensus, case: dict[str, Any]) -> object:
    """Do one step and put what came of it into the words of the cases."""
    match case["do"]:
        case "head":
            head = await consensus.head(case["key"])
            assert head is None or len(head.data) == case.get("bytes", 0)
            return None if head is None else head.seqno
        case "compare_and_set":
            new = Versioned(case["new"], bytes(case.get("bytes", 0)))
            outcome = await consensus.compare_and_set(CompareAndSet(case["key"], case["expected"], new))
            return "committed" if outcome == Committed() else "mismatch"
        case "scan":
            return [version.seqno for version in await consensus.scan(case["key"], case["from"], case["limit"])]
        case "truncate":
            return await consensus.truncate(case["key"], case["seqno"])
        case unknown:
            raise AssertionError(f"no such step: {unknown}")


def test_every_case_is_answered(consensus: Consensus) -> None:
    """Damage: an implementation differs from the others in a case that persist relies on."""
    assert len(CASES) == 22
    for case in CASES:
        try:
            got = asyncio.run(answer(consensus, case))
        except InvalidUsage:
            got = "error"
        assert got == case["answer"], case
