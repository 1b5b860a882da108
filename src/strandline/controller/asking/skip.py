"""Skip: dismiss a source's undecodable records, once an operator has looked at them; or have it go on without a file.

An undecodable record is an error of the source until its upstream takes it back.  If upstream does not, or cannot, the
operator may pass over it.  The error is withdrawn at a time of its own; at earlier times it is read as before.  The
views above the source are right again with the next tick.  Nothing is dismissed unseen: the operator names the time at
which they looked at the errors, and an error that came later stays.

A file that is gone, or was changed for good, stops its source.  The operator may have the source go on without that
file, and have the file's rows withdrawn.  Errors stay, since they can be dismissed.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sqlglot import exp

from strandline.algebra.nodes import Filter, Get, Project
from strandline.algebra.scalar import Scalar, column, columns
from strandline.algebra.schema import ERROR, Column, Schema
from strandline.controller.asking import reads
from strandline.controller.commanded import reading, runs_in
from strandline.controller.core import Core
from strandline.controller.holding import Hold
from strandline.controller.location.catalog import unknown
from strandline.controller.location.items import Fed, SharedSource, Source
from strandline.errors import InvalidUsage, SourceError, Unavailable, reason
from strandline.frontier import Frontier, Offsets, as_time
from strandline.instance import error_half
from strandline.instance.instance import Instance
from strandline.persist.handles.contents import Half, Rows
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.patience import Deadline
from strandline.problem import cases_of
from strandline.sources.reader import SourceReader, TakenBack
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.sources.remap import RemapShard
from strandline.sources.steps import withdraw

_FAILED: Final = "__failed"


@dataclass
class OtherFiles:
    """The other files of a source, of which ``files`` are not read.

    They are read once: before anything is noted, and again only if the source has taken more of them since.
    ``noted``: the source may have been told already to go on without ``files``.

    No row says which file it comes from.  So all other files are read once more, and the rows that the source has
    beyond theirs belong to the files that are not read.  They are read before anything is noted: if the rows cannot be
    told apart, nothing is changed.
    """

    core: Core
    source: Source
    reader: SourceReader
    files: Sequence[str]
    epoch: int
    hold: Hold = field(default_factory=Hold)
    noted: bool = False
    _read: tuple[Offsets, Rows] | None = None

    @property
    def left(self) -> str:
        """How the source was left where its rows were not withdrawn, and what to do."""
        if not self.noted:
            return "nothing is changed; without --withdraw, the source goes on without the file, and its rows stay"
        return (
            "the source goes on without the file already, and its rows were not withdrawn; withdraw them later: "
            f"{withdrawal(self.source, self.files)}"
        )

    async def beyond(self, at: int) -> tuple[Rows, int]:
        """Return the rows that the source has beyond the other files, as updates of time ``at``, and their number.

        ``at``: or its latest time, if that is later.  It has them at its latest time, so what is bound and not durable
        yet is no difference.

        Raises `InvalidUsage` if the source lacks rows of the other files, or one of these cannot be read.
        """
        core, schema, engine = self.core, self.source.schema, self.core.engine
        handle = await core.readers.of(self.source.name)
        latest = await reads.latest(core, [handle])
        at = max(at, latest)
        remap = await RemapShard.open(await core.client.records(self.source.remap, self.epoch), self.epoch)
        bound = remap.remap.offsets_at(latest)
        there = await self._there(at, bound)
        held, errors = [await reads.updates(core, handle, latest, self.hold, half) for half in (Half.OK, Half.ERR)]

        async def good(frames: Sequence[Rows], *, negate: Sequence[bool]) -> Rows:
            """Return the rows of ``frames`` that are no errors: those of ``errors`` show that some may be."""
            both = await engine.union(schema, [*frames, errors], advance=at, negate=[*negate, True])
            names = (*((name, name) for name in schema.names), (_FAILED, ERROR))
            right = Filter(Get("rows", names), Scalar(exp.Is(this=column(_FAILED), expression=exp.Null())))
            return await engine.evaluate(Project(right, columns(schema.names)), {"rows": both})

        takes_back = isinstance(self.reader.records(""), TakenBack)
        if takes_back and (await engine.differences(await good([there], negate=[False]), schema)).missing:
            raise self._untold("other files take back rows of these")
        change = await good([held, there], negate=[False, True])
        found = await engine.differences(change, schema)
        if found.missing:
            raise self._untold(f"it does not have {found.missing} row(s) that its other files have now{self._before()}")
        return change, found.extra

    async def _there(self, at: int, bound: Offsets) -> Rows:
        """Return the rows of the other files up to ``bound``, as updates of time ``at`` or of an earlier one."""
        if self._read is None or self._read[0] != bound:
            await self.reader.commit(bound)  # so it knows what is durable; it lets nothing leave
            try:
                read = await self.reader.read([Slice(at, NOTHING_READ, bound)], table="", locate=False)
            except SourceError as error:
                raise self._untold(f"{_cause(error)}; withdraw the rows of both together, or put it back") from error
            self._read = bound, read
        return self._read[1]

    def _before(self) -> str:
        """Say what rows of before lack if the source has got columns since; empty: it has not."""
        anew = shlex.join(["strandline", "anew", self.source.name, "--apply"])
        lack = "rows that were read before it got a column have no value in it; to read all of its files again"
        return f" ({lack}: {anew})" if self.source.grown else ""

    def _untold(self, why: str) -> InvalidUsage:
        named = ", ".join(map(repr, self.files))
        return InvalidUsage(
            f"the rows of {named} cannot be told from those of other files of {self.source.name!r}: {why}; {self.left}"
        )


def _cause(error: SourceError) -> str:
    """Return what has happened, without the ways out of it."""
    return "; ".join(case.cause for case in cases_of(reason(error))) or str(error)


def withdrawal(source: Source | SharedSource, files: Sequence[str]) -> str:
    """Return the command that withdraws the rows of ``files``."""
    named = [word for file in files for word in ("--file", file)]
    return shlex.join(["strandline", "source", "skip", source.name, *named, "--withdraw", "--apply"])


CATCHES_UP_S: Final = 10.0
"""How long replicas may take to make durable what is bound."""
POLL_S: Final = 0.1
TRIES: Final = 5
"""How often errors are withdrawn in a race with the replicas that ingest."""

_TEXT: Final = "error"
_TEXTS: Final = Schema((Column(_TEXT, "string"),))


async def skip(core: Core, name: str, as_of: int | None, *, apply: bool, files: Sequence[str] = ()) -> dict[str, Any]:
    """Return the errors that a source has at ``as_of`` (None: the latest time); ``apply``: and dismiss them.

    ``files``: these files instead (`go_on_without`).  Asked again, it finds that all have left: to dismiss them twice
    is to dismiss them once.

    Raises:
        DefinitionError: there is no such source; with candidates.
        AsOfError: it cannot be read at ``as_of``.
        InvalidUsage: it is to be applied, and this environment does not write; or some of the errors, and not all,
            have left since ``as_of``; or a time is given beside files.
        SourceError, Unavailable: it is to be applied, and the source stands still.
    """
    if files and as_of is not None:
        raise InvalidUsage("as_of says which undecodable records are meant, and a file is left out whole")
    if files:
        return await go_on_without(core, name, files, apply=apply, withdraws=False)
    source = core.catalog.find(name)
    if not isinstance(source, Fed):
        core.catalog.collection(name)  # which says what the tables of a source are, if it has some
        raise unknown("source", name, (n for n, item in core.catalog.items.items() if isinstance(item, Fed)))
    feeding = await _feeding(core, source) if apply else None
    if feeding is not None:
        await _caught_up(core, source, feeding)
    reader = await core.readers.of(source.name)
    latest = await reads.latest(core, [reader])
    time = latest if as_of is None else as_of
    seen = await error_half.tally(core.engine, reader, time)
    dismissed = None
    if feeding is not None and seen["rows"]:
        dismissed = await _dismiss(core, source, feeding, reader, time, seen["rows"])
    return {"source": source.name, "as_of": time, **seen, "applied": apply, "dismissed_at": dismissed}


async def go_on_without(core: Core, name: str, files: Sequence[str], *, apply: bool, withdraws: bool) -> dict[str, Any]:
    """Return a source and files that it is to go on without; ``apply``: and have it go on.  ``was``: what they were.

    All files are looked up before anything is noted.  Nothing more of them is read.  What is durable of them stays;
    ``withdraws``: it is withdrawn, and ``withdrawn`` says how many rows.  To skip a file twice is to skip it once.

    Raises:
        DefinitionError: there is no such source, with candidates; it has taken no such file, or reads none.
        InvalidUsage: it is to be applied, and this environment does not write; or the files' rows cannot be told, as
            where another file is gone, too: nothing was changed.
        Unavailable: rows are to be withdrawn, and the source stands still.
    """
    if not files:
        raise InvalidUsage("name the files whose rows are to be withdrawn")
    source = core.catalog.find(name)
    if not isinstance(source, Source | SharedSource):
        raise unknown("source", name, (n for n, item in core.catalog.items.items() if isinstance(item, Source)))
    connectors, wanted = core.assembly.connectors, reading(source, core.catalog, core.config)
    was = await connectors.taken(wanted, files, core.client)
    found: dict[str, Any] = {"source": source.name, "files": list(files), "was": was, "withdrawn": None}
    if not apply:
        return found | {"applied": False}
    epoch = core.require_writing().reads_under(source.name.lower())
    if not withdraws:
        for file in files:
            await connectors.pass_over(wanted, file, core.client, epoch)
        return found | {"applied": True}
    if others := sorted({*await connectors.kept(wanted, core.client, epoch)} - {*files}):
        raise InvalidUsage(
            f"the source goes on without {', '.join(map(repr, others))}, whose rows it has, and they cannot be told "
            f"from those of these files; withdraw them together: {withdrawal(source, [*others, *files])}"
        )
    assert isinstance(source, Source), "a source of files is a collection"
    reader = await connectors.beside(wanted, files, core.client, epoch)
    rest = OtherFiles(core, source, reader, files, epoch)
    try:
        await rest.beyond(0)
        rest.noted = True
        for file in files:
            await connectors.pass_over(wanted, file, core.client, epoch)
        withdrawn = await _withdraw(core, source, rest)
    except (SourceError, Unavailable) as error:  # the reader that runs may still look for the files
        raise Unavailable(f"{error}; {rest.left}") from error
    finally:
        rest.hold.give_back()
        await reader.close()
    for file in files:
        await connectors.pass_over(wanted, file, core.client, epoch, withdrawn=True)
    return found | {"withdrawn": withdrawn, "applied": True}


async def _withdraw(core: Core, source: Source, rest: OtherFiles) -> int:
    """Withdraw the rows that a source has beyond those of its files, and return how many these are."""
    count = 0

    async def beyond(at: int) -> Rows | None:
        nonlocal count
        change, count = await rest.beyond(at)
        return change if count else None

    await _append(core, source, await _feeding(core, source), beyond)
    return count


async def _append(
    core: Core, source: Fed, feeding: _Feeding, found: Callable[[int], Awaitable[Rows | None]]
) -> int | None:
    """Withdraw what is ``found`` for a new time, and return that; None if nothing is found.

    Each try looks anew: what went on meanwhile may have changed what is to be withdrawn.
    """
    oracle = core.require_writing().oracle
    for left in reversed(range(TRIES)):
        oracle.passed(as_time(await _caught_up(core, source, feeding)))
        at = oracle.next()
        if (change := await found(at)) is None:
            return None
        try:
            await feeding.dismiss(change, at)
        except Unavailable:
            if not left:
                raise
        else:
            return at
    raise AssertionError("the last try returns or raises")


class _Feeding(Protocol):
    """What feeds a collection, as it is asked to dismiss errors."""

    async def catch_up(self) -> Frontier | None:
        """Return how far the collection is, once all that is bound is durable; None: it does not come there."""

    async def dismiss(self, errors: Rows, at: int) -> None:
        """Withdraw errors at ``at``.  Raises `Unavailable` if the collection went on meanwhile: nothing is changed."""


@dataclass(frozen=True)
class _Here:
    """A source that runs in this process."""

    instance: Instance
    item: str

    async def catch_up(self) -> Frontier | None:
        """See `_Feeding`."""
        return await self.instance.catch_up(self.item)

    async def dismiss(self, errors: Rows, at: int) -> None:
        """See `_Feeding`."""
        await self.instance.dismiss(self.item, errors, at)


@dataclass(frozen=True)
class _Elsewhere:
    """A source that replicas run: its remap, and one of its outputs, as this process writes them beside them."""

    core: Core
    source: Fed
    remap: RemapShard
    data: WriteHandle

    async def catch_up(self) -> Frontier | None:
        """See `_Feeding`: replicas make it durable."""
        clock = self.core.assembly.clock
        deadline = Deadline(clock, CATCHES_UP_S)
        while True:
            bound, upper = (await self.remap.refresh()).upper, (await self.data.refresh()).upper
            if upper == bound:
                return upper
            if deadline.left_s() <= 0:
                return None
            await clock.sleep(POLL_S)

    async def dismiss(self, errors: Rows, at: int) -> None:
        """See `_Feeding`: a replica may make the time durable first that was bound for it."""
        await withdraw(errors, at, self.source.schema, self.data, self.remap, self.core.engine)


async def _feeding(core: Core, source: Fed) -> _Feeding:
    """Return what feeds ``source``, wherever it runs; in replicas it is opened under the epoch of their writes."""
    writing, client = core.require_writing(), core.client
    if not writing.running.elsewhere(runs_in(source)):
        return _Here(writing.instance, source.name.lower())
    feeding, epoch = core.catalog.items[runs_in(source)], core.catalog.writes
    assert isinstance(feeding, Source | SharedSource), "that is what runs for a collection that is fed"
    remap = await RemapShard.open(await client.records(feeding.remap, epoch), epoch)
    data = await client.writer(source.shard, epoch, schema=source.schema.ddl, widens=True)
    return _Elsewhere(core, source, remap, data)


async def _caught_up(core: Core, source: Fed, feeding: _Feeding) -> Frontier:
    """Return how far the source is, all that it has bound being durable."""
    upper = await feeding.catch_up()
    if upper is None:
        name = source.name.lower()
        problem = core.problems.get(name) or core.problems.get(runs_in(source)) or "what it has bound is not durable"
        raise Unavailable(f"source {source.name!r} stands still: {problem}")
    return upper


async def _dismiss(
    core: Core, source: Fed, feeding: _Feeding, reader: ReadHandle, seen_at: int, count: int
) -> int | None:
    """Withdraw the ``count`` errors of ``seen_at`` at a new time, and return that; None if all have left already."""
    hold, engine = Hold(), core.engine

    async def still(at: int) -> Rows | None:
        times = seen_at, await reads.latest(core, [reader])
        seen, now = [await reads.snapshot(core, reader, time, hold, Half.ERR) for time in times]
        left = await engine.union(reader.schema, [now, seen], advance=at, negate=[False, True])
        texts = await engine.evaluate(Get("errors", ((_TEXT, ERROR),)), {"errors": left})
        gone = (await engine.differences(texts, _TEXTS)).missing
        if gone == count:
            return None
        if gone:
            raise InvalidUsage(
                f"some errors that {reader.name!r} had at {seen_at} were withdrawn since; look at its present errors"
            )
        return seen

    try:
        return await _append(core, source, feeding, still)
    finally:
        hold.give_back()
