"""Files get columns while a source of them, a view and an endpoint go on.  On Spark."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.controller.observing.adopted import Adopted, adopted

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark
Rows = Callable[..., list[dict[str, Any]]]
OLD: Final = {"id": 1, "city": "Gh"}
NEW: Final = {"id": 2, "city": "Delft", "n": 7, "note": "new"}
OLDER: Final = {"id": 3, "city": "Riga"}


def csv(path: Path, row: dict[str, Any]) -> None:
    """Write a CSV file of one row."""
    path.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")


def avro(path: Path, row: dict[str, Any]) -> None:
    """Write an Avro file of one row."""
    kinds = {int: "long", str: "string"}
    fields = [{"name": name, "type": kinds[type(value)]} for name, value in row.items()]
    with path.open("wb") as into:
        fastavro.writer(into, {"type": "record", "name": "r", "fields": fields}, [row])


WRITE: Final[dict[str, Callable[[Path, dict[str, Any]], object]]] = {
    "avro": avro,
    "csv": csv,
    "json": lambda path, row: path.write_text(json.dumps(row) + "\n"),
    "parquet": lambda path, row: pq.write_table(pa.table({name: [value] for name, value in row.items()}), path),
}


@pytest.mark.parametrize("form", WRITE)
def test_a_source_gets_the_columns_that_its_files_get(place: Place, rows: Rows, tmp_path: Path, form: str) -> None:
    """Damage: what upstream adds is lost, files from before are errors, or what reads the source breaks."""
    inbox, write, target = tmp_path / "in", WRITE[form], tmp_path / "out.sqlite"
    inbox.mkdir()
    write(inbox / f"1.{form}", OLD)
    with place.open() as env:
        env.execute(
            f"CREATE SOURCE s (id BIGINT, city STRING) FROM files (path '{inbox}/*.{form}', settle 0, evolve 'add')"
        )
        env.execute("CREATE MATERIALIZED VIEW every AS SELECT * FROM s")
        env.execute(f"CREATE MATERIALIZATION out INTO sqlite OPTIONS (path '{target}') AS s KEY (id)")
        env.tick(wait=True)
        before = env.catalog
        write(inbox / f"2.{form}", NEW)
        write(inbox / f"3.{form}", OLDER)
        env.tick(wait=True)
        wide = [{"n": None, "note": None} | OLD, NEW, {"n": None, "note": None} | OLDER]
        wanted = sorted((dict(sorted(row.items())) for row in wide), key=lambda row: row["id"])
        assert rows(env, "SELECT city, id, n, note FROM s ORDER BY id") == sorted(wanted, key=str)
        assert rows(env, "SELECT * FROM every") == sorted(
            ({"id": row["id"], "city": row["city"]} for row in wanted), key=str
        )
        assert [*adopted(before, env.catalog)] == [Adopted("evolved", {"of": "s", "columns": "n bigint, note string"})]
        env.tick(wait=True)
        assert env.progress()["problems"] == {}
        with sqlite3.connect(target) as there:
            held = there.execute("SELECT id, city, n, note FROM s ORDER BY id").fetchall()
        assert held == [tuple(row[name] for name in ("id", "city", "n", "note")) for row in wanted]
        assert all(env.verify(name).ok for name in ("every", "out"))


def test_a_source_that_is_not_to_get_columns_says_which_came_and_how_to_read_them(
    place: Place, rows: Rows, tmp_path: Path
) -> None:
    """Damage: a column that upstream added is missing, and only its author knows that it is there."""
    inbox = tmp_path / "in"
    inbox.mkdir()
    csv(inbox / "1.csv", OLD | {"left": "out"})
    with place.open() as env:
        env.execute(f"CREATE SOURCE s (id BIGINT, city STRING) FROM files (path '{inbox}/*.csv', settle = '0')")
        env.tick(wait=True)
        assert env.progress()["notices"] == {}
        csv(inbox / "2.csv", NEW)
        env.tick(wait=True)
        (notice,) = env.progress()["notices"]["s"]
        statement = notice.partition("from now on: ")[2]
        assert statement == "ALTER SOURCE `s` ADD COLUMNS (`n` bigint, `note` string)"
        env.execute(statement)
        csv(inbox / "3.csv", OLDER)
        csv(inbox / "4.csv", NEW | {"id": 4})
        env.tick(wait=True)
        assert env.progress()["notices"] == {}
        assert [row["n"] for row in rows(env, "SELECT id, n FROM s")] == [None, None, None, 7]
