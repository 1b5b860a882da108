"""The world of one materialization whose views come and go, while runtimes follow them.

What is bound changes at any moment: a view is dropped, its rows stay or are taken out, it comes back to its table.  A
runtime goes on with what was bound when it began, until its turn is over, or longer if it belongs to an older epoch.

The laws are those of a materialization, and M6: a view that stays is not read from the start again, and the rows of
one that was dropped stay as they were, if they are to.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from laws.broken import require
from strandline.errors import AsOfError, InvalidUsage
from strandline.frontier import Frontier, join
from strandline.materialize.feed import Changes, Feed, NoRows
from strandline.materialize.protocol.task import Binding, Checkpoint, canonical
from strandline.materialize.runtime import Task
from strandline.materialize.splits import Splits
from strandline.store.unreliable import Choose
from strandline.testing.feed import ListFeed
from worlds.pushed import END, Driver, PushedWorld, SimFeed, pause, play
from worlds.pushed_endpoints import WatchedPlace

CHANGES: Final = 4
"""How often other views are bound."""
PATTERNS: Final = ("checkpointing", "staging", "direct", "reducing")
SPLIT_PATTERNS: Final = ("staging", "direct")
SPLITS_MAX: Final = 3
UNTOUCHED: Final = ("checkpointing", "staging")
"""Of these, a table that stays holds what the last transaction left in it; elsewhere a crash may leave half of one."""


class Is(Enum):
    """What a view is to the materialization."""

    BOUND = "bound"
    KEPT = "kept"
    EMPTIED = "emptied"
    GONE = "gone"


@dataclass
class RebindingPlace(WatchedPlace):
    """An endpoint that knows what the last transaction of each binding left, by state key."""

    last: dict[str, list[str]] = field(default_factory=dict)

    def judged(self, bound: tuple[Binding, ...], checkpoint: Checkpoint, when: str) -> None:
        """See `WatchedPlace.judged`."""
        world = self.judges
        assert isinstance(world, RebindingWorld)
        world.judge_each(bound, checkpoint, when)
        self.last |= {each.state_key: self.found(each.resource) for each in bound if checkpoint.of(each.state_key)}

    def found(self, resource: str) -> list[str]:
        """Return the rows of a resource, as texts."""
        return sorted(canonical(each) for each in self.rows(resource))


class RebindingDriver(Driver):
    """A driver that knows a later binding of a resource, as all do."""

    def fits(self, binding: Binding) -> None:
        """See `SimDriver.fits`."""
        held = self._place.owners.get(binding.resource)
        binding.require_newest([] if held is None else [held])


class GoingOn(SimFeed):
    """A collection that is read from the start once; by a runtime that was fenced perhaps again."""

    def __init__(self, inner: ListFeed, world: RebindingWorld, state_key: str) -> None:
        super().__init__(inner)
        self._world = world
        self._state_key = state_key

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """See `Feed.changes`."""
        goes_on = lower > 0 or self._state_key not in self._world.begun or not self._world.place.alone
        require("M6", goes_on, f"{self._state_key!r} is read from the start, though it has begun")
        if Frontier(upper - 1) < self._inner.since:
            raise AsOfError(f"{self.name!r} can be read from {self._inner.since} on, and not at {upper - 1}")
        return await super().changes(lower, upper, key=key, times=times)


class RebindingWorld(PushedWorld):
    """One run.

    ``all``: the bindings that there may be.  ``views``: what each is now.  ``begun``: the state keys that a log has.
    """

    watching = RebindingPlace
    place: RebindingPlace

    def __init__(self, choose: Choose, pattern: str, splits_max: int = 1) -> None:
        super().__init__(choose, pattern, splits_max)
        self.all = list(self.spec.bindings)
        self.views = [Is.BOUND for _ in self.all]
        self.begun: set[str] = set()
        self.counter = 0
        self.untouched = pattern in UNTOUCHED and splits_max == 1

    def driver(self) -> Driver:
        """See `PushedWorld.driver`."""
        return RebindingDriver(self.place, self.pattern.session, self.room, self.now.beside)

    def feeds(self) -> list[Feed]:
        """See `PushedWorld.feeds`."""
        found: list[Feed] = []
        for binding in self.spec.bindings:
            place = self._place_of(binding)
            if self.views[place] is Is.EMPTIED:
                found.append(NoRows(binding.collection, binding.schema))
            else:
                found.append(GoingOn(self.data.feeds[place], self, binding.state_key))
        return found

    def joined(self) -> None:
        """See `PushedWorld.joined`."""
        self.simulation.spawn("definer", lambda _: rebind(self))

    def turned(self, task: Task | Splits) -> None:
        """See `PushedWorld.turned`: a table that is emptied may be forgotten once the log has that it is."""
        tasks = [task] if isinstance(task, Task) else [*task._tasks.values()]
        with suppress(InvalidUsage):  # its log is not open
            logged = [each.record.progress.acknowledged for each in tasks]
            self.begun |= {key for key, _ in logged[0].times if all(each.of(key) for each in logged)}
        for place, binding in enumerate(self.all):
            if self.views[place] is Is.EMPTIED and binding.state_key in self.begun and self.choose("forget", 2):
                self.become(place, Is.GONE)

    def become(self, place: int, what: Is) -> None:
        """Have a view be something else."""
        self.marks[f"{self.views[place].value}: {what.value}"] += 1
        self.views[place] = what
        if what is Is.BOUND:  # meanwhile no one has held its history
            feed = self.data.feeds[place]
            feed.since = join((feed.since, Frontier(max(0, self.data.upper - 1))))
        if what in {Is.BOUND, Is.EMPTIED}:
            self.counter += 1
            self.bump(place)
        self.all[place] = replace(self.all[place], gives_up=what in {Is.EMPTIED, Is.GONE})
        of = {each: [b for b, is_ in zip(self.all, self.views, strict=True) if is_ is each] for each in Is}
        self.spec = replace(self.spec, bindings=(*of[Is.BOUND], *of[Is.EMPTIED]))

    def bump(self, place: int) -> None:
        """Give a binding a counter that it never had."""
        self.all[place] = replace(self.all[place], backfill=self.counter)

    def judge_each(self, bound: tuple[Binding, ...], checkpoint: Checkpoint, when: str) -> None:
        """M2, of each binding that has begun: it holds what its collection holds, or nothing if that is emptied."""
        if self.splits_max > 1:
            return
        for binding in bound:
            place, time = self._place_of(binding), checkpoint.of(binding.state_key)
            emptied = binding == self.all[place] and self.views[place] in {Is.EMPTIED, Is.GONE}
            if time is None or binding != self.all[place]:
                continue  # it has not begun; or a later one has this table by now
            wanted, found = [] if emptied else self.truth(place, time), self.place.found(binding.resource)
            require("M2", found == wanted, f"{when}, at {time}, {binding.resource!r} holds {found}, not {wanted}")

    def judge(self, time: int, when: str) -> None:
        """See `PushedWorld.judge`: in the end all are judged, with what was dropped."""
        assert when == END
        for place, binding in enumerate(self.all):
            found = self.place.found(binding.resource)
            match self.views[place]:
                case Is.BOUND:
                    wanted = self.truth(place, time)
                    require("M2", found == wanted, f"in the end {binding.resource!r} holds {found}, not {wanted}")
                case Is.EMPTIED | Is.GONE:
                    require("M2", not found, f"{found} stay in {binding.resource!r}, which was emptied")
                case Is.KEPT if self.untouched and binding.state_key in self.place.last:
                    last = self.place.last[binding.state_key]
                    require("M6", found == last, f"{binding.resource!r} was left with {last}, and holds {found}")

    def _place_of(self, binding: Binding) -> int:
        return next(place for place, each in enumerate(self.all) if each.resource == binding.resource)


async def rebind(world: RebindingWorld) -> None:
    """Bind other views, now and then; one at least stays."""
    for _ in range(CHANGES):
        await pause(world, "rebind", 80)
        place = world.choose("view", len(world.all))
        alone = world.views.count(Is.BOUND) == 1
        match world.views[place]:
            case Is.BOUND if not alone:
                world.become(place, (Is.KEPT, Is.EMPTIED)[world.choose("rows", 2)])
            case Is.KEPT:
                world.become(place, (Is.BOUND, Is.EMPTIED)[world.choose("rows", 2)])
            case Is.EMPTIED | Is.GONE:
                world.become(place, Is.BOUND)


def play_rebinding(seed: int) -> PushedWorld:
    """Make the history of ``seed``.  Raises what it breaks."""
    return play(seed, PATTERNS, kind=RebindingWorld)


def play_rebinding_splits(seed: int) -> PushedWorld:
    """Make the history of ``seed``, in which runtimes have splits.  Raises what it breaks."""
    return play(seed, SPLIT_PATTERNS, SPLITS_MAX, RebindingWorld)
