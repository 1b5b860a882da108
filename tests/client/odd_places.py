"""Where columns with odd names come from and go to: files, lakes and servers, and what is read of them there."""

from __future__ import annotations

import csv
import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from iceberg_lake import IcebergLake
from pyiceberg.catalog import load_catalog
from tests.client.odd_names import multiset, row, written
from tests.materialize.drivers.kafka.topics_under_test import Topics

import mariadb_server as mariadb
import redis_server as redis
from postgres_server import PostgresDatabase
from strandline.algebra.schema import quote
from strandline.client import Environment

There = Callable[[], tuple[Sequence[str], Sequence[Any]]]
Way = Callable[[Environment, Sequence[str], Path, Any], None]
NUMBERS: Final = itertools.count()
"""Of what a server keeps for all tests."""


def sqlite_rows(path: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and rows of the table ``s`` in SQLite."""
    with closing(sqlite3.connect(path)) as database:
        cursor = database.execute("SELECT * FROM s")
        return [each[0] for each in cursor.description], cursor.fetchall()


def duckdb_rows(path: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and rows of the table ``s`` in DuckDB."""
    with duckdb.connect(str(path), read_only=True) as database:
        rows = database.execute("SELECT * FROM s").fetchall()
        return [each[0] for each in database.description or ()], rows


def csv_rows(path: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and rows of the CSV files of ``s``."""
    manifest = json.loads(max((path / "s" / "manifest").glob("*.json")).read_text())
    header, rows = list[str](), list[tuple[Any, ...]]()
    for each in manifest["files"]:
        with (path / "s" / each["name"]).open(newline="", encoding="utf-8") as file:
            header, *cells = csv.reader(file)
        rows += [tuple(map(int, line)) for line in cells]
    return header, rows


def parquet_rows(path: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and rows of the Parquet files of ``s``."""
    manifest = json.loads(max((path / "s" / "manifest").glob("*.json")).read_text())
    return arrow_rows(pa.concat_tables(pq.ParquetFile(path / "s" / each["name"]).read() for each in manifest["files"]))


def arrow_rows(table: pa.Table) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and rows of a table."""
    return table.column_names, [tuple(each.values()) for each in table.to_pylist()]


@contextmanager
def into(way: str, root: Path, request: Any) -> Iterator[tuple[str, There]]:
    """Make an endpoint; ``way``: its kind, or a format of files."""
    match way:
        case "sqlite" | "duckdb":
            rows = sqlite_rows if way == "sqlite" else duckdb_rows
            yield f"{way} OPTIONS (path '{root / 'out'}')", lambda: rows(root / "out")
        case "csv" | "parquet":
            read_back = csv_rows if way == "csv" else parquet_rows
            yield f"files OPTIONS (path '{root / 'out'}', format '{way}')", lambda: read_back(root / "out")
        case "delta":
            lake = root / "lake"
            yield f"delta OPTIONS (path '{lake}')", lambda: arrow_rows(DeltaTable(str(lake / "s")).to_pyarrow_table())
        case "iceberg":
            yield _iceberg(request)
        case "postgres":
            with request.getfixturevalue("postgres_server").database() as database:
                yield f"postgres OPTIONS ({_said(database)}, schema 'public')", lambda: _postgres_rows(database)
        case "mariadb":
            server = request.getfixturevalue("mariadb_server")
            request.getfixturevalue("monkeypatch").setenv("MARIADB_PASSWORD", mariadb.PASSWORD)
            with server.database() as name:
                said = f"host '127.0.0.1', port '{server.port}', database '{name}', user '{mariadb.USER}'"
                yield (
                    f"mariadb OPTIONS ({said}, password 'env:MARIADB_PASSWORD')",
                    lambda: _mariadb_rows(server, name),
                )
        case _:
            yield _redis(request)


def _iceberg(request: Any) -> tuple[str, There]:
    server, namespace = request.getfixturevalue("iceberg_server"), f"odd_{next(NUMBERS)}"
    request.getfixturevalue("monkeypatch").setenv("CATALOG_TOKEN", server.options["token"])

    def there() -> tuple[Sequence[str], Sequence[Any]]:
        with closing(load_catalog("rest", type="rest", uri=server.uri, token=server.options["token"])) as catalog:
            return arrow_rows(catalog.load_table((namespace, "s")).scan().to_arrow())

    said = f"catalog 'rest', uri '{server.uri}', token 'env:CATALOG_TOKEN', namespace '{namespace}'"
    return f"iceberg OPTIONS ({said})", there


def _said(database: PostgresDatabase) -> str:
    return ", ".join(f"{name} '{text}'" for name, text in database.options.items())


def _postgres_rows(database: PostgresDatabase) -> tuple[Sequence[str], Sequence[Any]]:
    with psycopg.connect(database.url) as connection:
        cursor = connection.execute("SELECT * FROM public.s")
        return [each.name for each in cursor.description or ()], cursor.fetchall()


def _mariadb_rows(server: mariadb.MariaDBServer, name: str) -> tuple[Sequence[str], Sequence[Any]]:
    with closing(server.connect(name)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM s")
        return [each[0] for each in cursor.description], cursor.fetchall()


def _redis(request: Any) -> tuple[str, There]:
    server, number = request.getfixturevalue("redis_server"), 900 + next(NUMBERS)
    request.getfixturevalue("monkeypatch").setenv("REDIS_PASSWORD", redis.PASSWORD)

    def there() -> tuple[Sequence[str], Sequence[Any]]:
        with closing(server.client(number, decode_responses=True)) as client:
            rows = [client.hgetall(key) for key in client.scan_iter("s:*")]
        names = list(dict.fromkeys(name for each in rows for name in each))
        return names, [tuple(int(each[name]) for name in names) for each in rows]

    return f"redis OPTIONS (server '{server.place}', database {number}, password 'env:REDIS_PASSWORD')", there


def pushed(env: Environment, names: Sequence[str], endpoint: str, there: There) -> None:
    """Push a view into an endpoint, and read it there."""
    env.execute(f"CREATE MATERIALIZATION pushed INTO {endpoint} AS sums TO s KEY (id)")
    env.tick()
    env.sync_now("pushed")
    assert env.verify("pushed").ok
    columns, rows = there()
    wanted = ["id", *names]
    assert sorted(columns) == sorted(wanted)
    found = [tuple(dict(zip(columns, each, strict=True))[name] for name in wanted) for each in rows]
    assert sorted(found) == sorted(map(tuple, env.query("SELECT * FROM sums").collect()))
    env.execute("DROP MATERIALIZATION pushed")


def read(env: Environment, names: Sequence[str], path: Path, form: str) -> None:
    """Read a file whose columns have the names."""
    rows = [row(number, names) for number in range(3)]
    write(path / f"a.{form}", rows)
    options = f"path '{path}/*.{form}', settle 0" + (", multiline 'true'" if form == "csv" else "")
    came(env, names, f"FROM files ({options})", rows)


def came(env: Environment, names: Sequence[str], source: str, rows: Sequence[dict[str, Any]]) -> None:
    """Create a source of the columns, and wait for its rows."""
    columns = ", ".join(f"{quote(name)} INT" for name in ("id", *names))
    env.execute(f"CREATE SOURCE came ({columns}) {source}")
    found: list[dict[str, Any]] = []
    for _ in range(10):  # a file is read once it is known to be complete
        env.tick(wait=True)
        found = env.query("SELECT * FROM came ORDER BY id").toArrow().to_pylist()
        if found:
            break
    assert found == rows


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a file of rows in the format that its name says."""
    path.parent.mkdir(exist_ok=True)
    match path.suffix:
        case ".parquet":
            pq.write_table(table(rows), path)
        case ".json":
            path.write_text("".join(json.dumps(each) + "\n" for each in rows))
        case _:
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")  # one kind of line end: a name has one, too
                writer.writerow(rows[0])
                writer.writerows(each.values() for each in rows)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    """Return rows as Arrow has them."""
    return pa.Table.from_pylist(rows, pa.schema([(name, pa.int32()) for name in rows[0]]))


def _into(way: str) -> Way:
    def push(env: Environment, names: Sequence[str], root: Path, request: Any) -> None:
        written(env, names, ["sums"])
        with into(way, root, request) as (endpoint, there):
            pushed(env, names, endpoint, there)

    return push


def _from_files(form: str) -> Way:
    return lambda env, names, root, _: read(env, names, root / form, form)


def _from_delta(env: Environment, names: Sequence[str], root: Path, _: Any) -> None:
    rows = [row(number, names) for number in range(3)]
    write_deltalake(str(root / "upstream"), table(rows))
    came(env, names, f"FROM delta (path '{root}/upstream')", rows)


def _from_iceberg(env: Environment, names: Sequence[str], root: Path, _: Any) -> None:
    rows = [row(number, names) for number in range(3)]
    IcebergLake(root / "upstream").create(table(rows))
    came(env, names, f"FROM iceberg (path '{root}/upstream')", rows)


def _from_postgres(env: Environment, names: Sequence[str], _: Path, request: Any) -> None:
    with request.getfixturevalue("postgres_server").database() as database:
        columns, second = ", ".join(f"{_double(name)} INT" for name in names), row(2, names)
        first = ", ".join(str(tuple(row(number, names).values())) for number in range(2))
        database.run(
            f"CREATE TABLE up (id INT PRIMARY KEY, {columns})",
            f"INSERT INTO up VALUES {first}",
            "CREATE PUBLICATION up FOR TABLE up",
        )
        slot = f"odd_{next(NUMBERS)}"
        env.execute(f"CREATE SOURCE pg FROM postgres ({_said(database)}, publication 'up', slot '{slot}')")
        columns = ", ".join(f"{quote(name)} INT" for name in names)
        env.execute(f"CREATE TABLE up (id INT, {columns}) FROM SOURCE pg (REFERENCE 'public.up')")
        env.tick(wait=True)
        database.run(f"INSERT INTO up VALUES {tuple(second.values())}")
        found: list[dict[str, Any]] = []
        while len(found) < 3:
            env.tick(wait=True)
            found = env.query("SELECT * FROM up ORDER BY id").toArrow().to_pylist()
        assert found == [row(number, names) for number in range(3)]
        env.execute("DROP TABLE up")
        env.execute("DROP SOURCE pg")


def _from_kafka(env: Environment, names: Sequence[str], _: Path, request: Any) -> None:
    server, topic = request.getfixturevalue("kafka_server"), f"odd-{next(NUMBERS)}"
    rows = [row(number, names) for number in range(3)]
    server.make_topic(topic)
    server.produce(topic, [json.dumps(each) for each in rows])
    came(env, names, f"FROM kafka (servers '{server.servers}', topic '{topic}') FORMAT JSON", rows)


def _into_kafka(env: Environment, names: Sequence[str], _: Path, request: Any) -> None:
    server, topic = request.getfixturevalue("kafka_server"), f"odd-{next(NUMBERS)}"
    written(env, names, ["sums"])
    keys = ["id", *names[:3]]
    env.execute(
        f"CREATE MATERIALIZATION pushed INTO kafka OPTIONS (servers '{server.servers}', delta 'true', partitions 1) "
        f"AS sums TO `{topic}` KEY ({', '.join(map(quote, keys))})"
    )
    env.tick()
    env.sync_now("pushed")
    messages = Topics(server).pushed(topic)
    assert all(list(each.key or ()) == keys for each in messages)
    assert all(list(each.value or ()) == ["id", *names] for each in messages)
    right = env.query("SELECT * FROM sums").toArrow().to_pylist()
    assert multiset([each.value or {} for each in messages]) == multiset(right)
    env.execute("DROP MATERIALIZATION pushed")


def _double(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


LOCAL: Final = ("sqlite", "duckdb", "csv", "parquet")
FORMS: Final = ("parquet", "json", "csv")
LANDED: Final[dict[str, Way]] = {f"into {way}": _into(way) for way in LOCAL} | {
    f"from {form}": _from_files(form) for form in FORMS
}
SERVED: Final[dict[str, Way]] = {
    **{f"into {way}": _into(way) for way in ("delta", "iceberg", "postgres", "mariadb", "redis")},
    "into kafka": _into_kafka,
    "from delta": _from_delta,
    "from iceberg": _from_iceberg,
    "from postgres": _from_postgres,
    "from kafka": _from_kafka,
}
LACKS: Final[dict[str, Callable[[str], bool]]] = {
    **dict.fromkeys(("sqlite", "delta", "iceberg"), lambda name: "\0" in name),
    "postgres": lambda name: len(name.encode()) > 63 or "\0" in name,
    "mariadb": lambda name: len(name) > 64 or name[-1].isspace() or max(name) > "\uffff" or "\0" in name,
}
"""Which names a place cannot have."""


def split(way: str, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names that the place of a way can have, and those that it cannot."""
    lacks = LACKS.get(way.rsplit(maxsplit=1)[-1], lambda _: False)
    return [name for name in names if not lacks(name)], [name for name in names if lacks(name)]
