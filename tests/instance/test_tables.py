"""Tables without Spark: one timestamp over several, all or nothing, even if other writers commit in between."""

from __future__ import annotations

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.controller.writing import Oracle
from strandline.errors import FencedError, InvalidUsage
from strandline.instance.commands import Collection
from strandline.instance.tables import Change, OpenTable, Statement, commit
from strandline.persist.client import PersistClient
from strandline.persist.together.transactions import open_transactions
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed, updates
from strandline.testing.simulation.kernel import run_sync

SCHEMA = Schema((Column("k", "string"),))
NAMES = ("accounts", "ledger")


class Location:
    """A place for tables; each `Process` writes it under an epoch of its own, or shares one."""

    def __init__(self):
        self.objects = {}
        self.blob = MemoryBlob(self.objects)
        self.consensus = MemoryConsensus()
        self.engine = ListEngine(self.blob)
        self.clock = HandClock(1_000)
        self.processes = 0

    def open(self, epoch=1):
        self.processes += 1
        return Process(self, epoch, f"p{self.processes}")


class Process:
    """One process with both tables open."""

    def __init__(self, location, epoch, name):
        self.location = location
        client = PersistClient(location.clock, CountingIds(name), location.blob, location.consensus)
        self.transactions = run_sync(open_transactions(client, epoch))
        self.oracle = Oracle(location.clock, self.transactions.upper.at or 0)
        self.tables = {}
        for table in NAMES:
            writer = run_sync(self.transactions.register(table, SCHEMA.ddl))
            reader = run_sync(client.reader(table, SCHEMA, table))
            self.tables[table] = OpenTable(Collection(table, table, SCHEMA), writer, reader)
        self.tokens = CountingIds(name)

    def change(self, table, *words, diff=1):
        """Rows to insert or delete."""
        frame = updates(SCHEMA, [{"k": k, "__time": 0, "__diff": diff} for k in words])
        return Change(self.tables[table].output, frame, diff < 0, len(words))

    def moving(self, table, *, meanwhile=lambda: None):
        """An UPDATE: each row gets a mark; ``meanwhile`` happens between reading and committing."""
        source = self.tables[table]

        async def read(diff, mark, at):
            rows = listed(await self.location.engine.read(await source.reader.snapshot(at, timeout_s=0))).rows
            if diff < 0:
                meanwhile()
            return updates(SCHEMA, [{"k": r["k"] + mark, "__time": 0, "__diff": diff * r["__diff"]} for r in rows])

        old = Statement(source.output, lambda at: read(-1, "", at), [table], deletes=True)
        return [old, Statement(source.output, lambda at: read(1, "'", at), [table], deletes=False)]

    def commit(self, *changes, token=None):
        """Commit; return the time."""
        return run_sync(
            commit(
                changes,
                self.tables,
                engine=self.location.engine,
                transactions=self.transactions,
                times=self.oracle,
                token=token or self.tokens.fresh("txn"),
            )
        )

    def rows(self, table, as_of):
        """What the table holds."""
        contents = run_sync(self.tables[table].reader.snapshot(as_of, timeout_s=0))
        frame = run_sync(self.location.engine.multiset(run_sync(self.location.engine.read(contents))))
        return sorted(row["k"] for row in listed(frame).rows)


@pytest.fixture
def location():
    """An empty place."""
    return Location()


def test_a_transaction_over_two_tables_has_one_time_and_no_reader_sees_half(location):
    """Damage: money has left one table and has not arrived in the other."""
    here, elsewhere = location.open(), location.open()
    first = here.commit(here.change("accounts", "a"), here.change("ledger", "opened a"))
    second = here.commit(
        here.change("accounts", "a", diff=-1), here.change("accounts", "b"), here.change("ledger", "a is b")
    )
    assert second > first
    for time, accounts, ledger in ((first - 1, 0, 0), (first, 1, 1), (second - 1, 1, 1), (second, 1, 2)):
        for process in (here, elsewhere):
            for table in NAMES:
                run_sync(process.tables[table].reader.refresh())
            assert (len(process.rows("accounts", time)), len(process.rows("ledger", time))) == (accounts, ledger)
    assert elsewhere.rows("accounts", second) == ["b"]


def test_deleting_what_is_not_there_fails_the_whole_and_names_the_row(location):
    """Damage: half a transaction is done, or a row has a negative count and every view of it fails."""
    here = location.open()
    time = here.commit(here.change("accounts", "a"))
    with pytest.raises(InvalidUsage, match=r"'accounts': 1 row\(s\) to delete are not there, for example {'k': 'b'}"):
        here.commit(here.change("ledger", "x"), here.change("accounts", "a", "b", diff=-1))
    with pytest.raises(InvalidUsage, match="not there"):
        here.commit(here.change("accounts", "a", "a", diff=-1))
    assert (here.rows("accounts", time), here.rows("ledger", time)) == (["a"], [])
    later = here.commit(here.change("accounts", "a", diff=-1))
    assert here.rows("accounts", later) == []


def test_a_row_inserted_by_the_transaction_itself_makes_good_for_its_delete(location):
    """Damage: replacing a row by itself fails, though nothing changes."""
    here = location.open()
    time = here.commit(here.change("accounts", "a"), here.change("accounts", "a", diff=-1))
    assert here.rows("accounts", time) == []


def test_an_absent_row_is_looked_for_among_its_likes_alone(location, monkeypatch):
    """Damage: deleting one row of a million costs what reading the million costs."""
    here = location.open()
    here.commit(here.change("accounts", *(f"{n:04}" for n in range(500))))
    looked = []
    differences = ListEngine.differences

    async def counting(self, rows, schema, **options):
        looked.append(len(listed(rows).rows))
        return await differences(self, rows, schema, **options)

    monkeypatch.setattr(ListEngine, "differences", counting)
    here.commit(here.change("accounts", "0007", diff=-1))
    assert looked == [2]


def test_an_update_is_computed_anew_when_another_writer_commits_in_between(location):
    """Damage: of two UPDATEs of one row one is lost, or rows appear that no statement wrote."""
    here, elsewhere = location.open(), location.open()
    here.commit(here.change("accounts", "a"))
    others = iter([("b", 1), ("a", -1)])

    def meanwhile():
        word, diff = next(others, (None, 0))
        if word is not None:
            elsewhere.commit(elsewhere.change("accounts", word, diff=diff))

    time = here.commit(*here.moving("accounts", meanwhile=meanwhile))
    assert here.rows("accounts", time) == ["b'"]


def test_every_statement_reads_at_the_last_time_before_the_commit(location):
    """Damage: what a statement reads is older than the table it writes, and it undoes or misses what was committed."""
    here, elsewhere = location.open(), location.open()
    first = here.commit(here.change("accounts", "a"))
    seen = []

    async def read(as_of):
        seen.append(as_of)
        if len(seen) == 1:
            elsewhere.commit(elsewhere.change("ledger", "meanwhile"))
        return updates(SCHEMA, [])

    last = here.commit(Statement(here.tables["accounts"].output, read, ["accounts"], deletes=False))
    assert seen == [first, last - 1]


def test_a_delete_of_rows_that_vanish_meanwhile_fails_and_leaves_no_parts(location):
    """Damage: a row is deleted twice; or what was staged for nothing fills the disk."""
    here, elsewhere = location.open(), location.open()
    here.commit(here.change("accounts", "a"))
    fill = here.change("ledger", *(f"{n:09}" * 100 for n in range(50)))

    async def slow(as_of):
        elsewhere.commit(elsewhere.change("accounts", "a", diff=-1))
        return updates(SCHEMA, [{"k": "once", "__time": 0}])

    racing = Statement(here.tables["ledger"].output, slow, [], deletes=False)
    here.location.engine.discarded = 0
    with pytest.raises(InvalidUsage, match="not there"):
        here.commit(racing, fill, here.change("accounts", "a", diff=-1))
    named = {p.key for t in here.tables.values() for p in t.writer.state.parts if hasattr(p, "key")}
    assert {key for key in location.objects if key.startswith(NAMES) and "/parts/" in key} == named


def test_the_same_token_is_one_commit_in_any_process_and_leaves_nothing_behind(location):
    """Damage: a retried INSERT inserts twice, or leaves its rows on disk for ever."""
    here = location.open()
    big = "x" * 50_000
    first = here.commit(here.change("accounts", big), token="one")
    again = location.open()
    assert again.commit(again.change("accounts", big), token="one") == first
    assert again.rows("accounts", again.transactions.upper.at - 1) == [big]
    assert len([key for key in location.objects if key.startswith("accounts/parts/")]) == 1


def test_a_table_that_was_dropped_takes_no_change_and_answers_an_old_token(location):
    """Damage: rows get into another table of that name, or a commit that was done is said not to be."""
    here = location.open()
    before = [here.change("accounts", "a"), here.change("ledger", "b")]
    first = here.commit(*before, token="one")
    run_sync(here.transactions.forget("accounts"))
    del here.tables["accounts"]
    assert here.commit(*before, token="one") == first
    with pytest.raises(InvalidUsage, match="table 'accounts' was dropped; nothing was changed"):
        here.commit(*before, token="two")
    assert here.rows("ledger", here.transactions.upper.at - 1) == ["b"]


def test_times_follow_the_clock_and_faster_writers(location):
    """Damage: a commit's time is one that a reader took for complete."""
    here, elsewhere = location.open(), location.open()
    assert here.commit(here.change("accounts", "a")) == 1_000
    run_sync(elsewhere.transactions.advance(5_000))
    assert here.commit(here.change("accounts", "b")) == 5_001
    location.clock.now = 9_000
    assert here.commit(here.change("accounts", "c")) == 9_000


def test_an_environment_that_was_succeeded_commits_nothing(location):
    """Damage: two environments write the tables of one location."""
    old = location.open()
    new = location.open(epoch=2)
    with pytest.raises(FencedError):
        old.commit(old.change("accounts", "a"))
    assert new.rows("accounts", new.commit(new.change("accounts", "b"))) == ["b"]
