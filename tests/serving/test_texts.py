"""Every text is stored, compared and answered as it was written, by whatever way it comes in."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.serving.conftest import ticking

import strandline
from strandline.algebra.schema import quote
from strandline.client import Environment, Updates
from strandline.serving import Serving

pytestmark = pytest.mark.spark

REFERENCES: Final = (
    *("${x}", "${env:HOME}", "${spark.master}", "${spark:spark.app.name}", "${system:user.dir}", "${hiveconf:x}"),
    *("${sparkconf:spark.master}", "$${env:HOME}", "${env:${x}}", "${", "$", "{env:HOME}", "${}", "${x:-y}"),
)
"""What some program takes for the name of a value."""
PIECES: Final = (
    *REFERENCES,
    *("'", "''", '"', "`", "\\", "\\\\", "\\'", "\\n", "\\u0041", "\\U0001F600", "\\101", "\\0", "\\Z", "%", "\\%"),
    *("_", "\\_", "--", "/*", "*/", ";", "?", ":x", "{0}", "%s", "%(a)s", "$1", "&amp;", "<a>", "\r\n", "\n", "\r"),
    *("\0", "\x1a", "\x7f", "\x85", "\u2028", "\ufeff", "e\u0301", "é", "ß", "ı", "ſ", "🙂", "\u202e", "\ud7ff"),
    *("X'00'", "r'a'", "DATE '2024-01-01'", "NULL", "true", "1e5", " ", "\t", ""),
)
POINTS: Final = [point for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]
"""Every character there is."""
BATCH: Final = 1_000
"""So many texts one statement has."""
FEW: Final = 12
"""So many texts of a batch have statements of their own, where each is one."""
SHOWN: Final = 3
"""So many wrong texts are shown."""


def texts(seed: int, number: int, points: Sequence[int] = POINTS) -> list[str]:
    """Return random texts, among which each of ``points`` occurs."""
    draw = Random(seed)
    shuffled = draw.sample(points, len(points))
    found = []
    for place in range(number):
        own = [chr(point) for point in shuffled[place::number]] + draw.choices(PIECES, k=draw.randrange(1, 6))
        draw.shuffle(own)
        found.append("".join(own))
    return found


def literal(text: str) -> str:
    """Return ``text`` as Spark's documentation says that a literal is written; drivers end a statement at a raw NUL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"


def values(some: Sequence[str]) -> str:
    """Return a query of numbered texts."""
    return "VALUES " + ", ".join(f"({place}, {literal(text)})" for place, text in enumerate(some))


def by_number(some: Sequence[str]) -> str:
    """Return an expression that has the text with the number ``id``."""
    return f"element_at(array({', '.join(map(literal, some))}), id + 1)"


class Ways:
    """Ways of a text into an environment, and out of it: each gives the texts that came out, in order."""

    def __init__(self, serving: Serving, env: Environment, cursor: Any, root: Path) -> None:
        self.serving, self.env, self.cursor, self.root = serving, env, cursor, root

    def _asked(self, sql: str) -> list[str]:
        self.cursor.execute(sql)
        return [text for _, text in sorted(self.cursor.fetchall())]

    @contextmanager
    def _table(self) -> Iterator[None]:
        self.cursor.execute("CREATE TABLE texts (id INT, s STRING)")
        try:
            yield
        finally:
            self.cursor.execute("DROP TABLE texts")

    def query(self, some: Sequence[str]) -> list[str]:
        return self._asked(f"SELECT * FROM ({values(some)})")

    def insert(self, some: Sequence[str]) -> list[str]:
        with self._table():
            self.cursor.execute(f"INSERT INTO texts {values(some)}")
            return self._asked("SELECT * FROM texts")

    def insert_one_by_one(self, some: Sequence[str]) -> list[str]:
        """Rows of literals that need no Spark, where there is nothing to judge in them; a few of the texts."""
        found = list(some)
        with self._table():
            for place in range(0, len(some), len(some) // FEW):
                self.cursor.execute(f"INSERT INTO texts VALUES ({place}, {literal(some[place])})")
            self.cursor.execute("SELECT * FROM texts")
            for place, text in self.cursor.fetchall():
                found[place] = text
        return found

    def insert_of_a_query(self, some: Sequence[str]) -> list[str]:
        with self._table():
            self.cursor.execute(f"INSERT INTO texts SELECT col1, concat(col2, '') FROM {values(some)}")
            return self._asked("SELECT * FROM texts")

    def transaction(self, some: Sequence[str]) -> list[str]:
        with self._table():
            with adbc.connect(self.serving.flight_sql[0]) as connection, connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO texts {values(some)}")
                connection.commit()
            return self._asked("SELECT * FROM texts")

    def parameters(self, some: Sequence[str]) -> list[str]:
        with self._table():
            self.cursor.executemany("INSERT INTO texts VALUES (?, ?)", list(enumerate(some)))
            return self._asked("SELECT * FROM texts")

    def parameters_of_a_query(self, some: Sequence[str]) -> list[str]:
        found = list(some)
        for place in range(0, len(some), len(some) // FEW):
            text = some[place]
            self.cursor.execute("SELECT ? AS s, ? = ? AS same", (text, text, text))
            ((found[place], same),) = self.cursor.fetchall()
            assert same
        return found

    def bulk(self, some: Sequence[str]) -> list[str]:
        rows = pa.table({"id": pa.array(range(len(some)), pa.int32()), "s": list(some)})
        self.cursor.adbc_ingest("texts", rows, mode="create")
        found = self._asked("SELECT * FROM texts")
        self.cursor.execute("DROP TABLE texts")
        return found

    def program(self, some: Sequence[str]) -> list[str]:
        with self._table():
            self.env.insert("texts", [{"id": place, "s": text} for place, text in enumerate(some)])
            return self._asked("SELECT * FROM texts")

    def update(self, some: Sequence[str]) -> list[str]:
        with self._table():
            self.cursor.execute(f"INSERT INTO texts SELECT id, 'x' FROM range({len(some)})")
            self.cursor.execute(f"UPDATE texts SET s = {by_number(some)} WHERE s <> '${{x}}'")
            return self._asked("SELECT * FROM texts")

    def compared(self, some: Sequence[str]) -> list[str]:
        """What is deleted by its text is gone; the rest would come out."""
        with self._table():
            self.env.insert("texts", [{"id": place, "s": text} for place, text in enumerate(some)])
            self.cursor.execute(f"DELETE FROM texts WHERE s IN ({', '.join(map(literal, some))})")
            return self._asked("SELECT * FROM texts") or list(some)

    def view(self, some: Sequence[str]) -> list[str]:
        self.cursor.execute(f"CREATE MATERIALIZED VIEW shown AS SELECT * FROM ({values(some)}) AS v(id, s)")
        self.env.tick()
        found = self._asked("SELECT * FROM shown")
        assert self.env.verify("shown").ok
        self.cursor.execute("DROP MATERIALIZED VIEW shown")
        return found

    def view_over_rows(self, some: Sequence[str]) -> list[str]:
        """A view that is kept by steps: its texts are in a filter and in a value."""
        with self._table():
            self.cursor.execute(
                f"CREATE MATERIALIZED VIEW shown AS SELECT id, {by_number(some)} AS s FROM texts"
                f" WHERE s IN ({', '.join(map(literal, some))})"
            )
            self.env.insert("texts", [{"id": place, "s": text} for place, text in enumerate(some)])
            self.env.tick()
            found = self._asked("SELECT * FROM shown")
            assert self.env.verify("shown").ok
            self.cursor.execute("DROP MATERIALIZED VIEW shown")
            return found

    def files(self, some: Sequence[str]) -> list[str]:
        """A source of files whose directory has such a name, too."""
        place = self.root / "a ${env:HOME} ${x}"
        place.mkdir(exist_ok=True)
        rows = [json.dumps({"id": number, "s": text}) for number, text in enumerate(some)]
        (place / "texts.json").write_text("\n".join(rows) + "\n")
        self.cursor.execute(f"CREATE SOURCE texts (id INT, s STRING) FROM files (path '{place}/*.json', settle 0)")
        try:
            while not self.env.collection("texts").upper:  # a tick waits for a directory no longer than it may take
                self.env.tick()
            return self._asked("SELECT * FROM texts")
        finally:
            self.cursor.execute("DROP SOURCE texts")

    def endpoint(self, some: Sequence[str]) -> list[str]:
        """Files that an endpoint writes, in a directory with such a name."""
        place = self.root / "b ${env:HOME} ${x}.sqlite"
        with self._table():
            self.env.insert("texts", [{"id": number, "s": text} for number, text in enumerate(some)])
            self.cursor.execute(f"CREATE MATERIALIZATION pushed INTO sqlite OPTIONS (path '{place}') AS texts KEY (id)")
            self.env.tick()
            with closing(sqlite3.connect(place)) as there:
                found = [text for _, text in sorted(there.execute("SELECT id, s FROM texts"))]
            self.cursor.execute("DROP MATERIALIZATION pushed")
            return found

    def exported(self, some: Sequence[str]) -> list[str]:
        """Files of CSV that an endpoint writes."""
        place = self.root / "c ${env:HOME} ${x}"
        with self._table():
            self.env.insert("texts", [{"id": number, "s": text} for number, text in enumerate(some)])
            self.cursor.execute(
                f"CREATE MATERIALIZATION pushed INTO files OPTIONS (path '{place}', format 'csv') AS texts KEY (id)"
            )
            self.env.tick()
            newest = json.loads(max((place / "texts" / "manifest").glob("*.json")).read_text())
            found = []
            for each in newest["files"]:
                with (place / "texts" / each["name"]).open(newline="", encoding="utf-8") as file:
                    found += [(int(row["id"]), row["s"]) for row in csv.DictReader(file)]
            self.cursor.execute("DROP MATERIALIZATION pushed")
            shutil.rmtree(place)
            return [text for _, text in sorted(found)]

    def peeked(self, some: Sequence[str]) -> list[str]:
        """A look-up by the text itself, on either side of a connection."""
        with self._table(), strandline.connect(self.serving.flight_sql[0]) as remote:
            self.env.insert("texts", [{"id": number, "s": text} for number, text in enumerate(some)])
            self.cursor.execute("CREATE INDEX by_text ON texts (s)")
            self.env.tick()
            keys = [{"s": text} for text in dict.fromkeys(some)]
            here, there = (
                sorted((row["id"], row["s"]) for row in at.peek("texts", keys).to_pylist()) for at in (self.env, remote)
            )
            self.cursor.execute("DROP INDEX by_text")
            assert here == there
            return [text for _, text in here]

    def followed(self, some: Sequence[str]) -> list[str]:
        """A subscription, on the other side of a connection."""
        with self._table(), strandline.connect(self.serving.flight_sql[0]) as remote:
            self.env.insert("texts", [{"id": number, "s": text} for number, text in enumerate(some)])
            found: list[tuple[int, str]] = []
            with closing(remote.subscribe("texts")) as events:
                while len(found) < len(some):
                    match next(events):
                        case Updates(rows):
                            found += [(row["id"], row["s"]) for row in rows.to_pylist()]
            return [text for _, text in sorted(found)]


WAYS: Final[Mapping[str, Callable[[Ways, Sequence[str]], list[str]]]] = {
    name: way for name, way in vars(Ways).items() if not name.startswith("_")
}


@pytest.fixture(scope="module")
def ways(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    """An environment, and an unmodified driver that is connected to it."""
    root = tmp_path_factory.mktemp("texts")
    with (
        strandline.open(f"file://{root}/location", spark=spark) as env,
        ticking(env) as serving,
        adbc.connect(serving.flight_sql[0], autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        yield Ways(serving, env, cursor, root)


def differing(ways: Ways, way: str, some: Sequence[str]) -> list[tuple[str, str]]:
    """Return some of the texts that came out by ``way`` as others, in ASCII."""
    found = WAYS[way](ways, some)
    assert len(found) == len(some)
    pairs = zip(some, found, strict=True)
    return [(ascii(one), ascii(other)) for one, other in pairs if one != other][:SHOWN]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("way", WAYS)
def test_a_text_comes_out_as_it_was_written(ways: Ways, way: str) -> None:
    """Damage: a password of the server stands where a text was, or a text is stored changed without a word."""
    latin = texts(1, 60, range(0x250))
    assert differing(ways, way, [*PIECES, *latin, *texts(2, 20, POINTS[::997])]) == []


@pytest.mark.slow
@pytest.mark.time_limit(3600)
@pytest.mark.parametrize("way", WAYS)
def test_ten_thousand_texts_with_every_character_come_out(ways: Ways, way: str) -> None:
    """Damage: likewise, for a character that is in no other test."""
    all_ = texts(7, 10_000)
    for start in range(0, len(all_), BATCH):
        assert differing(ways, way, all_[start : start + BATCH]) == []


def test_names_are_what_was_written(ways: Ways) -> None:
    """Damage: a column or a table gets the name of a secret, or cannot be found by its own."""
    env, cursor = ways.env, ways.cursor
    table, view = quote("t" + " ".join(REFERENCES)), "v" + " ".join(REFERENCES)
    columns = ", ".join(f"{quote(name)} INT, {quote('n' + name)} STRING" for name in REFERENCES)
    cursor.execute(f"CREATE TABLE {table} (k STRING, {columns})")
    cursor.execute(f"INSERT INTO {table} (k, {', '.join(map(quote, REFERENCES))}) VALUES ('x', {places(REFERENCES)})")
    changes = ", ".join(f"{quote('n' + name)} = {quote(name)} + 1" for name in REFERENCES)
    cursor.execute(f"UPDATE {table} SET {changes}")
    cursor.execute(f"SELECT {table}.*, 1 AS {quote(REFERENCES[0])} FROM {table}")
    every = [named for name in REFERENCES for named in (name, "n" + name)]
    assert [column[0] for column in cursor.description] == ["k", *every, REFERENCES[0]]
    assert cursor.fetchall() == [("x", *(v for at in range(len(REFERENCES)) for v in (at, str(at + 1))), 1)]
    largest = ", ".join(f"max({quote('n' + name)}) AS {quote(name)}" for name in REFERENCES)
    cursor.execute(f"CREATE MATERIALIZED VIEW {quote(view)} AS SELECT k, {largest} FROM {table} GROUP BY k")
    env.tick()
    cursor.execute(f"SELECT * FROM {quote(view)} WHERE {' AND '.join(f'{quote(n)} > 0' for n in REFERENCES)}")
    assert [column[0] for column in cursor.description] == ["k", *REFERENCES]
    assert cursor.fetchall() == [("x", *(str(at + 1) for at in range(len(REFERENCES))))]
    assert env.verify(view).ok
    cursor.execute(f"DROP MATERIALIZED VIEW {quote(view)}")
    cursor.execute(f"DROP TABLE {table}")


def places(names: Sequence[str]) -> str:
    """Return a number for each of ``names``, as the values of a row."""
    return ", ".join(str(at) for at in range(len(names)))
