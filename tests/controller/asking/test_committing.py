"""What other processes learn of an endpoint while a transaction is on its way there: over the real core, no Spark."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strandline.controller.asking import verification
from strandline.controller.asking.status import status, task_position, task_progress
from strandline.controller.asking.verification import COMMITTING_S, Verification, verify_endpoint
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.language.clauses import Bind
from strandline.controller.language.statements import CreateMaterialization, Drop
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Materialization, Table
from strandline.errors import AsOfError, Unavailable
from strandline.instance.tables import Change
from strandline.instance.tasks import records
from strandline.materialize.driver import Contents
from strandline.materialize.drivers.sql.driver import SqlSession
from strandline.materialize.protocol.fsm import QUIET_TIMES_MAX
from strandline.materialize.protocol.messages import Acknowledge, Request, Response, StartCommit
from strandline.materialize.protocol.task import Binding
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import CompareAndSet
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.endpoints import Endpoint, KeyValueSession, MemoryDriver, MemorySession, StagingSession
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import updates
from strandline.wiring.loop import RunningTask
from strandline.wiring.registry import driver

Look = Callable[[], Awaitable[None]]


class Clock(HandClock):
    """A clock; while a caller sleeps, something happens."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    async def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        self.meanwhile()
        await super().sleep(seconds)


class Place:
    """A location in memory with one table, whose endpoint is in memory too; or a SQLite file, where one is named.

    ``answers``: while a driver commits, what it has answered is heard.

    ``look`` is called once, before the endpoint does what a message of the kind ``at`` says, or its contents are read.
    """

    def __init__(
        self, session: type[MemorySession] = StagingSession, file: Path | None = None, splits: int = 1
    ) -> None:
        self.clock = Clock(1_000)
        self.endpoint = Endpoint()
        self.look: Look | None = None
        self.at: type[Any] = Acknowledge
        self.answers = False
        self._options = {"splits": str(splits)} | ({} if file is None else {"path": str(file)})
        place, self._processes, self._written = self, 0, 0

        class Watched(session):  # type: ignore[misc, valid-type]
            async def ask(self, message: Request) -> list[Response]:
                await place.looked(type(message))
                answers: list[Response] = await super().ask(message)
                return answers

        class Read(MemoryDriver):
            async def contents(self, task: str, binding: Binding) -> Contents:
                await place.looked(Contents)
                return await super().contents(task, binding)

        self._drivers: Any = partial(driver, self.clock)
        if file is None:
            self._drivers = lambda *_: Read(self.endpoint, Watched)
        self._blob, self.consensus = MemoryBlob(), MemoryConsensus()

    async def looked(self, at: type[Any]) -> None:
        """Look, once, if it is the moment."""
        if at is self.at and (look := self.look) is not None:
            self.look = None
            await look()

    async def open(self, mode: Mode = Mode.FULL) -> Core:
        """Open the location as the next process does."""
        self._processes += 1
        ids = CountingIds(f"p{self._processes}")
        assembly = list_assembly(self.clock, ids, self._blob, self.consensus, drivers=self._drivers)
        if self.answers:
            assembly = replace(assembly, beside=partial(RunningTask, self.clock))
        return await Core.open(assembly, Config(take_over=True), mode)

    async def filled(self) -> Core:
        """Return the one that writes, once the endpoint has the first row."""
        core = await self.open()
        await self.define(core)
        await self.grown(core)
        return core

    async def define(self, core: Core) -> None:
        """Define the table and the materialization."""
        await definitions.add(core, Table("orders", (("k", "bigint"), ("x", "string")), "shard-orders"))
        await self.materialize(core)

    async def materialize(self, core: Core) -> None:
        """Define the materialization."""
        made = CreateMaterialization("Out", "sqlite", self._options, (Bind("orders", "o", ("k",)),), False)
        await definitions.create_materialization(core, made)

    def forget(self, k: int) -> None:
        """Take a row out of the endpoint."""
        if "path" not in self._options:
            self.endpoint.tables["o"].pop(next(key for key, row in self.endpoint.tables["o"].items() if row["k"] == k))
            return
        with closing(sqlite3.connect(self._options["path"])) as inner:
            inner.execute('DELETE FROM "o" WHERE k = ?', (k,))
            inner.commit()

    async def insert(self, core: Core) -> None:
        """Insert a row."""
        self._written += 1
        opened = core.table("orders")
        row = {"k": self._written, "x": f"row {self._written}", "__time": 0}
        await core.commit([Change(opened, updates(opened.schema, [row]), False, 1)], None)
        self.clock.now += 1_000

    async def grown(self, core: Core) -> None:
        """Insert a row, and tick; nothing may have a problem."""
        await self.insert(core)
        await core.tick()
        assert core.health.problems() == {}

    def committed(self, core: Core) -> asyncio.Event:
        """Return what is set once the log has a transaction that the endpoint has not acknowledged."""
        written, found = self.consensus.compare_and_set, asyncio.Event()

        async def seen(request: CompareAndSet) -> Any:
            answer = await written(request)
            if request.key == item(core).log and await committing(core):
                found.set()
            return answer

        self.consensus.compare_and_set = seen  # type: ignore[method-assign]
        return found


def item(core: Core) -> Materialization:
    """Return the materialization."""
    return core.catalog.one("out", Materialization, "materialization")


async def committing(core: Core) -> bool:
    """Return whether its log has a transaction that its endpoint has not acknowledged, as far as that says."""
    return any(each.progress.committing for each in await records(item(core).log, core.client))


def test_an_endpoint_that_is_yet_to_commit_is_compared_at_its_own_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: `strandline verify` beside `strandline run` shows missing rows that arrive a moment later."""
    found: list[Verification] = []
    commit = SqlSession._commit

    async def body() -> None:
        place = Place(file=tmp_path / "out.sqlite")
        place.answers = True
        core = await place.filled()
        other = await place.open(Mode.INDEPENDENT)

        async def look() -> None:
            await committed.wait()
            found.append(await verify_endpoint(other, "out"))

        committed = place.committed(other)

        async def late(self: SqlSession, checkpoint: Any) -> None:
            await place.looked(Acknowledge)
            await commit(self, checkpoint)

        monkeypatch.setattr(SqlSession, "_commit", late)
        place.look = look
        await place.grown(core)
        found.append(await verify_endpoint(other, "out"))
        assert [each.ok for each in found] == [True, True], str(found[0])
        assert found[0].as_of < found[1].as_of

    asyncio.run(body())


def test_an_endpoint_that_is_yet_to_commit_for_the_first_time_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: `strandline verify` right after CREATE MATERIALIZATION compares with rows from before time began."""

    async def body() -> None:
        place = Place(file=tmp_path / "out.sqlite")
        place.answers = True
        core = await place.open()
        await place.define(core)
        committed = place.committed(core)

        async def fails(self: SqlSession, checkpoint: Any) -> None:
            await committed.wait()
            raise Unavailable("the endpoint is gone")

        with monkeypatch.context() as patched:
            patched.setattr(SqlSession, "_commit", fails)
            await place.insert(core)
            await core.tick()
        assert await committing(core)
        with pytest.raises(Unavailable, match="is being committed; ask again"):
            await verify_endpoint(await place.open(Mode.INDEPENDENT), "out")
        await place.grown(core)
        assert (await verify_endpoint(core, "out")).ok

    asyncio.run(body())


@pytest.mark.parametrize("endpoint", ["memory", "sqlite"])
def test_splits_of_which_one_had_nothing_to_commit_are_compared(endpoint: str, tmp_path: Path) -> None:
    """Damage: a task with splits is compared only if each transaction has rows for all of them."""

    async def body() -> None:
        file = tmp_path / "out.sqlite" if endpoint == "sqlite" else None
        place = Place(file=file, splits=2)
        core = await place.filled()
        other = await place.open(Mode.INDEPENDENT)
        for _ in range(4):
            await place.grown(core)
        assert len({each.position for each in await task_progress(core, item(core))}) == 2
        assert (await verify_endpoint(core, "out")).ok, "this process knows how far each split is"
        with pytest.raises(Unavailable, match="the splits of materialization 'Out' are at different times; ask again"):
            await verify_endpoint(other, "out")
        place.clock.now += QUIET_TIMES_MAX
        await core.tick()
        assert (await verify_endpoint(other, "out")).ok
        place.forget(4)
        assert (await verify_endpoint(core, "out")).missing == 1
        assert (await verify_endpoint(other, "out")).missing == 1

    asyncio.run(body())


def test_an_endpoint_that_lost_what_it_had_acknowledged_is_wrong(tmp_path: Path) -> None:
    """Damage: a database that was restored from a backup counts as one that is about to commit."""

    async def body() -> None:
        place = Place(file=tmp_path / "out.sqlite")
        core = await place.filled()
        held = "SELECT checkpoint FROM strandline_checkpoints"
        with closing(sqlite3.connect(tmp_path / "out.sqlite")) as inner:
            before = inner.execute(held).fetchone()
            await place.grown(core)
            assert inner.execute(held).fetchone() != before
            inner.execute("UPDATE strandline_checkpoints SET checkpoint = ?", before)
            inner.execute('DELETE FROM "o" WHERE k = 2')
            inner.commit()
        assert (await verify_endpoint(await place.open(Mode.INDEPENDENT), "out")).missing == 1

    asyncio.run(body())


def test_an_endpoint_without_a_checkpoint_is_not_compared_while_it_commits() -> None:
    """Damage: `strandline verify` beside `strandline run` shows missing rows that arrive a moment later."""

    async def body() -> None:
        place = Place()
        core = await place.filled()
        other = await place.open(Mode.INDEPENDENT)
        waited = []

        async def look() -> None:
            assert await committing(other)
            before = place.clock.now
            with pytest.raises(Unavailable, match="'o' cannot be .* of materialization 'Out' is being committed; ask"):
                await verify_endpoint(other, "out")
            waited.append(place.clock.now - before)

        place.look = look
        await place.grown(core)
        assert waited[0] >= COMMITTING_S * 1000
        assert (await verify_endpoint(other, "out")).ok

    asyncio.run(body())


def test_a_commit_that_ends_within_seconds_is_waited_for() -> None:
    """Damage: a script that verifies has to try again by itself, although nothing is wrong."""

    async def body() -> None:
        place = Place()
        core = await place.filled()
        other = await place.open(Mode.INDEPENDENT)
        found = []

        async def look() -> None:
            staged = dict(place.endpoint.tables["o"])
            arrives = {**staged, "[2]": {"k": 2, "x": "row 2"}}
            place.clock.meanwhile = lambda: place.endpoint.tables.update(o=arrives)
            found.append(await verify_endpoint(other, "out"))
            place.endpoint.tables["o"] = staged

        place.look = look
        await place.grown(core)
        assert found[0].ok
        assert place.clock.now < 1_000 * COMMITTING_S

    asyncio.run(body())


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_is_committed_while_the_endpoint_is_read_is_no_mistake(
    forgotten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: `strandline verify` shows extra rows, or fails, if a transaction ends while it reads a long table."""
    read = verification.updates
    asked: list[int] = []

    async def body() -> None:
        place = Place()
        core = await place.filled()
        other = await place.open(Mode.INDEPENDENT)

        async def look() -> None:
            await place.grown(core)

        async def updates_at(core: Core, reader: Any, time: int, hold: Any) -> Any:
            asked.append(time)
            if forgotten and len(asked) == 1:
                raise AsOfError("that time is no longer kept")
            return await read(core, reader, time, hold)

        monkeypatch.setattr(verification, "updates", updates_at)
        place.at, place.look = Contents, look
        assert (await verify_endpoint(other, "out")).ok
        assert len(asked) == 2
        assert asked[0] < asked[1]

    asyncio.run(body())


def test_half_a_transaction_is_not_compared() -> None:
    """Damage: `strandline verify` shows extra rows of a key-value store in the middle of each transaction."""

    async def body() -> None:
        place = Place(KeyValueSession)
        core = await place.filled()
        other = await place.open(Mode.INDEPENDENT)

        async def look() -> None:
            with pytest.raises(Unavailable, match="is being committed"):
                await verify_endpoint(other, "out")
            raise Unavailable("the endpoint is gone")

        place.at, place.look = StartCommit, look
        await place.insert(core)
        await core.tick()
        assert len(place.endpoint.rows("o")) == 2
        await core.tick()
        assert (await verify_endpoint(other, "out")).ok

    asyncio.run(body())


@pytest.mark.parametrize("session", [StagingSession, KeyValueSession])
def test_what_is_wrong_at_an_endpoint_at_rest_is_said_at_once(session: type[MemorySession]) -> None:
    """Damage: what a person changed by hand counts as a transaction that is being committed."""

    async def body() -> None:
        place = Place(session)
        core = await place.filled()
        await place.grown(core)
        other = await place.open(Mode.INDEPENDENT)
        place.endpoint.tables["o"].popitem()
        before = place.clock.now
        assert (await verify_endpoint(other, "out")).missing == 1
        assert place.clock.now == before

    asyncio.run(body())


@pytest.mark.parametrize("session", [StagingSession, KeyValueSession])
def test_an_endpoint_has_arrived_once_it_has_said_so(session: type[MemorySession]) -> None:
    """Damage: `strandline sync` in another process returns, and the rows are not there."""

    async def body() -> None:
        place = Place(session)
        core = await place.filled()
        other = await place.open(Mode.INDEPENDENT)
        before = await task_position(other, item(other))
        arrived = []

        async def look() -> None:
            upto = await other.hurry("out")
            at = await task_position(other, item(other))
            arrived.extend([await other.arrived("out", before + 1), await core.arrived("out", before + 1), at])
            assert upto > before

        place.look = look
        await place.grown(core)
        assert arrived == [None, None, before]
        upto = core.health.time
        assert upto is not None
        assert await other.arrived("out", upto) == await core.arrived("out", upto)
        assert (await status(other))["materializations"]["Out"]["position"] > upto

    asyncio.run(body())


@pytest.mark.parametrize("session", [StagingSession, KeyValueSession])
def test_a_process_that_dies_while_an_endpoint_commits_is_followed_by_one_that_says_how_far_it_is(
    session: type[MemorySession],
) -> None:
    """Damage: after a crash `status` and `verify` do not know an endpoint until something changes for it."""

    async def body() -> None:
        place = Place(session)
        core = await place.filled()
        other = await place.open(Mode.INDEPENDENT)
        before = await task_position(other, item(other))

        async def look() -> None:
            raise Unavailable("the endpoint is gone")

        place.look = look
        await place.insert(core)
        await core.tick()
        assert await committing(other)
        assert await task_position(other, item(other)) == before
        again = await place.open()
        await again.tick()
        assert not await committing(other)
        assert await task_position(other, item(other)) > before
        assert (await verify_endpoint(other, "out")).ok

    asyncio.run(body())


def test_one_that_was_dropped_says_nothing_of_its_namesake() -> None:
    """Damage: a materialization that was just created is compared, and differs, at a time at which another one was."""

    async def body() -> None:
        place = Place()
        core = await place.filled()
        await definitions.drop(core, Drop("materialization", "Out", if_exists=False))
        place.endpoint.tables.clear()
        await place.materialize(core)
        with pytest.raises(AsOfError, match="materialization 'Out' has committed nothing yet"):
            await verify_endpoint(core, "out")
        await place.grown(core)
        assert (await verify_endpoint(core, "out")).ok

    asyncio.run(body())


def test_a_first_transaction_that_is_being_committed_is_nothing_yet() -> None:
    """Damage: `strandline verify` right after CREATE MATERIALIZATION compares with rows from before time began."""

    async def body() -> None:
        place = Place()
        core = await place.open()
        other = None
        said = []

        async def look() -> None:  # the first Acknowledge, which follows nothing
            place.look = first

        async def first() -> None:
            nonlocal other
            other = await place.open(Mode.INDEPENDENT)
            with pytest.raises((AsOfError, Unavailable)) as refused:
                await verify_endpoint(other, "out")
            said.append(refused.value)

        place.look = look
        await place.define(core)
        await place.grown(core)
        assert isinstance(said[0], Unavailable)
        assert other is not None
        assert (await verify_endpoint(other, "out")).ok

    asyncio.run(body())
