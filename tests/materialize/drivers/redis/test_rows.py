"""What a user of Redis finds: rows as keys, kept beside what is not ours, and what Redis loses is noticed."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from decimal import Decimal
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from redis.client import Pipeline
from redis.exceptions import ConnectionError as BrokenConnection
from tests.materialize.drivers.redis.redis_endpoint import RedisDatabase

from redis_server import PASSWORD, RedisServer
from strandline.algebra.schema import Column, Schema
from strandline.errors import ConfigError, CorruptionError, DefinitionError, FencedError, Unavailable
from strandline.materialize.driver import require_all
from strandline.materialize.drivers.redis import resources
from strandline.materialize.drivers.redis.options import Form, RedisEndpoint
from strandline.materialize.drivers.redis.server import Server
from strandline.materialize.protocol.messages import (
    DELETE,
    EXISTS,
    Acknowledge,
    Flush,
    Load,
    Loaded,
    Open,
    StartCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, WHOLE, Binding, KeyRange, MaterializationSpec
from strandline.options import understood
from strandline.store.secret import Secret
from strandline.testing.contracts.drivers.coming_and_going import emptied_beside
from strandline.testing.contracts.drivers.world import KEYED, World, row

pytestmark = pytest.mark.server
DATABASES = count(500)

EVERY: dict[str, tuple[str, pa.DataType, Any]] = {
    "k": ("bigint", pa.int64(), 2**63 - 1),
    "yes": ("boolean", pa.bool_(), True),
    "small": ("tinyint", pa.int8(), -1),
    "half": ("float", pa.float32(), 0.5),
    "double": ("double", pa.float64(), 1e300),
    "endless": ("double", pa.float64(), float("-inf")),
    "text": ("string", pa.string(), 'ä"\\\n\0'),
    "bytes": ("binary", pa.binary(), b"\0\xff"),
    "money": ("decimal(10,2)", pa.decimal128(10, 2), Decimal("-0.10")),
    "day": ("date", pa.date32(), dt.date(2024, 2, 29)),
    "at": ("timestamp", pa.timestamp("us", "UTC"), dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC)),
    "local": ("timestamp_ntz", pa.timestamp("us"), dt.datetime(1, 1, 1)),  # noqa: DTZ001 - it has no zone
    "list": ("array<string>", pa.list_(pa.string()), ["a", None]),
    "pair": (
        "struct<x:int,`y z`:double>",
        pa.struct([("x", pa.int32()), ("y z", pa.float64())]),
        {"x": 1, "y z": None},
    ),
}
TYPED = Schema(tuple(Column(name, kind) for name, (kind, _, _) in EVERY.items()))
SPEC = MaterializationSpec("m", (Binding("v", "t", ("k",), TYPED),))


@pytest.fixture(params=[Form.HASH, Form.JSON])
def database(redis_server: RedisServer, request: pytest.FixtureRequest) -> RedisDatabase:
    """A database."""
    return RedisDatabase(redis_server, next(DATABASES), request.param)


@pytest.fixture
def hashes(redis_server: RedisServer) -> RedisDatabase:
    """A database of hashes."""
    return RedisDatabase(redis_server, next(DATABASES))


def stored(*rows: dict[str, Any], delete: bool = False) -> Store:
    """Return rows of `EVERY` to store."""
    columns = {name: pa.array([each[name] for each in rows], kind) for name, (_, kind, _) in EVERY.items()}
    flags = {EXISTS: [False] * len(rows), DELETE: [delete] * len(rows)}
    return Store(0, pa.table({**columns, **flags}))


async def opened(database: RedisDatabase, state: Any = None, range_: KeyRange = WHOLE) -> Any:
    """Return a session that waits for rows."""
    await database.driver().apply(SPEC, {})
    session = await database.driver().open()
    await session.send(Open(SPEC, "1", range_, state or {}))
    await session.send(Acknowledge())
    return session


async def contents(database: RedisDatabase) -> list[dict[str, Any]]:
    """Return the rows of `SPEC`."""
    found = await database.driver().contents("m", SPEC.bindings[0])
    async with aclosing(found.tables) as tables:
        return [each async for table in tables for each in table.to_pylist()]


def test_every_type_comes_back_as_it_was(database: RedisDatabase) -> None:
    """Damage: a reader, a verification or a reduction sees another value than the view has."""
    full, empty = {name: value for name, (_, _, value) in EVERY.items()}, dict.fromkeys(EVERY)

    async def body() -> None:
        session = await opened(database)
        keys = pa.table({"k": pa.array([2**63 - 1, 5, None], pa.int64())})
        await session.send(Load(0, keys))
        await session.send(Flush())
        await session.send(stored(full, empty))
        await session.send(StartCommit(NOTHING))
        await session.send(Acknowledge())
        await session.send(Load(0, keys))
        await session.close()
        answers = [await session.receive() for _ in range(6)]
        (loaded,) = (each.rows.to_pylist() for each in answers if isinstance(each, Loaded))
        assert loaded == [full, empty]
        assert sorted(await contents(database), key=str) == sorted([full, empty], key=str)

    asyncio.run(body())


def test_a_hash_has_a_field_for_each_value_and_json_one_object(database: RedisDatabase) -> None:
    """Damage: programs that read as the page says find nothing, or a value that was taken away."""

    async def body() -> None:
        session = await opened(database)
        await session.send(Flush())
        before = dict.fromkeys(EVERY) | {"k": 7, "text": "a:b", "yes": True, "money": Decimal("1.50")}
        await session.send(stored(before))
        await session.send(stored(before | {"yes": None, "text": "new"}))
        await session.close()

    asyncio.run(body())
    with closing(database.client()) as client:
        if database.form is Form.HASH:
            assert client.hgetall("t:7") == {b"k": b"7", b"text": b"new", b"money": b"1.50"}
        else:
            found = json.loads(client.get("t:7"))
            assert found.keys() == EVERY.keys()
            assert {name: value for name, value in found.items() if value is not None} == {
                "k": 7,
                "text": "new",
                "money": "1.50",
            }


def test_more_rows_than_fit_one_pipeline_are_all_there_and_all_go(database: RedisDatabase) -> None:
    """Damage: only the first thousand rows of a transaction are kept, read or deleted."""
    rows = [dict.fromkeys(EVERY) | {"k": k, "text": "x" * (k % 3)} for k in range(2_500)]

    async def body() -> None:
        session = await opened(database)
        await session.send(Flush())
        await session.send(stored(*rows))
        assert len(await contents(database)) == len(rows)
        await session.send(stored(*rows[10:], delete=True))
        assert sorted(each["k"] for each in await contents(database)) == list(range(10))
        await session.close()

    asyncio.run(body())


def test_a_backfill_empties_the_resource_and_nothing_else_wherever_it_dies(
    database: RedisDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: rows of the old contents stay for ever, or another program's keys go."""
    with closing(database.client()) as client:
        client.set("orders of others", "theirs")
        client.set("Orders2:1", "theirs")

    async def body() -> None:
        world = World(database)
        for k in range(3):
            world.feeds[0].write(1, (row(k, 1.5, "old"), 1))
        world.seal(2)
        await world.runtime().advance()
        for died in range(4):
            world.bump(died + 1)
            calls, real = count(), Server._run

            def dies(
                self: Server, *args: Any, calls: Any = calls, died: int = died, real: Any = real, **how: Any
            ) -> Any:
                answers = real(self, *args, **how)
                if next(calls) == died:
                    raise Unavailable("the power is gone")
                return answers

            with monkeypatch.context() as patch:
                patch.setattr(Server, "_run", dies)
                with pytest.raises(Unavailable):
                    await _forever(world.runtime().advance)
            world.write_round()
            await _forever(world.runtime().advance)
            world.check(world.upper)

    async def _forever(advance: Callable[[], Awaitable[bool]]) -> None:
        while await advance():
            pass

    asyncio.run(body())
    with closing(database.client()) as client:
        assert (client.get("orders of others"), client.get("Orders2:1")) == (b"theirs", b"theirs")


def test_what_slept_while_it_emptied_a_resource_deletes_no_row_of_its_successor(
    database: RedisDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a process wakes between two keys that it deletes, and deletes what was filled since."""
    world = World(database)
    world.write_round()
    asyncio.run(world.runtime(epoch=1).advance())
    world.bump(1)
    zombie, real = world.runtime(epoch=2), Server.keys

    def slept(self: Server, pattern: bytes) -> Iterator[list[bytes]]:
        monkeypatch.setattr(Server, "keys", real)
        asyncio.run(world.runtime(epoch=3).advance())
        yield from real(self, pattern)

    monkeypatch.setattr(Server, "keys", slept)
    with pytest.raises(Unavailable, match="taken over by another session; it is tried again"):
        asyncio.run(zombie.open())
    world.check(world.upper)
    with pytest.raises(FencedError):
        asyncio.run(zombie.open())
    world.check(world.upper)


@pytest.mark.parametrize("exact", [False, True])
def test_what_writes_while_a_resource_is_emptied_leaves_nothing_there(exact: bool, redis_server: RedisServer) -> None:
    """Damage: rows that were to be taken out are there for ever, and the statement said that they are gone."""
    asyncio.run(emptied_beside(RedisDatabase(redis_server, next(DATABASES), exact=exact)))


def test_keys_of_another_program_or_materialization_are_not_touched(hashes: RedisDatabase) -> None:
    """Damage: a name that is in use already is emptied, or filled by two tasks."""
    with closing(hashes.client()) as client:
        client.set("t:1", "theirs")
    driver = hashes.driver()

    async def body() -> None:
        with pytest.raises(
            DefinitionError, match=r"another program fills the keys t:\* .* as 't:1'; drop the materialization"
        ):
            await driver.apply(SPEC, {})
        with closing(hashes.client()) as client:
            client.delete("t:1")
        await driver.apply(SPEC, {})
        with pytest.raises(DefinitionError, match=r"materialization 'm' fills the keys t:\*; drop the materialization"):
            await driver.apply(replace(SPEC, name="other"), {})
        inner = replace(SPEC.bindings[0], resource="t:x")
        with pytest.raises(DefinitionError, match=r"materialization 'm'.* fills the keys t:\*"):
            await driver.apply(MaterializationSpec("other", (inner,)), {})
        with pytest.raises(DefinitionError, match="'t' and 't:x' would share keys"):
            await driver.validate(MaterializationSpec("m", (*SPEC.bindings, inner)))
        with pytest.raises(DefinitionError, match="keeps its own keys there"):
            await driver.validate(MaterializationSpec("m", (replace(inner, resource="strandline"),)))

    asyncio.run(body())


def test_a_namesake_of_another_location_touches_nothing(hashes: RedisDatabase) -> None:
    """Damage: two installations with a materialization of one name empty each other's keys in turn."""
    here, there, again = (
        replace(SPEC, bindings=(replace(SPEC.bindings[0], incarnation=data),))
        for data in ("m-1@l-a", "m-1@l-b", "m-2@l-a")
    )
    inner = replace(there, bindings=(replace(there.bindings[0], resource="t:x"),))
    driver = hashes.driver()

    async def body() -> None:
        await driver.apply(here, {})
        with pytest.raises(DefinitionError, match=r"materialization 'm' of another location fills the keys t:\*"):
            await driver.apply(there, {})
        with pytest.raises(DefinitionError, match=r"materialization 'm'.* fills the keys t:\*"):
            await driver.apply(inner, {})
        assert "emptied the keys t:*" in (await driver.apply(again, {})).action
        with closing(hashes.client()) as client:  # what the message advises
            client.hdel("strandline:owners", "t")
        assert (await driver.apply(there, {})).action == "took the keys t:*"

    asyncio.run(body())


def test_what_redis_lost_after_it_was_committed_is_noticed_and_a_backfill_mends_it(hashes: RedisDatabase) -> None:
    """Damage: a server that forgot its last second goes on with rows that were never true, and no one knows."""

    async def body() -> None:
        world = World(hashes)
        for _ in range(2):
            world.write_round()
            await world.runtime().advance()
        with closing(hashes.client()) as client:
            for field in client.hkeys(resources.PROGRESS):
                client.hset(resources.PROGRESS, field, "1")
        world.write_round()
        with pytest.raises(
            CorruptionError,
            match=r"has lost what .* are at transaction 1, and 2 were committed\).*: strandline backfill m --apply",
        ):
            await world.runtime().advance()
        for backfill in (1, 2):
            world.spec = replace(
                world.spec, bindings=tuple(replace(each, backfill=backfill) for each in world.spec.bindings)
            )
            world.write_round()
            runtime = world.runtime()
            while await runtime.advance():
                pass
            world.check(world.upper)

    asyncio.run(body())


def test_an_answer_that_was_lost_is_no_loss_of_rows(hashes: RedisDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a connection breaks behind a write, and an operator fills the resource again for nothing."""
    broken: list[str] = []

    async def body() -> None:
        world = World(hashes)
        world.write_round()
        runtime = world.runtime()
        await runtime.advance()
        answer = Pipeline.parse_response

        def lose(self: Any, connection: Any, name: str, **options: Any) -> Any:
            said = answer(self, connection, name, **options)
            if name == "_" and self.watching and not broken:  # what EXEC answers
                broken.append(name)
                raise BrokenConnection("reset by peer")
            return said

        monkeypatch.setattr(Pipeline, "parse_response", lose)
        world.write_round()
        with pytest.raises(Unavailable, match="does not answer: reset by peer"):
            while await runtime.advance():
                pass
        assert broken
        while await world.runtime().advance():
            pass
        world.check(world.upper)

    asyncio.run(body())


def test_a_split_that_has_noted_nothing_yet_is_not_taken_for_a_loss(hashes: RedisDatabase) -> None:
    """Damage: a task cannot be split."""

    async def body() -> None:
        whole = await opened(hashes)
        await whole.send(Flush())
        await whole.send(StartCommit(NOTHING))
        await whole.close()
        state = {"transactions": {SPEC.state_keys[0]: 1}, "range": str(WHOLE)}
        await (await opened(hashes, state, KeyRange(0, 9))).close()
        with closing(hashes.client()) as client:
            client.delete(resources.PROGRESS)
        with pytest.raises(CorruptionError):
            await opened(hashes, state, KeyRange(0, 9))

    asyncio.run(body())


def test_changes_and_unknown_types_are_refused_with_the_reason(hashes: RedisDatabase) -> None:
    """Damage: a materialization is made that can never be filled."""
    for binding, said in (
        (Binding("v", "t", ("k",), KEYED, delta=True), "leave out the option delta"),
        (Binding("v", "t", ("k",), Schema((Column("k", "map<int,int>"),))), "a map has no order"),
    ):
        spec = MaterializationSpec("m", (binding,))
        with pytest.raises(DefinitionError, match=said):
            require_all(spec, asyncio.run(hashes.driver().validate(spec)))


def test_a_server_that_drops_keys_by_itself_is_refused(hashes: RedisDatabase) -> None:
    """Damage: rows are missing as soon as the server's memory is full."""
    with closing(hashes.client()) as client:
        client.config_set("maxmemory", "1gb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(ConfigError, match="maxmemory-policy allkeys-lru.*change it there: maxmemory-policy no"):
                asyncio.run(hashes.driver().apply(SPEC, {}))
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "0")


def test_a_server_without_memory_keeps_the_task_waiting(hashes: RedisDatabase) -> None:
    """Damage: the task stops for good because of what an operator can mend."""

    async def body() -> None:
        session = await opened(hashes)
        await session.send(Flush())
        with closing(hashes.client()) as client:
            client.config_set("maxmemory", "1mb")
            try:
                with pytest.raises(Unavailable, match="raise its maxmemory"):
                    await session.send(stored(dict.fromkeys(EVERY) | {"k": 1}))
            finally:
                client.config_set("maxmemory", "0")
        await session.close()

    asyncio.run(body())


def test_a_key_that_holds_something_else_is_named(hashes: RedisDatabase) -> None:
    """Damage: another program's value is overwritten, or the task fails without saying why."""

    async def body() -> None:
        session = await opened(hashes)
        with closing(hashes.client()) as client:
            client.set("t:1", "a text")
        await session.send(Load(0, pa.table({"k": pa.array([1], pa.int64())})))

    with pytest.raises(DefinitionError, match="which another program wrote.*WRONGTYPE"):
        asyncio.run(body())


def test_a_password_is_in_no_message(hashes: RedisDatabase) -> None:
    """Damage: a password is in a log, a status or an error."""
    wrong = understood(
        "endpoint redis",
        RedisEndpoint,
        {"server": hashes.server.place, "password": "env:X"},
        resolve=lambda text: "hunter2" if text == "env:X" else text,
    )
    hashes.options = wrong
    with pytest.raises(ConfigError, match="does not allow it: invalid username-password") as raised:
        asyncio.run(hashes.driver().apply(SPEC, {}))
    chain = raised.value.__cause__
    for text in (repr(wrong), str(raised.value), repr(chain), repr(raised.value)):
        assert "hunter2" not in text
    assert PASSWORD not in repr(RedisEndpoint(server="r", password=Secret(PASSWORD)))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"server": "r", "user": "me"}, "'user' needs 'password'"),
        ({"server": "r", "tls_ca": "PEM"}, "'tls_ca' needs tls"),
        ({"server": "r:port"}, "it must be host:port"),
        ({"server": "me:hunter2@r:6379"}, "'server' is host:port, and names no one who logs in"),
        ({"server": "r", "format": "list"}, "it can be hash, json"),
    ],
)
def test_options_that_do_not_go_together_are_refused(texts: dict[str, str], said: str) -> None:
    """Damage: a materialization is made that can never reach its server."""
    with pytest.raises(DefinitionError, match=said):
        understood("endpoint redis", RedisEndpoint, texts)
