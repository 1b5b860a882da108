"""Schemas with annotations, and documents of theirs, for property tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from strandline.materialize.reduce.schemas import DELETED, order

Place = tuple[dict[str, Any], st.SearchStrategy[Any]]
"""The schema of a location, and the values that may be there."""

EXACT = st.one_of(st.integers(-5, 5), st.integers(-(2**70), 2**70), st.decimals(-9, 9, places=2))
SCALARS = st.one_of(st.none(), st.booleans(), EXACT, st.sampled_from([0.0, -0.0, 1.5]), st.sampled_from(["", "a", "b"]))
SMALL = st.sampled_from([0, 1, 2])
VALUES = st.recursive(
    SCALARS, lambda one: st.lists(one, max_size=2) | st.dictionaries(st.sampled_from("xy"), one), max_leaves=4
)
COUNTED = {"properties": {"n": {"reduce": {"strategy": "sum"}}}}


def same(left: object, right: object) -> bool:
    """Tell whether two reductions are the same, by value."""
    if left is DELETED or right is DELETED:
        return left is right
    return order(left) == order(right)


def annotated(strategy: str, **more: Any) -> dict[str, Any]:
    """Return a schema with one annotation."""
    return {"reduce": {"strategy": strategy, **more}}


def by(items: st.SearchStrategy[Any], key: Callable[[Any], Any]) -> st.SearchStrategy[list[Any]]:
    """Return arrays that are sorted by ``key``, and have each once."""
    return st.lists(items, max_size=3, unique_by=lambda item: order(key(item))).map(
        lambda found: sorted(found, key=lambda item: order(key(item)))
    )


def set_updates(parts: st.SearchStrategy[Any], names: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return updates of a set."""
    add = st.fixed_dictionaries({}, optional={"add": parts})
    other = st.one_of(
        st.just({}), st.builds(lambda kind, part: {kind: part}, st.sampled_from(["remove", "intersect"]), names)
    )
    return st.builds(lambda left, right: {**left, **right}, add, other)


SCHEMAS = st.one_of(
    st.builds(lambda least, most: {"type": "integer", "minimum": least, "maximum": most}, SMALL, SMALL),
    st.builds(lambda text: {"type": "string", "maxLength": len(text)}, st.text(max_size=3)),
    st.builds(
        lambda each: {"enum": each},
        st.lists(SCALARS.filter(lambda one: not isinstance(one, float)), min_size=1, max_size=2),
    ),
    st.builds(
        lambda names, rest: {
            "type": "object",
            "properties": {name: {"type": "string"} for name in names},
            "required": sorted(names),
            "additionalProperties": rest,
        },
        st.sets(st.sampled_from("abc")),
        st.booleans(),
    ),
    st.builds(
        lambda each: {"type": ["array", "null"], "items": {"type": each}, "title": each},
        st.sampled_from(["string", "number"]),
    ),
)
PAIRS = by(st.tuples(st.sampled_from("abc"), st.integers(-3, 3)).map(list), lambda pair: pair[0])
KEYED = by(st.fixed_dictionaries({"k": SMALL}, optional={"n": EXACT, "o": SCALARS}), lambda item: item["k"])
BY_PLACE = {"items": {"type": "array", "items": [{}, annotated("sum")], **annotated("merge")}}

LEAVES: dict[str, Place] = {
    "sum": (annotated("sum") | {"type": "number"}, EXACT),
    "sum of objects": (annotated("sum"), st.dictionaries(st.sampled_from("ab"), EXACT)),
    "minimize": (annotated("minimize"), VALUES),
    "maximize": (annotated("maximize"), VALUES),
    "maximize by key": (
        annotated("maximize", key=["/k"]) | COUNTED,
        st.fixed_dictionaries({"k": SMALL}, optional={"n": EXACT}),
    ),
    "first": (annotated("firstWriteWins"), VALUES),
    "last": ({}, VALUES),
    "apart": (annotated("lastWriteWins", associative=False), SMALL),
    "append": (annotated("append"), st.lists(SCALARS, max_size=3)),
    "merged map": (
        annotated("merge") | {"additionalProperties": annotated("sum")},
        st.dictionaries(st.sampled_from("abc"), EXACT),
    ),
    "merged by place": (annotated("merge") | {"items": annotated("sum")}, st.lists(EXACT, max_size=3)),
    "merged by key": (annotated("merge", key=["/k"]) | {"items": annotated("merge") | COUNTED}, KEYED),
    "set of names": (
        annotated("set") | {"additionalProperties": {"additionalProperties": annotated("sum")}},
        set_updates(
            st.dictionaries(st.sampled_from("abc"), EXACT, max_size=2),
            st.dictionaries(st.sampled_from("abc"), st.just(0), max_size=2),
        ),
    ),
    "set of items": (annotated("set", key=["/0"]) | {"additionalProperties": BY_PLACE}, set_updates(PAIRS, PAIRS)),
    "set of values": (annotated("set"), set_updates(by(SCALARS, lambda one: one), by(SCALARS, lambda one: one))),
    "schemas": (annotated("jsonSchemaMerge"), SCHEMAS),
    "null deletes, else sum": (
        {"if": {"type": "null"}, "then": annotated("lastWriteWins", delete=True), "else": annotated("sum")},
        st.one_of(st.none(), EXACT),
    ),
    "null deletes, else merged": (
        {
            "if": {"type": "null"},
            "then": annotated("lastWriteWins", delete=True),
            "else": annotated("merge") | COUNTED,
        },
        st.one_of(st.none(), st.fixed_dictionaries({}, optional={"n": EXACT, "o": SCALARS})),
    ),
    "a text or merged": (
        {"if": {"type": "string"}, "then": annotated("lastWriteWins"), "else": annotated("merge")},
        st.one_of(st.just("text"), st.dictionaries(st.sampled_from("ab"), SMALL)),
    ),
}
DELETES = {
    "if": {"properties": {"op": {"const": "d"}}, "required": ["op"]},
    "then": annotated("merge", delete=True),
    "else": annotated("merge"),
}


@st.composite
def places(draw: st.DrawFn, kind: str = "") -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a schema, with leaves whose name begins with ``kind``, and some documents of it."""
    leaves = sorted(name for name in LEAVES if name.startswith(kind))
    names = draw(st.lists(st.sampled_from(leaves), min_size=1, max_size=4, unique=True))
    deletes = draw(st.booleans())
    schema: dict[str, Any] = {"properties": {name: LEAVES[name][0] for name in names}}
    schema |= DELETES if deletes else annotated("merge", associative=draw(st.integers(0, 9)) > 0)
    given: dict[str, st.SearchStrategy[Any]] = {name: LEAVES[name][1] for name in names}
    if deletes:
        given["op"] = st.sampled_from(["d", "u", "i"])
    one = st.fixed_dictionaries({}, optional=given)
    return schema, draw(st.lists(one, min_size=1, max_size=7))
