"""Scripts: a conversation with a replica as a text, which a run of it must repeat to the letter.

A line is one of these:

- ``a> Schedule totals``: a command over the connection ``a``, which its first command opens; see `Commands`.
- ``a< Refused Dance: …``: a response that has come over it; a long one goes on in lines that begin with a space.
  Responses come once the replica rests: before the next line that is no command.  Counters are not shown.
- ``* items 3: +a,5 -b,2``: what happens beside it, here that rows are written at time 3; see `Script.happen`.
- ``? totals at 3: a,1,5``: what a reader finds.
- An empty line, or one that begins with ``#``.

Nothing waits for a clock: time passes only where a script says so.  So each run of a script is the same.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from textwrap import dedent, wrap
from typing import Any, Final

import pyarrow as pa
from tests.instance.replica.lines import Commands, expanded, response

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.bench.environment import _Tides
from strandline.errors import Disconnected
from strandline.frontier import Frontier
from strandline.instance.carriers.buffer import QueueCarrier, pair
from strandline.instance.commands import Collection
from strandline.instance.connections import Equipment
from strandline.instance.protocol.codec import decode
from strandline.instance.replica import REPORT_S, Replica
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import StageRequest
from strandline.sources.question import Patience
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds
from strandline.testing.endpoints import Endpoint, KeyValueSession, MemoryDriver
from strandline.testing.lists.list_engine import ListEngine, listed, updates
from strandline.wiring.loop import RunningTask, side_by_side

ITEMS: Final = Schema((Column("grp", "string"), Column("amount", "bigint")))
TABLES: Final = ("items", "others")
LINE: Final = 100
"""A longer line goes on in the next one."""
STEPS_MAX: Final = 100_000


class StillClock:
    """A `Clock` that stands still until a script lets time pass; who sleeps waits for that."""

    def __init__(self) -> None:
        self._now_ms = 1_000
        self._sleeping: list[tuple[int, asyncio.Event]] = []

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return self._now_ms

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        due, woken = self._now_ms + round(seconds * 1000), asyncio.Event()
        if due > self._now_ms:
            self._sleeping.append((due, woken))
            await woken.wait()

    def let_pass(self, seconds: float) -> None:
        """Wake all that sleep for so long, or less."""
        self._now_ms += round(seconds * 1000)
        for due, woken in self._sleeping:
            if due <= self._now_ms:
                woken.set()
        self._sleeping = [(due, woken) for due, woken in self._sleeping if due > self._now_ms]


async def at_rest() -> None:
    """Return when nothing in this event loop can go on without this coroutine."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    for _ in range(STEPS_MAX):
        await asyncio.sleep(0)  # noqa: TID251 - no time passes
        if not ready:
            return
    raise AssertionError("it never rests")


class HeldEngine(ListEngine):
    """An engine whose peeks wait while ``go`` is not set."""

    def __init__(self, blob: MemoryBlob) -> None:
        super().__init__(blob)
        self.go = asyncio.Event()
        self.go.set()

    async def peek(self, old: Any, columns: Any, keys: pa.Table, limit: int | None = None) -> pa.Table | None:
        """See `Engine.peek`."""
        if keys.num_rows:
            await self.go.wait()
        return await super().peek(old, columns, keys, limit)


@dataclass
class End:
    """A controller's end of a connection."""

    carrier: QueueCarrier
    serving: asyncio.Task[None]
    closed: bool = False


@dataclass
class Script:
    """A replica, tables that it reads, and connections to it by name."""

    clock: StillClock = field(default_factory=StillClock)
    blob: MemoryBlob = field(default_factory=MemoryBlob)
    consensus: MemoryConsensus = field(default_factory=MemoryConsensus)
    endpoint: Endpoint = field(default_factory=Endpoint)
    processes: int = 0
    ends: dict[str, End] = field(default_factory=dict)
    lines: Commands = field(default_factory=lambda: Commands({}))

    async def open(self) -> None:
        """Make the tables, and begin the replica's process."""
        self.engine = HeldEngine(self.blob)
        self.client = self._client("writer")
        self.writers = {}
        for name in TABLES:
            self.lines.collections[name] = Collection(name, name, ITEMS)
            self.writers[name] = await self.client.writer(name, 1, schema=ITEMS.ddl)
        self.begin()

    def begin(self) -> None:
        """Begin a process of the replica; one that was there before is gone, as it was."""
        for name in list(self.ends):
            self.cut(name)
        self.processes += 1
        name = f"r{self.processes}"
        beside = partial(RunningTask, self.clock)
        equipment = Equipment(
            self._client(name),
            self.engine,
            _Tides(self.engine),  # type: ignore[arg-type]
            lambda *_: MemoryDriver(self.endpoint, KeyValueSession),  # type: ignore[arg-type]
            side_by_side,
            Patience(beside, 1.0),
            1,
        )
        self.replica = Replica(equipment, "here", name)

    def _client(self, name: str) -> PersistClient:
        return PersistClient(self.clock, CountingIds(name), self.blob, self.consensus, self.engine)

    def cut(self, name: str) -> None:
        """Cut a connection, and have nothing go on for it in the replica's process."""
        end = self.ends.pop(name)
        end.carrier.cut()

    async def close(self) -> None:
        """End everything."""
        serving = [end.serving for end in self.ends.values()]
        await self.replica.close()
        for each in serving:
            each.cancel()
        if serving:
            await asyncio.wait(serving)

    # ---- running -----------------------------------------------------------------------------------------------------

    async def run(self, text: str) -> str:
        """Return ``text`` with the responses and the contents that there are in truth."""
        found: list[str] = []
        for line in dedent(text).strip().splitlines():
            if re.match(r"\w+< | ", line):
                continue
            if re.match(r"\w+> ", line):
                found.append(line)
                await self.say(*line.split("> ", 1))
                continue
            found += await self.heard()
            match line[:1]:
                case "?":
                    found.append(await self.looked(line))
                case "*":
                    found.append(line)
                    await self.happen(line[2:])
                    found += await self.heard()
                case _:
                    found.append(line)
        return "\n".join([*found, *await self.heard()])

    async def heard(self) -> list[str]:
        """Return the responses that have come, once the replica rests."""
        await at_rest()
        lines = []
        for name, end in self.ends.items():
            try:
                while not end.closed and (frame := await end.carrier.receive(0)) is not None:
                    for shown in response(decode(frame)):
                        lines += wrap(f"{name}< {shown}", LINE, subsequent_indent="   ", break_on_hyphens=False)
            except Disconnected:
                end.closed = True
                lines.append(f"{name}< (closed)")
        return lines

    async def say(self, name: str, text: str) -> None:
        """Send a command over a connection, which is opened if there is none."""
        if name not in self.ends:
            ours, theirs = pair()
            self.ends[name] = End(ours, asyncio.get_running_loop().create_task(self.replica.serve(theirs)))
        for each in expanded(text):
            await self.ends[name].carrier.send(self.lines.frame(each))

    # ---- what happens beside it --------------------------------------------------------------------------------------

    async def happen(self, text: str) -> None:
        """Let something happen: see the branches."""
        match text.split():
            case ["a", "controller", "is", "silent"]:
                await asyncio.sleep(1.5 * REPORT_S)  # noqa: TID251 - what the replica looks at in between
            case [seconds, "s", "pass"]:
                self.clock.let_pass(float(seconds))
            case [name, "is", "cut"]:
                self.cut(name)
            case ["the", "replica", "restarts"]:
                self.begin()
            case ["peeks", "wait"]:
                self.engine.go.clear()
            case ["peeks", "go", "on"]:
                self.engine.go.set()
            case [name, time, *changes]:
                await self.write(name, int(time.rstrip(":")), changes)
            case _:
                raise AssertionError(text)

    async def write(self, name: str, time: int, changes: Iterable[str]) -> None:
        """Append changes to a table, such as ``+a,5`` and ``-b,1..9``, at its next time, and nothing until then."""
        writer, lower = self.writers[name], self.writers[name].state.upper.at or 0
        rows = []
        for each in changes:
            diff = {"+": 1, "-": -1}[each[0]]
            grp, amounts = each[1:].split(",")
            first, _, last = amounts.partition("..")
            numbers = range(int(first), int(last or first) + 1)
            rows += [{"grp": grp, "amount": number, TIME: time, DIFF: diff} for number in numbers]
        request = StageRequest(name, ITEMS, lower, time + 1, writer.stage_prefix(), inline_bytes_max=1 << 14)
        staged = [await self.engine.stage(updates(ITEMS, rows), request)] if rows else []
        await writer.compare_and_append(staged, Frontier(lower), Frontier(time + 1))

    async def looked(self, line: str) -> str:
        """Return ``? name at time: rows`` with the rows that are there: of a collection, or of a sink's table."""
        match line.split(":", maxsplit=1)[0].split():
            case ["?", name, "at", time]:
                rows = await self.read(name, int(time))
            case ["?", name]:
                rows = Counter(tuple(row.values()) for row in self.endpoint.rows(f"{name}-table"))
            case _:
                raise AssertionError(line)
        told = [",".join(map(str, row)) + (f" ×{n}" if n != 1 else "") for row, n in sorted(rows.items()) if n]
        return f"{line.split(':', maxsplit=1)[0]}: {'; '.join(told) or 'nothing'}"

    async def read(self, name: str, time: int) -> Counter[tuple[Any, ...]]:
        """Return the rows of a collection as another process finds them."""
        of = self.lines.collections[name]
        reader = await self._client("reader").reader(of.shard, of.schema, name)
        assert reader is not None, f"nothing has made {name}"
        found: Counter[tuple[Any, ...]] = Counter()
        for row in listed(await self.engine.read(await reader.snapshot(time, timeout_s=0))).rows:
            found[tuple(row[each] for each in of.schema.names)] += row[DIFF]
        return found


# ---- running scripts -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened() -> AsyncIterator[Script]:
    """Open the scene of a script."""
    script = Script()
    await script.open()
    try:
        yield script
    finally:
        await script.close()


def play(*texts: str) -> None:
    """Fail unless a script happens as it stands: ``texts`` are its acts."""

    async def body() -> None:
        async with asyncio.timeout(150), opened() as script:
            for text in texts:
                assert await script.run(text) == dedent(text).strip()

    asyncio.run(body())
