"""The inbox of a webhook: requests that are durable here and perhaps not yet in the collection.

A sender cannot be asked again.  So a request is first made durable in the source's record shard, whole, and then
acknowledged; from there it is read by range like any other upstream, and once the collection holds it, `forget`
withdraws it from the shard.  A message's offset is its number, from 0, in the order of the shard.

The shard holds three kinds of records; each is there until it is withdrawn.  An `Arrival` is a request with its
messages, until it is durable in the collection.  A `Seen` is the key of a forgotten request, until the key is forgotten
too.  A `Next` is the offset of the next message, once requests were forgotten: offsets never go back.

*Keys.*  Requests with one key are one message set: the second is answered as the first was, also after a crash, also
when both are in one batch.  A key that comes again with other content is refused.  The newest `KEYS_MAX` keys are
remembered, for as long after they came as the source says.

No call of `Inbox` spawns a task or looks at a socket, so that a simulation can run it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import msgspec
import xxhash

from strandline.errors import CorruptionError, SourceError, StoreError, StrandlineError, Unavailable
from strandline.frontier import Frontier, as_time
from strandline.persist.handles.records import Record, RecordShard
from strandline.persist.handles.write import fenced
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ANEW
from strandline.store.clock import Clock

MESSAGE_BYTES: Final = 64
"""What a message takes besides its bytes."""


class Arrival(msgspec.Struct, frozen=True, array_like=True, tag="arrival"):
    """A request: the offset of its first message, when it came, its key (or none), chosen headers, its messages."""

    first: int
    at_ms: int
    key: str
    headers: tuple[tuple[str, bytes], ...]
    messages: tuple[bytes, ...]

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.first + len(self.messages)


class Seen(msgspec.Struct, frozen=True, array_like=True, tag="seen"):
    """A key: where the messages of its request began, their number, when it came, and a hash of its content."""

    key: str
    first: int
    count: int
    at_ms: int
    content: int


class Next(msgspec.Struct, frozen=True, array_like=True, tag="next"):
    """The offset of the next message if none waits."""

    offset: int


Kept: TypeAlias = Arrival | Seen | Next

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Kept)


def encode(kept: Kept) -> bytes:
    """Return the data of a record."""
    return _encoder.encode(kept)


def decode(data: bytes) -> Kept:
    """Return what a record's data say.  Raises ``msgspec.MsgspecError``."""
    found: Kept = _decoder.decode(data)
    return found


def size(messages: Sequence[bytes]) -> int:
    """Return how many bytes messages take."""
    return sum(map(len, messages)) + MESSAGE_BYTES * len(messages)


def content(messages: Sequence[bytes]) -> int:
    """Return a hash of messages, and of where they are cut."""
    found = xxhash.xxh64()
    for each in messages:
        found.update(len(each).to_bytes(8, "big"))
        found.update(each)
    return found.intdigest() >> 1


def seen_of(arrival: Arrival) -> Seen:
    """Return what is remembered of a request."""
    return Seen(arrival.key, arrival.first, len(arrival.messages), arrival.at_ms, content(arrival.messages))


HOLD: Final = "webhook"
"""The critical reader by which the shard's past is released."""
APART: Final = Problem(
    "webhook-shards-apart",
    "messages {lower} to {upper} are asked for; the webhook's record shard {shard!r} holds {first} to {next}: it and "
    "the source's shards are of different moments",
    Stopped.SOURCE,
    (Way("restore the location's stores to one moment"), ANEW),
)
KEYS_MAX: Final = 100_000
RELEASE_EVERY: Final = 16
"""The shard's past is released when so many more appends can be added up."""
LOOK_MS: Final = 60_000
"""Keys that are too old are looked for as often."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a sender wants to be kept: at least one message."""

    messages: tuple[bytes, ...]
    key: str = ""
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """The request is durable: the offset of its first message, and their number; ``again``: it was before."""

    first: int
    count: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Full:
    """There is no room: so many bytes wait to be ingested."""

    waiting: int


@dataclass(frozen=True, slots=True)
class Reused:
    """The key belongs to a request with other content."""

    key: str


Outcome: TypeAlias = Taken | Full | Reused


class _Change(NamedTuple):
    withdrawn: Sequence[Kept]
    added: Sequence[Kept]


class Inbox:
    """The inbox of one source, as last seen.  Opened by `open`.

    ``room``: how many bytes may wait.  ``remember_ms``: how long a key is remembered.
    """

    def __init__(self, clock: Clock, shard: RecordShard, epoch: int, *, room: int, remember_ms: int, name: str) -> None:
        self._name = name
        self._clock = clock
        self._shard = shard
        self._epoch = epoch
        self._room = room
        self._remember_ms = remember_ms
        self._in_doubt = False
        self._released = 0
        self._looked_ms = clock.now_ms()
        self._reset()

    def _reset(self) -> None:
        self._arrivals: list[Arrival] = []  # by offset
        self._seen: dict[str, Seen] = {}  # the keys of all that is remembered, also of arrivals
        self._mark: Next | None = None
        self._upper = 0  # the shard's, of what is known here
        self.next = 0
        """The offset of the next message: what is before it is durable here, or was."""
        self.waiting = 0
        """How many bytes wait to be ingested."""

    @classmethod
    async def open(
        cls, clock: Clock, shard: RecordShard, epoch: int, *, room: int, remember_ms: int, name: str
    ) -> Inbox:
        """Return the inbox kept in ``shard`` (opened under ``epoch``) of the source ``name``."""
        opened = cls(clock, shard, epoch, room=room, remember_ms=remember_ms, name=name)
        await opened.refresh()
        return opened

    async def refresh(self) -> None:
        """Fetch what other processes appended."""
        await self._shard.refresh()
        while self._upper != (upper := as_time(self._shard.upper)):
            known = self._upper
            behind = as_time(self._shard.state.since) >= known
            records = await self._shard.contents(lower=Frontier(0 if behind else known))
            if self._upper != known or as_time(self._shard.upper) != upper:
                continue  # another coroutine went on meanwhile
            if behind:
                self._reset()
            for record in sorted(records, key=lambda each: (each.time, each.diff)):  # what goes before what comes
                self._adopt(record)
            self._upper = upper
        self._in_doubt = False

    async def take(self, requests: Sequence[Request]) -> list[Outcome]:
        """Make requests durable, all in one append; return what became of each.

        Raises:
            FencedError: a newer epoch has taken over; nothing was kept.
            Indeterminate: some may be durable; with their keys they can be sent again.
            Unavailable: nothing was kept.
        """
        outcomes: list[Outcome] = []

        def plan() -> _Change:
            arrivals = []
            outcomes.clear()
            known, start, waiting = dict[str, Seen](), self.next, self.waiting
            for request in requests:
                seen = known.get(request.key) or self._seen.get(request.key)
                arrival = Arrival(start, self._clock.now_ms(), request.key, request.headers, request.messages)
                if request.key and seen is not None:
                    same = seen.content == content(request.messages)
                    outcomes.append(Taken(seen.first, seen.count, again=True) if same else Reused(request.key))
                elif waiting and waiting + size(request.messages) > self._room:  # what is alone always has room
                    outcomes.append(Full(waiting))
                else:
                    outcomes.append(Taken(start, len(request.messages)))
                    arrivals.append(arrival)
                    start, waiting = arrival.end, waiting + size(request.messages)
                    if request.key:
                        known[request.key] = seen_of(arrival)
            return _Change((), arrivals)

        await self._commit(plan)
        return outcomes

    def messages(self, lower: int, upper: int) -> Iterator[tuple[int, Arrival, bytes]]:
        """Yield the messages of ``[lower, upper)`` with their offsets and requests.

        Raises `SourceError` if some are forgotten, or were never here.
        """
        at = bisect_right(self._arrivals, lower, key=lambda each: each.end)
        first = self._arrivals[at].first if at < len(self._arrivals) else self.next
        if lower < upper and (lower < first or self.next < upper):
            about = {"lower": lower, "upper": upper, "shard": self._shard.shard, "first": first, "next": self.next}
            raise SourceError(APART.said(**about, item=self._name))
        for arrival in islice(self._arrivals, at, None):
            if arrival.first >= upper:
                break
            for offset, message in enumerate(arrival.messages, arrival.first):
                if lower <= offset < upper:
                    yield offset, arrival, message

    def size_of(self, lower: int, upper: int) -> int:
        """Return how many bytes the requests with messages in ``[lower, upper)`` have that wait here."""
        return sum(size(each.messages) for each in self._arrivals if each.first < upper and lower < each.end)

    async def forget(self, upto: int) -> None:
        """Withdraw the requests whose messages are all before ``upto``: they are durable in the collection.

        Raises as `take` does.
        """
        if not self._arrivals or upto < self._arrivals[0].end:
            return

        def plan() -> _Change:
            gone = self._arrivals[: bisect_right(self._arrivals, upto, key=lambda each: each.end)]
            if not gone:
                return _Change((), ())
            marks = [] if self._mark is None else [self._mark]
            kept = [seen_of(each) for each in gone if each.key]
            return _Change([*gone, *self._outdated(), *marks], [*kept, Next(self.next)])

        await self._commit(plan)
        if self._upper - 1 - self._released >= RELEASE_EVERY:
            await self._shard.release(HOLD, Frontier(self._upper - 1))
            self._released = self._upper - 1

    def _outdated(self) -> list[Seen]:
        """Return the keys to forget, of requests that are: they are too old, or too many came after them.

        All keys are looked at once in a while only, and when there are too many a tenth goes at once.
        """
        now_ms = self._clock.now_ms()
        if len(self._seen) <= KEYS_MAX and 0 <= now_ms - self._looked_ms < LOOK_MS:
            return []
        self._looked_ms = now_ms
        first = self._arrivals[0].first
        oldest = sorted((each for each in self._seen.values() if each.first < first), key=lambda each: each.at_ms)
        spare = len(self._seen) - KEYS_MAX * 9 // 10 if len(self._seen) > KEYS_MAX else 0
        return [each for n, each in enumerate(oldest) if n < spare or each.at_ms < now_ms - self._remember_ms]

    async def _commit(self, plan: Callable[[], _Change]) -> None:
        """Append what ``plan`` says over what is known here, and again if another process or coroutine was faster."""
        if self._in_doubt:
            await self.refresh()
        while any(change := plan()):
            at = self._upper
            records = [Record(encode(each), at, -1) for each in change.withdrawn]
            records += [Record(encode(each), at, 1) for each in change.added]
            self._in_doubt = True
            match await self._shard.append(records, Frontier(at), Frontier(at + 1)):
                case Appended():
                    self._in_doubt = False
                    if self._upper == at:  # else a refresh has found it already
                        self._apply(change)
                        self._upper = at + 1
                    return
                case UpperMismatch():
                    await self.refresh()
                case Fenced() as outcome:
                    raise fenced(self._shard.shard, outcome, self._epoch)

    def _apply(self, change: _Change) -> None:
        for each in change.withdrawn:
            self._drop(each)
        for each in change.added:
            self._add(each)

    def _adopt(self, record: Record) -> None:
        try:
            kept = decode(record.data)
        except msgspec.MsgspecError as error:
            raise CorruptionError(f"record shard {self._shard.shard!r} holds what is no inbox's: {error}") from error
        if record.diff == 1:
            self._add(kept)
        elif record.diff == -1:
            self._drop(kept)
        else:
            raise CorruptionError(f"record shard {self._shard.shard!r} holds a request {record.diff} times")

    def _add(self, kept: Kept) -> None:
        match kept:
            case Arrival():
                insort(self._arrivals, kept, key=lambda each: each.first)
                self.next = max(self.next, kept.end)
                self.waiting += size(kept.messages)
                if kept.key:
                    self._seen[kept.key] = seen_of(kept)
            case Seen():
                self._seen[kept.key] = kept
            case Next():
                self.next = max(self.next, kept.offset)
                if self._mark is None or self._mark.offset <= kept.offset:
                    self._mark = kept

    def _drop(self, kept: Kept) -> None:
        match kept:
            case Arrival():
                at = bisect_right(self._arrivals, kept.first, key=lambda each: each.first) - 1
                if at >= 0 and self._arrivals[at].first == kept.first:
                    del self._arrivals[at]
                    self._seen.pop(kept.key, None)
                    self.waiting -= size(kept.messages)
            case Seen():
                self._seen.pop(kept.key, None)
            case Next():
                if self._mark == kept:
                    self._mark = None


BATCH_BYTES_MAX: Final = 4 << 20
"""A batch that has so many bytes is complete; a larger request is one alone."""


class _Ticket:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.outcome: Outcome | None = None
        self.error: StrandlineError | None = None

    @property
    def done(self) -> bool:
        return self.outcome is not None or self.error is not None


class Batches:
    """The way of all connections to one inbox.

    One append makes a batch of requests durable.  Each append takes one time of the shard, so of two processes one
    appends at a time, and one of an older epoch never does.  Requests that arrive while an append is under way are made
    durable together, in the next one.  So a store that takes 50 ms for an append limits how long a sender waits, and
    not how many are served.  The first that comes appends for all that wait; no task is spawned.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._waiting: list[_Ticket] = []
        self._turn = asyncio.Lock()
        self.appends = 0
        """How many batches there were."""

    async def offer(self, request: Request) -> Outcome:
        """Make a request durable; return and raise as `Inbox.take`."""
        ticket = _Ticket(request)
        self._waiting.append(ticket)
        async with self._turn:
            while not ticket.done:
                await self._serve(self._next())
        if ticket.error is not None:
            raise ticket.error
        assert ticket.outcome is not None, "a ticket that is done has an outcome or an error"
        return ticket.outcome

    def _next(self) -> list[_Ticket]:
        """Take the next batch of those that wait."""
        count, total = 0, 0
        for ticket in self._waiting:
            total += size(ticket.request.messages)
            if count and total > BATCH_BYTES_MAX:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _serve(self, batch: list[_Ticket]) -> None:
        self.appends += 1
        try:
            outcomes = await self._inbox.take([ticket.request for ticket in batch])
        except StrandlineError as error:
            for ticket in batch:
                ticket.error = error
        except BaseException:  # the call that appends for all was cancelled: whether it happened is not known
            for ticket in batch:
                ticket.error = Unavailable("the server was stopped while it stored the request")
            raise
        else:
            for ticket, outcome in zip(batch, outcomes, strict=True):
                ticket.outcome = outcome


def may_be_sent_again(error: StrandlineError) -> bool:
    """Tell whether the same request may succeed later."""
    return isinstance(error, StoreError | Unavailable)
