"""A location over lists with three processes around a promotion, each of which may end at any of its durable writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from pathlib import Path
from typing import Any, Final

from strandline.bench.environment import ITEMS, START_MS, TICK_MS, VIEWS, _change
from strandline.controller.asking.reads import snapshot
from strandline.controller.core import Core
from strandline.controller.defining.apply import apply
from strandline.controller.defining.project.settings import Defined, Project
from strandline.controller.holding import Hold
from strandline.controller.language.statements import parse
from strandline.controller.location.catalog import Catalog, shards_of
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Item, View
from strandline.controller.preparing.preparation import Preparation
from strandline.errors import AsOfError, FencedError, Indeterminate, StoreError
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import CompareAndSet, Versioned
from strandline.testing.doubles import CountingIds, Crash, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import listed
from strandline.testing.simulation.kernel import run_sync

TOTALS: Final = VIEWS["totals"]
ONE: Final = {
    "items": f"CREATE TABLE items ({ITEMS})",
    "totals": f"CREATE MATERIALIZED VIEW totals AS {TOTALS}",
    "above": "CREATE MATERIALIZED VIEW above AS SELECT grp, amount FROM totals WHERE n > 0",
    "wide": "CREATE MATERIALIZED VIEW wide AS SELECT grp, count(*) AS n FROM items GROUP BY grp",
    "over": "CREATE MATERIALIZED VIEW over AS SELECT grp, n FROM wide WHERE n > 0",
}
TWO: Final = ONE | {
    "totals": ONE["totals"].replace("sum(amount)", "sum(amount + 1)"),
    "wide": ONE["wide"].replace("count(*) AS n", "count(*) AS n, max(amount) AS top"),
    "new": "CREATE MATERIALIZED VIEW new AS SELECT id, amount FROM items WHERE grp = 1",
}
Contents = Counter[tuple[Any, ...]]


def project(texts: dict[str, str]) -> Project:
    """Return the project with these definitions."""
    defined = tuple(Defined(f"{name}.sql", parse(text)) for name, text in texts.items())  # type: ignore[arg-type]
    return Project(Path(), "memory://", None, {}, 1_000, {}, defined)


class Hosts:
    """What the operating system knows of the processes: which of them live."""

    def __init__(self) -> None:
        self.living: set[int] = set()

    def of(self, pid: int) -> Any:
        """Return what process ``pid`` is given."""
        return _Processes(self, pid)


@dataclass
class _Processes:
    hosts: Hosts
    pid: int

    def host(self) -> str:
        return "here"

    def boot(self) -> str:
        return "boot"

    def own(self) -> int:
        return self.pid

    def started_ms(self, pid: int, boot: str) -> int | None:
        return 1_000 * pid if pid in self.hosts.living else None


@dataclass
class Cut:
    """What happens at the write number ``at`` of a process.

    ``before``, ``after``: the process ends then.  ``lost``: the write takes effect, and its answer is lost.
    ``stalled``: ``meanwhile`` is done before it takes effect.
    """

    at: int | None = None
    how: str = ""
    meanwhile: Callable[[], object] = lambda: None


class Writes:
    """The durable writes of one process, in their order; once it has ended it reaches no store."""

    def __init__(self) -> None:
        self.cut = Cut()
        self.made: list[str] = []
        self.only = ""
        self.ended = False

    def count(self, cut: Cut, only: str = "") -> None:
        """Count from here on, up to ``cut``; ``only``: it happens at the first write of this name."""
        self.cut, self.made, self.only = cut, [], only

    async def make(self, what: str, call: Callable[[], Any]) -> Any:
        """Make a write."""
        self.made.append(what)
        if self.only == what:
            self.only, self.cut.at = "", len(self.made)
        if len(self.made) != self.cut.at:
            return await call()
        match self.cut.how:
            case "before":
                self.ended = True
                raise Crash
            case "after":
                await call()
                self.ended = True
                raise Crash
            case "lost":
                await call()
                raise Indeterminate(f"the answer of {what} was lost")
            case _:
                if isawaitable(done := self.cut.meanwhile()):
                    await done
                return await call()


class Stored:
    """A store as one process reaches it."""

    def __init__(self, store: Any, writes: Writes) -> None:
        self._store = store
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        async def reached(*arguments: Any) -> Any:
            if self._writes.ended:
                raise Crash
            return await call(*arguments)

        return reached

    async def set(self, key: str, data: bytes) -> None:
        """See `Blob`."""
        await self._made(f"set {key.partition('/')[0]}", lambda: self._store.set(key, data))

    async def compare_and_set(self, request: CompareAndSet) -> Any:
        """See `Consensus`."""
        return await self._made(f"write {request.key}", lambda: self._store.compare_and_set(request))

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Any]:
        """See `Consensus`: each as if alone."""
        return [await self.compare_and_set(request) for request in requests]

    async def _made(self, what: str, call: Callable[[], Any]) -> Any:
        if self._writes.ended:
            raise Crash
        return await self._writes.make(what, call)


@dataclass
class Process:
    """A process at the location: what it was given, and what it has open."""

    pid: int
    writes: Writes
    assembly: Any
    core: Core = field(init=False)
    preparation: Preparation = field(init=False)


class Location:
    """What is durable, the processes around it, and what is known of the table's history."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.versions: dict[str, list[Versioned]] = {}
        self.clock = HandClock(START_MS)
        self.hosts = Hosts()
        self.begun = 0
        self.n = 0
        self.times: list[int] = []
        self.keep_history = "1000 hours"

    def copy(self) -> Location:
        """Return another location with the same contents, and no process."""
        found = Location()
        found.objects = dict(self.objects)
        found.versions = {key: list(held) for key, held in self.versions.items()}
        found.clock.now, found.begun, found.n = self.clock.now, self.begun, self.n
        found.times, found.keep_history = list(self.times), self.keep_history
        return found

    def begin(self) -> Process:
        """Begin a process that has nothing open."""
        self.begun += 1
        writes = Writes()
        blob: Any = Stored(MemoryBlob(self.objects), writes)
        consensus: Any = Stored(MemoryConsensus(self.versions), writes)
        assembly = list_assembly(self.clock, CountingIds(f"p{self.begun}"), blob, consensus)
        self.hosts.living.add(self.begun)
        return Process(self.begun, writes, replace(assembly, processes=self.hosts.of(self.begun)))

    def end(self, process: Process) -> None:
        """End a process, as by kill -9."""
        process.writes.ended = True
        self.hosts.living.discard(process.pid)

    def open(self, mode: Mode = Mode.FULL) -> Process:
        """Begin a process that opens the location; no operator says that it may take over."""
        process = self.begin()
        process.core = run_sync(Core.open(process.assembly, Config(keep_history=self.keep_history), mode))
        return process

    def run(self, texts: dict[str, str]) -> Process:
        """Begin a process that writes a project, as `strandline run` does."""
        process = self.open()
        run_sync(apply(process.core, project(texts)))
        return process

    def prepare(self, texts: dict[str, str]) -> Process:
        """Begin a process that prepares a project, as `strandline run --read-only` does."""
        process = self.open(Mode.READ)
        run_sync(process.core.look())
        process.preparation = Preparation(process.core, project(texts))
        return process

    def tick(self, process: Process, *, healthy: bool = True) -> int:
        """Let time pass, change the table and have a writer tick."""
        self.clock.now += TICK_MS
        number, self.n = self.n, self.n + 1
        run_sync(_change(process.core, number))
        time = run_sync(process.core.tick())
        self.times.append(time)
        if healthy:
            assert process.core.health.problems() == {}
        return time

    def ticks(self, process: Process) -> bool:
        """Have a process that writes tick, if it lives and was not succeeded; return whether it goes on."""
        if process.writes.ended:
            return False
        try:
            self.tick(process, healthy=False)
        except FencedError:
            return False
        except Crash:
            self.end(process)
            return False
        except Indeterminate:
            pass  # as `strandline run` does: the next tick tries again
        return True

    def cut_off(self, process: Process, cut: Cut, steps: Iterable[Callable[[], object]]) -> bool:
        """Have a process take steps up to a fault at one write, and end it; return whether there was that write."""
        process.writes.count(cut)
        for step in steps:
            try:
                step()
            except Crash:
                break
            except (StoreError, FencedError):
                pass
        self.end(process)
        return cut.at is not None and len(process.writes.made) >= cut.at

    # ---- what is there -----------------------------------------------------------------------------------------------

    def catalog(self) -> Catalog:
        """Return the catalog as it is durable."""
        process = self.open(Mode.READ)
        run_sync(process.core.look())
        self.end(process)
        return process.core.catalog

    @property
    def promoted(self) -> bool:
        """Whether the second version is in the catalog; fails if it is there by half."""
        return whole(self.catalog().items)

    def left(self, process: Process) -> set[str]:
        """Return the shards that no item has, and that are not closed."""
        client, found = process.core.client, set()
        for shard in {key for key in self.versions if key.startswith("s-")} - shards_of(process.core.catalog.items):
            run_sync(client.look(shard))
            if not client.state_of(shard).since.empty:
                found.add(shard)
        return found


def _sql(item: Item) -> str:
    assert isinstance(item, View)
    return item.sql


async def held(core: Core, name: str, time: int) -> Contents:
    """Return the rows of a collection at ``time``."""
    reader = await core.readers.of(name)
    await reader.refresh()
    found: Contents = Counter()
    for row in listed(await snapshot(core, reader, time, Hold())).rows:
        found[tuple(row[each] for each in reader.schema.names)] += row["__diff"]
    return Counter({row: count for row, count in found.items() if count})


def meaning(items: Contents, version: int) -> dict[str, Contents]:
    """Return what the views of a version hold by the rows of the table, worked out row by row."""
    groups: dict[int, list[int]] = {}
    new: Contents = Counter()
    for (id_, grp, amount), count in items.items():
        groups.setdefault(grp, []).extend([amount] * count)
        if grp == 1:
            new[(id_, amount)] += count
    more = version - 1
    totals = {grp: (len(each), sum(each) + more * len(each)) for grp, each in groups.items()}
    return {
        "totals": Counter((grp, n, amount) for grp, (n, amount) in totals.items()),
        "above": Counter((grp, amount) for grp, (_, amount) in totals.items()),
        "wide": Counter((g, len(each), *([max(each)] if more else [])) for g, each in groups.items()),
        "over": Counter((grp, n) for grp, (n, _) in totals.items()),
        "new": new,
    }


def whole(items: Mapping[str, Item]) -> bool:
    """Return whether the second version is in a catalog; fails if it is there by half."""
    second = {"totals": "+ 1" in _sql(items["totals"]), "wide": "top" in _sql(items["wide"]), "new": "new" in items}
    assert len(set(second.values())) == 1, f"of two versions each has a part: {second}"
    return second["new"]


async def switch(core: Core, times: Iterable[int]) -> int:
    """Return at how many of some times readers see the first version; fail unless all later ones are the second.

    Every time is read, and no time may be without an answer, but of a view that begins with the second version.
    """
    promoted = whole(core.catalog.items)
    seen: dict[str, list[int]] = {"totals": [], "above": []}
    for time in sorted(times):
        items = await held(core, "items", time)
        wanted = {version: meaning(items, version) for version in (1, 2)}
        for name, found in seen.items():
            rows = await held(core, name, time)
            assert rows in (wanted[1][name], wanted[2][name]), f"{name} at {time} is of no version"
            found.append(1 if rows == wanted[1][name] else 2)
        assert await held(core, "over", time) == wanted[1]["over"]
        for name in ("wide", *(["new"] if promoted else [])):
            with suppress(AsOfError):
                assert await held(core, name, time) == wanted[2 if promoted else 1][name], (name, time)
    assert seen["totals"] == seen["above"], "what reads a view is of another version than that view"
    assert seen["totals"] == sorted(seen["totals"]), f"readers see {seen['totals']}"
    return seen["totals"].count(1)


def latest(core: Core) -> Iterator[str]:
    """Yield the views that are not complete at the last time of the table."""
    items = core.client.state_of(core.catalog.collection("items").shard).upper
    for name, item in core.catalog.items.items():
        if isinstance(item, View) and core.client.state_of(item.shard).upper != items:
            yield name
