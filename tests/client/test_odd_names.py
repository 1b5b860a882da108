"""Columns may be called anything but `__…`: what they hold comes through every statement, view, peek and endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession
from tests.client.odd_names import (
    ALL,
    GROUPS,
    NUL,
    blamed,
    chosen,
    followed,
    kept,
    looked_up,
    multiset,
    served,
    views,
    written,
)
from tests.client.odd_places import FORMS, LACKS, LANDED, LOCAL, NUMBERS, SERVED, Way, into, split

import strandline
from strandline.algebra.schema import quote
from strandline.client import Environment
from strandline.errors import DefinitionError

pytestmark = [pytest.mark.spark, pytest.mark.time_limit(900)]

SHARE: Final = 2 * len(GROUPS)
"""`make test` has one case of so many."""


def test_there_are_many_and_no_two_are_one() -> None:
    """Damage: the tests below leave a kind of name out."""
    assert len({name.lower() for name in ALL}) == len(ALL) >= 120


@pytest.mark.drawn(SHARE)
@pytest.mark.parametrize("part", ["views", "answers", "endpoint", "file"])
@pytest.mark.parametrize("group", GROUPS)
def test_columns_may_be_called_anything(spark: SparkSession, tmp_path: Path, group: str, part: str) -> None:
    """Damage: a view sums, joins or orders by another column, whose name a library took this one for, or it stops.

    Each group meets two ways of keeping a view, one endpoint and one format of files; below, all names meet all.
    """
    number, names = [*GROUPS].index(group), GROUPS[group]
    with strandline.open(str(tmp_path / "data"), spark=spark) as env:
        match part:
            case "views":
                ways = [*views(names)]
                _views(env, names, [ways[number % len(ways)], ways[(number + 3) % len(ways)]])
            case "answers":
                _answers(env, names, tmp_path, spark)
            case "endpoint":
                LANDED[f"into {[*LOCAL][number % len(LOCAL)]}"](env, names, tmp_path, None)
            case _:
                LANDED[f"from {FORMS[number % len(FORMS)]}"](env, names, tmp_path, None)


@pytest.mark.server
@pytest.mark.drawn(len(SERVED) * len(GROUPS))
@pytest.mark.parametrize("way", SERVED)
@pytest.mark.parametrize("group", GROUPS)
def test_columns_of_a_server_may_be_called_anything(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, group: str, way: str
) -> None:
    """Damage: rows come from an upstream, or stand at an endpoint, under another name, or a task fails for ever."""
    names, _ = split(way, GROUPS[group])
    if len(names) < 3:
        names += GROUPS["points"]
    with strandline.open(str(tmp_path / "data"), spark=spark) as env:
        SERVED[way](env, names, tmp_path, request)


@pytest.mark.server
@pytest.mark.parametrize("kind", LACKS)
def test_a_name_that_an_endpoint_cannot_have_is_refused_at_create(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    """Damage: the materialization is made, and its task fails with what the server says of a statement of ours."""
    with strandline.open(str(tmp_path / "data"), spark=spark) as env, into(kind, tmp_path, request) as (endpoint, _):
        for number, name in enumerate(split(kind, [*ALL, NUL])[1]):
            env.execute(f"CREATE TABLE t{number} (id INT, {quote(name)} INT)")
            wanted = rf"^'t{number}' cannot be materialized into 's': column .* another name in a view \(`… AS name`\)"
            with pytest.raises(DefinitionError, match=wanted) as error:
                env.execute(f"CREATE MATERIALIZATION m INTO {endpoint} AS t{number} TO s KEY (id)")
            assert f": column {repr(name)[:30]}" in str(error.value)
            assert len(str(error.value)) < 500


@pytest.mark.server
def test_two_columns_that_are_one_to_an_endpoint_are_refused_at_create(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Damage: likewise, and for ever, since the server makes no such table."""
    with strandline.open(str(tmp_path / "data"), spark=spark) as env, into("mariadb", tmp_path, request) as (there, _):
        env.execute("CREATE TABLE t (id INT, `İ` INT, `i` INT)")
        with pytest.raises(
            DefinitionError, match="'İ' and 'i' of 's' are one name to MariaDB; give one of them another"
        ):
            env.execute(f"CREATE MATERIALIZATION m INTO {there} AS t TO s KEY (id)")


WAYS: Final[dict[str, Way]] = {
    "views": lambda env, names, _, __: _views(env, names, [*views(names)]),
    "answers": lambda env, names, root, request: _answers(env, names, root, request.getfixturevalue("spark")),
    **LANDED,
    **SERVED,
}


@pytest.mark.slow
@pytest.mark.time_limit(1800)
@pytest.mark.parametrize("way", WAYS)
def test_all_names_come_by_each_way(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, way: str
) -> None:
    """Damage: likewise, for a name, an upstream or an endpoint that the shares above leave out."""

    def check(names: Sequence[str]) -> None:
        root = tmp_path / str(next(NUMBERS))
        root.mkdir()
        with strandline.open(str(root / "data"), spark=spark) as env:
            WAYS[way](env, names, root, request)

    held, _ = split(way, ALL)
    assert len(held) >= 120
    assert [*blamed(check, held)] == []


def test_a_name_of_ours_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: a column replaces the time or the count of a row."""
    with strandline.open(str(tmp_path / "data"), spark=spark) as env:
        for name in ("__time", "__diff", "__error", "__x"):
            with pytest.raises(DefinitionError, match=f"'{name}'"):
                env.execute(f"CREATE TABLE ours (id INT, {quote(name)} INT)")
        with pytest.raises(DefinitionError, match="'A'"):
            env.execute("CREATE TABLE twice (a INT, A INT)")


def test_a_name_that_no_file_can_have_is_refused_at_create(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: the source is made, and each of its files is an error that speaks of something else."""
    long = "x" * 50_001
    with strandline.open(str(tmp_path / "data"), spark=spark) as env:
        with pytest.raises(DefinitionError, match=r"'a\\nb' has a line break .* multiline = 'true'"):
            env.execute(f"CREATE SOURCE s (id INT, `a\nb` INT) FROM files (path '{tmp_path}/*.csv', settle 0)")
        with pytest.raises(DefinitionError, match="'xxxxxxxxxxxxxxxxxxxx' has a name of 50001 characters"):
            env.execute(f"CREATE SOURCE s (id INT, {long} INT) FROM files (path '{tmp_path}/*.json', settle 0)")
        (tmp_path / "a.json").write_text(f'{{"id": 1}}\n{{"id": 2, "{long}": 3}}\n')
        env.execute(f"CREATE SOURCE s (id INT) FROM files (path '{tmp_path}/*.json', settle 0)")
        env.tick()
        (error,) = env.query("SELECT * FROM s_errors").collect()
        assert "it has a field whose name has more than 50000 characters" in str(error)


def _views(env: Environment, names: Sequence[str], wanted: Sequence[str]) -> None:
    expected = written(env, names, wanted)
    assert multiset(env.query("SELECT * FROM t").toArrow().to_pylist()) == multiset(expected)
    kept(env, wanted)


def _answers(env: Environment, names: Sequence[str], root: Path, spark: SparkSession) -> None:
    expected = written(env, names, [])
    looked_up(env, names, expected)
    followed(env, names, expected)
    chosen(env, names, str(root / "data"), spark)
    served(env, names, expected)
