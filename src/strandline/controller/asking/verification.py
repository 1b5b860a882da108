"""Verification of a view, its state, or an endpoint; and backfill, which fills tables of an endpoint again.

Verification runs beside ticks: what is compared stays readable until the end.

A backfill is for a table that was dropped or changed by hand, or that needs other types.  It starts at the beginning of
the tables' collections.  The effects are reported beforehand; with ``apply`` it only raises the counters of the
bindings in the catalog, by one compare-and-set.  The next tick runs what the catalog holds, here or in the environment
that opens the location after a crash.  The endpoint's checkpoint does not have the new counters, so the task begins
from nothing there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
from sqlglot import exp

from strandline.algebra.nodes import Filter, Get
from strandline.algebra.notation import readable
from strandline.algebra.scalar import Scalar, call, column, number
from strandline.algebra.schema import Schema
from strandline.compute.care import Halves, afresh, computed
from strandline.compute.plan.meaning import meaning
from strandline.compute.plan.view import PlannedView
from strandline.compute.stage import Stage
from strandline.controller.asking.reads import complete, latest, multiset, shown_at, snapshot, updates
from strandline.controller.asking.status import task_progress
from strandline.controller.commanded import bindings, spec_of, state_keys
from strandline.controller.core import Core
from strandline.controller.holding import Hold
from strandline.controller.location.catalog import Catalog, unknown
from strandline.controller.location.items import Materialization, View
from strandline.controller.planning import define, replanned, seen
from strandline.errors import AsOfError, EvaluationError, InvalidUsage, Unavailable, Unsettled
from strandline.frontier import as_time, shown
from strandline.materialize.protocol.task import Binding, Checkpoint, Progress
from strandline.materialize.reduced import Reduced
from strandline.persist.handles.contents import Rows
from strandline.persist.handles.read import ReadHandle
from strandline.persist.shard.patience import Deadline
from strandline.plane import SIGNIFICANT_DIGITS, Aside, one_by_one


@dataclass(frozen=True, slots=True)
class Refill:
    """One table to be filled again: from which collection, and under which counter."""

    collection: str
    table: str
    backfill: int


async def backfill(core: Core, name: str, collection: str | None, *, apply: bool) -> dict[str, Any]:
    """Return which tables of a materialization a backfill fills again, and what its endpoint does to them.

    ``collection``: only the one that is bound to it; None: all.  ``apply``: do it; the next tick fills them.  Else
    nothing is changed, here or at the endpoint.

    Raises:
        DefinitionError: there is no such materialization, or it does not bind ``collection``; with candidates.  Or the
            endpoint cannot hold the collection.
        InvalidUsage: it is to be applied, and this environment does not write.
        Unavailable: the endpoint does not answer.
    """
    if apply:
        core.require_writing()
    item = materialization(core.catalog, name)
    bound = {each.collection for each in item.bindings}
    if collection is not None and collection.lower() not in bound:
        raise unknown(f"binding of {item.name!r} to", collection, bound)
    wanted = bound if collection is None else {collection.lower()}
    bumped = _bumped(item, wanted)
    actions = await core.assembly.drivers(item.endpoint, item.endpoint_options).preview(spec_of(bumped, core.catalog))
    if apply:
        epoch = core.require_writing().epoch
        await core.catalogs.change(epoch, lambda catalog: _with_bumped(catalog, item.name, wanted))
    refills = [Refill(each.collection, each.table, each.backfill) for each in bumped.bindings]
    return {
        "name": item.name,
        "applied": apply,
        "tables": [asdict(each) for each in refills if each.collection in wanted],
        "actions": list(actions),
    }


def materialization(catalog: Catalog, name: str) -> Materialization:
    """Return the materialization called ``name``.  Raises `DefinitionError` with candidates if there is none."""
    item = catalog.find(name)
    if not isinstance(item, Materialization):
        raise unknown("materialization", name, (n for n, i in catalog.items.items() if isinstance(i, Materialization)))
    return item


def _with_bumped(catalog: Catalog, name: str, collections: set[str]) -> Catalog:
    return catalog.with_item(_bumped(materialization(catalog, name), collections))


def _bumped(item: Materialization, collections: set[str]) -> Materialization:
    bindings = tuple(
        msgspec.structs.replace(each, backfill=each.backfill + (each.collection in collections))
        for each in item.bindings
    )
    return msgspec.structs.replace(item, bindings=bindings)


COMMITTING_S: Final = 5.0
"""How long an endpoint is waited for that is committing a transaction."""
AGAIN_S: Final = 0.5
"""How long after a look it is looked at again."""


class Committing(Unavailable):
    """An endpoint cannot be compared, since a transaction is being committed there whenever it is looked at."""


class MissingErrorsError(EvaluationError):
    """A view has an answer where it must have errors."""


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

    def __repr__(self) -> str:
        return f"<Verification of {str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        if self.tables:
            return "\n".join(map(str, self.tables))
        if self.ok:
            return f"{self.name}: equal at {shown(self.as_of)}" + (" (repaired)" if self.repaired else "")
        lines = [f"{self.name}: {self.missing} missing, {self.extra} extra at {shown(self.as_of)}"]
        for row in self.sample.to_pylist():
            sign = "missing" if row.pop("__diff") < 0 else "extra"
            lines.append(f"  {sign}: {row}")
        return "\n".join(lines)


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

    ``sample``: compare these rows only; such a check is short, and holds nothing.

    Raises:
        AsOfError: the view or an input cannot be read at ``as_of``, or the view was of another query then.
        CollectionError: the view or an input has errors then.
        DefinitionError: there is neither a view nor a materialization of this name.
        MissingErrorsError: the view has no errors then, and must have some.  They are looked for only where plain Spark
            fails.
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
    async with AsyncExitStack() as until:
        lasting = core.readers.of if sample is not None else partial(core.readers.lasting, until=until)
        reader = await lasting(name)
        handles = {each: await _seen_by(view, each, lasting) for each in view.reads}
        time = as_of if as_of is not None else await latest(core, [reader])
        if time < view.query_from:
            since = f"it can be verified from {view.query_from} on"
            raise AsOfError(f"{view.name!r} was of another query at {time}: {since}")
        # A view is only ever ahead of its inputs because another writer wrote to it: then what is known has to do.
        known = time if as_of is not None or not handles else min(time, await complete(handles.values()))
        known = shown_at(view, reader.state, known)
        stored = await snapshot(core, reader, time, Hold())
        checked = partial(_checked, core, view, sample, stored, time=time)
        meant = await _meant(core, view, handles, known, time)
        if meant is not None:
            try:
                return await checked(meant)
            except (EvaluationError, Unsettled):
                pass  # Spark fails on some row: whether the answer depends on this row is decided stage by stage
        return await checked(await _afresh(core, view, handles, known))


async def _checked(
    core: Core, view: View, sample: Sample | None, stored: Rows, wanted: Rows, *, time: int
) -> Verification:
    """Compare what a view holds with what it must hold: those rows that are in ``sample``."""
    if sample is not None:
        planned, _ = await _defined(core, view)
        condition = sample.of(planned.key or view.schema.names)
        rows = Filter(Get("rows", tuple((each, each) for each in view.schema.names)), condition)
        wanted = await core.engine.evaluate(rows, {"rows": wanted}, origin=0)
        stored = await core.engine.evaluate(rows, {"rows": stored}, origin=0)
    return await _compare(core, view.name, view.schema, stored, wanted, time)


async def _defined(core: Core, view: View) -> tuple[PlannedView, tuple[Stage, ...]]:
    """Plan a view over the columns that its query sees, as if no check had found its plan wrong."""
    given = (view.name, view.sql, core.catalog, core.assembly.analyst)
    return await core.assembly.planning(partial(define, *given, narrowed=view.narrowed))


async def _seen_by(view: View, name: str, opened: Callable[[str], Awaitable[ReadHandle]]) -> ReadHandle:
    """Return the handle of what the query of a view calls ``name``, with the columns that it sees of it."""
    handle = await opened(view.reads[name])
    return handle.seeing(seen(handle.schema, view.narrowed.get(name)))


async def _meant(core: Core, view: View, handles: Mapping[str, ReadHandle], known: int, time: int) -> Rows | None:
    """Return plain Spark's answer to the text that says what the view must hold over its inputs at ``known``.

    It is lazy, and has insertions at ``time``.  None: no text says it.
    """
    schemas = {each: handle.schema for each, handle in handles.items()}
    sql = await core.assembly.planning(partial(meaning, view.sql, schemas, core.assembly.analyst))
    if sql is None:
        return None
    relations = {each: await multiset(core, each, handle, known, Hold()) for each, handle in handles.items()}
    _, rows = await core.engine.query(sql, relations, time=time)
    return rows


async def _afresh(core: Core, view: View, handles: Mapping[str, ReadHandle], known: int) -> Rows:
    """Return what the view must hold over its inputs' contents at ``known``, computed by its stages from scratch.

    Raises `MissingErrorsError` if it must have errors.
    """
    read = {each: Halves(await updates(core, handle, known, Hold(), net=True)) for each, handle in handles.items()}
    _, stages = await _defined(core, view)
    found = await afresh(core.engine, stages, read, time=known)
    for errors in found.errors:
        failed = await core.engine.errors(errors)
        if failed.count:
            raise MissingErrorsError(f"{view.name!r} has no errors, and must have {failed.count}: {failed.sample[0]}")
    return found.ok


async def verify_state(core: Core, name: str) -> list[Verification]:
    """Compare the state that each internal stage of a view keeps with what its own inputs hold, inputs first.

    A view may be right while its state is not: what is wrong there comes out at the next change.  Raises as `verify`.
    """
    view = core.catalog.collection(name)
    assert isinstance(view, View), f"{name!r} is not a view"
    async with AsyncExitStack() as until:
        return await _states(core, view, until)


async def _states(core: Core, view: View, until: AsyncExitStack) -> list[Verification]:
    """Compare the states of a view; what they are compared with is readable ``until`` its end."""
    _, stages = await core.assembly.planning(partial(replanned, view, core.catalog, core.assembly.analyst))
    handles = {each: await core.readers.lasting(item, until) for each, item in view.reads.items()}
    found: list[Verification] = []
    for stage in one_by_one("compares state", stages[:-1]):
        label, shard = f"{view.name}/{stage.name}", view.stages.get(stage.name)
        reader = None if shard is None else await core.readers.lasting_state(shard, stage.schema, label, until)
        if reader is None:
            break  # another version defined the view: what this one would keep is not there yet
        handles[stage.name] = reader
        inputs = [handles[each] for each in stage.inputs]
        time = await latest(core, [reader])
        known = shown_at(view, reader.state, min(time, await complete(inputs)) if inputs else time)
        read = {each: Halves(await updates(core, handles[each], known, Hold(), net=True)) for each in stage.inputs}
        wanted = (await computed(core.engine, stage, read, time=known)).ok
        stored = await updates(core, reader, time, Hold())
        found.append(await _compare(core, reader.name, stage.schema, stored, wanted, time))
    return found


async def verify_endpoint(core: Core, name: str) -> Verification:
    """Compare each table of a materialization with its collection at the time that the endpoint has reached.

    Raises:
        DefinitionError: there is no such materialization.
        AsOfError: the endpoint has nothing yet.
        Committing: a transaction is being committed there all the while.
    """
    item = materialization(core.catalog, name)
    bound = bindings(item, core.catalog)
    return _together(item.name, [await _table(core, item, each) for each in one_by_one("compares table", bound)])


async def _table(core: Core, item: Materialization, binding: Binding) -> Verification:
    """Compare one table; while a transaction is being committed, wait a little and look again."""
    if binding.delta:
        raise InvalidUsage(
            f"materialization {item.name!r} pushes changes to {binding.resource!r}: what is there is not to equal "
            f"{binding.collection!r}, so it cannot be verified"
        )
    deadline = Deadline(core.assembly.clock, COMMITTING_S)
    while True:
        async with AsyncExitStack() as until:
            found = await _table_now(core, item, binding, until)
        if isinstance(found, Verification):
            return found
        if deadline.left_s() <= 0:
            raise Committing(f"{binding.resource!r} cannot be compared just now: {found}; ask again in a moment")
        await core.assembly.clock.sleep(AGAIN_S)


async def _table_now(core: Core, item: Materialization, binding: Binding, until: AsyncExitStack) -> Verification | str:
    """Compare one table; if it differs, and that may be no mistake, return why."""
    keys = state_keys(item, core.catalog)
    splits = await task_progress(core, item)
    newest = max(each.checkpoint.time(keys) for each in splits)
    position = min(each.position.time(keys) for each in splits)
    if newest <= (here := core.reached(item)):
        position = max(position, here)
    if not position:
        raise AsOfError(f"materialization {item.name!r} has committed nothing yet")
    reader = await core.readers.lasting(binding.collection, until)
    acknowledged = min(each.acknowledged.time(keys) for each in splits)
    committing = f"a transaction of materialization {item.name!r} is being committed"
    at = max(0, acknowledged - 1)
    with core.engine.aside(reader.schema, time=at) as aside, core.engine.aside(reader.schema, time=at) as reduced:
        held = await core.assembly.drivers(item.endpoint, item.endpoint_options).contents(item.name, binding)
        async with aclosing(held.tables) as tables:
            async for table in tables:
                aside.add(table)
        time = position if held.checkpoint is None else _reached(splits, keys, binding, held.checkpoint, position)
        if not time:
            return committing
        try:
            if binding.reduce:
                sure = await _reduce(core, reader, binding, time, reduced)
                wanted = reduced.rows()
            else:
                sure, wanted = True, await updates(core, reader, time - 1, Hold())
        except AsOfError:
            if await task_progress(core, item) == splits:
                raise
            return committing  # it has ended meanwhile, so the earlier time need not be kept any longer
        found = await _compare(core, f"{item.name}/{binding.resource}", reader.schema, aside.rows(), wanted, time - 1)
    if found.ok:
        return found
    if not sure:
        raise InvalidUsage(
            f"{found.name!r} differs from what {binding.collection!r} reduces to now, but cannot be verified: the "
            f"result depends on the order of the rows, which compaction has removed; `strandline backfill` fills the "
            f"table again"
        )
    if held.checkpoint is not None:
        return found
    # An endpoint without a checkpoint may show half a transaction, also one that the log did not have at first.
    if any(each.extent is not None for each in splits) or await task_progress(core, item) != splits:
        return committing
    return found if newest <= position else f"the splits of materialization {item.name!r} are at different times"


async def _reduce(core: Core, reader: ReadHandle, binding: Binding, time: int, into: Aside) -> bool:
    """Put into ``into`` what a table of reduced rows must hold of the collection before ``time``.

    Return whether it must hold just that: False if compaction has removed the order of rows, which decides it.
    """
    contents = await reader.changes(0, time)
    whole = Reduced(binding).whole(as_time(reader.state.since))
    async with aclosing(whole.tables(core.engine.net(contents, key=binding.key, times=True))) as tables:
        async for table in tables:
            into.add(table)
    return not whole.mixed


def _reached(
    splits: Sequence[Progress], keys: Sequence[str], binding: Binding, checkpoint: Checkpoint, position: int
) -> int:
    """Return the time before which a table has everything, as its endpoint says; 0: nothing is committed to it yet.

    It may be beyond ``position``, which the log has, and before it, while it commits what the log has.
    """
    reached = checkpoint.time((binding.state_key,))
    if any(reached < each.checkpoint.time((binding.state_key,)) for each in splits):
        position = min(each.acknowledged.time(keys) for each in splits)
    return max(position, reached)


def _together(name: str, tables: list[Verification]) -> Verification:
    """Return the verifications of several tables as one; its sample is that of the first table that differs."""
    first = next((table for table in tables if not table.ok), tables[0])
    missing, extra = sum(table.missing for table in tables), sum(table.extra for table in tables)
    return Verification(name, first.as_of, missing, extra, first.sample, tables=tuple(tables))


async def _compare(core: Core, name: str, schema: Schema, stored: Rows, wanted: Rows, time: int) -> Verification:
    both = await core.engine.union(schema, [stored, wanted], advance=time, negate=[False, True])
    left = await core.engine.differences(both, schema, significant=SIGNIFICANT_DIGITS)
    return Verification(name, time, left.missing, left.extra, readable(left.sample))
