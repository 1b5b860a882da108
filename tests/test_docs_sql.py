"""The page on the rules of SQL's parts says of each example what `explain` says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from strandline.algebra.schema import Column, Schema
from strandline.compute.explain import explain
from strandline.compute.plan.view import plan_view
from strandline.compute.rules.registry import NAMED
from strandline.compute.stage import LINEAR, split
from strandline.engine.sql.analysis import SparkAnalyst

PAGE: Final = (Path(__file__).resolve().parent.parent / "docs" / "sql.md").read_text()
TABLE: Final = re.compile(r"`(\w+) \(([^`]*)\)`")
ROWS: Final = re.findall(r"^\| (.+?) \| `(.+)` \| (.+) \|$", PAGE, re.MULTILINE)
ROWS_MIN: Final = 15


def tables() -> dict[str, Schema]:
    """Return the tables that the examples read, as the page declares them."""
    found = {}
    for name, declared in TABLE.findall(PAGE.split("| What |")[0]):
        columns = (each.split() for each in declared.split(", "))
        found[name] = Schema(tuple(Column(own, type_.lower()) for own, type_ in columns))
    return found


@pytest.fixture(scope="module")
def analyst(spark: SparkSession) -> SparkAnalyst:
    """Spark, which says what types the examples have."""
    return SparkAnalyst(spark)


@pytest.mark.spark
@pytest.mark.parametrize(("what", "example", "rules"), ROWS, ids=[what for what, _, _ in ROWS])
def test_an_example_has_the_rules_that_the_page_says(
    what: str, example: str, rules: str, analyst: SparkAnalyst
) -> None:
    """Damage: an author trusts that a view is cheap, and it is recomputed at each tick."""
    view = plan_view(example, tables(), analyst)
    told = explain(view, split(view, "v"))
    found = re.findall(r"^  rule    (\w+)", str(told), re.MULTILINE)
    assert ", ".join(dict.fromkeys(found)) == rules
    assert told.incremental is ("recompute" not in found)


def test_the_page_has_every_rule() -> None:
    """Damage: what a rule does, and which SQL it takes, is nowhere said."""
    assert len(ROWS) >= ROWS_MIN
    for name in (*NAMED, LINEAR):
        assert f"- `{name}`: " in PAGE
        assert any(name in rules.split(", ") for _, _, rules in ROWS)
