"""The laws of reductions: brackets do not matter, and `Reducer` agrees with `spec`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.materialize.reduce.documents import LEAVES, annotated, places, same

from strandline.materialize.reduce import spec
from strandline.materialize.reduce.folding import Reducer
from strandline.materialize.reduce.locations import Annotated
from strandline.materialize.reduce.schemas import MISSING

SUM = annotated("merge") | {"properties": {"n": annotated("sum")}}


def test_the_example_of_the_protocol() -> None:
    """Damage: the endpoint's sum, or that of the consumer of a topic, is not the collection's."""
    reducer = Reducer.of(SUM)

    def documents(*numbers: int) -> list[dict[str, Any]]:
        return [{"n": each} for each in numbers]

    first = reducer.combine(documents(-1, 3, 2))
    assert first == documents(4)
    assert reducer.finish(None, first) == {"n": 4}
    second = reducer.combine(documents(6, -7, -1))
    assert second == documents(-2)
    assert reducer.finish({"n": 4}, second) == {"n": 2}
    assert reducer.finish(None, [*first, *second]) == {"n": 2}


def bracketed(reducer: Reducer, documents: list[Any], draw: st.DrawFn) -> list[Any]:
    """Return ``documents`` combined in brackets that hypothesis chooses."""
    if len(documents) < 2 or draw(st.booleans()):
        return reducer.combine(documents)
    cut = draw(st.integers(1, len(documents) - 1))
    both = [*bracketed(reducer, documents[:cut], draw), *bracketed(reducer, documents[cut:], draw)]
    return reducer.combine(both) if draw(st.booleans()) else both


@settings(max_examples=400)
@given(places(), st.data())
def test_brackets_do_not_matter(given_: tuple[dict[str, Any], list[Any]], data: st.DataObject) -> None:
    """Damage: what a key's row says depends on how its documents were dealt to Spark's tasks and to transactions."""
    schema, documents = given_
    reducer, checked = Reducer.of(schema), Annotated(schema)
    cut = data.draw(st.integers(0, len(documents) - 1))
    loaded = spec.full(checked, documents[:cut]) if cut else MISSING
    truth = spec.full(checked, documents)
    known = loaded if isinstance(loaded, dict) else None
    combined = bracketed(reducer, documents[cut:], data.draw)
    assert same(reducer.finish(known, combined), truth)


@settings(max_examples=200)
@given(places())
def test_the_reducer_does_what_the_model_does(given_: tuple[dict[str, Any], list[Any]]) -> None:
    """Damage: a fold in place is faster than the model, and wrong; or it changes the caller's documents."""
    schema, documents = given_
    before = copy.deepcopy(documents)
    reducer, checked = Reducer.of(schema), Annotated(schema)
    assert same(reducer.combine(documents), spec.associative(checked, documents))
    assert same(reducer.finish(None, documents), spec.full(checked, documents))
    loaded = spec.full(checked, documents[:1])
    if isinstance(loaded, dict) and documents[1:]:
        kept = copy.deepcopy(loaded)
        assert same(reducer.finish(loaded, documents[1:]), spec.full(checked, documents[1:], loaded))
        assert same(loaded, kept)
    assert same(documents, before)


@pytest.mark.parametrize("name", LEAVES)
def test_every_strategy_is_tried(name: str) -> None:
    """Damage: the laws above hold of a schema that is refused, or that does nothing."""
    schema = annotated("merge") | {"properties": {"x": LEAVES[name][0]}}
    assert name == "last" or Annotated(schema).annotations[1:]
