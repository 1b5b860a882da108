"""A source of a table of Delta or Iceberg that stops goes on by each way out that its problem names.  Over lists."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from iceberg_lake import IcebergLake
from pyiceberg.schema import Schema as Stored
from pyiceberg.types import LongType, NestedField, StringType
from table_place import table
from tests.controller.ways.site import Case, Site, take, ways_of

from strandline.problem import Way
from strandline.sources.readers.delta import reader as delta
from strandline.sources.readers.delta import table as delta_table
from strandline.sources.readers.iceberg import reader as iceberg
from strandline.sources.readers.iceberg import table as iceberg_table

COLUMNS: Final = "id BIGINT, kind STRING"
VIEW: Final = "CREATE MATERIALIZED VIEW v AS SELECT l.id AS id FROM l"
NARROW: Final = "DROP MATERIALIZED VIEW v", "DROP SOURCE l"


def ids(*expected: int) -> Callable[[Site], None]:
    """Return what asserts the rows of the view."""

    def then(site: Site) -> None:
        site.clean()
        assert site.rows("v") == [(n,) for n in expected]

    return then


def save(site: Site) -> None:
    """Keep a copy of the table."""
    shutil.copytree(site.root / "table", site.root / "saved")


def restore(site: Site) -> None:
    """Put the copy in the place of the table."""
    shutil.rmtree(site.root / "table", ignore_errors=True)
    shutil.copytree(site.root / "saved", site.root / "table")


# --- Delta -----------------------------------------------------------------------------------------------------------
class Lake:
    """The Delta table of a site."""

    def __init__(self, site: Site) -> None:
        self.path = site.root / "table"

    def write(self, rows: pa.Table, **options: Any) -> None:
        """Write a version."""
        write_deltalake(str(self.path), rows, mode=options.pop("mode", "append"), **options)

    def append(self, *numbers: int) -> None:
        """Append rows."""
        self.write(table(numbers))


def begin(site: Site) -> None:
    """Define the source of a table with one row, and a view over it."""
    Lake(site).append(1)
    site.execute(f"CREATE SOURCE l ({COLUMNS}) FROM delta (path '{site.root}/table')", VIEW)


def went_back(site: Site) -> None:
    """Put the table back to an older version."""
    save(site)
    Lake(site).append(2)
    site.clean()
    shutil.copytree(site.root / "table", site.root / "newer")
    restore(site)


def newer(site: Site) -> None:
    """Bring the table to where it was."""
    shutil.rmtree(site.root / "saved")
    shutil.move(site.root / "newer", site.root / "saved")
    restore(site)


def made_anew(site: Site) -> None:
    """Drop the table, and make another one."""
    shutil.rmtree(site.root / "table")
    Lake(site).append(7)


def log_forgotten(site: Site) -> None:
    """Have versions come and go in the log before they are read, while no environment looks."""
    site.env.close()
    for n in (2, 3, 4):
        Lake(site).append(n)
    DeltaTable(str(site.root / "table")).create_checkpoint()
    for version in range(2):
        (site.root / f"table/_delta_log/{version:020}.json").unlink()
    site.open()


def unread(harm: Callable[[Site], None]) -> Callable[[Site], None]:
    """Return what harms the file of a version that is bound and not read."""

    def harmed(site: Site) -> None:
        before = {*(site.root / "table").rglob("*.parquet")}
        Lake(site).append(2)
        save(site)
        reader = site.readers["l"]
        read = reader.read

        async def late(*arguments: Any, **named: Any) -> Any:
            reader.read = read
            for path in {*(site.root / "table").rglob("*.parquet")} - before:
                site.upstream = path
                harm(site)
            return await read(*arguments, **named)

        reader.read = late

    return harmed


def without_it(site: Site) -> None:
    """Have a version that needs the harmed file no more."""
    shutil.rmtree(site.root / "table/_delta_log")
    for path in (site.root / "table").glob("*.parquet"):
        path.unlink()
    Lake(site).append(1, 5)


def gone(site: Site) -> None:
    """Delete a file."""
    site.upstream.unlink()


def damaged(site: Site) -> None:
    """Write other bytes over a file."""
    site.upstream.write_bytes(b"other bytes")


def dropped_column(site: Site) -> None:
    """Drop a declared column, and go on."""
    Lake(site).write(pa.table({"id": pa.array([7], pa.int64())}), mode="overwrite", schema_mode="overwrite")


def column_again(site: Site) -> None:
    """Have the table with all columns."""
    Lake(site).write(table([8]), mode="overwrite", schema_mode="overwrite")


def narrow(connector: str) -> Callable[[Site], None]:
    """Return what defines the source with the columns that there are."""
    return lambda site: site.execute(
        *NARROW, f"CREATE SOURCE l (id BIGINT) FROM {connector} (path '{site.root}/table')", VIEW
    )


def away(site: Site) -> None:
    """Move the table away."""
    shutil.move(site.root / "table", site.root / "saved")


def moved(connector: str) -> Callable[[Site], None]:
    """Return what defines the source at the place where the table is."""
    return lambda site: site.execute(
        *NARROW, f"CREATE SOURCE l ({COLUMNS}) FROM {connector} (path '{site.root}/saved')", VIEW
    )


DELTA: Final = [
    Case(delta.ANOTHER, "l", begin, made_anew, then=ids(7)),
    Case(delta.BACK, "l", begin, went_back, {delta.BACK.ways[0].what: newer}),
    Case(
        delta.CHANGED,
        "l",
        begin,
        dropped_column,
        {delta.CHANGED.ways[0].what: column_again, delta.CHANGED.ways[1].what: narrow("delta")},
    ),
    Case(delta_table.FORGOTTEN, "l", begin, log_forgotten, then=ids(1, 2, 3, 4)),
    Case(
        delta_table.VACUUMED,
        "l",
        begin,
        unread(gone),
        {delta_table.VACUUMED.ways[0].what: restore, delta_table.VACUUMED.ways[1].what: without_it},
    ),
    Case(
        delta_table.DAMAGED,
        "l",
        begin,
        unread(damaged),
        {delta_table.DAMAGED.ways[0].what: restore, delta_table.DAMAGED.ways[1].what: without_it},
    ),
    Case(
        delta_table.ABSENT,
        "l",
        begin,
        away,
        {delta_table.ABSENT.ways[0].what: restore, delta_table.ABSENT.ways[1].what: moved("delta")},
        ids(1),
    ),
]


# --- Iceberg ---------------------------------------------------------------------------------------------------------
STORED: Final = Stored(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))


def ice(site: Site) -> IcebergLake:
    """Return the Iceberg table of a site."""
    return IcebergLake(site.root / "table")


def frozen(site: Site) -> None:
    """Define the source of a table with one row, and a view over it."""
    ice(site).create(table([1]), schema=STORED)
    site.execute(f"CREATE SOURCE l ({COLUMNS}) FROM iceberg (path '{site.root}/table')", VIEW)


def append(*numbers: int) -> Callable[[Site], None]:
    """Return what appends rows."""
    return lambda site: ice(site).stored().append(table(numbers))


def set_back(site: Site) -> None:
    """Set the branch back to its first snapshot, once another was read."""
    append(2)(site)
    site.clean()
    first = next(each for each in ice(site).stored().snapshots() if each.sequence_number == 1)
    ice(site).stored().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()


def refrozen(site: Site) -> None:
    """Drop the table, and make another one."""
    shutil.rmtree(site.root / "table")
    ice(site).create(table([7]), schema=STORED)


def expired(site: Site) -> None:
    """Expire the snapshot that was read, while no environment looks."""
    site.env.close()
    append(2)(site)
    append(3)(site)
    first = next(each for each in ice(site).stored().snapshots() if each.sequence_number == 1)
    ice(site).stored().maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    site.open()


def unfrozen(harm: Callable[[Site], None]) -> Callable[[Site], None]:
    """Return what harms the file of a snapshot that is bound and not read."""

    def harmed(site: Site) -> None:
        before = {*(site.root / "table/data").glob("*.parquet")}
        append(2)(site)
        save(site)
        reader = site.readers["l"]
        read = reader.read

        async def late(*arguments: Any, **named: Any) -> Any:
            reader.read = read
            for path in {*(site.root / "table/data").glob("*.parquet")} - before:
                site.upstream = path
                harm(site)
            return await read(*arguments, **named)

        reader.read = late

    return harmed


def column_gone(site: Site) -> None:
    """Drop a declared column."""
    with ice(site).stored().update_schema() as update:
        update.delete_column("kind")


def column_back(site: Site) -> None:
    """Add a column of that name."""
    with ice(site).stored().update_schema() as update:
        update.add_column("kind", StringType())


def moved_ice(site: Site) -> None:
    """Make the table where it is to be, and define the source there."""
    IcebergLake(site.root / "other").create(table([9]), schema=STORED)
    site.execute(*NARROW, f"CREATE SOURCE l ({COLUMNS}) FROM iceberg (path '{site.root}/other')", VIEW)


ICEBERG: Final = [
    Case(iceberg.BACK, "l", frozen, set_back, {iceberg.BACK.ways[0].what: append(3)}, ids(1, 3)),
    Case(iceberg.ANOTHER, "l", frozen, refrozen, then=ids(7)),
    Case(iceberg.EXPIRED, "l", frozen, expired, then=ids(1, 2, 3)),
    Case(
        iceberg_table.GONE,
        "l",
        frozen,
        unfrozen(gone),
        {iceberg_table.GONE.ways[0].what: restore, iceberg_table.GONE.ways[1].what: refrozen},
    ),
    Case(
        iceberg_table.DAMAGED,
        "l",
        frozen,
        unfrozen(damaged),
        {iceberg_table.DAMAGED.ways[0].what: restore, iceberg_table.DAMAGED.ways[1].what: refrozen},
    ),
    Case(
        iceberg_table.CHANGED,
        "l",
        frozen,
        column_gone,
        {iceberg_table.CHANGED.ways[0].what: column_back, iceberg_table.CHANGED.ways[1].what: narrow("iceberg")},
        ids(1),
    ),
    Case(
        iceberg_table.NO_HINT,
        "l",
        frozen,
        away,
        {iceberg_table.NO_HINT.ways[0].what: restore, iceberg_table.NO_HINT.ways[1].what: moved_ice},
    ),
]
CASES: Final = DELTA + ICEBERG


@pytest.mark.parametrize(("case", "way"), ways_of(CASES))
def test_a_source_of_a_lake_goes_on_by_what_its_problem_advises(
    case: Case, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a table whose log was cleaned up costs all above it, by hand; or neighbours stand, too."""
    site = Site(tmp_path)
    take(case, way, site, monkeypatch)
    site.env.close()
