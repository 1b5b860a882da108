"""Tasks: materializations of the catalog as running tasks, and how far their endpoints have come.

Source: design page "materialize"; `materialize/runtime.py` does the work.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.environment.catalog import Catalog, Materialization
from strandline.environment.feeds import CollectionFeed
from strandline.materialize.driver import Driver
from strandline.materialize.log import RecoveryLog, peek, register_of
from strandline.materialize.runtime import Materialization as Task
from strandline.materialize.runtime import Status
from strandline.materialize.task import Binding, MaterializationSpec
from strandline.persist.client import PersistClient
from strandline.persist.plane import Engine
from strandline.persist.read import ReadHandle


def log_key(item: Materialization) -> str:
    """The Consensus key of a task's recovery log."""
    return f"materialization/{item.id}"


def bindings(item: Materialization, catalog: Catalog) -> tuple[Binding, ...]:
    """Return what the task binds, with the collections' schemas."""
    collections = [catalog.collection(bound.collection) for bound in item.bindings]
    return tuple(
        Binding(
            collected.name,
            bound.table,
            bound.key,
            collected.schema,
            backfill=bound.backfill,
            incarnation=f"{item.id}-{collected.shard}",
        )
        for bound, collected in zip(item.bindings, collections, strict=True)
    )


def spec_of(item: Materialization, catalog: Catalog) -> MaterializationSpec:
    """Return the task as its driver is told of it."""
    return MaterializationSpec(item.name, bindings(item, catalog), item.options)


async def start_task(
    item: Materialization,
    catalog: Catalog,
    readers: list[ReadHandle],
    client: PersistClient,
    engine: Engine,
    endpoint: Driver,
    epoch: int,
    watch: Callable[[Status], None],
) -> Task:
    """Return the task, its collections held and its log ready to be taken over under ``epoch``."""
    feeds = []
    for reader in readers:
        since = await client.since(reader.state.shard, log_key(item), epoch)
        feeds.append(CollectionFeed(reader, since, engine))
    log = RecoveryLog(client.clock, client.ids, client.consensus, log_key(item), epoch)
    return Task(spec_of(item, catalog), endpoint, log, feeds, watch)


async def reached(item: Materialization, client: PersistClient, catalog: Catalog) -> int:
    """Return the time before which the endpoint equals its collections, as the recovery log says; 0: nothing yet."""
    progress = await peek(register_of(log_key(item), client.clock, client.ids, client.consensus))
    return progress.position.time(tuple(b.state_key for b in bindings(item, catalog)))
