"""Upkeep by hand: look at shards, check them, compact them, collect their garbage; as plain data.

All of it may run while another process writes: what changes a shard goes through its one commit path, and what is
deleted is named by nothing.  What only looks changes nothing, not even a lease.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from strandline.controller.core import Core
from strandline.controller.location.config import Mode
from strandline.controller.location.items import SharedSource, Source, View
from strandline.controller.location.tenure import lives, released
from strandline.errors import CorruptionError, InvalidUsage, StrandlineError
from strandline.persist.fsck import check_location, held_by_transactions, shards_of
from strandline.persist.shard.batch import named_time, scratch_prefix
from strandline.persist.shard.trace import Merged, everything
from strandline.persist.upkeep.collect import LEAKED_AFTER_MS, Inspection
from strandline.store.clock import Clock
from strandline.store.protocols import Blob


async def shards(core: Core) -> dict[str, str]:
    """Return every shard of the location with the name of its item (or its own id, where no item names it)."""
    names = _names(core)
    return {shard: names.get(shard, shard) for shard in await shards_of(core.client.consensus)}


def damage(core: Core, error: CorruptionError) -> CorruptionError:
    """Return the error with the name of the item whose object is damaged, and with what lists all damage."""
    text = str(error)
    found = [name for shard, name in _names(core).items() if f"{shard}/" in text]
    whose = f"{', '.join(map(repr, found))}: " if found else ""
    return CorruptionError(f"{whose}{text}; `strandline fsck` lists all that is damaged or missing")


def _names(core: Core) -> dict[str, str]:
    """Return what the shards of all items are called."""
    names: dict[str, str] = {}
    for item in core.catalog.items.values():
        match item:
            case Source():
                names |= {item.shard: item.name, item.remap: f"{item.name} (remap)"}
                names[item.progress] = f"{item.name} (progress)"
            case SharedSource():
                names |= {item.remap: f"{item.name} (remap)", item.progress: f"{item.name} (progress)"}
            case View():
                names |= {shard: f"{item.name}/{stage}" for stage, shard in item.stages.items()}
                names[item.shard] = item.name
            case _ if hasattr(item, "shard"):
                names[item.shard] = item.name
    return names


async def named(core: Core, name: str) -> str:
    """Return the shard that ``name`` is, or is the collection of.  Raises as `Catalog.collection` if there is none."""
    if name in await shards(core):
        return name
    return core.catalog.collection(name).shard


async def inspect(core: Core, name: str) -> dict[str, Any]:
    """Return what a shard is: its state, batches, holders, bytes.

    Raises `DefinitionError` if there is no such collection or shard.
    """
    shard = await named(core, name)
    found = await core.client.inspect(shard, await held_by_transactions(core.client))
    if found is None:
        raise InvalidUsage(f"shard {shard!r} was never written")
    return {"name": (await shards(core)).get(shard, name), **_inspected(found)}


async def check(core: Core, *, apply: bool) -> dict[str, Any]:
    """Return the faults of the location's objects; ``apply``: also give up leaked objects.

    Raises `InvalidUsage` if an independent environment is to ``apply`` anything, as all of these do.
    """
    _permit(core, apply=apply)
    findings, names = await check_location(core.client, core.engine), _names(core)
    removed = await _sweep(core) if apply else []
    return {
        "shards": findings.shards,
        "parts": findings.parts,
        "bytes": findings.bytes,
        "harmful": len(findings.harmful),
        "found": [
            {
                "fault": each.fault.name.lower(),
                "of": names.get(each.shard),
                "shard": each.shard,
                "key": each.key,
                "what": each.what,
            }
            for each in findings.found
        ],
        "removed": removed,
    }


async def compact(core: Core, name: str | None, *, apply: bool) -> list[dict[str, Any]]:
    """Return, for each shard that a whole merge would change, what it is now; ``apply``: and what became of it."""
    _permit(core, apply=apply)
    known = await shards(core)
    found = []
    for shard in sorted(known if name is None else [await named(core, name)]):
        compactor = await core.client.compactor(shard)
        if compactor is None:
            raise InvalidUsage(f"shard {shard!r} was never written")
        state = core.client.state_of(shard)
        plan = everything(state)
        if plan is None:
            continue
        shown = {
            "shard": shard,
            "name": known.get(shard, shard),
            "batches": len(plan.inputs),
            "parts": sum(len(batch.parts) for batch in plan.inputs),
            "updates": sum(batch.rows for batch in plan.inputs),
            "outcome": "due",
        }
        if apply:
            shown |= await _merged(core, shard)
        found.append(shown)
    return found


async def collect(core: Core, *, apply: bool) -> list[dict[str, Any]]:
    """Return, for each shard with garbage, what is to be collected; ``apply``: what was."""
    _permit(core, apply=apply)
    found = []
    for shard, name in sorted((await shards(core)).items()):
        collector = await core.client.collector(shard)
        assert collector is not None, f"shard {shard!r} was listed a moment ago"
        done = await (collector.collect() if apply else collector.preview())
        if not done.nothing:
            found.append({"shard": shard, "name": name, **asdict(done)})
    return found


async def release(core: Core) -> str | None:
    """Release a location whose holder died, and return that holder; None if there is none.

    Raises `ConfigError` if it is alive.
    """
    before = await core.catalogs.read()
    await core.catalogs.change(before.epoch, partial(released, processes=core.assembly.processes))
    return None if before.holder is None else str(before.holder)


async def written_by(core: Core) -> str | None:
    """Return the holder that writes the location, unless it is known to be dead; None if there is none."""
    holder = (await core.catalogs.newest()).holder
    dead = holder is None or lives(holder, core.assembly.processes) is False
    return None if dead else str(holder)


def _permit(core: Core, *, apply: bool) -> None:
    if apply and core.mode is Mode.INDEPENDENT:
        raise InvalidUsage(
            "an independent environment changes nothing; open the location in another mode to apply this"
        )


async def _merged(core: Core, shard: str) -> dict[str, Any]:
    compactor = await core.client.compactor(shard)
    assert compactor is not None, f"shard {shard!r} is open"
    try:
        outcome = await compactor.whole()
    except StrandlineError as error:
        return {"outcome": f"failed: {error}"}
    state = core.client.state_of(shard)
    after = {"batches_after": len(state.batches), "parts_after": sum(len(batch.parts) for batch in state.batches)}
    return {"outcome": "merged" if isinstance(outcome, Merged) else "overtaken by another merge", **after}


async def _sweep(core: Core) -> list[str]:
    """Remove the objects that no state names from every shard whose state can be read."""
    held = partial(held_by_transactions, core.client)
    removed = []
    for shard in sorted(await shards(core)):
        collector = await core.client.collector(shard)
        assert collector is not None, f"shard {shard!r} was listed a moment ago"
        try:
            removed += await collector.sweep(held)
        except CorruptionError:
            continue  # fsck reports it as damaged; the parts that it names are not known
    return removed + await sweep_scratch(core.assembly.blob, core.assembly.clock)


async def sweep_scratch(blob: Blob, clock: Clock) -> list[str]:
    """Delete what processes that died had put aside, and return its keys; one that lives needs nothing so old."""
    prefix, before = scratch_prefix(), clock.now_ms() - LEAKED_AFTER_MS
    begun = {key: named_time(prefix, key) for key in await blob.list(prefix)}
    old = [key for key, ms in begun.items() if ms is not None and ms < before]
    return [key for key in old if await blob.delete(key)]


def _inspected(found: Inspection) -> dict[str, Any]:
    state = found.state
    return {
        "shard": state.shard,
        "seqno": state.seqno,
        "since": state.since.at,
        "upper": state.upper.at,
        "epoch": state.epoch,
        "owner": state.owner,
        "schema": state.schema,
        "sort": state.sort,
        "versions": found.versions,
        "rollups": [rollup.seqno for rollup in state.rollups],
        "batches": [
            {**asdict(batch), "lower": batch.lower.at, "upper": batch.upper.at, "since": batch.since.at}
            for batch in found.batches
        ],
        "holders": [{**asdict(holder), "since": holder.since.at} for holder in found.holders],
        "bytes": asdict(found.bytes),
    }
