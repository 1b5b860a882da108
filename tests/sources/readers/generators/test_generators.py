"""The generators bring as many events as time has passed, the same ones whenever they are read."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count, pairwise

import pytest

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.errors import DefinitionError
from strandline.frontier import Offsets
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.sources.reader import Plain, Surroundings, TakenBack
from strandline.sources.readers.generators import auction, bank, counter, tpch
from strandline.sources.readers.generators.reader import PARTITION
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.contracts.reader_contract import SharedReaderContract
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed

KINDS = {kind.name: kind for kind in (counter.KIND, auction.KIND, bank.KIND, tpch.KIND)}
NUMBERS = {"": Schema((Column("n", "bigint"),))}
HOUSE = auction.Auction(0, 1, 1).tables
BANK = bank.Bank(0, 2).tables
ORDERS = tpch.Orders(0, None).tables


class Machine:
    """A clock, a location, and readers of one generator there."""

    def __init__(self, kind, schemas, table="", **options):
        self.kind, self.schemas, self.table = KINDS[kind], schemas, table
        self.options = understood("s", self.kind.options, {"every": "10ms", **options})
        self.engine, self.clock = ListEngine(MemoryBlob()), HandClock(1_700_000_000_000)
        self.blob, self.consensus, self.processes = MemoryBlob(), MemoryConsensus(), count()

    async def reader(self):
        ids = CountingIds(f"p{next(self.processes)}")
        client = PersistClient(self.clock, ids, self.blob, self.consensus)

        def progress():
            return client.records("begun", 1)

        around = Surroundings(self.clock, self.schemas, self.engine, None, None, 1, progress)
        return await self.kind.open(self.options, around)

    async def produce(self, *, undecodable=False):
        await self.clock.sleep(0.25)

    async def break_promise(self):
        pytest.skip("no producer can change what a generator computes")


def up_to(events):
    """The offsets that cover the first events."""
    return Offsets({PARTITION: events})


def rows(reader, first, last, table="", time=7):
    """What the events of a slice do, each row with its count."""

    async def body():
        await reader.upstream_frontier()
        return listed(await reader.read([Slice(time, up_to(first), up_to(last))], table=table, locate=False)).rows

    found = Counter()
    for row in asyncio.run(body()):
        diff = row.pop(DIFF)
        assert row.pop(TIME) == time
        found[tuple(row.items())] += diff
    return {row: diff for row, diff in found.items() if diff}


def sole(found):
    """The numbers of a counter, each with its count."""
    return {dict(row)["n"]: diff for row, diff in found.items()}


class TestLoadReader(SharedReaderContract):
    @pytest.fixture(params=["counter", "counter that keeps some", "bids", "transfers", "lineitem"])
    def place(self, request):
        match request.param:
            case "counter":
                machine = Machine("counter", NUMBERS)
            case "counter that keeps some":
                machine = Machine("counter", NUMBERS, keep="1000")
            case "bids":
                machine = Machine("auction", HOUSE, "bids", batch="10")
            case "transfers":
                machine = Machine("bank", BANK, "transfers")
            case _:
                machine = Machine("tpch", ORDERS, "lineitem", keep="1000")
        asyncio.run(machine.reader())  # time begins to count when the source is first opened
        return machine

    def test_locating_errors_leaves_the_good_rows_as_they_are(self):
        pytest.skip("every row of a generator can be computed")


def test_a_counter_counts_each_interval_also_while_nothing_runs():
    """Damage: after a restart a counter begins anew, or leaves a gap."""
    machine = Machine("counter", NUMBERS, batch="2")

    async def body():
        first = await machine.reader()
        assert first.records("") == Plain()
        assert await first.upstream_frontier() == NOTHING_READ
        await machine.clock.sleep(0.055)
        reached = await first.upstream_frontier()
        second = await machine.reader()
        await machine.clock.sleep(1)
        return reached[PARTITION], (await second.upstream_frontier())[PARTITION]

    early, late = asyncio.run(body())
    assert early == 10
    assert late >= 210
    assert sole(rows(asyncio.run(machine.reader()), 3, 6)) == {4: 1, 5: 1, 6: 1}


def test_a_clock_that_steps_back_stands_still():
    """Damage: the source stops when a machine's time is set."""
    machine = Machine("counter", NUMBERS)

    async def body():
        reader = await machine.reader()
        await reader.upstream_frontier()
        await reader.commit(up_to(50))
        return await reader.upstream_frontier()

    assert asyncio.run(body()) == up_to(50)


def test_a_counter_that_keeps_some_rows_holds_the_newest_of_them():
    """Damage: rows pile up, or leave twice, where steps are long."""
    machine = Machine("counter", NUMBERS, keep="3")
    reader = asyncio.run(machine.reader())
    assert reader.records("") == TakenBack()
    for marks in ([0, 1, 2, 3, 4, 5, 9, 20], [0, 20], [0, 2, 20], [0, 4, 5, 6, 20]):
        held = Counter()
        for first, last in pairwise(marks):
            found = sole(rows(reader, first, last))
            held.update(found)
            assert +held == dict.fromkeys(range(max(0, last - 3) + 1, last + 1), 1)
            assert min(held.values()) >= 0


def test_a_bounded_generator_ends():
    """Damage: a demonstration that should have a thousand rows has a million."""
    machine = Machine("counter", NUMBERS, events="7")

    async def body():
        reader = await machine.reader()
        await reader.upstream_frontier()
        await machine.clock.sleep(60)
        return await reader.upstream_frontier()

    assert asyncio.run(body()) == up_to(7)


def test_the_transfers_of_a_bank_add_up_to_nothing_at_every_time():
    """Damage: the test of torn transactions fails by its own input."""
    reader = asyncio.run(Machine("bank", BANK, accounts="5").reader())
    found = [dict(row) for row in rows(reader, 0, 400, "transfers")]
    assert len(found) == 800
    by_transfer = Counter()
    for row in found:
        by_transfer[row["id"]] += row["amount"]
    assert set(by_transfer.values()) == {0}
    assert {row["account"] for row in found} == set(range(5))
    assert len({(row["id"], row["account"]) for row in found}) == 800
    assert len(rows(reader, 0, 400, "accounts")) == 5
    assert rows(reader, 400, 500, "accounts") == {}


def test_users_and_auctions_that_a_row_names_were_there_before_it():
    """Damage: a join of the demonstration lacks rows that it should have."""
    reader = asyncio.run(Machine("auction", HOUSE).reader())
    users, auctions, bids = ({}, {}, {})
    for table, known in (("users", users), ("auctions", auctions), ("bids", bids)):
        for event in range(200):
            for row, diff in rows(reader, event, event + 1, table).items():
                assert diff == 1
                assert dict(row)["id"] not in known
                known[dict(row)["id"]] = (event, dict(row))
    assert (len(users), len(auctions), len(bids)) == (20, 20, 160)
    for event, row in auctions.values():
        assert users[row["seller"]][0] < event
    for event, row in bids.values():
        assert users[row["buyer"]][0] < event
        opened, auction_row = auctions[row["auction"]]
        assert opened < event
        assert row["bid_time"] <= auction_row["end_time"]
    assert len({row["amount"] for _, row in bids.values()}) > 40


def test_an_order_and_its_lines_come_and_leave_together():
    """Damage: the view of a benchmark joins orders with lines of others."""
    reader = asyncio.run(Machine("tpch", ORDERS, keep="10").reader())
    orders = {dict(row)["o_orderkey"]: diff for row, diff in rows(reader, 20, 25, "orders").items()}
    lines = {}
    for row, diff in rows(reader, 20, 25, "lineitem").items():
        lines.setdefault(dict(row)["l_orderkey"], set()).add(diff)
    assert {key: {diff} for key, diff in orders.items()} == lines
    assert sorted(orders.values()) == [-1] * 5 + [1] * 5


def test_another_seed_makes_other_rows():
    """Damage: two load generators of one kind hide a mistake of a join by being equal."""
    found = [
        rows(asyncio.run(Machine("bank", BANK, seed=seed).reader()), 0, 50, "transfers") for seed in ("0", "0", "1")
    ]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("kind", "schemas", "message"),
    [
        ("counter", {"": Schema((Column("n", "int"),))}, "'n' int"),
        ("counter", {"": Schema((Column("a", "bigint"), Column("b", "bigint")))}, "'b' bigint"),
        ("bank", {"": Schema((Column("n", "int"),))}, "bank has no table ''; it has accounts, transfers"),
        ("bank", {"accounts": Schema((Column("name", "string"),))}, "'name' string: bank table 'accounts' has"),
    ],
)
def test_columns_that_a_generator_has_not_are_refused(kind, schemas, message):
    """Damage: a source is defined that stops at its first row."""
    with pytest.raises(DefinitionError, match=message):
        asyncio.run(Machine(kind, schemas).reader())


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("counter", {"every": "0s"}, "every is 0"),
        ("counter", {"batch": "0"}, "batch is 0"),
        ("counter", {"keep": "0"}, "keep is 0"),
        ("counter", {"seed": "-1"}, "number, 0 or more"),
        ("bank", {"accounts": "1"}, "a transfer needs two"),
    ],
)
def test_options_that_bring_nothing_are_refused(kind, options, message):
    """Damage: a source stands still and nothing says why."""
    with pytest.raises(DefinitionError, match=message):
        understood("s", KINDS[kind].options, options)
