"""Rows of a key that are reduced to one: in full at an endpoint's table, associatively where changes are pushed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.algebra.schema import Column, Schema
from strandline.errors import DefinitionError
from strandline.frontier import Frontier
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol.messages import DELETE, EXISTS, Load, Request, Response, Store
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.materialize.reduced import Reduced
from strandline.materialize.runtime import Task
from strandline.store.memory import MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.endpoints import Endpoint, KeyValueSession, MemoryDriver, StagingSession
from strandline.testing.feed import ListFeed

SCHEMA = Schema((Column("k", "bigint"), Column("n", "bigint"), Column("last", "string")))
TYPES = {"k": pa.int64(), "n": pa.int64(), "last": pa.string()}
MERGE = {"reduce": {"strategy": "merge"}}
SUM = json.dumps({**MERGE, "properties": {"n": {"type": "integer", "reduce": {"strategy": "sum"}}}})
STANDARD = Binding("v", "t", ("k",), SCHEMA, reduce=SUM)
DELTA = Binding("v", "t", ("k",), SCHEMA, delta=True, reduce=SUM)
EXAMPLE = ((-1, 3, 2), (6, -7, -1))
Row = dict[str, Any]


class Asked(KeyValueSession):
    """Keeps what was asked for and stored, message by message, besides the table."""

    said: list[tuple[str, list[Row]]]

    def answers(self, message: Request) -> list[Response]:
        if isinstance(message, Load):
            self.said.append(("load", message.keys.to_pylist()))
        if isinstance(message, Store):
            self.said.append(("store", message.rows.to_pylist()))
            if self.bindings[message.binding].delta:
                return []
        return super().answers(message)


def of(k: int, n: int, last: str = "") -> Row:
    """Return a row of `SCHEMA`."""
    return {"k": k, "n": n, "last": last}


async def follow(binding: Binding, session: type[Any], rounds: list[list[Row]], endpoint: Endpoint) -> None:
    """Push rows that are appended, each at a time of its own; one transaction takes a round."""
    feed = ListFeed("v", SCHEMA, TYPES)
    log = RecoveryLog(HandClock(), CountingIds(), MemoryConsensus(), "log/m", 1)
    task = Task(MaterializationSpec("m", (binding,)), MemoryDriver(endpoint, session), log, [feed])
    time = 0
    for rows in rounds:
        for row in rows:
            feed.write(time, (row, 1))
            time += 1
        time += 1
        feed.seal(Frontier(time))
        await task.advance()
    await task.close()


def pushed(binding: Binding, *rounds: list[Row]) -> tuple[list[tuple[str, list[Row]]], list[Row]]:
    """Return what was said to the endpoint, and what its table holds then."""
    endpoint = Endpoint()

    class Session(Asked):
        said: list[tuple[str, list[Row]]] = []  # noqa: RUF012 - of this run

    asyncio.run(follow(binding, Session, list(rounds), endpoint))
    return Session.said, endpoint.rows("t")


def test_a_table_holds_the_full_reduction() -> None:
    """Damage: a sum starts anew with each transaction."""
    said, rows = pushed(STANDARD, *([of(1, n) for n in each] for each in EXAMPLE))
    assert said == [
        ("store", [{**of(1, 4), EXISTS: False, DELETE: False}]),
        ("load", [{"k": 1}]),
        ("store", [{**of(1, 2), EXISTS: True, DELETE: False}]),
    ]
    assert rows == [of(1, 2)]


def test_what_is_pushed_is_reduced_in_each_transaction_and_loads_nothing() -> None:
    """Damage: a consumer that adds up what it gets counts something twice."""
    said, _ = pushed(DELTA, *([of(1, n) for n in each] for each in EXAMPLE))
    sums = [row["n"] for _, rows in said for row in rows]
    assert ([kind for kind, _ in said], sums) == (["store", "store"], [4, -2])
    assert sum(sums) == 2


def test_the_last_row_is_that_of_the_latest_time() -> None:
    """Damage: which of two values is kept depends on how rows were sorted."""
    _, rows = pushed(STANDARD, [of(1, 1, "z"), of(2, 1, "b"), of(1, 1, "a")], [of(1, 1, "m"), of(1, 1, "c")])
    assert sorted(rows, key=lambda row: row["k"]) == [of(1, 4, "c"), of(2, 1, "b")]


def test_a_row_that_went_is_an_error_that_names_its_key() -> None:
    """Damage: a sum stays as it is, though a part of it is gone."""

    async def body() -> None:
        feed = ListFeed("v", SCHEMA, TYPES)
        log = RecoveryLog(HandClock(), CountingIds(), MemoryConsensus(), "log/m", 1)
        task = Task(MaterializationSpec("m", (STANDARD,)), MemoryDriver(Endpoint(), KeyValueSession), log, [feed])
        feed.write(1, (of(1, 1), 1))
        feed.seal(Frontier(2))
        await task.advance()
        feed.write(2, (of(1, 1), -1))
        feed.seal(Frontier(3))
        with pytest.raises(DefinitionError, match="key .k = 1. was removed or changed"):
            await task.advance()

    asyncio.run(body())


async def recovered(first: Binding, spoil: list[list[tuple[Row, int]]], mend: list[tuple[Row, int]]) -> list[Row]:
    """Return the table after each list of changes but the last has failed, and a backfill after ``mend``."""
    feed, endpoint, consensus = ListFeed("v", SCHEMA, TYPES), Endpoint(), MemoryConsensus()

    def task(epoch: int) -> Task:
        log = RecoveryLog(HandClock(), CountingIds(), consensus, "log/m", epoch)
        binding = replace(first, backfill=epoch - 1)
        return Task(MaterializationSpec("m", (binding,)), MemoryDriver(endpoint, KeyValueSession), log, [feed])

    time, failing = 0, task(1)
    for place, changes in enumerate(spoil):
        time += 1
        for change in changes:
            feed.write(time, change)
        feed.seal(Frontier(time + 1))
        if place < len(spoil) - 1:
            await failing.advance()
        else:
            with pytest.raises(DefinitionError):
                await failing.advance()
    time += 1
    for change in mend:
        feed.write(time, change)
    feed.seal(Frontier(time + 1))
    with pytest.raises(DefinitionError):
        await failing.advance()
    await failing.close()
    endpoint.tables.clear()  # what Apply does to a table that is filled anew
    again = task(2)
    await again.advance()
    await again.advance()
    await again.close()
    return endpoint.rows("t")


def test_a_backfill_begins_anew_after_a_row_was_removed() -> None:
    """Damage: one deleted row stops a table for ever."""
    spoil = [[(of(1, 1), 1), (of(1, 2), 1)], [(of(1, 2), -1)]]
    assert asyncio.run(recovered(STANDARD, spoil, [(of(1, 5), 1)])) == [of(1, 6)]


def test_a_backfill_gets_past_a_transaction_that_can_never_be_stored() -> None:
    """Damage: a sum that overflowed once stops a table for ever, though the row that made it overflow is gone."""
    spoil = [[(of(1, 2**63 - 1), 1)], [(of(1, 1), 1)]]
    assert asyncio.run(recovered(STANDARD, spoil, [(of(1, 2**63 - 1), -1)])) == [of(1, 1)]


ROUNDS = st.lists(st.lists(st.builds(of, st.integers(0, 2), st.integers(-9, 9), st.sampled_from("ab"))), max_size=4)


@pytest.mark.parametrize("session", [KeyValueSession, StagingSession])
@given(ROUNDS)
def test_any_transactions_give_the_reduction_of_all(session: type[Any], rounds: list[list[Row]]) -> None:
    """Damage: the result depends on where transactions end (law M4)."""
    endpoint = Endpoint()
    asyncio.run(follow(STANDARD, session, rounds, endpoint))
    wanted: dict[int, Row] = {}
    for row in (row for each in rounds for row in each):
        before = wanted.get(row["k"], of(row["k"], 0))
        wanted[row["k"]] = {**row, "n": before["n"] + row["n"]}
    assert {row["k"]: row for row in endpoint.rows("t")} == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "cannot be reduced"),
        (
            json.dumps({**MERGE, "properties": {"n": {"reduce": {"strategy": "add"}}}}),
            "'v' into 't' cannot be reduced: .*add",
        ),
        (
            json.dumps({**MERGE, "properties": {"last": {"type": "string", "reduce": {"strategy": "sum"}}}}),
            "/last|last",
        ),
    ],
)
def test_a_schema_that_cannot_be_is_refused(text: str, said: str) -> None:
    """Damage: a mistake in an annotation stops a task at its first row, a week later."""
    with pytest.raises(DefinitionError, match=said):
        Reduced(Binding("v", "t", ("k",), SCHEMA, reduce=text))


@pytest.mark.parametrize("how", [{"diffs": True, "delta": True}, {"times": True, "delta": True}, {"key": ()}])
def test_what_is_reduced_has_a_key_and_no_diffs(how: dict[str, Any]) -> None:
    """Damage: a reduction is asked for that means nothing."""
    make = partial(Binding, "v", "t", schema=SCHEMA, reduce=SUM, **{"key": ("k",), "delta": True, **how})
    with pytest.raises(DefinitionError, match="what is reduced has a key, and neither times nor diffs"):
        make()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            {**MERGE, "properties": {"lsat": {}}},
            "/properties/lsat: the collection has no column 'lsat'; did you mean 'last'",
        ),
        ({**MERGE, "properties": {"other": {}}}, "/properties/other: .* no column 'other'; it has k, n, last"),
        ({**MERGE, "if": {"properties": {"op": {"const": "d"}}}}, "/if/properties/op"),
        ({**MERGE, "$ref": "#/$defs/a", "$defs": {"a": {"properties": {"N": {}}}}}, "/\\$defs/a/properties/N"),
    ],
)
def test_a_property_that_is_no_column_is_refused(schema: dict[str, Any], said: str) -> None:
    """Damage: a mistyped column is not summed, and nothing says so."""
    reduced = Reduced(replace(STANDARD, reduce=json.dumps(schema)))
    with pytest.raises(DefinitionError, match=said):
        reduced.require_columns()


def test_properties_below_a_column_may_have_any_name() -> None:
    """Damage: a column that holds JSON or a struct cannot be reduced."""
    schema = {**MERGE, "properties": {"last": {"type": "object", "properties": {"anything": {}}}}}
    Reduced(replace(STANDARD, reduce=json.dumps(schema))).require_columns()


@pytest.mark.parametrize(
    ("strategy", "times", "mixed"),
    [
        ("lastWriteWins", [(1, 3), (1, 4)], True),
        ("lastWriteWins", [(1, 3), (2, 4)], False),
        ("lastWriteWins", [(1, 3), (1, 7)], False),
        ("lastWriteWins", [(1, 3), (1, 4), (2, 4)], True),
        ("maximize", [(1, 3), (1, 4)], False),
    ],
)
def test_rows_that_compaction_may_have_turned_round_are_mixed(
    strategy: str, times: list[tuple[int, int]], mixed: bool
) -> None:
    """Damage: a table is called wrong whose rows came in the order that compaction has removed since."""
    each = {name: {"reduce": {"strategy": strategy}} for name in ("n", "last")}
    reduce = json.dumps({"type": "object", **MERGE, "properties": each})
    whole = Reduced(Binding("v", "t", ("k",), SCHEMA, reduce=reduce)).whole(5)

    async def changes() -> AsyncGenerator[pa.RecordBatch, None]:
        for number, (k, time) in enumerate(times):
            row = {"k": k, "n": number, "last": "", "__time": time, "__diff": 1}
            kinds = {**TYPES, "__time": pa.int64(), "__diff": pa.int64()}
            yield pa.RecordBatch.from_pylist([row], schema=pa.schema(list(kinds.items())))

    async def look() -> None:
        async for _ in whole.tables(changes()):
            pass

    asyncio.run(look())
    assert whole.mixed is mixed
