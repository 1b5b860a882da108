"""An arrangement finds every row of the keys that it is asked for, whatever their types and however it grew."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.engine.arrangements import cache, keys, runs
from strandline.engine.arrangements.cache import Arrangements
from strandline.engine.arrangements.keys import WORDS_BYTES_MAX, family, hashes
from strandline.engine.arrangements.runs import By
from strandline.engine.frames import inline
from strandline.errors import CollectionError
from strandline.frontier import Frontier, as_time
from strandline.persist.handles.contents import Contents
from strandline.persist.shard.batch import NOTHING, Batch, InlinePart

LONG = "x" * (WORDS_BYTES_MAX - 1)
TEXTS = ["", "a", "b", "eight888", "nine99999", "nine99998", "é" * 40, "é" * 39 + "x", None]
TEXTS += [f"{LONG}a", f"{LONG}b", f"{LONG}aa", f"{LONG}ab", f"b{LONG}a", LONG * 1000, f"{LONG * 1000}y"]
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tinyint": (pa.int8(), [-128, -1, 0, 1, 127, None]),
    "int": (pa.int32(), [-(2**31), -1, 0, 1, 7, None]),
    "bigint": (pa.int64(), [-(2**63), -1, 0, 2**40, 2**63 - 1, None]),
    "string": (pa.string(), TEXTS),
    "boolean": (pa.bool_(), [True, False, None]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31), None]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), None]),
    "decimal(38,2)": (pa.decimal128(38, 2), [Decimal("-1.50"), Decimal("9" * 36), Decimal(0), None]),
    "double": (pa.float64(), [0.0, float("nan"), 1.5, float("inf"), -2.25, None]),
}


@pytest.mark.parametrize("name", KINDS)
def test_values_have_equal_numbers_if_and_only_if_they_are_equal(name: str) -> None:
    """Damage: a look-up misses rows of its keys; or finds so many that a scan had been cheaper."""
    kind, values = KINDS[name]
    found = hashes([pa.chunked_array([pa.array(values, kind), pa.array(values, kind)])])
    assert found[: len(values)].tolist() == found[len(values) :].tolist()
    assert len(set(found.tolist())) == len(values)
    sliced = pa.chunked_array([pa.array(["x", *values] if name == "string" else [None, *values], kind).slice(1)])
    assert hashes([sliced]).tolist() == found[: len(values)].tolist()


def test_a_long_text_costs_its_length_and_no_other_text_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: one row with a document as its key makes each tick take minutes, with the interpreter held."""
    looked, letters = [], []
    word, copied = keys._word, keys._letters
    monkeypatch.setattr(
        keys, "_word", lambda padded, starts, left: looked.append(len(starts)) or word(padded, starts, left)
    )
    monkeypatch.setattr(keys, "_letters", lambda array: letters.append(found := copied(array)) or found)
    short = [f"key {n}" for n in range(1000)]
    for length in (10**3, 10**6, 10**7):
        looked.clear()
        hashes([pa.chunked_array([pa.array([*short, "x" * length])])])
        assert looked == [1000], "a look at the first word of each short text, and none at a long one's words"
    letters.clear()
    table = pa.table({"k": ["y" * 10**6, *short]})
    for batch in table.to_batches(max_chunksize=10):
        hashes([pa.chunked_array([batch["k"]])])
    assert sum(len(padded) for padded, _, _ in letters) < 2 * 10**6, "a slice costs its own bytes"


def test_a_text_that_is_too_long_for_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a row with a gigabyte as its key ends the process, and nothing says which limit it has met."""
    monkeypatch.setattr(keys, "KEY_BYTES_MAX", 1000)
    hashes([pa.chunked_array([pa.array(["x" * 1000])])])
    with pytest.raises(
        CollectionError, match=r"a text of 1,001 bytes is a key, and keys have at most 1,000: remove the"
    ):
        hashes([pa.chunked_array([pa.array(["x", None, "x" * 1001])])])


def test_numbers_depend_on_what_sql_compares_and_not_on_how_arrow_stores_it() -> None:
    """Damage: a join of an int with a bigint, or of -0.0 with 0.0, loses its rows."""
    small, large = pa.array([1, -7, None], pa.int8()), pa.array([1, -7, None], pa.int64())
    assert hashes([pa.chunked_array([small])]).tolist() == hashes([pa.chunked_array([large])]).tolist()
    zeros = pa.chunked_array([pa.array([0.0, -0.0]), pa.array([0.0, float("nan"), np.float64("-nan")])])
    assert len(set(hashes([zeros]).tolist())) == 2
    words = pa.array(["a", "b", None, "a"])
    encoded = pa.chunked_array([words.dictionary_encode()])
    assert hashes([encoded]).tolist() == hashes([pa.chunked_array([words.cast(pa.large_string())])]).tolist()
    swapped = [pa.chunked_array([pa.array([1, 2])]), pa.chunked_array([pa.array([2, 1])])]
    assert len(set(hashes(swapped).tolist())) == 2


def test_only_types_that_compare_alike_are_of_one_family() -> None:
    """Damage: a join that Spark answers by a cast finds nothing."""
    assert family(pa.decimal128(9, 2)) != family(pa.decimal128(9, 3))
    assert family(pa.timestamp("us")) != family(pa.timestamp("us", tz="UTC"))
    assert family(pa.string()) != family(pa.int32()) != family(pa.date32())
    assert family(pa.binary()) is None
    assert family(pa.float16()) is None


SCHEMA = Schema((Column("k", "int"), Column("s", "string"), Column("v", "bigint")))


class Collection:
    """A collection as lists: what it is at each time, and as the contents that an engine reads."""

    def __init__(self) -> None:
        self.updates: list[tuple[tuple[Any, ...], int, int]] = []
        self.batches: list[Batch] = []
        self.reads = 0

    def append(self, time: int, changes: list[tuple[tuple[Any, ...], int]], since: int = 0) -> None:
        self.updates += [(row, time, diff) for row, diff in changes]
        number = len(self.batches)
        part = InlinePart(str(number).encode(), max(1, len(changes)))
        rows = max(1, len(changes))
        bounds = Frontier(time), Frontier(time + 1), Frontier(since)
        self.batches.append(Batch(*bounds, (part,), rows, rows, NOTHING, plain=False))

    def compact(self, since: int) -> None:
        """Make one batch of all: earlier times in it become ``since``."""
        begin, rows = self.batches[0].lower, sum(batch.rows for batch in self.batches)
        self.batches = [replace(self.batches[-1], lower=begin, since=Frontier(since), rows=rows)]

    def old(self, upper: int) -> Contents:
        batches = tuple(batch for batch in self.batches if not Frontier(upper) <= batch.lower)
        return Contents("c", SCHEMA, batches, 0, upper, upper)

    def tables(self, wanted: Contents) -> list[pa.Table]:
        self.reads += 1
        stored = [
            (row, max(time, as_time(batch.since)), diff)
            for batch in wanted.batches
            for row, time, diff in self.updates
            if batch.lower <= Frontier(time) and not batch.upper <= Frontier(time)
        ]
        shown = [update for update in stored if wanted.lower <= update[1] < wanted.upper]
        columns = {name: [row[n] for row, _, _ in shown] for n, name in enumerate(SCHEMA.names)}
        columns |= {ERROR: [None] * len(shown), TIME: [t for _, t, _ in shown], DIFF: [d for _, _, d in shown]}
        return [inline.conform(pa.table(columns), inline.update_schema(SCHEMA))]

    def matching(self, upper: int, columns: tuple[str, ...], keys: set[tuple[Any, ...]]) -> Counter[Any]:
        at = [SCHEMA.names.index(name) for name in columns]
        held: Counter[Any] = Counter()
        for row, time, diff in self.updates:
            if time < upper and tuple(row[n] for n in at) in keys:
                held[row] += diff
        return Counter({row: count for row, count in held.items() if count})


def looked_up(found: pa.Table | None, upper: int) -> Counter[Any]:
    """Return what a look-up found as row → count; what was withdrawn is not among it."""
    assert found is not None
    assert found.column_names == [*SCHEMA.names, TIME, DIFF]
    assert set(found[TIME].to_pylist()) <= {upper}
    counts: Counter[Any] = Counter()
    for row in found.to_pylist():
        assert row[DIFF] > 0
        counts[tuple(row[name] for name in SCHEMA.names)] += row[DIFF]
    return counts


def key_table(columns: tuple[str, ...], keys: set[tuple[Any, ...]]) -> pa.Table:
    """Return keys as a look-up is given them."""
    kinds = {"k": pa.int64(), "s": pa.string(), "v": pa.int64()}
    return pa.table({name: pa.array([key[n] for key in keys], kinds[name]) for n, name in enumerate(columns)})


@pytest.mark.parametrize("seed", range(30))
def test_look_ups_find_exactly_what_is_there_at_each_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: after some ticks, a merge of runs, a compaction or a loss a join misses rows, or finds withdrawn ones."""
    rng = random.Random(seed)
    monkeypatch.setattr(runs, "ALIKE", rng.choice([2, 3, 8]))
    monkeypatch.setattr(runs, "RECENT", rng.choice([1, 2, 5]))
    monkeypatch.setattr(runs, "MAPPED_BYTES_MIN", rng.choice([0, 1 << 30]))
    monkeypatch.setattr(runs, "MERGED_ROWS", rng.choice([2, 1 << 30]))
    here = rng.choice([0, 10, 1 << 30])
    monkeypatch.setattr(cache, "HERE_ROWS_MAX", here)
    collection = Collection()
    present: list[tuple[Any, ...]] = []
    earlier = since = 0
    with ThreadPoolExecutor(1) as workers:
        arranged = Arrangements(collection.tables, workers)
        for time in range(40):
            gone = [present.pop(rng.randrange(len(present))) for _ in range(rng.randrange(3)) if present]
            come = [(rng.choice([None, 1, 2, 3]), rng.choice(TEXTS), rng.randrange(3)) for _ in range(rng.randrange(4))]
            present += come
            collection.append(time, [(row, -1) for row in gone] + [(row, 1) for row in come])
            if rng.random() < 0.1:
                since = rng.randint(since, time)
                collection.compact(since)
            if rng.random() < 0.1:  # it is a cache: it may be lost between any two look-ups
                for slot in arranged._slots.values():
                    slot.forget()
            for columns in rng.sample([("k",), ("s", "k"), ("v", "s"), ("s",)], 2):
                at = [SCHEMA.names.index(name) for name in columns]
                keys = {tuple(row[n] for n in at) for row in rng.sample(present, min(2, len(present)))} | {
                    (None,) * len(at)
                }
                nulls = rng.random() < 0.5
                table = key_table(columns, keys)
                found = arranged.lookup(collection.old(time + 1), columns, [table], nulls=nulls)
                while found is None and here < 1 << 30:  # another thread arranges or indexes
                    workers.submit(int).result()
                    found = arranged.lookup(collection.old(time + 1), columns, [table], nulls=nulls)
                expected = keys if nulls else {key for key in keys if None not in key}
                assert looked_up(found, time + 1) == collection.matching(time + 1, columns, expected)
                ago = rng.randrange(min(3, time - since + 1))
                found = arranged.lookup(collection.old(time + 1 - ago), columns, [table], nulls=nulls)
                earlier += found is not None and ago > 0
                if found is not None:
                    upper = time + 1 - ago
                    assert looked_up(found, upper) == collection.matching(upper, columns, expected)
        assert earlier, "no stage that lags was ever answered"


def test_only_what_is_new_is_read() -> None:
    """Damage: each tick costs as much as the collection is large."""
    collection = Collection()
    collection.append(0, [((n, "x", n), 1) for n in range(100)])
    with ThreadPoolExecutor(1) as workers:
        arranged = Arrangements(collection.tables, workers)
        keys = key_table(("k",), {(3,)})
        arranged.lookup(collection.old(1), ("k",), [keys], nulls=False)
        whole, collection.tables = collection.tables, lambda wanted: pytest.fail("nothing is new")  # type: ignore[method-assign]
        arranged._tables = collection.tables
        assert looked_up(arranged.lookup(collection.old(1), ("k",), [keys], nulls=False), 1) == {(3, "x", 3): 1}
        arranged._tables = lambda wanted: [*whole(wanted)] if wanted.lower == 1 else pytest.fail("all is read again")
        collection.append(1, [((3, "y", 3), 1)])
        found = arranged.lookup(collection.old(2), ("k",), [keys], nulls=False)
        assert looked_up(found, 2) == {(3, "x", 3): 1, (3, "y", 3): 1}


WIDENED = Schema((*SCHEMA.columns, Column("w", "int")))
RETYPED = Schema((Column("k", "bigint"), *SCHEMA.columns[1:]))


@pytest.mark.parametrize("other", [WIDENED, RETYPED])
def test_a_past_with_other_columns_is_left_to_a_scan(other: Schema) -> None:
    """Damage: once a table has a new column, a query of the past, or a stage that lags, fails with a KeyError."""
    collection = Collection()
    for time in range(2):
        collection.append(time, [((1, "x", time), 1)])
    one = key_table(("k",), {(1,)})
    with ThreadPoolExecutor(1) as workers:
        arranged = Arrangements(collection.tables, workers)
        for upper in (1, 2):
            assert arranged.lookup(collection.old(upper), ("k",), [one], nulls=False) is not None
        reads, lags = collection.reads, replace(collection.old(1), schema=other)
        assert arranged.lookup(lags, ("k",), [one], nulls=False) is None
        assert arranged.between(lags, "v", [pa.table({"v": pa.array([0]), TIME: [0], DIFF: [1]})]) is None
        found = arranged.lookup(collection.old(2), ("k",), [one], nulls=False)
        assert looked_up(found, 2) == {(1, "x", 0): 1, (1, "x", 1): 1}
        assert collection.reads == reads, "what is in memory stays for those who read it"


class Late(ThreadPoolExecutor):
    """Work in it is done once its thread has been found at work twice."""

    def submit(self, call: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        work: Future[Any] = Future()
        work.set_result(call(*args, **kwargs))
        looks = iter([False, False])
        work.done = lambda: next(looks, True)  # type: ignore[method-assign]
        return work


def test_what_is_done_while_a_look_up_looks_is_of_the_time_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a look-up misses what came while a large collection was being arranged: a view is wrong for good."""
    monkeypatch.setattr(cache, "HERE_ROWS_MAX", 0)
    collection = Collection()
    one = key_table(("k",), {(1,)})
    with Late(1) as workers:
        arranged, found = Arrangements(collection.tables, workers), []
        for time in range(4):
            collection.append(time, [((1, "x", time), 1)])
            found.append(arranged.lookup(collection.old(time + 1), ("k",), [one], nulls=False))
            if found[-1] is not None:
                assert looked_up(found[-1], time + 1) == {(1, "x", n): 1 for n in range(time + 1)}
        assert found[-1] is not None


class Crowded(ThreadPoolExecutor):
    """While something is made in it, another collection needs the room of what it is made of."""

    arranged: Arrangements

    def submit(self, call: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        work: Future[Any] = Future()
        work.set_result(call(*args, **kwargs))
        self.arranged._slots["c"].forget()
        return work


def test_what_loses_its_room_while_it_is_indexed_is_as_of_the_time_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: what came since the large run was made is in no look-up any longer: a view is wrong for good."""
    monkeypatch.setattr(cache, "HERE_ROWS_MAX", 1)
    collection = Collection()
    collection.append(0, [((1, "x", 7), 1)])
    with Crowded(1) as workers:
        workers.arranged = arranged = Arrangements(collection.tables, workers)
        assert arranged.lookup(collection.old(1), ("k",), [key_table(("k",), {(1,)})], nulls=False) is not None
        monkeypatch.setattr(cache, "HERE_ROWS_MAX", 0)
        collection.append(1, [((2, "y", 7), 1)])
        sevens = key_table(("v",), {(7,)})
        assert arranged.lookup(collection.old(2), ("v",), [sevens], nulls=False) is None
        found = arranged.lookup(collection.old(2), ("v",), [sevens], nulls=False)
        assert looked_up(found, 2) == {(1, "x", 7): 1, (2, "y", 7): 1}


def test_after_many_ticks_there_are_few_runs_and_each_row_was_merged_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Damage: a look-up costs more the longer an environment runs; or each tick merges all that came before it."""
    merged: list[int] = []
    merge = runs._merged
    monkeypatch.setattr(runs, "_merged", lambda of: merged.append(sum(run.num_rows for run in of)) or merge(of))
    schema = pa.schema([("k", pa.int64()), (DIFF, pa.int64())])
    ticks, most, keys = 400, 0, itertools.count()

    def rows(count: int) -> pa.Table:
        return pa.table([pa.array(next(keys) for _ in range(count)), pa.array([1] * count)], schema)

    found = runs.arrangement(schema, [rows(100_000)], 1, [By(("k",))])
    for tick in range(1, ticks + 1):
        found = found.extended(rows(tick % 7 + 1), tick + 1)
        most = max(most, len(found.runs))
    sizes = math.ceil(math.log(ticks, runs.ALIKE))
    assert most <= 1 + runs.RECENT + runs.ALIKE * sizes
    assert sum(merged) <= sizes * found.grown
    assert found.rows == next(keys)


def test_what_cannot_be_looked_up_is_left_to_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: rows are lost where types differ; or a look-up hands over a whole collection; or memory runs out."""
    collection = Collection()
    collection.append(0, [((1, "x", n), 1) for n in range(100)])
    one = key_table(("k",), {(1,)})
    with ThreadPoolExecutor(1) as workers:
        arranged = Arrangements(collection.tables, workers, budget=1 << 20)
        assert arranged.lookup(collection.old(1), ("s",), [one], nulls=False) is None
        assert arranged.lookup(collection.old(1), ("k",), [one], nulls=False) is not None
        assert arranged.lookup(collection.old(0), ("k",), [one], nulls=False) is None  # it never stood there
        arranged.budget = collection.old(1).size * cache.STORED_FACTOR - 1
        assert arranged.lookup(collection.old(1), ("k",), [one], nulls=False) is None
        arranged.budget = 1 << 20
        monkeypatch.setattr(cache, "FOUND_ROWS_MAX", 99)
        assert arranged.lookup(collection.old(1), ("k",), [one], nulls=False) is None
        monkeypatch.undo()
        arranged = Arrangements(collection.tables, workers, budget=100)
        before = collection.reads
        assert [arranged.lookup(collection.old(1), ("v",), [one], nulls=False) is None for _ in range(2)] == [
            False,
            True,
        ]
        assert arranged.size == 0
        assert collection.reads == before + 1, "what is too large is not read again and again"


def test_work_that_fails_is_left_alone_for_a_while_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a disk that is full costs each tick the reading of a whole collection; or look-ups never come back."""
    monkeypatch.setattr(cache, "HERE_ROWS_MAX", 0)
    collection = Collection()
    collection.append(0, [((1, "x", n), 1) for n in range(100)])
    one = key_table(("k",), {(1,)})
    with ThreadPoolExecutor(1) as workers:
        arranged = Arrangements(collection.tables, workers)
        whole = collection.tables
        tried = []

        def fails(wanted: Contents) -> list[pa.Table]:
            tried.append(wanted)
            raise OSError("no space left on device")

        arranged._tables = fails
        for _ in range(cache.PAUSE):
            assert arranged.lookup(collection.old(1), ("k",), [one], nulls=False) is None
            workers.submit(int).result()
        assert len(tried) == 1
        arranged._tables = whole
        found = [arranged.lookup(collection.old(1), ("k",), [one], nulls=False)]
        while found[-1] is None and len(found) < 2 * cache.PAUSE:
            workers.submit(int).result()
            found.append(arranged.lookup(collection.old(1), ("k",), [one], nulls=False))
        assert found[-1] is not None
        assert found[-1].num_rows == 100
