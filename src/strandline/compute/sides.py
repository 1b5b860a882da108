"""The sides of a step's inputs, read for its plan: updates of the window, old contents, new contents.

A side is read once.  The rows that the plan's look-ups name are looked up; if that costs no less, the side is read
whole.

`Costs` decides between the two ways to compute a step: incrementally from its inputs' changes, or anew from their full
contents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from strandline.algebra.schema import Schema
from strandline.compute.lookups import Access, Lookup, described
from strandline.compute.rules.rule import Phase, frame, source
from strandline.compute.sink.actor import Sink
from strandline.persist.handles.contents import Contents, Rows
from strandline.persist.handles.read import ReadHandle, contents
from strandline.plane import Engine

PRUNE_ROWS_MIN: Final = 100_000
"""Fewer rows than this are read whole: to ask for the bounds of the keys takes as long."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A step's window ``[lower, upper)``.  Times before ``origin``, the first time of change, become it."""

    lower: int
    upper: int
    origin: int


class Sides:
    """The frames of one step of the stage ``name``."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        inputs: Mapping[str, ReadHandle],
        sink: Sink,
        bounds: Bounds,
        *,
        here: bool,
        net: bool,
        wary: bool,
    ) -> None:
        """``here``: what is small is brought into this process.

        ``net``: all that a frame holds is added up, which is at one time then.

        ``wary``: what is old may hold a row that failed and has left.  It is added up: else each step would evaluate
        that row, and its withdrawal, until history is compacted.
        """
        self._name = name
        self._engine = engine
        self._inputs = inputs
        self._sink = sink
        self._bounds = bounds
        self._here = here
        self._net = net
        self._wary = wary
        self._read: dict[str, Rows] = {}
        self.access: dict[str, Access] = {}
        """By a collection and its columns, how their rows were found: the dearest way, if there were several."""

    async def rows(self, name: str) -> Rows:
        """Return a frame, by the name that the plan has for it."""
        if name not in self._read:
            self._read[name] = await self._reading(name)
        return self._read[name]

    async def look_up(self, lookup: Lookup) -> None:
        """Let the frame of ``lookup`` be what is found, or all of its side where that is better."""
        collection, phase = source(lookup.of)
        keys = [
            (await self._engine.narrowed(await self.rows(place.frame), place.where), place.columns)
            for place in lookup.keys
        ]
        old = self._old(collection)
        first = None if lookup.first is None else (lookup.first, await self.rows(frame(collection, Phase.DELTA)))
        found = None
        if old is not None:
            found = await self._engine.lookup(
                old, lookup.columns, keys, nulls=lookup.nulls, first=first, span=lookup.span, read=lookup.read
            )
        access = Access.PROBE
        if found is None and old is not None:
            access, found = Access.PRUNE, await self._pruned(lookup, old)
        what = described(collection, lookup.columns, span=lookup.span)
        if found is None:
            access, found = Access.SCAN, await self.rows(lookup.of)
        elif phase is Phase.NEW:
            found = await self._with_change(collection, found, lookup.read)
        self.access[what] = min(access, self.access.get(what, access))
        self._read[lookup.frame] = await self._engine.narrowed(found, lookup.where)

    async def _pruned(self, lookup: Lookup, old: Contents) -> Rows | None:
        """Return what may be wanted of ``old``, by how far the changes' keys reach; None: all of it.

        Keys of other sides are not known without reading these.
        """
        leading = {(batch.sort or old.schema.names)[0] for batch in old.batches}
        changes = all(source(place.frame)[1] is Phase.DELTA for place in lookup.keys)
        at = next((at for at, column in enumerate(lookup.columns) if leading == {column}), None)
        if at is None or lookup.span or not changes or old.rows < PRUNE_ROWS_MIN:
            return None
        keys = [(await self.rows(place.frame), place.columns[at]) for place in lookup.keys]
        wanted = replace(old, net=self._net or self._wary, here=self._here)
        return await self._engine.prune(wanted, lookup.columns[at], keys, nulls=lookup.nulls)

    def _old(self, collection: str) -> Contents | None:
        """Return the old side of ``collection``; None if it is the stage's own, and that is not just what is stored."""
        if collection == self._name:
            return self._sink.held(self._bounds.origin)
        reader = self._inputs[collection]
        return contents(reader.state, reader.schema, 0, self._bounds.lower, advance=self._bounds.origin)

    async def _reading(self, name: str) -> Rows:
        collection, phase = source(name)
        if collection == self._name:
            return await self._sink.prior(here=self._here)
        if phase is Phase.NEW and self._wary and not self._net:
            return await self._with_change(collection, await self.rows(frame(collection, Phase.OLD)))
        reader, bounds = self._inputs[collection], self._bounds
        begin = bounds.lower if phase is Phase.DELTA else 0
        end = bounds.lower if phase is Phase.OLD else bounds.upper
        wanted = contents(reader.state, reader.schema, begin, end, advance=bounds.origin)
        net = self._net or (self._wary and phase is Phase.OLD)
        return await self._engine.read(replace(wanted, net=net, here=self._here))

    async def _with_change(self, collection: str, old: Rows, read: Collection[str] | None = None) -> Rows:
        """Return what is new: ``old`` and the changes of the window; perhaps only the columns ``read``."""
        change = await self.rows(frame(collection, Phase.DELTA))
        columns = self._inputs[collection].schema.columns
        schema = Schema(tuple(column for column in columns if read is None or column.name in read))
        return await self._engine.union(schema, [old, change], advance=self._bounds.origin, negate=[False, False])


ROWS_MIN: Final = 20_000
"""Fewer rows than this count as this many: most of such a step's time does not depend on them."""
KNOWN_MIN: Final = 3
"""The cost of small windows is known after this many steps.  The first ones prepare plans and arrange."""
AGED: Final = 0.95
"""What is left of a measurement each time that the other way is taken."""
COLD: Final = 4
"""The first computation of a stage plans and compiles: it takes at least this many times as long as a later one."""
SHARE_MAX: Final = 0.05
"""Where nothing is known, a large window with a greater share of the inputs' updates is computed anew."""


@dataclass(slots=True)
class Measured:
    """The last measurements of one way: rows that were read, and milliseconds."""

    taken: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=KNOWN_MIN))

    def expected(self, rows: int) -> float:
        """Return the milliseconds that ``rows`` will take: the least by any measurement."""
        return min(ms * max(rows, ROWS_MIN) / max(read, ROWS_MIN) for read, ms in self.taken)

    def age(self) -> None:
        """Let what was measured count for less."""
        self.taken = deque(((rows, ms * AGED) for rows, ms in self.taken), maxlen=KNOWN_MIN)


@dataclass(slots=True)
class Costs:
    """What the two ways cost of one stage, as measured in this process.

    Which of the two is cheaper depends on the query, the rows and the machine, so it is measured.  Both are exact at
    every time, so a wrong guess costs time and no answer.  A measurement ages whenever the other way is taken, so that
    a way that was expensive once is tried again in time.
    """

    changes: Measured = field(default_factory=Measured)
    anew: Measured = field(default_factory=Measured)

    def note(self, *, anew: bool, rows: int, ms: float) -> None:
        """Note what a step took that read ``rows`` updates of its inputs."""
        measured, other = (self.anew, self.changes) if anew else (self.changes, self.anew)
        measured.taken.append((rows, ms / COLD if anew and not measured.taken else ms))
        other.age()

    def prefer_anew(self, changed: int, held: int, *, times: int, small: bool) -> bool:
        """Return whether a window of ``changed`` updates at so many ``times`` is better computed anew at each.

        ``held``: how many updates the inputs hold.  ``small``: whether it is a small window.
        """
        if changed < ROWS_MIN:
            return False
        if self.anew.taken and len(self.changes.taken) >= (KNOWN_MIN if small else 1):
            return self.anew.expected(held * times) < self.changes.expected(changed)
        return not small and changed > SHARE_MAX * held * times
