"""Mistakes that an author of arrangements could make: the comparison of look-ups with what is there sees each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from tests.engine.arrangements.test_arrangements import (
    test_look_ups_find_exactly_what_is_there_at_each_time as look_ups_are_right,
)

from strandline.algebra.schema import DIFF
from strandline.engine.arrangements import cache, keys, runs
from strandline.engine.arrangements.cache import Arrangements
from strandline.engine.arrangements.runs import Arrangement, Index, Run

SEEDS: Final = range(10)
_ready, _taken, _before, _extended = (
    Arrangements._ready,
    Arrangements._take_work,
    Arrangement.before,
    Arrangement.extended,
)
_lookup, _index, _merged, _hashed = Arrangement.lookup, Run.index, runs._merged, keys._hashed


def _stale(self: Arrangements, slot: Any, old: Any, columns: Any) -> Any:
    """Take what was arranged at some time for what is there now."""
    return _ready(self, slot, old, columns) if slot.arranged is None else slot.arranged


def _one_run_missing(self: Arrangement, *args: Any, **kwargs: Any) -> Any:
    """Leave the newest run out."""
    return _lookup(replace(self, runs=self.runs[: max(1, len(self.runs) - 1)]), *args, **kwargs)


def _unordered(self: Run, columns: Any) -> Index:
    """Give a merged run an index whose numbers do not ascend."""
    made = _index(self, columns)
    return Index(made.numbers[::-1], made.places[::-1]) if self.lower == 0 else made


def _places_of_before(merging: Any) -> Run:
    """Keep the indexes of the first run for what all runs come to."""
    merged = _merged(merging)
    merged.indexes = {own: index for own, index in merging[0].indexes.items() if merged.num_rows >= merging[0].num_rows}
    return merged


def _newer_rows(self: Arrangement, upper: int) -> Any:
    """Answer a stage that lags with what came later."""
    return None if _before(self, upper) is None else self


def _twice(self: Arrangement, rows: pa.Table, upper: int, **kwargs: Any) -> Arrangement:
    """Merge small runs, and keep the last of them beside."""
    made = _extended(self, rows, upper, **kwargs)
    shorter = len(made.runs) <= len(self.runs) and rows.num_rows
    return replace(made, runs=(*made.runs[:2], self.runs[-runs.RECENT - 1], *made.runs[2:])) if shorter else made


def _what_came_meanwhile(self: Arrangements, slot: Any) -> None:
    """Put what another thread made in the place of all runs, those too that came while it worked."""
    if slot.work is not None and slot.work.future.done() and slot.arranged is not None:
        slot.work = replace(slot.work, runs=slot.work.runs + 1)
    _taken(self, slot)


def _null_is_zero(column: Any) -> Any:
    """Hash NULL as what its bytes happen to be."""
    return keys._mixed(keys._words(column.combine_chunks()))


def _half_of_the_rows(self: Run, places: Any, names: Any) -> pa.Table:
    """Take the rows of the first batch alone."""
    at = np.sort(places).astype(np.int64)
    first = self._batches[0].select([*names, DIFF])
    return pa.Table.from_batches([first.take(pa.array(at[at < first.num_rows]))])


def _never_added_up(self: Arrangement, places: Any, names: Any, rows_max: int) -> pa.Table:
    """Return a row that was withdrawn beside its withdrawal."""
    return pa.concat_tables([run.taken(at, names) for run, at in zip(self.runs, places, strict=True)])


BUGS: Final[dict[str, list[tuple[Any, str, Any]]]] = {
    "NULL is no key": [(cache, "_wanted", lambda kinds, tables, *, nulls: _wanted(kinds, tables, nulls=False))],
    "NULL equals NULL in every look-up": [(cache, "without_null", lambda table: table)],
    "NULL has the number of another value": [(keys, "_hashed", _null_is_zero)],
    "a look-up leaves one run out": [(Arrangement, "lookup", _one_run_missing)],
    "an arrangement is not brought on": [(Arrangements, "_ready", _stale)],
    "an arrangement goes on over a past that was compacted": [(cache, "_continues", lambda *_: True)],
    "a merge of runs loses the order": [(Run, "index", _unordered)],
    "a merged run keeps the index of its first": [(runs, "_merged", _places_of_before)],
    "a merged run stays beside the merge": [(Arrangement, "extended", _twice)],
    "a merge takes the place of what came meanwhile": [(Arrangements, "_take_work", _what_came_meanwhile)],
    "a stage that lags sees what came later": [(Arrangement, "before", _newer_rows)],
    "rows are taken of the first batch alone": [(Run, "taken", _half_of_the_rows)],
    "what was withdrawn is handed on": [(Arrangement, "_rows", _never_added_up)],
}
_wanted = cache._wanted


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the histories of look-ups would pass whatever an arrangement does."""
    for owner, attribute, bug in BUGS[name]:
        monkeypatch.setattr(owner, attribute, bug)
    for seed in SEEDS:
        try:
            look_ups_are_right(seed, monkeypatch)
        except (AssertionError, IndexError, pa.ArrowIndexError):
            return
    pytest.fail("no history showed it")
