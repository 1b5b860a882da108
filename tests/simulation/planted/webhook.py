"""Bugs that are planted in webhooks, to prove that their world sees them.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from typing import Any, Final

from planted.bugs import Bug, registrar
from strandline.errors import Indeterminate, StoreError, Unavailable
from strandline.frontier import Frontier, Offsets
from strandline.persist.handles.records import Record
from strandline.sources.readers.webhook.inbox import Arrival, Inbox, Next, Seen, _Change, encode, seen_of
from strandline.sources.readers.webhook.reader import WebhookReader

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)

_commit = Inbox._commit
_add = Inbox._add
_take = Inbox.take


# ---- acknowledging ---------------------------------------------------------------------------------------------------


@bug("a request is acknowledged before it is durable", (Inbox, "_commit"))
async def acknowledged_first(self: Inbox, plan: Any) -> None:
    """Keep it in memory, and write it with the next one."""
    due, self.__dict__["_due"] = self.__dict__.get("_due"), plan()
    if due is not None:
        await _commit(self, lambda: due)


@bug("a request whose append was not answered is acknowledged", (Inbox, "_commit"))
async def silence_is_a_yes(self: Inbox, plan: Any) -> None:
    """Take no answer for a good one."""
    try:
        await _commit(self, plan)
    except (Indeterminate, StoreError, Unavailable):
        self._in_doubt = True


@bug("a request is acknowledged whose append another process has forestalled", (Inbox, "_commit"))
async def beaten_is_done(self: Inbox, plan: Any) -> None:
    """Take any answer for a good one."""
    if self._in_doubt:
        await self.refresh()
    change, at = plan(), self._upper
    records = [Record(encode(each), at, -1) for each in change.withdrawn]
    records += [Record(encode(each), at, 1) for each in change.added]
    if records:
        self._in_doubt = True
        await self._shard.append(records, Frontier(at), Frontier(at + 1))
        await self.refresh()


# ---- keys ------------------------------------------------------------------------------------------------------------


@bug("a retry is taken again, because a key is remembered from when its request is forgotten", (Inbox, "_add"))
def waiting_keys_unknown(self: Inbox, kept: Any) -> None:
    """Remember no key of a request that waits."""
    _add(self, kept)
    if isinstance(kept, Arrival):
        self._seen.pop(kept.key, None)


@bug("a key is forgotten with its request", (Inbox, "_add"))
def keys_go_with_requests(self: Inbox, kept: Any) -> None:
    """Remember no key of a request that is in the collection."""
    if not isinstance(kept, Seen):
        _add(self, kept)


@bug("two requests of one batch are not compared", (Inbox, "take"))
async def batch_not_compared(self: Inbox, requests: Any) -> Any:
    """Know only what came before the batch."""
    known = self._seen
    first = await _take(self, requests[:1])
    if len(requests) == 1:
        return first
    self._seen = {key: seen for key, seen in known.items() if key != requests[0].key}
    return first + await _take(self, requests[1:])


# ---- forgetting ------------------------------------------------------------------------------------------------------


@bug("what is bound is forgotten, durable or not", (WebhookReader, "commit"))
async def forgotten_when_bound(self: WebhookReader, resume: Offsets) -> None:
    """Forget all that the inbox has."""
    await self._inbox.forget(self._inbox.next)


@bug("where the next offset was is forgotten with the last request", (Inbox, "forget"))
async def next_forgotten(self: Inbox, upto: int) -> None:
    """Keep no mark."""
    gone = [each for each in self._arrivals if each.end <= upto]
    if gone:
        marks = [] if self._mark is None else [self._mark]
        kept = [seen_of(each) for each in gone if each.key]
        await _commit(self, lambda: _Change([*gone, *marks], kept))


@bug("the next offset is kept as that of the first request that waits", (Inbox, "forget"))
async def next_too_early(self: Inbox, upto: int) -> None:
    """Keep the mark at what is forgotten, and count from there."""
    gone = [each for each in self._arrivals if each.end <= upto]
    if gone:
        marks = [] if self._mark is None else [self._mark]
        kept = [seen_of(each) for each in gone if each.key]
        await _commit(self, lambda: _Change([*gone, *marks], [*kept, Next(gone[-1].first)]))
