"""A materialization goes on by what its problem advises if its file, its table or its program fails it.  Over lists."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.controller.ways.endpoint import (
    OUT,
    Do,
    beginning,
    defined,
    equals,
    first_goes,
    in_turn,
    restored,
    saved,
    third,
    third_goes,
    two_rows,
    write,
)
from tests.controller.ways.site import Case, Site, take, ways_of

from strandline.errors import Unavailable
from strandline.materialize.drivers.files import table
from strandline.materialize.drivers.staged.applying import (
    FILLED_GONE,
    PIECES_MISSING,
    ROLLED_BACK,
    STAGED_GONE,
    Applier,
)
from strandline.materialize.protocol.refusals import (
    DAMAGED,
    IRREDUCIBLE,
    OTHER_CHECKPOINT,
    OTHER_VERSION,
    PARTED,
    REDUCED_WENT,
    REFUSED,
    UNOPENED,
    UNWRITABLE,
)
from strandline.materialize.wire.process.child import NO_PROGRAM
from strandline.problem import Way

# --- SQLite ----------------------------------------------------------------------------------------------------------
SQLITE: Final = "sqlite OPTIONS (path 'ROOT/{}.db')"
HERE, THERE = defined(SQLITE.format("out")), defined(SQLITE.format("other"))


def sql(site: Site, *statements: str, name: str = "out") -> list[Any]:
    """Do statements at the endpoint, as another program; return what the last answers."""
    with closing(sqlite3.connect(site.root / f"{name}.db", isolation_level=None)) as connection:
        return [connection.execute(each).fetchall() for each in statements][-1]


def rows(site: Site) -> list[Any]:
    """Return the rows of the endpoint."""
    name = "other" if (site.root / "other.db").exists() else "out"
    return sql(site, "SELECT k, x FROM o ORDER BY k", name=name)


def refusing(site: Site) -> None:
    """Have a trigger there that refuses what comes."""
    sql(site, "CREATE TRIGGER refuses BEFORE INSERT ON o BEGIN SELECT RAISE(ABORT, 'not today'); END")
    third(site)


def allowing(site: Site) -> None:
    """Drop the trigger."""
    sql(site, "DROP TRIGGER refuses")


def a_directory(site: Site) -> None:
    """Have a directory where the file was."""
    saved("out.db")(site)
    (site.root / "out.db").unlink()
    (site.root / "out.db").mkdir()
    third(site)


def overwritten(site: Site) -> None:
    """Overwrite what the file has behind its first page."""
    sql(site, "PRAGMA wal_checkpoint(TRUNCATE)")
    saved("out.db")(site)
    file = site.root / "out.db"
    data = file.read_bytes()
    file.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    third(site)


def parted(site: Site) -> None:
    """Have halves of the keys at two times, as an operator who mends the table of checkpoints by hand."""
    [(task, begin, end, fence, checkpoint)] = sql(site, "SELECT * FROM strandline_checkpoints")
    middle = (begin + end) // 2
    earlier = checkpoint.replace(checkpoint.split('":')[1].split("}")[0], "1")
    assert earlier != checkpoint
    with closing(sqlite3.connect(site.root / "out.db")) as connection, connection:
        connection.execute("DELETE FROM strandline_checkpoints")
        for row in ((task, begin, middle, fence, checkpoint), (task, middle + 1, end, fence, earlier)):
            connection.execute("INSERT INTO strandline_checkpoints VALUES (?, ?, ?, ?, ?)", row)
    site.reopen()


def summing(strategy: str) -> Do:
    """Return what defines the materialization so that the rows of a key are reduced."""
    schema = {"reduce": {"strategy": "merge"}, "properties": {"x": {"reduce": {"strategy": strategy}}}}
    return defined(f"sqlite OPTIONS (path 'ROOT/out.db', reduce '{json.dumps(schema)}')")


def too_much(site: Site) -> None:
    """Have rows of one key come whose sum no column holds."""
    site.env.insert("w", [{"k": 1, "x": 2**62}])
    site.env.insert("w", [{"k": 1, "x": 2**62}])


def less(site: Site) -> None:
    """Remove one of them."""
    site.env.delete("w", [{"k": 1, "x": 2**62}])


# --- Delta, files ----------------------------------------------------------------------------------------------------
LAKE: Final = defined("delta OPTIONS (path 'ROOT/lake')")


def stored(site: Site) -> DeltaTable:
    """Return the table."""
    return DeltaTable(str(site.root / "lake" / "o"))


def in_lake(site: Site) -> list[Any]:
    """Return the rows of the table."""
    found = pa.table(stored(site).to_pyarrow_table()).select(["k", "x"]).to_pylist()
    return sorted(tuple(each.values()) for each in found)


def partitioned(site: Site) -> None:
    """Have another program's table there, with partitions."""
    nothing = pa.table({"k": pa.array([], pa.int64()), "x": pa.array([], pa.int64())})
    write_deltalake(str(site.root / "lake" / "o"), nothing, partition_by=["k"])
    LAKE(site)


def removed(name: str) -> Do:
    """Return what removes a directory of the endpoint."""
    return lambda site: shutil.rmtree(site.root / name)


def emptied(site: Site) -> None:
    """Have another program remove all rows."""
    stored(site).delete()


def rolled_back(site: Site) -> None:
    """Put an older version in the place of the table."""
    saved("lake")(site)
    third(site)
    site.clean()
    restored("lake")(site)
    site.reopen()


def unstaged(site: Site) -> None:
    """Have the process die between the commit and what applies it, and another program remove what is staged."""

    def dies(*_: Any) -> bool:
        raise Unavailable("the process dies here")

    third(site)
    before = {*(site.root / "lake").rglob("*.parquet")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Applier, "apply", dies)
        site.tick()
    staged = {*(site.root / "lake").rglob("*.parquet")} - before
    assert staged
    for each in staged:
        each.unlink()


FILES: Final = (
    defined("files OPTIONS (path 'ROOT/files', format 'csv')"),
    defined("files OPTIONS (path 'ROOT/others', format 'csv')"),
)


def newer(site: Site) -> None:
    """Start the version after this one."""
    newer_format = table.FORMAT + 1
    for module in (table, table):
        site.upstream.setattr(module, "FORMAT", newer_format)
    site.reopen()


def older(site: Site) -> None:
    """Start this version again."""
    site.upstream.undo()
    site.reopen()


# --- a connector -----------------------------------------------------------------------------------------------------
def served(site: Site, program: str = "connector") -> None:
    """Define the materialization by a connector that the site has, and its program."""
    installed(site, program)
    config = f'{{"path": "{site.root}/out.db"}}'
    environment = "PYTHONPATH"
    defined(f"connector OPTIONS (command '{site.root}/{program}', config '{config}', environment '{environment}')")(
        site
    )


def installed(site: Site, program: str = "connector") -> None:
    """Install the program."""
    file = site.root / program
    file.write_text(f"#!/bin/sh\nexec {sys.executable} -m strandline driver serve sqlite\n")
    file.chmod(0o755)


def uninstalled(site: Site) -> None:
    """Remove the program, and start again."""
    (site.root / "connector").unlink()
    site.reopen()


def other_program(site: Site) -> None:
    """Define the materialization with another program."""
    served(site, "another")


ELSEWHERE: Final = Way("drop the materialization, and create it at another place")
CASES: Final = [
    Case(
        REFUSED,
        OUT,
        beginning(HERE),
        refusing,
        {way.what: do for way, do in zip(REFUSED.ways, (allowing, third_goes), strict=True)},
    ),
    Case(
        UNOPENED,
        OUT,
        beginning(HERE),
        a_directory,
        {way.what: do for way, do in zip(UNOPENED.ways, (restored("out.db"), THERE), strict=True)},
        equals(rows),
    ),
    Case(
        DAMAGED,
        OUT,
        beginning(HERE),
        overwritten,
        {way.what: do for way, do in zip(DAMAGED.ways, (restored("out.db"), THERE), strict=True)},
        equals(rows),
    ),
    Case(PARTED, OUT, beginning(HERE), parted, then=equals(rows)),
    Case(
        IRREDUCIBLE,
        OUT,
        beginning(summing("sum")),
        too_much,
        {way.what: do for way, do in zip(IRREDUCIBLE.ways, (less, summing("maximize")), strict=True)},
    ),
    Case(REDUCED_WENT, OUT, beginning(summing("sum")), first_goes),
    Case(
        UNWRITABLE,
        OUT,
        two_rows,
        partitioned,
        {
            way.what: do
            for way, do in zip(
                UNWRITABLE.ways, (removed("lake/o"), defined("delta OPTIONS (path 'ROOT/lake')", "p")), strict=True
            )
        },
    ),
    Case(PIECES_MISSING, OUT, beginning(LAKE), in_turn(emptied, first_goes), then=equals(in_lake)),
    Case(FILLED_GONE, OUT, beginning(LAKE), in_turn(removed("lake/o"), third), then=equals(in_lake)),
    Case(ROLLED_BACK, OUT, beginning(LAKE), rolled_back, then=equals(in_lake)),
    Case(STAGED_GONE, OUT, beginning(LAKE), unstaged, then=equals(in_lake)),
    Case(
        OTHER_VERSION,
        OUT,
        in_turn(newer, beginning(FILES[0])),
        older,
        {way.what: do for way, do in zip(OTHER_VERSION.ways, (newer, FILES[1]), strict=True)},
    ),
    Case(
        NO_PROGRAM,
        OUT,
        beginning(served),
        uninstalled,
        {way.what: do for way, do in zip(NO_PROGRAM.ways, (installed, other_program), strict=True)},
        equals(rows),
    ),
]


@pytest.mark.parametrize(("case", "way"), ways_of(CASES))
def test_an_endpoint_that_fails_as_a_whole_goes_on_by_what_its_problem_advises(
    case: Case, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a file or a program that is gone stops a materialization for ever; or neighbours stand, too."""
    site = Site(tmp_path, upstream=monkeypatch)
    take(case, way, site, monkeypatch)
    site.env.close()


def test_a_database_that_was_restored_is_waited_for_and_goes_on_by_itself(tmp_path: Path) -> None:
    """Damage: status advises an operator who restored a database to fill all of it again."""
    site = Site(tmp_path)
    beginning(HERE)(site)
    site.clean()
    saved("out.db")(site)
    third(site)
    site.clean()
    restored("out.db")(site)
    write(site, 4)
    assert site.tick()["waiting"] == {OUT: OTHER_CHECKPOINT.said()}
    site.clean()
    equals(rows)(site)
    site.env.close()
