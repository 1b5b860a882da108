"""The upstream of several tables that other tests believe in keeps the contract."""

from __future__ import annotations

from itertools import count

import pytest

from strandline.store.memory import MemoryBlob
from strandline.testing.contracts.reader_contract import ReaderContract
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.upstreams.list_tables import Change, Tables, TablesReader


class TablesPlace:
    """Two tables in two partitions; rows come, change and go."""

    table = "t"

    def __init__(self, *, keyed):
        self.engine, self.upstream, self.numbers = ListEngine(MemoryBlob()), Tables(keyed=keyed), count()
        self.upstream.produce("0", Change("t", -1, -1))
        self.upstream.begin_log()

    async def reader(self):
        return TablesReader(self.upstream)

    async def produce(self, *, undecodable=False):
        number = next(self.numbers)
        partition, key = str(number % 2), number % 4
        gone = [] if self.upstream.keyed or number < 4 else [Change("t", key, number - 4, -1)]
        self.upstream.produce(partition, *gone, Change("t", key, number), Change("other", key, number))

    async def break_promise(self):
        for transactions in self.upstream.partitions.values():
            transactions.clear()


class TestTablesReader(ReaderContract):
    @pytest.fixture(params=[False, True], ids=["taken back", "keyed"])
    def place(self, request):
        return TablesPlace(keyed=request.param)

    def test_locating_errors_leaves_the_good_rows_as_they_are(self, place):
        pytest.skip("every row of this upstream can be decoded")
