"""The world of webhooks: one inbox that senders fill, and the ingesters that empty it.

The inbox, the reader and the ingestion are the real ones; sockets alone are left out.  Senders give requests to the
inbox of a process that lives, or of one that has been taken over and does not know it.  They learn what became of a
request, or not; with a key they send it again.  Any I/O may crash, be lost or come late, and each process has a clock
that runs, stands still or jumps (`ingested.py`).  Users: `webhook_users.py`.

What the inbox's shard ever held is written down at each of its commits.  Acknowledgements, bindings and the collection
are held against that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final

from webhook_place import Unheard

from laws.broken import require
from strandline.algebra.schema import Column, Schema
from strandline.frontier import Offsets, as_time
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Rows
from strandline.sources.ingest import PERIOD_MS, Ingestion
from strandline.sources.readers.webhook.inbox import Arrival, Full, Inbox, Outcome, Request, Reused, Taken, decode
from strandline.sources.readers.webhook.options import WebhookOptions
from strandline.sources.readers.webhook.reader import PARTITION, WebhookReader
from strandline.sources.reclock import Slice
from strandline.sources.remap import RemapShard
from strandline.sources.steps import OutputShard, Stalled
from strandline.store.unreliable import Choose
from strandline.testing.doubles import HandClock
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.lists.list_messages import ListMessages
from strandline.testing.upstreams.list_tables import Place
from worlds.ingested import REMAP, Incarnation, IngestedWorld, read_before

INBOX: Final = "inbox"
NUMBERS: Final = "numbers"
SCHEMA: Final = Schema((Column("n", "bigint"),))
OPTIONS: Final = WebhookOptions(listen="127.0.0.1:0", path="/numbers")
ROOM: Final = 600
"""So many bytes may wait: some eight messages."""
REMEMBER_MS: Final = 1 << 50
"""No clock of this world jumps so far that a key may be forgotten."""


class WebhookWorld(IngestedWorld):
    """One run.  See `IngestedWorld`.

    ``inboxes``: those that were opened, the newest last.  ``messages``: what was ever durable in the inbox's shard, by
    offset.  ``attempts``: how often each request was begun to be sent; ``kept`` and ``refused``: numbers that were.
    """

    schema = SCHEMA
    at_first = ("",)
    shards: ClassVar = {"": NUMBERS}

    def __init__(self, choose: Choose, *, calm_after: int | None = None, patience: int = 1) -> None:
        super().__init__(choose, calm_after, patience)
        self.inboxes: list[Inbox] = []
        self.messages: dict[int, int] = {}
        self.attempts: Counter[Request] = Counter()
        self.kept: set[int] = set()
        self.refused: set[int] = set()
        self.delivered: set[Place] = set()
        self._firsts: dict[str, int] = {}
        self._waiting: set[Arrival] = set()

    async def open(self, client: PersistClient, epoch: int, *, simulated: bool = True) -> tuple[Ingestion, Incarnation]:
        """Open the source, and let its inbox be sent to."""
        mine = Incarnation(self.tables)
        remap = await RemapShard.open(await client.records(REMAP, epoch), epoch)
        output = OutputShard("", SCHEMA, await client.writer(NUMBERS, epoch, schema=SCHEMA.ddl))
        mine.read = read_before(self.delivered, remap.remap, [output])
        shard = await client.records(INBOX, epoch)
        inbox = await Inbox.open(client.clock, shard, epoch, room=ROOM, remember_ms=REMEMBER_MS, name="s")
        reader = Reader(self, mine, inbox)
        mine.durable = {"": await self.durable("")}
        opened = await Ingestion.open(client.clock, ListEngine(client.blob), reader, remap, [output], name="s")
        if simulated:
            self.inboxes.append(inbox)
        return opened, mine

    def read_by(self, table: str, each: Slice) -> set[Place]:
        """Return what reading a slice delivers."""
        return {("", PARTITION, offset) for offset in range(each.lower[PARTITION], each.upper[PARTITION])}

    # ---- laws --------------------------------------------------------------------------------------------------------

    def begin(self, requests: Sequence[Request]) -> None:
        """Note that requests are about to be sent: from now on they may be there."""
        for request in set(requests):
            self.attempts[request] += 1
            self.refused.difference_update(numbers_of(request))

    def answered(self, requests: Sequence[Request], outcomes: Sequence[Outcome]) -> None:
        """Acknowledged: what is acknowledged is durable; once: a key's request is taken one time."""
        for request, outcome in zip(requests, outcomes, strict=True):
            numbers = numbers_of(request)
            match outcome:
                case Taken(first, count):
                    durable = [self.messages.get(offset) for offset in range(first, first + count)]
                    require("acknowledged", durable == numbers, f"{numbers} are said to be durable, {durable} are")
                    self.kept.update(numbers)
                case Reused(key):
                    require("once", key in self._firsts, f"key {key!r} is said to be used, and never came")
                    self.refused.update(numbers)
                case Full() if self.attempts[request] == 1:
                    self.refused.update(numbers)
            self.marks[type(outcome).__name__] += 1
            self.marks["again"] += isinstance(outcome, Taken) and outcome.again

    async def committed(self, shard: str) -> None:
        """Judge what was just committed to a shard."""
        await super().committed(shard)
        if shard == INBOX:
            await self._take_note()
        elif shard == NUMBERS:
            await self._hold()

    async def _take_note(self) -> None:
        """R4: a request leaves the inbox once it is durable in the collection; once: no offset and no key has two."""
        sums: Counter[bytes] = Counter()
        for record in await self.records_of(INBOX):
            sums[record.data] += record.diff
        require("once", set(sums.values()) <= {0, 1}, f"a record is in the inbox {set(sums.values())} times")
        waiting = {kept for data, n in sums.items() if n and isinstance(kept := decode(data), Arrival)}
        durable = self.offsets_at(await self.durable("") - 1)[PARTITION]
        for gone in self._waiting - waiting:
            require("R4", gone.end <= durable, f"{gone} is forgotten, and the collection has what is before {durable}")
        for arrival in sorted(waiting - self._waiting, key=lambda each: each.first):
            for offset, message in enumerate(arrival.messages, arrival.first):
                require("once", offset not in self.messages, f"offset {offset} is given twice")
                self.messages[offset] = number_of(message)
            if arrival.key:
                first = self._firsts.setdefault(arrival.key, arrival.first)
                require("once", first == arrival.first, f"key {arrival.key!r} is taken at {first} and {arrival.first}")
        self._waiting = waiting

    async def _hold(self) -> None:
        """R2, R3: at each readable time the collection holds the messages that are bound by then, each once."""
        state, remap = await self.state(NUMBERS), await self.state(REMAP)
        assert state is not None
        assert remap is not None
        upper = as_time(state.upper)
        require("R2", state.upper <= remap.upper, f"the collection is durable up to {upper}, {remap.upper} is bound")
        times = {t for b in self.bound for t in (b - 1, b) if as_time(state.since) <= t < upper}
        for time in sorted(times | ({upper - 1} if upper else set())):
            found, end = await self.rows(state, time), self.offsets_at(time)[PARTITION]
            require("R1", end <= len(self.messages), f"{time} is bound to {end}, {len(self.messages)} messages came")
            wanted = Counter((self.messages[offset],) for offset in range(end))
            require("R2", found == wanted, f"at {time} there are {dict(found)}; {dict(wanted)} are bound")

    async def catch_up(self) -> None:
        """L2: one that knows nothing gets all that is acknowledged, once, and nothing that was refused."""
        self.generation += 1
        client = self.observing()
        ingestion, _ = await self.open(client, self.generation, simulated=False)
        for _ in range(2):
            assert isinstance(client.clock, HandClock)
            client.clock.now += PERIOD_MS
            outcomes = [await ingestion.tick(as_time(ingestion.bound) + 1), await ingestion.catch_up()]
            stalled = [outcome for outcome in outcomes if isinstance(outcome, Stalled)]
            require("L2", not stalled, f"in the end the source stalls: {stalled}")
        state = await self.state(NUMBERS)
        found = await self.rows(state, as_time(state.upper) - 1)
        require("L2", found == Counter((n,) for n in self.messages.values()), f"in the end there are {dict(found)}")
        require("L2", self.kept <= {n for (n,) in found}, f"{self.kept} are acknowledged, there are {dict(found)}")
        require("once", max(found.values(), default=1) == 1, f"in the end some are there twice: {dict(found)}")
        there = self.refused & {n for (n,) in found}
        require("once", not there, f"{there} were refused, and are there")
        require("L2", not self._waiting, f"the inbox still keeps {self._waiting}")


class Reader(WebhookReader):
    """The reader, which listens nowhere and whose calls are judged."""

    def __init__(self, world: WebhookWorld, mine: Incarnation, inbox: Inbox) -> None:
        super().__init__(inbox, Unheard(inbox, OPTIONS), ListMessages(), SCHEMA, OPTIONS)
        self._world = world
        self._mine = mine

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """See `SourceReader.read`."""
        self._world.may_read(self._mine, slices, table)
        rows = await super().read(slices, table=table, locate=locate)
        self._world.was_read(self._mine, slices, table)
        for each in slices:
            self._world.delivered |= self._world.read_by(table, each)
        return rows

    async def commit(self, resume: Offsets) -> None:
        """See `SourceReader.commit`."""
        await self._world.may_forget(resume, self._mine.tables)
        await super().commit(resume)


def number_of(message: bytes) -> int:
    """Return the number in a message."""
    return int(message.removeprefix(b'{"n": ').removesuffix(b"}"))


def numbers_of(request: Request) -> list[int]:
    """Return the numbers in a request."""
    return [number_of(message) for message in request.messages]


def message_of(number: int) -> bytes:
    """Return a message with a number."""
    return b'{"n": %d}' % number
