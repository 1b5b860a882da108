"""A connector of another author is an endpoint; whatever it does, we get a named error and begin again."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import (
    ConfigError,
    DefinitionError,
    FencedError,
    InvalidUsage,
    ProtocolViolation,
    StrandlineError,
    Unavailable,
)
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol.messages import (
    DELETE,
    EXISTS,
    Acknowledge,
    Acknowledged,
    Flush,
    Flushed,
    Load,
    Loaded,
    Open,
    Opened,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, WHOLE, Binding, MaterializationSpec
from strandline.materialize.runtime import Task
from strandline.materialize.wire.connector import ConnectorDriver
from strandline.materialize.wire.kind import KIND
from strandline.materialize.wire.options import ConnectorOptions
from strandline.options import schema, understood
from strandline.store.memory import MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.feed import ListFeed
from strandline.wiring.loop import RunningTask

HERE = Path(__file__).parent
COLUMNS = Schema((Column("k", "int"), Column("v", "string")))
SPEC = MaterializationSpec("m", (Binding("c", "T", ("k",), COLUMNS),))
TYPES = {"k": pa.int32(), "v": pa.string()}
PATIENCE_TURNS = 12_000


class World:
    """A connector that may fail once, and a task that materializes one collection into it."""

    def __init__(self, directory: Path, how: str = "well", silence: str = "120s", **options: str) -> None:
        self.directory = directory
        self.feed = ListFeed("c", COLUMNS, TYPES)
        self.consensus = MemoryConsensus()
        self.spec = SPEC
        texts = {
            "command": f"{sys.executable} -I -S {HERE / 'fake_connector.py'} '{how}' {directory}",
            "codec": "json",
            "silence": silence,
            **options,
        }
        self.options = understood("connector", ConnectorOptions, texts)
        self._tasks = 0

    def driver(self) -> ConnectorDriver:
        """Return one more driver."""
        return KIND.open(self.options, HandClock())  # type: ignore[return-value]

    def task(self) -> Task:
        """Return one more runtime."""
        self._tasks += 1
        clock = HandClock()
        log = RecoveryLog(clock, CountingIds(f"o{self._tasks}"), self.consensus, "log/m", 1)
        return Task(self.spec, self.driver(), log, [self.feed], beside=partial(RunningTask, clock))

    def write(self, upper: int, *changes: tuple[int, str, int]) -> None:
        """Write changes, and seal."""
        self.feed.write(upper - 1, *(({"k": k, "v": v}, diff) for k, v, diff in changes))
        from strandline.frontier import Frontier

        self.feed.seal(Frontier(upper))

    @property
    def rows(self) -> dict[int, str]:
        """The rows that the connector has committed."""
        file = self.directory / "rows"
        return {each["k"]: each["v"] for each in json.loads(file.read_text()).values()} if file.exists() else {}

    def seen(self, name: str) -> list[dict[str, Any]]:
        """Return what the connector was sent."""
        lines = (self.directory / "seen").read_text().splitlines()
        return [each[name] for each in map(json.loads, lines) if name in each]

    @property
    def failed(self) -> bool:
        """Whether the connector has failed as it is to, or is about to."""
        return (self.directory / "failed").exists()

    @property
    def pids(self) -> list[int]:
        """The processes that there were."""
        return [int(each) for each in (self.directory / "pids").read_text().split()]


async def fill(world: World) -> Task:
    """Commit two transactions: rows 1 and 2, then 2 changed and 1 deleted."""
    task = world.task()
    world.write(3, (1, "a", 1), (2, "b", 1))
    await task.advance()
    world.write(5, (2, "b", -1), (2, "B", 1), (1, "a", -1))
    await task.advance()
    return task


async def recovered(world: World) -> None:
    """Bring the task to the end of its collection, whatever was committed before."""
    task = world.task()
    while await task.advance():
        pass
    await task.close()
    assert world.rows == {2: "B"}


def gone(pid: int) -> bool:
    """Tell whether a process has ended, waiting for a while."""
    for _ in range(PATIENCE_TURNS):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        threading.Event().wait(0.01)
    return False


def test_a_connector_of_another_author_is_an_endpoint(tmp_path: Path) -> None:
    """Damage: Flow's connectors cannot be used."""
    world = World(tmp_path)

    async def run() -> None:
        task = await fill(world)
        world.write(7, (3, "c", 1))
        await task.advance()
        assert world.rows == {2: "B", 3: "c"}
        await task.close()
        world.write(9, (3, "c", -1))
        await recovered(world)

    asyncio.run(run())
    assert all(gone(pid) for pid in world.pids)
    assert len(world.pids) == 2, "validating, applying and opening take one process"


def test_what_a_connector_is_sent_is_complete(tmp_path: Path) -> None:
    """Damage: an unmodified connector refuses us, or stores rows under other keys."""
    world = World(tmp_path)

    async def run() -> None:
        await (await fill(world)).close()

    asyncio.run(run())
    (opened,) = world.seen("open")
    assert opened["state"] == {}
    assert opened["range"] == {"keyEnd": 2**32 - 1, "rClockEnd": 2**32 - 1}
    first, second = world.seen("apply")
    assert "lastMaterialization" not in first
    assert second["lastMaterialization"]["bindings"] == second["materialization"]["bindings"]
    assert second["lastVersion"] == second["version"] == opened["version"]
    stores = world.seen("store")
    assert [(each["key"], each["values"], each.get("exists"), each.get("delete")) for each in stores] == [
        ([1], ["a"], None, None),
        ([2], ["b"], None, None),
        ([1], ["a"], True, True),
        ([2], ["B"], True, None),
    ]
    assert stores[0]["doc"] == {"k": 1, "v": "a"}
    assert all(each["keyPacked"] and each["valuesPacked"] for each in stores)
    assert all(each["keyPacked"] for each in world.seen("load"))


def test_a_backfill_is_seen_by_the_connector(tmp_path: Path) -> None:
    """Damage: rows of before a backfill stay at the endpoint."""
    world = World(tmp_path)

    async def run() -> None:
        await (await fill(world)).close()
        world.spec = MaterializationSpec("m", (Binding("c", "T", ("k",), COLUMNS, backfill=1),))
        task = world.task()
        await task.open()
        assert task.status.applied == ("created T",)
        while await task.advance():
            pass
        await task.close()
        assert world.rows == {2: "B"}

    asyncio.run(run())


FAILURES: list[tuple[str, type[StrandlineError], str]] = [
    ("silent when asked", Unavailable, "was silent for 1 s when Spec was sent; it was stopped"),
    ("silent when opened", Unavailable, "was silent for 1 s when Open was sent"),
    ("silent when flushed", Unavailable, "was silent for 1 s when Flush was sent"),
    ("another version", ProtocolViolation, "speaks version 1 of the protocol; 3032023 is needed"),
    ("answers something else", ProtocolViolation, "applied came when Validate was sent"),
    ("dies inside a message", ProtocolViolation, "the stream ends inside the frame at byte .*: disk full"),
    ("not json", ProtocolViolation, "the frame at byte .* is damaged"),
    ("two messages at once", ProtocolViolation, "both flushed and started_commit"),
    ("flushed unasked", ProtocolViolation, "Flushed came when a transaction is open"),
    (
        "dies when it commits",
        Unavailable,
        r"ended \(status 1\) when StartCommit was sent: cannot log in: hunter2 is wrong",
    ),
]


@pytest.mark.parametrize(("how", "error", "text"), FAILURES, ids=[how for how, *_ in FAILURES])
def test_each_failure_has_a_name_and_the_next_session_is_a_clean_one(
    tmp_path: Path, how: str, error: type[StrandlineError], text: str
) -> None:
    """Damage: a task hangs, or stops for ever, because a connector failed once; or it loses rows."""

    def begun() -> World:
        return World(tmp_path, how, "1s" if "silent" in how else "120s")

    async def fails(world: World) -> None:
        task = await fill(world)
        world.write(6, (2, "B", -1), (2, "B", 1), (3, "c", 1))
        await task.advance()
        raise AssertionError("it has not failed")

    async def run() -> None:
        world = begun()
        with pytest.raises(error, match=text) as raised:
            while True:
                try:
                    await fails(world)
                except Unavailable:
                    if world.failed:
                        raise
                    world = begun()  # a busy machine held the connector up before it could fail
        assert not isinstance(raised.value, FencedError)
        world.options = understood(
            "connector",
            ConnectorOptions,
            {"command": world.options.command, "codec": "json", "silence": "120s"},
        )
        world.feed = ListFeed("c", COLUMNS, TYPES)
        world.write(3, (1, "a", 1), (2, "b", 1))
        world.write(5, (2, "b", -1), (2, "B", 1), (1, "a", -1))
        await recovered(world)

    asyncio.run(run())
    assert all(gone(pid) for pid in begun().pids)


def test_a_connector_that_is_fenced_off_says_so(tmp_path: Path) -> None:
    """Damage: two runtimes take the endpoint from each other for ever."""
    world = World(tmp_path, "fenced")

    async def run() -> None:
        with pytest.raises(FencedError, match="opening: this instance was Fenced Off by another"):
            await fill(world)

    asyncio.run(run())


def test_a_namesake_of_another_location_is_refused(tmp_path: Path) -> None:
    """Damage: two installations with a materialization of one name write to one table in turn."""
    world = World(tmp_path, "holds rows of elsewhere")
    world.spec = replace(SPEC, bindings=(replace(SPEC.bindings[0], incarnation="m-1@l-a"),))

    async def run() -> None:
        with pytest.raises(DefinitionError, match="materialization '.*' of another location fills 't'; drop"):
            await fill(world)

    asyncio.run(run())


def test_a_connector_that_reads_nothing_is_stopped(tmp_path: Path) -> None:
    """Damage: a task hangs for ever in the middle of a transaction."""

    async def advance() -> None:
        world = World(tmp_path, "does not read", "0.5s")
        world.write(3, *((k, "x" * 1_000, 1) for k in range(5_000)))
        try:
            await world.task().advance()
        except Unavailable:
            if world.failed:
                raise
            await advance()  # a busy machine held the connector up before it came to that

    async def run() -> None:
        with pytest.raises(Unavailable, match=r"was silent for 0.5 s when Store was sent"):
            await advance()

    asyncio.run(run())


def test_a_flood_on_stderr_hinders_nothing(tmp_path: Path) -> None:
    """Damage: a connector that logs much stops in the middle of a write, and we with it."""
    world = World(tmp_path, "floods stderr")

    async def run() -> None:
        await (await fill(world)).close()

    asyncio.run(run())
    assert world.rows == {2: "B"}


def test_acknowledged_is_waited_for(tmp_path: Path) -> None:
    """Damage: a connector that commits by its own schedule is stopped again and again."""
    world = World(tmp_path, "slow to acknowledge", "3s")

    async def run() -> None:
        await (await fill(world)).close()

    asyncio.run(run())
    assert world.rows == {2: "B"}
    assert len(world.pids) == 1


def test_both_pipes_may_be_full(tmp_path: Path) -> None:
    """Damage: we wait for the connector to read, and it waits for us to read."""
    world = World(tmp_path, "loads much")
    keys = pa.table({"k": pa.array(range(3_000), pa.int32())})

    async def run() -> None:
        session = await world.driver().open()
        await session.send(Open(SPEC, "1", WHOLE, {}))
        assert isinstance(await session.receive(), Opened)
        await session.send(Acknowledge())
        assert isinstance(await session.receive(), Acknowledged)
        async with asyncio.timeout(150):
            await session.send(Load(0, keys))
            await session.send(Flush())
        got = 0
        while isinstance(answer := await session.receive(), Loaded):
            got += len(answer.rows)
        assert isinstance(answer, Flushed)
        assert got == 3_000
        await session.close()

    asyncio.run(run())


def test_a_receiver_may_wait_from_the_beginning_and_be_cancelled(tmp_path: Path) -> None:
    """Damage: an answer is lost with the call that waited for it; or the answer to Validate is taken for Opened."""
    world = World(tmp_path)

    async def run() -> None:
        session = await world.driver().open()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(session.receive())
            await session.send(Open(SPEC, "1", WHOLE, {}))
        assert waiting.result() == Opened(None)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await session.receive()
        await session.send(Acknowledge())
        assert isinstance(await session.receive(), Acknowledged)
        await session.send(Flush())
        assert isinstance(await session.receive(), Flushed)
        rows = pa.table({"k": pa.array([1], pa.int32()), "v": ["a"], EXISTS: [False], DELETE: [False]})
        await session.send(Store(0, rows))
        await session.send(StartCommit(NOTHING))
        answer = await session.receive()
        assert isinstance(answer, StartedCommit)
        assert answer.state is not None
        assert list(answer.state.updated) == ["connector"]
        await session.close()
        await session.close()

    asyncio.run(run())


def test_what_a_connector_cannot_do_is_said(tmp_path: Path) -> None:
    """Damage: a preview or a verification of a connector says that all is well, and has not looked."""
    driver = World(tmp_path).driver()

    async def run() -> None:
        with pytest.raises(InvalidUsage, match="cannot say what Apply would do"):
            await driver.preview(SPEC)
        with pytest.raises(InvalidUsage, match="cannot read 'T' back"):
            await driver.contents("m", SPEC.bindings[0])
        assert (await driver.spec()).documentation_url == "u"
        assert await driver.explain(SPEC) == (
            "'T': 'k' is stored, FIELD_OPTIONAL",
            "'T': 'v' is stored, FIELD_OPTIONAL",
            "'T': 'flow_document' is stored, LOCATION_REQUIRED",
        )

    asyncio.run(run())


# --- processes --------------------------------------------------------------------------------------------------------
def test_a_program_that_cannot_be_started_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    """Damage: a task with a misspelt command tries again for ever, and says nothing."""
    world = World(tmp_path, command="/no/such/program --x")

    async def run() -> None:
        with pytest.raises(ConfigError, match="'/no/such/program' cannot be started: No such file"):
            await world.driver().validate(SPEC)

    asyncio.run(run())


def test_closing_a_session_ends_its_process_even_if_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a connector that does not end commits beside its successor."""
    monkeypatch.setattr("strandline.materialize.wire.process.child.END_S", 0.2)
    world = World(tmp_path, "stays")

    async def run() -> None:
        await (await fill(world)).close()
        assert all(gone(pid) for pid in world.pids)

    asyncio.run(run())


@pytest.mark.kill
def test_no_connector_outlives_us(tmp_path: Path) -> None:
    """Damage: after kill -9 a connector, or what it started, goes on writing to the endpoint."""
    program = f"""
import asyncio, sys
from pathlib import Path
from tests.materialize.wire.test_connector import SPEC, World
async def run():
    world = World(Path({str(tmp_path)!r}), "has a child")
    await world.driver().validate(SPEC)
    print("ready", flush=True)
    sys.stdin.read()
asyncio.run(run())
"""
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parents[2] / 'src'}:{HERE.parents[2]}"}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == b"ready\n"
        pids = World(tmp_path).pids
        assert len(pids) == 2
        ours.send_signal(signal.SIGKILL)
    assert all(gone(pid) for pid in pids)


def test_a_connector_that_ends_takes_its_children_with_it(tmp_path: Path) -> None:
    """Damage: processes are left behind, one more for each session."""
    world = World(tmp_path, "has a child")

    async def run() -> None:
        await (await fill(world)).close()

    asyncio.run(run())
    assert all(gone(pid) for pid in world.pids)


def test_an_idle_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a process stays for each task that was only validated."""
    monkeypatch.setattr("strandline.materialize.wire.connector.IDLE_S", 0.1)
    world = World(tmp_path)

    async def run() -> None:
        driver = world.driver()
        await driver.validate(SPEC)
        await HandlessWait(world.pids[0]).ended()
        await driver.validate(SPEC)

    asyncio.run(run())
    assert len(world.pids) == 2


def test_an_idle_process_that_was_killed_is_not_asked(tmp_path: Path) -> None:
    """Damage: a definition is refused, or a task fails, as a process was killed that nothing needed then."""
    world = World(tmp_path)

    async def run() -> None:
        driver = world.driver()
        await driver.validate(SPEC)
        idle = driver._idle
        assert idle is not None
        os.kill(world.pids[0], signal.SIGKILL)
        while not idle._pipes.ended:
            await asyncio.get_running_loop().run_in_executor(None, threading.Event().wait, 0.01)
        await driver.validate(SPEC)
        driver._end_idle()

    asyncio.run(run())
    assert len(world.pids) == 2


class HandlessWait:
    """Waits for a process to end while the event loop goes on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    async def ended(self) -> None:
        """Return when it has."""
        assert await asyncio.get_running_loop().run_in_executor(None, gone, self._pid)


# --- secrets ----------------------------------------------------------------------------------------------------------
def secretive(directory: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> World:
    """Return a world whose connector is configured with a password."""
    monkeypatch.setenv("CONNECTOR_PASSWORD", "hunter2")
    monkeypatch.setenv("OTHER_PASSWORD", "swordfish")
    config = '{"address": "db", "password": "env:CONNECTOR_PASSWORD", "api_key": "k-123"}'
    return World(directory, how, config=config)


def test_a_secret_reaches_the_connector_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a password is in the list of processes, in the recovery log, or in a message."""
    world = secretive(tmp_path, monkeypatch, "well")
    texts: list[str] = []

    async def run() -> None:
        driver = world.driver()
        await driver.apply(SPEC, {})
        task = await fill(world)
        for pid in world.pids:
            for guarded in (pid, int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])):
                texts.extend(Path(f"/proc/{guarded}/{name}").read_bytes().decode() for name in ("cmdline", "environ"))
        texts.extend((repr(driver), repr(world.options), str(world.options), repr(driver.__dict__)))
        await task.close()

    asyncio.run(run())
    texts.append(repr(world.consensus.__dict__))
    assert world.seen("spec")[0]["config"] == {"address": "db", "password": "hunter2", "api_key": "k-123"}
    for secret in ("hunter2", "swordfish", "k-123"):
        assert not [text for text in texts if secret in text]


def test_a_secret_is_left_out_of_the_reason_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a connector that quotes its password puts it into our logs."""
    world = secretive(tmp_path, monkeypatch, "dies when it commits")

    async def run() -> None:
        with pytest.raises(Unavailable, match="cannot log in: ••• is wrong"):
            await fill(world)

    asyncio.run(run())


def test_a_connector_gets_the_variables_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a connector reads the passwords of other endpoints; or cannot be given what it needs."""
    monkeypatch.setenv("GIVEN", "yes")
    monkeypatch.setenv("KEPT", "no")
    variables = World(tmp_path, environment="GIVEN, ABSENT").options.variables()
    assert variables["GIVEN"] == "yes"
    assert variables["FLOW_RUNTIME_CODEC"] == "json"
    assert not {"KEPT", "ABSENT"} & variables.keys()


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("codec", "xml", "proto, json"),
        ("resource", "[]", "'resource' must be a JSON object"),
        ("resource", "{", "'resource' is not JSON"),
        ("command", "'x", "cannot be split"),
        ("config", "{", "'config' is not JSON"),
        ("config", "[1]", "'config' must be a JSON object"),
        ("config", '{"password":"env:NOT_SET_ANYWHERE"}', "NOT_SET_ANYWHERE"),
    ],
)
def test_wrong_options_are_refused_by_name(tmp_path: Path, option: str, text: str, said: str) -> None:
    """Damage: a typing error is found by the connector, in words that do not lead back to it."""
    with pytest.raises(StrandlineError, match=re.escape(said)):
        World(tmp_path, **{option: text}).driver()


def test_the_options_are_those_of_the_documentation() -> None:
    """Damage: CREATE MATERIALIZATION takes other options than its page says."""
    assert list(schema(ConnectorOptions)["properties"]) == [
        "command",
        "codec",
        "config",
        "resource",
        "environment",
        "silence",
    ]
    assert KIND.name == "connector"
