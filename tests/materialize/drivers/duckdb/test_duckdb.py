"""DuckDB keeps the contract, and what is its own: fences by range, locks, tables that are not ours."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.materialize.drivers.sql.claims import SqlClaims
from tests.materialize.duckdb_endpoint import DuckDBEndpoint

from strandline.algebra.schema import Column, Schema
from strandline.errors import ConfigError, CorruptionError, DefinitionError, FencedError, Unavailable
from strandline.frontier import Frontier
from strandline.materialize.driver import require_all
from strandline.materialize.drivers.duckdb.file import LOCK_WAIT_S, DuckDBConnection, DuckDBFile
from strandline.materialize.drivers.duckdb.kind import KIND, DuckDBDialect
from strandline.materialize.drivers.sql import checkpoints
from strandline.materialize.drivers.sql.connection import READ_ROWS, OutcomeUnknownError, Sql
from strandline.materialize.drivers.sql.driver import SqlDriver
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol.messages import Acknowledge, Flush, Load, Loaded, Open, Opened, StartCommit, Store
from strandline.materialize.protocol.task import NOTHING, WHOLE, Binding, KeyRange, MaterializationSpec
from strandline.materialize.runtime import Task
from strandline.materialize.spool import Spool
from strandline.materialize.stores import to_store
from strandline.store.memory import MemoryConsensus
from strandline.testing.contracts.drivers.driver_contract import DriverContract
from strandline.testing.contracts.drivers.splits_contract import SplitsContract, SplitsUnderFaultsContract
from strandline.testing.contracts.drivers.world import World, advance_through, row, write_history
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.feed import ListFeed

ONE = Schema((Column("k", "bigint"), Column("x", "string")))
SPEC = MaterializationSpec("m", (Binding("v", "t", ("k",), ONE),))
HALF, REST = KeyRange(0, 2**31 - 1), KeyRange(2**31, 2**32 - 1)
STRADDLING = KeyRange(2**30, 2**31 + 2**30)


@pytest.fixture
def make_endpoint(tmp_path: Path) -> Iterator[Callable[..., DuckDBEndpoint]]:
    """Each endpoint is a file of its own."""
    numbers = count()
    with ExitStack() as closing:

        def make(**how: Any) -> DuckDBEndpoint:
            endpoint = DuckDBEndpoint(tmp_path / f"{next(numbers)}.duckdb", **how)
            closing.callback(endpoint.kept.close)
            return endpoint

        yield make


@pytest.fixture
def endpoint(make_endpoint: Callable[..., DuckDBEndpoint]) -> DuckDBEndpoint:
    """One of them."""
    return make_endpoint()


class TestDuckDB(DriverContract, SplitsContract):
    pass


class TestDuckDBTables(SqlClaims):
    pass


class TestDuckDBWithRowsInFiles(DriverContract):
    @pytest.fixture(autouse=True)
    def spilling(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let nothing be held in memory: every statement streams its rows from a file."""
        monkeypatch.setattr(Spool.__init__, "__defaults__", (0,))


def driver_of(clock: HandClock, path: Path) -> SqlDriver:
    """Return a driver to a file of which nothing else keeps a connection."""
    return SqlDriver(KIND.spec, DuckDBDialect(), lambda: DuckDBFile(clock, path))


def changes(*rows: tuple[int, str, int]) -> pa.Table:
    """Return net changes of ``(k, x, diff)``."""
    ks, xs, diffs = zip(*rows, strict=True)
    return pa.table({"k": pa.array(ks, pa.int64()), "x": list(xs), "__diff": pa.array(diffs, pa.int64())})


async def opened(endpoint: DuckDBEndpoint, key_range: KeyRange = WHOLE, spec: MaterializationSpec = SPEC) -> Any:
    """Return a session that is open, and the checkpoint it begins from."""
    driver = endpoint.driver()
    await driver.apply(spec, {})
    session = await driver.open()
    await session.send(Open(spec, "1", key_range, {}))
    answer = await session.receive()
    assert isinstance(answer, Opened)
    await session.send(Acknowledge())
    await session.receive()
    return session, answer.checkpoint


async def commit(session: Any, time: int, rows: pa.Table | None = None) -> None:
    """Take one transaction through."""
    await session.send(Flush())
    await session.receive()
    if rows is not None:
        await session.send(Store(0, to_store(SPEC.bindings[0], rows)))
    await session.send(StartCommit(NOTHING.advance(SPEC.state_keys, time)))


@pytest.mark.parametrize(
    ("first", "second"),
    [(WHOLE, WHOLE), (WHOLE, HALF), (HALF, STRADDLING), (HALF, WHOLE), (STRADDLING, REST)],
    ids=["exact", "split from its parent", "straddling", "covered child", "straddled"],
)
def test_a_session_whose_range_overlaps_is_fenced(first: KeyRange, second: KeyRange, endpoint: DuckDBEndpoint) -> None:
    """Damage: two processes write the same keys, and neither knows."""

    async def body() -> None:
        older, _ = await opened(endpoint, first)
        newer, _ = await opened(endpoint, second)
        with pytest.raises(FencedError, match="fenced off by another"):
            await commit(older, 5, changes((1, "zombie", 1)))
        assert endpoint.rows("t") == []
        await commit(newer, 5, changes((1, "new", 1)))
        assert endpoint.rows("t") == [{"k": 1, "x": "new"}]

    asyncio.run(body())


def test_sessions_of_disjoint_ranges_leave_each_other_alone(endpoint: DuckDBEndpoint) -> None:
    """Damage: the splits of a task fence each other for ever, and nothing is ever committed."""

    async def body() -> None:
        left, _ = await opened(endpoint, HALF)
        right, _ = await opened(endpoint, REST)
        await commit(left, 5, changes((1, "left", 1)))
        await commit(right, 7, changes((2, "right", 1)))
        assert len(endpoint.rows("t")) == 2

    asyncio.run(body())


def test_a_split_goes_on_from_its_parents_checkpoint_and_later_from_its_own(endpoint: DuckDBEndpoint) -> None:
    """Damage: a split repeats, or skips, what its parent did."""

    async def body() -> None:
        parent, begun = await opened(endpoint, WHOLE)
        assert begun == NOTHING
        await commit(parent, 5)
        child, base = await opened(endpoint, HALF)
        assert base.time(SPEC.state_keys) == 5
        await commit(child, 9)
        _, base = await opened(endpoint, HALF)
        assert base.time(SPEC.state_keys) == 9
        _, base = await opened(endpoint, REST)
        assert base.time(SPEC.state_keys) == 5

    asyncio.run(body())


def test_ranges_that_went_apart_are_not_joined(endpoint: DuckDBEndpoint) -> None:
    """Damage: a key that changed and changed back between two checkpoints keeps the value in between."""

    async def body() -> None:
        await commit((await opened(endpoint, WHOLE))[0], 5)
        child, _ = await opened(endpoint, HALF)
        await commit(child, 9, changes((1, "child", 1)))
        with pytest.raises(DefinitionError, match="no single checkpoint"):
            await opened(endpoint, WHOLE)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("binding", "said"),
    [
        (Binding("v", "", ("k",), ONE), "empty"),
        (Binding("v", "Strandline_Checkpoints", ("k",), ONE), "checkpoints"),
        (Binding("v", "t", ("k",), Schema((Column("k", "int"), Column("", "int")))), "empty"),
        (Binding("v", "t", ("k",), Schema((Column("k", "int"), Column("i", "interval month")))), "'i'.*interval month"),
        (Binding("v", "t", ("k",), Schema((Column("k", "map<int,int>"),))), "'k'.*map has no order"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_made(
    binding: Binding, said: str, endpoint: DuckDBEndpoint
) -> None:
    """Damage: the task fails later, in the middle of the night, with DuckDB's own words."""
    spec = MaterializationSpec("m", (binding,))

    async def body() -> None:
        with pytest.raises(DefinitionError, match=said):
            require_all(spec, await endpoint.driver().validate(spec))

    asyncio.run(body())


def test_apply_says_what_it_did_and_does_it_once(endpoint: DuckDBEndpoint) -> None:
    """Damage: no message names the created tables; or a second start fails on the first one's table."""

    async def body() -> None:
        assert (await endpoint.driver().apply(SPEC, {})).action == "created table 't'"
        assert not (await endpoint.driver().apply(SPEC, {})).action

    asyncio.run(body())


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        ("CREATE TABLE t (k BIGINT, y VARCHAR)", "k BIGINT, y VARCHAR.*k BIGINT, x VARCHAR"),
        ("CREATE TABLE T (k BIGINT, x VARCHAR); INSERT INTO t VALUES (1, 'mine')", "did not write"),
        ("CREATE VIEW t AS SELECT 1", "t"),
    ],
)
def test_a_table_that_is_not_ours_is_not_touched(prepare: str, said: str, endpoint: DuckDBEndpoint) -> None:
    """Damage: a user's own table is emptied."""
    endpoint.kept.execute(prepare)
    before = endpoint.rows("t")

    async def body() -> None:
        with pytest.raises(DefinitionError, match=said):
            await endpoint.driver().apply(SPEC, {})

    asyncio.run(body())
    assert endpoint.rows("t") == before


def test_a_table_that_was_dropped_is_reported_and_a_backfill_fills_it_again(endpoint: DuckDBEndpoint) -> None:
    """Damage: a table with only the newest changes in it looks like the whole."""
    world = World(endpoint)
    uppers = write_history(world)

    async def body() -> None:
        await advance_through(world, world.runtime(), uppers[:2])
        endpoint.kept.execute('DROP TABLE "Orders"')
        runtime = world.runtime()
        with pytest.raises(DefinitionError, match="'Orders' is gone.*backfill"):
            await advance_through(world, runtime, uppers[2:])
        assert runtime.status.phase == "Failed"
        assert "gone" in (runtime.status.error or "")
        world.bump(1)
        await advance_through(world, world.runtime(), uppers[2:])
        world.check(uppers[-1])

    asyncio.run(body())


def test_a_file_that_was_deleted_is_filled_again(tmp_path: Path) -> None:
    """Damage: by the log everything is stored, and the new file stays almost empty."""
    endpoint = DuckDBEndpoint(tmp_path / "a.duckdb")
    world = World(endpoint)
    uppers = write_history(world)

    async def body() -> None:
        await advance_through(world, world.runtime(), uppers[:2])
        endpoint.kept.close()
        endpoint.path.unlink()
        await advance_through(world, world.runtime(), uppers[2:])
        endpoint.kept = duckdb.connect(str(endpoint.path))
        world.check(uppers[-1])
        endpoint.kept.close()

    asyncio.run(body())


def test_a_session_that_was_closed_commits_nothing_any_longer(tmp_path: Path) -> None:
    """Damage: the call is cancelled and the session closed; its thread commits once its successor has begun."""
    gate, reached = threading.Event(), threading.Event()
    gate.set()

    def connect(path: str) -> Any:
        reached.set()
        gate.wait()
        return duckdb.connect(path)

    endpoint = DuckDBEndpoint(tmp_path / "late.duckdb", connect=connect)

    async def body() -> None:
        session, _ = await opened(endpoint)
        gate.clear()
        reached.clear()
        committing = asyncio.create_task(commit(session, 5, changes((7, "first", 1))))  # noqa: TID251
        await asyncio.to_thread(reached.wait)
        committing.cancel()
        threading.Timer(0.3, gate.set).start()
        with pytest.raises(asyncio.CancelledError):
            await committing
        await session.close()
        stored = endpoint.checkpoint(SPEC.name)
        assert stored == NOTHING.advance(SPEC.state_keys, 5), "what was begun has ended, whole"
        assert len(endpoint.rows("t")) == 1

    asyncio.run(body())
    endpoint.kept.close()


def test_a_second_row_of_a_key_is_an_error_that_names_the_key(endpoint: DuckDBEndpoint) -> None:
    """Damage: of two rows one silently wins, and which one depends on the day."""

    async def body() -> None:
        session, _ = await opened(endpoint)
        await commit(session, 5, changes((7, "first", 1)))
        with pytest.raises(DefinitionError, match=r"'v' into 't': a second row has the key \(k = 7\)"):
            await commit((await opened(endpoint))[0], 9, changes((7, "second", 1)))
        assert endpoint.rows("t") == [{"k": 7, "x": "first"}]

    asyncio.run(body())


def test_rows_that_another_program_removed_are_noticed(endpoint: DuckDBEndpoint) -> None:
    """Damage: the table is wrong, and stays so unnoticed."""

    async def body() -> None:
        session, _ = await opened(endpoint)
        await commit(session, 5, changes((7, "ours", 1)))
        endpoint.kept.execute("DELETE FROM t")
        with pytest.raises(CorruptionError, match="of 1 rows to replace or delete 0 were there"):
            await commit((await opened(endpoint))[0], 9, changes((7, "ours", -1)))

    asyncio.run(body())


def test_loads_give_the_rows_that_are_there(endpoint: DuckDBEndpoint) -> None:
    """Damage: a reduction begins again from nothing."""

    async def body() -> None:
        session, _ = await opened(endpoint)
        await commit(session, 5, changes((7, "seven", 1), (8, "eight", 1)))
        again, _ = await opened(endpoint)
        await again.send(Load(0, pa.table({"k": pa.array([7, 9], pa.int64())})))
        answer = await again.receive()
        assert isinstance(answer, Loaded)
        assert answer.rows.to_pylist() == [{"k": 7, "x": "seven"}]

    asyncio.run(body())


class BrokenCommit:
    """A connection whose COMMIT fails, before its effect or after; "fenced": after, and another session opens then."""

    def __init__(self, path: str, broken: list[str]) -> None:
        self._inner = duckdb.connect(path)
        self._broken = broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self) -> None:
        how = self._broken.pop() if self._broken else "fine"
        if how != "lost":
            self._inner.commit()
        if how == "fenced":
            self._inner.execute("UPDATE strandline_checkpoints SET fence = fence + 1")
        if how != "fine":
            raise duckdb.IOException("IO Error: the disk went away")


@pytest.mark.parametrize("how", ["lost", "done", "fenced"])
def test_a_commit_of_unknown_outcome_is_looked_up(how: str, tmp_path: Path) -> None:
    """Damage: stored rows are sent again, or missing rows count as committed."""
    broken: list[str] = []
    endpoint = DuckDBEndpoint(tmp_path / "a.duckdb", connect=lambda path: BrokenCommit(path, broken))
    world = World(endpoint)
    uppers = write_history(world)

    async def body() -> None:
        runtime = world.runtime()
        await advance_through(world, runtime, uppers[:1])
        world.seal(uppers[1])
        broken.append(how)
        if how == "fenced":
            with pytest.raises(FencedError, match="another session"):
                await runtime.advance()
            runtime = world.runtime()
        assert await runtime.advance() is (how != "fenced"), "what the other session found was committed"
        world.check(uppers[1])
        await advance_through(world, runtime, uppers[2:])
        world.check(uppers[-1])

    asyncio.run(body())
    endpoint.kept.close()


def test_a_large_table_is_handed_over_some_rows_at_a_time(tmp_path: Path) -> None:
    """Damage: `verify` of an endpoint needs memory for the whole table, and ends the process that runs all views."""
    endpoint, many = DuckDBEndpoint(tmp_path / "a.duckdb"), 5 * READ_ROWS
    driver, taken = endpoint.driver(), list[pa.Table]()
    asyncio.run(driver.apply(SPEC, {}))
    endpoint.kept.execute(f"INSERT INTO t SELECT i, 'row ' || i FROM range({many}) r (i)")

    async def read() -> None:
        held = await driver.contents(SPEC.name, SPEC.bindings[0])
        taken.extend([table async for table in held.tables])

    asyncio.run(read())
    assert sorted(pa.concat_tables(taken)["k"].to_pylist()) == list(range(many))
    assert max(table.num_rows for table in taken) <= READ_ROWS + 2048, "one vector of DuckDB's more at most"
    endpoint.kept.close()


class FullDisk:
    """A connection whose COMMIT finds no space, in DuckDB's words."""

    def __init__(self, path: str) -> None:
        self._inner = duckdb.connect(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self) -> None:
        raise duckdb.TransactionException("TransactionContext Error: Failed to commit: No space left on device")


def test_a_full_disk_is_called_a_full_disk(tmp_path: Path) -> None:
    """Damage: an operator looks for a lock that no one holds."""
    endpoint = DuckDBEndpoint(tmp_path / "a.duckdb", connect=FullDisk, clock=HandClock())
    with pytest.raises(Unavailable, match=r"DuckDB file .*a.duckdb cannot be written, for its disk is full: make room"):
        asyncio.run(endpoint.driver().apply(SPEC, {}))
    endpoint.kept.close()


READ: dict[str, Any] = {"check": True, "capture_output": True, "text": True}
HOLD = """
import duckdb, sys
with duckdb.connect(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_held_by_another_process_is_waited_for_and_then_named(tmp_path: Path) -> None:
    """Damage: a program that reads the file makes the task fail, or hang silently."""
    path = tmp_path / "a.duckdb"
    clock = HandClock()
    driver = driver_of(clock, path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Unavailable, match=rf"{path} is locked by process {holder.pid} .*try again"):
            asyncio.run(driver.apply(SPEC, {}))
        assert clock.now >= 1000 * LOCK_WAIT_S
        holder.stdin.close()
        holder.wait()
    assert asyncio.run(driver.apply(SPEC, {})).action


def test_others_read_the_file_between_transactions(tmp_path: Path) -> None:
    """Damage: no other program can read the tables."""
    endpoint = DuckDBEndpoint(tmp_path / "a.duckdb")
    endpoint.kept.close()
    world = World(endpoint)
    uppers = write_history(world)

    async def body() -> None:
        runtime = world.runtime()
        for upper in uppers:
            await advance_through(world, runtime, (upper,))
            count_rows = f"import duckdb; print(duckdb.connect({str(endpoint.path)!r}).sql('FROM Orders').fetchall())"
            seen = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", count_rows], **READ)
            assert len(eval(seen.stdout, {"nan": 0.0})) == len(world.truth(0, upper))

    asyncio.run(body())


@pytest.mark.parametrize("content", [None, b"not a database " * 1000])
def test_a_file_that_cannot_be_opened_is_named_in_one_sentence(content: bytes | None, tmp_path: Path) -> None:
    """Damage: an operator has to guess which file is meant."""
    path = tmp_path / "missing" / "a.duckdb" if content is None else tmp_path / "a.duckdb"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)) as caught:
        asyncio.run(driver_of(HandClock(), path).apply(SPEC, {}))
    assert "\n" not in str(caught.value)


def test_every_type_round_trips(endpoint: DuckDBEndpoint) -> None:
    """Damage: a value arrives as another."""
    columns = {
        "k": ("array<double>", pa.list_(pa.float64()), [1.5, None]),
        "i": ("tinyint", pa.int8(), -128),
        "d": ("decimal(38,2)", pa.decimal128(38, 2), None),
        "t": ("timestamp", pa.timestamp("us", "UTC"), 1_600_000_000_123_456),
        "n": ("timestamp_ntz", pa.timestamp("us"), 1_600_000_000_123_456),
        "a": ("date", pa.date32(), 12_345),
        "b": ("binary", pa.binary(), b"\0\xff"),
        "s": ("struct<`a b, c:`:int,select:array<float>>", None, None),
        "f": ("float", pa.float32(), float("inf")),
        "o": ("boolean", pa.bool_(), True),
    }
    types = {
        name: arrow or pa.struct([("a b, c:", pa.int32()), ("select", pa.list_(pa.float32()))])
        for name, (_, arrow, _) in columns.items()
    }
    schema = Schema(tuple(Column(name, spark) for name, (spark, _, _) in columns.items()))
    feed = ListFeed("v", schema, types)
    value = {name: pa.scalar(given, types[name]).as_py() for name, (_, _, given) in columns.items()}
    value["s"] = {"a b, c:": 3, "select": [0.5]}
    spec = MaterializationSpec("m", (Binding("v", "t", ("k", "i"), schema),))

    async def body() -> None:
        log = RecoveryLog(HandClock(), CountingIds(), MemoryConsensus(), "log", 1)
        runtime = Task(spec, endpoint.driver(), log, [feed])
        feed.write(1, (value, 1))
        feed.seal(Frontier(2))
        await runtime.advance()
        feed.write(2, (value, -1), ({**value, "o": None}, 1))
        feed.seal(Frontier(3))
        await runtime.advance()
        (found,) = endpoint.rows("t")
        assert {**found, "t": found["t"].timestamp()} == {**value, "o": None, "t": value["t"].timestamp()}

    asyncio.run(body())


def test_null_and_nan_keys_are_keys(endpoint: DuckDBEndpoint) -> None:
    """Damage: a row whose key is NULL is never replaced, and piles up."""
    world = World(endpoint)
    orders, _ = world.feeds

    async def body() -> None:
        orders.write(1, (row(None, float("nan"), "a"), 1), (row(None, None, "b"), 1))
        world.seal(2)
        runtime = world.runtime()
        await runtime.advance()
        orders.write(
            2, (row(None, float("nan"), "a"), -1), (row(None, float("nan"), "A"), 1), (row(None, None, "b"), -1)
        )
        world.seal(3)
        await runtime.advance()
        assert [each["s"] for each in endpoint.rows("Orders")] == ["A"]

    asyncio.run(body())


def test_a_collection_made_again_fills_its_table_anew_whatever_its_columns(endpoint: DuckDBEndpoint) -> None:
    """Damage: the table keeps rows of a view that was dropped, and gets changes of another."""
    other = Schema((Column("k", "bigint"), Column("y", "bigint")))

    async def body() -> None:
        session, _ = await opened(endpoint)
        await commit(session, 5, changes((7, "old", 1)))
        again = MaterializationSpec("m", (Binding("v", "t", ("k",), other, incarnation="b"),))
        assert "recreated" in (await endpoint.driver().apply(again, {})).action
        feed = ListFeed("v", other, {"k": pa.int64(), "y": pa.int64()})
        feed.write(1, ({"k": 7, "y": 1}, 1))
        feed.seal(Frontier(3))
        log = RecoveryLog(HandClock(), CountingIds(), MemoryConsensus(), "log", 1)
        runtime = Task(again, endpoint.driver(), log, [feed])
        assert await runtime.advance()
        assert runtime.status.position == 3
        assert endpoint.rows("t") == [{"k": 7, "y": 1}]

    asyncio.run(body())


def test_a_commit_that_ends_while_another_session_opens_is_seen_or_refused(endpoint: DuckDBEndpoint) -> None:
    """Damage: the new session begins before rows that the old one has committed, and fills them in twice (law M3)."""

    async def body() -> None:
        await opened(endpoint)

    asyncio.run(body())
    dialect = DuckDBDialect()
    inner = [duckdb.connect(str(endpoint.path)) for _ in range(2)]
    older, newer = map(DuckDBConnection, inner)
    with inner[0], inner[1]:
        held, _ = checkpoints.claim(older, dialect, "m", WHOLE, ("t.v0",))
        newer.begin()
        newer.query(Sql("SELECT count(*) FROM strandline_checkpoints"))  # its snapshot is of before the commit
        checkpoints.advance(older, dialect, held, NOTHING.advance(SPEC.state_keys, 2))
        with pytest.raises(OutcomeUnknownError, match="[Cc]onflict"):
            checkpoints.claim(newer, dialect, "m", WHOLE, ("t.v0",))


@pytest.mark.slow
class TestDuckDBSplitsUnderFaults(SplitsUnderFaultsContract):
    pass
