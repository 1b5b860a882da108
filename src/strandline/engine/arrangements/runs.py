"""Runs: updates with indexes by key, and an arrangement, which is a few of them.

An arrangement holds what a collection's updates before ``upper`` come to: a row that is there n times is in one run or
several, with diffs that add up to n.  An index has the numbers of the keys of a run's rows, sorted, and where these
rows are: all keys share the rows.  A look-up is a binary search in each run.  New updates become a run of their own;
when there are `RUNS_MAX` of them, the small ones become one, and when those are a `FRACTION` of the large one, all do
(`merged`: that takes long, and may be done beside look-ups).  The newest few always stay apart, because a stage that
is not as far as others asks for the contents before them.

Source: design page "compute" (arrangements; small windows).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from strandline.algebra.schema import DIFF
from strandline.engine.arrangements.keys import Hashes, hashes
from strandline.engine.arrangements.mapped import mapped
from strandline.engine.frames import inline

RUNS_MAX: Final = 32
RECENT: Final = 8
"""So many of the newest runs stay apart."""
FRACTION: Final = 4
"""The small runs together are at most this part of the large one."""
MERGED_ROWS: Final = 200_000
"""Runs are merged by ranges of numbers that have about so many rows: so many are in the heap at once."""
Columns: TypeAlias = tuple[str, ...]
Places: TypeAlias = "np.ndarray[Any, np.dtype[np.uint32]]"


@dataclass(frozen=True, eq=False)
class Index:
    """The numbers of the keys of some rows, ascending, and the place of the row of each."""

    numbers: Hashes
    places: Places

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.numbers.nbytes) + int(self.places.nbytes)

    def found(self, wanted: Hashes) -> Places:
        """Return the places of the rows that have one of the ``wanted`` numbers, which ascend."""
        begins, ends = (np.searchsorted(self.numbers, wanted, side) for side in ("left", "right"))
        counts = ends - begins
        total = int(counts.sum())
        shifts = np.repeat(begins - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
        return np.asarray(self.places[shifts + np.arange(total)], np.uint32)


class Run:
    """Updates (columns and ``__diff``) and indexes of them, each made when it is first asked for."""

    def __init__(self, rows: pa.Table, lower: int, upper: int) -> None:
        """``lower``, ``upper``: the bounds of their times."""
        assert rows.column_names[-1] == DIFF, rows.column_names
        self.lower = lower
        self.upper = upper
        self.schema = rows.schema
        self.num_rows = rows.num_rows
        self.indexes: dict[Columns, Index] = {}
        self._bytes = int(rows.nbytes)
        self._batches = rows.to_batches()
        self._ends = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    @property
    def size(self) -> int:
        """Bytes."""
        return self._bytes + sum(index.size for index in list(self.indexes.values()))

    def index(self, columns: Columns) -> Index:
        """Return the index by ``columns``."""
        if columns not in self.indexes:
            parts = [hashes([pa.chunked_array([batch[name]]) for name in columns]) for batch in self._batches]
            numbers = np.concatenate([np.empty(0, np.uint64), *parts])
            order = np.argsort(numbers)
            self.indexes[columns] = Index(numbers[order], order.astype(np.uint32))
        return self.indexes[columns]

    def taken(self, places: Places) -> pa.Table:
        """Return the rows at ``places``, in any order."""
        ordered = np.sort(places).astype(np.int64)
        cuts = np.searchsorted(ordered, self._ends)
        found = [
            batch.take(pa.array(ordered[begin:end] - start))
            for batch, start, begin, end in zip(self._batches, self._ends, cuts, cuts[1:], strict=False)
            if begin < end
        ]
        return pa.Table.from_batches(found, self.schema)


@dataclass(frozen=True, eq=False)
class Arrangement:
    """What the updates before ``upper`` come to; ``runs``: the large one first."""

    upper: int
    runs: tuple[Run, ...]

    @property
    def schema(self) -> pa.Schema:
        """Columns and ``__diff``."""
        return self.runs[0].schema

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(run.size for run in self.runs)

    @property
    def rows(self) -> int:
        """How many updates its runs hold."""
        return sum(run.num_rows for run in self.runs)

    def lookup(self, columns: Columns, wanted: Hashes, *, rows_max: int) -> pa.Table | None:
        """Return the rows whose ``columns`` have a ``wanted`` number, each once with its count; None: too many."""
        wanted = np.unique(wanted)
        places = [run.index(columns).found(wanted) for run in self.runs]
        if sum(map(len, places)) > rows_max:
            return None
        found = [run.taken(at) for run, at in zip(self.runs, places, strict=True) if len(at)]
        return inline.summed(pa.concat_tables([self.schema.empty_table(), *found]))

    def before(self, upper: int) -> Arrangement | None:
        """Return it as it was at ``upper``; None if that is not known any longer."""
        earlier = tuple(run for run in self.runs if run.upper <= upper)
        apart = len(earlier) == len(self.runs) or upper <= self.runs[len(earlier)].lower
        return Arrangement(upper, earlier) if earlier and apart else None

    def extended(self, rows: pa.Table, upper: int, *, compact: bool = True) -> Arrangement:
        """Return it with the updates up to ``upper`` added; ``compact``: many small runs become one."""
        if not rows.num_rows:
            return replace(self, upper=upper)
        runs = (*self.runs, Run(rows.combine_chunks(), self.upper, upper))
        if compact and len(runs) > RUNS_MAX + RECENT:
            runs = (runs[0], _merged(runs[1:-RECENT]), *runs[-RECENT:])
        return replace(self, upper=upper, runs=runs)

    @property
    def due(self) -> bool:
        """Whether it should be `merged`."""
        small = sum(run.num_rows for run in self.older[1:])
        return small * FRACTION > self.runs[0].num_rows and len(self.older) > 2

    @property
    def older(self) -> tuple[Run, ...]:
        """The runs that are not among the newest, and the large one."""
        return (self.runs[0], *self.runs[1:-RECENT])

    def merged(self) -> Arrangement:
        """Return its `older` runs as one, with its indexes."""
        merged = _merged(self.older)
        return Arrangement(merged.upper, (merged,))

    def indexed(self, columns: Columns) -> Arrangement:
        """Return its large run when that has an index by ``columns``."""
        self.runs[0].index(columns)
        return Arrangement(self.runs[0].upper, self.runs[:1])


def arrangement(schema: pa.Schema, tables: Iterable[pa.Table], upper: int, columns: Columns) -> Arrangement:
    """Return the updates in ``tables`` (columns and ``__diff``) arranged, with an index by ``columns``."""
    return Arrangement(upper, (Run(mapped(schema, tables), 0, upper),)).indexed(columns)


def _merged(runs: Sequence[Run]) -> Run:
    """Return what the runs come to, with the indexes of the first: all its range of numbers, piece by piece."""
    wanted = list(runs[0].indexes)
    rows = mapped(runs[0].schema, _summed(runs, wanted[0] if wanted else None))
    merged = Run(rows, runs[0].lower, runs[-1].upper)
    for columns in wanted:
        merged.index(columns)
    return merged


def _summed(runs: Sequence[Run], columns: Columns | None) -> Iterator[pa.Table]:
    """Yield what the runs come to; equal rows have equal numbers, so that they are in one piece."""
    schema = runs[0].schema
    if columns is None:
        pieces = [[np.arange(run.num_rows, dtype=np.uint32) for run in runs]]
    else:
        indexes = [run.index(columns) for run in runs]
        bounds = np.unique(indexes[0].numbers[MERGED_ROWS::MERGED_ROWS])
        cuts = [[0, *np.searchsorted(index.numbers, bounds), len(index.numbers)] for index in indexes]
        pieces = [
            [index.places[cut[n] : cut[n + 1]] for index, cut in zip(indexes, cuts, strict=True)]
            for n in range(len(bounds) + 1)
        ]
    for places in pieces:
        rows = pa.concat_tables([run.taken(at) for run, at in zip(runs, places, strict=True)])
        # A sum does not say that it is never NULL.
        yield inline.summed(rows).select(schema.names).cast(schema)
