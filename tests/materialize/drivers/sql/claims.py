"""What every SQL endpoint must do beside the driver contract: fences by range, NULL keys, soft deletes, deltas, growth.

Subclass `SqlClaims` in a test module whose fixture ``make_endpoint`` makes an `SqlEndpoint`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.materialize.drivers.sql.endpoint import SqlEndpoint

from strandline.algebra.schema import Column, Schema
from strandline.errors import CorruptionError, DefinitionError, FencedError, StrandlineError, Unavailable
from strandline.materialize.driver import require_all
from strandline.materialize.drivers.sql import checkpoints
from strandline.materialize.drivers.sql.connection import Connection
from strandline.materialize.protocol.messages import (
    DELETE,
    EXISTS,
    Acknowledge,
    Flush,
    Load,
    Loaded,
    Open,
    Opened,
    StartCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, WHOLE, Binding, KeyRange, MaterializationSpec

Make = Callable[..., SqlEndpoint]

ONE = Schema((Column("k", "bigint"), Column("x", "string")))
SPEC = MaterializationSpec("m", (Binding("v", "t", ("k",), ONE),))
HERE, THERE, AGAIN = (  # the same name in two locations, and created again in the first one
    MaterializationSpec("m", (replace(SPEC.bindings[0], incarnation=data),))
    for data in ("m-1@l-a", "m-1@l-b", "m-2@l-a")
)
EMPTIED, WANTED = (  # it is given up here, and is to be filled again
    MaterializationSpec("m", (replace(HERE.bindings[0], backfill=number, gives_up=number == 1),)) for number in (1, 2)
)
TWO_KEYS = MaterializationSpec(
    "m", (Binding("v", "t", ("a", "b"), Schema((Column("a", "bigint"), Column("x", "string"), Column("b", "string")))),)
)
HALF, REST = KeyRange(0, 2**31 - 1), KeyRange(2**31, 2**32 - 1)
STRADDLING = KeyRange(2**30, 2**31 + 2**30)
NEW, REPLACED, GONE = (False, False), (True, False), (True, True)


def run(body: Coroutine[Any, Any, None], seconds: float = 400) -> None:
    """Run a conversation, which must not hang."""
    asyncio.run(asyncio.wait_for(body, seconds))


def rows_of(*rows: tuple[Any, ...], spec: MaterializationSpec = SPEC) -> pa.Table:
    """Return rows to store: the columns of the first binding, then how each is stored."""
    columns = spec.bindings[0].columns
    kinds = {"bigint": pa.int64(), "string": pa.string(), "int": pa.int32(), "double": pa.float64()}
    table = pa.table({c.name: pa.array([row[n] for row in rows], kinds[c.type]) for n, c in enumerate(columns)})
    for place, name in enumerate((EXISTS, DELETE)):
        table = table.append_column(name, pa.array([row[-1][place] for row in rows], pa.bool_()))
    return table


async def opened(
    endpoint: SqlEndpoint, key_range: KeyRange = WHOLE, spec: MaterializationSpec = SPEC, *, apply: bool = True
) -> Any:
    """Return a session that is open, and the checkpoint it begins from."""
    driver = endpoint.driver()
    if apply:
        await driver.apply(spec, {})
    session = await driver.open()
    await session.send(Open(spec, "1", key_range, {}))
    answer = await session.receive()
    assert isinstance(answer, Opened)
    assert answer.refuses
    await session.receive()
    return session, answer.checkpoint


async def commit(session: Any, time: int, rows: pa.Table | None = None, spec: MaterializationSpec = SPEC) -> None:
    """Take one transaction through."""
    await session.send(Acknowledge())
    await session.send(Flush())
    await session.receive()
    if rows is not None:
        await session.send(Store(0, rows))
    await session.send(StartCommit(NOTHING.advance(spec.state_keys, time)))
    await session.receive()
    await session.receive()


async def contents(endpoint: SqlEndpoint, spec: MaterializationSpec = SPEC) -> list[tuple[Any, ...]]:
    """Return the rows that the driver reads back."""
    held = await endpoint.driver().contents(spec.name, spec.bindings[0])
    return [tuple(each.values()) async for table in held.tables for each in table.to_pylist()]


class SqlClaims:
    """The claims."""

    @pytest.fixture
    def endpoint(self, make_endpoint: Make) -> SqlEndpoint:
        return make_endpoint()

    # --- fences -------------------------------------------------------------------------------------------------------
    @pytest.mark.parametrize(
        ("first", "second"),
        [(WHOLE, WHOLE), (WHOLE, HALF), (HALF, STRADDLING), (HALF, WHOLE), (STRADDLING, REST)],
        ids=["exact", "split from its parent", "straddling", "covered child", "straddled"],
    )
    def test_a_session_whose_range_overlaps_is_fenced(
        self, first: KeyRange, second: KeyRange, endpoint: SqlEndpoint
    ) -> None:
        """Damage: two processes write the same keys, and neither knows."""

        async def body() -> None:
            older, _ = await opened(endpoint, first)
            newer, _ = await opened(endpoint, second)
            with pytest.raises(FencedError, match="fenced off by another"):
                await commit(older, 5, rows_of((1, "zombie", NEW)))
            assert endpoint.rows("t") == []
            await commit(newer, 5, rows_of((1, "new", NEW)))
            assert [row["x"] for row in endpoint.rows("t")] == ["new"]

        run(body())

    def test_splits_leave_each_other_alone_and_go_on_from_their_parent(self, endpoint: SqlEndpoint) -> None:
        """Damage: splits fence each other for ever; or a split repeats, or skips, what its parent did."""

        async def body() -> None:
            await commit((await opened(endpoint))[0], 5)
            left, base = await opened(endpoint, HALF)
            assert base.time(SPEC.state_keys) == 5
            right, base = await opened(endpoint, REST)
            assert base.time(SPEC.state_keys) == 5
            await commit(left, 7, rows_of((1, "left", NEW)))
            await commit(right, 9, rows_of((2, "right", NEW)))
            assert len(endpoint.rows("t")) == 2
            _, base = await opened(endpoint, HALF)
            assert base.time(SPEC.state_keys) == 7
            with pytest.raises(DefinitionError, match="no single checkpoint"):
                await opened(endpoint, WHOLE)

        run(body())

    def test_an_open_waits_for_the_commit_that_is_under_way(self, endpoint: SqlEndpoint) -> None:
        """Damage: the new session begins before rows that the old one commits, and stores them twice (law M3)."""
        begun, gate = threading.Event(), threading.Event()

        async def body() -> None:
            session, _ = await opened(endpoint)
            held, until = session._held, NOTHING.advance(SPEC.state_keys, 7)

            def slow(connection: Connection) -> None:
                connection.begin()
                checkpoints.advance(connection, endpoint.dialect, held, until)
                begun.set()
                gate.wait(120)
                connection.commit()

            async def late() -> None:
                await asyncio.to_thread(begun.wait, 120)
                threading.Timer(0.2, gate.set).start()
                with suppress(Unavailable):  # DuckDB does not wait: it tries again for some time of a clock
                    assert (await opened(endpoint, apply=False))[1] == until
                    return
                await asyncio.to_thread(gate.wait, 120)
                assert (await opened(endpoint, apply=False))[1] == until

            async with asyncio.TaskGroup() as both:
                both.create_task(session._database.run(slow))
                both.create_task(late())

        run(body())

    def test_of_two_opens_at_once_one_fences_the_other(self, endpoint: SqlEndpoint) -> None:
        """Damage: neither sees the other's range, and both commit (law M3)."""

        async def commits(session: Any, time: int) -> bool:
            try:
                await commit(session, time)
            except FencedError:
                return False
            return True

        async def body() -> None:
            await endpoint.driver().apply(SPEC, {})
            for number in range(5):
                spec = MaterializationSpec(f"m{number}", SPEC.bindings)
                ranges = (HALF, STRADDLING, WHOLE)
                async with asyncio.TaskGroup() as all_at_once:
                    tasks = [all_at_once.create_task(opened(endpoint, each, spec, apply=False)) for each in ranges]
                assert [await commits(task.result()[0], 3) for task in tasks].count(True) == 1

        run(body())

    def test_what_several_make_at_once_is_made_once(self, endpoint: SqlEndpoint) -> None:
        """Damage: of two materializations that begin in an empty database, one fails: a table is there already."""

        async def body() -> None:
            specs = [MaterializationSpec(f"m{number}", SPEC.bindings) for number in range(6)]
            async with asyncio.TaskGroup() as all_at_once:
                for spec in specs:
                    all_at_once.create_task(endpoint.driver().apply(spec, {}))
            async with asyncio.TaskGroup() as all_at_once:
                for spec in specs:
                    all_at_once.create_task(opened(endpoint, WHOLE, spec, apply=False))

        run(body())

    def test_a_split_does_not_empty_what_others_may_have_filled(self, endpoint: SqlEndpoint) -> None:
        """Damage: a backfill of one split deletes the rows of all."""
        again = MaterializationSpec("m", (Binding("v", "t", ("k",), ONE, backfill=1),))

        async def body() -> None:
            await commit((await opened(endpoint))[0], 5, rows_of((1, "one", NEW)))
            session, _ = await opened(endpoint, HALF, again)
            with pytest.raises(DefinitionError, match="'t' cannot be filled from the start by the split"):
                await commit(session, 7, rows_of((1, "two", NEW)), again)
            assert [row["x"] for row in endpoint.rows("t")] == ["one"]

        run(body())

    def test_what_slept_through_a_backfill_drops_no_table(self, endpoint: SqlEndpoint) -> None:
        """Damage: a process that wakes in its Apply puts the table of before in the place of its successor's."""
        wider = Schema((Column("k", "bigint"), Column("x", "bigint")))
        again = MaterializationSpec("m", (Binding("v", "t", ("k",), wider, backfill=1),))

        async def body() -> None:
            await commit((await opened(endpoint))[0], 5, rows_of((1, "one", NEW)))
            await commit((await opened(endpoint, spec=again))[0], 7, rows_of((1, 2, NEW), spec=again), again)
            with pytest.raises(FencedError, match="'t' is filled by a later session: its backfill is 1"):
                await endpoint.driver().apply(SPEC, {})
            assert endpoint.rows("t") == [{"k": 1, "x": 2}]

        run(body())

    # --- rows ---------------------------------------------------------------------------------------------------------
    def test_keys_with_null_are_keys(self, endpoint: SqlEndpoint) -> None:
        """Damage: a row whose key has a NULL is stored twice, or never deleted."""
        keys = [(1, "a"), (1, None), (None, "a"), (None, None)]

        async def body() -> None:
            def stored(text: str, how: tuple[bool, bool]) -> pa.Table:
                return rows_of(*((a, text, b, how) for a, b in keys), spec=TWO_KEYS)

            session, _ = await opened(endpoint, spec=TWO_KEYS)
            await commit(session, 2, stored("first", NEW), TWO_KEYS)
            await commit(session, 3, stored("second", REPLACED), TWO_KEYS)
            found = sorted(await contents(endpoint, TWO_KEYS), key=str)
            assert found == sorted(((a, "second", b) for a, b in keys), key=str)
            await session.send(Acknowledge())
            asked = pa.table({"a": pa.array([None, 1, 5], pa.int64()), "b": pa.array([None, "a", None], pa.string())})
            await session.send(Load(0, asked))
            await session.send(Flush())
            loaded = []
            while isinstance(answer := await session.receive(), Loaded):
                loaded += [tuple(row.values()) for row in answer.rows.to_pylist()]
            assert sorted(loaded, key=str) == sorted([(None, "second", None), (1, "second", "a")], key=str)
            await session.close()
            session, _ = await opened(endpoint, spec=TWO_KEYS)
            with pytest.raises(DefinitionError, match="a second row has the key"):
                await commit(session, 4, rows_of((None, "again", None, NEW), spec=TWO_KEYS), TWO_KEYS)
            session, _ = await opened(endpoint, spec=TWO_KEYS)
            await commit(session, 5, stored("", GONE), TWO_KEYS)
            assert endpoint.rows("t") == []

        run(body())

    def test_flags_that_are_wrong_change_nothing(self, endpoint: SqlEndpoint) -> None:
        """Damage: a second row of a key overwrites the first; or a row that another program removed stays unnoticed."""

        async def body() -> None:
            session, _ = await opened(endpoint)
            await commit(session, 5, rows_of((7, "seven", NEW), (8, "eight", NEW)))
            session, _ = await opened(endpoint)
            with pytest.raises(DefinitionError, match=r"'v' into 't': a second row has the key \(k = 7\)"):
                await commit(session, 6, rows_of((7, "other", NEW), (8, "changed", REPLACED), (9, "nine", NEW)))
            endpoint.run(f"DELETE FROM {endpoint.dialect.qualified('t').text} WHERE k = 8")
            session, _ = await opened(endpoint)
            with pytest.raises(CorruptionError, match="of 2 rows to replace or delete 1 were there"):
                await commit(session, 6, rows_of((7, "changed", REPLACED), (8, "", GONE), (9, "nine", NEW)))
            assert await contents(endpoint) == [(7, "seven")]

        run(body())

    def test_a_soft_delete_marks_the_row_and_an_insert_revives_it(self, make_endpoint: Make) -> None:
        """Damage: rows that should be kept are lost; or a deleted key can never come back."""
        endpoint = make_endpoint(soft=True)

        def marked() -> list[tuple[Any, ...]]:
            return sorted((row["k"], row["x"], bool(row["__deleted"])) for row in endpoint.rows("t"))

        async def body() -> None:
            session, _ = await opened(endpoint)
            await commit(session, 2, rows_of((1, "one", NEW), (2, "two", NEW), (3, "three", NEW)))
            await commit(session, 3, rows_of((1, "one", GONE), (2, "zwei", REPLACED)))
            assert marked() == [(1, "one", True), (2, "zwei", False), (3, "three", False)]
            assert sorted(await contents(endpoint)) == [(2, "zwei"), (3, "three")]
            await commit(session, 4, rows_of((1, "again", NEW), (3, "three", GONE), (4, "four", NEW)))
            assert marked() == [(1, "again", False), (2, "zwei", False), (3, "three", True), (4, "four", False)]
            session, _ = await opened(endpoint)
            with pytest.raises(CorruptionError, match="of 1 rows to replace or delete 0"):
                await commit(session, 5, rows_of((3, "gone twice", GONE)))
            session, _ = await opened(endpoint)
            with pytest.raises(DefinitionError, match="a second row"):
                await commit(session, 5, rows_of((4, "four", NEW)))

        run(body())

    def test_deltas_are_added_and_nothing_is_taken_away(self, make_endpoint: Make) -> None:
        """Damage: a table of changes forgets some; or says that a row is there that went."""
        diffs = MaterializationSpec("m", (Binding("v", "t", (), ONE, delta=True, times=True, diffs=True),))
        last = MaterializationSpec("m", (Binding("v", "u", ("k",), ONE, delta=True),))

        async def body() -> None:
            endpoint = make_endpoint()
            session, _ = await opened(endpoint, spec=diffs)
            await commit(session, 2, rows_of((1, "a", 1, 1, NEW), (1, "a", 1, 1, NEW), spec=diffs), diffs)
            await commit(session, 3, rows_of((1, "a", 2, -1, NEW), spec=diffs), diffs)
            found = await contents(endpoint, diffs)
            assert sorted(found) == [(1, "a", 1, 1), (1, "a", 1, 1), (1, "a", 2, -1)]
            await session.close()
            session, _ = await opened(make_endpoint(), spec=last)
            with pytest.raises(DefinitionError, match="'v' into 'u': a row went, and a table that only grows"):
                await commit(session, 2, rows_of((1, "a", NEW), (2, "b", GONE), spec=last), last)
            endpoint = make_endpoint(soft=True)
            session, _ = await opened(endpoint, spec=last)
            await commit(session, 2, rows_of((1, "a", NEW), (2, "b", GONE), spec=last), last)
            await commit(session, 3, rows_of((1, "a", GONE), spec=last), last)
            marked = sorted((row["k"], row["x"], bool(row["__deleted"])) for row in endpoint.rows("u"))
            assert marked == [(1, "a", False), (1, "a", True), (2, "b", True)]

        run(body())

    # --- tables -------------------------------------------------------------------------------------------------------
    def test_a_table_of_ours_grows_in_place_with_its_collection(self, endpoint: SqlEndpoint) -> None:
        """Damage: a column that was added upstream stops the task, or costs the whole table."""
        small = Schema((Column("k", "int"), Column("x", "string")))
        grown = Schema((Column("k", "int"), Column("x", "string"), Column("y", "double")))
        first = MaterializationSpec("m", (Binding("v", "t", ("k",), small),))
        later = MaterializationSpec("m", (Binding("v", "t", ("k",), grown),))

        async def body() -> None:
            await commit((await opened(endpoint, spec=first))[0], 2, rows_of((1, "one", NEW), spec=first), first)
            said = await endpoint.driver().preview(later)
            assert said == ("added column 'y' to table 't'",)
            assert "y" not in endpoint.rows("t")[0]
            assert (await endpoint.driver().apply(later, {})).action == said[0]
            assert not await endpoint.driver().preview(later)
            session, _ = await opened(endpoint, spec=later)
            await commit(session, 3, rows_of((2, "two", 0.5, NEW), (1, "uno", None, REPLACED), spec=later), later)
            assert sorted(await contents(endpoint, later)) == [(1, "uno", None), (2, "two", 0.5)]

        run(body())

    def test_a_type_is_widened_in_place_or_the_difference_is_said(self, endpoint: SqlEndpoint) -> None:
        """Damage: a wider number is cut; or the table is made anew without a word."""
        small = MaterializationSpec("m", (Binding("v", "t", ("k",), Schema((Column("k", "int"), Column("x", "int")))),))
        wide = MaterializationSpec(
            "m", (Binding("v", "t", ("k",), Schema((Column("k", "int"), Column("x", "bigint")))),)
        )
        other = MaterializationSpec(
            "m", (Binding("v", "t", ("k",), Schema((Column("k", "int"), Column("x", "string")))),)
        )

        async def body() -> None:
            await commit((await opened(endpoint, spec=small))[0], 2, rows_of((1, 1, NEW), spec=small), small)
            said = (await endpoint.driver().apply(wide, {})).action
            assert ("widened column 'x' of table 't' from" in said) is endpoint.evolves
            session, _ = await opened(endpoint, spec=wide)
            await commit(session, 3, rows_of((2, 2**40, NEW), spec=wide), wide)
            assert sorted(await contents(endpoint, wide)) == [(1, 1), (2, 2**40)]
            with pytest.raises(
                DefinitionError,
                match=r"table 't' has the columns \(k .*, x .*\), but 'v' needs \(k .*; fill it again: st",
            ):
                await endpoint.driver().apply(other, {})
            assert len(endpoint.rows("t")) == 2

        run(body())

    def test_a_table_that_others_made_is_adopted_only_if_it_fits_and_is_empty(self, endpoint: SqlEndpoint) -> None:
        """Damage: a user's own rows are deleted; or a table that was prepared for the task is refused."""
        table = endpoint.dialect.qualified("t").text
        kinds = [endpoint.dialect.column_type(kind, key=name == "k").text for name, kind in columns_of(SPEC)]

        async def body() -> None:
            endpoint.run(f"CREATE TABLE {table} (k {kinds[0]}, x {kinds[1]}, more integer)")
            await commit((await opened(endpoint))[0], 2, rows_of((1, "one", NEW)))
            assert await contents(endpoint) == [(1, "one")]
            other = MaterializationSpec("n", SPEC.bindings)
            with pytest.raises(DefinitionError, match="'t' holds rows that this materialization did not write"):
                await endpoint.driver().apply(other, {})
            endpoint.run(f"DROP TABLE {table}")
            with pytest.raises(DefinitionError, match="'t' is gone, though it was filled"):
                await endpoint.driver().apply(SPEC, {})
            endpoint.run(f"CREATE TABLE {table} (k {kinds[0]}, y {kinds[1]})")
            with pytest.raises(DefinitionError, match=r"'t' has the columns \(k .*, y .*\), but 'v' needs \(k .*, x"):
                await endpoint.driver().apply(other, {})
            assert endpoint.rows("t") == []

        run(body())

    def test_a_namesake_of_another_location_touches_nothing(self, endpoint: SqlEndpoint) -> None:
        """Damage: two installations with a materialization of one name empty or drop each other's table in turn."""
        elsewhere = MaterializationSpec("m", (replace(THERE.bindings[0], resource="u"),))
        wider = replace(THERE.bindings[0], schema=Schema((Column("k", "bigint"), Column("y", "bigint"))))

        async def body() -> None:
            session, _ = await opened(endpoint, spec=HERE)
            await commit(session, 2, rows_of((1, "one", NEW)), HERE)
            for spec in (THERE, elsewhere, MaterializationSpec("m", (wider,))):
                for call in (endpoint.driver().apply(spec, {}), endpoint.driver().preview(spec)):
                    with pytest.raises(DefinitionError, match="'t' is filled by materialization 'm' of another locat"):
                        await call
            await commit(session, 3, rows_of((2, "two", NEW)), HERE)
            assert not await endpoint.driver().preview(HERE)
            assert sorted(await contents(endpoint)) == [(1, "one"), (2, "two")]

        run(body())

    def test_a_namesake_of_the_same_location_replaces_its_forerunner(self, endpoint: SqlEndpoint) -> None:
        """Damage: who drops a materialization and creates it again must empty its tables by hand."""

        async def body() -> None:
            await commit((await opened(endpoint, spec=HERE))[0], 2, rows_of((1, "one", NEW)), HERE)
            await commit((await opened(endpoint, spec=AGAIN))[0], 2, rows_of((2, "two", NEW)), AGAIN)
            assert await contents(endpoint) == [(2, "two")]

        run(body())

    def test_a_table_that_was_dropped_may_be_filled_from_another_location(self, endpoint: SqlEndpoint) -> None:
        """Damage: what the message advises does not help; or the first location goes on writing among the new rows."""

        async def body() -> None:
            former, _ = await opened(endpoint, spec=HERE)
            await commit(former, 2, rows_of((1, "one", NEW)), HERE)
            endpoint.run(f"DROP TABLE {endpoint.dialect.qualified('t').text}")
            assert (await endpoint.driver().apply(THERE, {})).action == "created table 't'"
            with pytest.raises(FencedError, match="fenced off by another"):
                await commit(former, 3, rows_of((2, "two", NEW)), HERE)
            session, base = await opened(endpoint, spec=THERE)
            assert base == NOTHING
            await commit(session, 2, rows_of((3, "three", NEW)), THERE)
            with pytest.raises(DefinitionError, match="'t' is filled by materialization 'm' of another location"):
                await endpoint.driver().apply(HERE, {})
            assert await contents(endpoint) == [(3, "three")]

        run(body())

    def test_a_table_that_was_given_up_is_like_any_other(self, endpoint: SqlEndpoint) -> None:
        """Damage: who has emptied a table deletes rows that came later; or a namesake waits for ever until it may."""
        table = endpoint.dialect.qualified("t").text

        async def body() -> None:
            await commit((await opened(endpoint, spec=HERE))[0], 2, rows_of((1, "one", NEW)), HERE)
            await commit((await opened(endpoint, spec=EMPTIED))[0], 3, spec=EMPTIED)
            assert endpoint.rows("t") == []
            endpoint.run(f"INSERT INTO {table} (k, x) VALUES (9, 'theirs')")
            await commit((await opened(endpoint, spec=EMPTIED))[0], 4, spec=EMPTIED)
            with pytest.raises(FencedError, match="filled by a later session"):
                await endpoint.driver().apply(HERE, {})
            with pytest.raises(DefinitionError, match="'t' holds rows that this materialization did not write"):
                await endpoint.driver().apply(WANTED, {})
            session, _ = await opened(endpoint, spec=WANTED, apply=False)
            with pytest.raises(DefinitionError, match="'t' holds rows that this materialization did not write"):
                await commit(session, 6, rows_of((1, "one", NEW)), WANTED)
            assert await contents(endpoint) == [(9, "theirs")]

        run(body())

    def test_a_table_that_was_given_up_may_be_filled_from_another_location(self, endpoint: SqlEndpoint) -> None:
        """Damage: a namesake elsewhere is refused until a person drops an empty table."""

        async def body() -> None:
            await commit((await opened(endpoint, spec=HERE))[0], 2, rows_of((1, "one", NEW)), HERE)
            await commit((await opened(endpoint, spec=EMPTIED))[0], 3, spec=EMPTIED)
            await commit((await opened(endpoint, spec=THERE))[0], 2, rows_of((3, "three", NEW)), THERE)
            with pytest.raises(DefinitionError, match="'t' is filled by materialization 'm' of another location"):
                await endpoint.driver().apply(WANTED, {})
            assert await contents(endpoint) == [(3, "three")]

        run(body())

    def test_a_table_that_was_given_up_stays_so_where_splits_join(self, endpoint: SqlEndpoint) -> None:
        """Damage: splits emptied a table at different times, and the one that joins them deletes another's rows."""

        async def body() -> None:
            await commit((await opened(endpoint, spec=HERE))[0], 2, rows_of((1, "one", NEW)), HERE)
            await commit((await opened(endpoint, spec=EMPTIED))[0], 3, spec=EMPTIED)
            halves = [(await opened(endpoint, half, EMPTIED))[0] for half in (HALF, REST)]
            await commit(halves[0], 5, spec=EMPTIED)
            endpoint.run(f"INSERT INTO {endpoint.dialect.qualified('t').text} (k, x) VALUES (9, 'theirs')")
            session, _ = await opened(endpoint, spec=WANTED, apply=False)
            with pytest.raises(DefinitionError, match="'t' holds rows that this materialization did not write"):
                await commit(session, 6, rows_of((1, "one", NEW)), WANTED)
            assert await contents(endpoint) == [(9, "theirs")]

        run(body())

    def test_rows_that_others_wrote_after_the_table_was_adopted_stay(self, endpoint: SqlEndpoint) -> None:
        """Damage: the first transaction, hours later, deletes rows that another program has stored meanwhile."""

        async def body() -> None:
            session, _ = await opened(endpoint)
            endpoint.run(f"INSERT INTO {endpoint.dialect.qualified('t').text} (k, x) VALUES (9, 'theirs')")
            with pytest.raises(DefinitionError, match="'t' holds rows that this materialization did not write"):
                await commit(session, 2, rows_of((1, "one", NEW)))
            assert await contents(endpoint) == [(9, "theirs")]

        run(body())

    def test_what_splits_filled_to_different_times_may_be_filled_anew(self, endpoint: SqlEndpoint) -> None:
        """Damage: a materialization with splits is created again with one, and its own rows count as another's."""

        async def body() -> None:
            await commit((await opened(endpoint, spec=HERE))[0], 2, rows_of((1, "one", NEW)), HERE)
            halves = [(await opened(endpoint, half, HERE))[0] for half in (HALF, REST)]
            await commit(halves[0], 3, spec=HERE)
            await opened(endpoint, spec=AGAIN)  # its process dies before it commits
            session, _ = await opened(endpoint, spec=AGAIN)
            await commit(session, 4, rows_of((2, "two", NEW)), AGAIN)
            assert await contents(endpoint) == [(2, "two")]
            assert endpoint.checkpoint("m") == NOTHING.advance(AGAIN.state_keys, 4)

        run(body())

    def test_a_view_in_the_place_of_a_table_is_named(self, endpoint: SqlEndpoint) -> None:
        """Damage: the endpoint is said to be busy, for ever."""
        endpoint.run(f"CREATE VIEW {endpoint.dialect.qualified('t').text} AS SELECT 1 AS k")
        with pytest.raises(
            DefinitionError, match="'t' cannot be filled, for it is a view; drop the materialization, and"
        ):
            run(endpoint.driver().apply(SPEC, {}))

    def test_the_database_itself_has_one_row_per_key(self, endpoint: SqlEndpoint) -> None:
        """Damage: another program adds a second row of a key, and nothing says so."""
        if not endpoint.enforces:
            pytest.skip(f"{endpoint.system} is not asked to")

        async def body() -> None:
            await commit((await opened(endpoint))[0], 2, rows_of((1, "one", NEW)))
            with pytest.raises(Exception, match="(?i)unique|duplicate"):
                endpoint.run(f"INSERT INTO {endpoint.dialect.qualified('t').text} (k, x) VALUES (1, 'two')")

        run(body())

    def test_names_are_names_whatever_is_in_them(self, endpoint: SqlEndpoint) -> None:
        """Damage: a column's name runs as SQL, or two names reach one table."""
        from tests.materialize.drivers.sql.identifiers import FEW, fill_tables

        run(fill_tables(endpoint, FEW))

    @pytest.mark.slow
    @pytest.mark.time_limit(1500)
    def test_ten_thousand_names_are_names(self, endpoint: SqlEndpoint, record_property: Any) -> None:
        """Damage: the same, of one name in thousands."""
        from tests.materialize.drivers.sql.identifiers import MANY, fill_tables

        run(fill_tables(endpoint, MANY), seconds=1200)
        record_property("FIGURE", f"hostile_identifiers_{endpoint.system} {MANY} - info")

    def test_every_type_comes_back_as_it_was(self, endpoint: SqlEndpoint) -> None:
        """Damage: values are rounded, moved by a time zone, or cut."""
        from tests.materialize.drivers.sql.every_type import store_every_type

        run(store_every_type(endpoint))

    def test_what_has_a_wrong_name_is_refused(self, endpoint: SqlEndpoint) -> None:
        """Damage: the task fails later, in the middle of the night, with the database's own words."""
        for binding in (
            Binding("v", "", ("k",), ONE),
            Binding("v", "strandline_checkpoints", ("k",), ONE),
            Binding("v", "t", ("k",), Schema((Column("k", "int"), Column("", "int")))),
        ):
            spec = MaterializationSpec("m", (binding,))
            with pytest.raises(StrandlineError, match="empty|checkpoints"):
                require_all(spec, asyncio.run(endpoint.driver().validate(spec)))


def columns_of(spec: MaterializationSpec) -> list[tuple[str, Any]]:
    """Return the columns of the first binding with their types."""
    from strandline.algebra.types import columns

    return list(columns(spec.bindings[0].schema))
