"""Status: all there is to say about an environment, as plain data; with the freshness of its items and its progress.

`status` reads the location and is the same in every process.  `progress` is known only to the process that writes, from
memory alone; `strandline run` reports it after each tick.

People ask three different things: is the first load done, is the first result computed, how stale is it.  So freshness
shows them apart.  A source or a table of one *snapshots* and a view *hydrates* until something of it is durable: it can
be read at no time yet.  From then on it *follows*, and its *lag* says how far behind it is, in rows and in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from strandline.controller.commanded import place_of, state_keys
from strandline.controller.core import Core
from strandline.controller.instances.replicas import seen
from strandline.controller.introspection import acknowledged
from strandline.controller.introspection.definition import said_of_left
from strandline.controller.location import on_error
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import (
    Collected,
    Connection,
    Fed,
    IndexItem,
    InstanceItem,
    Item,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    View,
    begins_of,
    connections_of,
    kind_of,
)
from strandline.controller.location.tenure import lives
from strandline.controller.readers import plain
from strandline.controller.standing import complete
from strandline.frontier import Frontier, join
from strandline.instance import error_half, live
from strandline.instance.beginnings import HYDRATING, SNAPSHOTTING
from strandline.instance.reports import Report
from strandline.instance.tasks import reached, records
from strandline.materialize.protocol.task import Progress
from strandline.persist.handles.read import ReadHandle
from strandline.persist.notices import Notifier, PushClient
from strandline.persist.shard.state import ShardState
from strandline.persist.shard.trace import due
from strandline.problem import noticed, told

FOLLOWING: Final = "following"
ROWS: Final = "rows"


def freshness(
    item: Collected, states: Mapping[str, ShardState | None], counted: Mapping[str, int], now_ms: int, unit: str = ROWS
) -> dict[str, Any]:
    """Return the ``phase`` of an item, what there is of its ``first`` load or result, and its ``lag``.

    ``states``: of all collections, by name.  ``counted``: the live counters of the process that writes, if it can be
    asked.  ``first`` is None where it is over, or not known here; its ``about`` is None where upstream does not say.
    ``unit``: what the offsets of a source's upstream count.
    """
    name = item.name.lower()
    state = states.get(name)
    begun = state is not None and state.upper.at != 0
    beginning = SNAPSHOTTING if isinstance(item, Fed) else HYDRATING if isinstance(item, View) else FOLLOWING
    known = live.of(counted, live.FIRST, name)
    since = known.get("since_ms")
    first = {
        "rows": known.get("rows"),
        "about": known.get("about"),
        "ms": None if since is None else max(0, now_ms - since),
    }
    return {
        "phase": FOLLOWING if begun else beginning,
        "first": first if known and not begun else None,
        "lag": {"ms": lag_ms(state, now_ms), ROWS: None, unit: _lag_rows(item, state, states, counted)},
    }


def counted_in(core: Core, item: Collected) -> str:
    """Return what an item's lag is counted in."""
    source = core.catalog.find(item.source) if isinstance(item, SourceTable) else item
    return core.assembly.connectors.counts(source.connector) if isinstance(source, Source | SharedSource) else ROWS


def lag_ms(state: ShardState | None, now_ms: int) -> int | None:
    """Return how old the newest time is that is complete; 0 if it never changes again, None if none is complete."""
    if state is None or state.upper.at == 0:
        return None
    return 0 if state.upper.at is None else max(0, now_ms - (state.upper.at - 1))


def _lag_rows(
    item: Collected, state: ShardState | None, states: Mapping[str, ShardState | None], counted: Mapping[str, int]
) -> int | None:
    """Return how much is known to be there and is not in the collection: upstream's offsets, or updates of its inputs.

    None: it cannot be known here.
    """
    match item:
        case View():
            inputs = [read for name in item.imports if (read := states.get(name)) is not None]
            return sum(_beyond(read, state) for read in inputs)
        case _ if isinstance(item, Fed):
            return live.of(counted, live.SOURCE, item.name.lower()).get("behind")
        case _:
            return 0


def _beyond(read: ShardState, state: ShardState | None) -> int:
    """Return about how many updates of ``read`` a view at ``state`` has not seen."""
    return sum(batch.rows for batch in read.batches if state is None or not batch.upper <= state.upper)


def progress(core: Core) -> dict[str, Any]:
    """Return counters since this process opened the environment, its last tick's steps, and the problems there are.

    ``sources``: records read, read again, made durable, in error.  ``first``: of what nothing is durable yet.
    ``steps``: stage to number of input updates read.  ``complete``: the last time at which everything is complete that
    has no problem.  ``replaced``: the views that were replaced, each with the last time before that.
    ``problems``, ``waiting``, ``notices``: see `acknowledged.states`.
    ``late``: the items that are still on their way to where the last tick wanted them.
    """
    writing = core.require_writing()
    report, problems = writing.running.report(), core.health.problems()
    said = core.parted(problems, report.notices)
    return {
        "epoch": writing.epoch,
        "sources": {
            name: {
                "read_records": source.read_records,
                "reread_records": source.reread_records,
                "durable_records": source.durable_records,
                "error_records": source.error_records,
            }
            for name, source in report.sources.items()
        },
        "first": {
            each.name: {"phase": each.verb, "rows": each.rows, "about": each.about} for each in core.beginnings()
        },
        "steps": dict(report.steps),
        "materializations": {
            name: {
                "transactions": task.committed.transactions,
                "rows_stored": task.committed.stored,
                "rows_deleted": task.committed.deleted,
                "moving": asdict(task.moving),
            }
            for name, task in report.tasks.items()
        },
        "complete": complete(core.catalog, problems, report.frontiers, core.health.time or 0, report.notices),
        "replaced": dict(writing.replaced),
        "late": sorted(writing.running.going_on()),
        "notices": {name: [str(each) for each in told] for name, told in said.notices.items()},
        "waiting": said.waiting,
        "problems": said.problems,
    }


async def status(core: Core) -> dict[str, Any]:
    """Return all there is to say about the environment: plain data, as ``strandline status --json`` prints it.

    Problems are those that this process knows, if it writes; else those that the last writer published.
    """
    catalog = core.catalog
    report = None if core.writing is None else core.writing.running.report()
    said = await core.states()
    writers = await _writers(core.client.notifier)
    persists, theirs = live.split(writers or {})
    counted = theirs if core.writing is None else core.live()
    named = {name: item for name, item in catalog.items.items() if isinstance(item, Collected)}
    readers = {n: await plain(core.client, item) for n, item in named.items()}
    states = {n: None if reader is None else await reader.refresh() for n, reader in readers.items()}
    now_ms = core.assembly.clock.now_ms()
    collections = {
        item.name: {
            **_collection(core, item, states[name]),
            **freshness(item, states, counted, now_ms, counted_in(core, item)),
            "errors": await _errors(core, readers[name]),
            **_source_status(item, catalog, live.of(counted, live.SOURCE, name)),
            **_sink_status(item, live.of(counted, live.SINK, name)),
            **_last_step(item, counted),
            **_said(name, said),
        }
        for name, item in named.items()
    }
    return {
        "epoch": catalog.epoch,
        "mode": core.mode.value,
        "persist": core.client.metrics.counts(),
        "writer_persist": None if writers is None else persists,
        "holder": None if (holder := catalog.holder) is None else str(holder),
        "holder_lives": None if holder is None else lives(holder, core.assembly.processes),
        "opening": None if (opening := await core.opening.process(holder)) is None else str(opening),
        "collections": collections,
        "sources": {
            item.name: {
                "connector": item.connector,
                **_place(catalog, item),
                "connections": sorted(connections_of(item.options).values()),
                "tables": [table.name for table in catalog.fed_by(name)],
                **_said(name, said),
            }
            for name, item in catalog.items.items()
            if isinstance(item, Source | SharedSource)
        },
        "connections": {
            item.name: {"to": item.system, "used_by": catalog.dependents(name)}
            for name, item in catalog.items.items()
            if isinstance(item, Connection)
        },
        "materializations": {
            item.name: {
                **_place(catalog, item),
                **(task := await _task_status(core, report, name, item)),
                "lag": {"ms": max(0, now_ms - task["position"] + 1) if task["position"] else None},
                "moving": live.of(counted, live.MOVING, name) or None,
                "left": [*said_of_left(item)],
                **_said(name, said),
            }
            for name, item in catalog.items.items()
            if isinstance(item, Materialization)
        },
        "indexes": _indexes(catalog, counted, said),
        "instances": await _instances(core),
        "next": await _next(core),
        "waiting": said.waiting,
        "problems": {name: str(why) for name, why in said.problems.items()},
    }


def _said(name: str, said: acknowledged.States) -> dict[str, Any]:
    """Return what stands in an item's way, what it waits for, and what else is said of it."""
    return {
        **noticed(said.notices.get(name, [])),
        "waiting": said.waiting.get(name),
        **told(said.problems.get(name)),
    }


def _indexes(catalog: Catalog, counted: dict[str, int], said: acknowledged.States) -> dict[str, Any]:
    """Return what each index is of, and how it has answered in the process that holds it (None: that is not known)."""
    found = {}
    for name, item in catalog.items.items():
        if isinstance(item, IndexItem):
            counters = live.of(counted, live.INDEX, name)
            found[item.name] = {
                "on": item.collection,
                "columns": list(item.key),
                "instance": item.instance or None,
                "in_memory": bool(counters["in_memory"]) if "in_memory" in counters else None,
                "peeks": {how: counters.get(how) for how in ("memory", "scanned")},
                "waiting": said.waiting.get(name),
                **told(said.problems.get(name)),
            }
    return found


async def _instances(core: Core) -> dict[str, Any]:
    """Return the instances, each with its replicas, and how these are, as far as the writer has said it."""
    if core.writing is None:
        said = await core.health.published_replicas.read()
    else:
        said = core.writing.running.replicas()
    return {
        item.name: {
            "items": core.catalog.dependents(name),
            "replicas": seen(item.replicas, said.get(name, {})),
        }
        for name, item in core.catalog.items.items()
        if isinstance(item, InstanceItem)
    }


async def _next(core: Core) -> dict[str, Any] | None:
    """Return how far the next version is, if one is prepared: whether it can be promoted, and if not, why.

    By view the reason why that has not caught up; ``refused``: what else stands in the way.
    """
    version = await core.versions.read()
    if not version.views:
        return None
    views = {}
    for name, each in version.views.items():
        reader = await core.client.reader(each.shard, each.view.schema, name) if each.shard else None
        state = None if reader is None else await reader.refresh()
        views[each.view.name] = {
            "upper": None if state is None else state.upper.at,
            "lag_ms": lag_ms(state, core.assembly.clock.now_ms()),
            "behind": version.behind.get(name),
            "later": version.later.get(name),
        }
    refused = version.refused(core.catalog)
    ready = not (version.behind or refused)
    return {"ready": ready, "refused": refused or None, "asked": bool(version.asked), "views": views}


def _place(catalog: Catalog, item: Item) -> dict[str, str]:
    """Return the instance that an item runs in; nothing if it runs in the process of the environment."""
    instance = place_of(item, catalog)
    return {"instance": instance} if instance else {}


def _collection(core: Core, item: Collected, state: ShardState | None) -> dict[str, Any]:
    """Return what the shard of a collection says, as far as there is one."""
    return {
        "kind": kind_of(item),
        **_place(core.catalog, item),
        "since": None if state is None else join((state.since, Frontier(begins_of(item)))).at,
        "upper": None if state is None else state.upper.at,
        "updates": 0 if state is None else sum(b.rows for b in state.batches),
        "parts": 0 if state is None else sum(len(b.parts) for b in state.batches),
        "sort": [] if state is None else list(state.sort),
        "keep_history": core.readers.kept(item),
        "refresh": str(item.refresh) if isinstance(item, View) and item.refresh is not None else None,
        "merge_due": 0 if state is None else _merge_due(state),
    }


async def live_counters(core: Core) -> dict[str, int]:
    """Return the live counters of the process that writes; none if it cannot be asked."""
    return core.live() if core.writing is not None else live.split(await _writers(core.client.notifier) or {})[1]


def _merge_due(state: ShardState) -> int:
    """Return how many updates a large merge that is due would rewrite; 0: none is."""
    plan = due(state)
    return plan.updates if plan is not None and plan.large else 0


async def _writers(notifier: Notifier) -> dict[str, int] | None:
    """Return what the process that writes has met, if it is another one and can be asked."""
    if not isinstance(notifier, PushClient):
        return None
    await notifier.connect()
    return notifier.counters


def _sink_status(item: object, counters: dict[str, int]) -> dict[str, Any]:
    """Return what the sinks of a view did in the process that writes, since it was opened; None: it cannot be asked."""
    return {"sink": counters or None} if isinstance(item, View) else {}


def _last_step(item: object, counted: dict[str, int]) -> dict[str, Any]:
    """Return what a view reads, and what its stages' last steps read and took together; None: not known here."""
    if not isinstance(item, View):
        return {}
    steps = [live.last_step(counted, stage) for stage in (*item.stages, item.name.lower())]
    done = [step for step in steps if step is not None]
    cost = {"rows": sum(step.rows_read for step in done), "ms": max((step.ms for step in done), default=0)}
    return {"last_step": cost if done else None, "imports": list(item.imports)}


def _source_status(item: Collected, catalog: Catalog, figures: dict[str, int]) -> dict[str, Any]:
    """Return what a source did for one of its collections, as far as it is known here, and what bounds its errors."""
    if not isinstance(item, Fed):
        return {}
    source = {"source": item.source} if isinstance(item, SourceTable) else {}
    counts = {name: count for name, count in figures.items() if name != "behind"}
    return {**source, "errors_max": on_error.errors_max(catalog.source_options(item)), **counts}


async def _errors(core: Core, reader: ReadHandle | None) -> dict[str, Any]:
    """Return the errors that a collection has now; none where nothing is known of it yet."""
    if reader is None or not reader.state.upper.at:
        return {"rows": 0, "first": [], "since": None}
    return await error_half.tally(core.engine, reader, reader.state.upper.at - 1)


async def _task_status(core: Core, report: Report | None, name: str, item: Materialization) -> dict[str, Any]:
    """Return what the task did here, or, where it does not run, how far its recovery log says it has come."""
    if report is None or name not in report.tasks:
        return {"position": await task_position(core, item)}
    task = report.tasks[name]
    return {
        "phase": task.phase,
        "checkpoint": task.checkpoint,
        "position": task.position,
        "transactions": task.committed.transactions,
        "rows_stored": task.committed.stored,
        "rows_deleted": task.committed.deleted,
        "applied": list(task.applied),
        **({"splits": {each.name: each.position for each in task.splits}} if task.splits else {}),
    }


async def task_position(core: Core, item: Materialization) -> int:
    """Return how far an endpoint has come, as the recovery log says that it has acknowledged."""
    return await reached(item.log, state_keys(item, core.catalog), core.client)


async def task_progress(core: Core, item: Materialization) -> list[Progress]:
    """Return the progress of each of its splits, or of the whole, that the recovery log has."""
    return [each.progress for each in await records(item.log, core.client)]
