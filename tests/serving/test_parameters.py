"""A value that a client sends with a statement is never read as SQL."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from strandline.errors import InvalidUsage
from strandline.serving.parameters import bound, count, identifier, literal

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(st.characters(exclude_categories=("Cs",))),
    st.binary(),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, dt.UTC])),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**20), max_value=10**20),
)


@given(st.lists(VALUES, max_size=3))
def test_a_value_is_one_literal_wherever_it_comes_from(values: list[Any]) -> None:
    """Damage: a text from a form ends its literal, and the rest of it runs as SQL."""
    text = "SELECT '?' AS q, `?`" + "".join(", ?" for _ in values) + " FROM t -- ?"
    assert count(text) == len(values)
    (tree,) = sqlglot.parse(bound(text, values), dialect="spark")
    assert isinstance(tree, exp.Select)
    assert len(tree.expressions) == 2 + len(values)
    assert [table.name for table in tree.find_all(exp.Table)] == ["t"]


@pytest.mark.parametrize("text", ["'; DROP TABLE t; --", "\\", "\\'", "a\\'b''c", "\n\t\0", "🙂", "''"])
def test_a_text_means_itself(text: str) -> None:
    """Damage: what a client asks for is not what it compared with."""
    assert sqlglot.parse_one(literal(text), dialect="spark").this == text


def test_a_statement_with_other_parameters_than_it_was_given_is_refused() -> None:
    """Damage: a statement runs with a value in the wrong place."""
    with pytest.raises(InvalidUsage, match="the statement has 2 parameters, and 1 values were given"):
        bound("SELECT ?, ?", [1])
    with pytest.raises(InvalidUsage, match="parameter 1 is a list, which no literal of SQL stands for"):
        bound("SELECT ?", [[1]])
    with pytest.raises(InvalidUsage, match="parameter 1 is a Decimal"):
        bound("SELECT ?", [Decimal("NaN")])


def test_a_name_stays_a_name() -> None:
    """Damage: a column called like a statement runs as one."""
    assert sqlglot.parse_one(f"SELECT {identifier('a`; DROP TABLE t')}", dialect="spark").expressions[0].name == (
        "a`; DROP TABLE t"
    )
