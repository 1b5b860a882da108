"""The arrangements of one engine, a cache for look-ups by key, and the look-ups themselves.

An arrangement is made when a look-up first needs it, updated from persist, and dropped when memory is short.  It holds
the updates of a shard before a time, which is definite: so an arrangement is right as long as it exists, and it can be
made again from persist.  It is updated by the changes between its time and the time of a look-up.  If compaction may
have moved earlier updates into that window, it is made anew.

There is one arrangement for each collection, with an index for each key that look-ups use.  Another thread does what
takes seconds (arranging a large collection, indexing or merging it); until it is done, look-ups scan, or use the runs
that exist.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace as changed

from strandline.algebra.nodes import First, Order
from strandline.algebra.schema import DIFF, TIME, Schema
from strandline.engine.arrangements.keys import Hashes, family, hashes, without_null
from strandline.engine.arrangements.runs import Arrangement, By, Counts, arrangement, cancels, spanned
from strandline.engine.frames import inline
from strandline.frontier import Frontier
from strandline.persist.handles.contents import Contents, Half

BUDGET_SHARE: Final = 4
"""All arrangements of an engine take at most this part of the machine's memory; most of it is page cache."""
STORED_FACTOR: Final = 6
"""Updates take so many times the bytes of the parts that they are stored in, about."""
FOUND_ROWS_MAX: Final = 300_000
"""A look-up that may find more rows than this is left to a scan: handing them over takes longer than Spark's join."""
FOUND_BYTES_MAX: Final = 128 << 20
"""The same for rows that are wide."""
HERE_ROWS_MAX: Final = 100_000
"""Arranging, indexing and merging of more rows is done beside the look-ups, which are left to scans until then."""
READY_ROWS_MAX: Final = 1_000
"""An index of so many new rows is made in a moment."""
PAUSE: Final = 16
"""After work on an arrangement has failed, so many look-ups are left to scans before it is tried again."""
_log = logging.getLogger(__name__)


def default_budget() -> int:
    """Return how many bytes arrangements may take on this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // BUDGET_SHARE


@dataclass(frozen=True, slots=True)
class _Work:
    """What another thread makes in place of the first ``runs`` runs of an arrangement."""

    runs: int
    future: Future[Arrangement]


@dataclass
class _Slot:
    """One arrangement, or the place for one."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    arranged: Arrangement | None = None
    work: _Work | None = None
    used: int = 0
    pause: int = 0
    refused_rows: int | None = None  # so many updates took too much room

    def forget(self) -> None:
        """Throw the arrangement away, and what is being made of it."""
        self.arranged, self.work = None, None


class Arrangements:
    """Looks up rows of collections by key.  Safe to call from several threads."""

    def __init__(
        self, tables: Callable[[Contents], Iterable[pa.Table]], workers: Executor, *, budget: int | None = None
    ) -> None:
        """``tables`` reads contents, table by table; ``workers`` carries out what takes long."""
        self._tables = tables
        self._workers = workers
        self.budget = default_budget() if budget is None else budget
        self._slots: dict[str, _Slot] = {}
        self._room = threading.Lock()  # held for moments; a slot's own lock while it is read or made
        self._uses = 0

    @property
    def size(self) -> int:
        """Bytes of all arrangements."""
        return sum(slot.arranged.size for slot in list(self._slots.values()) if slot.arranged is not None)

    def lookup(
        self,
        old: Contents,
        columns: Sequence[str],
        keys: Sequence[pa.Table],
        *,
        nulls: bool,
        first: tuple[First, pa.Table] | None = None,
        read: Sequence[str] | None = None,
    ) -> pa.Table | None:
        """See `Engine.lookup`.  Each of ``keys`` has as many columns as there are ``columns``, in their order.

        ``read``, as ordered as the columns of ``old``; None: all of these.
        """
        names = old.schema.names if read is None else tuple(read)
        if not columns and keys and not any(table.num_rows for table in keys):
            return inline.update_schema(old.schema).empty_table().select([*names, TIME, DIFF])
        orders = () if first is None else first[0].orders
        if not columns and not orders:
            return None
        named = (*columns, *(order.column for order in orders))
        if old.size * STORED_FACTOR > self.budget or not _can_arrange(old.schema, named):
            return None
        target = inline.update_schema(old.schema)
        wanted = _wanted([target.field(name).type for name in columns], keys, nulls=nulls)
        if wanted is None:
            return None
        slot = self._slot(old.shard)
        with slot.lock:
            arranged = self._ready(slot, old, tuple(By(tuple(columns), order) for order in orders or (None,)))
        # It is a value, so that others may look things up in it meanwhile, or bring the slot on.
        if arranged is None:
            found = None
        elif first is None:
            found = arranged.lookup(tuple(columns), wanted, names, rows_max=_found_max(arranged))
        else:
            counts = _counts(columns, wanted, first)
            found = arranged.first(tuple(columns), orders, wanted, counts, names, rows_max=_found_max(arranged))
            if found is None:
                self._merge_grown(slot)
        self._make_room(slot)
        if found is None or (columns and orders and _collide(columns, keys, found)):
            return None
        return _timed(found, old.advance)

    def between(
        self, old: Contents, column: str, keys: Sequence[pa.Table], read: Sequence[str] | None = None
    ) -> pa.Table | None:
        """See `Engine.lookup` (``span``).  ``keys``: updates of one column, with their times and diffs."""
        if old.size * STORED_FACTOR > self.budget or not _can_arrange(old.schema, (column,)):
            return None
        values = pa.concat_tables([table.rename_columns(["value", TIME, DIFF]) for table in keys])
        span = spanned(values["value"], inline.update_schema(old.schema).field(column).type)
        if span is None or not cancels(values):
            return None
        slot = self._slot(old.shard)
        names = old.schema.names if read is None else tuple(read)
        with slot.lock:
            arranged = self._ready(slot, old, (By((), Order(column)),))
        found = None if arranged is None else arranged.between(span, column, names, rows_max=_found_max(arranged))
        self._make_room(slot)
        return None if found is None else _timed(found, old.advance)

    def ready(self, old: Contents, columns: tuple[str, ...]) -> Arrangement | None:
        """Return what is in memory as of ``old.upper``, with an index by ``columns``; None: not at once.

        It waits for no other thread, and reads nothing.
        """
        slot = self._slots.get(old.shard)
        known = None if slot is None else slot.arranged
        if slot is None or known is None or known.upper < old.upper or not _has_columns(known, old.schema):
            return None
        if any(By(columns) not in run.indexes and run.num_rows > READY_ROWS_MAX for run in known.runs):
            return None
        slot.used = self._uses
        return known.before(old.upper)

    def _slot(self, shard: str) -> _Slot:
        with self._room:
            self._uses += 1
            slot = self._slots.setdefault(shard, _Slot())
            slot.used = self._uses
            return slot

    def _ready(self, slot: _Slot, old: Contents, by: Sequence[By]) -> Arrangement | None:
        """Return what the slot holds, as of ``old.upper`` and with these indexes; None: not now."""
        self._take_work(slot)
        known = slot.arranged
        if known is None or (known.upper <= old.upper and not _continues(old, known)):
            known = self._made(slot, old, by)
        elif known.upper > old.upper and not _has_columns(known, old.schema):
            known = None  # it stays, for those who read what it holds
        elif known.upper < old.upper:
            change = pa.concat_tables(self._read(old, known.upper))
            slot.arranged = known = known.extended(change, old.upper, compact=slot.work is None)
        if known is None:
            return None
        if not known.runs[0].indexes.keys() >= set(by) and known.runs[0].num_rows > HERE_ROWS_MAX:
            self._begin(slot, 1, partial(known.indexed, by))
            return None
        if known.due:
            self._begin(slot, len(known.older), known.merged, here=known.rows <= HERE_ROWS_MAX)
            self._take_work(slot)
            known = slot.arranged
        return None if known is None else known.before(old.upper)  # another stage may have taken it further

    def _merge_grown(self, slot: _Slot) -> None:
        """Let the updates that came since the large run was made be merged, if many: of rows that are gone, perhaps."""
        with slot.lock:
            known = slot.arranged  # another slot's need for room may take it away at any moment
            if known is not None and known.grown > FOUND_ROWS_MAX // 2:
                self._begin(slot, len(known.older), known.merged)

    def _made(self, slot: _Slot, old: Contents, by: Sequence[By]) -> Arrangement | None:
        """Arrange ``old``: here and now if it is small."""
        if slot.refused_rows is not None and old.rows >= slot.refused_rows:
            return None
        if slot.arranged is not None:
            slot.forget()
        elif slot.work is not None:
            return None  # it is made of another time, perhaps: a later look-up brings it on
        schema = pa.schema([inline.update_schema(old.schema).field(name) for name in [*old.schema.names, DIFF]])
        make = partial(arrangement, schema, self._read(old, 0), old.upper, by)
        self._begin(slot, 0, make, here=old.rows <= HERE_ROWS_MAX)
        self._take_work(slot)
        return slot.arranged

    def _read(self, old: Contents, lower: int) -> Iterator[pa.Table]:
        """Yield the updates in ``[lower, old.upper)``, without their times."""
        batches = tuple(batch for batch in old.batches if not batch.upper <= Frontier(lower))
        names = [*old.schema.names, DIFF]
        for table in self._tables(changed(old, batches=batches, lower=lower, advance=0, half=Half.OK)):
            yield table.select(names)

    def _begin(self, slot: _Slot, runs: int, call: Callable[[], Arrangement], *, here: bool = False) -> None:
        """Let another thread make something of the slot's first ``runs`` runs, unless it is at work already.

        ``here``: it is made here and now, which may raise.
        """
        if here and slot.work is None:
            done: Future[Arrangement] = Future()
            done.set_result(call())
            slot.work = _Work(runs, done)
        elif slot.work is None and slot.pause == 0:
            slot.work = _Work(runs, self._workers.submit(call))
        slot.pause = max(0, slot.pause - 1)

    def _take_work(self, slot: _Slot) -> None:
        """Put what another thread has made in its place."""
        work = slot.work
        if work is None or not work.future.done():
            return
        slot.work = None
        known = slot.arranged  # another slot's need for room may take it away at any moment
        if (error := work.future.exception()) is not None:
            _log.warning("rows are scanned, not looked up, for a while: arranging them failed: %s", error)
            slot.pause = PAUSE
        elif known is None:
            slot.arranged = work.future.result()
        else:
            slot.arranged = replace(known, runs=(*work.future.result().runs, *known.runs[work.runs :]))

    def _make_room(self, just: _Slot) -> None:
        """Throw away what was used longest ago, until the rest is within the budget."""
        with self._room:
            held = sorted((s for s in self._slots.values() if s.arranged is not None), key=lambda slot: slot.used)
            total = sum(slot.arranged.size for slot in held if slot.arranged is not None)
            for slot in held:
                if total <= self.budget:
                    return
                arranged = slot.arranged
                if arranged is None:
                    continue
                total -= arranged.size
                slot.forget()
                if slot is just:
                    slot.refused_rows = arranged.rows


def _found_max(arranged: Arrangement) -> int:
    """Return how many rows a look-up may find, which are taken to be as wide as all are on the average."""
    return min(FOUND_ROWS_MAX, FOUND_BYTES_MAX * arranged.rows // max(1, arranged.size))


def _timed(found: pa.Table, time: int) -> pa.Table:
    """Return updates of which all are at ``time``."""
    return found.add_column(found.num_columns - 1, TIME, pa.array(np.full(found.num_rows, time, np.int64)))


@lru_cache(maxsize=inline.SCHEMAS_REMEMBERED)
def _can_arrange(schema: Schema, columns: tuple[str, ...]) -> bool:
    """Tell whether rows can be added up here, and looked up by ``columns`` as Spark would compare them."""
    target = inline.update_schema(schema)
    return inline.can_group(target.empty_table()) and all(family(target.field(name).type) for name in columns)


def _wanted(kinds: Sequence[pa.DataType], keys: Sequence[pa.Table], *, nulls: bool) -> Hashes | None:
    """Return the numbers of ``keys``, ascending; None if a type differs from the one that is looked up."""
    if not kinds:
        return np.zeros(1, np.uint64)
    found = [np.empty(0, np.uint64)]
    for table in keys:
        if [family(kind) for kind in kinds] != [family(column.type) for column in table.columns]:
            return None
        rows = table if nulls else without_null(table)
        found.append(hashes(rows.columns))
    return np.unique(np.concatenate(found))


def _counts(columns: Sequence[str], wanted: Hashes, first: tuple[First, pa.Table]) -> Counts:
    """Return how many of the rows with each ``wanted`` number matter: more by those that the change takes away."""
    least, change = first
    gone = change.filter(pc.less(change[DIFF], 0))
    counts = np.full(len(wanted), least.rows, np.int64)
    taken = -np.asarray(gone[DIFF])
    if not columns:
        return np.asarray(counts + taken.sum())
    if len(wanted) and len(taken):
        numbers = hashes([gone[name] for name in columns])
        places = np.minimum(np.searchsorted(wanted, numbers), len(wanted) - 1)
        same = wanted[places] == numbers
        np.add.at(counts, places[same], taken[same])
    return counts


def _collide(columns: Sequence[str], keys: Sequence[pa.Table], found: pa.Table) -> bool:
    """Tell whether unequal keys may have one number: then the first rows of one may hide those of another."""
    names = [str(n) for n in range(len(columns))]
    rows = found.select(list(columns)).rename_columns(names)
    try:
        values = pa.concat_tables([rows, *(table.rename_columns(names).cast(rows.schema) for table in keys)])
    except pa.ArrowInvalid:  # a value that no row can have
        return True
    distinct = inline.summed(values.append_column(DIFF, pa.array(np.ones(values.num_rows, np.int64))))
    return bool(len(np.unique(hashes(distinct.select(names).columns))) < distinct.num_rows)


def _continues(old: Contents, known: Arrangement) -> bool:
    """Tell whether what ``old`` has from ``known.upper`` on is what came after ``known``, and it has its columns."""
    begin = Frontier(known.upper)
    return _has_columns(known, old.schema) and all(
        b.upper <= begin or begin <= b.lower or not begin <= b.since for b in old.batches
    )


def _has_columns(known: Arrangement, schema: Schema) -> bool:
    names = [*schema.names, DIFF]
    target, kept = inline.update_schema(schema), known.schema
    return kept.names == names and all(kept.field(name).type == target.field(name).type for name in names)


KEYS_AT_ONCE_MAX: Final = 16
ROWS_AT_ONCE_MAX: Final = 1_000


def peeked(
    arrangements: Arrangements, old: Contents, columns: Sequence[str], keys: pa.Table, limit: int | None
) -> pa.Table | None:
    """See `Engine.peek`; it may wait for another thread, and read what has changed.

    It finds exactly the rows that have a key, as plain rows.  A look-up finds rows by the numbers of their keys, and
    two keys may have one number.  So each row that was found is compared with the key that has its number.
    """
    found = arrangements.lookup(old, columns, [keys], nulls=True)
    return None if found is None else _exact(found.drop_columns([TIME]), columns, keys, limit)


def peeked_at_once(
    arrangements: Arrangements, old: Contents, columns: Sequence[str], keys: pa.Table, limit: int | None
) -> pa.Table | None:
    """Do the same for a few keys in a moment, in the thread of an event loop; None: that cannot be done in a moment."""
    arranged = arrangements.ready(old, tuple(columns)) if 0 < keys.num_rows <= KEYS_AT_ONCE_MAX else None
    if arranged is None:
        return None
    wanted = np.unique(hashes(keys.columns))
    found = arranged.lookup(tuple(columns), wanted, old.schema.names, rows_max=ROWS_AT_ONCE_MAX)
    return None if found is None else _exact(found, columns, keys, limit)


def _exact(found: pa.Table, columns: Sequence[str], keys: pa.Table, limit: int | None) -> pa.Table | None:
    """Return of the rows that a look-up found those of ``keys``; None: that cannot be told."""
    if found.num_rows:
        meet = _meet(found.select(list(columns)), keys)
        if meet is None:
            return None
        found = found.filter(meet)
    return _rows(found, limit)


def _meet(rows: pa.Table, keys: pa.Table) -> pa.ChunkedArray | None:
    """Return of each of ``rows`` whether it is one of ``keys``; None: two of these have one number."""
    if keys.num_rows == 1:
        return _alike(rows, keys.take(pa.array(np.zeros(rows.num_rows, np.int64))))
    numbers, first, same = np.unique(hashes(keys.columns), return_index=True, return_inverse=True)
    if not pc.all(_alike(keys, keys.take(pa.array(first[same])))).as_py():
        return None
    places = np.minimum(np.searchsorted(numbers, hashes(rows.columns)), len(numbers) - 1)
    return _alike(rows, keys.take(pa.array(first[places])))


def _alike(some: pa.Table, others: pa.Table) -> pa.ChunkedArray:
    """Return of each row whether it equals the one in its place, NULL being NULL and NaN being NaN."""
    pairs = zip(some.columns, others.columns, strict=True)
    found = [_equal(one.combine_chunks(), other.combine_chunks()) for one, other in pairs]
    whole = found[0]
    for each in found[1:]:
        whole = pc.and_(whole, each)
    return whole


def _equal(one: pa.Array, other: pa.Array) -> pa.Array:
    equal = pc.equal(one, other)
    if pa.types.is_floating(one.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    if one.null_count or other.null_count:
        equal = pc.if_else(pc.is_null(equal), pc.and_(pc.is_null(one), pc.is_null(other)), equal)
    return equal


def _rows(found: pa.Table, limit: int | None) -> pa.Table:
    """Return each row as often as its diffs say."""
    diffs = found[DIFF].to_numpy()
    if (diffs < 0).any():  # of a row that is there less often than not at all, which is an error of the collection
        found = inline.counted(found)
        diffs = found[DIFF].to_numpy()
    rows = found.drop_columns([DIFF]) if (diffs == 1).all() else inline.copied(found)
    return rows if limit is None else rows.slice(0, limit)
