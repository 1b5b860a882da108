"""The reader that other tests believe in keeps the contract."""

from __future__ import annotations

from itertools import count

import pytest

from strandline.store.memory import MemoryBlob
from strandline.testing.contracts.reader_contract import ReaderContract
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.lists.list_source import ListReader, Upstream


class ListPlace:
    """Two partitions in memory."""

    table = ""

    def __init__(self):
        self.engine, self.upstream, self.numbers = ListEngine(MemoryBlob()), Upstream(), count()

    async def reader(self):
        return ListReader(self.upstream)

    async def produce(self, *, undecodable=False):
        self.upstream.produce("0", next(self.numbers), *([None] if undecodable else []))
        self.upstream.produce("1", next(self.numbers))

    async def break_promise(self):
        self.upstream.partitions["0"].clear()


class TestListReader(ReaderContract):
    @pytest.fixture
    def place(self):
        return ListPlace()
