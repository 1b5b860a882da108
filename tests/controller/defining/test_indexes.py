"""Indexes: what defining one does to the catalog, to a project and to the status.  Over lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from strandline.bench.environment import ITEMS, VIEWS, over_lists
from strandline.controller.asking.status import status
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.apply import apply
from strandline.controller.defining.creating import create
from strandline.controller.defining.project.files import load
from strandline.controller.language.statements import Drop, parse
from strandline.controller.location.catalog import FORMAT_OF_INSTANCES
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import IndexItem
from strandline.errors import DefinitionError, Position
from strandline.testing.simulation.kernel import run_sync

TABLE = f"CREATE TABLE items ({ITEMS})"
TOTALS = f"CREATE MATERIALIZED VIEW totals AS {VIEWS['totals']}"


@pytest.fixture
def core() -> Core:
    """A location in memory."""
    return run_sync(Core.open(over_lists().assembly, Config(), Mode.FULL))


def do(core: Core, *texts: str) -> None:
    """Run definitions."""
    for text in texts:
        match parse(text):
            case Drop() as statement:
                run_sync(definitions.drop(core, statement))
            case statement:
                run_sync(create(core, cast("Any", statement)))


def test_an_index_is_an_item_on_a_collection(core: Core) -> None:
    """Damage: a collection is dropped under its index; or an earlier version reads a catalog that it does not know."""
    do(core, TABLE, TOTALS)
    before = core.catalog.format
    do(core, "CREATE INDEX By_Two ON ITEMS (GRP, id)", "CREATE INDEX IF NOT EXISTS by_two ON items (id)")
    assert core.catalog.find("by_two") == IndexItem("By_Two", "items", ("grp", "id"))
    assert core.catalog.format == FORMAT_OF_INSTANCES
    with pytest.raises(DefinitionError, match="'items' is read by By_Two, totals; drop that first"):
        do(core, "DROP TABLE items")
    with pytest.raises(DefinitionError, match="'By_Two' is an index; write DROP INDEX By_Two"):
        do(core, "DROP TABLE by_two")
    with pytest.raises(DefinitionError, match="no collection 'by_two'"):
        do(core, "CREATE INDEX again ON by_two (id)")
    do(core, "DROP INDEX by_two", "DROP INDEX IF EXISTS by_two")
    assert (core.catalog.find("by_two"), core.catalog.format) == (None, before)


@pytest.mark.parametrize(
    ("text", "said", "column"),
    [
        ("CREATE INDEX i ON nested (tags)", "column 'tags' is an array or a struct", 27),
        ("CREATE INDEX i ON nested (id)", "column 'tags' is an array or a struct", 27),
        ("CREATE INDEX i ON flat (id, data)", "rows cannot be found by column 'data', which is binary", 29),
        ("CREATE INDEX i ON flat (id, dat)", "did you mean 'data'", 29),
        ("CREATE INDEX i ON flat (id, ID)", "column 'ID' is given twice", 29),
        ("CREATE INDEX i ON flt (id)", "did you mean 'flat'", 19),
        ("CREATE INDEX i ON flat (id) IN INSTANCE z", "there is no instance 'z'", 41),
        ("CREATE INDEX i ON flat ()", "expected a column", 25),
        ("CREATE OR REPLACE INDEX i ON flat (id)", "DROP it first", 8),
    ],
)
def test_an_index_that_cannot_be_is_refused_where_it_says_so(core: Core, text: str, said: str, column: int) -> None:
    """Damage: an index is defined that answers nothing from memory, and no one learns why."""
    do(core, "CREATE TABLE nested (id INT, tags ARRAY<STRING>)", "CREATE TABLE flat (id INT, data BINARY)")
    with pytest.raises(DefinitionError, match=said) as refused:
        do(core, text)
    assert refused.value.position == Position(1, column)
    assert core.catalog.find("i") is None


def test_a_project_has_indexes_in_a_directory_of_their_own(core: Core, tmp_path: Path) -> None:
    """Damage: an index is made before its view; or one that was changed goes on as it was."""
    files = {
        "strandline.yml": "location: data",
        "tables/items.sql": TABLE,
        "views/totals.sql": TOTALS,
        "indexes/all.sql": "CREATE INDEX a ON totals (grp);\nCREATE INDEX b ON items (id, grp);",
    }

    def applied(**changed: str) -> tuple[str, ...]:
        for name, text in (files | {"indexes/all.sql": changed.get("indexes", files["indexes/all.sql"])}).items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return run_sync(apply(core, load(tmp_path))).created

    assert applied() == ("items", "totals", "a", "b")
    assert applied() == ()
    for text in ("CREATE INDEX a ON items (grp)", "CREATE INDEX a ON totals (n)", "CREATE INDEX a ON totals (grp, n)"):
        with pytest.raises(DefinitionError, match=r"indexes/all.sql: 'a': it was created with the columns \(grp\)"):
            applied(indexes=text)
    with pytest.raises(DefinitionError, match="there is no instance 'x'"):
        applied(indexes="CREATE INDEX a ON totals (grp) IN INSTANCE x")
    with pytest.raises(DefinitionError, match="belongs in views/"):
        applied(indexes=TOTALS)


def test_status_says_how_an_index_answers(core: Core) -> None:
    """Damage: an index that has no room in memory makes each peek a Spark job, and nothing shows it."""
    do(core, TABLE, "CREATE INDEX by_id ON items (id)")
    run_sync(core.tick())
    assert run_sync(status(core))["indexes"] == {
        "by_id": {
            "on": "items",
            "columns": ["id"],
            "instance": None,
            "in_memory": True,
            "peeks": {"memory": 0, "scanned": 0},
            "waiting": None,
            "problem": None,
            "cases": [],
        }
    }
