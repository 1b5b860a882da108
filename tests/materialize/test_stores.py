"""Net changes become rows to store; the dictionary of `spec` says which."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.algebra.schema import DIFF, Column, Schema
from strandline.errors import DefinitionError
from strandline.materialize.protocol.holds import EVERYTHING, Holds, require_held
from strandline.materialize.protocol.messages import DELETE, EXISTS
from strandline.materialize.protocol.task import Binding, canonical, contents
from strandline.materialize.stores import Stores, keys_of, to_store, with_existence

SCHEMA = Schema((Column("x", "int"), Column("k", "double"), Column("l", "string")))
BINDING = Binding("v", "t", ("k", "l"), SCHEMA)
TYPES = {"x": pa.int32(), "k": pa.float64(), "l": pa.string()}


def net(changes: list[tuple[dict[str, Any], int]], types: dict[str, pa.DataType] | None = None) -> pa.Table:
    """Return changes as a feed gives them."""
    columns = {n: pa.array([row[n] for row, _ in changes], t) for n, t in (types or TYPES).items()}
    return pa.table({**columns, DIFF: pa.array([diff for _, diff in changes], pa.int64())})


def row(x: int, k: float | None, l: str | None = "") -> dict[str, Any]:  # noqa: E741
    """Return a row of `SCHEMA`."""
    return {"x": x, "k": k, "l": l}


@pytest.mark.parametrize(
    ("changes", "stores"),
    [
        ([], []),
        ([(row(1, 1.0), 1)], [(row(1, 1.0), False, False)]),
        ([(row(1, 1.0), -1)], [(row(1, 1.0), True, True)]),
        ([(row(1, 1.0), -1), (row(2, 1.0), 1)], [(row(2, 1.0), True, False)]),
        ([(row(2, None, None), 1), (row(1, None, None), -1)], [(row(2, None, None), True, False)]),
        (
            [(row(1, None, ""), 1), (row(2, None, None), -1)],
            [(row(1, None, ""), False, False), (row(2, None, None), True, True)],
        ),
        ([(row(1, -0.0), -1), (row(2, 0.0), 1)], [(row(2, 0.0), True, False)]),
    ],
)
def test_what_happened_to_a_key(changes: list[Any], stores: list[Any]) -> None:
    """Damage: a row is inserted twice, or not deleted."""
    found = [(each, each.pop(EXISTS), each.pop(DELETE)) for each in to_store(BINDING, net(changes)).to_pylist()]
    assert found == stores


def test_nan_is_one_key() -> None:
    """Damage: the row with NaN is never replaced."""
    (only,) = to_store(BINDING, net([(row(1, math.nan), -1), (row(2, math.nan), 1)])).to_pylist()
    assert (only["x"], only[EXISTS], only[DELETE]) == (2, True, False)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ([(row(1, 1.0), 2)], r"k = 1.0, l = ''"),
        ([(row(1, 1.0), -2)], r"k = 1.0, l = ''"),
        ([(row(0, 0.0), 1), (row(1, None, "a"), 1), (row(2, None, "a"), 1)], r"k = NULL, l = 'a'"),
        ([(row(1, 1.0), -1), (row(2, 1.0), 1), (row(3, 1.0), 1)], r"k = 1.0, l = ''"),
        ([(row(1, 1.0), -1), (row(2, 1.0), -1)], r"k = 1.0, l = ''"),
    ],
)
def test_a_key_that_is_none_is_an_error_that_names_it(changes: list[Any], key: str) -> None:
    """Damage: of two rows with one key the last one wins, and which is last depends on the day."""
    with pytest.raises(DefinitionError, match=rf"'v' into 't': more than one row has the key \({key}\)"):
        to_store(BINDING, net(changes))


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.list_(pa.int64()), ([1], [1, None], [], None)),
        (pa.struct([("a", pa.int64())]), ({"a": 1}, {"a": None}, None)),
        (pa.decimal128(5, 2), (Decimal("1.10"), Decimal("1.11"), None)),
        (pa.binary(), (b"", b"\0", None)),
        (pa.bool_(), (True, False, None)),
        (pa.timestamp("us", "UTC"), (0, 1, None)),
        (pa.dictionary(pa.int32(), pa.string()), ("a", "b", None)),
        (pa.null(), (None,)),
    ],
    ids=str,
)
def test_keys_of_every_type_are_distinguished(type_: pa.DataType, values: tuple[Any, ...]) -> None:
    """Damage: a view grouped by an unusual type cannot be materialized, or mixes its groups up."""
    binding = Binding("v", "t", ("k",), Schema((Column("k", "whatever"), Column("x", "int"))))
    old = [({"k": value, "x": 1}, -1) for value in values]
    new = [({"k": value, "x": 2}, 1) for value in values]
    stores = to_store(binding, net(old + new, {"k": type_, "x": pa.int32()}))
    assert len(stores) == len(values)
    assert stores[EXISTS].to_pylist() == [True] * len(values)


def test_what_the_endpoint_answers_decides_which_rows_exist() -> None:
    """Damage: after a crash an endpoint without transactions gets an EXISTS flag for missing rows."""
    stores = to_store(BINDING, net([(row(1, 1.0), 1), (row(2, 2.0), 1), (row(3, 3.0), -1), (row(4, None, None), -1)]))
    loaded = stores.filter(pa.array([True, False, False, True])).select(list(SCHEMA.names))
    found = [(each["x"], each[EXISTS], each[DELETE]) for each in with_existence(BINDING, stores, loaded).to_pylist()]
    assert found == [(1, True, False), (2, False, False), (4, True, True)]
    assert keys_of(BINDING, stores).column_names == ["k", "l"]


KEYS = st.tuples(st.sampled_from([None, 0.0, -0.0, math.nan, 1.5]), st.sampled_from([None, "", "a"]))
MOVES = st.lists(st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 2)), max_size=4), max_size=6)


@given(MOVES)
def test_folding_the_stores_of_all_windows_gives_the_contents(moves: list[dict[Any, int | None]]) -> None:
    """Damage: the table is not the collection (law M2)."""
    all_changes: list[tuple[dict[str, Any], int]] = []
    table: dict[str, dict[str, Any]] = {}
    for move in moves:
        before = {canonical_key(each): each for each in contents(BINDING, all_changes).values()}
        after = dict(before)
        for (k, l), x in move.items():  # noqa: E741
            new = row(x or 0, k, l)
            after.pop(canonical_key(new), None)
            if x is not None:
                after[canonical_key(new)] = new
        changes = [(each, -1) for key, each in before.items() if not same(after.get(key), each)]
        changes += [(each, 1) for key, each in after.items() if not same(before.get(key), each)]
        for store in to_store(BINDING, net(changes)).to_pylist():
            exists, delete = store.pop(EXISTS), store.pop(DELETE)
            assert exists == (canonical_key(store) in table)
            table.pop(canonical_key(store), None)
            if not delete:
                table[canonical_key(store)] = store
        all_changes += changes
        truth = sorted(canonical(canonical_key(each)) for each in contents(BINDING, all_changes).values())
        assert sorted(canonical(key) for key in table) == truth
        assert {each["x"] for each in table.values()} == {each["x"] for each in contents(BINDING, all_changes).values()}


CHANGES = st.lists(
    st.tuples(KEYS, st.sampled_from([((1, -1),), ((1, 1),), ((1, -1), (2, 1)), ((2, 1), (1, -1)), ((1, 1), (2, 1))])),
    max_size=6,
    unique_by=lambda each: (canonical(each[0][0]), each[0][1]),
)


@given(CHANGES, st.integers(1, 5))
def test_batches_say_the_same_as_the_whole(groups: list[Any], batch_rows: int) -> None:
    """Damage: a row whose old value lies in an earlier batch is inserted a second time; or two rows have one key."""
    whole = net([(row(x, *key), diff) for key, moves in groups for x, diff in moves])

    def in_batches() -> list[dict[str, Any]]:
        stores, found = Stores(BINDING), []
        for batch in whole.to_batches(batch_rows):
            found += stores.add(batch).to_pylist()
            assert stores._open is None or len(stores._open) <= 2, "no more is kept than one key may have"
        last = stores.end()
        return found + ([] if last is None else last.to_pylist())

    def outcome(call: Callable[[], list[dict[str, Any]]]) -> str:
        try:
            return repr(call())
        except DefinitionError as error:
            return str(error)

    assert outcome(in_batches) == outcome(lambda: to_store(BINDING, whole).to_pylist())


def test_a_key_with_far_too_many_rows_is_refused_at_once() -> None:
    """Damage: a KEY of one value is only refused when all rows of a large collection are in memory."""
    stores = Stores(BINDING)
    (batch,) = net([(row(x, 1.0), 1) for x in range(3)]).to_batches()
    with pytest.raises(DefinitionError, match="more than one row has the key"):
        stores.add(batch)


def canonical_key(each: dict[str, Any]) -> tuple[str, str]:
    """Return the key as the spec compares it."""
    return canonical(each["k"]), canonical(each["l"])


def same(one: dict[str, Any] | None, other: dict[str, Any]) -> bool:
    """Tell whether a row is the same row."""
    return one is not None and canonical(list(one.values())) == canonical(list(other.values()))


def text_of(*values: bytes | None) -> pa.Array:
    """Return texts of any bytes, as Spark hands them over."""
    binary = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(binary), binary.buffers(), binary.null_count)


@pytest.mark.parametrize("nested", [False, True])
def test_a_text_that_is_not_utf_8_is_named(nested: bool) -> None:
    """Damage: a table stops with `UnicodeDecodeError`, and no one knows which row to mend."""
    texts = text_of(b"good", None, b"\xff\xfeA", b"")
    given = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), texts) if nested else texts
    kind = "array<string>" if nested else "string"
    binding = Binding("v", "t", ("k",), Schema((Column("k", "int"), Column("l", kind))))
    batch = pa.RecordBatch.from_pydict({"k": pa.array([7, 8, 9, 10], pa.int32()), "l": given, DIFF: pa.array([1] * 4)})
    require_held(binding, batch.slice(0, 2), EVERYTHING)
    require_held(binding, batch.slice(3), EVERYTHING)
    with pytest.raises(
        DefinitionError, match=r"'v' into 't': the row with the key \(k = 9\) .* column 'l' .* not UTF-8"
    ):
        require_held(binding, batch, EVERYTHING)


def test_a_key_that_is_not_utf_8_is_shown_as_bytes() -> None:
    """Damage: the message about a text cannot be written, because of that text."""
    binding = Binding("v", "t", ("l",), Schema((Column("l", "string"),)))
    batch = pa.RecordBatch.from_pydict({"l": text_of(b"\xff"), DIFF: pa.array([1])})
    with pytest.raises(DefinitionError, match=r"key \(l = b'\\xff'\)"):
        require_held(binding, batch, EVERYTHING)


def test_a_key_that_is_too_long_is_named_and_the_longest_one_that_fits_is_held() -> None:
    """Damage: a table stops at its first row; or the endpoint refuses a transaction, and no one knows which row."""
    binding = Binding("v", "t", ("l", "m"), Schema((Column("l", "string"), Column("m", "string"))))
    holds = Holds("S", key_bytes=4)

    def keys(*pairs: tuple[str | None, str]) -> pa.Table:
        return pa.table({"l": [a for a, _ in pairs], "m": [b for _, b in pairs], DIFF: [1] * len(pairs)})

    require_held(binding, keys(("ab", "cd"), (None, "é"), ("é", "ab")), holds)
    with pytest.raises(DefinitionError, match=r"\(l = 'é', m = 'abc'\) has a key of 5 bytes.* at most 4"):
        require_held(binding, keys(("ab", "cd"), ("é", "abc")), holds)
