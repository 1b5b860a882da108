"""Tasks: materializations as running tasks, their feeds, and how far their endpoints have come.

`materialize/runtime.py` does the work.  A feed is what a materialization sees of a collection, by persist and the
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from strandline.algebra.schema import Schema
from strandline.errors import WAITS
from strandline.frontier import MINIMUM, Frontier
from strandline.instance import error_half
from strandline.instance.commands import RunMaterialization
from strandline.materialize.driver import Driver
from strandline.materialize.feed import Changes, Feed, NoRows
from strandline.materialize.log import ENDED, Record, RecoveryLog, peek, register_of
from strandline.materialize.protocol.task import MaterializationSpec
from strandline.materialize.schedule import Begun, Pace, Schedule, paced
from strandline.materialize.splits import Splits
from strandline.materialize.status import Status
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import ReadHandle, SinceHandle
from strandline.plane import Engine, Reading
from strandline.problem import Problem, Stopped, Way
from strandline.store.clock import Beside

ERRORS: Final = Problem(
    "errors-hold-endpoint",
    "{collection!r} has errors since {start}: what came before is delivered",
    Stopped.ENDPOINT,
    (
        Way("mend or withdraw the rows that caused them"),
        Way("push the good rows meanwhile", "ALTER MATERIALIZATION {item:sql} SET (on_error 'continue')"),
    ),
)
REFRESH: Final = Problem("first-refresh", WAITS + "the first refresh of {collection!r}", Stopped.ENDPOINT)


class CollectionFeed:
    """`materialize.feed.Feed` on one collection."""

    def __init__(
        self, reader: ReadHandle, since: SinceHandle, engine: Reading, *, item: str, continues: bool = False
    ) -> None:
        """``continues``: pass on the good rows while the collection has errors, instead of waiting.

        ``item``: the materialization's name, for what messages advise.
        """
        self._item = item
        self.name = reader.name
        self.schema: Schema = reader.schema
        self._reader = reader
        self._since = since
        self._engine = engine
        self._continues = continues
        self.waits = ""

    async def upper(self) -> Frontier:
        """Return the collection's upper; where it waits, the time from which on there are errors.

        The minimum as long as it cannot be read at any time, though something is stored: before its first refresh.
        """
        state = await self._reader.refresh()
        self.waits = ""
        if state.upper <= state.since:
            self.waits = REFRESH.said(collection=self.name) if state.upper.at else ""
            return MINIMUM
        start = None if self._continues else await error_half.began(self._engine, self._reader)
        if start is None:
            return state.upper
        self.waits = ERRORS.said(collection=self.name, start=start, item=self._item)
        return Frontier(start) if state.since < Frontier(start) else MINIMUM

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """Return the changes over ``[lower, upper)``; without a job where they are inline."""
        if not self._continues:
            await error_half.refuse(self._engine, self._reader, upper - 1)
        window = await self._reader.changes(lower, upper)
        return Changes(window.rows, self._engine.net(window, key=key, times=times))

    async def hold(self, frontier: Frontier) -> None:
        """Release the hold on times before ``frontier``."""
        if self._since.since < frontier:
            await self._since.downgrade(frontier)


async def start_task(
    command: RunMaterialization,
    readers: Sequence[ReadHandle],
    client: PersistClient,
    engine: Engine,
    endpoint: Driver,
    epoch: int,
    watch: Callable[[Status], None],
    beside: Beside,
) -> tuple[Splits, Pace]:
    """Return the task, its collections held and its log ready to be taken over under ``epoch``, and its pace."""
    feeds: list[Feed] = []
    for reader in readers:
        since = await client.since(reader.state.shard, command.log, epoch)
        feeds.append(CollectionFeed(reader, since, engine, continues=command.continues, item=command.spec.name))
    feeds += [NoRows(emptied.collection, emptied.schema) for emptied in command.spec.bindings[len(readers) :]]

    def of_split(split: str, epoch: int) -> RecoveryLog:
        return RecoveryLog(client.clock, client.ids, client.consensus, split_log(command.log, split), epoch)

    log = RecoveryLog(client.clock, client.ids, client.consensus, command.log, epoch)
    pace = Pace(Schedule.of(command.every, command.within), client.clock)
    held_back = paced(feeds, pace, partial(_begun, command.log, command.spec, client))
    return Splits(command.spec, endpoint, log, of_split, client.ids, held_back, watch, beside), pace


async def reached(log: str, state_keys: Sequence[str], client: PersistClient) -> int:
    """Return the time before which an endpoint's tables equal their collections, as it has acknowledged; 0: nothing.

    The recovery log says it once the transaction that came last has ended (`Progress.acknowledged`).
    """
    return min(each.progress.acknowledged.time(state_keys) for each in await records(log, client))


async def records(log: str, client: PersistClient) -> list[Record]:
    """Return what the log of each split has, or that of the whole."""
    record = await _peek(log, client)
    return [await _peek(split_log(log, share.log), client) for share in record.layout] or [record]


async def fence_task(log: str, epoch: int, client: PersistClient) -> None:
    """Let nothing write for a task that has opened its log under an epoch below ``epoch``.  Idempotent.

    `ENDED`: the task was dropped, and its logs are over for ever.

    The task's own log goes first: without it none can give the task other splits, or open the logs that it names under
    the epoch that they have then.

    Raises `Unavailable` or `Indeterminate` if Consensus does not answer, and `CorruptionError` if a log that is to go
    on holds no record; call it again then.
    """

    def fencing(key: str, epoch: int) -> RecoveryLog:
        return RecoveryLog(client.clock, client.ids, client.consensus, key, epoch)

    record = await fencing(log, epoch).fence()
    for share in record.layout:
        await fencing(split_log(log, share.log), ENDED if epoch == ENDED else record.opened).fence()


async def _begun(log: str, spec: MaterializationSpec, client: PersistClient) -> Begun:
    return Begun.of([record.progress for record in await records(log, client)], spec.state_keys)


async def _peek(log: str, client: PersistClient) -> Record:
    return await peek(register_of(log, client.clock, client.ids, client.consensus))


def split_log(log: str, split: str) -> str:
    """Return the Consensus key of the log of one split."""
    return f"{log}/{split}"
