"""Subscriptions: a collection's contents at one time, and then every change of it, each once, in the order of times.

What comes are `Updates` and `Progress`.  After ``Progress(upper)`` every update before ``upper`` has come, so a
subscriber that adds up what has come until then holds the collection's contents at ``upper - 1``, as every other reader
sees them.  A subscription has a lease of its own, at where it has come to: what it still needs is not compacted,
however slow it is.

A subscription to a query keeps a view of its own, which goes with it: at the first tick after its end, or, if this
process dies before, when the location is opened for writing again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Final

from msgspec.structs import replace

from strandline.client.access import Access
from strandline.client.cancelling import Cancel
from strandline.client.events import Event, Progress, Updates
from strandline.controller.asking import reads
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.introspection import naming
from strandline.controller.location.config import Mode
from strandline.controller.location.items import SUBSCRIBED, Collected, View
from strandline.errors import AsOfError, InvalidUsage
from strandline.frontier import Frontier, as_time, meet
from strandline.persist.handles.contents import Contents
from strandline.persist.handles.read import ReadHandle

_NAME: Final = re.compile(r"[^\s()]+")
"""What is a name and no query, which has a blank or a parenthesis."""


class Subscription:
    """An open subscription.  `close` it."""

    def __init__(
        self, core: Core, reader: ReadHandle, held: AsyncExitStack, as_of: int | None, until: int | None
    ) -> None:
        self._core = core
        self._reader = reader
        self._held = held
        self._turn = asyncio.Lock()  # a call for the next one that is cancelled ends before it closes
        self._events = self._all(as_of, until)

    @classmethod
    async def open(cls, core: Core, what: str, as_of: int | None, until: int | None) -> Subscription:
        """Subscribe to ``what``, the name of a collection or a query, from ``as_of`` on and to before ``until``.

        ``as_of``: None for the latest time that is complete, or the first one if there is none yet.  ``until``: None
        for as long as it is not closed.

        Raises:
            DefinitionError: there is no such collection, it has no history, or the query cannot be a view.
            InvalidUsage: this environment holds nothing, so it cannot subscribe; or a query in an environment that does
                not write, or with an ``as_of``.
        """
        if core.mode is Mode.INDEPENDENT:
            raise InvalidUsage("a subscription holds what it is to read, and this environment holds nothing")
        if core.catalog.find(what) is None:
            naming.refuse(what, "a subscription cannot follow")
            if _NAME.fullmatch(what.strip()):
                core.catalog.collection(what)  # which is not there: this says what may have been meant
        async with AsyncExitStack() as held:
            name = what if core.catalog.find(what) is not None else await _view(core, what, as_of, held)
            reader = await core.readers.lasting(name, held)
            return cls(core, reader, held.pop_all(), as_of, until)

    async def next(self) -> Event | None:
        """Return what comes next, as soon as it is there; None: nothing more comes.

        It only reads, so other calls may be made meanwhile.

        Raises:
            AsOfError: it cannot be read at ``as_of``; it was dropped or replaced, and all its updates have come; or the
                lease was lost, because this process stood still for long.
            CollectionError: the collection has errors at a time whose updates are to come next.
        """
        async with self._turn:
            return await anext(self._events, None)

    async def close(self) -> None:
        """Give up what is held; the view of a query goes with the next tick."""
        async with self._turn:
            await self._events.aclose()
            await self._held.aclose()

    async def _all(self, as_of: int | None, until: int | None) -> AsyncGenerator[Event, None]:
        reader = self._reader
        if as_of is None:
            await reader.wait_beyond(as_time(reader.state.since))
            as_of = await reads.latest(self._core, [reader])
        if until is not None and until <= as_of:
            raise InvalidUsage(f"a subscription from {as_of} on cannot end at {until}")
        async for rows in self._updates(await reader.snapshot(as_of, timeout_s=0), as_of, Frontier(as_of + 1)):
            yield rows
        yield Progress(as_of + 1)
        async with aclosing(reader.listen(as_of)) as windows:
            lower = as_of + 1
            while until is None or lower < until:
                window, reached = await anext(windows, (None, None))
                if window is None or reached is None:
                    return
                upper = reached if until is None else meet((reached, Frontier(until)))
                async for rows in self._updates(replace(window, upper=as_time(upper)), lower, upper):
                    yield rows
                if reached.empty:
                    await self._refuse_gone()
                yield Progress(upper.at)
                if upper.empty:
                    return
                lower = as_time(upper)
                await reader.downgrade_since(Frontier(lower - 1))

    async def _refuse_gone(self) -> None:
        """Raise `AsOfError` if the collection was closed because it was dropped or replaced.

        The catalog says so before the shard is closed; the one that is known here may be older.
        """
        catalog, name = await self._core.catalogs.newest(), self._reader.name
        items = [item for item in catalog.items.values() if isinstance(item, Collected)]
        if self._reader.state.shard in {item.shard for item in items}:
            return
        what = "the view of this query" if name.startswith(SUBSCRIBED) else repr(name)
        has_all = "this subscription has every update of the one before; subscribe again"
        match catalog.find(name):
            case View():
                raise AsOfError(
                    f"{what} was replaced by a query with other columns or another schedule, or dropped and created "
                    f"again: {has_all}"
                )
            case None:
                raise AsOfError(f"{what} was dropped: this subscription has every update of it, and nothing more comes")
            case _:
                raise AsOfError(f"{what} was dropped and created again: {has_all}")

    async def _updates(self, window: Contents, lower: int, upper: Frontier) -> AsyncGenerator[Updates, None]:
        """Yield the updates in a window."""
        await reads.refuse_changes(self._core, self._reader, lower, as_time(upper))
        async with aclosing(self._core.engine.net(window, times=True)) as batches:
            async for rows in batches:
                yield Updates(rows)
        self._reader.release(window)


class Events(Iterator[Event]):
    """What comes of a subscription, for plain calls; other calls of the environment may be made meanwhile.

    `close` it, from any thread; one that is not used any longer closes itself.
    """

    def __init__(self, access: Access, subscription: Subscription) -> None:
        self._access = access
        self._subscription = subscription
        self._closed = False
        self._waiting = Cancel()

    def __next__(self) -> Event:
        event = None
        if not self._closed:
            try:
                event = self._access.wait(self._subscription.next(), self._waiting)
            except InvalidUsage:
                if not self._closed:
                    raise
        if event is None:
            self.close()
            raise StopIteration
        return event

    def close(self) -> None:
        """Give up what is held; a view of a query goes with the next tick."""
        if not self._closed:
            self._closed = True
            self._waiting()
            with suppress(InvalidUsage):  # where the environment is closed, all leases are given up
                self._access.wait(self._subscription.close())

    def __del__(self) -> None:
        """Give it up soon: this may be any thread, in the middle of anything."""
        if not self._closed:
            self._access.soon(self._subscription.close)


async def _view(core: Core, query: str, as_of: int | None, held: AsyncExitStack) -> str:
    """Define a view of ``query`` that goes with ``held``, and return its name."""
    if core.writing is None:
        raise InvalidUsage(
            "a query can be subscribed to in the process that writes; here, subscribe to a view that is defined"
        )
    if as_of is not None:
        raise InvalidUsage("a subscription to a query begins with its first result; it has no as_of")
    writing = core.writing
    name = f"{SUBSCRIBED}{core.assembly.ids.fresh('q')}"
    definition = await core.assembly.planning(lambda: definitions.plan(core, name, query))
    writing.plans.put(definition)
    writing.subscribed.add(name)
    held.callback(writing.subscribed.discard, name)  # then the next tick drops it
    await definitions.add(core, definition.view)
    return name
