"""Tasks: materializations as running tasks, and how far their endpoints have come.

`materialize/runtime.py` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from strandline.instance.commands import RunMaterialization
from strandline.instance.running.feeds import CollectionFeed
from strandline.materialize.driver import Driver
from strandline.materialize.feed import Feed, NoRows
from strandline.materialize.log import ENDED, Record, RecoveryLog, peek, register_of
from strandline.materialize.protocol.task import MaterializationSpec
from strandline.materialize.schedule.pace import Pace, Schedule
from strandline.materialize.schedule.paced import Begun, paced
from strandline.materialize.splits.task import Splits
from strandline.materialize.status import Status
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import ReadHandle
from strandline.plane.engine import Engine
from strandline.store.beside import Beside


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
