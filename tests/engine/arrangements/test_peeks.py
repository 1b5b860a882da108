"""A peek finds just the rows of its keys, whatever their types, and whatever else has the number of a key."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from tests.engine.arrangements.test_arrangements import KINDS, SCHEMA, TEXTS, Collection

from strandline.engine.arrangements import cache, runs
from strandline.engine.arrangements.cache import Arrangements, _meet, peeked, peeked_at_once
from strandline.engine.arrangements.keys import Hashes, hashes

TYPES = {"k": pa.int32(), "s": pa.string(), "v": pa.int64()}


def weak(columns: Any) -> Hashes:
    """Return numbers of which there are few: most keys share one."""
    return hashes(columns) % 3


def asked(columns: tuple[str, ...], keys: list[tuple[Any, ...]]) -> pa.Table:
    """Return keys as a peek is given them."""
    return pa.table({name: pa.array([key[n] for key in keys], TYPES[name]) for n, name in enumerate(columns)})


@pytest.mark.parametrize("name", KINDS)
def test_a_value_of_any_type_meets_itself_alone(name: str) -> None:
    """Damage: a peek by a decimal, a date or NULL finds nothing, or rows of other keys."""
    kind, values = KINDS[name]
    rows = pa.table({"k": pa.array([*values, *values], kind)})
    for n, value in enumerate(values):
        meet = _meet(rows, pa.table({"k": pa.array([value], kind)}))
        assert meet is not None
        assert [at for at, each in enumerate(meet.to_pylist()) if each] == [n, n + len(values)]
    meet = _meet(rows, pa.table({"k": pa.array(values, kind)}))
    assert meet is not None
    assert all(meet.to_pylist())


@pytest.mark.parametrize("numbers", [hashes, weak])
@pytest.mark.parametrize("seed", range(10))
def test_peeks_find_what_is_there_at_each_time(seed: int, numbers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: after some ticks a peek has rows that were withdrawn, or of keys with the same number."""
    rng = random.Random(seed)
    monkeypatch.setattr(runs, "RECENT", rng.choice([1, 2, 5]))
    for module in (cache, cache, runs):
        monkeypatch.setattr(module, "hashes", numbers)
    collection = Collection()
    present: list[tuple[Any, ...]] = []
    answered = 0
    with ThreadPoolExecutor(1) as workers:
        arranged = Arrangements(collection.tables, workers)
        for time in range(30):
            gone = [present.pop(rng.randrange(len(present))) for _ in range(rng.randrange(3)) if present]
            come = [(rng.choice([None, 1, 2, 3]), rng.choice(TEXTS), rng.randrange(3)) for _ in range(rng.randrange(4))]
            present += come
            collection.append(time, [(row, -1) for row in gone] + [(row, 1) for row in come])
            columns = rng.choice([("k",), ("s", "k"), ("v", "s")])
            at = [SCHEMA.names.index(name) for name in columns]
            some = rng.sample(present, min(rng.randrange(4), len(present)))
            keys = [tuple(row[n] for n in at) for row in some]
            ago = rng.randrange(min(2, time + 1))
            upper, limit = time + 1 - ago, rng.choice([None, 0, 1, 5])
            found = peeked(arranged, collection.old(upper), columns, asked(columns, keys), limit)
            if found is None:
                assert numbers is weak or ago, "it is in memory"
                continue
            answered += 1
            again = peeked_at_once(arranged, collection.old(upper), columns, asked(columns, keys), limit)
            assert again is not None if keys and numbers is hashes else again is None or keys
            if again is not None:
                both = [Counter(map(str, each.to_pylist())) for each in (again, found)]
                assert both[0] == both[1] if limit is None else both[0].total() == both[1].total()
            right = collection.matching(upper, columns, set(keys))
            got = Counter(zip(*(found[name].to_pylist() for name in SCHEMA.names), strict=True))
            assert got.total() == min(right.total(), right.total() if limit is None else limit)
            assert got <= right
    assert answered > 5
