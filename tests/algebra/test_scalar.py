"""The text of a composed tree parses back to that tree: no operand changes its meaning in the text around it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from random_views import TABLES, TYPES, Relation, View
from sqlglot import exp

from strandline.algebra.nodes import Filter, Get
from strandline.algebra.scalar import (
    Scalar,
    binary,
    call,
    case,
    cast,
    column,
    columns,
    conjunction,
    is_null,
    number,
    operand,
    scalar,
)

SCOPE = [Relation(f"t{n}", table.columns) for n, table in enumerate(TABLES)]

WAYS: dict[str, Callable[[exp.Expr, exp.Expr], exp.Expr]] = {
    "is null": lambda a, _: is_null(a),
    "is not null": lambda a, _: exp.Not(this=is_null(a)),
    "conjunction": lambda a, b: conjunction([a, b, a]),
    "product": lambda a, b: binary(exp.Mul, a, b),
    "difference": lambda a, b: binary(exp.Sub, a, binary(exp.Sub, b, number(-1))),
    "comparison": lambda a, b: binary(exp.GT, a, b),
    "case": lambda a, b: case(a, b, is_null(a)),
    "call": lambda a, b: call("coalesce", a, b),
    "cast": lambda a, b: cast(binary(exp.Add, a, b), "int"),
    "negation": lambda a, _: exp.Not(this=operand(a)),
}


def _shape(value: Any) -> Any:
    """Return a tree as plain data: what each node is and what it holds."""
    if isinstance(value, exp.DataType | exp.Var):
        return value.name.lower() or value.sql("spark").lower()
    if isinstance(value, exp.Anonymous):
        return value.name.lower(), [_shape(each) for each in value.expressions]
    if isinstance(value, exp.Expr):
        kind = exp.Cast if isinstance(value, exp.Cast) else type(value)
        held = {key: _shape(each) for key, each in value.args.items() if each not in (None, [], False)}
        return kind.__name__, sorted(held.items())
    return [_shape(each) for each in value] if isinstance(value, list) else str(value)


@pytest.mark.parametrize("way", WAYS)
def test_an_operand_stays_whole_whatever_it_is(way: str) -> None:
    """Damage: `count(m OR n)` counts other rows, because `m OR n IS NULL` is not `(m OR n) IS NULL`."""
    for seed in range(120):
        view = View(random.Random(seed))
        a, b = (scalar(view.expression(view.chance.choice(TYPES), SCOPE, 3)).tree for _ in range(2))
        composed = WAYS[way](a, b)
        assert _shape(scalar(Scalar(composed).sql).tree) == _shape(composed), Scalar(composed).sql


def test_composing_leaves_the_parts_as_they_were() -> None:
    """Damage: a tree that two nodes of a plan share changes under one of them."""
    shared = scalar("a OR b")
    before = shared.sql
    for way in WAYS.values():
        way(shared.tree, shared.tree)
    assert Scalar(shared.tree).sql == before


def test_a_plan_is_a_value() -> None:
    """Damage: equal subplans are kept twice, and a fingerprint shows a change of a view that did not change."""
    one, two = (Filter(Get("t", (("a", "a"),)), scalar(sql)) for sql in ("`a`>1", "`a` > 1"))
    assert one == two
    assert hash(one) == hash(two)
    assert repr(one) == repr(two)
    assert one != Filter(one.input, scalar("`a` > 2"))


def test_the_columns_of_an_expression_are_those_of_its_tree() -> None:
    """Damage: a condition moves below the projection of its columns, or a string counts as a column."""
    assert scalar("`a b` = upper(`c``d`) AND '`e`' = 'x'").columns == {"a b", "c`d"}
    assert scalar("transform(r, x -> x + y)").columns == {"r", "y"}
    assert dict(columns(("a",)))["a"].column == "a"
    assert scalar("a + 1").column is None
    assert Scalar(column("a`b")).sql == "`a``b`"


def test_a_number_is_a_literal_of_its_value() -> None:
    """Damage: `a - -1` begins a comment."""
    assert Scalar(binary(exp.Sub, column("a"), number(-1))).sql == "`a` - (-1)"
