"""A project lets a table of an endpoint go from one materialization to another.  Over lists, with SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from deployed import BASE, Deployed

from strandline.controller.location.items import Materialization


def listing(**tables: str) -> str:
    """Return a materialization of collections, each into a table."""
    keys = {"counts": "word", "many": "word", "notes": "id", "over": "word", "count": "word"}
    listed = (
        f"  - collection: {each}\n    table: {table}\n    key: [{keys[each]}]\n" for each, table in tables.items()
    )
    return "into: out\ncollections:\n" + "".join(listed)


def files(**materializations: str) -> dict[str, str]:
    """Return the files of materializations."""
    return {f"materializations/{name}.yml": text for name, text in materializations.items()}


def deployed(root: Path, **materializations: str) -> Deployed:
    """Return a location with rows that has these materializations."""
    base = {name: text for name, text in BASE.items() if not name.startswith("materializations/")}
    found = Deployed(root, {**base, **files(**materializations)})
    found.note("a", "a", "b")
    return found


def bound(found: Deployed) -> dict[str, set[str]]:
    """Return the tables of each materialization."""
    items = found.catalog.of_kind(Materialization)
    return {each.name: {bound.table for bound in each.bindings} for each in items}


def changed(found: Deployed) -> dict[str, str]:
    """Return what the plan says of each materialization that changes."""
    return {each["name"]: each["what"] for each in found.plan()["changes"]}


def problems(found: Deployed) -> dict[str, str]:
    """Return what stands in the way of each item."""
    return dict(found.core.health.problems())


def emptied(found: Deployed, *named: str) -> None:
    """Drop tables of the endpoint, as a problem advises."""
    with closing(sqlite3.connect(found.root / "out.db")) as database:
        for each in named:
            database.execute(f"DROP TABLE {each}")


ORDERS = pytest.mark.parametrize(("giver", "taker"), [("m", "z"), ("z", "m")])
REMOVES = "options:\n  on_drop: remove\n"


@ORDERS
def test_a_table_goes_to_another(tmp_path: Path, giver: str, taker: str) -> None:
    """Damage: whether a project is refused depends on how its files are called."""
    found = deployed(tmp_path, **{giver: listing(counts="C", many="T"), taker: listing(notes="N")})
    found.write(files(**{giver: listing(counts="C"), taker: listing(notes="N", many="T")}))
    assert changed(found) == {giver: "alter", taker: "alter"}
    done = found.deploy()
    assert (done["refused"], done["later"]) == ([], [])
    assert bound(found) == {giver: {"C"}, taker: {"N", "T"}}
    assert found.plan()["changes"] == []
    found.tick()
    assert (
        "'T' holds rows that this materialization did not write; drop the materialization, and"
        in problems(found)[taker]
    )
    emptied(found, "T")
    found.note("c", "c")
    assert problems(found) == {}
    assert found.pushed(table="T") == [("a", 2), ("c", 2)]


@ORDERS
def test_a_table_whose_rows_are_removed_goes_to_another_after_that(tmp_path: Path, giver: str, taker: str) -> None:
    """Damage: a project is refused for ever, or one takes out the rows that the other one fills in."""
    before = {giver: listing(counts="C", many="T") + REMOVES, taker: listing(notes="N")}
    found = deployed(tmp_path, **before)
    after = {giver: listing(counts="C") + REMOVES, taker: listing(notes="N", many="T")}
    found.write(files(**after))
    assert changed(found) == {giver: "alter", taker: "alter"}
    done = found.deploy()
    assert (done["refused"], done["later"]) == ([], [taker])
    assert bound(found) == {giver: {"C"}, taker: {"N"}}
    assert found.deploy()["later"] == [taker], "its rows are there still"
    found.tick()
    assert found.pushed(table="T") == []
    done = found.deploy()
    assert (done["refused"], done["later"]) == ([], [])
    found.note("c", "c")
    assert problems(found) == {}
    assert found.pushed(table="T") == [("a", 2), ("c", 2)]


@ORDERS
def test_a_new_one_takes_a_table(tmp_path: Path, giver: str, taker: str) -> None:
    """Damage: as above, where the second one is not there yet."""
    found = deployed(tmp_path, **{giver: listing(counts="C", many="T") + REMOVES})
    found.write(files(**{giver: listing(counts="C") + REMOVES, taker: listing(many="T")}))
    assert changed(found) == {giver: "alter", taker: "create"}
    done = found.deploy()
    assert (done["refused"], done["later"], done["created"]) == ([], [taker], [])
    found.tick()
    assert found.deploy()["created"] == [taker]
    found.note("c")
    assert (problems(found), found.pushed(table="T")) == ({}, [("a", 2)])


@pytest.mark.parametrize("more", [False, True])
def test_two_change_tables(tmp_path: Path, more: bool) -> None:
    """Damage: two can have each other's table only by way of a third one."""
    own = {"notes": "N"} if more else {}
    found = deployed(tmp_path, m=listing(counts="A", **own), z=listing(many="B"))
    found.write(files(m=listing(many="B", **own), z=listing(counts="A")))
    done = found.deploy()
    assert (done["refused"], done["later"]) == ([], [])
    assert bound(found) == {"m": {"B", *own.values()}, "z": {"A"}}
    assert found.plan()["changes"] == []
    emptied(found, "A", "B")
    found.note("c", "c")
    assert problems(found) == {}
    assert [found.pushed(table=each) for each in "AB"] == [[("a", 2), ("b", 1), ("c", 2)], [("a", 2), ("c", 2)]]


def test_two_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    """Damage: each apply says that it comes later, and it never does."""
    found = deployed(tmp_path, m=listing(counts="A") + REMOVES, z=listing(many="B") + REMOVES)
    before = found.catalog
    found.write(files(m=listing(many="B") + REMOVES, z=listing(counts="A") + REMOVES))
    assert changed(found) == {"m": "refused", "z": "refused"}
    refused = found.deploy()["refused"]
    assert len(refused) == 2
    assert "'m' gets a table of a materialization that waits for a table of 'm'" in refused[0]
    assert found.catalog == before
    found.write(files(m=listing(notes="N") + REMOVES, z=listing(notes="Z") + REMOVES))
    assert found.deploy()["refused"] == []
    found.tick()
    found.write(files(m=listing(many="B") + REMOVES, z=listing(counts="A") + REMOVES))
    assert found.deploy()["refused"] == []
    found.note("c", "c")
    assert problems(found) == {}
    assert [found.pushed(table=each) for each in "AB"] == [[("a", 2), ("b", 1), ("c", 2)], [("a", 2), ("c", 2)]]


def test_one_that_stays_keeps_its_table(tmp_path: Path) -> None:
    """Damage: what another one waits for is said to be that one's mistake; or one loses a view, and gets none."""
    found = deployed(tmp_path, m=listing(counts="A"), z=listing(many="B"))
    wider = "CREATE MATERIALIZED VIEW many AS SELECT word, n, n + 1 AS m FROM counts WHERE n > 1"
    over = "CREATE MATERIALIZED VIEW over AS SELECT word, m FROM many"
    found.write({"views/many.sql": wider, "views/over.sql": over})
    found.write(files(m=listing(notes="B"), z=listing(over="O")))
    done = found.deploy()
    assert (done["refused"], done["later"]) == ([], ["over", "m", "z"])
    assert bound(found) == {"m": {"A"}, "z": {"B"}}
    found.tick()
    found.tick()
    done = found.deploy()
    assert (done["refused"], done["later"]) == ([], [])
    assert bound(found) == {"m": {"B"}, "z": {"O"}}


def test_a_mistake_is_said_once_and_where_it_is(tmp_path: Path) -> None:
    """Damage: a typing error in one file is said of another one, which only waits for it."""
    found = deployed(tmp_path, m=listing(counts="A"), z=listing(many="B"))
    before = found.catalog
    found.write(files(m=listing(notes="B"), z=listing(count="O")))
    (refused,) = found.deploy()["refused"]
    assert "no collection 'count'" in refused
    assert found.catalog == before


def test_a_table_that_stays_is_not_taken(tmp_path: Path) -> None:
    """Damage: two write to one table."""
    found = deployed(tmp_path, m=listing(counts="A"), z=listing(many="B"))
    found.write(files(m=listing(notes="B")))
    (refused,) = found.deploy()["refused"]
    assert "materialization 'z' writes to table 'B' there; name another table" in refused
