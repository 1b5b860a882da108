"""A materialization that stops goes on again by each way out that its problem names.  Over lists, into SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from tests.controller.ways.site import Case, Site, take, ways_of

from strandline.instance.tasks import ERRORS
from strandline.materialize.driver import (
    FILLED_BY,
    FOREIGN_ROWS,
    NO_TABLE,
    ROWS_MISSING,
    SWALLOWED,
    TABLE_GONE,
    UNFIT,
    UNFIT_FOREIGN,
)
from strandline.materialize.drivers.sql.tables import ONLY_GROWS
from strandline.materialize.runtime import AHEAD
from strandline.materialize.stores import NOT_A_KEY, SECOND_ROW
from strandline.materialize.transfer import WENT
from strandline.problem import Way
from strandline.testing.lists.list_source import SCHEMA, ListReader, Upstream

OUT: Final = "my out"


def sql(site: Site, *statements: str) -> list[Any]:
    """Do statements at the endpoint, as another program; return what the last answers."""
    with closing(sqlite3.connect(site.root / "out.db", isolation_level=None)) as connection:
        return [connection.execute(each).fetchall() for each in statements][-1]


def into(site: Site, table: str = "o") -> None:
    """Define the materialization."""
    where = f"INTO sqlite OPTIONS (path '{site.root}/out.db')"
    site.execute(f"CREATE MATERIALIZATION `{OUT}` {where} AS w TO {table} KEY (k)")


def begin(site: Site) -> None:
    """Define a table with two rows, and its endpoint."""
    site.execute("CREATE TABLE w (k BIGINT, x BIGINT)")
    write(site, 1)
    write(site, 2)
    into(site)


def write(site: Site, key: int, x: int = 0) -> None:
    """Write a row into the table."""
    site.env.insert("w", [{"k": key, "x": x}])


def equal(site: Site) -> None:
    """Assert that the endpoint equals its collection, and follows it."""
    write(site, 9)
    site.clean()
    assert sql(site, "SELECT k, x FROM o ORDER BY k") == site.rows("w")


def beginning(harm: Callable[[Site], Any]) -> Callable[[Site], None]:
    """Return what harms the endpoint, and opens the environment anew: then it looks at its tables."""

    def harmed(site: Site) -> None:
        harm(site)
        site.reopen()

    return harmed


def meeting(harm: Callable[[Site], Any]) -> Callable[[Site], None]:
    """Return what harms the endpoint, and has the next transaction meet it."""

    def harmed(site: Site) -> None:
        harm(site)
        site.env.delete("w", [{"k": 1, "x": 0}])
        write(site, 3)

    return harmed


def undefined(site: Site) -> None:
    """Define the table, and no endpoint yet."""
    site.execute("CREATE TABLE w (k BIGINT, x BIGINT)")
    write(site, 1)


def foreign(*statements: str) -> Callable[[Site], None]:
    """Return what has something else there where the endpoint's table is to be."""

    def harmed(site: Site) -> None:
        sql(site, *statements)
        into(site)

    return harmed


def dropped_there(what: str = "TABLE o") -> Callable[[Site], object]:
    """Return what drops it there."""
    return lambda site: sql(site, f"DROP {what}")


def other_type(site: Site) -> None:
    """Give a column another type there."""
    sql(site, "DROP TABLE o", "CREATE TABLE o (k INTEGER, x BLOB)", "INSERT INTO o VALUES (1, 0)")


def pushing(more: str) -> Callable[[Site], None]:
    """Return what defines the materialization so that it pushes changes, after one of its name was dropped."""

    def define(site: Site) -> None:
        if OUT in site.core.catalog.items:
            site.execute(f"DROP MATERIALIZATION `{OUT}`")
        else:
            undefined(site)
        where = f"INTO sqlite OPTIONS (path '{site.root}/out.db', delta 'true'"
        site.execute(f"CREATE MATERIALIZATION `{OUT}` {where}{more}")

    return define


def removed(site: Site) -> None:
    """Remove the row."""
    site.env.delete("w", [{"k": 1, "x": 0}])


def of_another(site: Site) -> None:
    """Have a materialization of the same name of another location fill the table."""
    other = Site(site.root, processes="q")
    undefined(other)
    into(other)
    other.clean()
    other.env.close()
    into(site)


def other_name(site: Site) -> None:
    """Define the materialization with another table."""
    site.execute(f"DROP MATERIALIZATION `{OUT}`")
    into(site, table="p")


def both_names(site: Site) -> None:
    """Define a materialization of another name, with another table."""
    site.execute(f"DROP MATERIALIZATION `{OUT}`")
    where = f"INTO sqlite OPTIONS (path '{site.root}/out.db')"
    site.execute(f"CREATE MATERIALIZATION other {where} AS w TO p KEY (k)")


def twice(site: Site) -> None:
    """Have two rows of one key there when the endpoint begins."""
    write(site, 1, 5)
    into(site)


def once(site: Site) -> None:
    """Remove it again."""
    site.env.delete("w", [{"k": 1, "x": 5}])


def taken(site: Site) -> None:
    """Have another program write a key that comes."""
    sql(site, "INSERT INTO o (k, x) VALUES (3, 7)")
    write(site, 3)


def fewer(site: Site) -> None:
    """Remove the row that came."""
    site.env.delete("w", [{"k": 3, "x": 0}])


def trigger(site: Site) -> None:
    """Have a trigger there that swallows rows."""
    sql(
        site,
        "CREATE TRIGGER swallows BEFORE INSERT ON o BEGIN SELECT RAISE(IGNORE); END",
    )
    write(site, 3)


def backed_up(site: Site) -> None:
    """Go on, and restore the location from a backup, which knows less than the endpoint."""
    saved = site.saved()
    write(site, 3)
    site.clean()
    site.env.close()
    site.restore(saved)


def one_more(site: Site) -> None:
    """Assert that the endpoint equals its collection, and follows it."""
    equal(site)


def erring(site: Site) -> None:
    """Define a source, and an endpoint of a view over it."""
    site.upstream.produce("p", 1)
    site.execute(
        f"CREATE SOURCE l ({SCHEMA.ddl}) FROM kafka (servers = 'k:9092', topic = 't', format = 'json')",
        "CREATE MATERIALIZED VIEW w AS SELECT l.offset AS k, l.value AS x FROM l",
    )
    site.clean()
    into(site)


def undecodable(site: Site) -> None:
    """Have a message come that cannot be decoded, and one that can."""
    site.upstream.produce("p", None, 3)


def dismiss(site: Site) -> None:
    """Dismiss the error."""
    site.env.skip("l", apply=True)


def good(site: Site) -> None:
    """Assert that the good rows are there."""
    assert sql(site, "SELECT k, x FROM o ORDER BY k") == [(0, 1), (2, 3)]


FOREIGN: Final = {way.what: do for way, do in zip(FOREIGN_ROWS.ways, (dropped_there(), other_name), strict=True)}
CASES: Final = [
    Case(AHEAD, OUT, begin, backed_up, then=one_more),
    Case(ERRORS, OUT, erring, undecodable, {ERRORS.ways[0].what: dismiss}, good),
    Case(TABLE_GONE, OUT, begin, beginning(dropped_there()), then=equal),
    Case(UNFIT, OUT, begin, beginning(other_type), then=equal),
    Case(ROWS_MISSING, OUT, begin, meeting(lambda site: sql(site, "DELETE FROM o")), then=equal),
    Case(SWALLOWED, OUT, begin, trigger, {SWALLOWED.ways[0].what: dropped_there("TRIGGER swallows")}, equal),
    Case(NOT_A_KEY, OUT, undefined, twice, {NOT_A_KEY.ways[0].what: once}, equal),
    Case(SECOND_ROW, OUT, begin, taken, {SECOND_ROW.ways[0].what: fewer}),
    Case(
        FOREIGN_ROWS,
        OUT,
        undefined,
        foreign("CREATE TABLE o (k INTEGER, x INTEGER)", "INSERT INTO o VALUES (7, 7)"),
        FOREIGN,
    ),
    Case(
        FILLED_BY,
        OUT,
        undefined,
        of_another,
        {way.what: do for way, do in zip(FILLED_BY.ways, (dropped_there(), both_names), strict=True)},
    ),
    Case(
        ONLY_GROWS,
        OUT,
        pushing(") AS w TO o KEY (k)"),
        removed,
        {ONLY_GROWS.ways[0].what: pushing(", diffs 'true') AS w TO p")},
    ),
    Case(
        WENT,
        OUT,
        pushing(") AS w TO o"),
        removed,
        {WENT.ways[0].what: pushing(", diffs 'true') AS w TO p")},
    ),
    Case(UNFIT_FOREIGN, OUT, undefined, foreign("CREATE TABLE o (other TEXT)"), FOREIGN),
    Case(
        NO_TABLE,
        OUT,
        undefined,
        foreign("CREATE VIEW o AS SELECT 1 AS k"),
        {NO_TABLE.ways[0].what: dropped_there("VIEW o"), NO_TABLE.ways[1].what: other_name},
    ),
]


@pytest.mark.parametrize(("case", "way"), ways_of(CASES))
def test_an_endpoint_goes_on_by_what_its_problem_advises(
    case: Case, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a table that a person changed is never right again; or neighbours stand, too."""
    upstream = Upstream()

    async def reader(_: object) -> ListReader:
        return ListReader(upstream)

    site = Site(tmp_path, doubles={"kafka": reader}, upstream=upstream)
    take(case, way, site, monkeypatch)
    site.env.close()
