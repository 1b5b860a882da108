"""An arrangement gives, of each key, all rows that may be among the first, as they are now, and few others."""

from __future__ import annotations

import math
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from tests.engine.arrangements.test_arrangements import KINDS, SCHEMA, TEXTS, Collection, key_table, looked_up

from strandline.algebra.nodes import First, Order
from strandline.algebra.schema import DIFF
from strandline.engine.arrangements import cache, keys, runs
from strandline.engine.arrangements.cache import Arrangements
from strandline.engine.arrangements.runs import order_numbers

ORDERS: Final = [Order(name, down, nulls) for name in ("v", "s") for down in (False, True) for nulls in (False, True)]
SEEDS: Final = range(8)


def rank(value: Any, order: Order) -> tuple[Any, ...]:
    """Return what compares as values do in an ascending order, and for numbers in a descending one."""
    if value is None:
        return (0 if order.nulls_first else 2,)
    if isinstance(value, str):
        letters = [*value.encode(), -1]
        return (1, *(-each if order.descending else each for each in letters))
    sign, nan = -1 if order.descending else 1, isinstance(value, float) and math.isnan(value)
    return (1, sign * nan, 0 if nan else sign * value)


@pytest.mark.parametrize("name", set(KINDS) - {"date", "timestamp"})
@pytest.mark.parametrize("descending", [False, True])
def test_numbers_ascend_as_values_do(name: str, descending: bool) -> None:
    """Damage: the first rows are others than Spark's."""
    kind, values = KINDS[name]
    for nulls_first in (False, True):
        order = Order("x", descending, nulls_first)
        numbers = order_numbers(pa.chunked_array([pa.array([*values, *values], kind).slice(1)]), order).tolist()
        line = sorted(zip([*values, *values][1:], numbers, strict=True), key=lambda pair: rank(pair[0], order))
        assert [number for _, number in line] == sorted(numbers)
        assert len(set(numbers)) >= min(len(values) - 1, 5), "most of them are apart"


def history(seed: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Tell whether all look-ups of a random history give what matters, and nothing that is not there."""
    rng = random.Random(seed)
    monkeypatch.setattr(runs, "ALIKE", rng.choice([2, 3, 8]))
    monkeypatch.setattr(runs, "RECENT", rng.choice([1, 2, 5]))
    monkeypatch.setattr(runs, "MERGED_ROWS", rng.choice([2, 1 << 30]))
    collection, present, left_out = Collection(), [], 0
    with ThreadPoolExecutor(1) as workers:
        arranged = Arrangements(collection.tables, workers)
        for time in range(20):
            gone = [present.pop(rng.randrange(len(present))) for _ in range(rng.randrange(6)) if present]
            come = [
                (rng.choice([None, 1, 2]), rng.choice(TEXTS), rng.choice([None, *range(20)]))
                for _ in range(30 if time == 0 else rng.randrange(6))
            ]
            present += come
            collection.append(time, [(row, -1) for row in gone] + [(row, 1) for row in come])
            held = Counter(present)
            for columns in ((), ("k",)):
                orders = tuple(rng.sample(ORDERS, rng.choice([1, 1, 2])))
                wanted = {(1,), (None,)} if columns else set()
                going = rng.sample(present, min(len(present), rng.randrange(3)))
                change = pa.table(
                    {name: [row[n] for row in going] for n, name in enumerate(SCHEMA.names)} | {DIFF: [-1] * len(going)}
                ).cast(pa.schema([("k", pa.int32()), ("s", pa.string()), ("v", pa.int64()), (DIFF, pa.int64())]))
                asked = First(orders, rng.choice([1, 2, 5]))
                tables = [key_table(columns, wanted)] if columns else []
                found = arranged.lookup(collection.old(time + 1), columns, tables, nulls=True, first=(asked, change))
                if found is None:
                    continue
                got = looked_up(found, time + 1)
                if any(held[row] != count for row, count in got.items()):
                    return False
                left_out += sum(held.values()) - sum(got.values())
                for key in {key[0] for key in wanted} or {"all"}:
                    own = {row: n for row, n in held.items() if n and (not columns or row[0] == key)}
                    more = sum(not columns or row[0] == key for row in going)
                    for order in orders:
                        at = SCHEMA.names.index(order.column)
                        for row in own:
                            before = sum(n for r, n in own.items() if rank(r[at], order) < rank(row[at], order))
                            if before < asked.rows + more and row not in got:
                                return False
    assert left_out, "the test is about rows that are left out"
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_rows_are_those_of_all_runs_together(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a row that comes up is missed, or one comes that was withdrawn."""
    assert history(seed, monkeypatch)


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_with_one_number_do_not_hide_one_another(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: once in a long while, the first rows of a group are taken for those of another."""
    monkeypatch.setattr(cache, "hashes", lambda columns: keys.hashes(columns) & np.uint64(0))
    monkeypatch.setattr(runs, "hashes", lambda columns: keys.hashes(columns) & np.uint64(0))
    assert history(seed, monkeypatch)


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def _no_ties(index: runs.Index, begins: runs.Counts, ends: runs.Counts, last: keys.Hashes) -> runs.Counts:
    """Take what comes before the last number, and one row that has it."""
    return np.minimum(UPTO(index, begins, ends, np.maximum(last, 1) - np.uint64(1)) + 1, ends)


def _withdrawn_rows_count(run: runs.Run, places: runs.Places, counts: runs.Counts) -> runs.Counts:
    """Take each run's first rows as if no later run withdrew them."""
    return np.maximum(counts, NET(run, places, counts))


def _no_margin(columns: Any, wanted: keys.Hashes, first: tuple[First, pa.Table]) -> runs.Counts:
    """Forget the rows that go."""
    return np.full(len(wanted), first[0].rows, np.int64)


UPTO, NET = runs.Index.upto, runs.Run.net
PLANTED: Final = {
    "ties are cut off": (runs.Index, "upto", _no_ties),
    "a run is taken without what others withdraw": (runs.Run, "net", _withdrawn_rows_count),
    "rows that go are not made up for": (cache, "_counts", _no_margin),
    "keys with one number are not told apart": (cache, "_collide", lambda *_: False),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a test that cannot fail."""
    where, what, bug = PLANTED[name]
    monkeypatch.setattr(where, what, bug)
    if what == "_collide":
        monkeypatch.setattr(cache, "hashes", lambda columns: keys.hashes(columns) & np.uint64(0))
        monkeypatch.setattr(runs, "hashes", lambda columns: keys.hashes(columns) & np.uint64(0))
    assert not all(history(seed, monkeypatch) for seed in SEEDS)
