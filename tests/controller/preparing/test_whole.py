"""A project is applied in whole or not at all, whatever is wrong with it and wherever the process ends.  Over lists."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import pytest
from deployed import Deployed

from strandline.controller.defining.apply import apply
from strandline.controller.defining.project.files import load
from strandline.controller.defining.trying.mistakes import Mistakes
from strandline.controller.location.catalog import Catalog
from strandline.errors import DefinitionError, InvalidUsage, Unavailable
from strandline.materialize.drivers.sql.driver import SqlDriver
from strandline.testing.doubles import Crash, Fuse
from strandline.testing.kinds import Kinds
from strandline.testing.lists.list_source import Upstream

Edit = tuple[str, str, str]
MISTAKES: Final[Mapping[str, tuple[Edit, str]]] = {
    "an option of a source": (
        ("sources/s.sql", "header =", "headr ="),
        r"sources/s.sql: .*option 'headr' is not known; did you mean 'header'\? \(at line 2, column 42\)",
    ),
    "a value of a source": (
        ("sources/s.sql", "header = 'true'", "header = 'true', retain = 'maybe'"),
        r"sources/s.sql: .*option 'retain' is 'maybe': it can be true or false \(at line 2, column 59\)",
    ),
    "the driver of an endpoint": (
        ("strandline.yml", "sqlite", "sqllite"),
        r"strandline.yml: endpoint 'out': there is no driver 'sqllite'; did you mean 'sqlite'.*\(at line 4, column 5\)",
    ),
    "an option of an endpoint": (
        ("strandline.yml", "path:", "pth:"),
        r"strandline.yml: .*option 'pth' is not known; did you mean 'path'\? \(at line 5, column 5\)",
    ),
    "an option of a materialization": (
        ("materializations/m.yml", "into: out", "into: out\noptions:\n  delet: soft"),
        r"materializations/m.yml: .*option 'delet' is not known; did you mean 'delete'\? \(at line 3, column 3\)",
    ),
    "a collection of a materialization": (
        ("materializations/m.yml", "counts", "count"),
        r"materializations/m.yml: there is no collection 'count'; did you mean 'counts'\? \(at line 3, column 5\)",
    ),
    "a reference of a source": (
        ("sources/s.sql", "header =", "secret_access_key = 'env:NOWHERE_TO_BE_FOUND', header ="),
        r"sources/s.sql: .*environment variable 'NOWHERE_TO_BE_FOUND', which is not set",
    ),
    "an option of a connection": (
        ("connections/c.sql", "user", "usr"),
        r"connections/c.sql: .*'usr'.*did you mean 'user'",
    ),
    "a column of a view": (("views/counts.sql", "SELECT word,", "SELECT wrd,"), r"views/counts.sql: .*wrd"),
    "a word of a view": (("views/many.sql", "SELECT", "SELEKT"), r"views/many.sql: .*\(at line 1"),
    "a key of YAML": (("materializations/m.yml", "key:", "kye:"), r"materializations/m.yml: .*`kye`.*\(at line 4"),
}
CHANGES: Final[Mapping[str, Edit]] = {
    "a table": ("tables/notes.sql", "id INT", "extra INT, id INT"),
    "a source": ("sources/s.sql", "'true'", "'false'"),
    "an endpoint": ("strandline.yml", "out.db", "another.db"),
    "a materialization": ("materializations/t.sql", "TO", "TO"),
    "a view": ("views/many.sql", "n > 1", "n > 2"),
    "a history": ("tables/notes.sql", "STRING)", "STRING) KEEP HISTORY FOR '1 day'"),
}
"""What may be said otherwise: some of it is recreated, replaced or altered."""


@pytest.fixture
def deployed(tmp_path: Path) -> Deployed:
    """A location that is as its project says, with rows in its endpoints."""
    found = Deployed(tmp_path)
    found.note("a", "a", "b")
    assert len(found.pushed()) == 2
    return found


def settled(catalog: Catalog) -> Mapping[str, object]:
    """What must be the same where nothing was changed."""
    return dict(catalog.items)


IN_PLACE: Final[Mapping[str, tuple[Edit, str, str]]] = {
    "a source": (("sources/s.sql", "header =", "retain = 'false', header ="), "s", "retain 'false'"),
    "a materialization": (
        ("materializations/m.yml", "into: out", "into: out\noptions:\n  every: 10 minutes"),
        "m",
        "every '10 minutes'",
    ),
}


@pytest.mark.parametrize("what", IN_PLACE)
def test_an_option_that_can_be_altered_is_altered_in_place(deployed: Deployed, what: str) -> None:
    """Damage: a source whose files may go from now on is read again, or an endpoint's tables are filled anew."""
    edit, name, gets = IN_PLACE[what]
    before = settled(deployed.catalog)
    deployed.edit(*edit)
    (change,) = deployed.plan()["changes"]
    assert (change["what"], change["name"], change["why"]) == ("alter", name, f"it gets {gets}")
    done = deployed.deploy()
    assert (done["refused"], done["created"], done["dropped"]) == ([], [], [])
    option, value = gets.replace("'", "").split(" ", 1)
    now = settled(deployed.catalog)
    assert now[name].options == before[name].options | {option: value}
    assert {other for other in now if now[other] != before[other]} == {name}
    assert deployed.plan()["changes"] == []
    deployed.edit(edit[0], edit[2], edit[1])
    deployed.deploy()
    assert settled(deployed.catalog) == before


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_definition_that_is_there_is_in_the_plan_and_destroys_nothing(
    deployed: Deployed, mistake: str
) -> None:
    """Damage: one letter too few in a file, and all rows of a source, its views and its endpoints are gone."""
    edit, said = MISTAKES[mistake]
    before, rows = settled(deployed.catalog), deployed.pushed()
    deployed.edit(*edit)
    (why,) = deployed.wrong()
    assert re.search(said, why, re.DOTALL), why
    done = deployed.deploy("all")
    assert (done["refused"], done["created"], done["dropped"]) == ([why], [], [])
    with pytest.raises(Exception, match="^[^\n]+$") as raised:
        deployed.run(apply(deployed.core, load(deployed.root)))
    assert str(raised.value) == why
    deployed.note("c")
    assert settled(deployed.catalog) == before
    assert len(deployed.pushed()) == len(rows) + 1, "endpoints go on"
    assert deployed.core.health.problems() == {}


def test_all_mistakes_are_said_at_once_and_what_only_needs_a_wrong_one_is_none(deployed: Deployed) -> None:
    """Damage: a project with five mistakes is applied six times; or one mistake is said ten times."""
    chosen = [
        "an option of a source",
        "an option of an endpoint",
        "a word of a view",
        "a column of a view",
        "an option of a connection",
    ]
    for name in chosen:
        deployed.edit(*MISTAKES[name][0])
    deployed.write({"views/over.sql": "CREATE MATERIALIZED VIEW over AS SELECT id FROM read"})
    found = deployed.wrong()
    assert len(found) == len(chosen), found
    assert ("untried", "over") in {(each["what"], each["name"]) for each in deployed.plan()["changes"]}
    for name in chosen:
        assert any(re.search(MISTAKES[name][1], why, re.DOTALL) for why in found), (name, found)


def test_what_may_read_what_a_broken_file_defines_is_not_said_to_be_right(deployed: Deployed) -> None:
    """Damage: a misspelt name passes `plan`, and is refused once the other file is mended."""
    deployed.write(
        {
            "views/over.sql": "CREATE MATERIALIZED VIEW over AS SELECT id FROM raed",
            "views/broken.sql": "CREATE MATERIALIZED VIEV x AS SELECT 1",
        }
    )
    assert len(deployed.wrong()) == 1
    assert {(each["what"], each["name"]) for each in deployed.plan()["changes"]} == {
        ("refused", "views/broken.sql"),
        ("untried", "over"),
    }


def test_what_clients_have_made_is_dropped_only_where_it_is_named(deployed: Deployed) -> None:
    """Damage: a table that a colleague made by hand is gone with the next deployment."""
    deployed.execute("CREATE TABLE mine (k INT)")
    deployed.execute("CREATE MATERIALIZED VIEW over AS SELECT id FROM notes")
    assert deployed.plan() == {"changes": [], "drops": []}
    assert deployed.deploy("all")["dropped"] == []
    deployed.edit(*CHANGES["a table"])
    (why,) = deployed.deploy("all")["refused"]
    assert why.startswith("'over' reads 'notes', which is dropped, and the project does not define it: --drop over")
    done = deployed.deploy("notes", "over")
    assert (done["refused"], {"notes", "over"} <= set(done["dropped"])) == ([], True)
    assert "mine" in deployed.catalog.items
    assert "over" not in deployed.catalog.items
    assert deployed.deploy("mine")["dropped"] == ["mine"]


def test_a_change_that_needs_a_drop_stops_all_others_until_it_is_named(deployed: Deployed) -> None:
    """Damage: half of a change is there, and the other half waits for an answer."""
    deployed.edit(*CHANGES["a table"])
    deployed.edit(*CHANGES["a source"])
    deployed.write({"tables/new.sql": "CREATE TABLE new (k INT)"})
    before = settled(deployed.catalog)
    done = deployed.deploy("notes")
    (why,) = done["refused"]
    assert "'s': it was created with other options: header 'true' → 'false'" in why
    assert why.endswith(": strandline apply --drop s")
    with pytest.raises(DefinitionError, match=re.escape(why)):  # one cause has one text
        deployed.run(apply(deployed.core, deployed.project))
    assert settled(deployed.catalog) == before
    assert deployed.deploy("notes", "s")["refused"] == []
    assert "new" in deployed.catalog.items


def test_a_recreation_says_what_differs_and_what_it_costs(deployed: Deployed) -> None:
    """Damage: no plan says that a changed letter costs hours of reading."""
    deployed.edit(*CHANGES["an endpoint"])
    (change,) = deployed.plan()["changes"]
    root = deployed.root
    assert change["what"] == "recreate"
    assert change["why"] == f"it was created with other options: path '{root}/out.db' → '{root}/another.db'"
    assert change["rows"] > 0


def test_what_was_dropped_goes_on_if_what_takes_its_place_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a server's name is misspelt, and what was read from the right one for months is gone."""
    upstream = Upstream()
    Kinds({"one": upstream}).install(monkeypatch.setitem)
    deployed = Deployed(
        tmp_path,
        {
            "strandline.yml": "location: data",
            "sources/s.sql": "CREATE SOURCE s (partition STRING, offset BIGINT, value BIGINT) FROM list (server = one)",
            "materializations/m.sql": "CREATE MATERIALIZATION m INTO sqlite OPTIONS (path 'out.db') "
            "AS s KEY (partition, offset)",
        },
    )
    upstream.produce("0", 1)
    deployed.tick()
    before, rows = settled(deployed.catalog), deployed.pushed(table="s")
    deployed.edit("sources/s.sql", "= one", "= two")
    with pytest.raises(
        Unavailable, match="nothing was changed, since .*'s' cannot be opened: there is no server 'two'"
    ):
        deployed.deploy("s")
    assert settled(deployed.catalog) == before
    upstream.produce("0", 2)
    deployed.tick()
    assert len(deployed.pushed(table="s")) == len(rows) + 1
    deployed.open()
    deployed.tick()
    assert deployed.core.health.problems() == {}
    assert (deployed.catalog.dropped, deployed.catalog.left, deployed.catalog.ended) == ((), (), ())


def test_what_does_not_answer_is_asked_again_and_keeps_nothing_else_waiting(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a database that is away for a minute while files change never gets its tables; or nothing else does."""

    async def away(*_: object) -> NoReturn:
        raise Unavailable("the endpoint does not answer")

    deployed.write(
        {
            "materializations/n.sql": "CREATE MATERIALIZATION n INTO sqlite OPTIONS (path 'n.db') AS many KEY (word)",
            "tables/new.sql": "CREATE TABLE new (k INT)",
        }
    )
    before = settled(deployed.catalog)
    with monkeypatch.context() as patched:
        patched.setattr(SqlDriver, "validate", away)
        assert deployed.wrong() == ["materializations/n.sql: the endpoint does not answer (at line 1, column 24)"]
        with pytest.raises(Unavailable, match="n.sql: the endpoint does not answer"):
            deployed.run(apply(deployed.core, deployed.project))
        assert settled(deployed.catalog) == before
        done = deployed.run(apply(deployed.core, deployed.project, whole=False))
        assert (done.created, done.refused) == (("new",), ())
        assert done.unanswered == ("materializations/n.sql: the endpoint does not answer (at line 1, column 24)",)
        assert deployed.catalog.items.keys() == before.keys() | {"new"}
        deployed.write({"materializations/o.sql": ANOTHER})
        with pytest.raises(Unavailable, match="n.sql: the endpoint does not answer.*\n.*o.sql: the endpoint"):
            deployed.run(apply(deployed.core, deployed.project))
    assert deployed.run(apply(deployed.core, deployed.project, whole=False)).created == ("n", "o")


ANOTHER: Final = "CREATE MATERIALIZATION o INTO sqlite OPTIONS (path 'o.db') AS many KEY (word)"


def ended(root: Path, at: int, *, after: bool) -> tuple[str, int]:
    """Deploy, have the process end at its I/O ``at``, and go on; return what was applied, and how many I/Os there were.

    All of the project is there then, or nothing was changed.
    """
    deployed = Deployed(root)
    deployed.note("a", "a", "b")
    before = settled(deployed.catalog)
    for name in ("a table", "a source", "an endpoint", "a history"):
        deployed.edit(*CHANGES[name])
    deployed.write({"views/read.sql": "", "views/new.sql": "CREATE MATERIALIZED VIEW new AS SELECT id FROM s"})
    fuse = Fuse(after=after)
    deployed.open(fuse)
    fuse.count, fuse.at = 0, at
    with suppress(Crash):
        deployed.deploy("all")
    count = fuse.count
    deployed.open()
    deployed.tick()
    nothing = settled(deployed.catalog) == before
    if nothing:
        assert len(deployed.pushed()) == 2
    else:
        assert deployed.plan() == {"changes": [], "drops": []}
        assert "read" not in deployed.catalog.items
        deployed.note("z")
        assert len(deployed.pushed("another.db")) == 1
    assert deployed.core.health.problems() == {}
    return "nothing" if nothing else "all", count


def test_a_connection_that_refers_to_what_is_not_there_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a variable is forgotten, and all sources of a connection stand still."""
    Kinds({"one": Upstream()}).install(monkeypatch.setitem)
    deployed = Deployed(
        tmp_path,
        {
            "strandline.yml": "location: data",
            "connections/here.sql": "CREATE CONNECTION here TO lists (server = one)",
            "sources/s.sql": "CREATE SOURCE s (partition STRING, offset BIGINT, value BIGINT) "
            "FROM list (connection = here)",
        },
    )
    before = settled(deployed.catalog)
    deployed.edit("connections/here.sql", "= one", "= one, password = 'env:NOWHERE_TO_BE_FOUND'")
    (why,) = deployed.deploy()["refused"]
    assert re.search("connections/here.sql: .*variable 'NOWHERE_TO_BE_FOUND', which is not set", why), why
    assert settled(deployed.catalog) == before
    monkeypatch.setenv("NOWHERE_TO_BE_FOUND", "hush")
    assert deployed.deploy()["refused"] == []
    assert settled(deployed.catalog) != before


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("steps", [5, pytest.param(500, marks=pytest.mark.slow)])
def test_wherever_the_process_ends_all_of_a_project_is_applied_or_nothing(
    tmp_path: Path, steps: int, after: bool
) -> None:
    """Damage: a machine goes away between a drop and what was to come in its place."""
    _, count = ended(tmp_path / "whole", 0, after=after)
    points = range(1, count + 1, max(1, count // steps))
    found = [ended(tmp_path / str(at), at, after=after)[0] for at in points]
    assert found == sorted(found, reverse=True), "once all of it is there, it stays"
    assert (found[0], found[-1]) == ("nothing", "all")


def tried(root: Path, seed: int) -> str:
    """Apply a random change with random mistakes and drops, and check that it was all or nothing; return which."""
    chance = random.Random(seed)
    deployed = Deployed(root)
    deployed.note("a", "a", "b")
    if chance.random() < 0.3:
        deployed.execute("CREATE TABLE mine (k INT)")
    edits = [each for each in CHANGES.values() if chance.random() < 0.4]
    edits += [edit for edit, _ in MISTAKES.values() if chance.random() < 0.08]
    for edit in edits:
        with suppress(AssertionError):  # another edit has changed the same text
            deployed.edit(*edit)
    if chance.random() < 0.3:
        deployed.write({"views/many.sql": ""})
    before = settled(deployed.catalog)
    planned = deployed.plan()
    wrong = [each["why"] for each in planned["changes"] if each["what"] == "refused"]
    drop = chance.choice([(), ("all",), ("notes",), ("m", "s")])
    try:
        done = deployed.deploy(*drop)
    except InvalidUsage:
        done = {"refused": ["a name is wrong"], "dropped": []}
    deployed.tick()
    if done["refused"]:
        assert settled(deployed.catalog) == before, seed
        assert len(deployed.pushed()) == 2, seed
    else:
        assert not wrong, (seed, wrong)
        left = [each for each in deployed.plan()["changes"] if each["what"] != "orphan" or "all" in drop]
        assert left == [], (seed, left)
    assert deployed.core.health.problems() == {}, seed
    if drop != ("all",) and "mine" in before:
        assert "mine" in deployed.catalog.items
    return "nothing" if done["refused"] else "all"


@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 312), marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_random_changes_and_mistakes_are_applied_in_whole_or_not_at_all(tmp_path: Path, seeds: range) -> None:
    """Damage: some mixture of changes, mistakes and drops leaves a pipeline that is neither the old nor the new one."""
    assert {tried(tmp_path / str(seed), seed) for seed in seeds} == {"nothing", "all"}


def test_a_file_that_cannot_be_read_is_a_mistake_that_is_called_by_its_name(tmp_path: Path) -> None:
    """Damage: a plan shows a mistake under a part of its message, and a person opens the wrong file."""
    (tmp_path / "views").mkdir()
    (tmp_path / "strandline.yml").write_text("location: data")
    (tmp_path / "views" / "bad.sql").write_text("CREATE MATERIALIZED VEIW v AS SELECT 1: 2")
    (found,) = Mistakes(load(tmp_path, whole=False)).found
    assert (found.name, found.kind) == ("views/bad.sql", "file")
