"""What docs/reductions.md shows is what reductions do."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.materialize.reduce.documents import annotated, same

from strandline.materialize.reduce import rows, schemas
from strandline.materialize.reduce.annotations import DELETING, KEYED, Strategy
from strandline.materialize.reduce.folding import Reducer
from strandline.materialize.reduce.locations import Annotated
from strandline.materialize.reduce.rows import Rows
from strandline.materialize.reduce.schemas import DELETED, add, order

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "reductions.md").read_text()
EXAMPLES = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
SUMS = re.findall(r"^\| `(.+?)` \| `(.+?)` \| `(.+?)` \| [^|`]+ \|$", PAGE, re.MULTILINE)
NULLS = re.findall(r"^\| (`(?:\d|NULL)`(?:, `(?:\d|NULL)`)+) \| `(\{.*?\})` \| `(.+?)` \|$", PAGE, re.MULTILINE)
STRATEGIES = [
    (re.findall(r"`(\w+)`", cells[1]), cells[3].strip())
    for cells in (line.split("|") for line in PAGE[PAGE.index("## Strategies") : PAGE.index("### ")].splitlines())
    if len(cells) > 4 and "`" in cells[1]
]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_is_reduced_as_it_says(example: dict[str, Any]) -> None:
    """Damage: a user copies a schema, and the endpoint holds other numbers than the page promised."""
    assert example.keys() <= {"schema", "loaded", "documents", "combined", "stored"}
    reducer = Reducer.of(example["schema"])
    combined = reducer.combine(example["documents"])
    stored = DELETED if example["stored"] == "deleted" else example["stored"]
    assert same(combined, example["combined"])
    assert same(reducer.finish(example.get("loaded"), combined), stored)
    assert same(reducer.finish(example.get("loaded"), example["documents"]), stored)


def test_every_strategy_has_an_example() -> None:
    """Damage: a strategy is nowhere shown, or the tests above find nothing to try."""
    shown = {found.strategy for example in EXAMPLES for found in Annotated(example["schema"]).annotations}
    assert shown == set(Strategy)
    assert len(EXAMPLES) >= 16


def test_the_table_has_every_strategy() -> None:
    """Damage: an author gives a key to a strategy that the page allows it for, and is refused."""
    assert {name: keyed != "" for names, keyed in STRATEGIES for name in names} == {
        each.value: each in KEYED for each in Strategy
    }
    (deleting,) = re.findall(r'`"delete": true`, with `(\w+)` or `(\w+)`', PAGE)
    assert set(deleting) == {each.value for each in DELETING}


@pytest.mark.parametrize(("left", "right", "total"), SUMS)
def test_a_sum_is_as_the_table_says(left: str, right: str, total: str) -> None:
    """Damage: a sum is rounded where the page calls it exact."""
    numbers = {"Decimal": Decimal, "float": float}
    one, two, three = (eval(text, {"__builtins__": {}}, numbers) for text in (left, right, total))
    found = add(one, two)
    assert type(found) is type(three)
    assert order(found) == order(three)


@pytest.mark.parametrize(("given", "schema", "result"), NULLS)
def test_null_is_what_the_table_says(given: str, schema: str, result: str) -> None:
    """Damage: a NULL overwrites a value that it should leave, or leaves one that it should overwrite."""
    numbers = [None if each == "NULL" else int(each) for each in re.findall(r"\d|NULL", given)]
    table = pa.table({"k": [0] * len(numbers), "x": pa.array(numbers, pa.int64())})
    whole = annotated("merge") | {"properties": {"x": json.loads(schema)}}
    flat = Rows(whole, ["k"], table.schema)
    apart = Rows(whole | {"reduce": {"strategy": "merge", "associative": False}}, ["k"], table.schema)
    assert (flat.flat, apart.flat) == (True, False)
    wanted = None if result == "NULL" else int(result)
    assert flat.combine(table)["x"].to_pylist() == [wanted]
    assert apart.finish(None, table)["x"].to_pylist() == [wanted]


def test_the_page_shows_tables() -> None:
    """Damage: the tests above find nothing to try, and pass."""
    assert (len(SUMS), len(NULLS), len(STRATEGIES)) == (6, 8, 8)


def test_the_limits_are_those_of_the_code() -> None:
    """Damage: an operator relies on a limit that is another one."""
    assert f"{schemas.DIGITS_MAX:,} digits" in PAGE
    assert f"more than {rows.OPEN_ROWS_MAX:,} rows of one key" in PAGE
