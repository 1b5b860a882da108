"""Planted mistakes: each is one that a reduction could well have, and the laws catch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.materialize.reduce import test_inferred, test_reducer, test_rows
from tests.materialize.reduce.documents import places

from strandline.errors import DefinitionError
from strandline.materialize.reduce import columns, folding, locations, rows
from strandline.materialize.reduce.annotations import Strategy
from strandline.materialize.reduce.schemas import MISSING, NotAssociativeError

Patch = pytest.MonkeyPatch
CAUGHT = (AssertionError, DefinitionError, NotAssociativeError, pa.ArrowInvalid, pytest.fail.Exception)
"""What a law raises if it does not hold: it compares, or an error is raised where there is none, or none is."""
LAWS: dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]] = {
    "brackets": (test_reducer.test_brackets_do_not_matter, (places(), st.data())),
    "sets": (test_reducer.test_brackets_do_not_matter, (places("set"), st.data())),
    "model": (test_reducer.test_the_reducer_does_what_the_model_does, (places(),)),
    "columns": (test_rows.test_columns_are_reduced_as_documents, (test_rows.flat(),)),
    "few floats": (test_rows.test_columns_are_reduced_as_documents, (test_rows.few_floats(),)),
    "long groups": (
        test_rows.test_floats_of_long_groups_are_added_one_after_the_other,
        (test_rows.LONG_GROUPS, st.booleans()),
    ),
    "batches": (
        test_rows.test_batches_say_the_same_as_the_whole,
        (test_rows.FLAT_ROWS, st.integers(1, 4), st.booleans()),
    ),
    "flat endpoint": (
        test_rows.test_an_endpoint_that_is_fed_in_transactions_holds_the_full_reduction,
        (st.just(test_rows.FLAT), st.just(test_rows.FLAT_COLUMNS), st.just(test_rows.FLAT_ROWS), st.data()),
    ),
    "nested endpoint": (
        test_rows.test_an_endpoint_that_is_fed_in_transactions_holds_the_full_reduction,
        (st.just(test_rows.COUNTED), st.just(test_rows.NESTED), st.just(test_rows.NESTED_ROWS), st.data()),
    ),
    "schemas fit": (
        test_inferred.test_what_fits_a_side_fits_the_union,
        (test_inferred.SCHEMAS, test_inferred.SCHEMAS, test_inferred.INSTANCES),
    ),
}


def holds(law: str, examples: int) -> None:
    """Try ``law`` on the examples that every run draws."""
    test, given_ = LAWS[law]
    inner = test.hypothesis.inner_test  # type: ignore[attr-defined]

    @settings(
        max_examples=examples, database=None, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False
    )
    @given(st.tuples(*given_))
    def run(values: tuple[Any, ...]) -> None:
        inner(*values)

    run()


def _last_first(patch: Patch) -> None:
    right = folding.Reducer.finish
    patch.setattr(folding.Reducer, "finish", lambda self, loaded, combined: right(self, loaded, combined[::-1]))


def _loaded_last(patch: Patch) -> None:
    right = folding.Reducer.finish

    def finish(self: Any, loaded: Any, combined: Any) -> Any:
        return right(self, None, [*combined, *([] if loaded is None else [loaded])])

    patch.setattr(folding.Reducer, "finish", finish)


def _always(patch: Patch, full: bool) -> None:
    right = folding.Fold.__init__
    patch.setattr(
        folding.Fold,
        "__init__",
        lambda self, root, *, full, held=MISSING: right(self, root, full=always_full, held=held),
    )
    always_full = full


def _all_associative(patch: Patch) -> None:
    right = folding.Fold._into

    def into(self: Any, *args: Any) -> Any:
        try:
            return right(self, *args)
        except NotAssociativeError:
            self._full = True
            try:
                return right(self, *args)
            finally:
                self._full = False

    patch.setattr(folding.Fold, "_into", into)


def _kept_apart_and_lost(patch: Patch) -> None:
    right = folding.Reducer.combine
    patch.setattr(folding.Reducer, "combine", lambda self, documents: right(self, documents)[-1:])


def _intersect_as_add(patch: Patch) -> None:
    patch.setattr(folding, "_restricted", lambda part, by, key: part)


def _removal_forgotten(patch: Patch) -> None:
    patch.setattr(folding, "_remember", lambda held, value, key: None)


def _shared_values(patch: Patch) -> None:
    patch.setattr(folding, "fresh", lambda value: value)


def _items_at_the_end(patch: Patch) -> None:
    patch.setattr(folding, "bisect_left", lambda held, each, begin, key: len(held))


def _deleted_item_stays(patch: Patch) -> None:
    right = folding.Fold._properties

    def properties(self: Any, was: Any, held: Any, resolved: Any, value: Any, steps: Any) -> Any:
        before = dict(held)
        return {**before, **right(self, was, held, resolved, value, steps)}

    patch.setattr(folding.Fold, "_properties", properties)


def _null_counts_as_missing(patch: Patch) -> None:
    patch.setattr(columns, "_null_is_a_value", lambda location, loaded: False)


def _missing_counts_as_null(patch: Patch) -> None:
    patch.setattr(locations.Location, "admits", lambda self, name: True)


def _deletes_are_stores(patch: Patch) -> None:
    right = rows.flagged
    patch.setattr(rows, "flagged", lambda stored, exists, deletes: right(stored, exists, np.zeros_like(deletes)))


def _sums_wrap(patch: Patch) -> None:
    patch.setattr(columns, "_require", lambda fits, limbs, kind: None)


def _carry_lost(patch: Patch) -> None:
    patch.setattr(columns, "_carried", lambda limbs: [limb & 0xFFFFFFFF for limb in limbs[:-1]] + [limbs[-1]])


def _floats_in_pairs(patch: Patch) -> None:
    def total(numbers: Any, counts: Any, named: Any, kind: pa.DataType) -> Any:
        return np.add.reduceat(numbers[::-1], np.cumsum(counts[::-1]) - counts[::-1])[::-1] if len(counts) else numbers

    patch.setattr(columns, "_left_to_right", total)


def _nan_is_least(patch: Patch) -> None:
    right = columns.codes_of

    def codes(column: pa.Array) -> Any:
        found = right(column)
        if not pa.types.is_floating(column.type):
            return found
        return np.where(np.isnan(column.to_numpy(zero_copy_only=False)), np.iinfo(np.int64).min, found)

    patch.setattr(columns, "codes_of", codes)


def _of_equals_the_last(patch: Patch) -> None:
    def least(codes: Any, valid: Any, groups: Any) -> Any:
        best = np.minimum.reduceat(np.where(valid, codes, np.iinfo(np.int64).max), groups.starts)
        return columns.last(valid & (codes == best[groups.numbers]), groups)

    patch.setattr(columns, "least", least)


def _null_is_greatest(patch: Patch) -> None:
    right = columns.ColumnFold.__call__

    def call(self: columns.ColumnFold, column: pa.Array, groups: columns.Groups) -> pa.Array:
        return right(replace(self, nulls=False) if self.strategy is Strategy.MINIMIZE else self, column, groups)

    patch.setattr(columns.ColumnFold, "__call__", call)


def _batch_forgotten(patch: Patch) -> None:
    patch.setattr(rows.Combining, "end", lambda self: self._rows.columns.empty_table())


def _groups_end_with_batches(patch: Patch) -> None:
    def add(self: Any, batch: pa.RecordBatch) -> pa.Table:
        return self._rows.combine(self._rows.expanded(pa.Table.from_batches([batch])))

    patch.setattr(rows.Combining, "add", add)


def _properties_stay_strict(patch: Patch) -> None:
    patch.setattr(folding, "_join_any", lambda left, right=None: left or right)


PLANTED: dict[str, tuple[Callable[[Patch], None], str]] = {
    "documents are reduced from right to left": (_last_first, "model"),
    "the loaded document is reduced into the new ones": (_loaded_last, "brackets"),
    "a full reduction is done as an associative one": (lambda patch: _always(patch, full=False), "model"),
    "an associative step deletes": (lambda patch: _always(patch, full=True), "brackets"),
    "steps that are not associative are done at once": (_all_associative, "brackets"),
    "of documents that are kept apart only the last is kept": (_kept_apart_and_lost, "brackets"),
    "a deleted property stays": (_deleted_item_stays, "model"),
    "an intersection is done as an addition": (_intersect_as_add, "sets"),
    "a removal is forgotten until the base is known": (_removal_forgotten, "sets"),
    "a fold changes the documents that it is given": (_shared_values, "model"),
    "items are appended instead of merged by key": (_items_at_the_end, "model"),
    "a deleted document is stored": (_deletes_are_stores, "nested endpoint"),
    "NULL counts as missing": (_null_counts_as_missing, "nested endpoint"),
    "missing counts as NULL": (_missing_counts_as_null, "columns"),
    "an overflow wraps around": (_sums_wrap, "columns"),
    "a carry between the limbs of a sum is lost": (_carry_lost, "columns"),
    "floats are added in another order": (_floats_in_pairs, "long groups"),
    "NaN is the least number": (_nan_is_least, "few floats"),
    "of equal values the last one is kept": (_of_equals_the_last, "few floats"),
    "NULL does not count in a minimum": (_null_is_greatest, "columns"),
    "the last key of a stream is forgotten": (_batch_forgotten, "batches"),
    "a key ends with its batch": (_groups_end_with_batches, "batches"),
    "a property of one schema limits those of the other": (_properties_stay_strict, "schemas fit"),
}


@pytest.mark.parametrize(("plant", "law"), PLANTED.values(), ids=PLANTED)
def test_a_planted_mistake_is_caught(plant: Callable[[Patch], None], law: str) -> None:
    """Damage: the laws hold of whatever the code does, and a mistake reaches the endpoint."""
    with Patch.context() as patch:
        plant(patch)
        with pytest.raises(CAUGHT):
            holds(law, 300)


@pytest.mark.parametrize("law", LAWS)
def test_nothing_is_caught_where_nothing_is_planted(law: str) -> None:
    """Damage: the test above would find mistakes in right code."""
    holds(law, 50)
