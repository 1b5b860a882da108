"""A value that a client sends with a statement stays a value, beside the text."""

from __future__ import annotations

import pyarrow as pa
import pytest
import sqlglot

from strandline.controller.language import statements
from strandline.errors import InvalidUsage
from strandline.serving.parameters import bound, count, identifier

ONE, TWO, THREE = (pa.scalar(n) for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("SELECT '?' AS q, \"?\", `?`, ? FROM t -- ?", 1),
        ("SELECT ?::INT, ?AS x, 5 -?, a<?, ?=?", 6),
        ("SELECT /* ? */ r'?' , ? [?]", 2),
        ("INSERT INTO t VALUES (?, ?), (1, ?)", 3),
    ],
)
def test_a_question_mark_is_a_parameter_where_spark_has_one(text: str, marks: int) -> None:
    """Damage: a value is refused as one too many, or goes to the place of another."""
    assert count(text) == marks


def test_each_part_of_a_statement_has_its_own_values() -> None:
    """Damage: an UPDATE sets a column to what its condition was to compare with."""
    text = "UPDATE t SET a = ?, b = b + ? WHERE c = ?"
    statement = statements.parse(text)
    found = bound(statement, 3, [ONE, TWO, THREE])
    assert isinstance(found, statements.Update)
    assert [each.value.given for each in found.assignments] == [(ONE,), (TWO,)]
    assert found.where is not None
    assert (found.where.text, found.where.given) == ("c = ?", (THREE,))
    query = bound(statements.parse("INSERT INTO t (a) SELECT ? FROM u"), 1, [ONE])
    assert isinstance(query, statements.Insert)
    assert query.query.given == (ONE,)


def test_a_statement_with_other_parameters_than_it_was_given_is_refused() -> None:
    """Damage: a statement runs with a value in the wrong place."""
    with pytest.raises(InvalidUsage, match="the statement has 2 parameters, and 1 values were given"):
        bound(statements.parse("SELECT ?, ?"), 2, [ONE])
    with pytest.raises(InvalidUsage, match="no other statement has"):
        bound(statements.parse("CREATE MATERIALIZED VIEW v AS SELECT ? AS a"), 1, [ONE])


def test_a_name_stays_a_name() -> None:
    """Damage: a column called like a statement runs as one."""
    assert sqlglot.parse_one(f"SELECT {identifier('a`; DROP TABLE t')}", dialect="spark").expressions[0].name == (
        "a`; DROP TABLE t"
    )
