"""A plan says what would change, and changes nothing; applying it does what it says.  Over lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import structs

from strandline.bench.environment import ITEMS, TICK_MS, Place, _change, over_lists
from strandline.controller.core import Core
from strandline.controller.defining.apply import apply
from strandline.controller.defining.project.files import load
from strandline.controller.defining.project.settings import Project
from strandline.controller.location.config import Config, Mode
from strandline.controller.preparing.planned import RATED_ROWS_MIN, _rate, deploy, deployment
from strandline.errors import ConfigError, InvalidUsage
from strandline.instance.live import STEP
from strandline.testing.simulation.kernel import run_sync

BASE: Final = {
    "strandline.yml": "location: data",
    "tables/items.sql": f"CREATE TABLE items ({ITEMS})",
    "views/totals.sql": "CREATE MATERIALIZED VIEW totals AS SELECT grp, count(*) AS n FROM items GROUP BY grp",
    "views/over.sql": "CREATE MATERIALIZED VIEW over AS SELECT grp FROM totals WHERE n > 1",
}


class Deployed:
    """A project in a directory, and the location that it was applied to."""

    def __init__(self, root: Path, settings: Mapping[str, str] | None = None) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.place: Place = over_lists()
        self.core: Core = run_sync(Core.open(self.place.assembly, Config(), Mode.FULL))
        self.write(BASE | (settings or {}))
        run_sync(apply(self.core, self.project))
        self.tick()

    def write(self, files: Mapping[str, str]) -> None:
        """Write files of the project; an empty text deletes."""
        for name, text in files.items():
            (self.root / name).parent.mkdir(exist_ok=True)
            (self.root / name).write_text(text) if text else (self.root / name).unlink()

    @property
    def project(self) -> Project:
        """The project as its files say."""
        return load(self.root)

    def tick(self) -> None:
        """Change the table and tick."""
        self.place.clock.now += TICK_MS
        run_sync(_change(self.core, 1))
        run_sync(self.core.tick())

    def plan(self) -> dict[str, Any]:
        """The plan, which changes nothing."""
        before = self.core.catalog
        found = run_sync(deployment(self.core, self.project, {"step/x/rows_read": 5_000, "step/x/ms": 100}))
        assert self.core.catalog == before
        return found

    def deploy(self, *, drop: tuple[str, ...] = ()) -> dict[str, Any]:
        """Apply the project."""
        return run_sync(deploy(self.core, self.project, {}, drop=drop))


@pytest.fixture
def deployed(tmp_path: Path) -> Deployed:
    """Return a location that is as its project says."""
    return Deployed(tmp_path)


def briefly(plan: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What a plan does to which item."""
    return [(each["what"], each["kind"], each["name"]) for each in plan["changes"]]


def test_what_was_applied_has_an_empty_plan(deployed: Deployed) -> None:
    """Damage: each deployment looks like a change, so no change is noticed."""
    assert deployed.plan() == {"changes": [], "drops": []}
    assert deployed.deploy()["created"] == []


def test_a_plan_says_what_each_change_does_and_costs(deployed: Deployed) -> None:
    """Damage: a view is computed anew for hours, and only the bill says so."""
    deployed.write(
        {
            "views/totals.sql": BASE["views/totals.sql"].replace("count(*)", "2 * count(*)"),
            "views/new.sql": "CREATE MATERIALIZED VIEW new AS SELECT id FROM items",
            "views/over.sql": "",
        }
    )
    plan = deployed.plan()
    assert briefly(plan) == [
        ("create", "materialized view", "new"),
        ("replace", "materialized view", "totals"),
        ("orphan", "materialized view", "over"),
    ]
    new, totals, over = plan["changes"]
    assert new["rows"] == totals["rows"] > 0
    assert new["seconds"] == round(new["rows"] / 50_000, 1)
    assert "another query" in totals["why"]
    assert "history, indexes and endpoints go on" in totals["effect"]
    assert over["effect"] == "it goes on"
    assert plan["drops"] == [{"kind": "materialized view", "name": "over", "alone": False}]


def test_other_columns_are_said_to_begin_anew_with_what_follows(deployed: Deployed) -> None:
    """Damage: the history of a view is gone, and nothing had said that it would be."""
    deployed.write({"views/totals.sql": BASE["views/totals.sql"].replace("AS n", "AS n, max(id) AS m")})
    (change,) = deployed.plan()["changes"]
    assert "then its history begins anew; with it, at the same time: over" in change["effect"]


def test_what_may_change_in_place_is_in_the_plan_too(deployed: Deployed) -> None:
    """Damage: a history becomes short, or a source takes other columns, and no plan said so."""
    kept = BASE["views/totals.sql"].replace("AS SELECT", "KEEP HISTORY FOR '1 day' AS SELECT", 1)
    deployed.write({"views/totals.sql": kept})
    (change,) = deployed.plan()["changes"]
    assert (change["what"], change["name"], change["why"]) == ("alter", "totals", "it gets KEEP HISTORY FOR '1 day'")
    assert deployed.deploy()["replaced"] == []
    assert deployed.plan()["changes"] == []
    deployed.write(BASE)
    assert [each["why"] for each in deployed.plan()["changes"]] == ["it gets a history as the settings say"]


def test_what_is_not_in_the_project_is_dropped_only_when_that_is_asked_for(deployed: Deployed) -> None:
    """Damage: a deleted file, or a table that was made by hand, takes data along."""
    deployed.write({"views/over.sql": "", "views/totals.sql": ""})
    assert deployed.deploy()["created"] == []
    assert set(deployed.core.catalog.items) == {"items", "totals", "over"}
    assert [each["name"] for each in deployed.deploy(drop=("all",))["drops"]] == ["over", "totals"]
    assert set(deployed.core.catalog.items) == {"items"}


def test_what_cannot_become_another_is_recreated_with_what_reads_it(deployed: Deployed) -> None:
    """Damage: a changed table can never be deployed, or takes its views away for good."""
    deployed.write({"tables/items.sql": BASE["tables/items.sql"].replace("(", "(extra INT, ", 1)})
    plan = deployed.plan()
    assert briefly(plan) == [("recreate", "table", "items")]
    assert "its rows are lost, with what reads it: over, totals" in plan["changes"][0]["effect"]
    assert "was created with" in deployed.deploy()["refused"][0]
    done = deployed.deploy(drop=("all",))
    assert (done["created"], done["refused"]) == (["items", "totals", "over"], [])


def test_a_replacement_takes_place_while_ticks_go_on(deployed: Deployed) -> None:
    """Damage: what `apply` began never comes."""
    deployed.write({"views/totals.sql": BASE["views/totals.sql"].replace("count(*)", "2 * count(*)")})
    assert deployed.deploy()["replaced"] == ["totals"]
    assert deployed.plan()["changes"] == [], "it is on its way"
    deployed.tick()
    assert deployed.plan()["changes"] == []
    assert "2 * count" in deployed.core.catalog.items["totals"].sql  # type: ignore[union-attr]


def test_a_second_project_at_a_location_is_refused_by_name_until_it_takes_over(tmp_path: Path) -> None:
    """Damage: two directories in turn undo what the other one defines, at each start."""
    first = Deployed(tmp_path / "first", {"strandline.yml": f"location: {tmp_path / 'data'}"})
    second = tmp_path / "second"
    second.mkdir()
    (second / "strandline.yml").write_text(f"location: {tmp_path / 'data'}")
    with pytest.raises(ConfigError, match=f"belongs to the project in {first.root}, which is still there"):
        run_sync(deploy(first.core, load(second), {}, drop=()))
    first.core.config = structs.replace(first.core.config, take_over=True)
    run_sync(deploy(first.core, load(second), {}, drop=()))
    assert first.core.catalog.root == str(second)
    first.core.config = structs.replace(first.core.config, take_over=False)
    (second / "strandline.yml").unlink()
    assert first.deploy()["refused"] == [], "the other one is gone"


def test_a_wrong_query_is_refused_in_the_plan(deployed: Deployed) -> None:
    """Damage: a plan looks fine, and its application fails."""
    deployed.write({"views/totals.sql": "CREATE MATERIALIZED VIEW totals AS SELECT nothing FROM items"})
    (change,) = deployed.plan()["changes"]
    assert (change["what"], "nothing" in change["why"]) == ("refused", True)


def test_a_view_and_a_new_one_over_its_new_column_come_with_one_application(deployed: Deployed) -> None:
    """Damage: a project that changes a view and adds one over it cannot be applied, and `run` does not start."""
    deployed.write(
        {
            "views/totals.sql": BASE["views/totals.sql"].replace("AS n", "AS n, max(id) AS m"),
            "views/over.sql": "CREATE MATERIALIZED VIEW over AS SELECT grp, m FROM totals",
            "views/new.sql": "CREATE MATERIALIZED VIEW new AS SELECT m FROM over",
        }
    )
    done = deployed.deploy()
    assert (done["created"], done["refused"], done["later"]) == ([], [], ["new"])
    assert sorted(done["replaced"]) == ["over", "totals"]
    assert deployed.deploy()["replaced"] == [], "applying twice is applying once"
    deployed.tick()
    assert deployed.deploy()["created"] == ["new"]
    deployed.tick()
    assert deployed.plan() == {"changes": [], "drops": []}


def test_nothing_is_dropped_while_a_definition_is_wrong(deployed: Deployed) -> None:
    """Damage: a typing error in one file costs the rows of every table that has changed."""
    deployed.write(
        {
            "tables/items.sql": BASE["tables/items.sql"].replace("(", "(extra INT, ", 1),
            "views/bad.sql": "CREATE MATERIALIZED VIEW bad AS SELECT nothing FROM items",
        }
    )
    before = deployed.core.catalog
    done = deployed.deploy(drop=("all",))
    assert (done["created"], done["dropped"], len(done["refused"])) == ([], [], 1)
    assert "views/bad.sql: " in done["refused"][0]
    assert deployed.core.catalog == before


def test_only_what_is_named_is_dropped(deployed: Deployed) -> None:
    """Damage: while a person reads the question, another item becomes an orphan, and goes too."""
    deployed.write({"views/over.sql": ""})
    for name, why in {
        "another": "there is no item 'another'",
        "ove": "did you mean 'over'",
        "totals": "'totals' needs no drop",
    }.items():
        with pytest.raises(InvalidUsage, match=why):
            deployed.deploy(drop=(name,))
    assert set(deployed.core.catalog.items) == {"items", "totals", "over"}
    assert deployed.deploy(drop=("over",))["dropped"] == ["over"]
    assert set(deployed.core.catalog.items) == {"items", "totals"}


def test_only_steps_that_read_enough_in_some_time_tell_how_fast_this_machine_is() -> None:
    """Damage: a plan says that a view of millions takes a second, as a step of three rows did; or it fails."""
    many, few = RATED_ROWS_MIN, RATED_ROWS_MIN - 1

    def rate(**steps: tuple[int, int]) -> float | None:
        fields = {name: {"rows_read": rows, "ms": ms} for name, (rows, ms) in steps.items()}
        return _rate({f"{STEP}/{name}/{field}": n for name, each in fields.items() for field, n in each.items()})

    assert rate(slow=(many, 2_000), fast=(many, 1_000)) == many
    assert rate(slow=(many, 2_000), few=(few, 1), in_no_time=(many, 0)) == many / 2
    assert rate(few=(few, 1), in_no_time=(many, 0)) is None
