"""Bugs that are planted in the rooms above persist, to prove that the world of the whole system sees them.

As in `planted.bugs`: each is a mistake that was once made or could be made, wrong as quietly as it can be, and lives
only while its context is entered.

Trap: these know the rooms' private names on purpose; when one of them goes, the bug must be planted anew, not dropped.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any, Final

import msgspec

from planted.bugs import Bug, registrar
from strandline.algebra.nodes import Negate, Node, UnionAll
from strandline.algebra.schema import ERROR
from strandline.compute import care
from strandline.compute import tick as ticking
from strandline.compute.rules import keyed, linear, top
from strandline.compute.sides import Sides
from strandline.compute.sink import actor as sinking
from strandline.compute.sink.actor import Sink
from strandline.compute.sink.correction import Correction, Updates
from strandline.compute.step import StageRun
from strandline.controller import health, retention
from strandline.controller.health import Health, Published
from strandline.controller.location.catalog import Catalog
from strandline.controller.writing import Writing
from strandline.errors import StrandlineError
from strandline.frontier import Frontier, Offsets, as_time
from strandline.instance import error_half, tables
from strandline.instance.instance import Instance
from strandline.instance.problems import Problems
from strandline.instance.running.views import Dataflows
from strandline.instance.tasks import CollectionFeed
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol.task import Checkpoint
from strandline.materialize.runtime import Task
from strandline.persist.handles.contents import Rows
from strandline.persist.handles.read import contents
from strandline.persist.together.transactions import Transactions
from strandline.sources import reclock
from strandline.sources.ingest import Ingestion
from strandline.sources.reclock import Remap, Slice
from strandline.sources.remap import RemapShard
from strandline.sources.steps import Advanced, Stepped, Steps
from strandline.testing.lists.list_engine import Listed, listed
from strandline.testing.lists.list_source import ListReader
from worlds.outside import StagedSession

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)
WATCHED_BUGS: Final[list[Bug]] = []
watched_bug = registrar(WATCHED_BUGS)
"""Those of what is said beside ticks: the histories in which it is looked at must see them."""

# ---- sources ---------------------------------------------------------------------------------------------------------

_slices = Remap.slices


@bug("a step begins one binding too early", (Remap, "slices"))
def binding_read_twice(self: Remap, lower: Frontier, upper: Frontier) -> tuple[Slice, ...]:
    """Begin where nothing was read yet."""
    found = _slices(self, lower, upper)
    return (replace(found[0], lower=reclock.NOTHING_READ), *found[1:]) if found else found


_tick_source = Ingestion.tick


@bug("what is bound is committed upstream before it is durable", (Ingestion, "tick"))
async def forgotten_too_early(self: Ingestion, time: int, *, wait: bool = False) -> Any:
    """Commit at the binding."""
    ticked = await _tick_source(self, time, wait=wait)
    if isinstance(ticked, Advanced):
        await self._reader.commit(self._remap.remap.frontier)
    return ticked


@bug("a restart resumes one binding too far", (Remap, "resume"))
def resumed_too_far(self: Remap, uppers: Any) -> Any:
    """Forget all that is bound."""
    return self.frontier


@bug("a binding counts as durable when it is made", (RemapShard, "mint"))
async def binding_not_durable(self: RemapShard, time: int, offsets: Any) -> Remap:
    """Keep the binding in memory."""
    if self._remap.upper.beyond(time):
        self._remap = self._remap.mint(time, offsets)
    return self._remap


_append_data = Steps._append
BATCH_LATE_MS: Final = 1_000


@bug("data that were lost on the way count as appended", (Steps, "_append"))
async def batch_forgotten(self: Steps, staged: Any, lower: Frontier, upper: Frontier) -> Stepped:
    """Append the empty batch where it comes late."""
    soon = as_time(upper) - as_time(lower) < BATCH_LATE_MS
    return await _append_data(self, staged if soon else [], lower, upper)


@bug("what is behind another step's upper is appended behind it", (Steps, "step"))
async def appended_from_memory(self: Steps) -> Stepped:
    """Read and append from the upper that was seen when the source was opened."""
    first = self.__dict__.setdefault("_first", self._data.state.upper)
    upper = self._remap.remap.upper
    await self._data.refresh()
    lower = self._data.state.upper
    if upper <= lower:
        return await _step_source(self)
    slices = self._remap.remap.slices(first, upper)
    staged = [
        await self._stage([replace(s, time=max(s.time, as_time(lower))) for s in slices], lower, upper, again=False)
    ]
    return await self._append(staged if slices else [], lower, upper)


_step_source = Steps.step


@bug("errors are staged without their position, so that none can be taken back", (Steps, "_stage"))
async def errors_unlocated(self: Steps, slices: Any, lower: Frontier, upper: Frontier, *, again: bool) -> Any:
    """Read once."""
    return await self._read(slices, lower, upper, locate=False)


_rows_of_source = ListReader.read


@bug("what cannot be decoded is left out", (ListReader, "read"))
async def undecodable_left_out(self: ListReader, slices: Any, *, table: str, locate: bool) -> Any:
    """Return the good rows."""
    found = listed(await _rows_of_source(self, slices, table=table, locate=locate))
    return Rows(Listed(found.names, tuple(row for row in found.rows if row.get(ERROR) is None)))


# ---- compute ---------------------------------------------------------------------------------------------------------


@bug("any certificate of the shard's upper is believed", (sinking, "_certified"))
def certificate_believed(state: Any, fingerprint: str) -> int | None:
    """Compare nothing."""
    return state.upper.at if state.certificate is not None else None


@bug("what others wrote is taken note of, and not owed", (Sink, "look"))
async def foreign_rows_kept(self: Sink) -> None:
    """Move on."""
    self._accounted = self.writer.state.upper


_first_change = StageRun._first_change


@bug("what is computed anew is so at the window's last time of change alone", (StageRun, "_first_change"))
async def times_passed_over(self: StageRun, lower: int, upper: int) -> int | None:
    """Look on until there is none."""
    found, at = None, lower
    while (time := await _first_change(self, at, upper)) is not None:
        found, at = time, time + 1
    return found


@bug("what is desired is given up together with a refused batch", (Correction, "withdraw"))
def desired_given_up(self: Correction, stored: Any) -> None:
    """Owe the withdrawal alone."""
    self._held[:] = [(stored, True)]


@bug("a sink believes that a failed append happened (finding 1)", (Sink, "forget"))
def append_believed(self: Sink) -> None:
    """Forget nothing."""


_old_side = Sides._old


@bug("a join's old sides hold the window's updates, too", (Sides, "_old"))
def old_side_new(self: Sides, collection: str) -> Any:
    """Read what is old up to the window's end."""
    old = _old_side(self, collection)
    if old is None or collection == self._name:
        return old
    reader, bounds = self._inputs[collection], self._bounds
    return contents(reader.state, reader.schema, 0, bounds.upper, advance=bounds.origin)


@bug("a step gives all its updates the time of its upper", (Sink, "draft"))
async def times_lost(self: Sink, delta: Updates, upper: Frontier, *, small: bool) -> Any:
    """Draft the window as if all of it were at its end."""
    at = as_time(upper) - 1
    ok = [await self._engine.union(self.schema, [rows], advance=at, negate=[False]) for rows in delta.ok]
    return await _draft(self, Updates(tuple(ok), delta.err), upper, small=small)


_draft = Sink.draft


@bug("the errors of an input are not those of the view above", (StageRun, "_inherited"))
async def errors_not_inherited(self: StageRun, wanted: Any) -> list[Any]:
    """Inherit none."""
    return []


def meet_of(one: Offsets, other: Offsets) -> Offsets:
    """Return what both cover."""
    return Offsets({partition: min(end, other[partition]) for partition, end in one.entries if other[partition]})


@bug("what lost messages were is not asked: the rest is taken", (ListReader, "read"))
async def lost_skipped(self: ListReader, slices: Any, *, table: str, locate: bool) -> Any:
    """Believe an upstream that has nothing there any longer."""
    forgotten = self.upstream.forgotten
    here = [replace(each, lower=each.lower.join(meet_of(forgotten, each.upper))) for each in slices]
    return await _rows_of_source(self, here, table=table, locate=locate)


_start_dataflow = Dataflows.start


@bug("the errors of a source that goes on in spite of them are those of the view above", (Dataflows, "start"))
async def nothing_forgiven(self: Dataflows, definition: Any, readers: Any, forgiven: Any = frozenset()) -> None:
    """Forgive none."""
    await _start_dataflow(self, definition, readers)


@bug("a read of what has errors gives its good rows", (error_half, "refuse"))
async def errors_read_past(*_: Any) -> None:
    """Refuse nothing."""


@bug("errors are said to have begun when they were met", (error_half, "_since"))
async def errors_since_now(engine: Any, handle: Any, time: int) -> int:
    """Look at no earlier time."""
    return time


@bug("an input without a notice counts as unchanged", (StageRun, "_may_change"))
def change_missed(self: StageRun, lower: int, upper: int) -> bool:
    """See none."""
    return False


@bug("stages are stepped all together, whatever reads what", (ticking, "levels"))
def levels_ignored(runs: Any) -> list[list[Any]]:
    """Put all into one level."""
    return [list(runs)] if runs else []


@bug("of a query over two inputs only the keys count that one of them touches", (keyed, "UnionAll"))
def keys_of_one_input(inputs: tuple[Node, ...]) -> Node:
    """Take those of the first."""
    return inputs[0]


@bug("where a stored row leaves the first ones, no other comes up", (top, "UnionAll"))
def nothing_comes_up(inputs: tuple[Node, ...]) -> Node:
    """Leave out the rows that are not stored."""
    return UnionAll(inputs[:2])


# ---- tables ----------------------------------------------------------------------------------------------------------

_stage_tables = tables._stage


@bug("of a commit of several tables the first one's rows are written", (tables, "_stage"))
async def one_table_written(changes: Any, engine: Any, time: int) -> Any:
    """Lose the rest."""
    writes = await _stage_tables(changes, engine, time)
    return dict(list(writes.items())[:1])


@bug("a delete does not look whether its rows are there", (tables, "_refuse_absent"))
async def absent_deleted(*_: Any) -> None:
    """Refuse nothing."""


_transact = Transactions.transact


# ---- materialize -----------------------------------------------------------------------------------------------------


_open_log = RecoveryLog.open
_write_log = RecoveryLog.write


_perform = Task._perform


_changes = CollectionFeed.changes


@bug("a window begins one time late", (CollectionFeed, "changes"))
def window_late(self: CollectionFeed, lower: int, upper: int, **options: Any) -> Any:
    """Leave out what changed at its first time."""
    return _changes(self, min(lower + 1, upper) if lower else lower, upper, **options)


_make_feed = CollectionFeed.__init__


@bug("an endpoint goes on with the good rows though it is to wait", (CollectionFeed, "__init__"))
def endpoint_impatient(
    self: CollectionFeed, reader: Any, since: Any, engine: Any, *, item: str, continues: bool = False
) -> None:
    """Never wait."""
    _make_feed(self, reader, since, engine, continues=True, item=item)


_advance_checkpoint = Checkpoint.advance


@bug("a checkpoint says one time more than is stored", (Checkpoint, "advance"))
def checkpoint_too_far(self: Checkpoint, state_keys: Any, upper: int) -> Checkpoint:
    """Round up."""
    return _advance_checkpoint(self, state_keys, upper + 1)


@bug("a staged transaction is applied whenever it is acknowledged", (StagedSession, "acknowledge"))
def applied_twice(self: StagedSession) -> Any:
    """Forget which were."""
    self.place.applied.discard(self.state.get("staged", ""))
    return _apply_staged(self)


_apply_staged = StagedSession.acknowledge

# ---- environment -----------------------------------------------------------------------------------------------------


@bug("what is dropped is forgotten, and never closed", (Catalog, "having"))
def drop_forgotten(self: Catalog, items: Any) -> Catalog:
    """List nothing."""
    return msgspec.structs.replace(self, items=items)


@bug("a drop closes stages that other views use", (Catalog, "having"))
def shared_stage_closed(self: Catalog, items: Any) -> Catalog:
    """Give up all shards of what goes."""
    gone = {s for n, i in self.items.items() if n not in items and hasattr(i, "shards") for s in i.shards}
    return msgspec.structs.replace(self, items=items, dropped=(*self.dropped, *sorted(gone)))


_wanted_sinces = retention.wanted_sinces
_planned = care.planned
_held = Sink.held


@bug("holds follow the policies, whatever still reads the past", (retention, "wanted_sinces"))
def past_let_go(collections: Any, policies: Any, upper: Any, limits: Any, time: Any) -> Any:
    """Ask no stage."""
    return _wanted_sinces(collections, dict.fromkeys(policies, retention.NONE), upper, (), time)


@bug("a remap forgets what is bound and not durable", (retention, "wanted_sinces"))
def remap_let_go(collections: Any, policies: Any, upper: Any, limits: Any, time: Any) -> Any:
    """Take its own upper for the data's."""
    wanted = _wanted_sinces(collections, policies, upper, limits, time)
    remaps = [item.remap for item in collections if hasattr(item, "remap")]
    ends = {remap: upper(remap) for remap in remaps if remap in wanted}
    return wanted | {remap: Frontier(max(0, end.at - 1)) for remap, end in ends.items() if end and end.at}


@bug("an item that could not be opened is not opened again", (Writing, "reconcile"))
async def never_opened_again(self: Writing) -> None:
    """Leave it for the next environment."""


@bug("a problem that is over is still reported", (Problems, "note"))
def problem_kept(self: Problems, name: str, problem: str) -> None:
    """Only add."""
    if problem:
        self[name] = problem


@bug("what stands still without a problem of its own is not reported", (health, "standing"))
def silence(*_: object) -> dict[str, str]:
    """Say nothing."""
    return {}


@watched_bug("a tick that runs long names only what it has begun", (health, "waiting"))
def turn_unsaid(items: Any, behind: Any, under_way: Any, tick_ms: int) -> dict[str, str]:
    """Leave out whose turn is to come."""
    return dict.fromkeys(under_way, "it is under way")


@watched_bug("what a tick said while it ran stays published", (Health, "watch"))
async def said_for_ever(self: Health, instance: Instance, epoch: int) -> None:
    """Publish it in a way that the next tick does not know of."""
    if waits := self.waits(instance):
        self.overdue(waits)
        with suppress(StrandlineError):
            await Published(self.published_problems._register, str).publish(waits | self.problems(), epoch)


@bug("one source's failure ends the tick of all", (Problems, "of"))
def failure_shared(self: Problems, name: str) -> Any:
    """Let it through."""
    return AsyncExitStack()


@bug("a look-up of a new side leaves out what the window adds", (care, "planned"))
def new_taken_for_old(plan: Any) -> Any:
    """Look up the old side."""
    changed, found = _planned(plan)
    return changed, tuple(replace(each, of=each.of.replace(":new", ":old")) for each in found)


_updates = linear.updates


@bug("what a join takes back when a match comes stays", (linear, "updates"))
def padding_kept(node: Any, window: Any) -> Any:
    """Take nothing back."""
    return None if isinstance(node, Negate) else _updates(node, window)


@bug("what is stored for groups is looked up as of before the last step", (Sink, "held"))
def prior_behind(self: Sink, advance: int) -> Any:
    """Leave the newest batch out."""
    held = _held(self, advance)
    return held and msgspec.structs.replace(held, batches=held.batches[:-1])
