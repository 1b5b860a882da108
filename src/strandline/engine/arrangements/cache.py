"""The arrangements of one engine: made when a look-up first needs them, brought on from persist, thrown away for room.

An arrangement is a cache.  What it holds is definite: the updates of a shard before a time.  So it is right as long as
it is there, and it is made again from persist when it is not.  It is brought on by the updates between its time and the
one that is asked for; compaction may have moved earlier updates there, and then it is made anew.

Merging a large run takes seconds, so another thread does it, and the look-ups go on with what there is.

Source: design page "compute" (arrangements: a cache within a byte budget).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace as changed

from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.engine.arrangements.keys import Hashes, family, hashes, without_null
from strandline.engine.arrangements.runs import Arrangement, arrangement
from strandline.engine.frames import inline
from strandline.frontier.antichain import Frontier
from strandline.persist.handles.plane import Contents, Half

BUDGET_BYTES: Final = 2 << 30
"""What all arrangements of an engine take together, at most; most of it is page cache."""
STORED_BYTES_MAX: Final = 64 << 20
"""A collection whose parts have more bytes than this is not arranged.

It is sorted in memory, all at once: there it takes some six times as much, and while it is sorted twice that.
"""
FOUND_ROWS_MAX: Final = 50_000
"""A look-up that may find more rows than this is left to a scan: handing them over takes longer than Spark's join."""
MERGED_HERE_ROWS_MAX: Final = 100_000


@dataclass
class _Slot:
    """One arrangement, or the place for one."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    arranged: Arrangement | None = None
    merging: tuple[Arrangement, Future[Arrangement]] | None = None
    used: int = 0
    refused_rows: int | None = None  # so many updates took too much room


class Arrangements:
    """Looks up rows of collections by key.  Safe to call from several threads."""

    def __init__(
        self, tables: Callable[[Contents], Sequence[pa.Table]], workers: Executor, *, budget: int = BUDGET_BYTES
    ) -> None:
        """``tables`` reads contents; ``workers`` carries out large merges."""
        self._tables = tables
        self._workers = workers
        self._budget = budget
        self._slots: dict[tuple[str, tuple[str, ...]], _Slot] = {}
        self._room = threading.Lock()  # held for moments; a slot's own lock while it is read or made
        self._uses = 0

    @property
    def size(self) -> int:
        """Bytes of all arrangements."""
        return sum(slot.arranged.size for slot in list(self._slots.values()) if slot.arranged is not None)

    def lookup(
        self, old: Contents, columns: Sequence[str], keys: Sequence[pa.Table], *, nulls: bool
    ) -> pa.Table | None:
        """See `Engine.lookup`.  Each of ``keys`` has as many columns as there are ``columns``, in their order."""
        if not columns:
            some = any(table.num_rows for table in keys)
            return None if some else inline.update_schema(old.schema).empty_table().drop_columns([ERROR])
        if not _can_arrange(old, columns):
            return None
        target = inline.update_schema(old.schema)
        wanted = _wanted([target.field(name).type for name in columns], keys, nulls=nulls)
        if wanted is None:
            return None
        slot = self._slot(old.shard, tuple(columns))
        with slot.lock:
            arranged = self._brought_to(slot, old, tuple(columns))
            found = None if arranged is None else arranged.lookup(wanted, rows_max=FOUND_ROWS_MAX)
        self._make_room(slot)
        if found is None:
            return None
        times = pa.array(np.full(found.num_rows, old.advance, np.int64))
        return found.add_column(found.num_columns - 1, TIME, times)

    def _slot(self, shard: str, columns: tuple[str, ...]) -> _Slot:
        with self._room:
            self._uses += 1
            slot = self._slots.setdefault((shard, columns), _Slot())
            slot.used = self._uses
            return slot

    def _brought_to(self, slot: _Slot, old: Contents, columns: tuple[str, ...]) -> Arrangement | None:
        """Return what the slot holds, as of ``old.upper``; None if it cannot."""
        known = self._with_merged(slot)
        if known is not None and known.upper > old.upper:
            return None  # another stage, which is further, has taken it along
        if known is None or not _continues(old, known):
            if slot.refused_rows is not None and old.rows >= slot.refused_rows:
                return None
            slot.arranged, slot.merging = arrangement(self._read(old, 0), columns, old.upper), None
        elif known.upper < old.upper:
            slot.arranged = known.extended(self._read(old, known.upper), old.upper, compact=slot.merging is None)
        self._merge(slot)
        return slot.arranged

    def _read(self, old: Contents, lower: int) -> pa.Table:
        """Return the updates in ``[lower, old.upper)``, without their times."""
        batches = tuple(batch for batch in old.batches if not batch.upper <= Frontier(lower))
        tables = self._tables(changed(old, batches=batches, lower=lower, advance=0, half=Half.OK))
        names = [*old.schema.names, DIFF]
        return pa.concat_tables([table.select(names) for table in tables])

    def _merge(self, slot: _Slot) -> None:
        arranged = slot.arranged
        if arranged is None or slot.merging is not None or not arranged.due:
            return
        if arranged.rows <= MERGED_HERE_ROWS_MAX:
            slot.arranged = arranged.merged()
        else:
            slot.merging = arranged, self._workers.submit(arranged.merged)

    def _with_merged(self, slot: _Slot) -> Arrangement | None:
        """Return the slot's arrangement, with the result of a merge that has ended."""
        if slot.merging is not None and slot.merging[1].done():
            before, future = slot.merging
            slot.merging = None
            if future.exception() is None and slot.arranged is not None:
                later = slot.arranged.runs[len(before.runs) :]
                slot.arranged = replace(slot.arranged, runs=(*future.result().runs, *later))
        return slot.arranged

    def _make_room(self, just: _Slot) -> None:
        """Throw away what was used longest ago, until the rest is within the budget."""
        with self._room:
            held = sorted((s for s in self._slots.values() if s.arranged is not None), key=lambda slot: slot.used)
            total = sum(slot.arranged.size for slot in held if slot.arranged is not None)
            for slot in held:
                if total <= self._budget:
                    return
                arranged = slot.arranged
                if arranged is None:
                    continue
                total -= arranged.size
                slot.arranged, slot.merging = None, None
                if slot is just:
                    slot.refused_rows = arranged.rows


def _can_arrange(old: Contents, columns: Sequence[str]) -> bool:
    """Tell whether rows of ``old`` can be added up here, and looked up by ``columns`` as Spark would compare them."""
    target = inline.update_schema(old.schema)
    if old.size > STORED_BYTES_MAX or not inline.can_group(target.empty_table()):
        return False
    collated = {column.name for column in old.schema if "collate" in column.type.lower()}
    return not collated.intersection(columns) and all(family(target.field(name).type) for name in columns)


def _wanted(kinds: Sequence[pa.DataType], keys: Sequence[pa.Table], *, nulls: bool) -> Hashes | None:
    """Return the numbers of ``keys``; None if a type differs from the one that is looked up."""
    found = [np.empty(0, np.uint64)]
    for table in keys:
        if [family(kind) for kind in kinds] != [family(column.type) for column in table.columns]:
            return None
        rows = table if nulls else without_null(table)
        found.append(hashes(rows.columns))
    return np.concatenate(found)


def _continues(old: Contents, known: Arrangement) -> bool:
    """Tell whether what ``old`` has from ``known.upper`` on is what came after ``known``, and it has its columns."""
    begin = Frontier(known.upper)
    names = [*old.schema.names, DIFF]
    target = inline.update_schema(old.schema)
    kept = known.runs[0].rows.schema
    same = kept.names == names and all(kept.field(name).type == target.field(name).type for name in names)
    return same and all(begin <= batch.lower or not begin <= batch.since for batch in old.batches)
