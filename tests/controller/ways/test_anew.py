"""An item is defined anew with all that reads it, in one write; or nothing is changed.  Over lists."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.controller.ways.site import Site
from tests.controller.ways.test_files import NAME, Lines, define, write

from strandline.client.subscribing import Updates
from strandline.controller.location.items import SUBSCRIBED
from strandline.errors import AsOfError, DefinitionError


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A source of files, a view over it, and one over that."""
    made = Site(tmp_path, Lines())
    write(made, "a.csv", 1)
    define(made)
    made.execute(
        "CREATE MATERIALIZED VIEW u AS SELECT v.n AS m FROM v",
        f"CREATE MATERIALIZATION out INTO sqlite OPTIONS (path '{tmp_path}/out.db') AS u KEY (m)",
    )
    made.clean()
    yield made
    made.env.close()


def shards(site: Site) -> dict[str, str]:
    """Return the shard of each collection."""
    return {name: getattr(item, "shard", "") for name, item in site.core.catalog.items.items()}


def test_the_statements_are_shown_and_nothing_is_done(site: Site) -> None:
    """Damage: who looks what would be defined anew loses history."""
    before = shards(site)
    found = site.env.anew(NAME.upper())
    assert (found["name"], found["items"], found["applied"]) == (NAME, [NAME, "v", "u", "out"], False)
    assert [each.split()[:2] for each in found["statements"]] == [
        ["CREATE", "SOURCE"],
        *[["CREATE", "MATERIALIZED"]] * 2,
        ["CREATE", "MATERIALIZATION"],
    ]
    assert shards(site) == before


def test_what_is_defined_anew_has_shards_of_its_own_and_neighbours_keep_theirs(site: Site) -> None:
    """Damage: a source that has lost its place goes on with what it had; or a neighbour loses its history."""
    before = shards(site)
    site.env.anew("v", apply=True)
    after = shards(site)
    assert {name for name in before if before[name] != after[name]} == {"v", "u"}
    site.clean()
    assert site.rows("u") == [(1,)]
    site.env.anew(NAME, apply=True)
    write(site, "b.csv", 2)
    site.clean()
    assert site.rows("u") == [(1,), (2,)]


def test_where_upstream_refuses_the_source_nothing_is_changed(site: Site) -> None:
    """Damage: the definitions of all that read the source are gone, and the source cannot be made."""
    before = site.core.catalog
    shutil.move(site.root / "in", site.root / "away")
    with pytest.raises(DefinitionError, match="does not exist; create it"):
        site.env.anew(NAME, apply=True)
    assert site.core.catalog == before
    shutil.move(site.root / "away", site.root / "in")
    site.clean()
    assert site.rows("u") == [(1,)]


def test_a_column_that_the_source_has_got_since_is_there_again(site: Site) -> None:
    """Damage: a source that is defined anew loses a column, and with it the views that read it."""
    site.execute("ALTER SOURCE `the shop's files` ADD COLUMN more BIGINT")
    columns = site.core.catalog.collection(NAME).schema
    site.env.anew(NAME, apply=True)
    assert site.core.catalog.collection(NAME).schema == columns
    site.clean()


def test_a_table_is_refused(site: Site) -> None:
    """Damage: rows that are nowhere else are gone."""
    with pytest.raises(DefinitionError, match="there is no source, view, index or materialization 't'"):
        site.env.anew("t", apply=True)


def test_the_view_of_a_subscription_goes_and_its_reader_learns_so(site: Site) -> None:
    """Damage: a source stays broken for as long as a client reads a query over it; or a reader waits for ever."""
    with closing(site.env.subscribe("SELECT m FROM u WHERE m > 0")) as events:
        site.clean()
        assert isinstance(next(events), Updates)
        found = site.env.anew(NAME)
        assert found["items"] == [NAME, "v", "u", "out"]
        assert not any(SUBSCRIBED in each for each in found["statements"])
        assert site.env.anew(NAME, apply=True)["items"] == [NAME, "v", "u", "out"]
        assert not any(each.startswith(SUBSCRIBED) for each in site.core.catalog.items)
        site.clean()
        with pytest.raises(AsOfError, match="the view of this query was dropped"):
            list(events)


@pytest.mark.parametrize("name", ["star", NAME])
def test_a_view_has_the_columns_that_it_had(site: Site, name: str) -> None:
    """Damage: a view that is read again has a column more, and its tables at endpoints get it without a word."""
    site.execute(
        f"CREATE MATERIALIZED VIEW star AS SELECT * FROM `{NAME}`",
        "ALTER SOURCE `the shop's files` ADD COLUMN more BIGINT",
    )
    before = site.core.catalog.collection("star").schema
    site.env.anew(name, apply=True)
    assert site.core.catalog.collection("star").schema == before
    site.clean()
    assert site.rows("star") == [(1,)]
