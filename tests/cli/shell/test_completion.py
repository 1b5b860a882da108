"""What Tab offers fits where the cursor stands."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from strandline.cli.shell import commands
from strandline.cli.shell.completion import Names, candidates

ITEMS = {
    "orders": "table",
    "customers": "table",
    "a b": "view",
    "totals": "view",
    "clicks": "source",
    "push": "materialization",
    "by_id": "index",
}
COLUMNS = {
    "orders": (("id", "int"), ("amount", "double"), ("customer", "int")),
    "customers": (("id", "int"), ("city", "string"), ("order by", "string")),
    "totals": (("total", "double"),),
}


class Known:
    """What there is."""

    def items(self) -> Sequence[tuple[str, str]]:
        """Every item."""
        return list(ITEMS.items())

    def columns(self, name: str) -> Sequence[tuple[str, str]]:
        """Those of a collection."""
        return COLUMNS.get(name.lower(), ())


def offered(text: str) -> list[str]:
    """What is offered where ``|`` stands."""
    before, _, after = text.partition("|")
    return [each.text for each in candidates(before + after, len(before), Known(), commands.NAMES)]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("|", ["SELECT", "WITH"]),
        ("sel|", ["select"]),
        ("SELECT 1; ins|", ["insert into"]),
        ("SELECT * FROM o|", ["orders"]),
        ("SELECT * FROM orders JOIN cust|", ["customers"]),
        ("SELECT * FROM a|", ["`a b`"]),
        ("INSERT INTO |", ["orders", "customers"]),
        ("UPDATE cu|", ["customers"]),
        ("SELECT am| FROM orders", ["amount"]),
        ("SELECT c| FROM orders", ["customer", "customers", "clicks", "cross join", "case"]),
        ("SELECT o.| FROM orders AS o", ["id", "amount", "customer"]),
        ("SELECT * FROM orders o JOIN customers c ON o.customer = c.i|", ["id"]),
        ("SELECT customers.ord| FROM customers", ["`order by`"]),
        ("SELECT tot|", ["total", "totals"]),
        ("SELECT `a|", ["a b`", "amount`"]),
        ("SHOW c|", ["collections", "connections", "columns from", "create"]),
        ("SHOW COLUMNS FROM t|", ["totals"]),
        ("SHOW CREATE p|", ["push"]),
        ("CREATE MAT|", ["MATERIALIZED VIEW", "MATERIALIZATION"]),
        ("DROP MATERIALIZED VIEW |", ["`a b`", "totals"]),
        ("DROP INDEX |", ["by_id"]),
        ("EXPLAIN to|", ["totals"]),
        ("SUBSCRIBE cl|", ["clicks"]),
        ("DESC or|", ["orders"]),
        (r"\d|", [r"\d", r"\dt"]),
        (r"\d tot|", ["totals"]),
        (r"\wa|", [r"\watch"]),
    ],
)
def test_what_fits_is_offered_first(text: str, first: list[str]) -> None:
    """Damage: Tab offers what cannot stand there, and a person types it all."""
    assert offered(text)[: len(first)] == first


@pytest.mark.parametrize("text", ["SELECT 'sel|", "SELECT 1 -- sel|", "-- sel|", "/* sel|", 'SELECT "sel|'])
def test_nothing_is_offered_in_a_text_or_a_comment(text: str) -> None:
    """Damage: Tab changes a value."""
    assert offered(text) == []


def test_columns_of_another_statement_are_not_offered() -> None:
    """Damage: a column is offered that the statement cannot have."""
    assert "city" not in offered("SELECT city FROM customers; SELECT c| FROM orders; SELECT city FROM customers")


def test_names_are_asked_for_once_until_something_is_defined() -> None:
    """Damage: each key asks the process that writes; or a new table is not offered."""
    asked: list[str] = []

    def ask(text: str) -> list[tuple[str, str]]:
        asked.append(text)
        return {"SHOW COLLECTIONS": [("T x", "table")], "SHOW COLUMNS FROM `T x`": [("a", "int")]}.get(text, [])

    names = Names(ask)
    assert [names.items(), names.items()] == [[("T x", "table")]] * 2
    assert [names.columns("T x"), names.columns("T x"), names.columns("u")] == [[("a", "int")], [("a", "int")], []]
    assert asked.count("SHOW COLLECTIONS") == asked.count("SHOW COLUMNS FROM `T x`") == 1
    names.forget()
    names.items()
    assert asked.count("SHOW COLLECTIONS") == 2
