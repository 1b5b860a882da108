"""Figures: the state of every item of an environment in numbers, as the process that writes knows it from memory.

`figures` reads no store and starts no job, so it may be called every second.  `controller.asking.status` looks at the
location itself and is the same in every process; the figures are what the writing process already knows, with what each
item reads.

Errors of collections are counted by `errors`, which may start a job: only where `Seen` shows that some came or went.

ACKNOWLEDGE is here too: an operator has seen the notices of an item, so they are shown no longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import msgspec

from strandline.compute.rules.explanation import Explanation
from strandline.controller.asking.status import counted_in, freshness
from strandline.controller.commanded import place_of
from strandline.controller.core import Core
from strandline.controller.defining.explaining import explain_view
from strandline.controller.instances.replicas import seen
from strandline.controller.introspection.definition import definition
from strandline.controller.location.catalog import made_of, unknown
from strandline.controller.location.config import Mode
from strandline.controller.location.items import (
    SUBSCRIBED,
    Collected,
    Connection,
    IndexItem,
    InstanceItem,
    Item,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    View,
    kind_of,
)
from strandline.controller.standing import complete
from strandline.errors import InvalidUsage, StrandlineError
from strandline.frontier import MINIMUM, as_time
from strandline.instance import error_half, live
from strandline.options import holds_secret
from strandline.persist.shard.state import ShardState
from strandline.problem import noticed, told

HIDDEN: Final = "…"


def figures(core: Core) -> dict[str, Any]:
    """Return the figures of the environment and, by name, of its items: plain data, in the order of their creation.

    ``reads``: the names of what an item is made of.  ``lag``: as in `status`.  ``rows``: the sum of all diffs, so an
    error counts as a row.  ``seen``: changes where errors came or went; None: the collection never had one.
    """
    writing, catalog = core.require_writing(), core.catalog
    report, problems, counted = writing.running.report(), core.health.problems(), core.live()
    said = core.parted(problems, report.notices)
    named = {name: item for name, item in catalog.items.items() if isinstance(item, Collected)}
    states = {name: core.client.known(item.shard) for name, item in named.items()}
    now_ms, found = core.assembly.clock.now_ms(), {}
    for name, item in catalog.items.items():
        if name.startswith(SUBSCRIBED):
            continue
        figures: dict[str, Any] = {"kind": kind_of(item), "instance": place_of(item, catalog)}
        figures["reads"] = [catalog.items[each].name for each in made_of(item) if each in catalog.items]
        match item:
            case Materialization():
                position = as_time(report.frontiers.get(name, MINIMUM))
                figures |= {
                    "upper": position or None,
                    "lag": {"ms": max(0, now_ms - position + 1) if position else None},
                }
                figures |= _task(report.tasks[name]) if name in report.tasks else {}
            case IndexItem():
                figures["index"] = live.of(counted, live.INDEX, name)
            case InstanceItem():
                known = seen(item.replicas, writing.running.replicas().get(name, {}))
                figures["replicas"] = {each: {"obeys": False, **status} for each, status in known.items()}
            case _ if isinstance(item, Collected):
                unit = counted_in(core, item)
                figures |= freshness(item, states, counted, now_ms, unit) | {"unit": unit} | _shard(states[name])
                figures["done"] = live.of(counted, live.SINK, name) | live.of(counted, live.SOURCE, name)
                figures["step"] = _step(counted, item)
                figures["refresh"] = str(item.refresh) if isinstance(item, View) and item.refresh is not None else None
        figures |= noticed(said.notices.get(name, [])) | {"waiting": said.waiting.get(name)}
        figures |= told(said.problems.get(name))
        found[item.name] = figures
    return {
        "now_ms": now_ms,
        "tick_ms": core.config.tick_ms,
        "generation": writing.epoch,
        "complete": complete(catalog, problems, report.frontiers, core.health.time or 0, report.notices),
        "items": found,
        "others": {name: told(problem) for name, problem in said.problems.items() if name not in catalog.items},
        "store": core.client.metrics.counts(),
        "steps": {stage: asdict(done) | {"draft": None} for stage, done in live.last_steps(counted).items()},
    }


async def errors(core: Core, name: str) -> dict[str, Any]:
    """Return how many errors a collection has, the first of them, and since when; see `error_half.tally`."""
    reader = await core.readers.of(name)
    state = await reader.refresh()
    if not state.upper.at:
        return {"rows": 0, "first": [], "since": None}
    found = await error_half.tally(core.engine, reader, state.upper.at - 1)
    return found | {"told": [error_half.described(each) for each in found["first"]]}


def described(core: Core, name: str) -> dict[str, Any] | None:
    """Return what an item is: its definition, columns and plan, and who holds it; None: there is no such item.

    ``plan`` is None of what is no view, and where the view cannot be planned now.
    """
    item = core.catalog.find(name)
    if item is None:
        return None
    state = core.client.known(item.shard) if isinstance(item, Collected) else None
    return {
        "name": item.name,
        "definition": definition(without_secrets(item)),
        "columns": [[each.name, each.type] for each in item.schema] if isinstance(item, Collected) else [],
        "read_by": core.catalog.dependents(name),
        "holders": [] if state is None else _holders(state),
        "plan": _plan(core, item) if isinstance(item, View) else None,
    }


def without_secrets(item: Item) -> Item:
    """Return an item to be shown: a secret among its options, which is no reference, is `HIDDEN`."""
    match item:
        case Source() | SharedSource() | SourceTable() | Connection() | Materialization():
            options = {n: HIDDEN if holds_secret(n, text) else text for n, text in item.options.items()}
            return msgspec.structs.replace(item, options=options)
        case _:
            return item


def _plan(core: Core, item: View) -> dict[str, Any] | None:
    if core.require_writing().plans.get(item) is None:
        return None  # it was not planned yet: Spark is not asked for it here
    try:
        found: Explanation = explain_view(core, item.name, core.live())
    except StrandlineError:
        return None
    return {"incremental": found.incremental, "reasons": found.reasons, "text": str(found), "stages": found.stages}


def _holders(state: ShardState) -> list[dict[str, Any]]:
    """Return who keeps times of a shard readable: the critical readers, which no clock drops, and those with leases."""
    critical = [{"name": name, "since": each.since.at, "beat_ms": None} for name, each in state.criticals.items()]
    leased = [{"name": name, "since": each.since.at, "beat_ms": each.beat_ms} for name, each in state.leased.items()]
    return critical + leased


def _shard(state: ShardState | None) -> dict[str, Any]:
    """Return what is known of a collection's shard; nothing if it is not open yet."""
    if state is None:
        return {
            "since": None,
            "upper": None,
            "rows": 0,
            "updates": 0,
            "parts": 0,
            "bytes": 0,
            "seen": None,
            "holders": 0,
        }
    erring = [batch.errors for batch in state.batches if batch.errors]
    return {
        "since": state.since.at,
        "upper": state.upper.at,
        "rows": sum(batch.diffs for batch in state.batches),
        "updates": sum(batch.rows for batch in state.batches),
        "parts": sum(len(batch.parts) for batch in state.batches),
        "bytes": sum(part.size for batch in state.batches for part in batch.parts),
        "seen": f"{state.since}/{erring}" if erring else None,
        "holders": len(state.criticals) + len(state.leased),
    }


def _task(task: Any) -> dict[str, Any]:
    return {
        "phase": task.phase,
        "transactions": task.committed.transactions,
        "rows_stored": task.committed.stored,
        "rows_deleted": task.committed.deleted,
        "moving": asdict(task.moving),
        "splits": len(task.splits),
    }


def _step(counted: Mapping[str, int], item: Collected) -> dict[str, int] | None:
    """Return what the last steps of all stages of a view cost together; None if that is not known here."""
    if not isinstance(item, View):
        return None
    last = [done for stage in (*item.stages, item.name) if (done := live.last_step(counted, stage)) is not None]
    return {"updates": sum(done.rows_read for done in last), "ms": sum(done.ms for done in last)} if last else None


async def acknowledge(core: Core, name: str | None) -> dict[str, Any]:
    """Acknowledge the notices of an item (None: of all), and return them by the item's name.

    Notices that are acknowledged already are not among them: to acknowledge twice is to acknowledge once.  See
    `introspection.acknowledged` for when one is said again.

    Raises:
        DefinitionError: there is no such item; with candidates.
        InvalidUsage: the item has a problem, or waits, and there is no notice of it; or this environment may write
            nothing.
        StoreError, Unavailable: it may not be durable; try again.
    """
    if core.mode is Mode.INDEPENDENT:
        raise InvalidUsage("an independent environment changes nothing; open the location in another mode")
    await core.look()
    catalog, said = core.catalog, await core.states()
    notices = said.notices
    if name is not None:
        if catalog.find(name) is None:
            raise unknown("item", name, catalog.items)
        notices = {each: told for each, told in notices.items() if each == name.lower()}
        if not notices:
            _refuse(name, said.problems.get(name.lower()), said.waiting.get(name.lower()))
    if notices:
        await core.acknowledged.add(catalog, notices)
    named = {each: item.name for each in notices if (item := catalog.find(each)) is not None}
    return {"acknowledged": {named[each]: [str(one) for one in told] for each, told in notices.items()}}


def _refuse(name: str, problem: str | None, waits: str | None) -> None:
    if problem is not None:
        raise InvalidUsage(
            f"{name!r} has a problem, and only notices can be acknowledged: a problem stands until what caused it is "
            f"ended; {problem}"
        )
    if waits is not None:
        raise InvalidUsage(f"{name!r} has no notice that could be acknowledged: {waits}, and goes on by itself")
