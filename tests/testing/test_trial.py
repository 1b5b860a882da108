"""A view is tested without a project: what differs is shown, and a view that is not kept right fails."""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.docs.walk import DOCS, blocks

import strandline.testing
from strandline.algebra.nodes import Filter, Negate, Node, rebuilt
from strandline.algebra.scalar import scalar
from strandline.compute import care
from strandline.compute.rules.rule import Window
from strandline.compute.stage import Stage, delta_plan
from strandline.errors import CollectionError, DefinitionError, InvalidUsage

pytestmark = pytest.mark.spark
COUNTED = "SELECT city, count(*) AS n FROM orders GROUP BY city"
DELFT = {"id": 1, "city": "Delft"}


def test_the_page_s_test_passes_and_fails_as_the_page_shows(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the example that a user copies does not run, or says nothing when the view is wrong."""
    (block,) = blocks((DOCS / "how-to" / "test-views.md").read_text())
    text, view = block.text, strandline.testing.view
    monkeypatch.setattr(strandline.testing, "view", lambda *of, **given: view(*of, **given, spark=spark))
    tests: dict[str, Any] = {}
    exec(compile(text, "test_totals.py", "exec"), tests)
    tests["test_a_city_without_orders_is_left_out"]()
    exec(compile(text.replace('"orders": 2', '"orders": 3'), "test_totals.py", "exec"), tests)
    with pytest.raises(AssertionError) as caught:
        tests["test_a_city_without_orders_is_left_out"]()
    assert f"{caught.value}\n" == block.shown


def test_rows_are_expected_at_each_time_and_changes_are_rows_too(spark: Any) -> None:
    """Damage: a wrong row that a later change takes away is never seen."""
    strandline.testing.view(
        f"CREATE MATERIALIZED VIEW per_city AS {COUNTED}",
        given={"orders": pa.table({"id": [1, 2], "city": ["Delft", "Leiden"]}), "others (a INT)": []},
        changes=[{"orders": [{**DELFT, "__diff": -1}, {"id": 3, "city": "Leiden"}]}, "DELETE FROM orders"],
        expect=[[{"city": "Delft", "n": 1}, {"n": 1, "city": "Leiden"}], [{"city": "Leiden", "n": 2}], []],
        spark=spark,
    )


def test_what_is_wrong_about_a_test_is_said(spark: Any) -> None:
    """Damage: an author looks for a mistake in the view, and it is in the test."""
    given = {"orders": [DELFT]}
    with pytest.raises(
        InvalidUsage, match=re.escape("no rows to tell its columns by: write 'orders (column TYPE, …)'")
    ):
        strandline.testing.view(COUNTED, {"orders": []}, spark=spark)
    with pytest.raises(DefinitionError, match="unknown column town"):
        strandline.testing.view("SELECT town FROM orders", given, spark=spark)
    with pytest.raises(DefinitionError, match="give a query"):
        strandline.testing.view("DROP TABLE orders", given, spark=spark)
    with pytest.raises(AssertionError, match=re.escape("has the columns ['city', 'n'], and `expect` has ['city']")):
        strandline.testing.view(COUNTED, given, expect=[{"city": "Delft"}], spark=spark)
    with pytest.raises(InvalidUsage, match="rows for 2 times, and there are 1"):
        strandline.testing.view(COUNTED, given, expect=[[], []], spark=spark)
    for diff in (0, 0.5):
        with pytest.raises(InvalidUsage, match=f"a change of 'orders' has a __diff of {diff}"):
            strandline.testing.view(COUNTED, given, [{"orders": [DELFT | {"__diff": diff}]}], spark=spark)
    failing = "SELECT 10 DIV id AS n FROM orders"
    with pytest.raises(CollectionError, match=re.escape("after change 1 of 1: ")):
        strandline.testing.view(failing, given, ["INSERT INTO orders VALUES (0, 'Ede')"], spark=spark)


@pytest.mark.parametrize(
    ("column", "held", "expected"),
    [
        ("DECIMAL(10,2)", Decimal("0.12"), 0.1249),
        ("DATE", date(2026, 1, 1), datetime(2026, 1, 1, 5)),  # noqa: DTZ001 - a time without a zone
        ("STRUCT<a: INT>", {"a": 1}, {"a": 1, "z": 4}),
        ("BIGINT", 2, "2"),
        ("BIGINT", 1, True),
        ("BIGINT", 2, 2.5),
    ],
)
def test_an_expected_value_that_the_column_cannot_have_is_refused(
    column: str, held: object, expected: object, spark: Any
) -> None:
    """Damage: what is expected is rounded or cut until it fits, and a wrong view passes."""
    with pytest.raises(InvalidUsage, match="`expect` does not fit column 'x' of 'view'"):
        strandline.testing.view(
            "SELECT x FROM t", {f"t (x {column})": [{"x": held}]}, expect=[{"x": expected}], spark=spark
        )


def test_numbers_are_expected_in_whatever_form_has_their_value(spark: Any) -> None:
    """Damage: an author has to write Decimal("5.00") where 5 is meant; or NaN is no NaN."""
    given = {"t (d DECIMAL(10,2), f DOUBLE, s STRING)": [{"d": 5, "f": float("nan"), "s": None}]}
    sql = "SELECT sum(d) AS d, avg(d) AS a, max(f) AS f, max(s) AS s FROM t"
    for row in (
        {"d": 5, "a": 5, "f": float("nan"), "s": None},
        {"d": Decimal(5), "a": 5.0, "f": float("nan"), "s": None},
    ):
        strandline.testing.view(sql, given, expect=[row], spark=spark)


def test_a_view_that_is_not_kept_right_fails_though_nothing_is_expected(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a test without `expect` passes whatever becomes of the view."""

    def never_taken_back(node: Node) -> Node:
        return Filter(node.input, scalar("false")) if isinstance(node, Negate) else rebuilt(node, never_taken_back)

    def planned(stage: Stage, window: Window) -> Node | None:
        node = delta_plan(stage, window)
        return node if node is None or window.first else never_taken_back(node)

    sql = "SELECT o.id, c.name FROM orders o LEFT JOIN cities c ON o.city = c.city"
    given = {"orders": [DELFT], "cities (city STRING, name STRING)": []}
    changes = ["INSERT INTO cities VALUES ('Delft', 'Princely')"]
    strandline.testing.view(sql, given, changes, spark=spark)
    monkeypatch.setattr(care, "delta_plan", planned)
    with pytest.raises(AssertionError, match="after change 1 of 1 'view' is not what its query gives"):
        strandline.testing.view(sql, given, changes, spark=spark)


def test_contracts_are_found_where_the_public_face_has_them() -> None:
    """Damage: an author's import of a contract fails."""
    from strandline.testing import blob_contract, consensus_contract, driver_contract, reader_contract

    for found, name in (
        (blob_contract, "BlobContract"),
        (consensus_contract, "ConsensusContract"),
        (driver_contract, "DriverContract"),
        (reader_contract, "ReaderContract"),
    ):
        assert hasattr(found, name)
    assert Path(driver_contract.__file__ or "").is_file()
