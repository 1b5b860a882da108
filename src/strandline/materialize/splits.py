"""The splits of a task: several runtimes side by side, each with a range of the key hashes.

A split has a session, a checkpoint, a fence and a log of its own.  The task's own log names the splits (`log.Share`);
as long as it names none, it is the log of the one runtime that has all keys.  A *round* brings every split to one time,
so at its end the tables of the endpoint agree with each other.

The number of splits changes while nothing is under way.  First the running splits are *settled*: every split commits up
to one time, even if nothing has changed for it, and the endpoint has acknowledged that.  Then logs with new names are
begun from there, and one write to the task's log puts them in place of the old ones.  Before this write the old splits
count, and after it the new ones; a crash leaves only logs under names that no process looks up.  A runtime that slept
through the change can do nothing: the process that changes the splits has opened all of their logs, under an epoch that
grows each time the task's log is opened.

A binding begins under one runtime, because only that one may empty its table.  If none has begun, the first transaction
is empty, and the splits fill the tables.

Laws: M2, M3.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from strandline.errors import FencedError
from strandline.extras import FLOW, require
from strandline.frontier import Frontier
from strandline.materialize.driver import Driver, JoinsStates
from strandline.materialize.feed import Batches, Changes, Feed, complete
from strandline.materialize.log import FIRST_OPENED, RecoveryLog, Share
from strandline.materialize.protocol.greatest import joined
from strandline.materialize.protocol.task import (
    NOTHING,
    WHOLE,
    Binding,
    Checkpoint,
    KeyRange,
    MaterializationSpec,
    Progress,
    divided,
)
from strandline.materialize.runtime import HasSplitsError, Task
from strandline.materialize.spool import Spool
from strandline.materialize.status import Counts, Status, together, unwatched
from strandline.store.clock import Beside, Ids, Inline


class Shared:
    """One feed, of which each of ``ranges`` has a part.  Not for concurrent use, but by its parts.

    Raises `ConfigError` if the library that hashes keys is not installed.

    Each split sees the rows whose key hash is in its range.  All splits are at one time when a round begins, so the
    changes since then are read once for all of them, and put aside for each (`Shared.read`).  A split that must read
    another window, after a failure, reads it by itself.

    Trap: what one split may forget, the others may need.  The hold follows the split that is furthest behind.
    """

    def __init__(self, feed: Feed, binding: Binding, ranges: Sequence[KeyRange]) -> None:
        require("a materialization with splits", (FLOW,))
        self.feed = feed
        self._binding = binding
        self._ranges = tuple(ranges)
        self._aside: dict[KeyRange, tuple[int, int, Spool]] = {}
        self._holds: dict[KeyRange, Frontier] = {}

    async def read(self, lower: int, upper: int) -> None:
        """Read a window, and put the changes of each part aside.  Raises as `Feed.changes`."""
        self.close()
        changes = await self.feed.changes(lower, upper, key=self._binding.key, times=self._binding.by_time)
        self._aside = {each: (lower, upper, Spool()) for each in self._ranges}
        async with aclosing(changes.batches) as batches:
            async for batch in batches:
                for range_, rows in self.parted(batch, self._ranges):
                    self._aside[range_][2].add(rows)

    def parted(self, batch: pa.RecordBatch, ranges: Iterable[KeyRange]) -> list[tuple[KeyRange, pa.Table]]:
        """Return the rows of a batch that belong to each range; nothing for a range that has none."""
        from strandline.materialize.wire.tuples import key_hashes, within

        rows = pa.Table.from_batches([batch])
        hashes = key_hashes([rows[name] for name in self._binding.key or self._binding.schema.names])
        parts = [(each, rows.filter(within(each, hashes))) for each in ranges]
        return [(each, part) for each, part in parts if part.num_rows]

    def taken(self, range_: KeyRange, lower: int, upper: int) -> Spool | None:
        """Return the spool of a part, which its reader closes; None: another window was put aside."""
        begin, end, spool = self._aside.get(range_, (-1, -1, None))
        if spool is None or (begin, end) != (lower, upper):
            return None
        del self._aside[range_]
        return spool

    async def hold(self, range_: KeyRange, frontier: Frontier) -> None:
        """Move the hold to where the furthest behind of all parts may be, as soon as all have said where."""
        self._holds[range_] = frontier
        if len(self._holds) == len(self._ranges):
            await self.feed.hold(min(self._holds.values()))

    def close(self) -> None:
        """Drop the rows that were put aside."""
        for _, _, spool in self._aside.values():
            spool.close()
        self._aside = {}


class Part:
    """The rows of one range: a `Feed`."""

    def __init__(self, shared: Shared, range_: KeyRange) -> None:
        self._shared = shared
        self._range = range_
        self.name = shared.feed.name
        self.schema = shared.feed.schema

    @property
    def waits(self) -> str:
        """See `Feed.waits`."""
        return self._shared.feed.waits

    async def upper(self) -> Frontier:
        """See `Feed.upper`."""
        return await self._shared.feed.upper()

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """See `Feed.changes`."""
        aside = self._shared.taken(self._range, lower, upper)
        if aside is not None:
            return Changes(aside.rows, _aside(aside))
        changes = await self._shared.feed.changes(lower, upper, key=key, times=times)
        return Changes(changes.about, self._own(changes.batches))

    async def hold(self, frontier: Frontier) -> None:
        """See `Feed.hold`."""
        await self._shared.hold(self._range, frontier)

    async def _own(self, all_: Batches) -> Batches:
        async with aclosing(all_) as batches:
            async for batch in batches:
                for _, rows in self._shared.parted(batch, [self._range]):
                    for own in rows.combine_chunks().to_batches():
                        yield own


async def _aside(spool: Spool) -> Batches:
    with closing(spool):
        for table in spool.tables():
            for batch in table.combine_chunks().to_batches():
                yield batch


Logs: TypeAlias = Callable[[str, int], RecoveryLog]
"""Returns the log of a split, given its key and its epoch."""


class Splits:
    """A task with ``spec.splits`` splits.  Not for concurrent use, but for `status` and `halt`."""

    def __init__(
        self,
        spec: MaterializationSpec,
        driver: Driver,
        log: RecoveryLog,
        logs: Logs,
        ids: Ids,
        feeds: Sequence[Feed],
        watch: Callable[[Status], None] = unwatched,
        beside: Beside = Inline,
    ) -> None:
        self._spec = spec
        self._driver = driver
        self._log = log
        self._logs = logs
        self._ids = ids
        self._feeds = tuple(feeds)
        self._watch = watch
        self._beside = beside
        self._shared: tuple[Shared, ...] = ()
        self._earlier = Counts()
        self._tasks: dict[KeyRange, Task] = {}
        self._whole()
        self._recovered = False
        self._fenced: FencedError | None = None

    @property
    def status(self) -> Status:
        """The task's position and counts."""
        whole = self._tasks.get(WHOLE)
        if whole is not None:
            status = whole.status
        else:
            named = (replace(task.status, name=str(range_)) for range_, task in self._tasks.items())
            status = together(self._spec.name, tuple(named))
        return replace(status, committed=self._earlier + status.committed)

    @property
    def under_way(self) -> bool:
        """Whether a transaction is, which the next `advance` goes on with."""
        return any(task.under_way for task in self._tasks.values())

    async def open(self) -> None:
        """Recover, and let as many splits go on as are wanted; `advance` does it if needed.  Raises as that."""
        await self._guarded(self._ready)

    async def advance(self) -> bool:
        """Bring the endpoint to where its collections are now; return whether its position moved.

        Raises as `Task.advance`; of several splits that fail, the error of one.
        """
        before = self.status.position
        await self._guarded(self._advance)
        return self.status.position != before

    async def halt(self) -> None:
        """End what goes on beside the caller: the next `advance` fails, and that after it opens new sessions."""
        for task in list(self._tasks.values()):
            await task.halt()

    async def close(self) -> None:
        """End all sessions.  Nothing that was acknowledged is lost."""
        self._recovered = False
        await self._end()

    # ---- rounds ------------------------------------------------------------------------------------------------------

    async def _guarded(self, call: Callable[[], Awaitable[None]]) -> None:
        if self._fenced is not None:
            raise self._fenced
        try:
            await call()
        except BaseException as error:
            self._fenced = error if isinstance(error, FencedError) else None
            await self.close()
            raise

    async def _ready(self) -> None:
        """Have sessions open; of as many splits as are wanted, if all bindings have begun, or nothing was written."""
        if not self._recovered:
            await self._recover()
        whole = self._tasks.get(WHOLE)
        if whole is None or whole.under_way or self._spec.splits == 1:
            return
        if whole.untouched or whole.begun == self._spec.state_keys:
            await self._divide(whole)

    async def _advance(self) -> None:
        await self._ready()
        whole = self._tasks.get(WHOLE)
        await (self._round() if whole is None else whole.advance())

    async def _round(self) -> None:
        """Bring every split to where the collections are now."""
        upto = await self._upto()
        positions = {task.status.position for task in self._tasks.values()}
        if min(positions) >= upto:
            return
        if len(positions) == 1 and self._begun():
            for shared in self._shared:
                await shared.read(min(positions), upto)
        await self._each(lambda task: task.advance(upto))

    async def _upto(self) -> int:
        """Return where the collections are now, or where a transaction ends that was cut off.

        That one is done again at once, whatever the schedule says: a part of it is at the endpoint.
        """
        return max(await complete(self._feeds), *(task.replays_to for task in self._tasks.values()))

    async def _each(self, call: Callable[[Task], Awaitable[object]]) -> None:
        """Do something with all splits, side by side; once all have ended, raise what one of them raised."""
        errors: list[BaseException] = []

        async def guarded(task: Task) -> None:
            try:
                await call(task)
            except CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - it is raised below, also what ends a process
                errors.append(error)

        running = [self._beside(partial(guarded, task)) for task in self._tasks.values()]
        try:
            for each in running:
                await each.wait(None)
        except BaseException:
            for each in running:
                await each.cancel()
            raise
        if errors:
            raise min(errors, key=lambda error: not isinstance(error, FencedError))

    def _begun(self) -> bool:
        """Tell whether no split has a binding that is yet to begin."""
        return all(task.begun == self._spec.state_keys for task in self._tasks.values())

    # ---- which splits there are --------------------------------------------------------------------------------------

    async def _end(self) -> None:
        for task in list(self._tasks.values()):
            await task.close()
        for shared in self._shared:
            shared.close()

    async def _recover(self) -> None:
        """Open what the log names; join it if other splits are wanted, or a binding has yet to begin."""
        await self._end()
        try:
            await self._whole().open()
        except HasSplitsError:
            layout, epoch = self._log.record.layout, self._log.record.opened
            if tuple(share.range for share in layout) == divided(self._spec.splits):
                await self._parts(self._spec, layout, epoch)
            if WHOLE in self._tasks or not self._begun():
                await self._join(layout, epoch)
        self._recovered = True

    async def _join(self, layout: Sequence[Share], epoch: int) -> None:
        """Settle all splits, and let the task go on whole."""
        records = [await self._logs(share.log, epoch).open() for share in layout]
        checkpoints = [record.progress.checkpoint for record in records]
        begun = tuple(b for b in self._spec.bindings if all(each.of(b.state_key) is not None for each in checkpoints))
        # If all begin anew, the sessions do nothing but finish what was staged and is not applied.
        await self._parts(replace(self._spec, bindings=begun) if begun else self._spec, layout, epoch)
        tasks = self._tasks.values()
        if begun:
            # What was cut off is done again before its extent is forgotten.
            upto = max(await self._upto(), *(task.status.position for task in tasks))
            await self._each(lambda task: task.settle(upto))
        settled = [task.record for task in tasks]
        # Where the splits do not agree, the binding is gone.
        checkpoint = Checkpoint.common([task.checkpoint for task in tasks]) if begun else NOTHING
        await self._end()
        states = [record.state for record in settled]
        state = self._driver.joined(states) if isinstance(self._driver, JoinsStates) else states[0]
        await self._log.lay_out(
            (), Progress(checkpoint, checkpoint), state, joined([record.greatest for record in settled])
        )
        await self._whole().open()

    async def _divide(self, whole: Task) -> None:
        """Settle the task, and let its splits go on."""
        await whole.settle(0 if whole.untouched else None)
        settled = whole.record
        progress = Progress(whole.checkpoint, whole.checkpoint)
        layout = tuple(Share(each, self._ids.fresh("split")) for each in divided(self._spec.splits))
        for share in layout:
            await self._logs(share.log, FIRST_OPENED).begin(progress, settled.state, settled.greatest)
        await whole.close()
        await self._log.lay_out(layout, progress, settled.state)
        await self._parts(self._spec, layout, FIRST_OPENED)

    def _whole(self) -> Task:
        task = Task(self._spec, self._driver, self._log, self._feeds, self._watched, self._beside)
        self._replace({WHOLE: task})
        return task

    async def _parts(self, spec: MaterializationSpec, layout: Sequence[Share], epoch: int) -> None:
        """Open all splits, one after the other, because each of them applies the spec."""
        await self._end()
        feeds = dict(zip(self._spec.state_keys, self._feeds, strict=True))
        ranges = [share.range for share in layout]
        self._shared = tuple(Shared(feeds[each.state_key], each, ranges) for each in spec.bindings)
        tasks = {}
        for share in layout:
            log, parts = self._logs(share.log, epoch), [Part(each, share.range) for each in self._shared]
            tasks[share.range] = Task(spec, self._driver, log, parts, self._watched, self._beside, share.range)
        self._replace(tasks)
        for task in tasks.values():
            await task.open()

    def _replace(self, tasks: dict[KeyRange, Task]) -> None:
        self._earlier = sum((task.status.committed for task in self._tasks.values()), self._earlier)
        self._tasks = tasks

    def _watched(self, _status: Status) -> None:
        self._watch(self.status)
