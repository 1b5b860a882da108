"""What an observer sees of a whole environment, and the laws about it.  It reads what is durable, and nothing else.

Written from what views promise, never from the code: it knows collections, times and rows, upstreams'
own messages and endpoints' own rows; of the code it uses the reading handles.  Between two looks anything may happen.

- P1: a collection at a readable time is what it was when it was looked at before.
- R1, R2, R3: a source at each time is exactly what the first messages of each partition come to, each of them once,
  and only ever more of them; what cannot be decoded is an error until upstream takes it back.
- R4: upstream may forget only what is durable here (`may_forget`).
- T: what a commit of tables acknowledged is in all its tables from its time on; no attempt is there twice, or in part.
- K2: a view at each readable time is its definition over its inputs at that time, but for what others wrote (K3);
  rows that its definition has no answer for are errors then, and its inputs' errors are its own.
- K3: what others wrote into a view is withdrawn by the view's next append.
- closed: what was dropped can neither be read nor written, but for what a lease still holds.
- M2: an endpoint is its collection at its checkpoint; M1, M3, M4: no call to it broke the protocol.
- wait: there an endpoint's collection has no errors, unless the good rows are to go on in spite of them.
- read: an answer is the collection at its time; what has errors then is refused, with the time since when it has them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from laws.broken import LawBrokenError, require
from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.controller.commanded import bindings
from strandline.controller.location.catalog import KEY, Catalog, CatalogStore, shards_of
from strandline.controller.location.items import InstanceItem, Materialization, Source, Table, View, begins_of
from strandline.frontier import Offsets, Refresh, as_time
from strandline.materialize.log import decode
from strandline.materialize.protocol.task import Checkpoint
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Half
from strandline.persist.handles.read import ReadHandle, contents
from strandline.persist.handles.records import Record, RecordShard
from strandline.persist.handles.register import Register
from strandline.persist.shard.state import ShardState
from strandline.store.seal import Kind
from strandline.testing.lists.list_engine import ListEngine, listed
from worlds.meanings import TABLE, Row, Wanted, meant
from worlds.outside import FickleUpstream, Place

Collectable: TypeAlias = Table | Source | View

FOREIGN: Final = 1_000_000
"""Numbers from here on occur only in rows that a foreign writer wrote into a view."""


@dataclass
class Attempt:
    """One commit of rows into tables, under a token: ``rows`` by table, negative ones are deleted."""

    token: str
    rows: dict[str, list[tuple[Row, int]]]
    time: int | None = None  # acknowledged


@dataclass
class Collected:
    """One collection, as it is now: its updates in order of time."""

    since: int
    upper: int
    updates: list[tuple[int, Row, int]]
    errors: list[tuple[int, str, int]]
    _at: dict[int, Counter[Row]] = field(default_factory=dict)

    def at(self, time: int) -> Counter[Row]:
        """Return the contents at ``time``."""
        known = self._at.get(time)
        if known is None:
            sums: Counter[Row] = Counter()
            for when, row, diff in self.updates:
                if when > time:
                    break
                sums[row] += diff
            known = self._at[time] = Counter({row: count for row, count in sums.items() if count})
        return known

    def failed(self, time: int) -> int:
        """Return how many errors there are at ``time``."""
        return sum(diff for when, _, diff in self.errors if when <= time)

    def failures(self, time: int) -> Counter[str]:
        """Return the errors at ``time``."""
        sums: Counter[str] = Counter()
        for when, error, diff in self.errors:
            if when <= time:
                sums[error] += diff
        return Counter({error: count for error, count in sums.items() if count})

    def failing_since(self, time: int) -> int | None:
        """Return the first time of the unbroken stretch with errors that ``time`` lies in; None if it has none."""
        since = None
        for when in sorted({when for when, _, _ in self.errors if when <= time}):
            since = (max(when, self.since) if since is None else since) if self.failed(when) else None
        return since

    @property
    def times(self) -> set[int]:
        """When something changed."""
        return {time for time, _, _ in self.updates} | {time for time, _, _ in self.errors}


class Observer:
    """Looks at what is durable at one location, and remembers what it saw."""

    def __init__(
        self,
        client: PersistClient,
        engine: ListEngine,
        upstreams: Mapping[str, FickleUpstream],
        places: Mapping[str, Place],
    ) -> None:
        self._client = client
        self._engine = engine
        self._upstreams = upstreams
        self._places = places
        self._catalogs = CatalogStore(Register(KEY, client.clock, client.ids, client.consensus))
        self._catalog_at: int | None = None
        self._readers: dict[tuple[str, Any], ReadHandle] = {}  # by shard and columns
        self._shards: frozenset[str] = frozenset()  # all that were ever an item's
        self._seen: dict[tuple[str, int], Counter[Row]] = {}
        self.attempts: list[Attempt] = []
        self.spoilt: dict[str, list[range]] = defaultdict(list)  # by shard: the times that others may have sealed
        self.mistaken: set[str] = set()  # the shards that a wrong replica wrote to: counts in them may be below zero
        self.checked = 0

    async def catalog(self) -> Catalog:
        """Return the catalog as it is."""
        head = await self._client.consensus.head(KEY)
        seqno = None if head is None else head.seqno
        if self._catalog_at != seqno or seqno is None:
            await self._catalogs.read()
            self._catalog_at = seqno
        return self._catalogs.current

    async def uppers(self, catalog: Catalog) -> dict[str, int]:
        """Return how far each collection has come: its upper, as it is durable."""
        found = {}
        for name, item in catalog.items.items():
            if not isinstance(item, InstanceItem | Materialization):
                reader = await self._reader(item)
                found[name] = 0 if reader is None else as_time((await self._state(reader)).upper)
        return found

    async def look(self) -> None:
        """Hold all that is durable against every law."""
        catalog = await self.catalog()
        self._shards |= shards_of(catalog.items)
        there: dict[str, Collected] = {}
        for name, item in catalog.items.items():
            if not isinstance(item, InstanceItem | Materialization):
                reader = await self._reader(item)
                if reader is not None:
                    there[name] = await self._collected(reader, item)
                    self._same_as_before(item.shard, there[name], exact=not self._mistaken(item))
        for name, item in catalog.items.items():
            match item:
                case Source() if name in there:
                    upstream = self._upstreams[item.options["upstream"]]
                    self._source(name, there[name], upstream)
                    await self._bound(item, there[name], upstream)
                case View() if name in there and all(i in there for i in self._read(item).values()):
                    read = self._read(item)
                    inputs = {i: there[each] for i, each in read.items()}
                    inherited = [i for i, each in read.items() if not continues(catalog.items[each])]
                    self._view(item, there[name], inputs, inherited)
                case Materialization():
                    await self._endpoint(item, catalog, there)
        self._tables(
            {name: there[name] for name, item in catalog.items.items() if isinstance(item, Table) and name in there}
        )

    async def settled(self, time: int, excused: Container[str]) -> None:
        """See that at ``time`` nothing is owed, but by what is ``excused``.

        K3: nothing that others wrote into a view is in it, but what its schedule, or that of a view that it reads,
        keeps until the next refresh.  L2: a source has all that is upstream.  What was dropped is closed.
        """
        catalog = await self.catalog()
        for source in (source for source in catalog.of_kind(Source) if source.name not in excused):
            now, upstream = await self.collected(source), self._upstreams[source.options["upstream"]]
            assert now is not None
            wanted = sum((upstream.come_to(partition)[-1] for partition in upstream.partitions), Counter())
            held = now.at(now.upper) + now.failures(now.upper)
            require(
                "L2", held == wanted, f"{source.name} is {_shown(held)} after all faults; upstream {_shown(wanted)}"
            )
        for shard in sorted(self._shards - shards_of(catalog.items)):
            machine = self._client._machine(shard)
            there = await machine.open(create=False)
            state = machine.state
            held = any(not hold.since.empty for hold in state.criticals.values())  # a lease ends by itself
            closed = not there or state.tombstone or (state.upper.empty and bool(state.criticals) and not held)
            require("closed", closed, f"shard {shard} was dropped, and is open")
        for view in (view for view in catalog.of_kind(View) if view.name not in excused):
            reader = await self._reader(view)
            assert reader is not None
            now = await self._collected(reader, view)
            strange = [row for row in now.at(time) if foreign(row)]
            later = any(read.refresh or self._spoilt(read, time) for read in self._read_by(view))
            owed = bool(strange) and now.upper == time + 1 and not self._spoilt(view, time) and not later
            require(
                "K3",
                not owed,
                f"{view.name} still holds {strange} at {time}, which others wrote",
            )

    async def excused(self) -> set[str]:
        """Return what cannot follow a tick, and has to say so, though no fault is left.

        That is a source of whose messages upstream has lost some before they were durable, all that reads it, and an
        endpoint that waits for as long as the errors are there that its collection has now; and what reads a view
        before its first refresh.
        """
        catalog = await self.catalog()
        early = {view.name.lower() for view in catalog.of_kind(View) if await self._unread(view)}
        found = {source.name.lower() for source in catalog.of_kind(Source) if await self._bereft(source)}
        for view in catalog.of_kind(View):
            if not (found | early).isdisjoint(self._read(view).values()):
                found.add(view.name.lower())
        for item in catalog.of_kind(Materialization):
            for bound in item.bindings:
                now = await self.collected(catalog.collection(bound.collection))
                failed = not continues(item) and now is not None and now.failed(now.upper)
                if bound.collection in found | early or failed:
                    found.add(item.name.lower())
        return found

    async def _unread(self, view: View) -> bool:
        """Tell whether a view is known up to its first refresh, and so can be read at no time yet."""
        now = None if view.refresh is None else await self.collected(view)
        return now is not None and 0 < now.upper <= now.since

    async def _bereft(self, item: Source) -> bool:
        """Tell whether upstream has lost messages of a source that are not durable here."""
        reader, bindings = await self._reader(item), await self._bindings(item)
        upper = 0 if reader is None else as_time((await reader.refresh()).upper)
        covered = _covered(bindings, upper - 1)
        return any(
            covered[partition] < end for partition, end in self._upstreams[item.options["upstream"]].lost.entries
        )

    async def collected(self, item: Collectable) -> Collected | None:
        """Return a collection as it is now; None if it is not there yet."""
        reader = await self._reader(item)
        return None if reader is None else await self._collected(reader, item)

    def answered(
        self, item: Collectable, now: Collected, time: int, rows: Counter[Row] | None, since: int | None
    ) -> None:
        """read: ``item`` is ``now`` there.  ``rows`` were read at ``time``, or None: refused, for errors ``since``."""
        wanted = None if continues(item) else now.failing_since(time)
        require("read", since == wanted, f"{item.name} at {time} has errors since {wanted}; the read said {since}")
        if rows is not None:
            require(
                "read", rows == now.at(time), f"{item.name} at {time} is {_shown(now.at(time))}, not {_shown(rows)}"
            )

    @property
    def epoch(self) -> int:
        """The generation of the environment that writes, as the catalog said last."""
        return self._catalogs.current.epoch

    @property
    def writes(self) -> int:
        """The epoch under which replicas write, as the catalog said last."""
        return self._catalogs.current.writes

    # ---- reading -----------------------------------------------------------------------------------------------------

    async def _reader(self, item: Any) -> ReadHandle | None:
        key = item.shard, item.columns
        if key not in self._readers:
            reader = await self._client.reader(item.shard, item.schema, item.name)
            if reader is None:
                return None
            self._readers[key] = reader
        return self._readers[key]

    async def _state(self, reader: ReadHandle) -> ShardState:
        """Return the newest state: a version never changes, so only a new one is fetched."""
        head = await self._client.consensus.head(reader.state.shard)
        known = head is not None and head.seqno == reader.state.seqno
        return reader.state if known else await reader.refresh()

    async def _collected(self, reader: ReadHandle, item: Collectable) -> Collected:
        state = await self._state(reader)
        since, upper = as_time(state.since), as_time(state.upper)
        found = await self._engine.read(contents(state, reader.schema, 0, upper, advance=since, half=Half.BOTH))
        names, updates, errors = reader.schema.names, [], []
        for row in listed(found).rows:
            if row[ERROR] is None:
                updates.append((row[TIME], stored(item, tuple([row[name] for name in names])), row[DIFF]))
            else:
                errors.append((row[TIME], row[ERROR], row[DIFF]))
        return Collected(max(since, begins_of(item)), upper, sorted(updates, key=lambda update: update[0]), errors)

    def _same_as_before(self, shard: str, now: Collected, *, exact: bool) -> None:
        for time in sorted(now.times | {now.upper - 1}):
            if not now.since <= time < now.upper:
                continue
            content = now.at(time)
            before = self._seen.setdefault((shard, time), content)
            if before != content:
                raise LawBrokenError("P1", f"{shard} at {time} was {_shown(before)}, and is {_shown(content)}")
            less = [row for row, count in content.items() if count < 0]
            require("negative", not (exact and less), f"{shard} at {time} has a negative count of {less[:3]}")

    # ---- sources -----------------------------------------------------------------------------------------------------

    def _source(self, name: str, now: Collected, upstream: FickleUpstream) -> None:
        before: dict[str, int] = {}
        for time in sorted(now.times):
            content = now.at(time)
            twice = [row for row, count in content.items() if count != 1]
            require("R3", not twice, f"{name} at {time} holds {twice[:3]} more or less than once")
            for partition, held in _by_partition(content, now.failures(time)).items():
                come_to = upstream.come_to(partition)
                ends = [end for end in range(before.get(partition, 0), len(come_to)) if come_to[end] == held]
                require(
                    "R2",
                    bool(ends),
                    f"{name} at {time} is not what the first messages of {partition} come to, or those of an earlier "
                    f"time: {_shown(held)}",
                )
                before[partition] = ends[0]

    async def _bound(self, item: Source, now: Collected, upstream: FickleUpstream) -> None:
        """R2: at each time the source holds exactly what its newest binding up to then covers."""
        bindings = await self._bindings(item)
        remap = self._client._machine(item.remap)
        since = as_time(remap.state.since) if await remap.open(create=False) else 0  # a replica may be about to make it
        for time in sorted(now.times | {record.time for record in bindings} | {now.upper - 1}):
            if not max(now.since, since) <= time < now.upper:
                continue
            covered = _covered(bindings, time)
            held = now.at(time) + now.failures(time)
            wanted = sum((upstream.come_to(partition)[end] for partition, end in covered.items()), Counter())
            require("R2", held == wanted, f"{item.name} at {time} holds {_shown(held)}, and {dict(covered)} is bound")

    async def _bindings(self, item: Source) -> Sequence[Record]:
        machine = self._client._machine(item.remap)
        there = await machine.open(create=False)
        return await RecordShard(machine, None, self._client.blob).contents() if there else ()

    async def may_forget(self, shard: str, resume: Offsets) -> None:
        """R4: what upstream may forget is durable in ``shard``."""
        item = next(
            (i for i in (await self.catalog()).items.values() if isinstance(i, Source) and i.shard == shard), None
        )
        if item is None:
            return  # it was dropped meanwhile
        upstream = self._upstreams[item.options["upstream"]]
        reader = await self._reader(item)
        now = Collected(0, 0, [], []) if reader is None else await self._collected(reader, item)
        there = _by_partition(now.at(now.upper), now.failures(now.upper))
        lost = [(p, end) for p, end in resume.entries if there.get(p, Counter()) not in upstream.come_to(p)[end:]]
        require("R4", not lost, f"upstream may forget {lost} of {item.name}, and {there} is durable")

    # ---- tables ------------------------------------------------------------------------------------------------------

    def _tables(self, tables: Mapping[str, Collected]) -> None:
        deletes = Counter(
            (table, row) for a in self.attempts for table, rows in a.rows.items() for row, diff in rows if diff < 0
        )
        since = max((now.since for now in tables.values()), default=0)
        for attempt in self.attempts:
            asked = [
                (table, row, diff)
                for table, rows in attempt.rows.items()
                if table in tables
                for row, diff in rows
                if deletes[table, row] < 2 or diff > 0  # which of two transactions deleted it does not show
            ]
            found = [
                (table, time, row, diff)
                for table, row, diff in asked
                for time, other, change in tables[table].updates
                if other == row and change == diff
            ]
            times = {time for _, time, _, _ in found}
            wanted, told = len(asked), attempt.time
            if (times and min(times) <= since) or (told is not None and told <= since):
                continue  # reads no longer separate times up to since, and what was deleted by then is gone
            require("T", len(times) <= 1, f"{attempt.token} is there at {sorted(times)}")
            require("T", len(found) in {0, wanted}, f"{attempt.token} is there in part: {found[:3]}")
            if told is not None and all(told < now.upper for now in tables.values()):  # else it is not applied yet
                require("T", not wanted or times == {told}, f"{attempt.token} of {told} is at {sorted(times)}")

    # ---- views -------------------------------------------------------------------------------------------------------

    def _view(self, view: View, now: Collected, inputs: Mapping[str, Collected], inherited: Iterable[str]) -> None:
        name = view.name
        upper, since = min(each.upper for each in inputs.values()), max(each.since for each in inputs.values())
        times = now.times.union(*(each.times for each in inputs.values()), {since, upper - 1, now.since, now.upper - 1})
        first = min(now.times | {now.upper - 1})
        queries, at = self._queries(view), 0
        for time in sorted(times):
            if not max(now.since, first) <= time < now.upper or self._spoilt(view, time):
                continue  # where others wrote, what is the view's own comes with its next append
            shown = time if view.refresh is None else _refreshed(view.refresh, time)
            require("K2", shown is not None, f"{name} can be read at {time}, and no refresh was before: {view.refresh}")
            assert shown is not None
            if not since <= shown < upper:
                continue
            self.checked += 1
            found, failed = now.at(time), sum(inputs[i].failed(shown) for i in inherited)
            held = self._held(queries[at], inputs, shown)
            while at + 1 < len(queries) and own(found) != own(Counter(queries[at].meaning(held))):
                at += 1  # from here on it is a later query
                held = self._held(queries[at], inputs, shown)
            wanted, errors = Counter(queries[at].meaning(held)), queries[at].errors(held) + failed
            require("K2", now.failed(time) == errors, f"{name} at {time} has {now.failed(time)} errors, not {errors}")
            if found != wanted:
                ours, wanted = own(found), own(wanted)
                require(
                    "K2", ours == wanted, f"{name} at {time} is {_shown(ours)}; its definition gives {_shown(wanted)}"
                )

    def _held(self, wanted: Wanted, inputs: Mapping[str, Collected], time: int) -> dict[str, list[Row]]:
        """Return the rows of a view's inputs at ``time``, as its query knows them."""
        return {i: list(each.at(time).elements()) for i, each in inputs.items()}

    def _read(self, view: View) -> dict[str, str]:
        """Return the names of the items that a view reads, by those in its query."""
        reads = view.reads
        return {name: reads.get(name, name) for name in meant(view.name, view.sql).inputs}

    def _queries(self, view: View) -> Sequence[Wanted]:
        """Return the queries that the shard of a view was of, one after the other."""
        return (meant(view.name, view.sql),)

    def _spoilt(self, view: View, time: int) -> bool:
        return any(time in sealed for sealed in self.spoilt[view.shard])

    def _mistaken(self, item: Any) -> bool:
        """Tell whether a wrong replica has written to a view, or to one that it reads."""
        return isinstance(item, View) and (item.shard in self.mistaken or any(map(self._mistaken, self._read_by(item))))

    def _read_by(self, view: View) -> Iterator[View]:
        """Yield the views that ``view`` reads."""
        for name in view.imports:
            if isinstance(read := self._catalogs.current.items.get(name), View):
                yield read

    # ---- endpoints ---------------------------------------------------------------------------------------------------

    async def _progress(self, item: Materialization, catalog: Catalog) -> tuple[int, bool]:
        """Return the time before which the endpoint has everything, and whether nothing is under way there."""
        place = self._places[item.options["at"]]
        bound = bindings(item, catalog)
        keys = tuple(b.state_key for b in bound)
        head = await Register(
            item.log, self._client.clock, self._client.ids, self._client.consensus, kind=Kind.CHECKPOINT
        ).read()
        record = None if head is None else decode(item.name, head)
        if item.endpoint == "checkpointing":
            committed = place.checkpoints.get(item.name, Checkpoint())
            quiet_since = record is not None and record.progress.checkpoint == committed  # else not yet committed there
            return (record.progress.position if record and quiet_since else committed).time(keys), True
        if record is None:
            return 0, True
        quiet = record.progress.extent is None and record.state.get("staged") is None
        return record.progress.position.time(keys), quiet

    async def _endpoint(self, item: Materialization, catalog: Catalog, there: Mapping[str, Collected]) -> None:
        place = self._places[item.options["at"]]
        if self.mistaken and place.broken:
            return  # counts were below zero, and an endpoint cannot know better than its collection
        require("M1", not place.broken, f"{item.name}: {place.broken[:1]}")
        position, quiet = await self._progress(item, catalog)
        if not position or not quiet:
            return
        for bound in item.bindings:
            collection = there[bound.collection]
            if not collection.since <= position - 1 < collection.upper:
                continue
            failed = 0 if continues(item) else collection.failed(position - 1)
            require("wait", not failed, f"{item.name} is at {position}; {bound.collection} has {failed} errors there")
            names = catalog.collection(bound.collection).schema.names
            rows = Counter(tuple(row[n] for n in names) for row in place.tables.get(bound.table, {}).values())
            wanted = collection.at(position - 1)
            if rows != wanted:
                raise LawBrokenError(
                    "M2", f"{item.name} at {position} is {_shown(rows)}; {bound.collection} is {_shown(wanted)}"
                )


def stored(item: Collectable, row: Row) -> Row:
    """Return a row of a collection; that of a table without the NULLs at its end that stand in columns added since."""
    if not isinstance(item, Table) or len(row) == len(TABLE.columns):
        return row
    while len(row) > len(TABLE.columns) and row[-1] is None:
        row = row[:-1]
    return row


def continues(item: Any) -> bool:
    """Tell whether the good rows of a source, or of what an endpoint follows, go on in spite of errors."""
    return not isinstance(item, Table | View) and item.options.get("on_error") == "continue"


def _by_partition(content: Counter[Row], failures: Counter[str]) -> dict[str, Counter[Any]]:
    """Return what a source holds of each partition, errors as their text."""
    found: dict[str, Counter[Any]] = defaultdict(Counter)
    for row, count in content.items():
        found[row[0]][row] += count
    for error, count in failures.items():
        require("R2", error.startswith("{"), f"an error does not say where it is: {error!r}")
        found[msgspec.json.decode(error)["partition"]][error] += count
    return found


def _covered(bindings: Iterable[Record], time: int) -> Counter[str]:
    """Return the offsets, by partition, before which everything has happened by ``time``."""
    covered: Counter[str] = Counter()
    for record in bindings:
        if record.time <= time:
            partition, end = msgspec.json.decode(record.data)
            covered[partition] += end * record.diff
    return covered


def _refreshed(refresh: Refresh, time: int) -> int | None:
    """Return the last refresh at or before ``time``; None if there was none since the view was created."""
    assert refresh.created is not None, "it is not computed before it is created"
    found = [*refresh.ats, *([refresh.created] if refresh.at_creation else [])]
    for every in refresh.everies:
        begin = refresh.created if every.aligned_ms is None else every.aligned_ms
        found.append(begin + (time - begin) // every.interval_ms * every.interval_ms)
    return max((at for at in found if refresh.created <= at <= time), default=None)


def own(content: Counter[Row]) -> Counter[Row]:
    """Return the rows that no foreign writer wrote into a view."""
    return Counter({row: count for row, count in content.items() if not foreign(row)})


def foreign(row: Row) -> bool:
    """Return whether a foreign writer wrote this row into a view."""
    return any(isinstance(value, int) and value >= FOREIGN for value in row)


def _shown(content: Counter[Any]) -> str:
    return str(dict(sorted(content.items(), key=repr)))


def standing(before: Mapping[str, int], after: Mapping[str, int], time: int, problems: Container[str]) -> list[str]:
    """Return the items that are behind a tick, did not move over it and have no problem."""
    return [
        name
        for name, upper in after.items()
        if name in before and upper <= min(before[name], time) and name not in problems
    ]
