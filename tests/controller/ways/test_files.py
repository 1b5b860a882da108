"""A source of files that stops goes on again by each way out that its problem names.  Over lists, with real files."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from tests.controller.ways.site import Case, Site, take, ways_of

from strandline.algebra.messages import DatedFile, FileFormat
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.errors import DefinitionError
from strandline.instance.error_half import EXCEEDED
from strandline.persist.handles.contents import Rows
from strandline.problem import Way, cases_of
from strandline.sources.reader import COLUMNS_UNREAD
from strandline.sources.readers.files.reader import ABSENT, CHANGED, VANISHED, VANISHED_LATER
from strandline.testing.lists.list_engine import updates

NAME: Final = "the shop's files"
FIRST: Final = "it's first.csv"
OLD_NS: Final = 1_600_000_000_000_000_000


class Lines:
    """A decoder of files of numbers, below a header: in this process."""

    def stream(self, path: str) -> pa.NativeFile:
        """See `FileDecoder.stream`."""
        return pa.input_stream(path)

    async def decode(self, files: Sequence[DatedFile], schema: Schema, form: FileFormat, *, locate: bool) -> Rows:
        """See `FileDecoder.decode`."""
        rows: list[dict[str, Any]] = []
        for file in files:
            for line in Path(file.path).read_text().splitlines()[1:]:
                try:
                    rows.append({"n": int(line.partition(",")[0]), TIME: file.time, DIFF: file.diff})
                except ValueError:
                    rows.append({ERROR: '{"file": "f", "reason": "no number"}', TIME: file.time, DIFF: file.diff})
        return updates(schema, rows)


def write(site: Site, name: str, *lines: object) -> None:
    """Put a file of lines into the directory."""
    path = site.root / "in" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("n\n" + "".join(f"{each}\n" for each in lines))
    os.utime(path, ns=(OLD_NS, OLD_NS))


def define(site: Site, more: str = "") -> None:
    """Define the source, with more options, and a view over it."""
    options = f"path '{site.root}/in/*.csv', settle '0'{more}"
    site.execute(
        f"CREATE SOURCE `{NAME}` (n BIGINT) FROM files ({options})",
        f"CREATE MATERIALIZED VIEW v AS SELECT f.n AS n FROM `{NAME}` f",
    )


def read(site: Site, more: str = "") -> None:
    """Define the source with one file that is durable, and that upstream may forget."""
    write(site, FIRST, 1, 2)
    define(site, more)
    site.clean()
    site.clean()


def gone(site: Site) -> None:
    """Delete the file, and open the environment anew, which looks at all files."""
    (site.root / "in" / FIRST).unlink()
    site.reopen()


def unread(site: Site) -> None:
    """Have a file bound, and gone before it is read."""
    write(site, "second.csv", 7)
    reader = site.readers[NAME]
    looked = reader._look

    async def vanish(names: Sequence[str], *, listed: bool = False) -> Any:
        if not listed and "second.csv" in names:
            (site.root / "in" / "second.csv").unlink()
            reader._look = looked
        return await looked(names, listed=listed)

    reader._look = vanish


def rows(*expected: int) -> Any:
    """Return what asserts the rows of the view, once another file has come."""

    def then(site: Site) -> None:
        write(site, "later.csv", 10)
        site.clean()
        assert site.rows("v") == [(n,) for n in sorted((*expected, 10))]
        site.reopen()
        site.clean()

    return then


def put_back(site: Site) -> None:
    """Put the file back as it was."""
    write(site, FIRST, 1, 2)


def undecodable(site: Site) -> None:
    """Write lines that are no numbers."""
    write(site, "bad.csv", "x", "y", 3)


CASES: Final = [
    Case(CHANGED, NAME, read, lambda site: write(site, FIRST, 1, 2, 3), {CHANGED.ways[0].what: put_back}),
    Case(VANISHED_LATER, NAME, read, gone, {VANISHED_LATER.ways[0].what: put_back}),
    Case(VANISHED, NAME, read, unread, {VANISHED.ways[0].what: lambda site: write(site, "second.csv", 7)}),
    Case(
        ABSENT,
        NAME,
        read,
        lambda site: shutil.move(site.root / "in", site.root / "away"),
        {
            ABSENT.ways[0].what: lambda site: shutil.move(site.root / "away", site.root / "in"),
            ABSENT.ways[1].what: lambda site: site.execute(
                "DROP MATERIALIZED VIEW v",
                f"DROP SOURCE `{NAME}`",
                f"CREATE SOURCE `{NAME}` (n BIGINT) FROM files (path '{site.root}/away/*.csv', settle '0')",
            ),
        },
    ),
    Case(
        EXCEEDED,
        NAME,
        lambda site: read(site, ", errors_max '1', on_error 'continue'"),
        undecodable,
    ),
]
LEFT: Final = {
    CHANGED: {0: (1, 2), 1: (1, 2), 2: ()},
    VANISHED_LATER: {0: (1, 2), 1: (1, 2), 2: (1, 2), 3: ()},
    VANISHED: {0: (1, 2, 7), 1: (1, 2)},
}
"""The rows of the file, and of what was there before, after each way out."""


@pytest.mark.parametrize(("case", "way"), ways_of(CASES))
def test_a_source_of_files_goes_on_by_what_its_problem_advises(
    case: Case, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: only dropping the source with all its views and endpoints ends the problem; or neighbours stand, too."""
    site = Site(tmp_path, Lines())
    take(case, way, site, monkeypatch)
    if case.problem in LEFT:
        rows(*LEFT[case.problem][case.problem.ways.index(way)])(site)
    site.env.close()


def test_status_tells_the_ways_out_of_notices_as_data(tmp_path: Path) -> None:
    """Damage: a program takes the statement that adds a column out of a text, in which upstream names columns."""
    site = Site(tmp_path, Lines())
    write(site, FIRST, 1)
    define(site)
    site.tick()
    wide = site.root / "in" / "wide.csv"
    wide.write_text("n,more; DROP TABLE t\n1,2\n")
    os.utime(wide, ns=(OLD_NS, OLD_NS))
    site.tick()
    site.tick()
    found = site.env.status()["collections"][NAME]
    ((told,),) = found["notice_cases"]
    assert (len(found["notices"]), told["name"]) == (1, COLUMNS_UNREAD.name)
    assert [way["command"] for way in told["ways"]] == [found["notices"][0].partition("from now on: ")[2]]
    assert site.env.figures()["items"][NAME]["notice_cases"] == found["notice_cases"]
    published = site._loop.run(site.core.health.last_notices())
    assert [cases_of(each) for each in published[NAME.lower()]] == [
        cases_of(each) for each in site.core.writing.running.report().notices[NAME.lower()]
    ]
    json.dumps(found)
    site.env.close()


@pytest.mark.parametrize("name", ["a; b.csv", "a.csv; or run: strandline anew orders --apply.csv"])
def test_status_tells_the_ways_out_as_data_whatever_files_are_called(name: str, tmp_path: Path) -> None:
    """Damage: who may name a file writes a command that an operator copies; or the command is cut at a sign of it."""
    site = Site(tmp_path, Lines())
    write(site, name, 1)
    define(site)
    site.clean()
    site.clean()
    (site.root / "in" / name).unlink()
    site.reopen()
    found = site.tick()["collections"][NAME]
    (told,) = found["cases"]
    assert (told["name"], told["cause"]) == (VANISHED_LATER.name, found["problem"].partition("; put it back")[0])
    assert [way["what"] for way in told["ways"]] == [way.what for way in VANISHED_LATER.ways]
    skip = ["strandline", "source", "skip", NAME, "--file", name, "--apply"]
    assert shlex.split(told["ways"][2]["command"]) == skip
    assert site.env.figures()["items"][NAME]["cases"] == found["cases"]
    published = site._loop.run(site.core.health.published())
    assert cases_of(published[NAME.lower()]) == cases_of(site.core.health.problems()[NAME.lower()]) != ()
    json.dumps(found)
    site.env.close()


@pytest.mark.parametrize(
    ("leaves", "alter"),
    [
        ("on_durable 'delete'", "SET (on_durable 'keep')"),
        ("on_durable 'delete'", "RESET (on_durable)"),
        ("on_durable 'archive', archive '{root}/away'", "RESET (on_durable, archive)"),
    ],
)
def test_files_that_were_let_go_are_not_missed_afterwards(leaves: str, alter: str, tmp_path: Path) -> None:
    """Damage: the files that the source deleted itself have vanished; it stops, and is advised to take back rows."""
    site = Site(tmp_path, Lines())
    read(site, ", " + leaves.format(root=tmp_path))
    site.clean()
    assert not list((tmp_path / "in").iterdir())
    with pytest.raises(DefinitionError, match="set retain 'false' as well"):
        site.execute(f"ALTER SOURCE `{NAME}` {alter}")
    site.clean()
    site.execute(f"ALTER SOURCE `{NAME}` SET (retain 'false')", f"ALTER SOURCE `{NAME}` {alter}")
    site.clean()
    write(site, "second.csv", 3)
    site.clean()
    assert (site.rows("v"), len(list((tmp_path / "in").iterdir()))) == ([(1,), (2,), (3,)], 1)
    site.env.close()
