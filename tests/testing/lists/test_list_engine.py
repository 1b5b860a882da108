"""`ListEngine` keeps the engine's contract, but for what needs SQL."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from strandline.algebra.schema import DIFF, TIME
from strandline.store.memory import MemoryBlob
from strandline.testing.contracts.engine_contract import SCHEMA, EngineContract, errors, request, table
from strandline.testing.contracts.keyed_contract import KeyedContract
from strandline.testing.contracts.lookup_contract import LookupContract
from strandline.testing.lists.list_engine import ListEngine, updates


def load(rows, schema):
    """Take an Arrow table of updates."""
    return updates(schema, rows.to_pylist())


class TestListEngine(EngineContract, LookupContract, KeyedContract):
    @pytest.fixture
    def engine(self):
        return ListEngine(MemoryBlob())

    @pytest.fixture
    def load(self):
        return load


def test_it_counts_errors():
    """Damage: tests of ingestion never see an undecodable row."""
    mixed = load(table([(1, "a", 1, 1)]), SCHEMA), load(errors([("bad", 2, 1), ("worse", 2, 1)]), SCHEMA)

    async def body():
        engine = ListEngine(MemoryBlob())
        both = await engine.union(SCHEMA, mixed, advance=0, negate=[False, False])
        staged = await engine.stage(both, replace(request("bulk"), normalised=True))
        assert (staged.rows, staged.errors) == (3, 2)
        found = await engine.collect(both)
        assert found.column_names[-2:] == [TIME, DIFF]

    asyncio.run(body())
