"""Push between processes: for authorised readers only, never blocking, and much sooner than polling."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import statistics
import struct
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import ProtocolViolation
from strandline.frontier import EMPTY, Frontier
from strandline.persist import notices
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import StageRequest
from strandline.persist.notices import (
    FRAME_BYTES_MAX,
    RETRY_S_MAX,
    RETRY_S_MIN,
    UNSENT_BYTES_MAX,
    Answer,
    Frames,
    Hello,
    Notice,
    PushClient,
    PushServer,
    Welcome,
    _Listener,
    frame,
    proof,
)
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, updates

CHILD = Path(__file__).parents[1] / "reading_child.py"
SCHEMA = Schema((Column("k", "string"),))
PUSH_AT_LEAST_TIMES_SOONER = 3
"""A hundred times on a machine that does nothing else; a busy one lets a process that is woken wait."""
LONG = 120
NOTICE = Notice("s", 7, b"diff")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Let a handshake take as long as a busy machine makes it."""
    monkeypatch.setattr(notices, "CONNECT_S_MAX", LONG)
    monkeypatch.setattr(notices, "HANDSHAKE_S_MAX", LONG)


async def serving(file, **counters):
    """Serve at ``file``."""
    server = PushServer(file, CountingIds("server"))
    await server.serve(lambda: counters)
    return server


def listening(file, clock=None):
    """A client of the server at ``file``."""
    return PushClient(file, clock or HandClock(), CountingIds("client"))


async def until(condition):
    """Let the loop run until ``condition`` holds."""
    async with asyncio.timeout(LONG):
        while not condition():
            await SystemClock().sleep(0.001)


# ---- one machine, one loop -------------------------------------------------------------------------------------------


def test_a_listener_gets_the_notices_and_the_servers_counters(tmp_path):
    """Damage: readers in other processes learn of a version when they next poll."""

    async def body():
        server = await serving(tmp_path / "push", retries=3)
        client = listening(tmp_path / "push")
        subscription = await client.subscribe("s")
        assert client.connected
        assert client.counters == {"retries": 3}
        server.publish(Notice("other", 1, b""))
        server.publish(NOTICE)
        assert await subscription.next(LONG) == NOTICE
        subscription.close()
        client.close()
        server.close()

    asyncio.run(body())


def test_the_address_is_its_users_own_and_goes_with_the_server(tmp_path):
    """Damage: any user of the machine reads the token, and may listen; or a dead port is dialled for ever."""

    async def body():
        file = tmp_path / "push"
        server = await serving(file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert server.token in file.read_text()
        later = await serving(file)  # it took the location over
        server.close()
        assert file.exists()
        assert (await listening(file).connect()) is True
        later.close()
        assert not file.exists()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(body())


def test_an_address_that_others_may_have_written_is_not_believed(tmp_path):
    """Damage: another user makes our readers connect to his server, which sends versions that never existed."""

    async def body():
        file = tmp_path / "push"
        server = await serving(file)
        file.chmod(0o620)
        client = listening(file)
        await client.subscribe("s")
        assert not client.connected
        server.close()

    asyncio.run(body())


@pytest.mark.parametrize("text", ["", "{", '{"port": 1}', '{"port": "x", "token": "t"}', '{"port": 1, "token": "t"}'])
def test_an_address_that_leads_nowhere_is_no_push_and_no_error(tmp_path, text):
    """Damage: a file left half-written by a crash makes a location unreadable."""

    async def body():
        file = tmp_path / "push"
        file.write_text(text)
        file.chmod(0o600)
        client = listening(file)
        subscription = await client.subscribe("s")
        assert await subscription.next(0) is None
        assert not client.connected

    asyncio.run(body())


def test_a_client_without_the_token_gets_no_notice(tmp_path):
    """Damage: any process of the machine receives the notices."""

    async def body():
        file = tmp_path / "push"
        server = await serving(file)
        right = json.loads(file.read_text())
        file.write_text(json.dumps({**right, "token": "guessed"}))
        client = listening(file)
        await client.subscribe("s")
        assert not client.connected
        assert server.listeners == set()
        server.close()

    asyncio.run(body())


def test_a_server_that_does_not_know_the_token_is_not_believed(tmp_path):
    """Damage: a process that took over a dead server's port sends our readers versions that never existed."""

    async def body():
        file = tmp_path / "push"
        server = await serving(file)
        answers = []

        async def imposter(reader, writer):
            writer.write(frame(Hello("n")))
            answers.append(Frames().feed(await reader.read(1 << 16))[0])
            writer.write(frame(Welcome(proof("guessed", "server", "n", answers[0].nonce), {})) + frame(NOTICE))
            await reader.read()
            writer.close()

        other = await asyncio.start_server(imposter, "127.0.0.1", 0)
        right = json.loads(file.read_text())
        file.write_text(json.dumps({**right, "port": other.sockets[0].getsockname()[1]}))
        client = listening(file)
        subscription = await client.subscribe("s")
        assert not client.connected
        assert await subscription.next(0) is None
        assert right["token"] not in str(answers)  # it never travels
        other.close()
        server.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", FRAME_BYTES_MAX + 1),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        frame(Hello("n")),
        frame(NOTICE),
        frame(Answer("n", b"")),
        frame(Answer("n", b"x" * 32)),
    ],
)
def test_a_client_that_sends_anything_but_the_right_answer_is_disconnected(tmp_path, said):
    """Damage: a stray client uses memory of the writer's process, or confuses it."""

    async def body():
        server = await serving(tmp_path / "push")
        port = json.loads((tmp_path / "push").read_text())["port"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        async with asyncio.timeout(LONG):
            try:
                heard = await reader.read()
            except ConnectionResetError:
                heard = b""
        assert all(isinstance(message, Hello) for message in Frames().feed(heard))
        assert server.listeners == set()
        writer.close()
        server.close()

    asyncio.run(body())


def test_frames_come_whole_however_they_are_cut():
    """Damage: a notice that TCP delivers in two pieces ends the connection."""
    messages = [Hello("n"), Answer("n", b"p"), Welcome(b"p", {"a": 1}), NOTICE]
    data = b"".join(map(frame, messages))
    for step in (1, 2, 3, 7, len(data)):
        frames = Frames()
        pieces = [data[at : at + step] for at in range(0, len(data), step)]
        assert [message for piece in pieces for message in frames.feed(piece)] == messages
    with pytest.raises(ProtocolViolation, match="at most"):
        Frames().feed(struct.pack(">I", FRAME_BYTES_MAX + 1))


def test_a_lost_connection_wakes_waiting_readers_and_is_retried_with_back_off(tmp_path):
    """Damage: after a restart of the writer readers get no notices for ever, or dial a dead port without pause."""

    async def body():
        file, clock = tmp_path / "push", HandClock()
        server = await serving(file)
        client = listening(file, clock)
        subscription = await client.subscribe("s")
        server.close()
        assert await subscription.next(LONG) is None  # at once: waiting readers fetch
        await until(lambda: not client.connected)
        tries = []
        dial = client._dial

        async def counted(address):
            tries.append(clock.now)
            return await dial(address)

        client._dial = counted
        file.write_text('{"port": 1, "token": "t"}')
        file.chmod(0o600)
        clock.now += 1
        while len(tries) < 6:
            clock.now += 100
            await subscription.next(0)
        pauses = [(after - before) / 1000 for before, after in pairwise(tries)]
        assert pauses == [RETRY_S_MIN, RETRY_S_MIN * 2, RETRY_S_MIN * 4, RETRY_S_MIN * 8, RETRY_S_MAX]
        file.unlink()
        again = await serving(file)
        clock.now += round(RETRY_S_MAX * 1000)
        assert await subscription.next(LONG) is None  # connected anew: waiting readers fetch
        again.publish(NOTICE)
        assert await subscription.next(LONG) == NOTICE
        client.close()
        again.close()

    asyncio.run(body())


def test_a_listener_that_does_not_read_gets_no_more_notices_and_slows_nothing_down(tmp_path):
    """Damage: one stopped reader makes the writer's memory grow until it is killed."""

    class Full:
        written = 0
        unsent = UNSENT_BYTES_MAX

        def get_write_buffer_size(self):
            return self.unsent

        def write(self, data):
            self.written += len(data)

    server = PushServer(tmp_path / "push", CountingIds())
    listener, transport = _Listener(server), Full()
    listener._transport = transport
    server.listeners.add(listener)
    server.publish(NOTICE)
    assert transport.written == len(frame(NOTICE))
    transport.unsent += 1
    server.publish(NOTICE)
    assert transport.written == len(frame(NOTICE))


# ---- two processes ---------------------------------------------------------------------------------------------------


class Writer:
    """This process: it writes the location in ``root`` and serves."""

    def __init__(self, root):
        self.root = root
        self.begun: dict[int, float] = {}

    async def open(self):
        """Open the shard for writing."""
        consensus = SQLiteConsensus(self.root / "consensus.db")
        self.server = PushServer(self.root / "push", SystemIds())
        await self.server.serve(dict)
        blob = FileBlob(self.root / "blob")
        self.engine = ListEngine(blob)
        client = PersistClient(SystemClock(), SystemIds(), blob, consensus, notifier=self.server)
        self.handle = await client.writer("s", 1, schema=SCHEMA.ddl)
        await self.handle.compare_and_append([], Frontier(0), Frontier(1))

    async def append(self, time_, *, last=False):
        """Append one row at ``time_``."""
        rows = updates(SCHEMA, [{"k": f"{time_:03}", "__time": time_}])
        request = StageRequest("s", SCHEMA, time_, time_ + 1, f"s/parts/{time_}/", inline_bytes_max=1 << 14)
        staged = await self.engine.stage(rows, request)
        new = EMPTY if last else Frontier(time_ + 1)
        self.begun[time_ + 1] = time.monotonic()
        await self.handle.compare_and_append([staged], Frontier(time_), new)


@pytest.mark.kill
def test_another_process_sees_each_version_many_times_sooner_by_push_than_by_polling(tmp_path, record_property):
    """Damage: other processes see a write a second later, or never."""

    async def write(child):
        writer = Writer(tmp_path)
        await writer.open()
        with child() as process:
            try:
                ready = [await asyncio.to_thread(process.stdout.readline) for _ in range(2)]
                assert sum("ready" in line for line in ready) == 2, ready
                for number in range(1, 9):
                    await SystemClock().sleep(0.35 + 0.07 * number)
                    await writer.append(number)
                await writer.append(9, last=True)
                said, _ = await asyncio.to_thread(process.communicate, timeout=LONG)
            finally:
                process.kill()
        writer.server.close()
        return writer.begun, [line.split() for line in ("".join(ready) + said).splitlines()]

    def child():
        command = [sys.executable, str(CHILD), str(tmp_path)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    begun, said = asyncio.run(write(child))
    rows = ",".join(f"{number:03}" for number in range(1, 10))
    assert {name: rest for name, what, *rest in said if what == "saw"} == {"push": [rows], "poll": [rows]}
    assert {name: int(rest[0]) > 0 for name, what, *rest in said if what == "notices"} == {"push": True, "poll": False}
    took = {}
    for name in ("push", "poll"):
        seen = [(int(upper), float(at)) for who, upper, *rest in said if who == name and upper.isdigit() for at in rest]
        # When a version was first seen: with the first upper that reaches it.
        took[name] = [
            min(at for upper, at in seen if upper >= version) - start
            for version, start in begun.items()
            if any(upper >= version for upper, _ in seen)
        ]
    ratio = statistics.median(took["poll"]) / statistics.median(took["push"])
    verdict = "pass" if ratio >= PUSH_AT_LEAST_TIMES_SOONER else "miss"
    record_property("FIGURE", f"push_discovery_ratio {ratio:.0f} >={PUSH_AT_LEAST_TIMES_SOONER} {verdict}")
    assert ratio >= PUSH_AT_LEAST_TIMES_SOONER, took


@pytest.mark.kill
def test_readers_of_a_killed_writer_go_on_by_polling(tmp_path):
    """Damage: a crash of the process that serves push stops all readers."""

    async def body():
        writer = Writer(tmp_path)
        await writer.open()
        serve = (
            "import asyncio, sys, pathlib\n"
            "from strandline.persist.notices import PushServer\n"
            "from strandline.store.clock import SystemClock, SystemIds\n"
            "async def main():\n"
            "    server = PushServer(pathlib.Path(sys.argv[1]), SystemIds())\n"
            "    await server.serve(dict)\n"
            "    print('serving', flush=True)\n"
            "    await SystemClock().sleep(600)\n"
            "asyncio.run(main())\n"
        )
        other = tmp_path / "other"
        command = [sys.executable, "-c", serve, str(other)]
        with await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert await asyncio.to_thread(process.stdout.readline) == "serving\n"
                push = PushClient(other, SystemClock(), SystemIds())
                consensus = SQLiteConsensus(tmp_path / "consensus.db")
                blob = FileBlob(tmp_path / "blob")
                client = PersistClient(SystemClock(), SystemIds(), blob, consensus, notifier=push)
                reader = await client.reader("s", SCHEMA, "orders")
                async with asyncio.TaskGroup() as together:
                    waiting = together.create_task(reader.wait_beyond(1))
                    await until(lambda: push.connected)
                    os.kill(process.pid, signal.SIGKILL)
                    await until(lambda: not push.connected)
                    await writer.append(1)
                assert waiting.result().upper == Frontier(2)
            finally:
                process.kill()
        writer.server.close()

    asyncio.run(body())
