"""An ingester of PostgreSQL is killed again and again, and its backends too, while transfers go on upstream.

A transfer moves an amount from a row of one table to a row of another, in one transaction.  So at every time the sum
over both tables is what it was, unless a transaction was torn, lost or taken twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from time import monotonic

import psycopg
import pytest

from postgres_server import PostgresDatabase, PostgresServer
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Half
from strandline.persist.handles.read import contents
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.testing.lists.list_engine import ListEngine, listed

CHILD = Path(__file__).parent / "ingesting_child.py"
SLOT = "strandline_killed"
TABLES = ("near", "far")
SCHEMA = Schema((Column("id", "int"), Column("balance", "int")))
ROWS, BALANCE, WORKERS = 20, 1_000, 2
STILL_SECONDS_MAX = 120.0
"""How long an incarnation may come no further on a busy machine."""
ENOUGH = 16
"""So many ticks without a problem are a start, and times enough at which the sum is checked."""


class Bank:
    """The upstream, a location, and the process that ingests."""

    def __init__(self, root: Path, database: PostgresDatabase) -> None:
        self.root, self.database = root, database
        self.options = {**database.options, "publication": "bank", "step_changes": "50"}
        self.logs: list[Path] = []
        for table in TABLES:
            database.run(
                f"CREATE TABLE {table} (id int PRIMARY KEY, balance int)",
                f"ALTER TABLE {table} REPLICA IDENTITY FULL",
                f"INSERT INTO {table} SELECT i, {BALANCE} FROM generate_series(1, {ROWS}) AS i",
            )
        database.run("CREATE PUBLICATION bank FOR TABLE near, far")

    @contextmanager
    def transfers(self):
        """Have transfers go on, whatever happens to their sessions."""
        stops = threading.Event()
        with ThreadPoolExecutor() as pool:
            running = [pool.submit(self._transfer, Random(worker), stops) for worker in range(WORKERS)]
            try:
                yield
            finally:
                stops.set()
                for each in running:
                    each.result()

    def _transfer(self, chance: Random, stops: threading.Event) -> None:
        while not stops.is_set():
            with suppress(psycopg.Error), self.database.session() as session:
                while not stops.is_set():
                    amount, source, target = chance.randint(1, 9), chance.randint(1, ROWS), chance.randint(1, ROWS)
                    near, far = TABLES if chance.random() < 0.5 else TABLES[::-1]
                    session.execute(f"UPDATE {near} SET balance = balance - {amount} WHERE id = {source}")
                    session.execute(f"UPDATE {far} SET balance = balance + {amount} WHERE id = {target}")
                    (session.rollback if chance.random() < 0.1 else session.commit)()
                    stops.wait(0.002)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the next incarnation."""
        self.logs.append(self.root / f"run-{len(self.logs)}.jsonl")
        with self.logs[-1].open("wb") as log, self.logs[-1].with_suffix(".err").open("wb") as err:
            command = [sys.executable, str(CHILD), str(self.root / "data"), json.dumps(self.options)]
            return subprocess.Popen(command, stdout=log, stderr=err)

    def said(self) -> list[dict]:
        """Return what the last incarnation said (a kill may have cut the last line off)."""
        return [json.loads(line) for line in self.logs[-1].read_text().split("\n")[:-1]]

    def wait(self, process: subprocess.Popen[bytes], is_so) -> None:
        """Wait until what it said ``is_so``: as long as that takes, while what upstream may forget goes on."""
        before, still = None, 0.0
        while still < STILL_SECONDS_MAX:
            said = self.said()
            if is_so(said):
                return
            assert process.poll() is None, self.logs[-1].with_suffix(".err").read_text()[-2000:]
            begun = monotonic()
            threading.Event().wait(0.05)
            good = [each for each in said if "problem" not in each]
            now = bool(said), len(good[:ENOUGH]), good[-1]["resume"] if good else 0
            still = still + monotonic() - begun if now == before else 0.0
            before = now
        raise AssertionError(f"nothing went on for {STILL_SECONDS_MAX} s: {self.said()[-3:]}")

    def disturb(self, chance: Random) -> None:
        """End some of the ingester's backends, or kill one: then the server starts all of them anew."""
        with suppress(psycopg.Error):
            pids = self.database.run(
                "SELECT pid FROM pg_stat_activity "
                "WHERE application_name = 'strandline' AND datname = current_database()"
            )
            for (pid,) in pids:
                if chance.random() < 0.3:
                    os.kill(pid, signal.SIGKILL)
                else:
                    self.database.run(f"SELECT pg_terminate_backend({pid})")
        self.database.close()

    async def updates(self) -> dict[str, list[dict]]:
        """Return all durable updates of each table, and its upper."""
        blob, found = FileBlob(self.root / "data" / "blob"), {}
        consensus = SQLiteConsensus(self.root / "data" / "consensus.db")
        client = PersistClient(SystemClock(), SystemIds(), blob, consensus)
        try:
            for table in TABLES:
                reader = await client.reader(table, SCHEMA, table)
                assert reader is not None
                state = reader.state
                whole = contents(state, SCHEMA, 0, state.upper.at, advance=0, half=Half.BOTH)
                found[table] = (listed(await ListEngine(blob).read(whole)).rows, state.upper.at)
        finally:
            consensus.close()
        return found


@pytest.fixture
def database(postgres_server: PostgresServer):
    """A database of the test's own."""
    postgres_server.revive()
    with postgres_server.database() as made:
        yield made


@pytest.mark.kill
@pytest.mark.server
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.time_limit(1_800)])])
def test_the_sum_is_constant_at_every_readable_time(tmp_path, database, kills, record_property):
    """Damage: a transfer is seen half, lost, or seen twice, after a kill of the ingester or of its backends."""
    bank, chance = Bank(tmp_path, database), Random(7)
    (tmp_path / "data").mkdir()
    with bank.transfers():
        for number in range(kills):
            process = bank.start()
            if number % 2 == 0:
                bank.wait(process, bool)
                bank.disturb(chance)
            bank.wait(process, lambda said: any("near" in "".join(each) for each in said))
            threading.Event().wait(chance.random())
            process.send_signal(signal.SIGKILL)
            process.wait()
        process = bank.start()
        bank.wait(process, lambda said: len([each for each in said if "problem" not in each]) >= ENOUGH)
    try:
        upstream = {table: Counter(dict(database.run(f"SELECT id, balance FROM {table}"))) for table in TABLES}
        ((written,),) = database.run("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint")
        bank.wait(process, lambda said: said[-1].get("resume", 0) >= written)
    finally:
        process.kill()
        process.wait()
    found = asyncio.run(bank.updates())
    for table, (rows, _) in found.items():
        held = Counter()
        for row in rows:
            assert row.get(ERROR) is None
            held[row["id"], row["balance"]] += row[DIFF]
        assert {key: n for key, n in held.items() if n} == dict.fromkeys(upstream[table].items(), 1)
    checked = constant(found)
    record_property("postgres_times_checked", checked)
    assert checked > 10 * kills
    assert database.run(
        f"SELECT confirmed_flush_lsn - '0/0' >= {written} FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
    ) == [(True,)], "upstream may forget all that was written"


def constant(found) -> int:
    """Check the sum at every time at which both tables are readable; return at how many it could have changed."""
    begun = max(min(row[TIME] for row in rows) for rows, _ in found.values())
    upper = min(upper for _, upper in found.values())
    times = sorted({row[TIME] for rows, _ in found.values() for row in rows})
    sums, checked = Counter(), 0
    for rows, _ in found.values():
        for row in rows:
            sums[row[TIME]] += row["balance"] * row[DIFF]
    total = 0
    for time in times:
        total += sums[time]
        if begun <= time < upper:
            assert total == 2 * ROWS * BALANCE, f"at time {time} of {begun} to {upper}"
            checked += 1
    return checked
