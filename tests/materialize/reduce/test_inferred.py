"""The union of inferred schemas: what fits a side fits the union, and brackets do not matter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.materialize.reduce.documents import SCALARS

from strandline.materialize.reduce.annotations import valid
from strandline.materialize.reduce.folding import union
from strandline.materialize.reduce.schemas import NotReducibleError, Part, References

NAMES = st.sampled_from("ab")
LEAF = st.fixed_dictionaries(
    {},
    optional={
        "type": st.lists(
            st.sampled_from(["string", "integer", "number", "null", "object", "array"]), min_size=1, unique=True
        ),
        "maxLength": st.integers(0, 2),
        "minimum": st.integers(-2, 2),
        "multipleOf": st.sampled_from([1, 2]),
        "maxItems": st.integers(0, 2),
        "uniqueItems": st.booleans(),
        "title": st.sampled_from(["", "t"]),
        "not": st.just({"const": 1}),
        "enum": st.lists(SCALARS, min_size=1, max_size=3),
    },
)
SCHEMAS = st.recursive(
    LEAF | st.booleans(),
    lambda one: st.builds(
        lambda leaf, more: {**leaf, **more},
        LEAF,
        st.fixed_dictionaries(
            {},
            optional={
                "items": one,
                "properties": st.dictionaries(NAMES, one, max_size=2),
                "required": st.lists(NAMES, unique=True, max_size=2),
                "additionalProperties": one,
            },
        ),
    ),
    max_leaves=4,
).filter(lambda one: isinstance(one, dict))
INSTANCES = st.recursive(
    st.sampled_from([None, True, -3, 0, 1, 2, 1.5, "", "a", "abc"]),
    lambda one: st.lists(one, max_size=2) | st.dictionaries(NAMES, one, max_size=2),
    max_leaves=4,
)


def fits(schema: dict[str, Any], value: object) -> bool:
    """Tell whether ``value`` fits ``schema``."""
    return valid(Part("", schema), value, References(schema))


@settings(max_examples=500)
@given(SCHEMAS, SCHEMAS, INSTANCES)
def test_what_fits_a_side_fits_the_union(left: Any, right: Any, value: object) -> None:
    """Damage: the schema of a collection refuses documents from which it was inferred."""
    assert fits(union(left, right), value) or not (fits(left, value) or fits(right, value))


@settings(max_examples=500)
@given(SCHEMAS, SCHEMAS, SCHEMAS)
def test_order_and_brackets_do_not_matter(a: Any, b: Any, c: Any) -> None:
    """Damage: the inferred schema changes back and forth without new documents."""
    assert union(a, b) == union(b, a)
    assert union(union(a, b), c) == union(a, union(b, c))
    assert union(union(a, a), a) == union(a, a)


@given(SCHEMAS, INSTANCES)
def test_the_union_with_itself_says_the_same(schema: Any, value: object) -> None:
    """Damage: one document makes a schema looser than it was."""
    assert fits(union(schema, schema), value) == fits(schema, value)


@pytest.mark.parametrize(
    ("side", "why"),
    [
        ("string", "not the object of a JSON Schema"),
        ({"type": "text"}, "'text' is not a type"),
        ({"properties": {"a": {"$ref": "#"}}}, "no references"),
        ({"properties": []}, "`properties` is \\[\\], not an object"),
        ({"enum": 1}, "`enum` is 1, not a list"),
        ({"items": 1}, "1 is not a JSON Schema"),
    ],
)
def test_what_is_no_inferred_schema_is_refused(side: object, why: str) -> None:
    """Damage: a text in the place of a schema is merged away, and with it the schema."""
    for pair in ((side, {}), ({}, side)):
        with pytest.raises(NotReducibleError, match=why):
            union(*pair)
