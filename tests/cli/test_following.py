"""`strandline run` follows the files of its project.  Over lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from deployed import BASE, Deployed

from strandline.cli.running import SETTINGS_LATER, Following, Stop, Wanted, _ticks
from strandline.cli.terminal.output import Output
from strandline.cli.terminal.reporting import Report
from strandline.controller.asking.status import progress
from strandline.controller.core import Core
from strandline.controller.defining.apply import Applied, apply
from strandline.controller.defining.creating import create
from strandline.controller.defining.project.files import load
from strandline.controller.defining.project.settings import Project
from strandline.controller.language.statements import parse
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.config import Config, Mode
from strandline.errors import Unavailable
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.simulation.kernel import run_sync

OTHERS = {name: text for name, text in BASE.items() if not name.startswith("materializations/")}
COUNTS = """into: out
options:
  on_drop: remove
collections:
  - collection: counts
    table: C
    key: [word]
"""
MANY = """  - collection: many
    table: T
    key: [word]
"""
BOTH = COUNTS + MANY
NOTES = """into: out
collections:
  - collection: notes
    table: N
    key: [id]
"""
FILES = {
    "strandline.yml": "location: data",
    "tables/t.sql": "CREATE TABLE t (k INT)",
    "views/v.sql": "CREATE MATERIALIZED VIEW v AS SELECT k FROM t",
}


class Place:
    """A project in a directory that was applied, the environment, and what is said while it is followed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[tuple[str, str]] = []
        self.away = 0
        self.write(FILES)
        assembly = list_assembly(HandClock(1_000), CountingIds(), MemoryBlob(), MemoryConsensus())
        self.core = run_sync(Core.open(assembly, Config(), Mode.FULL))
        self.follow()

    def follow(self) -> Applied:
        """Apply the project as it is now, as far as that can be, and follow it from then on."""
        project = load(self.root)
        applied = self.apply(project, whole=False)
        self._following = Following(self, project, self._say, applied)
        return applied

    def write(self, files: Mapping[str, str]) -> None:
        """Write files of the project."""
        for name, text in files.items():
            (self.root / name).parent.mkdir(exist_ok=True)
            (self.root / name).write_text(text)

    def apply(self, project: Project, *, whole: bool = True) -> Applied:
        """See `Environment.apply`; the store is away for so many calls."""
        if self.away:
            self.away -= 1
            raise Unavailable("the store is away")
        return run_sync(apply(self.core, project, whole=whole))

    def looked(self, times: int = 3) -> list[tuple[str, str]]:
        """Look so often as ticks do, and return what was said."""
        self.said.clear()
        for _ in range(times):
            self._following.look()
            self._following.say_adopted()
        return list(self.said)

    @property
    def catalog(self) -> Catalog:
        """See `Environment.catalog`."""
        return self.core.catalog

    def _say(self, event: str, **facts: object) -> None:
        self.said.append((event, " ".join(map(str, facts.values()))))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a project that was applied."""
    return Place(tmp_path)


def test_a_view_whose_file_comes_is_created_and_said_once(place: Place) -> None:
    """Damage: a view that is added while `run` lives is ignored without a word."""
    assert place.looked() == []
    place.write({"views/w.sql": "CREATE MATERIALIZED VIEW w AS SELECT k FROM v"})
    assert place.looked(1) == [], "an editor may not have finished it"
    assert place.looked() == [("applied", "w")]
    assert "w" in place.core.catalog.items
    assert place.looked() == []


def test_what_another_process_defines_is_said_once(place: Place) -> None:
    """Damage: a view comes into a running environment, and its log cannot say since when."""
    run_sync(create(place.core, cast("Any", parse("CREATE MATERIALIZED VIEW w AS SELECT k FROM v"))))
    assert place.looked() == [("applied", "w")]
    assert place.looked() == []


def test_what_came_while_spark_was_starting_is_applied(place: Place) -> None:
    """Damage: a file that is written in the first minute is ignored until the next one changes."""
    place.write({"views/w.sql": "CREATE MATERIALIZED VIEW w AS SELECT k FROM v"})
    assert place.looked() == [("applied", "w")]


def test_a_view_whose_file_goes_is_kept_and_that_is_said_once(place: Place) -> None:
    """Damage: its author believes that it is gone, and it costs time at each tick for ever."""
    (place.root / "views/v.sql").unlink()
    ((event, what),) = place.looked()
    assert event == "not applied"
    assert what == (
        "views/v.sql: 'v' is defined here no longer, and is kept up to date all the same: "
        "drop it with `strandline apply --drop v`, or put the definition back"
    )
    assert "v" in place.core.catalog.items
    assert place.looked() == []


def test_of_a_definition_that_was_refused_nothing_is_said_when_it_goes(place: Place) -> None:
    """Damage: the log advises a command that ends with an error, since there never was such an item."""
    place.write({"views/bad.sql": "CREATE MATERIALIZED VIEW bad AS SELECT k FROM nothing"})
    ((event, _),) = place.looked()
    assert event == "not applied"
    (place.root / "views/bad.sql").unlink()
    assert place.looked() == []


def test_what_was_refused_at_the_start_is_not_said_again_until_its_file_changes(place: Place) -> None:
    """Damage: the log of a promotion says each refusal twice, as if it were two; or of a correction nothing."""
    place.write({"views/bad.sql": "CREATE MATERIALIZED VIEW bad AS SELECT k FROM nothing"})
    (refused,) = place.follow().refused
    assert place.looked() == []
    place.write({"views/bad.sql": "CREATE MATERIALIZED VIEW bad AS SELECT  k FROM nothing"})
    ((event, what),) = place.looked()
    assert (event, what.partition(" (at")[0]) == ("not applied", refused.partition(" (at")[0])


def test_what_reads_a_definition_that_goes_is_named(place: Place) -> None:
    """Damage: its author drops it, and learns only then what went with it."""
    place.write({"views/w.sql": "CREATE MATERIALIZED VIEW w AS SELECT k FROM t"})
    place.looked()
    (place.root / "tables/t.sql").unlink()
    ((_, what),) = place.looked()
    assert "kept up to date all the same (v, w read it): drop it with" in what


def test_of_several_changes_those_that_need_no_drop_are_applied(place: Place) -> None:
    """Damage: a changed view keeps a new one from being created; or nothing says what is left to do."""
    place.write(
        {
            "views/v.sql": "CREATE MATERIALIZED VIEW v AS SELECT k + 1 AS k FROM t",
            "views/w.sql": "CREATE MATERIALIZED VIEW w AS SELECT k FROM t",
            "views/bad.sql": "CREATE MATERIALIZED VIEW bad AS SELECT k FROM nothing",
        }
    )
    said = place.looked()
    assert said[:2] == [("applied", "w"), ("replacing", "v")]
    ((event, refused),) = said[2:]
    assert event == "not applied"
    assert refused.startswith("views/bad.sql: there is no collection 'nothing'")


def test_a_file_that_cannot_be_read_is_said_and_mended_later(place: Place) -> None:
    """Damage: a typing error in a file ends `run`, or the correction is not seen."""
    place.write({"views/w.sql": "CREATE MATERIALISED VIEW w AS SELECT k FROM t"})
    ((event, what),) = place.looked()
    assert (event, what.partition(":")[0]) == ("not applied", "views/w.sql")
    place.write({"views/w.sql": "CREATE MATERIALIZED VIEW w AS SELECT k FROM t"})
    assert place.looked() == [("applied", "w")]


def test_what_reads_a_replaced_view_is_made_once_that_is_in_place(place: Place) -> None:
    """Damage: a new view over a changed one is refused until a person touches a file again."""
    place.write(
        {
            "views/v.sql": "CREATE MATERIALIZED VIEW v AS SELECT k, k + 1 AS more FROM t",
            "views/w.sql": "CREATE MATERIALIZED VIEW w AS SELECT more FROM v",
        }
    )
    assert place.looked() == [("replacing", "v")]
    run_sync(place.core.tick())
    assert place.looked(1) == [("applied", "w")]
    assert place.looked() == []


def test_what_does_not_answer_is_asked_again_and_said_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the log gets a line a second for as long as a database is away; or the view beside it is never said."""
    once = Applied((), ("t", "v"), unanswered=("m.sql: the endpoint does not answer",))
    answers = [once, once, Applied(("m",), ("t", "v"))]
    monkeypatch.setattr(place, "apply", lambda *_, **__: answers.pop(0))
    place.write({"views/w.sql": "CREATE MATERIALIZED VIEW w AS SELECT k FROM t"})
    assert place.looked() == [("not applied, will be retried", "m.sql: the endpoint does not answer")]
    assert len(answers) == 1
    assert place.looked() == []
    assert answers == []


class Giving:
    """`strandline run --once` where a materialization gets a table that another one empties."""

    def __init__(self, root: Path) -> None:
        self.place = Deployed(root, {**OTHERS, "materializations/g.yml": BOTH, "materializations/z.yml": NOTES})
        self.place.note("a", "a", "b")
        self.place.write({"materializations/g.yml": COUNTS, "materializations/z.yml": NOTES + MANY})
        self.applied = self.ticks = 0

    def run_once(self) -> list[tuple[str, str]]:
        """Return what is said."""
        said: list[tuple[str, str]] = []
        report = Report(Output(json=True))
        monitored: Any = report
        monitored.say = lambda event, **facts: said.append((event, " ".join(map(str, facts.values()))))
        following = Following(self, self.place.project, monitored.say, self.apply(self.place.project, whole=False))
        report.follow, report.waits = following.look, following.waits
        _ticks(cast("Any", self), Wanted(True, None, False, 1), Stop(), report, lambda _: None)
        return said

    def apply(self, project: Project, *, whole: bool = True) -> Applied:
        """See `Environment.apply`."""
        self.applied += 1
        return self.place.run(apply(self.place.core, project, whole=whole))

    def tick(self, **_: object) -> int:
        """See `Environment.tick`: it ends a run that would go on for ever."""
        self.ticks += 1
        assert self.ticks < 20, "it ends"
        self.place.tick()
        return 0

    def progress(self) -> dict[str, Any]:
        """See `Environment.progress`."""
        return progress(self.place.core)

    @property
    def catalog(self) -> Catalog:
        """See `Environment.catalog`."""
        return self.place.core.catalog


def test_run_once_goes_on_until_a_table_is_emptied_that_another_one_gets(tmp_path: Path) -> None:
    """Damage: the command ends, and a materialization that it was to make is not there."""
    giving = Giving(tmp_path)
    giving.run_once()
    assert giving.place.plan()["changes"] == []
    assert giving.place.pushed(table="T") == [("a", 2)]
    assert giving.applied < giving.ticks + 2


def test_run_once_ends_where_a_table_cannot_be_emptied(tmp_path: Path) -> None:
    """Damage: the command never ends, and says the same line a thousand times."""
    giving = Giving(tmp_path)
    (tmp_path / "out.db").rename(tmp_path / "away.db")
    (tmp_path / "out.db").mkdir()
    giving.place.write({"views/bad.sql": "CREATE MATERIALIZED VIEW bad AS SELECT nothing FROM notes"})
    said = giving.run_once()
    assert [event for event, _ in said if event == "not applied"] == []
    assert "problem" in {event for event, _ in said}
    assert giving.applied <= 2, "at first, and at most once when files are looked at"


def test_a_changed_setting_is_said_to_wait(place: Place) -> None:
    """Damage: an interval that was changed is believed to hold."""
    place.write({"strandline.yml": "location: data\ntick_ms: 250"})
    assert place.looked() == [("not applied", SETTINGS_LATER)]


def test_a_store_that_is_away_is_asked_again(place: Place) -> None:
    """Damage: a view that came during an outage is never created, or the outage ends `run`."""
    place.write({"views/w.sql": "CREATE MATERIALIZED VIEW w AS SELECT k FROM t"})
    place.away = 1
    assert place.looked(2) == [("not applied, will be retried", "the store is away")]
    assert place.looked() == [("applied", "w")]
