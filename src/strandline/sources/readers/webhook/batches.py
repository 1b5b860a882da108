"""Requests that arrive while an append is under way are made durable together, in the next one.

So a store that takes 50 ms for an append limits how long a sender waits, and not how many are served.  The first that
comes appends for all that wait; no task is spawned.
"""

from __future__ import annotations

import asyncio
from typing import Final

from strandline.errors import StoreError, StrandlineError, Unavailable
from strandline.sources.readers.webhook.inbox import Inbox, Outcome, Request
from strandline.sources.readers.webhook.kept import size

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
    """The way of all connections to one inbox."""

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
