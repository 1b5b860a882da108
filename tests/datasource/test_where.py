"""The option ``where``: its conditions mean what Spark says of them, and skip no row group that has a row of theirs."""

from __future__ import annotations

import random
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from strandline.algebra.schema import Column, Schema
from strandline.datasource.rows import conditions
from strandline.datasource.rows.where import condition
from strandline.engine.frames.ddl import schema_of
from strandline.errors import DefinitionError, InvalidUsage, StrandlineError

ROWS: Final = """
    SELECT id,
           IF(id % 7 = 0, NULL, CAST(id % 5 AS INT)) AS k,
           IF(id % 5 = 0, NULL, array('', 'a', 'b ', 'zoë', '10', '9')[id % 6]) AS `.s`,
           IF(id % 6 = 0, NULL, CAST((id - 10) / 4 AS DECIMAL(10, 2))) AS d,
           array(NULL, double('NaN'), 0.0D, -1.5D, 1e300D, 0.1D, double('Infinity'))[id % 7] AS x,
           array(NULL, float('NaN'), float(0.1), float(16777216), float(-2))[id % 5] AS f,
           array(NULL, true, false)[id % 3] AS b,
           IF(id % 4 = 0, NULL, date_add(DATE'2023-12-30', CAST(id AS INT))) AS `the day`,
           IF(id % 9 = 0, NULL, timestamp_seconds(id * 3600)) AS `t``s`,
           IF(id % 8 = 0, NULL, array(CAST(id AS INT))) AS n
    FROM range(60)
"""
TAKEN: Final[dict[str, tuple[str, ...]]] = {
    "id": ("0", "7", "-1", "59", "9223372036854775807"),
    "k": ("0", "3", "-2147483648"),
    "`.s`": ("''", "'a'", "'b '", "'zoë'", "'9'", "'ZOË'"),
    "d": ("0", "-1.25", "1.5", "99999999.99", "0.10"),
    "x": ("0", "-0.0", "0.1", "1e300", "-1.5", "1e-3"),
    "f": ("0.1", "16777216", "16777217", "-2", "1e300"),
    "b": ("true", "FALSE"),
    "`the day`": ("DATE '2024-01-01'", "'2024-02-01'", "DATE '0001-01-01'"),
    "`T``S`": ("TIMESTAMP '1970-01-01 05:00:00Z'", "TIMESTAMP '1970-01-02 05:00:00+02:00'"),
}
"""Literals that a comparison with each column takes."""
REFUSED: Final = (
    ("k = 1.5", InvalidUsage, "column 'k' is int, and 1.5 is no literal of this type"),
    ("k = 2147483648", InvalidUsage, "is no literal of this type"),
    ("k = '1'", InvalidUsage, "is no literal of this type"),
    ("`.s` = 1", InvalidUsage, "a text in single quotes"),
    (r"`.s` = 'a\nb'", InvalidUsage, "no backslash in it"),
    ('`.s` = "a"', InvalidUsage, "a text in single quotes"),
    ("`.s` = 'a''b'", InvalidUsage, "no quote"),
    ("d = 1.234", InvalidUsage, r"decimal\(10,2\)"),
    ("x = 9007199254740993", InvalidUsage, "column 'x' is double"),
    ("`the day` = DATE '2024-02-30'", InvalidUsage, "DATE '2024-01-31'"),
    ("`t``s` > TIMESTAMP '2024-01-01 00:00:00'", InvalidUsage, "with its zone"),
    ("k = NULL", InvalidUsage, "write k IS NULL"),
    ("k NOT IN (1, NULL)", InvalidUsage, "write k IS NULL"),
    ("k + 1 = 2", InvalidUsage, r"k \+ 1 is no column"),
    ("k = d", InvalidUsage, "is no literal"),
    ("k", InvalidUsage, "column 'k' is int and no condition"),
    ("n[0] = 1", InvalidUsage, "is no column"),
    ("n = 1", InvalidUsage, "is an array"),
    ("length(`.s`) > 1", InvalidUsage, "is no column"),
    ("k IN (SELECT 1)", InvalidUsage, "is not understood"),
    ("k = 1; k = 2", InvalidUsage, "is not understood"),
    ("TRUE", InvalidUsage, "is not understood"),
    ("", InvalidUsage, "cannot be read as a condition"),
    ("k = = 1", InvalidUsage, "cannot be read as a condition"),
    (f"{'(' * 5000}k = 1{')' * 5000}", InvalidUsage, "cannot be read as a condition"),
    ("q = 1", DefinitionError, "there is no column q; there are id, k"),
    ("t.k = 1", DefinitionError, "there is no column t.k"),
)


def drawn(chance: random.Random, depth: int = 3) -> str:
    """Return a condition by chance."""
    if depth and chance.random() < 0.6:
        one, other = drawn(chance, depth - 1), drawn(chance, depth - 1)
        return chance.choice([f"({one} AND {other})", f"({one} OR {other})", f"NOT {one}", f"NOT ({one} OR {other})"])
    if chance.random() < 0.1:
        return chance.choice(["b", "NOT b", "n IS NULL", "n IS NOT NULL"])
    column, taken = chance.choice(list(TAKEN.items()))
    one, other = chance.choice(taken), chance.choice(taken)
    return chance.choice(
        [
            *(f"{column} {how} {one}" for how in ("=", "<>", "!=", "<", "<=", ">", ">=", "<=>")),
            f"{one} {chance.choice(['<', '>=', '=='])} {column}",
            *(f"{column} {how} ({one}, {other})" for how in ("IN", "NOT IN")),
            *(f"({column} {how} {one} AND {other})" for how in ("BETWEEN", "NOT BETWEEN")),
            *(f"{column} {how} NULL" for how in ("IS", "IS NOT")),
        ]
    )


@pytest.mark.spark
def test_a_condition_is_true_for_the_rows_that_spark_finds_by_it(spark: SparkSession) -> None:
    """Damage: a frame lacks rows that its user asked for, or has others; or a row group is skipped that has some."""
    chance = random.Random()
    seed = chance.randrange(2**32)
    chance.seed(seed)
    frame = spark.sql(ROWS)
    rows = frame.toArrow()
    rows = rows.set_column(8, rows.field(8), rows["t`s"].cast(pa.timestamp("us", "UTC")))
    schema = Schema(tuple(schema_of(frame.schema)))
    sink = pa.BufferOutputStream()
    pq.write_table(rows.sort_by("id"), sink, row_group_size=7)
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    texts = [drawn(chance) for _ in range(150)]
    said = frame.selectExpr("id", *(f"({text}) AS c{place}" for place, text in enumerate(texts))).collect()
    skipped = 0
    for place, text in enumerate(texts):
        found = condition(text, schema)
        wanted = {row.id for row in said if row[f"c{place}"]}
        assert set(conditions.meeting(rows, found)["id"].to_pylist()) == wanted, (seed, text)
        read = [group for group in range(file.num_row_groups) if conditions.may_be_in(file.metadata, group, found)]
        skipped += file.num_row_groups - len(read)
        kept = conditions.meeting(file.read_row_groups(read), found)
        assert set(kept["id"].to_pylist()) == wanted, (seed, text)
    assert skipped, "no row group was ever skipped"


@pytest.mark.parametrize(("text", "kind", "sentence"), REFUSED)
def test_what_is_no_such_condition_is_refused_by_name(text: str, kind: type[StrandlineError], sentence: str) -> None:
    """Damage: a condition is taken for another one, or its user is shown the parser's own error."""
    kinds = (
        "bigint",
        "int",
        "string",
        "decimal(10,2)",
        "double",
        "float",
        "boolean",
        "date",
        "timestamp",
        "array<int>",
    )
    names = ("id", "k", ".s", "d", "x", "f", "b", "the day", "t`s", "n")
    with pytest.raises(kind, match=sentence) as refused:
        condition(text, Schema(tuple(map(Column, names, kinds))))
    assert type(refused.value) is kind


def test_the_statistics_of_a_field_are_not_those_of_a_column_with_its_path() -> None:
    """Damage: a condition on the column ``a.b`` skips rows by what the field ``b`` of the column ``a`` holds."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [{"b": 1}], "a.b": [9]}), sink)
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    found = conditions.range_of(file.metadata, 0, "a.b")
    assert found is not None
    assert (found.least, found.greatest) == (9, 9)
    assert conditions.range_of(file.metadata, 0, "a") is None
