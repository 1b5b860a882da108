"""Rows that are reduced as columns are reduced as the model reduces documents; so are all others."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.materialize.reduce.documents import annotated, same

from strandline.algebra.schema import DIFF
from strandline.errors import DefinitionError, InvalidUsage
from strandline.materialize.protocol.messages import DELETE, EXISTS
from strandline.materialize.reduce import rows, spec
from strandline.materialize.reduce.columns import reader
from strandline.materialize.reduce.locations import Annotated
from strandline.materialize.reduce.rows import Combining, Rows
from strandline.materialize.reduce.schemas import MISSING


def whole(bits: int) -> st.SearchStrategy[int]:
    """Return integers of a type, its limits more often than others."""
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.sampled_from([least, most, -1, 0, 1]) | st.integers(least, most)


INT64 = whole(64)
NUMBERS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): whole(8),
    pa.int32(): whole(32),
    pa.int64(): INT64,
    pa.float32(): st.sampled_from([0.5, -0.0, math.nan, 3.0e38]) | st.floats(width=32),
    pa.float64(): st.sampled_from([0.1, 0.2, 1e16, -1e16, 1.7e308, -0.0, math.nan, math.inf]) | st.floats(),
    pa.decimal128(5, 2): st.sampled_from([Decimal("999.99"), Decimal("-999.99")]) | st.decimals("-9", "9", places=2),
    pa.decimal128(38, 0): st.sampled_from([10**38 - 1, 1 - 10**38, 1 << 64, -1, 0]).map(Decimal),
}
ORDERED: dict[pa.DataType, st.SearchStrategy[Any]] = NUMBERS | {
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.sampled_from(["", "a", "Z", "é", "\U0001f600", "\uffff"]),
    pa.binary(): st.sampled_from([b"", b"\0", b"\xff", b"a"]),
    pa.date32(): st.dates(date(1960, 1, 1), date(1980, 1, 1)),
    pa.time64("us"): st.sampled_from([time(0), time(23, 59)]),
    pa.timestamp("us"): st.datetimes(datetime(1960, 1, 1), datetime(1980, 1, 1)),  # noqa: DTZ001
    pa.timestamp("us", "UTC"): st.datetimes(datetime(1960, 1, 1), datetime(1980, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    pa.duration("us"): st.timedeltas(timedelta(-1), timedelta(1)),
}
ANY: dict[pa.DataType, st.SearchStrategy[Any]] = ORDERED | {
    pa.list_(pa.int64()): st.lists(st.none() | INT64, max_size=2),
    pa.struct([("a", pa.int64())]): st.fixed_dictionaries({"a": st.none() | INT64}),
}
"""Types and their values; `columns` only chooses between nested ones."""


@st.composite
def flat(draw: st.DrawFn) -> tuple[dict[str, Any], pa.Table]:
    """Return a schema and rows that are reduced as columns."""
    properties: dict[str, Any] = {}
    given: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {}
    for name in draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True)):
        strategy = draw(st.sampled_from(["sum", "minimize", "maximize", "firstWriteWins", "lastWriteWins"]))
        kinds = {"sum": NUMBERS, "minimize": ORDERED, "maximize": ORDERED}.get(strategy, ANY)
        kind = draw(st.sampled_from(list(kinds)))
        properties[name] = annotated(strategy)
        if draw(st.booleans()):
            properties[name]["type"] = (
                ["number", "integer"] if strategy == "sum" else ["number", "string", "object", "array", "boolean"]
            )
        given[name] = kind, st.none() | kinds[kind]
    keys = sorted(draw(st.lists(st.integers(0, 1), min_size=1, max_size=8)))
    table = {"k": pa.array(keys, pa.int64())}
    for name, (kind, values) in given.items():
        table[name] = pa.array(draw(st.lists(values, min_size=len(keys), max_size=len(keys))), kind)
    top = draw(st.sampled_from(["merge"] * 8 + ["lastWriteWins", "firstWriteWins"]))
    schema = annotated(top) | ({"properties": properties} if top == "merge" else {})
    return schema, pa.table(table)


def few_floats() -> st.SearchStrategy[tuple[dict[str, Any], pa.Table]]:
    """Return a schema and rows with floats of which many are equal."""
    values = st.lists(st.sampled_from([0.0, -0.0, -1.0, math.nan, None]), min_size=1, max_size=4)
    return st.builds(
        lambda strategy, found: (
            annotated("merge") | {"properties": {"a": annotated(strategy)}},
            pa.table({"k": pa.array([0] * len(found), pa.int64()), "a": pa.array(found, pa.float64())}),
        ),
        st.sampled_from(["minimize", "maximize"]),
        values,
    )


def as_documents(schema: dict[str, Any], table: pa.Table) -> list[dict[str, Any]]:
    """Return flat rows as documents: NULL is null where it may be, and missing elsewhere."""
    root = Annotated(schema).root.always()
    found = []
    for row in table.to_pylist():
        document = {}
        for name, value in row.items():
            location = root.property(name)
            if value is not None or location.admits("null"):
                document[name] = value
        found.append(document)
    return found


def modelled(schema: dict[str, Any], table: pa.Table) -> list[dict[str, Any]]:
    """Return what the model makes of the rows of each key."""
    documents = as_documents(schema, table)
    return [
        each
        for _, group in groupby(documents, key=lambda document: document["k"])
        for each in spec.associative(Annotated(schema), list(group))
    ]


def fits(document: dict[str, Any], kinds: pa.Schema) -> bool:
    """Tell whether the columns can hold a document."""
    try:
        for field in kinds:
            value = document.get(field.name)
            pa.array([value], field.type)
            if field.type == pa.float32() and value is not None and math.isfinite(value) and abs(value) > 3.4028235e38:
                return False
    except (pa.ArrowException, OverflowError):
        return False
    return True


def as_kept(document: dict[str, Any], kinds: pa.Schema) -> dict[str, Any]:
    """Return the row of a document, after its numbers were rounded to the columns' types."""
    return {field.name: pa.array([document.get(field.name)], field.type)[0].as_py() for field in kinds}


@settings(max_examples=400)
@given(flat() | few_floats())
def test_columns_are_reduced_as_documents(given_: tuple[dict[str, Any], pa.Table]) -> None:
    """Damage: a sum wraps around, a NULL is taken for a 0, or the wrong row's value is kept."""
    schema, table = given_
    reducer = Rows(schema, ["k"], table.schema)
    assert reducer.flat
    try:
        truth = modelled(schema, table)
    except DefinitionError:
        truth = [{"overflow": True}]
    if not all("k" in each and fits(each, table.schema) for each in truth):
        with pytest.raises(DefinitionError, match=r"^the documents with the key \(k = [01]\): at /[abcd], sum: .* fit"):
            reducer.combine(table)
        return
    found = reducer.combine(table).to_pylist()
    assert len(found) == len(truth)
    for row, document in zip(found, truth, strict=True):
        assert same(row, as_kept(document, table.schema)), (row, document)
        assert all(repr(row[name]) == repr(as_kept(document, table.schema)[name]) for name in row)  # -0.0 is not 0.0


LONG_GROUPS = st.lists(st.tuples(st.integers(1, 200), st.randoms(use_true_random=False)), min_size=1, max_size=3)


@given(LONG_GROUPS, st.booleans())
def test_floats_of_long_groups_are_added_one_after_the_other(groups: list[tuple[int, Any]], nulls: bool) -> None:
    """Damage: a sum of floats depends on whether it was computed as a column or as documents."""
    keys, values = [], []
    for key, (size, random) in enumerate(groups):
        keys += [key] * size
        values += [None if nulls and random.random() < 0.3 else random.uniform(-1e9, 1e9) for _ in range(size)]
    table = pa.table({"k": keys, "n": pa.array(values, pa.float64())})
    schema = annotated("merge") | {"properties": {"n": annotated("sum")}}
    found = Rows(schema, ["k"], table.schema).combine(table).to_pylist()
    assert [row["n"] for row in found] == [each.get("n") for each in modelled(schema, table)]


COUNTED = {
    "type": "object",
    "if": {"properties": {"op": {"const": "d"}}, "required": ["op"]},
    "then": annotated("merge", delete=True),
    "else": annotated("merge"),
    "properties": {
        "n": annotated("sum") | {"type": "integer"},
        "tags": annotated("append") | {"type": "array"},
        "seen": annotated("set") | {"additionalProperties": {"additionalProperties": annotated("sum")}},
        "best": annotated("maximize", key=["/score"])
        | {"properties": {"times": annotated("sum") | {"type": "integer"}}},
        "by": annotated("merge") | {"additionalProperties": annotated("sum")},
    },
}
NESTED = pa.schema(
    [
        ("k", pa.string()),
        ("op", pa.string()),
        ("n", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("seen", pa.string()),
        ("best", pa.struct([("score", pa.int32()), ("times", pa.int64())])),
        ("by", pa.map_(pa.string(), pa.decimal128(20, 2))),
    ]
)
JSON_SETS = st.sampled_from(['{"add":{"a":1,"b":1.5}}', '{"remove":{"a":0}}', '{"intersect":{"a":0},"add":{"c":2}}'])
NESTED_ROWS = st.lists(
    st.fixed_dictionaries(
        {"k": st.sampled_from(["x", "y"]), "op": st.sampled_from(["d", "u", None])},
        optional={
            "n": st.integers(-9, 9),
            "tags": st.lists(st.sampled_from("ab"), max_size=2),
            "seen": JSON_SETS,
            "best": st.fixed_dictionaries({"score": st.integers(0, 2), "times": st.none() | st.integers(0, 9)}),
            "by": st.dictionaries(st.sampled_from("pq"), st.decimals(-9, 9, places=2), max_size=2).map(
                lambda one: list(one.items())
            ),
        },
    ),
    min_size=1,
    max_size=8,
).map(lambda found: sorted(found, key=lambda row: row["k"]))
FLAT_ROWS = st.lists(
    st.fixed_dictionaries(
        {"k": st.sampled_from(["x", "y"]), "n": st.none() | st.integers(-9, 9), "m": st.none() | st.integers(0, 3)},
        optional={"f": st.none() | st.booleans(), "l": st.none() | st.decimals(-9, 9, places=2)},
    ),
    min_size=1,
    max_size=8,
).map(lambda found: sorted(found, key=lambda row: row["k"]))
FLAT = annotated("merge") | {
    "properties": {
        "n": annotated("sum"),
        "m": annotated("maximize"),
        "f": annotated("firstWriteWins") | {"type": "boolean"},
        "l": {"type": "number"},
    }
}
FLAT_COLUMNS = pa.schema(
    [("k", pa.string()), ("n", pa.int64()), ("m", pa.int8()), ("f", pa.bool_()), ("l", pa.decimal128(9, 2))]
)


NULLS = frozenset({"op", "m"})
"""The columns of `NESTED` and `FLAT_COLUMNS` in which NULL is a value."""


def as_document(row: dict[str, Any], kinds: pa.Schema) -> dict[str, Any]:
    """Return a row of `NESTED` or `FLAT_COLUMNS` as a document."""
    document = {name: None for name in kinds.names if name in NULLS}
    for name, value in row.items():
        if name == "seen":
            document[name] = json.loads(value, parse_float=Decimal)
        elif name == "by":
            document[name] = dict(value)
        elif name == "best":
            document[name] = {part: each for part, each in value.items() if each is not None}
        elif value is not None:
            document[name] = value
    return document


@pytest.mark.parametrize(
    ("schema", "kinds", "given_"),
    [(COUNTED, NESTED, NESTED_ROWS), (FLAT, FLAT_COLUMNS, FLAT_ROWS)],
    ids=["nested", "flat"],
)
@settings(max_examples=150)
@given(data=st.data())
def test_an_endpoint_that_is_fed_in_transactions_holds_the_full_reduction(
    schema: dict[str, Any], kinds: pa.Schema, given_: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    """Damage: what the endpoint holds depends on where its transactions end, or a deleted row comes back."""
    reducer = Rows(schema, ["k"], kinds)
    held = pa.Table.from_batches([], kinds)
    keys: dict[str, list[Any]] = {}
    for _ in range(data.draw(st.integers(1, 3))):
        given_rows = data.draw(given_)
        batch = pa.Table.from_pylist(given_rows, kinds)
        for row in given_rows:
            keys.setdefault(row["k"], []).append(as_document(row, kinds))
        combined = streamed(reducer, batch, data.draw(st.integers(1, 4)))
        stored = reducer.finish(
            held.take(data.draw(st.permutations(range(len(held))))) if len(held) else None, combined
        )
        table = {row["k"]: row for row in held.to_pylist()}
        for row in stored.to_pylist():
            exists, deletes = row.pop(EXISTS), row.pop(DELETE)
            assert exists == (row["k"] in table)
            table.pop(row["k"], None)
            if not deletes:
                table[row["k"]] = row
        held = pa.Table.from_pylist(list(table.values()), kinds)
    truth = [spec.full(Annotated(schema), documents) for documents in keys.values()]
    kept = sorted((each for each in truth if isinstance(each, dict)), key=lambda each: each["k"])
    found = sorted(reducer._documents(held, loaded=True), key=lambda each: each["k"])
    assert same(found, reducer._documents(reducer._table(kept), loaded=True))


def streamed(reducer: Rows, table: pa.Table, size: int) -> pa.Table:
    """Return ``table`` combined in batches of ``size`` rows."""
    combining = Combining(reducer)
    with_diffs = table.append_column(DIFF, pa.array([1] * len(table), pa.int64()))
    found = [combining.add(batch) for batch in with_diffs.to_batches(size)]
    return pa.concat_tables([*found, combining.end()])


@given(FLAT_ROWS, st.integers(1, 4), st.booleans())
def test_batches_say_the_same_as_the_whole(given_: list[Any], size: int, keep_few: bool) -> None:
    """Damage: a key that goes over two batches has two rows in one transaction."""
    table = pa.Table.from_pylist(given_, FLAT_COLUMNS)
    reducer = Rows(FLAT, ["k"], FLAT_COLUMNS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "OPEN_ROWS_MAX", 1 if keep_few else 1000)
        assert streamed(reducer, table, size).equals(reducer.combine(table))


def changes(*diffs: int) -> pa.RecordBatch:
    """Return rows of one key."""
    table = pa.table(
        {"n": [1] * len(diffs), "k": ["x"] * len(diffs), DIFF: pa.array(diffs, pa.int64()), "other": [0] * len(diffs)}
    )
    return table.combine_chunks().to_batches()[0]


SUMMED = pa.schema([("k", pa.string()), ("n", pa.int64())])


def test_a_row_counts_as_often_as_it_was_added() -> None:
    """Damage: two equal events in one tick are counted once."""
    combining = Combining(Rows(FLAT, ["k"], SUMMED))
    assert combining.add(changes(2, 1)).num_rows == 0
    assert combining.end().to_pylist() == [{"k": "x", "n": 3}]
    assert combining.end().num_rows == 0


def test_a_removed_row_is_refused() -> None:
    """Damage: a row of a collection that is not append-only is added once more when it is deleted."""
    with pytest.raises(
        DefinitionError, match=r"a row with the key \(k = 'x'\) was removed or changed, and only rows of an app"
    ):
        Combining(Rows(FLAT, ["k"], SUMMED)).add(changes(1, -1))


HISTORY = annotated("merge") | {"properties": {"n": {"type": "integer", "reduce": {"strategy": "sum"}}}}


def history(*steps: tuple[str, int, str, int]) -> pa.Table:
    """Return changes (key, number, last text, diff) in the order of key and time."""
    columns = zip(*steps, strict=True)
    return pa.table(dict(zip(("k", "n", "last", DIFF), columns, strict=True)))


def first_window(steps: pa.Table, size: int) -> list[dict[str, Any]]:
    """Return what the first window of a binding stores if it comes in batches of ``size`` rows."""
    reducer = Rows(HISTORY, ["k"], steps.drop_columns([DIFF]).schema)
    combining = Combining(reducer, first=True)
    found = [combining.add(batch) for batch in steps.to_batches(size)]
    return reducer.finish(None, pa.concat_tables([*found, combining.end()])).drop_columns([EXISTS, DELETE]).to_pylist()


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("kept", [1, 1000])
def test_a_first_window_begins_with_the_rows_that_are_left(
    size: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: one row that was deleted years ago keeps a collection from ever being reduced."""
    monkeypatch.setattr(rows, "OPEN_ROWS_MAX", kept)
    steps = history(
        ("gone", 1, "x", 1),
        ("gone", 1, "x", -1),
        ("a", 1, "first", 1),
        ("a", 2, "again", 2),
        ("a", 4, "then", 1),
        ("a", 2, "again", -1),
        ("a", 2, "again", 1),
        ("a", 8, "last", 1),
        ("a", 8, "last", -1),
        ("b", 5, "y", 1),
    )
    assert first_window(steps, size) == [{"k": "a", "n": 9, "last": "again"}, {"k": "b", "n": 5, "last": "y"}]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.booleans()), max_size=12), st.integers(1, 4))
def test_a_first_window_sums_what_is_left(given_: list[tuple[str, int, bool]], size: int) -> None:
    """Damage: a removed row is counted, or takes another one with it."""
    there: list[tuple[str, int]] = []
    steps: list[tuple[str, int, str, int]] = []
    for key, number, removes in sorted(given_, key=lambda each: each[0]):
        if removes and (key, number) not in there:
            continue
        (there.remove if removes else there.append)((key, number))
        steps.append((key, number, str(number), -1 if removes else 1))
    if steps:
        found = {row["k"]: row["n"] for row in first_window(history(*steps), size)}
        assert found == {key: sum(n for k, n in there if k == key) for key, _ in there}


def test_rows_that_cannot_be_combined_are_not_tried_at_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a key with many documents that are kept apart takes hours: each batch compares all of them."""
    monkeypatch.setattr(rows, "OPEN_ROWS_MAX", 10)
    history = annotated("merge", associative=False)
    tried = []
    right = Rows.combine
    monkeypatch.setattr(Rows, "combine", lambda self, table: tried.append(len(table)) or right(self, table))
    combining = Combining(Rows(history, ["k"], SUMMED))
    assert [combining.add(changes(1)).num_rows for _ in range(1000)] == [0] * 1000
    assert combining.end().num_rows == 1000
    assert sum(tried) < 4000


def test_a_missing_key_is_named_as_in_sql() -> None:
    """Damage: an operator looks for a text 'None' in the key."""
    table = pa.table({"k": pa.array([None], pa.string()), "n": pa.array(["x"])})
    for root in (annotated("merge"), annotated("merge", associative=False)):
        with pytest.raises(DefinitionError, match=r"^the documents with the key \(k = NULL\)"):
            Rows(root | {"properties": {"n": annotated("append")}}, ["k"], table.schema).combine(table)


def one(kinds: pa.Schema, *given_: dict[str, Any]) -> pa.Table:
    """Return rows of the key 1."""
    return pa.Table.from_pylist([{"k": 1, **each} for each in given_], pa.schema([("k", pa.int64()), *kinds]))


TEXT, ONE_BYTE = pa.schema([("n", pa.string())]), pa.schema([("n", pa.int8())])
LISTS = pa.schema([("n", pa.list_(pa.int8()))])
MERGED, APPENDED = annotated("merge") | {"additionalProperties": annotated("sum")}, annotated("append")
FAULTS: dict[str, tuple[dict[str, Any], pa.Table, str]] = {
    "overflow": (annotated("sum"), one(ONE_BYTE, {"n": 100}, {"n": 28}), r"at /n, sum: 128 does not fit int8"),
    "overflow of decimals": (
        annotated("sum"),
        one(pa.schema([("n", pa.decimal128(3, 2))]), {"n": Decimal("-9.99")}, {"n": Decimal("-0.01")}),
        r"at /n, sum: -10\.00 does not fit decimal128\(3, 2\)",
    ),
    "too large for a float": (
        annotated("sum"),
        one(pa.schema([("n", pa.float64())]), {"n": 1.7e308}, {"n": 1.6e308}),
        r"at /n, sum: the sum of 1\.7e\+308 and 1\.6e\+308 does not fit double",
    ),
    "no JSON": (MERGED, one(TEXT, {"n": "{"}), r"at /n, merge: '\{' is not JSON"),
    "NaN is no JSON": (MERGED, one(TEXT, {"n": '{"a": NaN}'}), r"NaN is no number of JSON"),
    "sum of texts": (MERGED, one(TEXT, {"n": '{"a": ""}'}), r"at /n/a, sum .*cannot combine nothing with ''"),
    "an item that does not fit": (
        annotated("merge") | {"items": annotated("sum")},
        one(LISTS, {"n": [100]}, {"n": [28]}),
        r"at /n: \[128\] does not fit list",
    ),
    "a map with numbers": (
        MERGED,
        one(pa.schema([("n", pa.map_(pa.int8(), pa.int8()))]), {"n": [(1, 1)]}),
        r"a map is an object only if its keys are texts",
    ),
}


@pytest.mark.parametrize(("schema", "table", "message"), FAULTS.values(), ids=FAULTS)
def test_a_fault_names_key_and_column(schema: dict[str, Any], table: pa.Table, message: str) -> None:
    """Damage: a number wraps around unseen, or the operator cannot find the row that stops the materialization."""
    reducer = Rows(annotated("merge") | {"properties": {"n": schema}}, ["k"], table.schema)
    with pytest.raises(DefinitionError, match=rf"^the documents with the key \(k = 1\): .*{message}"):
        reducer.combine(table)


def test_a_result_without_a_column_is_an_error() -> None:
    """Damage: a property that a reduction makes is dropped on the way to the endpoint."""
    schema = annotated("merge") | {"properties": {"n": annotated("jsonSchemaMerge")}}
    kinds = pa.schema([("n", pa.struct([("type", pa.string()), ("title", pa.string())]))])
    table = one(kinds, {"n": {"type": "string", "title": "a"}}, {"n": {"type": "null"}})
    with pytest.raises(DefinitionError, match=r"\(k = 1\): at /n: "):
        Rows(schema, ["k"], table.schema).combine(table)


@pytest.mark.parametrize(
    ("schema", "key", "message"),
    [
        (FLAT, [], "rows without a key cannot be reduced"),
        (FLAT, ["n"], "the key column 'n' cannot be reduced by sum"),
    ],
)
def test_what_cannot_be_a_key(schema: dict[str, Any], key: list[str], message: str) -> None:
    """Damage: the key of a row is summed, and the row is that of another key."""
    with pytest.raises(DefinitionError, match=message):
        Rows(schema, key, FLAT_COLUMNS)


def test_rows_that_are_not_as_they_must_be() -> None:
    """Damage: a key has two rows in one transaction, or one of two endpoint rows is overwritten."""
    reducer = Rows(FLAT, ["k"], SUMMED)

    def table(*keys: str) -> pa.Table:
        return pa.table({"k": list(keys), "n": pa.array([1] * len(keys), pa.int64())})

    with pytest.raises(InvalidUsage, match=r"the rows of one key \(k\) are not adjacent"):
        reducer.combine(table("x", "y", "x"))
    with pytest.raises(InvalidUsage, match=r"two rows with the key \(k = 'x'\)"):
        reducer.finish(table("x", "x"), table("x"))
    assert reducer.finish(table("z"), table("x")).to_pylist() == [{"k": "x", "n": 1, EXISTS: False, DELETE: False}]
    assert reducer.finish(table("z"), table()).num_rows == 0


def test_a_dictionary_is_its_values() -> None:
    """Damage: a column that a file compressed in another way cannot be reduced."""
    table = pa.table({"k": pa.array(["x", "x"]).dictionary_encode(), "n": pa.array([1, 2])})
    assert Rows(FLAT, ["k"], table.schema).combine(table).to_pylist() == [{"k": "x", "n": 3}]


def test_a_null_that_deletes_is_a_value_in_what_comes_and_none_in_what_is_stored() -> None:
    """Damage: a column that is deleted keeps its value; or what was deleted at the endpoint is deleted once more."""
    deletes = {"if": {"type": "null"}, "then": annotated("lastWriteWins", delete=True), "else": annotated("sum")}
    places = Annotated(
        annotated("merge") | {"properties": {"n": deletes, "m": annotated("lastWriteWins")}}
    ).root.always()
    nulls = {
        (name, loaded): reader(pa.int64(), places.property(name), loaded=loaded)(None)
        for name in ("n", "m")
        for loaded in (False, True)
    }
    assert nulls == {("n", False): None, ("n", True): MISSING, ("m", False): None, ("m", True): None}
