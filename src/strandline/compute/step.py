"""One step of one stage: from its inputs' updates to its shard's, exact at every time inside the window.

A step over ``[lower, upper)`` reads, of each input, its updates in the window (Δ) and where the rule wants them its
contents before (old) or both (new), old times advanced to ``lower``.  The rule's plan says which; frames that no rule
asks for are not read.  The result is handed to the stage's sink.  Nothing changed and nothing owed: no job, the upper
moves by an empty append (`quiet` reports this, so that a tick can do many of those at once).

A fresh shard starts at ``as_of``, the last time that all inputs know: its contents there are computed anew from the
inputs' contents, and so they are wherever the shard cannot be trusted, or the care changes that the stage needs.

With a schedule (`strandline.frontier`) a stage reads its inputs up to a refresh, and what changed since the one before
is one time: the refresh.  Its shard is known up to the next one.  If none is due when it is new, it is computed all the
same, and cannot be read before the first one.
Inputs' errors are this stage's too: it appends them as they are, beside its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from msgspec.structs import replace

from strandline.compute.care import Care, Planned, StepPlans, Strategy, care_of, strategies, whole_error
from strandline.compute.lookups import Access
from strandline.compute.rules.rule import Phase, Window, frame, source
from strandline.compute.sides import Bounds, Costs, Sides
from strandline.compute.sink.actor import Sink, Writing, reached
from strandline.compute.sink.correction import Updates
from strandline.compute.stage import BEHIND, STUCK, UNREADABLE, UNWRITTEN, Stage
from strandline.errors import EvaluationError, Unsettled
from strandline.frontier import EMPTY, FOLLOWING, Frontier, Pace, Refresh, as_time, join, meet
from strandline.persist.handles.contents import Contents, Half, Rows
from strandline.persist.handles.read import ReadHandle, contents, erring
from strandline.persist.shard.batch import Staged
from strandline.plane import Engine
from strandline.store.clock import utc_text

SMALL_ROWS_MAX: Final = 200_000
"""A window with fewer input updates than this is likely to give a result that fits in one small part."""
LONG_ROWS_MIN: Final = 200_000
"""A step that reads more updates than this may take so long that no other stage is to wait for it."""
ANEW: Final = "anew"
"""What `Done.window` says of a step that computed the stage anew."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A step of a small window up to where its rows are to be staged: those of ``writing``.

    ``delta``: the same rows, if they are all that is written: the stage's updates from the window's start on.
    ``follows``: the drafts of inputs that it was computed of; they must be appended first, as they are.
    """

    writing: Writing
    rows_read: int
    way: Strategy
    delta: Rows | None = None
    follows: tuple[Draft, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """What a step did: how many input updates it read, and for people, how.

    ``window``: whether it was small or large, or all was computed anew.  ``access``: by the collection and its
    columns, how the rows that matter of it were found.  ``plan``: see `Engine.planned`.  ``ms``: since its wave began,
    at ``at_ms``.  ``draft``: what was appended, if that was all of it.
    """

    rows_read: int
    window: str = ""
    access: Mapping[str, Access] = field(default_factory=dict)
    plan: str = ""
    ms: int = 0
    at_ms: int = 0
    draft: Draft | None = None


Drafted: TypeAlias = tuple[Draft, Staged | BaseException | None]
"""A draft, and what its rows were staged as: nothing, if there are none."""


class StageRun:
    """A stage with its inputs and its sink, in this process."""

    def __init__(
        self,
        stage: Stage,
        engine: Engine,
        inputs: Mapping[str, ReadHandle],
        sink: Sink,
        forgiven: frozenset[str] = frozenset(),
        pace: Pace = FOLLOWING,
    ) -> None:
        """``forgiven``: inputs whose errors are none of this stage's."""
        self.stage = stage
        self._pace = pace
        self.sink = sink
        self._engine = engine
        self._inputs = inputs
        self._forgiven = forgiven
        self._plans = StepPlans(stage)
        self._failed: int | None = None  # a row failed before this time, the last one that did
        self._counted: _Seen | None = None  # the last window that was looked at
        self._began: int | None = None  # the time of its first step, while it is not known whether that has landed
        self._looked_up: int | None = None  # where the last window began for which something was looked up
        self._how = Done(0)  # what is known of the step under way
        self._anew_again = False  # whether the last step computed anew what it could have brought on
        self.costs = Costs()
        """What its steps took."""
        self.last: Done | None = None
        """What the last step did."""
        self.begins_by: int | None = None
        """Where what reads it goes on: a fresh shard begins then at the latest, if its inputs can be read then."""
        self.seed: ReadHandle | None = None
        """The shard in which what its own is to hold was prepared, if it was."""
        self.begins = 0  # no time before this is read of its shard: it goes on here, if it cannot at an earlier one
        self.stepping_ms: int | None = None
        """Since when a tick waits for a step of it (milliseconds); None: it does not."""

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the collections and stages it reads."""
        return tuple(self._inputs)

    @property
    def reads(self) -> tuple[str, ...]:
        """The shards of `inputs`."""
        return tuple(reader.state.shard for reader in self._inputs.values())

    @property
    def needed(self) -> Frontier:
        """The time from which on its inputs, and its own shard, must stay readable.

        It is one step below the start of its next window, also of the next process's: only there can a read separate a
        time from earlier ones.  What it looks up is brought on from the start of the last window.
        """
        if self.sink.writer.state.upper.empty:
            return EMPTY
        known, began = self.known(), None
        if not self.sink.fresh:
            begins = [reached(self.sink.writer.state)]
        else:
            begins, began = [known if known <= self._earliest else Frontier(self._begins(known)[0])], self._began
        begins += [Frontier(time) for time in (self.sink.desired, self._looked_up, began) if time is not None]
        if self.sink.desired is None and self.seed is not None:
            begins.append(reached(self.seed.state))
        return Frontier(max(0, as_time(meet(begins)) - 1))

    @property
    def input_updates(self) -> int:
        """How many updates its inputs hold (as last seen here)."""
        return sum(batch.rows for reader in self._inputs.values() for batch in reader.state.batches)

    @property
    def _refresh(self) -> Refresh | None:
        return self._pace.refresh

    @property
    def _earliest(self) -> Frontier:
        """The first time at which all inputs can be read (as last seen here)."""
        return join(reader.state.since for reader in self._inputs.values())

    def known(self) -> Frontier:
        """How far all inputs are known (as last seen here)."""
        return meet(reader.state.upper for reader in self._inputs.values())

    def quiet(self, upper: Frontier, moving: frozenset[str]) -> bool:
        """Return, by metadata alone, whether nothing changes up to ``upper`` but the upper itself.

        ``moving``: shards of stages that are themselves quiet up to ``upper`` and will be advanced there.  They must be
        known to where the shard is: from there on, only, its certificate leaves open what they hold.
        """
        lower, stands = self.sink.desired, self.sink.writer.state.upper
        if self._refresh is not None:
            return False  # its upper moves by refreshes
        if not (self.sink.known and self.sink.may_write) or lower is None or self.sink.fresh or self.sink.owes:
            return False
        if not (self.sink.seen and Frontier(lower) <= stands):
            return False
        for reader in self._inputs.values():
            known = reader.state.upper
            if not (upper <= known or (reader.state.shard in moving and stands <= known)):
                return False
        return not self._may_change(lower, as_time(upper))

    def rests(self, upper: Frontier) -> bool:
        """Return, by metadata alone, whether it has no refresh before ``upper`` that is still to be made."""
        if self._refresh is None or not self.sink.known or self.sink.fresh:
            return False
        made = self.sink.desired is not None and self._pace.read(upper) <= Frontier(self.sink.desired)
        return made or self.sink.writer.state.upper.empty

    async def takes_long(self, upper: Frontier) -> bool:
        """Return whether the next step takes long, by metadata alone: much has changed, or much is computed anew."""
        known = meet((upper, self.known()))
        if self.input_updates <= LONG_ROWS_MIN or as_time(known) == 0 or not self.sink.may_write:
            return False
        if not self.sink.known:
            await self.sink.open()
        lower, stands, upper = self.sink.desired, self.sink.writer.state.upper, self._pace.read(known)
        if self.sink.fresh:
            return self._earliest < known
        if lower is None:
            return stands < upper
        if upper <= Frontier(lower):
            return False
        changes = sum(each.rows for each in self._changes(lower, as_time(upper)).values())
        return changes > LONG_ROWS_MIN or (changes > 0 and self._anew_again)

    def standing(self, upper: Frontier) -> str:
        """Say what keeps the shard before ``upper``; empty if it is there."""
        if upper <= self.sink.writer.state.upper:
            return ""
        if not self.sink.may_write:
            return UNWRITTEN.said()
        known = meet((upper, self.known()))
        for name, reader in self._inputs.items():
            since = reader.state.since
            if self.sink.fresh and since.at and known <= since:
                return UNREADABLE.said(item=name, since=utc_text(since.at))
        behind = [f"{name!r} (upper {r.state.upper})" for name, r in self._inputs.items() if r.state.upper < upper]
        if behind:
            return BEHIND.said(inputs=", ".join(behind))
        return STUCK.said(at=self.sink.writer.state.upper, upper=upper)

    def audit(self) -> None:
        """Forget what is believed of the shard: the next step recomputes it and appends the difference."""
        self.sink.audit()

    async def draft(self, upper: Frontier) -> Draft | None:
        """Do a `step` over a small window up to where its rows are to be staged; None: `step` has to do all of it.

        Drafts of several stages may be staged together.  `step` must be called with it next.  It raises what that
        raises.
        """
        try:
            begin = await self._begin(meet((upper, self.known())))
            if begin is None or begin.rebuild or await self._care() is not Care.PLAIN:
                return None
            way, lower, end = strategies(Care.PLAIN)[0], begin.time, begin.end
            if not (await self._seen(lower, end)).small or await self._prefers_anew(lower, end):
                return None
            delta, rows_read = await self._changed(way, lower, end)
            alone = len(delta.ok) == 1 and not delta.err and not self.sink.owes and self._refresh is None
            writing = await self.sink.draft(delta, self._pace.stands(end), read=Frontier(end), small=True)
        except (EvaluationError, Unsettled):
            self.sink.forget()
            return None
        except BaseException:
            self.sink.forget()
            raise
        if writing is None:
            return None
        alone = alone and writing.description.lower == lower
        return Draft(writing, rows_read, way, delta.ok[0] if alone else None)

    async def follow(self, upper: Frontier, drafts: Mapping[str, Draft]) -> Draft | None:
        """Do `draft` over what others are about to append, if no other input changes and nothing is looked up.

        ``drafts``: by the shard of the input.  `step` may be called with the result only once those that it `follows`
        have been appended.  None: it has to wait until they are.
        """
        if self.stage.rule is not None or self._refresh is not None:
            return None  # it keeps a state, which has to be looked up; or its upper is another one
        read = {name: drafts[r.state.shard] for name, r in self._inputs.items() if r.state.shard in drafts}
        plans = self._plans.of(Care.PLAIN, Window(frozenset(read), ()))
        deltas = {frame(name, Phase.DELTA): (self._inputs[name].schema, draft.delta) for name, draft in read.items()}
        known = {name: (schema, rows) for name, (schema, rows) in deltas.items() if rows is not None}
        if plans.ok is None or set(plans.frames) != set(known) or not self._may_follow(upper, read):
            return None
        try:
            if await self._care() is not Care.PLAIN:
                return None
            rows = await self._engine.derived(plans.ok, known)
            if rows is None:
                return None
            writing = await self.sink.draft(Updates((rows,)), upper, small=True)
        except BaseException:
            self.sink.forget()
            raise
        follows = tuple(read.values())
        rows_read = sum(draft.rows_read for draft in follows)
        self._how = Done(rows_read, "small")
        return None if writing is None else Draft(writing, rows_read, strategies(Care.PLAIN)[0], follows=follows)

    def _may_follow(self, upper: Frontier, read: Mapping[str, Draft]) -> bool:
        """Return whether the stage stands where ``read`` begin, and these are all that changes up to ``upper``."""
        sink, lower = self.sink, self.sink.desired
        if lower is None or not (sink.known and sink.may_write and sink.seen) or sink.fresh or sink.owes:
            return False
        windows = {(draft.writing.description.lower, draft.writing.description.upper) for draft in read.values()}
        others = {name: reader for name, reader in self._inputs.items() if name not in read}
        return (
            windows == {(lower, upper)}
            and sink.writer.state.upper == Frontier(lower)
            and all(upper <= reader.state.upper for reader in others.values())
            and not any(self._changes(lower, as_time(upper))[name].rows for name in others)
        )

    async def step(self, upper: Frontier, drafted: Drafted | None = None) -> Done | None:
        """Bring the shard up to ``upper``, or to where its inputs are known; None if there is nothing to do.

        ``drafted``: what `draft` returned for ``upper``.

        A step that failed, or was cancelled, leaves nothing behind that the next one would trust.  An expression that
        has no value for some row fails no step, nor one that may have none: it is computed with more care (`care`).

        Raises:
            FencedError: a newer epoch has taken over.
            AsOfError: the since of an input is after a time that the step needs.
            Exception: whatever a store or the engine raises; another step looks at the shard and tries again.
        """
        try:
            return await self._bring(meet((upper, self.known())), drafted)
        except BaseException:
            self.sink.forget()
            raise

    async def _bring(self, known: Frontier, drafted: tuple[Draft, Staged | BaseException | None] | None) -> Done | None:
        failed: set[Strategy] = set()
        done: Done | None = None
        how: Done | None = None
        if drafted is not None:
            done = await self._finished(*drafted)
            if done is None:
                failed.add(drafted[0].way)
        while (begin := await self._begin(known)) is not None:
            care = await self._care()
            anew = care is Care.PLAIN and not begin.rebuild and await self._prefers_anew(begin.time, begin.end)
            possible = strategies(care, rebuild=begin.rebuild, anew=anew)
            way = next((way for way in possible if way not in failed), possible[-1])
            if failed or care is not Care.PLAIN:
                self._failed = begin.end
            self._anew_again = way.anew and not begin.rebuild
            try:
                rows_read = await self._go(way, begin)
            except (EvaluationError, Unsettled) as error:
                if way == possible[-1] or (isinstance(error, Unsettled) and way.care is not Care.PLAIN):
                    raise
                failed.add(way)
                await self._recover()
            else:
                how = self._how if rows_read or how is None else how  # where a window ends, nothing may have changed
                done = Done(rows_read + (0 if done is None else done.rows_read))
                failed = {way for way in failed if way.wide}  # a shorter window holds, most likely, what failed
        if done is not None:
            plan = self._engine.planned(self.sink.writer.shard)
            done = dataclasses.replace(how or self._how, rows_read=done.rows_read, plan=plan, draft=done.draft)
        return done

    async def _finished(self, draft: Draft, staged: Staged | BaseException | None) -> Done | None:
        """Append what a draft came to; return None if it could not be evaluated."""
        if isinstance(staged, EvaluationError | Unsettled):
            await self._recover()
            return None
        if isinstance(staged, BaseException):
            raise staged
        as_drafted = await self.sink.finish(draft.writing, staged)
        return Done(draft.rows_read, draft=draft if as_drafted else None)

    async def _recover(self) -> None:
        """Look at the shard again after an expression had no value for some row."""
        await self.sink.open()
        if self.sink.desired is not None:
            self.sink.audit_if_passed(self._pace.stands(self.sink.desired))

    async def _begin(self, known: Frontier) -> _Begin | None:
        """Return from where on the stage is to be brought on; None if it is where it can be.

        ``known``: how far the inputs are.
        """
        if not self.sink.known:
            await self.sink.open()
        if as_time(known) == 0 or self.sink.writer.state.upper.empty:
            return None  # some input knows nothing yet; or there is no refresh to come
        if self.sink.fresh:  # also where a first step came to nothing: the inputs have gone on since
            time = await self._start(known)
            if time is None:
                return None
            if self.sink.fresh:
                return _Begin(time, time + 1, rebuild=True)
        upper = self._pace.read(known)
        await self.sink.look()
        if self.sink.desired is None and self.seed is not None and not self.sink.doubted:
            await self.sink.adopt(await self.seed.refresh(), self.begins)
        if self.sink.desired is None:
            time = self._pace.rebuilt(max(as_time(self.sink.writer.state.upper), self.begins), self._earliest)
            return None if time is None or upper <= Frontier(time) else _Begin(time, time + 1, rebuild=True)
        lower = self.sink.desired
        if Frontier(lower) < upper:
            self._require(lower - 1)
            return await self._window(lower, as_time(upper))
        if self.sink.owes and self.sink.writer.state.upper < self._pace.stands(lower):
            await self._advance(Updates(), lower, small=True)
            return None if self.sink.desired == lower else await self._begin(known)  # another writer was there first
        return None

    async def _start(self, known: Frontier) -> int | None:
        """Begin the history of a fresh shard, and return at which time; None if that cannot be done yet."""
        if known <= self._earliest or not self.sink.may_write:
            return None  # to begin its history is to write
        time, since = self._begins(known)
        self._began = time if self._began is None else min(time, self._began)
        await self.sink.start(time, since)
        return time

    def _begins(self, known: Frontier) -> tuple[int, int | None]:
        """Return when a fresh shard begins, and from when on it can be read; see `Pace.start`."""
        time, since = self._pace.start(known, self._earliest)
        if self.begins_by is not None and self._earliest <= Frontier(self.begins_by):
            time = min(time, self.begins_by)
        return time, since

    async def _window(self, lower: int, upper: int) -> _Begin:
        """Return the next window to step over: all that there is, or up to the next refresh that changes something."""
        changed = None if self._refresh is None else await self._first_change(lower, upper)
        window = None if changed is None else self._pace.window(lower, changed)
        if window is None:
            return _Begin(lower, upper)
        if window[0] > lower:
            await self._advance(Updates(), window[0], small=True)
        return _Begin(*window)

    async def _advance(self, delta: Updates, read: int, *, small: bool) -> None:
        await self.sink.advance(delta, self._pace.stands(read), read=Frontier(read), small=small)

    async def _care(self) -> Care:
        return care_of(await self.sink.own_errors(self.name))

    def _require(self, time: int) -> None:
        """Raise `AsOfError` if an input cannot separate ``time`` from earlier ones: its old rows would look new."""
        for reader in self._inputs.values():
            reader.require(max(0, time))

    async def _go(self, way: Strategy, begin: _Begin) -> int:
        """Bring the shard on, to the window's end or less; return how many input updates were read."""
        if begin.rebuild:
            return await self._anew(way.care, begin.time)
        if way.wide:
            return await self._change(way, begin.time, begin.end)
        time = await self._first_change(begin.time, begin.end)
        if time is not None and self._refresh is not None:  # the window is one time
            last = begin.end - 1
            return await (self._anew(way.care, last) if way.anew else self._change(way, begin.time, begin.end))
        if time is None or time > begin.time:
            await self._advance(Updates(), begin.end if time is None else time, small=True)
        if time is None:
            return 0
        return await (self._anew(way.care, time) if way.anew else self._change(way, time, time + 1))

    async def _anew(self, care: Care, time: int) -> int:
        """Make the contents at ``time`` what they are by the inputs' contents at it."""
        wanted = {name: await reader.snapshot(time, timeout_s=0) for name, reader in self._inputs.items()}
        rows_read = sum(each.rows for each in wanted.values())
        self._how = Done(rows_read, ANEW)
        self._looked_up = None
        desired = await self._computed(care, wanted, time)
        stored = sum(batch.rows for batch in self.sink.writer.state.batches)
        small = rows_read <= SMALL_ROWS_MAX or 0 < stored <= SMALL_ROWS_MAX  # most of what is stored stays as it is
        await self.sink.replace(desired, time)
        await self._advance(Updates(), time + 1, small=small)
        return rows_read

    async def _computed(self, care: Care, wanted: Mapping[str, Contents], time: int) -> Updates:
        """Return both halves at ``time``, computed anew: insertions at ``time``."""
        inherited = await self._inherited(wanted)
        if care is Care.WHOLE:
            return Updates(err=(await self._engine.evaluate(whole_error(self.stage), {}, origin=time), *inherited))
        window = Window(frozenset(self._inputs), (0,), first=True, small=False)
        plans = self._plans.of(care, window)
        # A row that failed and has left may fail here: then the stage is computed with more care.  To add up all rows
        # before anything is evaluated takes several times as long as the rest.
        net = care is not Care.PLAIN
        read = {name: await self._engine.read(replace(wanted[source(name)[0]], net=net)) for name in plans.frames}
        return await self._evaluated(plans, read, time, inherited)

    async def _change(self, way: Strategy, lower: int, upper: int) -> int:
        """Append what the inputs' changes in the window come to."""
        delta, rows_read = await self._changed(way, lower, upper)
        await self._advance(delta, upper, small=rows_read <= SMALL_ROWS_MAX)
        return rows_read

    async def _changed(self, way: Strategy, lower: int, upper: int) -> tuple[Updates, int]:
        """Return what the inputs' changes in the window come to, and how many these are."""
        seen = await self._seen(lower, upper)
        changed = frozenset(name for name, counts in seen.counts.items() if counts)
        times = sorted({time for counts in seen.counts.values() for time in counts})
        origin = times[0] if times else lower
        window = Window(changed, tuple(time - origin for time in times), small=seen.small)
        plans = self._plans.of(way.care, window)
        bounds = Bounds(lower, upper, origin)
        how = {"here": window.small, "net": way.narrow, "wary": self._wary}
        sides = Sides(self.name, self._engine, self._inputs, self.sink, bounds, **how)
        if plans.lookups:
            self._looked_up = lower
        for lookup in plans.lookups:
            await sides.look_up(lookup)
        self._how = Done(seen.rows, "small" if window.small else "large", sides.access)
        read = {name: await sides.rows(name) for name in plans.frames}
        return await self._evaluated(plans, read, origin, await self._inherited(self._changes(lower, upper))), seen.rows

    async def _prefers_anew(self, lower: int, upper: int) -> bool:
        seen = await self._seen(lower, upper)
        return self.costs.prefer_anew(seen.rows, self.input_updates, times=seen.times, small=seen.small)

    async def _seen(self, lower: int, upper: int) -> _Seen:
        """Return how many updates of the inputs the window has; a step asks for it several times."""
        if self._counted is None or self._counted.window != (lower, upper):
            changes = sorted(self._changes(lower, upper).items())
            counts = {name: await self._engine.times(each) for name, each in changes if each.rows}
            self._counted = _Seen((lower, upper), counts)
        return self._counted

    def _may_change(self, lower: int, upper: int) -> bool:
        """Return whether the inputs may have updates in the window: False is certain."""
        return any(each.rows for each in self._changes(lower, upper).values())

    def _changes(self, lower: int, upper: int) -> Mapping[str, Contents]:
        """Return the inputs' updates in the window: up to a refresh, all of them at it."""
        return self._dated(lower, upper, self._pace.lands(lower, upper))

    def _dated(self, lower: int, upper: int, advance: int) -> Mapping[str, Contents]:
        return {
            name: contents(reader.state, reader.schema, lower, upper, advance=advance)
            for name, reader in self._inputs.items()
        }

    async def _evaluated(
        self, plans: Planned, read: Mapping[str, Rows], origin: int, inherited: Sequence[Rows]
    ) -> Updates:
        both = (plans.ok, plans.err)
        ok, err = [() if p is None else (await self._engine.evaluate(p, read, origin=origin),) for p in both]
        return Updates(ok, (*err, *inherited))

    async def _inherited(self, wanted: Mapping[str, Contents]) -> list[Rows]:
        """Return the inputs' errors: whatever fails below fails here."""
        failed = [erring(replace(each, half=Half.ERR)) for name, each in wanted.items() if name not in self._forgiven]
        return [await self._engine.read(each) for each in failed if each.rows]

    async def _first_change(self, lower: int, upper: int) -> int | None:
        """Return the first time in the window at which an input changes, in a half that counts."""
        found: set[int] = set()
        for name, changes in self._dated(lower, upper, lower).items():
            half = Half.BOTH if erring(changes).rows and name not in self._forgiven else Half.OK
            found.update(await self._engine.times(replace(changes, half=half)) if changes.rows else ())
        return min(found, default=None)

    @property
    def _wary(self) -> bool:
        """Whether an input may hold a row that failed, and its withdrawal, at times that are still distinct."""
        failed = self._failed
        return failed is not None and any(each.state.since <= Frontier(failed) for each in self._inputs.values())


@dataclass(frozen=True, slots=True)
class _Seen:
    """How many updates of each input there are at each time of a window."""

    window: tuple[int, int]
    counts: Mapping[str, Mapping[int, int]]

    @property
    def rows(self) -> int:
        """How many updates there are."""
        return sum(sum(counts.values()) for counts in self.counts.values())

    @property
    def small(self) -> bool:
        """Whether the window is a small one."""
        return self.rows <= SMALL_ROWS_MAX

    @property
    def times(self) -> int:
        """At how many times there are some."""
        return len({time for counts in self.counts.values() for time in counts})


@dataclass(frozen=True, slots=True)
class _Begin:
    """Where a stage is brought on from, and to: anew there if ``rebuild``."""

    time: int
    end: int
    rebuild: bool = False
