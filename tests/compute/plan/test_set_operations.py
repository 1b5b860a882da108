"""Set operations over branches of unequal types: each branch has the common type, whatever its shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, Final

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.view import plan_view
from strandline.compute.stage import rehearse, split
from strandline.errors import DefinitionError

pytestmark = pytest.mark.spark

TYPES: Final = {
    "i8": "tinyint",
    "i16": "smallint",
    "i32": "int",
    "i64": "bigint",
    "d8": "decimal(8,2)",
    "d12": "decimal(12,5)",
    "f32": "float",
    "f64": "double",
    "txt": "string",
    "bin": "binary",
    "yes": "boolean",
    "day": "date",
    "at": "timestamp",
    "wall": "timestamp_ntz",
    "took": "interval day to second",
    "age": "interval year to month",
    "list32": "array<int>",
    "list64": "array<bigint>",
    "pair32": "struct<n:int,s:array<float>>",
    "pair64": "struct<n:bigint,s:array<double>>",
}
CATALOG: Final = {
    name: Schema((Column("id", "int"), Column("k", "int"), *(Column(c, t) for c, t in TYPES.items())))
    for name in ("a", "b")
}
OPERATIONS: Final = [f"{word} {how}".strip() for word in ("UNION", "EXCEPT", "INTERSECT") for how in ("", "ALL")]


def _each(columns: Sequence[str], of: str = "{}") -> str:
    return ", ".join(f"{of.format(column)} AS p{n}" for n, column in enumerate(columns))


SHAPES: Final[dict[str, Callable[[Sequence[str], str], str]]] = {
    "plain": lambda columns, table: f"SELECT {_each(columns)} FROM {table}",
    "distinct": lambda columns, table: f"SELECT DISTINCT {_each(columns)} FROM {table}",
    "keys": lambda columns, table: f"SELECT {_each(columns)} FROM {table} GROUP BY ALL",
    "groups": lambda columns, table: f"SELECT {_each(columns, 'max({})')} FROM {table} GROUP BY k",
    "window": lambda columns, table: (
        f"SELECT {_each(columns, 'lag({}) OVER (PARTITION BY k ORDER BY id)')} FROM {table}"
    ),
    "limit": lambda columns, table: f"(SELECT {_each(columns)} FROM {table} ORDER BY id LIMIT 3)",
    "nested": lambda columns, table: f"(SELECT {_each(columns)} FROM {table} UNION SELECT {_each(columns)} FROM a)",
    "values": lambda columns, _: (
        f"SELECT * FROM VALUES ({', '.join(f'CAST(NULL AS {TYPES[column]})' for column in columns)})"
    ),
    "cte": lambda columns, table: f"(WITH n AS (SELECT DISTINCT {_each(columns)} FROM {table}) SELECT * FROM n)",
    "subquery": lambda columns, table: f"SELECT * FROM (SELECT {_each(columns)} FROM {table}) s",
}


def _widened(session: Any) -> list[tuple[str, str]]:
    """Return the pairs of columns of unequal types that Spark's own coercion finds a common type for."""
    jvm = session._jvm
    of = {column: jvm.org.apache.spark.sql.types.DataType.fromDDL(type_) for column, type_ in TYPES.items()}
    common = jvm.org.apache.spark.sql.catalyst.analysis.AnsiTypeCoercion.findWiderTypeForTwo
    return [(one, other) for one, other in combinations(TYPES, 2) if common(of[one], of[other]).isDefined()]


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_branches_of_every_shape_have_the_common_type(rounds: int, laboratory: Any) -> None:
    """Damage: a view that Spark accepts is refused with the name of a column that its author never wrote.

    Every pair of types that Spark widens, in both orders, is dealt to operations and shapes.
    """
    pairs, shapes = _widened(laboratory.session), list(SHAPES.values())
    assert len(pairs) > 40
    steps = len(shapes) * rounds // 2  # so each pair is dealt twice
    for number in range(len(shapes) * rounds):
        turn = number // len(shapes)
        dealt = pairs[number % steps :: steps]
        some, others = [one for one, _ in dealt], [other for _, other in dealt]
        left = shapes[number % len(shapes)]([*some, *others], "a")
        right = shapes[(number + turn + 1) % len(shapes)]([*others, *some], "b")
        sql = f"{left} {OPERATIONS[(number + turn) % len(OPERATIONS)]} {right}"
        view = plan_view(sql, CATALOG, laboratory.analyst)
        assert view.schema == laboratory.analyst.schema_of(sql, CATALOG)
        assert not any("whole" in note for note in view.notes), (sql, view.notes)
        rehearse(split(view, "v"), CATALOG, laboratory.analyst)


WIDENED: Final = [
    "SELECT DISTINCT qty AS v FROM sales UNION SELECT units FROM sales",
    "SELECT units AS v FROM sales EXCEPT ALL SELECT max(qty) FROM sales GROUP BY shop",
    "SELECT rank() OVER (PARTITION BY shop ORDER BY qty) AS v FROM sales INTERSECT SELECT price + 2.33 FROM sales",
    "(SELECT qty AS v FROM sales ORDER BY qty LIMIT 2) UNION ALL (SELECT DISTINCT size FROM shops EXCEPT VALUES (1L))",
    "WITH d AS (SELECT DISTINCT qty AS v FROM sales) SELECT v FROM d UNION ALL SELECT v + 0.5D FROM d UNION VALUES (3)",
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("sql", WIDENED)
def test_widened_branches_have_the_rows_that_spark_gives(sql: str, laboratory: Any) -> None:
    """Damage: a widened value is another value in one branch, so that equal rows differ."""
    history = laboratory.history(4)
    kept, answers = laboratory.maintain(sql, history, [2, 4, 6]), laboratory.answers(sql, history)
    for time, held in kept.items():
        assert laboratory.rounded(held) == laboratory.rounded(answers[time]), f"at {time}"


def test_a_set_operation_by_name_is_read_by_spark_alone(laboratory: Any) -> None:
    """Damage: columns are paired by their place, where the text pairs them by name."""
    with pytest.raises(DefinitionError):
        laboratory.plan("SELECT qty AS v, shop FROM sales UNION ALL BY NAME SELECT shop, units AS v FROM sales")
