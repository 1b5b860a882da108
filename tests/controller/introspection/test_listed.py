"""What SHOW answers is what the catalog has, and SHOW CREATE is a statement that makes the same item again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from strandline.controller.introspection.definition import definition
from strandline.controller.introspection.listed import listed
from strandline.controller.language import statements
from strandline.controller.language.altering import AddColumns
from strandline.controller.language.showing import LISTS, Show, Shown
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import (
    SUBSCRIBED,
    BoundTable,
    Connection,
    IndexItem,
    InstanceItem,
    Item,
    Materialization,
    SharedSource,
    Source,
    SourceTable,
    Table,
    View,
)
from strandline.errors import DefinitionError, Position
from strandline.frontier import Every, Refresh

HOURLY = Refresh((Every(3_600_000, 0),), (5_000,), at_creation=True)
OPTIONS = {"connection": "pg", "path": "it's \\ here", "password": "env:SECRET"}
ITEMS: list[Item] = [
    Connection("pg", "postgres", {"host": "db", "password": "file:/run/secrets/pg"}),
    InstanceItem("wide", {"a": "localhost:1", "b b": "localhost:2"}),
    Table("Orders", (("id", "int"), ("placed at", "timestamp"), ("date", "date")), "s1", "1 hour"),
    Source("visits", (("who", "struct<a:int,`b c`:string>"),), "s2", "files", OPTIONS, "s3", "s4", "2 days", "wide"),
    SharedSource("Bank", "postgres", {"connection": "PG"}, "s5", "s6", "wide"),
    SourceTable("accounts", (("id", "bigint"),), "s7", "bank", "public.accounts", {"on_error": "continue"}, "1 day"),
    View("sales", (("id", "int"),), "s8", "SELECT id\n-- ';'\nFROM Orders", ("orders",), {}, {}, refresh=HOURLY),
    View("v", (("id", "int"),), "s9", "SELECT 1 AS id", (), {}, {}, keep_history="1 day", instance="wide"),
    Materialization(
        "push", "duckdb", {"path": "/d"}, (BoundTable("sales", "t", ("id",)), BoundTable("v", "u v", ())), "m"
    ),
    IndexItem("by_id", "orders", ("id", "placed at"), "wide"),
]
CATALOG = Catalog(items={item.name.lower(): item for item in ITEMS})


def rows(what: Shown, name: str = "") -> list[tuple[Any, ...]]:
    """What a statement answers."""
    return [tuple(row.values()) for row in listed(Show(what, name, at=Position(1, 2)), CATALOG).to_pylist()]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_the_statement_that_is_shown_makes_the_item_again(item: Item) -> None:
    """Damage: a person copies a definition to another place, and something else is made there."""
    made = statements.parse(definition(item))
    match item, made:
        case (Table(), statements.CreateTable()) | (SourceTable(), statements.CreateSourceTable()):
            assert made.keep_history == item.keep_history
        case Source(), statements.CreateSource():
            assert (made.connector, made.options, made.instance) == (item.connector, item.options, item.instance)
            assert made.keep_history == item.keep_history
        case SharedSource(), statements.CreateSource(columns=""):
            assert (made.connector, made.options, made.instance) == (item.connector, item.options, item.instance)
        case View(), statements.CreateView():
            assert (made.query.strip(), made.keep_history, made.instance) == (
                item.sql,
                item.keep_history,
                item.instance,
            )
            assert made.refresh == (None if item.refresh is None else item.refresh.clause)
        case Materialization(), statements.CreateMaterialization():
            assert (made.endpoint, made.options) == (item.endpoint, item.options)
            found = [(bound.collection, bound.table, bound.key) for bound in made.bindings]
            assert found == [(bound.collection, bound.table, bound.key) for bound in item.bindings]
        case IndexItem(), statements.CreateIndex():
            assert (made.collection, made.columns, made.instance) == (item.collection, item.key, item.instance)
        case Connection(), statements.CreateConnection():
            assert (made.system, made.options) == (item.system, item.options)
        case InstanceItem(), statements.CreateInstance():
            assert made.replicas == item.replicas or dict(made.replicas) == item.replicas
        case _:
            pytest.fail(f"{definition(item)} is a {type(made).__name__}")
    if isinstance(made, statements.CreateSourceTable):
        assert isinstance(item, SourceTable)
        assert (made.source, made.reference, made.options) == (item.source, item.reference, item.options)
    assert made.name == item.name


@pytest.mark.parametrize(
    "made", [item for item in ITEMS if isinstance(item, Source | SourceTable)], ids=lambda i: i.name
)
def test_columns_that_a_source_has_got_are_added_to_it_again(made: Item) -> None:
    """Damage: the source is made again with all its columns, and each older file of it is undecodable."""
    assert isinstance(made, Source | SourceTable)
    item = replace(made, columns=(*made.columns, ("paid", "boolean"), ("a day", "date")), grown=2)
    created, added = map(statements.parse, statements.split(definition(item)))
    assert created == statements.parse(definition(made))
    assert isinstance(added, AddColumns)
    assert (added.name, added.columns) == (item.name, "paid boolean, `a day` date")


def test_each_list_has_the_items_of_its_kind() -> None:
    """Damage: an item exists, and no statement says so."""
    assert {what: [row[0] for row in rows(what)] for what in LISTS} == {
        Shown.TABLES: ["accounts", "Orders"],
        Shown.SOURCES: ["Bank", "visits"],
        Shown.VIEWS: ["sales", "v"],
        Shown.MATERIALIZATIONS: ["push"],
        Shown.INDEXES: ["by_id"],
        Shown.COLLECTIONS: ["accounts", "Orders", "sales", "v", "visits"],
        Shown.CONNECTIONS: ["pg"],
        Shown.INSTANCES: ["wide"],
    }


def test_a_list_names_others_as_their_authors_wrote_them() -> None:
    """Damage: a name in one list is not found in another."""
    assert rows(Shown.TABLES)[0] == ("accounts", "Bank", "1 day")
    assert rows(Shown.SOURCES)[0] == ("Bank", "postgres", "pg", "accounts", "wide")
    assert rows(Shown.VIEWS)[0][1] == "Orders"
    assert rows(Shown.INDEXES) == [("by_id", "Orders", "id, `placed at`", "wide")]
    found = rows(Shown.COLUMNS, "ORDERS")
    assert found == [("id", "int", None), ("placed at", "timestamp", None), ("date", "date", None)]


def test_the_view_of_a_subscription_is_not_listed() -> None:
    """Damage: a person sees views that Strandline defined, and drops them."""
    catalog = CATALOG.with_item(View(f"{SUBSCRIBED}q1", (), "s", "SELECT 1", (), {}, {}))
    assert listed(Show(Shown.VIEWS), catalog).num_rows == 2


@pytest.mark.parametrize(
    ("what", "name", "message"),
    [
        (Shown.COLUMNS, "order", "there is no collection 'order'; did you mean 'orders'"),
        (Shown.COLUMNS, "by_id", "'by_id' is an index, which has no columns; SHOW CREATE by_id shows what it is"),
        (Shown.CREATE, "sale", "there is no item 'sale'; did you mean 'sales'"),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_its_place(what: Shown, name: str, message: str) -> None:
    """Damage: a person does not learn that a name is misspelt."""
    with pytest.raises(DefinitionError, match=message) as caught:
        rows(what, name)
    assert caught.value.position == Position(1, 2)
