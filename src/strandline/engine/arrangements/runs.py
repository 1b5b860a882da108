"""Runs: updates sorted by the numbers of their keys, and an arrangement, which is a few of them.

An arrangement of the columns K holds what a collection's updates before ``upper`` come to: a row that is there n times
is in one run or several, with diffs that add up to n.  A look-up is a binary search in each run.  New updates become a
run of their own; when there are `RUNS_MAX` of them, the small ones become one, and when those are a `FRACTION` of the
large one, all do (`merged`: that takes long, and may be done beside look-ups).

A run of many bytes lies in a file that is mapped: it takes page cache and no heap.

Source: design page "compute" (arrangements; small windows).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from strandline.algebra.schema import DIFF
from strandline.engine.arrangements.keys import Hashes, hashes
from strandline.engine.frames import inline

RUNS_MAX: Final = 8
FRACTION: Final = 4
"""The small runs together are at most this part of the large one."""
MAPPED_BYTES_MIN: Final = 4 << 20


@dataclass(frozen=True, eq=False)
class Run:
    """Updates (columns and ``__diff``) in the order of ``numbers``."""

    numbers: Hashes
    rows: pa.Table

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.numbers.nbytes) + int(self.rows.nbytes)

    def found(self, wanted: Hashes) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the positions of the rows that have one of the ``wanted`` numbers, which ascend."""
        begins, ends = (np.searchsorted(self.numbers, wanted, side) for side in ("left", "right"))
        counts = ends - begins
        total = int(counts.sum())
        if not total:
            return np.empty(0, np.int64)
        shifts = np.repeat(begins - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
        return np.asarray(shifts + np.arange(total), np.int64)


def sorted_run(rows: pa.Table, columns: tuple[str, ...]) -> Run:
    """Return ``rows`` as a run, in a file if they are many."""
    numbers = hashes([rows[name] for name in columns])
    order = np.argsort(numbers, kind="stable")
    return Run(numbers[order], _kept(rows.take(pa.array(order))))


def _kept(rows: pa.Table) -> pa.Table:
    if rows.nbytes < MAPPED_BYTES_MIN:
        return rows.combine_chunks()
    # The file has no name once it is mapped, so that nothing is left of it when the process ends, however it ends.
    with tempfile.NamedTemporaryFile(prefix="strandline-", suffix=".arrow") as file:
        with pa.ipc.new_file(pa.PythonFile(file, "w"), rows.schema) as writer:
            writer.write_table(rows.combine_chunks())
        file.flush()
        return pa.ipc.open_file(pa.memory_map(file.name)).read_all()


@dataclass(frozen=True, eq=False)
class Arrangement:
    """What the updates before ``upper`` come to, by ``columns``; ``runs``: the large one first."""

    columns: tuple[str, ...]
    upper: int
    runs: tuple[Run, ...]

    @cached_property
    def size(self) -> int:
        """Bytes."""
        return sum(run.size for run in self.runs)

    def lookup(self, wanted: Hashes, *, rows_max: int) -> pa.Table | None:
        """Return the rows with one of the ``wanted`` numbers, each once with its count; None if they are too many."""
        wanted = np.unique(wanted)
        places = [run.found(wanted) for run in self.runs]
        if sum(map(len, places)) > rows_max:
            return None
        found = [run.rows.take(pa.array(at)) for run, at in zip(self.runs, places, strict=True) if len(at)]
        return inline.summed(pa.concat_tables([self.runs[0].rows.slice(0, 0), *found]))

    @property
    def rows(self) -> int:
        """How many updates its runs hold."""
        return sum(run.rows.num_rows for run in self.runs)

    def extended(self, rows: pa.Table, upper: int, *, compact: bool = True) -> Arrangement:
        """Return it with the updates up to ``upper`` added; ``compact``: many small runs become one."""
        if not rows.num_rows:
            return replace(self, upper=upper)
        runs = (*self.runs, sorted_run(rows, self.columns))
        if compact and len(runs) > RUNS_MAX:
            runs = (runs[0], sorted_run(_net(runs[1:]), self.columns))
        return replace(self, upper=upper, runs=runs)

    @property
    def due(self) -> bool:
        """Whether it should be `merged`."""
        small = sum(run.rows.num_rows for run in self.runs[1:])
        return small * FRACTION > self.runs[0].rows.num_rows and len(self.runs) > 2

    def merged(self) -> Arrangement:
        """Return it as one run."""
        return replace(self, runs=(sorted_run(_net(self.runs), self.columns),))


def _net(runs: Sequence[Run]) -> pa.Table:
    """Return what the runs come to, in their own schema: a sum does not say that it is never NULL."""
    schema = runs[0].rows.schema
    return inline.summed(pa.concat_tables([run.rows for run in runs])).select(schema.names).cast(schema)


def arrangement(rows: pa.Table, columns: tuple[str, ...], upper: int) -> Arrangement:
    """Return ``rows`` (columns and ``__diff``) arranged."""
    assert rows.column_names[-1] == DIFF, rows.column_names
    return Arrangement(columns, upper, (sorted_run(rows, columns),))
