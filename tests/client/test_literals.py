"""INSERT of literals without Spark stores what Spark would have stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

import strandline
from strandline.algebra.notation import Excerpt
from strandline.algebra.schema import Column
from strandline.client import Environment
from strandline.controller.language import literals
from strandline.errors import Position

pytestmark = pytest.mark.spark

AT: Final = Position(1, 1)

CELLS: Final = {
    "tinyint": ["0", "-128", "127", "-0", "NULL", "007"],
    "int": ["2147483647", "-2147483648", "NULL"],
    "bigint": ["9223372036854775807", "-9223372036854775807", "1"],
    "decimal(10,2)": ["1", "-1.5", "99999999.99", "0.00", "NULL", "007.10"],
    "decimal(38,18)": ["0.000000000000000001", "999999999999999999", "0", "-123456789012345678.9"],
    "double": ["0", "-3", "9007199254740992", "CAST('1.1' AS DOUBLE)", "CAST('-4.9e-324' AS DOUBLE)", "NULL"],
    "string": ["'a b'", "'-- no comment'", "'; ?'", "NULL", "'🙂 é'", "'NULL'", "'1'"],
    "boolean": ["TRUE", "false", "NULL"],
    "date": ["DATE '2024-02-29'", "DATE '0001-01-01'", "DATE '9999-12-31'", "NULL"],
    "timestamp": ["TIMESTAMP '2024-02-29 23:59:59.999999'", "TIMESTAMP '1582-10-05 00:00:00'", "NULL"],
}
COLUMNS: Final = tuple(Column(f"c{place}", kind) for place, kind in enumerate(CELLS))
OTHERS: Final = (
    ("VALUES ('1')", "int"),
    ("VALUES (1)", "string"),
    ("VALUES (1.5)", "double"),
    ("VALUES (1.005)", "decimal(10,2)"),
    ("VALUES (0.0000000000000000001)", "decimal(38,38)"),
    ("VALUES ('a\\tb')", "string"),
    ("VALUES ('a''b')", "string"),
    ("VALUES (DATE '2024-02-30')", "date"),
    ("VALUES (TIMESTAMP '2024-02-29 10:00')", "timestamp"),
    ("VALUES (1) AS t(c)", "int"),
    ("VALUES (1) LIMIT 0", "int"),
    ("VALUES (1, 2)", "int"),
    ("VALUES (current_date())", "date"),
    ("SELECT 1", "int"),
    ("VALUES (X'00')", "binary"),
)
"""What is left to Spark, with the type of the column."""


def texts() -> Iterator[str]:
    """Yield VALUES of random cells."""
    draw = Random(7)
    for _ in range(6):
        rows = (", ".join(draw.choice(cells) for cells in CELLS.values()) for _ in range(20))
        yield f"VALUES {', '.join(f'({row})' for row in rows)}"


@pytest.fixture
def env(spark: Any, tmp_path: Path) -> Iterator[Environment]:
    """An environment with two tables of one schema."""
    with strandline.open(f"file://{tmp_path}", spark=spark) as opened:
        declared = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)
        for name in ("ours", "sparks"):
            opened.execute(f"CREATE TABLE {name} ({declared})")
        yield opened


def test_literals_are_stored_as_spark_would_have_stored_them(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an INSERT stores another value than the same INSERT did before."""
    for text in texts():
        assert literals.rows(Excerpt(text, AT), COLUMNS) is not None
        env.execute(f"INSERT INTO ours {text}")
        with monkeypatch.context() as patch:
            patch.setattr(literals, "rows", lambda *_: None)
            env.execute(f"INSERT INTO sparks {text}")
    differ = "(SELECT * FROM {} EXCEPT ALL SELECT * FROM {})"
    query = f"SELECT * FROM {differ.format('ours', 'sparks')} UNION ALL {differ.format('sparks', 'ours')}"
    assert env.answer(query)[0].to_pylist() == []
    assert env.answer("SELECT count(*) AS n FROM ours")[0].to_pylist() == [{"n": 120}]


@pytest.mark.parametrize(("text", "kind"), OTHERS)
def test_what_needs_a_judge_is_left_to_spark(text: str, kind: str) -> None:
    """Damage: a value that Spark refuses, or reads otherwise, is stored."""
    assert literals.rows(Excerpt(text, AT), [Column("c", kind)]) is None
