"""A project lists other views for a materialization, which goes on.  Over lists, with SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deployed import Deployed

from strandline.controller.asking.status import status
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


WIDER = "CREATE MATERIALIZED VIEW counts AS SELECT word, count(*) AS n, max(id) AS latest FROM notes GROUP BY word"
OVER = "CREATE MATERIALIZED VIEW over AS SELECT word, latest FROM counts"
LISTED_OVER = LISTED.replace("counts", "over")


def test_no_view_leaves_before_the_one_that_comes_later(deployed: Deployed) -> None:
    """Damage: the materialization has no view in between, and from then on nothing of the location is opened."""
    deployed.write({"views/counts.sql": WIDER, "views/over.sql": OVER, "materializations/m.yml": LISTED_OVER})
    assert change(deployed)["effect"].startswith("it goes on as it is until the views that it gets can be added")
    done = deployed.deploy()
    assert (done["refused"], done["replaced"], done["later"]) == ([], ["counts"], ["over", "m"])
    assert [each.collection for each in made(deployed).bindings] == ["counts"]
    assert made(deployed).left == ()
    assert deployed.run(status(deployed.core))["problems"] == {}
    deployed.note("a")
    deployed.tick()
    assert deployed.core.health.problems() == {}
    assert [row[:2] for row in deployed.pushed()] == [("a", 3), ("b", 1)]
    done = deployed.deploy()
    assert (done["refused"], done["created"], done["later"]) == ([], ["over"], [])
    deployed.note("b")
    assert [row[0] for row in deployed.pushed(table="over")] == ["a", "b"]
    assert [left.name for left in made(deployed).left] == ["counts"]
    assert deployed.plan()["changes"] == []


def test_a_view_leaves_before_it_loses_the_columns_by_which_its_rows_were_found(deployed: Deployed) -> None:
    """Damage: a project is refused for what it says no longer."""
    deployed.write(
        {
            "views/counts.sql": "CREATE MATERIALIZED VIEW counts AS SELECT count(*) AS n FROM notes",
            "views/many.sql": "CREATE MATERIALIZED VIEW many AS SELECT n FROM counts",
            "views/few.sql": "CREATE MATERIALIZED VIEW few AS SELECT id, word FROM notes",
            "materializations/m.yml": LISTED.replace("counts", "few").replace("word", "id"),
        }
    )
    assert deployed.deploy()["refused"] == []
    deployed.tick()
    assert len(deployed.pushed(table="few")) == 3


def test_a_view_is_not_dropped_while_nothing_is_there_in_its_place(deployed: Deployed) -> None:
    """Damage: what was listed is dropped, what is to be listed comes later, and the materialization has no view."""
    deployed.write({"views/many.sql": "CREATE MATERIALIZED VIEW many AS SELECT word, n FROM counts WHERE n > 1"})
    deployed.write({"materializations/m.yml": LISTED.replace("counts", "many")})
    deployed.deploy()
    deployed.write({"views/counts.sql": WIDER, "views/over.sql": OVER, "materializations/m.yml": LISTED_OVER})
    deployed.write({"views/many.sql": ""})
    (refused,) = deployed.deploy("many")["refused"]
    assert "'m' would have no view until 'over' can be added: do not drop before that what it lists" in refused
    assert [each.collection for each in made(deployed).bindings] == ["many"]
    assert deployed.deploy()["later"] == ["over", "m"]
    deployed.tick()
    deployed.tick()
    done = deployed.deploy("many")
    assert (done["refused"], done["dropped"]) == ([], ["many"])


def test_what_cannot_be_commanded_is_its_own_problem(deployed: Deployed) -> None:
    """Damage: one item ends the work on all others, and the status says nothing of any."""
    writing = deployed.core.require_writing()
    bare = msgspec.structs.replace(made(deployed), bindings=())
    deployed.run(deployed.core.catalogs.change(writing.epoch, lambda catalog: catalog.with_item(bare)))
    deployed.execute("CREATE MATERIALIZED VIEW others AS SELECT id FROM notes")
    deployed.note("c")
    assert deployed.core.health.problems() == {"m": "materialization 'm' has no bindings"}
    assert set(deployed.run(status(deployed.core))["problems"]) == {"m"}
    assert len(deployed.pushed("other.db", "notes")) == 4
    deployed.edit("materializations/m.yml", "counts", "many")
    assert deployed.deploy()["refused"] == []
    deployed.tick()
    assert (deployed.core.health.problems(), deployed.pushed(table="many")) == ({}, [("a", 2)])
