"""Inquiry: what is asked of an environment and changes nothing: query, verify, status.

A query reads several collections at one time: by default the latest that is complete for all of them, so what it sees
agrees with itself.
``<source>_errors`` is a relation too: the error half of a source, one row an undecodable record.  It can be read
whether there are errors or not; the rows of a collection cannot while it has any (`error_half`).

Source: design pages "compute" (reading, verify), "sources" (error half) and "the public face".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace
from sqlglot import exp

from strandline.algebra.excerpt import within
from strandline.algebra.nodes import Filter, Get, Project, frames
from strandline.algebra.scalar import Scalar, call, cast, column, number
from strandline.algebra.schema import ERROR, Column, Schema
from strandline.compute.plan.meaning import meaning
from strandline.compute.plan.scalars.dialect import parse, position_of, words
from strandline.compute.stage import full_plan
from strandline.controller.asking.backfill import materialization
from strandline.controller.asking.holding import Hold
from strandline.controller.commanded import bindings, log_key, spec_of
from strandline.controller.core import Core
from strandline.controller.location.catalog import ERRORS_SUFFIX, Materialization, Source, View, unknown
from strandline.controller.planning import define
from strandline.engine.sql.edits import Edit
from strandline.errors import AsOfError, InvalidUsage
from strandline.instance import error_half, live
from strandline.instance.tasks import reached
from strandline.persist.handles.definite import read_definitely
from strandline.persist.handles.plane import Contents, Half, Rows
from strandline.persist.handles.read import ReadHandle
from strandline.persist.notices.notify import Notifier
from strandline.persist.notices.push import PushClient
from strandline.persist.shard.state import ShardState
from strandline.persist.shard.trace import due

ERRORS: Final = Schema(
    (Column("file", "string"), Column("line", "bigint"), Column("reason", "string"), Column("raw", "string"))
)
SIGNIFICANT_DIGITS: Final = 12
"""Floats of a view and of plain Spark are equal when they agree to so many decimal digits: Spark adds them in no fixed
order."""


@dataclass(frozen=True)
class Verification:
    """What `verify` found: ``missing`` rows should be there and are not, ``extra`` ones are and should not.

    Of a materialization: the sums over its ``tables``, which holds each by its name.
    """

    name: str
    as_of: int
    missing: int
    extra: int
    sample: pa.Table
    repaired: bool = False
    tables: tuple[Verification, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the collection is exactly right."""
        return not self.missing and not self.extra

    def __str__(self) -> str:
        if self.tables:
            return "\n".join(map(str, self.tables))
        if self.ok:
            return f"{self.name}: equal at {self.as_of}" + (" (repaired)" if self.repaired else "")
        lines = [f"{self.name}: {self.missing} missing, {self.extra} extra at {self.as_of}"]
        for row in self.sample.to_pylist():
            sign = "missing" if row.pop("__diff") < 0 else "extra"
            lines.append(f"  {sign}: {row}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Answer:
    """What a query is answered with: plain rows, and the time at which they are true (None: they never change)."""

    as_of: int | None
    schema: Schema
    rows: Rows


async def query(core: Core, sql: str, as_of: int | None, hold: Hold) -> Answer:
    """Return plain Spark's answer to ``sql`` over the collections it names, all at one time, as plain rows.

    What it reads is kept by ``hold``.

    Raises:
        AsOfError: not every collection can be read at ``as_of``.
        CollectionError: one of them has errors then.
        DefinitionError: Spark refuses the text, or a relation is unknown.
    """
    names = relations_of(core, sql)
    time, relations = await relations_at(core, names, as_of, hold)
    schema, rows = await core.engine.query(sql, relations, time=time)
    return Answer(time if names else None, schema, await core.engine.multiset(rows, schema))


def edit_reads(core: Core, table: str, edit: Edit) -> list[str]:
    """Return the relations that an edit of ``table`` may name, that table too.  Raises `DefinitionError`."""
    read = {table.lower()}
    for excerpt in (*([edit.where] if edit.where else ()), *edit.values.values()):
        with within(excerpt.start):
            read |= set(relations_of(core, excerpt.text))
    return sorted(read)


async def relations_at(
    core: Core, names: Sequence[str], as_of: int | None, hold: Hold
) -> tuple[int, dict[str, tuple[Schema, Rows]]]:
    """Return the multisets of relations at one time (None: the latest complete for all), and that time.

    What is read is kept by ``hold``.  Raises `AsOfError` if one cannot be read at ``as_of``.
    """
    handles = {name: await core.holding_reader(_base(core, name)) for name in names}
    time = as_of if as_of is not None else await latest(handles.values())
    return time, {name: await _multiset(core, name, handles[name], time, hold) for name in names}


async def latest(handles: Iterable[ReadHandle]) -> int:
    """Return the latest time at which all of ``handles`` are complete (0 if there are none).

    Raises `AsOfError` if one of them is not complete at any time yet.
    """
    uppers = {handle.name: (await handle.refresh()).upper for handle in handles}
    for name, upper in uppers.items():
        if upper.at == 0:
            raise AsOfError(f"{name!r} is not complete at any time yet: nothing has been read or computed")
    times = [upper.at for upper in uppers.values() if upper.at is not None]
    return min(times) - 1 if times else 0


def relations_of(core: Core, sql: str) -> list[str]:
    """Return the collections that ``sql`` may name, in lower case; where it cannot be read here, those that occur."""
    known = {name: item for name, item in core.catalog.items.items() if not isinstance(item, Materialization)}
    names = set(known) | {name + ERRORS_SUFFIX for name, item in known.items() if isinstance(item, Source)}
    tree = parse(sql)
    if tree is None:
        occurring = {word.text.lower() for word in words(sql)}
        return sorted(names & occurring if occurring else names)
    tables = (table for table in tree.find_all(exp.Table) if isinstance(table.this, exp.Identifier))
    used = {table.name.lower(): table for table in tables}
    local = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for name in sorted(used.keys() - names - local):
        with within(position_of(used[name], sql)):
            raise unknown("collection", name, names)
    return sorted(used.keys() & names)


def collections_of(core: Core, relations: Iterable[str]) -> list[str]:
    """Return the collections that ``relations`` belong to: of an error half, its source."""
    return sorted({_base(core, name) for name in relations})


@dataclass(frozen=True, slots=True)
class Sample:
    """One of ``parts`` parts of a view's rows, chosen by a hash of its key (all columns, where none is known)."""

    parts: int
    part: int

    def of(self, columns: Sequence[str]) -> Scalar:
        """Return the condition that a row is in the sample."""
        hashed = call("xxhash64", *map(column, columns))
        return Scalar(exp.EQ(this=call("pmod", hashed, number(self.parts)), expression=number(self.part)))


async def verify(core: Core, name: str, as_of: int | None, sample: Sample | None = None) -> Verification:
    """Compare a view with its definite meaning, answered anew by plain Spark at one time: both ways, as multisets.

    ``sample``: compare these rows only.

    Raises:
        AsOfError: the view or an input cannot be read at ``as_of``.
        CollectionError: the view or an input has errors then.
        DefinitionError: there is neither a view nor a materialization of this name.
        InvalidUsage: ``name`` is not a view.
    """
    view = core.catalog.find(name)
    if view is None:
        computed = (n for n, item in core.catalog.items.items() if isinstance(item, View | Materialization))
        raise unknown("view or materialization", name, computed)
    if not isinstance(view, View):
        raise InvalidUsage(
            f"{view.name!r} is a {type(view).__name__.lower()}; only views are computed, so only they are verified"
        )
    reader = await core.reader(name)
    handles = {name: await core.reader(name) for name in view.imports}
    time = as_of if as_of is not None else await latest([reader])
    # A view is only ever ahead of its inputs because another writer wrote to it: then what is known of them has to do.
    known = time if as_of is not None else min(time, await latest(handles.values())) if handles else time
    wanted = await _meant(core, view, handles, known, time)
    stored = await snapshot(core, reader, time, Hold())
    if sample is not None:
        planned, _ = define(view.name, view.sql, core.catalog, core.assembly.analyst)
        condition = sample.of(planned.key or view.schema.names)
        rows = Filter(Get("rows", tuple((each, each) for each in view.schema.names)), condition)
        wanted = await core.engine.evaluate(rows, {"rows": wanted}, origin=0)
        stored = await core.engine.evaluate(rows, {"rows": stored}, origin=0)
    return await _compare(core, view.name, view.schema, stored, wanted, time)


async def _meant(core: Core, view: View, handles: Mapping[str, ReadHandle], known: int, time: int) -> Rows:
    """Return what the view must hold over its inputs' contents at ``known``, as insertions at ``time``.

    Plain Spark answers the text that says it.  Where no text says it, the view's plan is computed from scratch.
    """
    schemas = {each: core.catalog.collection(each).schema for each in view.imports}
    sql = meaning(view.sql, schemas, core.assembly.analyst)
    if sql is not None:
        relations = {each: await _multiset(core, each, handle, known, Hold()) for each, handle in handles.items()}
        _, rows = await core.engine.query(sql, relations, time=time)
        return rows
    read = {each: await _updates(core, handle, known, Hold(), net=True) for each, handle in handles.items()}
    _, stages = define(view.name, view.sql, core.catalog, core.assembly.analyst)
    for stage in stages:
        plan = full_plan(stage)
        read[stage.name] = await core.engine.evaluate(plan, {each: read[each] for each in frames(plan)}, origin=known)
    return read[stages[-1].name]


async def verify_state(core: Core, name: str) -> list[Verification]:
    """Compare the state that each internal stage of a view keeps with what its own inputs hold, inputs first.

    A view may be right while its state is not: what is wrong there comes out at the next change.  Raises as `verify`.
    """
    view = core.catalog.collection(name)
    assert isinstance(view, View), f"{name!r} is not a view"
    handles = {each: await core.reader(each) for each in view.imports}
    _, stages = define(view.name, view.sql, core.catalog, core.assembly.analyst, distrusted=bool(view.distrusted))
    found = []
    for stage in stages[:-1]:
        shard = view.stages.get(stage.name)
        reader = None if shard is None else await core.client.reader(shard, stage.schema, f"{view.name}/{stage.name}")
        if reader is None:
            break  # another version defined the view: what this one would keep is not there yet
        handles[stage.name] = reader
        inputs = [handles[each] for each in stage.inputs]
        time = await latest([reader])
        known = min(time, await latest(inputs)) if inputs else time
        plan = full_plan(stage)
        read = {each: await _updates(core, handles[each], known, Hold(), net=True) for each in sorted(frames(plan))}
        wanted = await core.engine.evaluate(plan, read, origin=known)
        stored = await _updates(core, reader, time, Hold())
        found.append(await _compare(core, reader.name, stage.schema, stored, wanted, time))
    return found


async def verify_endpoint(core: Core, name: str) -> Verification:
    """Compare each table of a materialization with its collection at the time that the endpoint has reached.

    Raises:
        DefinitionError: there is no such materialization.
        AsOfError: the endpoint has nothing yet.
    """
    item = materialization(core.catalog, name)
    endpoint = core.assembly.drivers(item.endpoint, item.endpoint_options)
    position = await _reached(core, item)
    if not position:
        raise AsOfError(f"materialization {item.name!r} has committed nothing yet")
    found = []
    for binding in bindings(item, core.catalog):
        reader = await core.reader(binding.collection)
        wanted = await _updates(core, reader, position - 1, Hold())
        with core.engine.aside(reader.schema, time=position - 1) as aside:
            await endpoint.contents(binding, aside.add)
            of = f"{item.name}/{binding.resource}"
            found.append(await _compare(core, of, reader.schema, aside.rows(), wanted, position - 1))
    return _together(item.name, found)


def _together(name: str, tables: list[Verification]) -> Verification:
    """Return the verifications of several tables as one; its sample is that of the first table that differs."""
    first = next((table for table in tables if not table.ok), tables[0])
    missing, extra = sum(table.missing for table in tables), sum(table.extra for table in tables)
    return Verification(name, first.as_of, missing, extra, first.sample, tables=tuple(tables))


async def status(core: Core) -> dict[str, Any]:
    """Return all there is to say about the environment: plain data, as ``strandline status --json`` prints it.

    Problems are those that this process knows, if it writes; else those that the last writer published.
    """
    catalog = core.catalog
    if core.writing is None:
        problems, notices = await core.board.read(), await core.noticeboard.read()
    else:
        problems, notices = core.all_problems(), core.notices()
    writers = await _writers(core.client.notifier)
    persists, theirs = live.split(writers or {})
    counted = theirs if core.writing is None else core.live()
    collections = {}
    for name, item in catalog.items.items():
        if isinstance(item, Materialization):
            continue
        reader = await core.client.reader(item.shard, item.schema, item.name)
        state = None if reader is None else await reader.refresh()
        collections[item.name] = {
            "kind": type(item).__name__.lower(),
            "since": None if state is None else state.since.at,
            "upper": None if state is None else state.upper.at,
            "updates": 0 if state is None else sum(b.rows for b in state.batches),
            "parts": 0 if state is None else sum(len(b.parts) for b in state.batches),
            "keep_history": core.kept(item),
            "merge_due": 0 if state is None else _merge_due(state),
            "errors": await _errors(core, reader),
            **_source_status(core, name, item),
            **_sink_status(item, live.of(counted, live.SINK, name)),
            "notices": notices.get(name, []),
            "problem": problems.get(name),
        }
    return {
        "epoch": catalog.epoch,
        "mode": core.mode.value,
        "persist": core.client.metrics.counts(),
        "writer_persist": None if writers is None else persists,
        "holder": None if catalog.holder is None else str(catalog.holder),
        "collections": collections,
        "materializations": {
            item.name: {
                **await _task_status(core, name, item),
                "moving": live.of(counted, live.MOVING, name) or None,
                "problem": problems.get(name),
            }
            for name, item in catalog.items.items()
            if isinstance(item, Materialization)
        },
        "problems": problems,
    }


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


def _source_status(core: Core, name: str, item: object) -> dict[str, Any]:
    if not isinstance(item, Source) or core.writing is None or name not in core.writing.instance.ingestions:
        return {}
    counts = core.writing.instance.ingestions[name].status
    return {
        "read_records": counts.read_records,
        "reread_records": counts.reread_records,
    }


async def _errors(core: Core, reader: ReadHandle | None) -> dict[str, Any]:
    """Return the errors that a collection has now; none where nothing is known of it yet."""
    if reader is None or not reader.state.upper.at:
        return {"rows": 0, "first": [], "since": None}
    return await error_half.tally(core.engine, reader, reader.state.upper.at - 1)


async def _task_status(core: Core, name: str, item: Materialization) -> dict[str, Any]:
    """Return what the task did here, or, where it does not run, how far its recovery log says it has come."""
    if core.writing is None or name not in core.writing.instance.tasks:
        return {"position": await _reached(core, item)}
    task = core.writing.instance.tasks[name].status
    return {
        "phase": task.phase,
        "checkpoint": task.checkpoint,
        "position": task.position,
        "transactions": task.committed.transactions,
        "rows_stored": task.committed.stored,
        "rows_deleted": task.committed.deleted,
        "applied": list(task.applied),
    }


async def _reached(core: Core, item: Materialization) -> int:
    return await reached(log_key(item), spec_of(item, core.catalog), core.client)


async def _compare(core: Core, name: str, schema: Schema, stored: Rows, wanted: Rows, time: int) -> Verification:
    both = await core.engine.union(schema, [stored, wanted], advance=time, negate=[False, True])
    left = await core.engine.differences(both, schema, significant=SIGNIFICANT_DIGITS)
    return Verification(name, time, left.missing, left.extra, left.sample)


def _base(core: Core, name: str) -> str:
    if core.catalog.find(name) is None and name.endswith(ERRORS_SUFFIX):
        return name.removesuffix(ERRORS_SUFFIX)
    return name


async def snapshot(core: Core, handle: ReadHandle, time: int, hold: Hold, half: Half = Half.OK) -> Rows:
    """Return the updates that a collection's contents at ``time`` sum up to; what they lie in is kept by ``hold``.

    Raises:
        AsOfError: it cannot be read at ``time``.
        CollectionError: it has errors then.
    """
    if half is Half.OK and not _forgiven(core, handle):
        await error_half.refuse(core.engine, handle, time)
    return await _updates(core, handle, time, hold, half)


async def refuse_changes(core: Core, handle: ReadHandle, lower: int, upper: int) -> None:
    """Raise `CollectionError` if the collection has errors at a time in ``[lower, upper)``."""
    if not _forgiven(core, handle):
        await error_half.refuse_in(core.engine, handle, lower, upper)


def _forgiven(core: Core, handle: ReadHandle) -> bool:
    item = core.catalog.find(handle.name)
    return isinstance(item, Source) and item.forgiven


async def _updates(
    core: Core, handle: ReadHandle, time: int, hold: Hold, half: Half = Half.OK, *, net: bool = False
) -> Rows:
    """Return the updates; ``net``: added up, so that no plan over them evaluates what was withdrawn."""

    async def plan() -> Contents:
        return replace(await handle.snapshot(time, timeout_s=0, half=half), net=net)

    contents, rows = await read_definitely(core.engine, handle, plan)
    hold.take(handle, contents)
    return rows


async def _multiset(core: Core, name: str, handle: ReadHandle, time: int, hold: Hold) -> tuple[Schema, Rows]:
    if _base(core, name) == name:
        rows = await snapshot(core, handle, time, hold)
        return handle.schema, await core.engine.multiset(rows, handle.schema)
    rows = await snapshot(core, handle, time, hold, Half.ERR)
    paths = ((c, exp.Literal.string(f"$.{c.name}")) for c in ERRORS)
    fields = tuple((c.name, Scalar(cast(call("get_json_object", column("error"), at), c.type))) for c, at in paths)
    parsed = await core.engine.evaluate(Project(Get("errors", (("error", ERROR),)), fields), {"errors": rows})
    return ERRORS, await core.engine.multiset(parsed, ERRORS)
