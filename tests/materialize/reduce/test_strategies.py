"""What each strategy makes of two documents, by the model and by the reducer."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from tests.materialize.reduce.documents import COUNTED, LEAVES, annotated, same

from strandline.errors import DefinitionError, InvalidUsage
from strandline.materialize.reduce import spec
from strandline.materialize.reduce.folding import Reducer
from strandline.materialize.reduce.locations import Annotated
from strandline.materialize.reduce.schemas import DELETED, MISSING

NULL_DELETES = LEAVES["null deletes, else sum"][0]
KEYED = annotated("merge", key=["/k"]) | {
    "items": {
        "if": {"required": ["gone"]},
        "then": annotated("lastWriteWins", delete=True),
        "else": annotated("merge") | COUNTED,
    }
}
SET = LEAVES["set of names"][0]
PAIRS = LEAVES["set of items"][0]

CASES: dict[str, tuple[dict[str, Any], list[Any], list[Any], Any]] = {
    # name: schema, documents, combined, fully reduced
    "sum": (annotated("sum"), [1, 2**64, -3], [2**64 - 2], 2**64 - 2),
    "sum of decimals": (annotated("sum"), [Decimal("0.10"), 1, Decimal("0.20")], [Decimal("1.30")], Decimal("1.30")),
    "sum of objects": (
        annotated("sum"),
        [{"a": 1, "b": {"c": 1}}, {"a": 2, "b": {"d": 5}}],
        [{"a": 3, "b": {"c": 1, "d": 5}}],
        {"a": 3, "b": {"c": 1, "d": 5}},
    ),
    "minimize": (annotated("minimize"), [3, 1.5, "a", 2], [1.5], 1.5),
    "null is least": (annotated("minimize"), [3, None, 2], [None], None),
    "maximize": (annotated("maximize"), [True, 3, [0], 9, "z"], [[0]], [0]),
    "of equal values the first stays": (annotated("maximize"), [1, 1.0, Decimal(1)], [1], 1),
    "first": (annotated("firstWriteWins"), [None, 1], [None], None),
    "last": ({}, [{"a": 1}, {"b": 1}], [{"b": 1}], {"b": 1}),
    "append": (annotated("append"), [[1], [], [None, 1]], [[1, None, 1]], [1, None, 1]),
    "by position": (annotated("merge") | {"items": annotated("sum")}, [[1, 1], [2, 2, 2]], [[3, 3, 2]], [3, 3, 2]),
    "missing is not null": (
        annotated("merge"),
        [{"a": 1, "b": 1}, {"a": None}],
        [{"a": None, "b": 1}],
        {"a": None, "b": 1},
    ),
    "by key": (
        KEYED,
        [[{"k": 1, "n": 1}, {"k": 3, "n": 1}], [{"k": 2}, {"k": 3, "n": 5}, {"k": 4}]],
        [[{"k": 1, "n": 1}, {"k": 2}, {"k": 3, "n": 6}, {"k": 4}]],
        [{"k": 1, "n": 1}, {"k": 2}, {"k": 3, "n": 6}, {"k": 4}],
    ),
    "a deleted item": (
        KEYED,
        [[{"k": 1, "n": 1}, {"k": 2, "n": 1}], [{"k": 1, "gone": 1}]],
        [[{"k": 1, "gone": 1}, {"k": 2, "n": 1}]],
        [{"k": 2, "n": 1}],
    ),
    "an item that is deleted and there again": (
        KEYED,
        [[{"k": 1, "n": 1}], [{"k": 1, "gone": 1}], [{"k": 1, "n": 5}]],
        [[{"k": 1, "gone": 1}], [{"k": 1, "n": 5}]],
        [{"k": 1, "n": 5}],
    ),
    "equal keys are merged": (
        annotated("maximize", key=["/k"]) | COUNTED,
        [{"k": 1, "n": 7}, {"k": 2, "n": 1}, {"k": 2, "n": 3}, {"n": 9}],
        [{"k": 2, "n": 4}],
        {"k": 2, "n": 4},
    ),
    "a missing key is least": (
        annotated("minimize", key=["/k"]),
        [{"k": None}, {"x": 1}, {"k": 0}],
        [{"x": 1}],
        {"x": 1},
    ),
    "a property goes": (
        annotated("merge") | {"properties": {"x": NULL_DELETES}},
        [{"x": 1, "y": 1}, {"x": None}],
        [{"x": None, "y": 1}],
        {"y": 1},
    ),
    "a sum begins anew after a deletion": (
        annotated("merge") | {"properties": {"x": NULL_DELETES}},
        [{"x": 1}, {"x": None}, {"x": 5}, {"x": 2}],
        [{"x": None}, {"x": 7}],
        {"x": 7},
    ),
    "a text is replaced only where all is known": (
        LEAVES["a text or merged"][0],
        [{"a": 1}, "text", {"b": 2}, {"c": 3}],
        ["text", {"b": 2, "c": 3}],
        {"b": 2, "c": 3},
    ),
    "kept apart": (
        annotated("merge") | {"properties": {"e": annotated("lastWriteWins", associative=False)}},
        [{"e": 1}, {"e": 1}, {"f": 2}],
        [{"e": 1}, {"e": 1, "f": 2}],
        {"e": 1, "f": 2},
    ),
    "removed, and added again": (
        SET,
        [{"add": {"a": 1, "b": 1, "c": 1}}, {"remove": {"b": 0}}, {"add": {"a": 1, "d": 1}}],
        [{"add": {"a": 2, "c": 1, "d": 1}, "remove": {"b": 0}}],
        {"add": {"a": 2, "c": 1, "d": 1}},
    ),
    "intersect": (
        SET,
        [{"add": {"a": 2, "b": 1}}, {"intersect": {"a": 0, "d": 0}}, {"add": {"a": 1, "e": 1}}],
        [{"add": {"a": 3, "e": 1}, "intersect": {"a": 0, "d": 0}}],
        {"add": {"a": 3, "e": 1}},
    ),
    "removed from what is kept": (
        SET,
        [{"intersect": {"a": 0, "b": 0}}, {"remove": {"a": 0}, "add": {"c": 1}}],
        [{"add": {"c": 1}, "intersect": {"b": 0}}],
        {"add": {"c": 1}},
    ),
    "kept of what is removed": (
        SET,
        [{"remove": {"a": 0}}, {"intersect": {"a": 0, "b": 0}}],
        [{"intersect": {"b": 0}}],
        {},
    ),
    "removed, and more removed": (
        SET,
        [{"remove": {"a": 0}}, {"remove": {"a": 0, "b": 0}}, {"add": {"c": 1}}],
        [{"add": {"c": 1}, "remove": {"a": 0, "b": 0}}],
        {"add": {"c": 1}},
    ),
    "an empty intersection leaves nothing": (
        SET,
        [{"intersect": {"a": 0}}, {"intersect": {"b": 0}}],
        [{"intersect": {}}],
        {},
    ),
    "sorted sets": (
        PAIRS,
        [{"add": [["a", 1], ["c", 1]]}, {"remove": [["c"]], "add": [["a", 1], ["b", 1]]}],
        [{"add": [["a", 2], ["b", 1]], "remove": [["c"]]}],
        {"add": [["a", 2], ["b", 1]]},
    ),
    "schemas": (
        annotated("jsonSchemaMerge"),
        [
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "null"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        ],
        [
            {
                "type": "object",
                "properties": {"a": {"type": ["integer", "string"]}, "b": {"type": "null"}},
                "required": ["a"],
                "additionalProperties": False,
            }
        ],
        {
            "type": "object",
            "properties": {"a": {"type": ["integer", "string"]}, "b": {"type": "null"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    ),
}


@pytest.mark.parametrize(("schema", "documents", "combined", "reduced"), CASES.values(), ids=CASES)
def test_what_a_strategy_does(schema: Any, documents: list[Any], combined: list[Any], reduced: Any) -> None:
    """Damage: a user's total, set or array is not what the page promises."""
    assert spec.associative(Annotated(schema), documents) == combined
    assert spec.full(Annotated(schema), documents) == reduced
    assert Reducer.of(schema).combine(documents) == combined
    assert Reducer.of(schema).finish(None, documents) == reduced
    assert Reducer.of(schema).finish(None, combined) == reduced


DELETING: dict[str, Any] = {
    "if": {"properties": {"op": {"const": "d"}}, "required": ["op"]},
    "then": annotated("merge", delete=True),
    "else": annotated("merge") | COUNTED,
}


@pytest.mark.parametrize(
    ("documents", "combined", "reduced"),
    [
        ([{"op": "d"}], [{"op": "d"}], DELETED),
        ([{"op": "u", "n": 1}, {"op": "d"}], [{"op": "d", "n": 1}], DELETED),
        ([{"op": "d"}, {"op": "d"}], [{"op": "d"}], DELETED),
        ([{"op": "d"}, {"op": "i", "n": 5}], [{"op": "d"}, {"op": "i", "n": 5}], {"op": "i", "n": 5}),
        ([{"op": "d"}, {"op": "i", "n": 5}, {"n": 2}], [{"op": "d"}, {"op": "i", "n": 7}], {"op": "i", "n": 7}),
    ],
)
def test_a_document_is_deleted_where_all_is_known(documents: list[Any], combined: list[Any], reduced: Any) -> None:
    """Damage: a deleted row comes back, or what was inserted after a deletion has columns of the deleted row."""
    assert Reducer.of(DELETING).combine(documents) == spec.associative(Annotated(DELETING), documents) == combined
    for loaded in (None, {"op": "u", "n": 100, "old": True}):
        truth = spec.full(Annotated(DELETING), documents, MISSING if loaded is None else loaded)
        assert same(Reducer.of(DELETING).finish(loaded, combined), reduced)
        assert same(truth, reduced)


def test_a_condition_that_no_longer_holds_keeps_documents_apart() -> None:
    """Damage: a deletion is lost, because the combined document looks like an update."""
    schema = DELETING | {"properties": {"op": annotated("firstWriteWins")}}
    documents = [{"op": "u", "n": 1}, {"op": "d"}]
    assert Reducer.of(schema).combine(documents) == spec.associative(Annotated(schema), documents) == documents
    assert Reducer.of(schema).finish({"n": 1}, documents) == DELETED


FAILING: dict[str, tuple[dict[str, Any], list[Any], str]] = {
    "text": (annotated("sum"), [1, "2"], r"sum .*cannot combine 1 with '2': only numbers"),
    "null": (annotated("sum"), [None], r"sum .*cannot combine nothing with None: only numbers"),
    "true": (annotated("sum"), [1, True], r"cannot combine 1 with True: only numbers"),
    "half an object": (annotated("sum"), [{"a": 1}, {"a": {}}], r"with \{'a': \{\}\}: only numbers"),
    "overflow": (annotated("sum"), [1.7e308, 1.7e308], r"1\.7e\+308 with 1\.7e\+308: the sum is too large"),
    "not appended": (annotated("append"), [[1], 2], r"append .*cannot combine \[1\] with 2: only an array"),
    "not merged": (annotated("merge"), [{}, 1], r"merge .*cannot combine \{\} with 1: only objects and arrays"),
    "not compared": (annotated("minimize", key=["/k"]), [{"k": 1}, 1], r"with a key, only objects and arrays"),
    "unsorted": (annotated("merge", key=["/k"]), [[{"k": 2}, {"k": 1}]], r"not sorted by the key"),
    "twice": (annotated("merge", key=[""]), [[1, 1.0]], r"not sorted by the key, or has an item twice"),
    "no key": (
        annotated("merge", key=["/k"]) | {"items": annotated("merge") | {"properties": {"k": annotated("sum")}}},
        [[{"k": 1}], [{"k": 1}]],
        r"changes its key",
    ),
    "by position": (
        annotated("merge") | {"items": annotated("lastWriteWins", delete=True)},
        [[1]],
        r"give merge a key",
    ),
    "no set": (annotated("set"), [{"add": [1], "also": []}], r"an object with add, remove or intersect, and nothing"),
    "both": (annotated("set"), [{"remove": [1], "intersect": [1]}], r"cannot be in one document"),
    "two kinds": (annotated("set"), [{"add": [1]}, {"remove": {"a": 1}}], r"either all arrays or all objects"),
    "scalar": (annotated("set"), [{"add": 1}], r"either all arrays or all objects"),
    "unsorted set": (annotated("set"), [{"remove": [2, 1]}], r"not sorted by the key"),
    "no schema": (annotated("jsonSchemaMerge"), [{"type": "nothing"}], r"'nothing' is not a type"),
}


@pytest.mark.parametrize(("schema", "values", "message"), FAILING.values(), ids=FAILING)
def test_what_a_strategy_cannot_combine_is_an_error_that_names_all(
    schema: Any, values: list[Any], message: str
) -> None:
    """Damage: the operator learns that a document is wrong, and not which, nor where in it."""
    whole = annotated("merge") | {"properties": {"x/y": schema}}
    documents = [{"k": "a", "x/y": value} for value in values]
    reducer = Reducer.of(whole, ["/k"])
    failing = [
        lambda: spec.full(Annotated(whole), documents),
        lambda: reducer.finish(None, documents),
    ]
    if "give merge a key" not in message:  # only where all is known is anything deleted
        failing += [lambda: reducer.combine(documents), lambda: spec.associative(Annotated(whole), documents)]
    for call in failing:
        with pytest.raises(DefinitionError, match=message) as caught:
            call()
        assert "at /x~1y" in str(caught.value)
    with pytest.raises(DefinitionError, match=r"^the documents with the key \(k = 'a'\): at /x~1y"):
        reducer.finish(None, documents)


def test_a_loaded_array_that_is_not_sorted_is_an_error() -> None:
    """Damage: another program wrote to the endpoint, and the items are merged into the wrong ones."""
    schema = annotated("merge", key=["/k"])
    for call in (Reducer.of(schema).finish, lambda loaded, new: spec.full(Annotated(schema), new, loaded)):
        with pytest.raises(DefinitionError, match="not sorted"):
            call([{"k": 2}, {"k": 1}], [[{"k": 3}]])  # type: ignore[arg-type]


def test_the_values_in_a_message_are_short() -> None:
    """Damage: an error of a document of 10 MB fills the log."""
    with pytest.raises(DefinitionError) as caught:
        Reducer.of(annotated("sum")).combine([1, "x" * 10_000_000])  # type: ignore[list-item]
    assert len(str(caught.value)) < 300


def test_a_document_that_is_nested_too_deeply_is_an_error_that_names_it() -> None:
    """Damage: one document ends the process, and again after each restart."""
    deep: Any = 1
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(DefinitionError, match=r"^the documents with the key \(k = 7\): it is nested too deeply"):
        Reducer.of(annotated("merge"), ["/k"]).combine([{"k": 7, "deep": deep}])
    fine: Any = {}
    for _ in range(100):
        fine = {"fine": [fine]}
    assert Reducer.of(annotated("merge")).combine([{"fine": fine}, {}]) == [{"fine": fine}]


def test_what_cannot_be_asked() -> None:
    """Damage: a key without new documents is stored as nothing."""
    with pytest.raises(InvalidUsage, match="no document to reduce"):
        Reducer.of({}).finish({"a": 1}, [])
    assert Reducer.of({}).combine([]) == []
    with pytest.raises(DefinitionError, match="the key 'id' is not a JSON pointer"):
        Reducer.of({}, ["id"])


def test_many_documents_cost_as_much_as_their_sizes() -> None:
    """Damage: a key with many documents is copied at each of them: minutes, where a second would do."""
    schema = annotated("merge") | {"properties": {"log": annotated("append"), "names": SET, "by": KEYED}}
    documents = [{"log": [at], "names": {"add": {str(at): 1}}, "by": [{"k": at, "n": 1}]} for at in range(20_000)]
    (found,) = Reducer.of(schema).combine(documents)
    assert (len(found["log"]), len(found["names"]["add"]), len(found["by"])) == (20_000, 20_000, 20_000)
