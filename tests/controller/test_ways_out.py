"""Each problem of a source of files says what ends it; that is done here, word for word.  On Spark."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.controller.ways.site import command, follow, says

from strandline.errors import DefinitionError
from strandline.problem import Problem
from strandline.sources.readers.files.reader import CHANGED, VANISHED_LATER

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark
Rows = Callable[..., list[dict[str, Any]]]
NAME: Final = "the shop's files"
HARMS: Final[dict[str, Callable[[Path], object]]] = {
    "vanished": Path.unlink,
    "changed": lambda path: path.write_text("id\n7\n8\n9\n"),
}


@pytest.mark.parametrize(
    ("harm", "problem", "way", "left"),
    [
        ("vanished", VANISHED_LATER, 1, 11),
        ("vanished", VANISHED_LATER, 2, 11),
        ("vanished", VANISHED_LATER, 3, 10),
        ("changed", CHANGED, 1, 11),
        ("changed", CHANGED, 2, 10),
    ],
    ids=str,
)
def test_a_file_that_is_harmed_upstream_stops_its_source_until_its_advice_is_followed(
    place: Place,
    rows: Rows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: str,
    problem: Problem,
    way: int,
    left: int,
) -> None:
    """Damage: only dropping the source with all its views and endpoints ends the problem; or neighbours stand, too."""
    inbox = tmp_path / "in"
    inbox.mkdir()

    def write(name: str, number: int) -> Path:
        path = inbox / name
        path.write_text(f"id\n{number}\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        return path

    first = write("it's first.csv", 1)
    with place.open() as env:
        env.execute(f"CREATE SOURCE `{NAME}` (id BIGINT) FROM files (path '{inbox}/*.csv', settle '0')")
        env.execute(f"CREATE MATERIALIZED VIEW v AS SELECT sum(id) AS n FROM `{NAME}`")
        env.execute("CREATE TABLE t (id BIGINT)")
        env.execute("CREATE MATERIALIZED VIEW beside AS SELECT count(*) AS n FROM t")
        env.tick(wait=True)
        env.tick(wait=True)  # now upstream may forget the file
    HARMS[harm](first)
    with place.open() as env:
        env.insert("t", [{"id": 1}])
        env.tick()
        status = env.status()["collections"]
        said = status[NAME]["problem"]
        assert says(said, problem)
        assert not status["beside"]["problem"]
        assert rows(env, "SELECT n FROM beside") == [{"n": 1}]
        follow(env, command(said, problem.ways[way]), monkeypatch)
        write("second.csv", 10)
        env.tick(wait=True)
        assert not env.status()["problems"]
        assert rows(env, "SELECT n FROM v") == [{"n": left}]
        assert env.verify("v").ok
    with place.open() as env:
        env.tick(wait=True)
        assert not env.status()["problems"], "the next process knows of it"


def test_a_file_that_cannot_be_skipped_is_refused(place: Place, tmp_path: Path) -> None:
    """Damage: a typing mistake says nothing, and the source stands still; or a source of another kind fails raw."""
    (tmp_path / "in").mkdir()
    with place.open() as env:
        env.execute(f"CREATE SOURCE f (id BIGINT) FROM files (path '{tmp_path}/in/*.csv')")
        env.execute("CREATE SOURCE c (counter BIGINT) FROM counter (every = '1s')")
        with pytest.raises(DefinitionError, match="source 'f' has taken no file 'x.csv'"):
            env.skip("f", file="x.csv", apply=True)
        with pytest.raises(DefinitionError, match="source 'c' reads no files"):
            env.skip("c", file="x.csv", apply=True)
        with pytest.raises(DefinitionError, match="there is no source 'd'"):
            env.skip("d", file="x.csv")
        with pytest.raises(DefinitionError, match="'path' cannot be altered, only errors_max, evolve, archive"):
            env.execute("ALTER SOURCE f SET (path '/x/*.csv')")
        with pytest.raises(DefinitionError, match="'retain' cannot be altered, only errors_max, evolve"):
            env.execute("ALTER SOURCE c SET (retain 'false')")
        with pytest.raises(DefinitionError, match="retain"):
            env.execute("ALTER SOURCE f SET (retain 'maybe')")
