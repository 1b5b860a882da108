"""Skip: dismiss the records of a source that could not be decoded, once an operator has looked at them.

Such a record is an error of the source until its upstream takes it back.  Where upstream does not, or cannot, the
operator may pass over it.  The error is withdrawn at a time of its own; at earlier times it is read as it was.  The
views above the source are right again with the next tick.

Nothing is dismissed unseen: the operator names the time at which they looked at the errors, and an error that came
later stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from strandline.algebra.nodes import Get
from strandline.algebra.schema import ERROR, Column, Schema
from strandline.controller.asking import reads
from strandline.controller.commanded import runs_in
from strandline.controller.core import Core
from strandline.controller.holding import Hold
from strandline.controller.location.catalog import unknown
from strandline.controller.location.items import Fed, SharedSource, Source
from strandline.errors import InvalidUsage, Unavailable
from strandline.frontier.antichain import Frontier, as_time
from strandline.instance import error_half
from strandline.persist.handles.contents import Half, Rows
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.patience import Deadline
from strandline.sources.remap import RemapShard
from strandline.sources.steps import withdraw
from strandline.store.clock import Clock

CATCHES_UP_S: Final = 10.0
"""How long replicas may take to make durable what is bound."""
POLL_S: Final = 0.1
TRIES: Final = 5
"""How often errors are withdrawn in a race with the replicas that ingest."""

_TEXT: Final = "error"
_TEXTS: Final = Schema((Column(_TEXT, "string"),))


async def skip(core: Core, name: str, as_of: int | None, *, apply: bool) -> dict[str, Any]:
    """Return the errors that a source has at ``as_of`` (None: the latest time); ``apply``: and dismiss them.

    Asked again, it finds that all have left: to dismiss them twice is to dismiss them once.

    Raises:
        DefinitionError: there is no such source; with candidates.
        AsOfError: it cannot be read at ``as_of``.
        InvalidUsage: it is to be applied, and this environment does not write; or some of the errors, and not all,
            have left since ``as_of``.
        SourceError, Unavailable: it is to be applied, and the source stands still.
    """
    source = core.catalog.find(name)
    if not isinstance(source, Fed):
        core.catalog.collection(name)  # which says what the tables of a source are, if it has some
        raise unknown("source", name, (n for n, item in core.catalog.items.items() if isinstance(item, Fed)))
    upper = await _caught_up(core, source) if apply else None
    reader = await core.readers.of(source.name)
    latest = await reads.latest(core, [reader])
    time = latest if as_of is None else as_of
    seen = await error_half.tally(core.engine, reader, time)
    dismissed = None
    if upper is not None and seen["rows"]:
        dismissed = await _dismiss(core, reader, upper, time, latest, count=seen["rows"])
    return {"source": source.name, "as_of": time, **seen, "applied": apply, "dismissed_at": dismissed}


@dataclass(frozen=True)
class _Elsewhere:
    """A source that replicas run: its remap, and one of its outputs, as this process writes them beside them."""

    remap: RemapShard
    data: WriteHandle

    @classmethod
    async def of(cls, core: Core, source: Fed) -> _Elsewhere:
        """Open both under the epoch that the replicas write under."""
        feeding, epoch, client = core.catalog.items[runs_in(source)], core.catalog.writes, core.client
        assert isinstance(feeding, Source | SharedSource), "that is what runs for a collection that is fed"
        remap = await RemapShard.open(await client.records(feeding.remap, epoch), epoch)
        return cls(remap, await client.writer(source.shard, epoch, schema=source.schema.ddl))

    async def catch_up(self, clock: Clock) -> Frontier | None:
        """Return how far it is, once all that is bound is durable; None if replicas do not come there in time."""
        deadline = Deadline(clock, CATCHES_UP_S)
        while True:
            bound, upper = (await self.remap.refresh()).upper, (await self.data.refresh()).upper
            if upper == bound:
                return upper
            if deadline.left_s() <= 0:
                return None
            await clock.sleep(POLL_S)


async def _caught_up(core: Core, source: Fed) -> Frontier:
    """Return how far the source is, all that it has bound being durable."""
    name, writing = source.name.lower(), core.require_writing()
    if writing.running.elsewhere(runs_in(source)):
        upper = await (await _Elsewhere.of(core, source)).catch_up(core.assembly.clock)
    else:
        upper = await writing.instance.catch_up(name)
    if upper is None:
        problem = core.problems.get(name) or core.problems.get(runs_in(source)) or "what it has bound is not durable"
        raise Unavailable(f"source {source.name!r} stands still: {problem}")
    return upper


async def _dismiss_elsewhere(core: Core, source: Fed, errors: Rows, at: int) -> int:
    """Withdraw errors at ``at`` or later, and return when: a replica may make the time durable first that was bound."""
    oracle, found = core.require_writing().oracle, await _Elsewhere.of(core, source)
    for left in reversed(range(TRIES)):
        try:
            await withdraw(errors, at, source.schema, found.data, found.remap, core.engine)
        except Unavailable:
            if not left:
                raise
            oracle.passed(as_time(await _caught_up(core, source)))
            at = oracle.next()
        else:
            break
    return at


async def _dismiss(
    core: Core, reader: ReadHandle, upper: Frontier, seen_at: int, latest: int, *, count: int
) -> int | None:
    """Withdraw the ``count`` errors of ``seen_at`` at a new time, and return that; None if all have left already."""
    hold, engine, writing = Hold(), core.engine, core.require_writing()
    writing.oracle.passed(as_time(upper))
    at = writing.oracle.next()
    try:
        seen, now = [await reads.snapshot(core, reader, time, hold, Half.ERR) for time in (seen_at, latest)]
        left = await engine.union(reader.schema, [now, seen], advance=at, negate=[False, True])
        texts = await engine.evaluate(Get("errors", ((_TEXT, ERROR),)), {"errors": left})
        gone = (await engine.differences(texts, _TEXTS)).missing
        if gone == count:
            return None
        if gone:
            raise InvalidUsage(
                f"some errors that {reader.name!r} had at {seen_at} were withdrawn since; look at its present errors"
            )
        source = core.catalog.items[reader.name.lower()]
        if isinstance(source, Fed) and writing.running.elsewhere(runs_in(source)):
            return await _dismiss_elsewhere(core, source, seen, at)
        await writing.instance.dismiss(reader.name.lower(), seen, at)
    finally:
        hold.give_back()
    return at
