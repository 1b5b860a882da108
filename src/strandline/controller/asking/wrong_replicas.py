"""Wrong replicas: found when two of them disagree, named, and stopped, while the views go on.

Replicas run the same commands, so from the same inputs they compute the same rows.  A replica that loses a race and
would have appended other rows reports it (`compute/sink/correction.py`).  Then the controller recomputes what the shard
must hold at that time, by the full plan of its stage.  If the shard holds just that, the reporting replica is wrong.
If not, the replica that wrote it is: the shard knows the name under which it was written, and each replica says which
names are its own.

A replica that computes a change from rows that were wrong before makes no mistake of its own.  So if these rows were
wrong, nothing is decided: the view is audited, and a replica that is wrong in an audit is itself wrong.

A wrong replica is barred (`instances/link.py`) until its process is another one, as long as a right one is connected.
The others withdraw what it has written; all views of its instance are compared, and audited if the rows are not
withdrawn.  A barred replica that still writes is fenced: the epoch under which replicas write is raised.

Times that can no longer be read are not judged: a replica that is wrong will be wrong again.  This runs beside ticks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from strandline.compute.care import Halves, computed
from strandline.compute.sink.correction import Disagreement, inexact
from strandline.compute.stage import Stage
from strandline.controller.asking.reads import complete, latest, shown_at, updates
from strandline.controller.core import Core
from strandline.controller.holding import Hold
from strandline.controller.instances.link import COMPLETE, DISAGREE, UNKNOWN, WRONG, Process
from strandline.controller.instances.replicas import Replicas
from strandline.controller.location.audits import audited
from strandline.controller.location.items import View
from strandline.errors import AsOfError, FencedError, reason
from strandline.frontier import MINIMUM, as_time
from strandline.persist.handles.contents import Rows, StageRequest
from strandline.persist.handles.read import ReadHandle
from strandline.persist.shard.batch import INLINE_PART_BYTES_MAX, Digest, parts_prefix
from strandline.persist.shard.patience import Deadline
from strandline.plane import SIGNIFICANT_DIGITS, Differences
from strandline.problem import joined
from strandline.store.clock import Clock


@dataclass(frozen=True)
class Recomputed:
    """A stage of a view: its shard, and the collections that it reads, by the names that it knows.

    A stage is compared over its own inputs, be they right or wrong.  So an error found here is an error of this stage,
    and not of a stage that it reads.
    """

    core: Core
    view: View
    stage: Stage
    own: ReadHandle
    inputs: Mapping[str, ReadHandle]

    @property
    def name(self) -> str:
        """What an operator knows it as."""
        return self.own.name

    async def latest(self) -> int:
        """Return the latest time at which its shard can be compared.  Raises `AsOfError` if there is none."""
        return await latest(self.core, [self.own])

    async def compare(self, time: int) -> Differences:
        """Return in which rows the shard differs at ``time`` from what it must hold.

        Raises `AsOfError` if that cannot be read then.
        """
        _, wanted = await self._wanted(time)
        stored = await updates(self.core, self.own, time, Hold())
        both = await self.core.engine.union(self.stage.schema, [stored, wanted], advance=time, negate=[False, True])
        return await self.core.engine.differences(both, self.stage.schema, significant=SIGNIFICANT_DIGITS)

    async def digest(self, time: int) -> Digest:
        """Return the digest of the rows that the shard must hold at ``time``.  Raises as `compare`."""
        origin, wanted = await self._wanted(time)
        now, fresh = self.core.client.clock.now_ms(), self.core.client.ids.fresh("b")
        request = StageRequest(
            shard=self.own.state.shard,
            schema=self.stage.schema,
            lower=origin,
            upper=origin + 1,
            prefix=f"{parts_prefix(self.own.state.shard)}{now}-{fresh}/",  # the shard's collector removes what is left
            inline_bytes_max=INLINE_PART_BYTES_MAX,
        )
        staged = await self.core.engine.stage(wanted, request)
        await self.core.engine.discard(staged)
        return staged.digest

    async def _wanted(self, time: int) -> tuple[int, Rows]:
        """Return the rows that it must hold at ``time``, as insertions at a time of its inputs, and that time."""
        state = await self.own.refresh()
        known = min(time, await complete(self.inputs.values())) if self.inputs else time
        known = shown_at(self.view, state, known)
        read = {n: Halves(await updates(self.core, h, known, Hold(), net=True)) for n, h in self.inputs.items()}
        return known, (await computed(self.core.engine, self.stage, read, time=known)).ok


async def recomputed(core: Core, instance: str, shard: str) -> Recomputed | None:
    """Return the stage whose shard is ``shard``, of a view in ``instance``; None if no view has it now."""
    items = core.catalog.items.values()
    for view in [item for item in items if isinstance(item, View) and item.instance == instance]:
        known = core.require_writing().plans.get(view)
        if known is None or shard not in view.shards:
            continue
        final = known.stages[-1].name
        shards = {**view.stages, final: view.shard}
        for stage in [each for each in known.stages if shards.get(each.name) == shard]:
            handles: dict[str, ReadHandle] = {}
            for each in [each for each in known.stages if each.name in {stage.name, *stage.inputs}]:
                shown = view.name if each.name == final else f"{view.name}/{each.name}"
                handle = await core.client.reader(shards[each.name], each.schema, shown)
                if handle is None:
                    return None
                handles[each.name] = handle
            own = handles.pop(stage.name)
            outside = [name for name in stage.inputs if name not in handles]
            read = {name: await core.readers.of(view.reads[name]) for name in outside}
            return Recomputed(core, view, stage, own, handles | read)
    return None


AUDIT_AFTER: Final = 3
"""A shard that is still wrong after so many looks at it is audited; after twice as many again, and so on."""
SHARE: Final = 0.1
"""A shard is recomputed again once its last recomputation was this share of the time since."""
AGAIN_S_MAX: Final = 600.0
"""But after so long at the latest: a clock that is set while something is recomputed makes it seem long."""
LOOKS_S_MAX: Final = 5.0
"""Looks go on within one tick until they have taken so long; the others wait for the next tick."""
OBEYS_WITHIN_S: Final = 5.0
"""A barred replica that has not said by then that it runs nothing, and still writes, is fenced."""


@dataclass(frozen=True, slots=True)
class _Report:
    """What a replica has reported of a shard of its instance."""

    instance: Replicas
    replica: str
    shard: str
    found: Disagreement

    @property
    def place(self) -> tuple[str, str, str]:
        """What the next report of the same kind takes the place of."""
        return self.instance.name, self.replica, self.shard

    @property
    def time(self) -> int:
        """The last time at which the shard holds what they disagree about."""
        lower, upper = as_time(self.found.lower), self.found.upper
        return lower if upper.empty else as_time(upper) - 1


@dataclass(frozen=True, slots=True)
class _Named:
    """A process of a replica that was found wrong: in which view, what to say of it, until when it is to obey.

    ``obeys_by``: None until it is barred.
    """

    process: Process
    view: str
    why: str
    obeys_by: Deadline | None = None


@dataclass(slots=True)
class _Wrong:
    """A shard of an instance that is or may be wrong: how often it was found so, and when it is looked at again."""

    instance: str
    looks: int = 0
    patience: int = AUDIT_AFTER
    """After so many looks it is audited."""
    again: Deadline | None = None
    failed: int = 0
    """So often, one after the other, it could not be looked at."""


@dataclass(slots=True)
class WrongReplicas:
    """Judges what the replicas of one environment report: `turn` beside ticks, `settle` between them."""

    core: Core
    _judged: dict[tuple[str, str, str], Disagreement] = field(default_factory=dict)
    _again: dict[str, Deadline] = field(default_factory=dict)  # by shard, when its reports are judged again
    _named: dict[tuple[str, str], _Named] = field(default_factory=dict)  # by instance and replica
    _unclear: dict[str, tuple[str, str]] = field(default_factory=dict)  # by shard: its view, and what is not mended
    _wrong: dict[str, _Wrong] = field(default_factory=dict)  # by shard
    _audits: set[str] = field(default_factory=set)  # the views that are to be audited
    _fenced: set[Process] = field(default_factory=set)  # those that did not obey
    _fence: bool = False  # whether one of them is still to be fenced

    @property
    def settled(self) -> bool:
        """Whether nothing is to be judged or to be looked at again: then ticks may be left out."""
        return not (self._wrong or self._audits or self._fence or any(True for _ in self._reports()))

    async def turn(self) -> None:
        """Judge what was reported since, stop what is wrong, and look whether what was wrong is right by now.

        Raises `FencedError` if another environment has taken over.  What cannot be judged now is judged later.
        """
        for report in list(self._reports()):
            await self._judge(report)
        self._stop()
        looking = Deadline(self.core.assembly.clock, LOOKS_S_MAX)
        for shard in list(self._wrong):
            if looking.left_s() >= 0:
                await self._look(shard, self._wrong[shard])
        self.core.health.wrong = self._problems()

    async def settle(self) -> None:
        """Ask for the audits that are due, and fence what does not obey: between ticks, as it changes the catalog.

        Raises what stores raise, and `FencedError`; what could not be done is done another time.
        """
        epoch = self.core.require_writing().epoch
        while self._audits:
            name = min(self._audits)
            await self.core.catalogs.change(epoch, partial(audited, name=name))
            self._audits.discard(name)
        if self._fence:
            await self.core.catalogs.change(epoch, lambda catalog: catalog.with_writes_raised(epoch))
            self._fence = False

    # ---- judging -----------------------------------------------------------------------------------------------------

    def _reports(self) -> Iterator[_Report]:
        """Yield what was not judged yet of what the replicas that are trusted have reported."""
        for instance in self.core.require_writing().running.instances.values():
            for name, link in instance.trusted.items():
                for shard, found in link.heard.disagreements.items():
                    report = _Report(instance, name, shard, found)
                    if self._judged.get(report.place) != found:
                        yield report

    async def _judge(self, report: _Report) -> None:
        """Judge a report, unless its shard was recomputed a moment ago; what fails meanwhile is judged later."""
        clock = self.core.assembly.clock
        begun = clock.now_ms()
        if not _due(self._again.get(report.shard)):
            return
        stage = None
        try:
            stage = await recomputed(self.core, report.instance.name, report.shard)
            if stage is not None:
                await self._decide(report, stage)
            self._judged[report.place] = report.found
        except FencedError:
            raise
        except AsOfError:
            self._judged[report.place] = report.found  # it is too late to find out
            self._unclear.pop(report.shard, None)
        except Exception as error:  # noqa: BLE001 - what cannot be judged stops nothing
            if stage is not None:
                self._leave(report, stage, f"which of them is wrong cannot be found out now: {reason(error)}")
        self._again[report.shard] = _after(begun, clock)

    async def _decide(self, report: _Report, stage: Recomputed) -> None:
        """Find out who is wrong: the one that reported, or the one that was faster.  Raises `AsOfError` if too late."""
        found, there = report.found, await stage.compare(report.time)
        before = await self._right_before(report, stage)
        self._unclear.pop(report.shard, None)
        if not there.missing and not there.extra:
            by_itself, differs = before or found.afresh or found.audited, bool(found.missing or found.extra)
            if by_itself and not differs and not inexact(stage.stage.schema):
                differs = found.theirs == await stage.digest(report.time)
            if by_itself and differs:
                self._name(report, stage, report.replica, found.missing, found.extra, found.example)
            return
        wrong = self._wrong.setdefault(report.shard, _Wrong(report.instance.name))
        if before or (found.afresh and found.ours == await stage.digest(report.time)):
            if author := self._author(report):
                self._name(report, stage, author, there.missing, there.extra, there.example)
        elif before is False:
            wrong.looks = max(wrong.looks, AUDIT_AFTER)  # what replicas were given as certified was wrong

    async def _right_before(self, report: _Report, stage: Recomputed) -> bool | None:
        """Return whether the shard was right where the one that reported began; None: that can no longer be read."""
        if report.found.lower == MINIMUM:
            return True
        try:
            found = await stage.compare(as_time(report.found.lower) - 1)
        except AsOfError:
            return None
        return not found.missing and not found.extra

    def _author(self, report: _Report) -> str:
        """Return the replica that has written what another one disagrees with; empty: none that is trusted and there.

        It may have been an earlier process of any replica.
        """
        trusted = report.instance.trusted
        wrote = (name for name, link in trusted.items() if report.found.by in link.heard.writers.get(report.shard, ()))
        return next(wrote, "")

    def _defied(self, instance: str) -> bool:
        """Return whether a replica of ``instance`` is barred, has had the time to obey, and has not; once for each."""
        found = self.core.require_writing().running.instances.get(instance)
        if found is None:
            return False
        late = {
            named.process
            for (of, name), named in self._named.items()
            if of == instance
            and name in found.trust.bars
            and name in found.links
            and not found.trust.obeys(name, found.links[name])
            if named.obeys_by is not None and named.obeys_by.left_s() <= 0
        }
        fresh = late - self._fenced
        self._fenced |= late
        return bool(fresh)

    def _name(self, report: _Report, stage: Recomputed, replica: str, missing: int, extra: int, example: str) -> None:
        """Name a replica as wrong."""
        counted = f"{missing} row(s) missing and {extra} too many, such as {example}"
        differs = counted if missing or extra else "the digest of what it was to write is another one"
        why = f"computed {stage.name!r} wrong at {report.time}: {differs}"
        place, process = (report.instance.name, replica), report.instance.trust.processes[replica]
        if place not in self._named or self._named[place].process is not process:
            self._named[place] = _Named(process, stage.view.name.lower(), why)

    def _leave(self, report: _Report, stage: Recomputed, why: str) -> None:
        """Take note that two replicas disagree, and that it is not known which of them is wrong."""
        about = {"replica": report.replica, "instance": report.instance.name, "stage": stage.name, "why": why}
        self._unclear[report.shard] = stage.view.name.lower(), DISAGREE.said(time=report.time, **about)

    # ---- what follows ------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Bar the replicas that are named, while others are there; forget those whose process is another one."""
        instances = self.core.require_writing().running.instances
        for (name, replica), named in list(self._named.items()):
            instance = instances.get(name)
            if instance is None or instance.trust.processes.get(replica) is not named.process:
                del self._named[name, replica]
            elif replica not in instance.trust.bars and {*instance.obeying} - {instance.links[replica]}:
                instance.bar(replica, f"it {named.why}; it runs nothing until its process is restarted")
                self._named[name, replica] = replace(named, obeys_by=Deadline(self.core.assembly.clock, OBEYS_WITHIN_S))
                for shard in self._shards_of(name):  # it may have written there what none disagreed with
                    self._wrong.setdefault(shard, _Wrong(name))

    def _shards_of(self, instance: str) -> Iterator[str]:
        """Yield the shards of an instance's views, those of inner stages first."""
        for item in self.core.catalog.items.values():
            if isinstance(item, View) and item.instance == instance:
                yield from (*item.stages.values(), item.shard)

    async def _look(self, shard: str, wrong: _Wrong) -> None:
        """Look whether a shard is right by now; have its view audited, if it stays wrong."""
        clock = self.core.assembly.clock
        begun = clock.now_ms()
        if not _due(wrong.again):
            return
        stage = None
        try:
            stage = await recomputed(self.core, wrong.instance, shard)
            found = None if stage is None else await stage.compare(await stage.latest())
        except FencedError:
            raise
        except AsOfError:  # such as that of a view before its first refresh
            wrong.looks += 1
            if wrong.looks >= wrong.patience:
                del self._wrong[shard]
            return
        except Exception as error:  # noqa: BLE001 - it is looked at again
            wrong.again, wrong.failed = _after(begun, clock), wrong.failed + 1
            if stage is not None and wrong.failed >= AUDIT_AFTER:
                why = UNKNOWN.said(stage=stage.name, why=reason(error))
                self._unclear[shard] = stage.view.name.lower(), why
            return
        wrong.again = _after(begun, clock)
        if wrong.failed:
            self._unclear.pop(shard, None)
            wrong.failed = 0
        if stage is None or found is None or not (found.missing or found.extra):
            del self._wrong[shard]
            return
        if stage.own.state.upper.empty:
            kept = f"{found.missing} row(s) missing and {found.extra} too many, such as {found.example}"
            why = COMPLETE.said(stage=stage.name, kept=kept, item=stage.view.name)
            self._unclear[shard] = stage.view.name.lower(), why
            del self._wrong[shard]
            return
        wrong.looks += 1
        if self._defied(wrong.instance):
            self._fence, wrong.looks = True, max(wrong.looks, wrong.patience)  # what it wrote until then is certified
        if wrong.looks >= wrong.patience:
            wrong.looks, wrong.patience = 0, 2 * wrong.patience
            self._audits.add(stage.view.name.lower())

    def _problems(self) -> dict[str, str]:
        """Return what there is to say of each view."""
        instances = self.core.require_writing().running.instances
        there = {shard for item in self.core.catalog.items.values() if isinstance(item, View) for shard in item.shards}
        self._unclear = {shard: each for shard, each in self._unclear.items() if shard in there}
        said = list(self._unclear.values())
        for (name, replica), named in self._named.items():
            instance = instances.get(name)
            if instance is None or replica not in instance.links:
                continue  # it was dropped a moment ago
            if replica not in instance.trust.bars:
                ends = "it runs on, since no other replica is connected"
            elif instance.trust.obeys(replica, instance.links[replica]):
                ends = "it runs nothing until its process is restarted"
            else:
                ends = "it is to run nothing until its process is restarted, and has not said yet that it obeys"
            said.append(
                (named.view, WRONG.said(replica=replica, instance=name, computed_wrong=named.why, how_it_ends=ends))
            )
        found: dict[str, str] = {}
        for view, text in said:
            found[view] = joined((found.get(view, ""), text))
        return found


def _after(begun_ms: int, clock: Clock) -> Deadline:
    """Return until when something that began at ``begun_ms`` and has ended now is not done again."""
    return Deadline(clock, min(AGAIN_S_MAX, max(0, clock.now_ms() - begun_ms) / 1000 / SHARE))


def _due(again: Deadline | None) -> bool:
    return again is None or again.left_s() <= 0
