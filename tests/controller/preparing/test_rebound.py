"""A project lists other views for a materialization, which goes on.  Over lists, with SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from deployed import Deployed

from strandline.controller.location.items import Materialization
from strandline.testing.doubles import Crash, Fuse

LISTED = """into: out
collections:
  - collection: counts
    key: [word]
"""
OTHER = """  - collection: many
    table: Many
    key: [word]
"""
WORDS = ("a", "a", "b")


@pytest.fixture
def deployed(tmp_path: Path) -> Deployed:
    """A location that is as its project says, with rows in its endpoints."""
    found = Deployed(tmp_path)
    found.note(*WORDS)
    assert len(found.pushed()) == 2
    return found


def change(deployed: Deployed, **how: Any) -> dict[str, Any]:
    """Return the one change of the plan that is about the materialization."""
    (found,) = (each for each in deployed.plan(**how)["changes"] if each["name"] == "m")
    return dict(found)


def made(deployed: Deployed) -> Materialization:
    """Return the materialization."""
    return deployed.catalog.one("m", Materialization, "materialization")


def marked(deployed: Deployed) -> bool:
    """Return whether the endpoint has the row that was changed by hand: then its table was not filled anew."""
    return ("b", 99) in deployed.pushed()


def mark(deployed: Deployed) -> None:
    """Change a row by hand."""
    with closing(sqlite3.connect(deployed.root / "out.db")) as database:
        database.execute("UPDATE counts SET n = 99 WHERE word = 'b'")
        database.commit()


def test_a_view_that_is_listed_besides_joins_in_place(deployed: Deployed) -> None:
    """Damage: the endpoint is filled from the start since a project lists one view more."""
    mark(deployed)
    before = made(deployed)
    deployed.write({"materializations/m.yml": LISTED + OTHER})
    said = change(deployed)
    assert (said["what"], said["why"]) == ("alter", "it gets view 'many'")
    assert said["effect"] == "what stays goes on; table 'Many' is filled"
    assert deployed.deploy()["refused"] == []
    deployed.tick()
    assert marked(deployed)
    assert deployed.pushed(table="Many") == [("a", 2)]
    assert made(deployed).id == before.id
    assert deployed.plan()["changes"] == []


def test_a_view_that_is_listed_no_longer_leaves_in_place(deployed: Deployed) -> None:
    """Damage: the endpoint is filled from the start since a project lists one view less, and keeps a table unsaid."""
    deployed.write({"materializations/m.yml": LISTED + OTHER})
    deployed.deploy()
    deployed.tick()
    mark(deployed)
    deployed.write({"materializations/m.yml": LISTED, "views/many.sql": ""})
    said = change(deployed)
    assert (said["what"], said["why"]) == ("alter", "it gets view 'many' no longer")
    removal = "ALTER MATERIALIZATION m DROP VIEW many REMOVE ROWS"
    assert said["effect"] == (
        f"what stays goes on; the rows of 'many' stay in 'Many' of sqlite; {removal} takes them out"
    )
    assert [each["name"] for each in deployed.plan()["drops"]] == ["many"], "and not what read it"
    done = deployed.deploy("many")
    assert (done["refused"], done["dropped"]) == ([], ["many"])
    deployed.note("c")
    assert marked(deployed)
    assert len(deployed.pushed()) == 3
    assert deployed.pushed(table="Many") == [("a", 2)]
    assert deployed.plan()["changes"] == []


def test_a_project_says_that_rows_of_views_that_go_are_removed(deployed: Deployed) -> None:
    """Damage: a project cannot say what a statement can."""
    options = "options:\n  on_drop: remove\n"
    deployed.write({"materializations/m.yml": LISTED + OTHER})
    deployed.deploy()
    deployed.tick()
    assert deployed.pushed(table="Many") == [("a", 2)]
    deployed.write({"materializations/m.yml": LISTED + options})
    said = change(deployed)
    assert said["why"] == "it gets view 'many' no longer, on_drop 'remove'"
    assert "the rows of 'many' are taken out of 'Many' of sqlite, which stays there" in said["effect"]
    deployed.deploy()
    deployed.tick()
    assert deployed.pushed(table="Many") == []
    assert made(deployed).left == ()


def test_a_view_and_what_lists_it_come_at_once(deployed: Deployed) -> None:
    """Damage: a project has to be applied twice, or is refused for a view that it defines itself."""
    deployed.write(
        {
            "materializations/m.yml": LISTED + OTHER.replace("many", "few").replace("Many", "Few"),
            "views/few.sql": "CREATE MATERIALIZED VIEW few AS SELECT word, n FROM counts WHERE n < 2",
        }
    )
    assert deployed.deploy()["refused"] == []
    deployed.tick()
    assert deployed.pushed(table="Few") == [("b", 1)]


def test_another_table_is_another_materialization(deployed: Deployed) -> None:
    """Damage: a plan promises to go on, and rows are filled into another table unsaid."""
    deployed.write({"materializations/m.yml": LISTED.replace("    key", "    table: c\n    key")})
    said = change(deployed)
    assert (said["what"], said["why"]) == ("recreate", "it was created with other tables or keys")


@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_dies_while_it_applies_has_changed_all_or_nothing(deployed: Deployed, after: bool) -> None:
    """Damage: the materialization has lost one view and not got the other."""
    before = made(deployed)
    deployed.write({"materializations/m.yml": LISTED.replace("counts", "notes").replace("word", "id") + OTHER})
    fuse, listed, survived = Fuse(after=after), {"counts"}, 0
    while listed == {"counts"}:
        survived += 1
        deployed.open(fuse)
        fuse.count, fuse.at = 0, survived
        with suppress(Crash):
            deployed.deploy()
        fuse.at = None
        listed = {each.collection for each in made(deployed).bindings}
        assert listed in ({"counts"}, {"notes", "many"})
    assert survived > 1
    deployed.open()
    deployed.deploy()
    deployed.note("z")
    assert made(deployed).id == before.id
    assert len(deployed.pushed(table="notes")) == 4
    assert deployed.pushed(table="Many") == [("a", 2)]
