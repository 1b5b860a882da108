"""Tasks: materializations as running tasks, and how far their endpoints have come.

`materialize/runtime.py` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.instance.commands import RunMaterialization
from strandline.instance.running.feeds import CollectionFeed
from strandline.materialize.driver import Driver
from strandline.materialize.log import RecoveryLog, peek, register_of
from strandline.materialize.protocol.task import MaterializationSpec
from strandline.materialize.runtime import Task
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
) -> Task:
    """Return the task, its collections held and its log ready to be taken over under ``epoch``."""
    feeds = []
    for reader in readers:
        since = await client.since(reader.state.shard, command.log, epoch)
        feeds.append(CollectionFeed(reader, since, engine, continues=command.continues))
    log = RecoveryLog(client.clock, client.ids, client.consensus, command.log, epoch)
    return Task(command.spec, endpoint, log, feeds, watch, beside)


async def reached(log: str, spec: MaterializationSpec, client: PersistClient) -> int:
    """Return the time before which the endpoint equals its collections, as the recovery log says; 0: nothing yet."""
    progress = await peek(register_of(log, client.clock, client.ids, client.consensus))
    return progress.position.time(tuple(binding.state_key for binding in spec.bindings))
