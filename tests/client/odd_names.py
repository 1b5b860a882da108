"""Names that a library may take for something else, and the ways of a column that has one through an environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, Final

import adbc_driver_flightsql.dbapi as adbc
from pyspark.sql import SparkSession
from tests.serving.conftest import ticking

import strandline
from strandline.algebra.schema import DIFF, quote
from strandline.client import Environment, Updates

GROUPS: Final = {
    "points": (".", ".a", "..", "a.b", "a.", ".a.b", "a", "b", "1.5", "../a", "`.`"),
    "brackets": ("[", "[0]", "[a]", "a[0]", "]", "{}", "{a}", "{", "}", "(", ")", "()", "a(b)", "<", ">", "<a>"),
    "signs": ("$", "$.a", "$[0]", "$a", "@", "#", "#1", "?", "??", ":", ":a", "a:b", ";", "--", "/*", "*/", "/* a */"),
    "operators": ("*", "%", "%s", "/", "//", "a/b", "~", "~1", "!", "^", "&", "|", "+", "-", "=", "a=b", ",", "a,b"),
    "quotes": ("'", "''", '"', '""', "`", "``", "a`b", 'a"b', "a'b", "\\", "\\N", "a\\b", "${a}", "${env:HOME}"),
    "spaces": (" ", "  ", " a", "a ", "a b", "\t", "\n", "\r\n", "a\nb", "\u200b", "\ufeff", "\u00a0", "\u2028"),
    "words": ("select", "from", "order", "group", "null", "true", "int", "default", "key", "value", "element", "list"),
    "ours": ("_", "_1", "_time", "time", "diff", "error", "rows", "keys", "this", "old", "new", "v", "t", "l", "r"),
    "others": (
        "count(1)",
        "sum(a)",
        "é",
        "e\u0301",
        "ß",
        "e",
        "s",
        "İ",
        "日本",
        "😀",
        "\x01",
        "\x7f",
        "0",
        "1a",
        "-1",
        "NaN",
    ),
    "long": ("x" * 50_000, "x" * 255, "x" * 256, "x" * 64, "x" * 63 + "é", "x" * 63),
}
"""Side by side in one table are names that some library takes for one another."""
NUL: Final = "a\0b"
"""A name for itself: what is written in C, as ADBC, ends it at the NUL."""
ALL: Final = tuple(name for names in GROUPS.values() for name in names)


def row(number: int, names: Sequence[str]) -> dict[str, int]:
    """Return a row: values differ by column and by row."""
    return {"id": number} | {name: (number * 7 + place) % 11 for place, name in enumerate(names)}


def views(names: Sequence[str]) -> dict[str, str]:
    """Return a view for each way in which views are kept, by its name; in most of them each name has each part."""
    listed, half = ", ".join(map(quote, names)), len(names) // 2
    some, others = (", ".join(map(quote, part)) for part in (names[:half], names[half:]))
    equal = " AND ".join(f"x.{quote(name)} = y.{quote(name)}" for name in names)
    other = " AND ".join(f"x.{quote(one)} = y.{quote(two)}" for one, two in pairwise(names))
    one = quote(names[0])
    return {
        "kept": f"SELECT * FROM t WHERE {' AND '.join(f'{quote(name)} IS NOT NULL' for name in names)}",
        "sums": f"SELECT id, {', '.join(f'sum({quote(name)}) AS {quote(name)}' for name in names)} FROM t GROUP BY id",
        "grouped": f"SELECT {listed}, count(*) AS `many` FROM t GROUP BY {listed}",
        "joined": f"SELECT x.id, {', '.join(f'y.{quote(name)}' for name in names)} FROM t x JOIN t y ON {equal}",
        "without": f"SELECT * FROM t x WHERE NOT EXISTS (SELECT 1 FROM t y WHERE {other})",
        "both": f"SELECT {listed} FROM t UNION ALL SELECT {listed} FROM t WHERE {one} > 3",
        "first": f"SELECT * FROM t ORDER BY {listed}, id LIMIT 3",
        "ranked": f"SELECT id, {one}, row_number() OVER (PARTITION BY {some} ORDER BY {others}, id) AS `place` FROM t",
        "anew": f"SELECT {some}, percentile({quote(names[-1])}, 0.5) AS {quote(names[-1])} FROM t GROUP BY {some}",
        "nested": f"SELECT id, struct({listed}) AS {one} FROM t",
    }


def multiset(rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Return rows as what can be compared."""
    return Counter(str(dict(each)) for each in rows)


def written(env: Environment, names: Sequence[str], wanted: Sequence[str]) -> list[dict[str, Any]]:
    """Create the table and the views ``wanted``, change it by each statement; return the rows that it must have."""
    listed, first = ", ".join(map(quote, names)), quote(names[0])
    env.execute(f"CREATE TABLE t (id INT, {', '.join(f'{quote(name)} INT' for name in names)})")
    env.insert("t", [row(number, names) for number in range(4)])
    for name in wanted:
        env.execute(f"CREATE MATERIALIZED VIEW {name} AS {views(names)[name]}")
    env.tick()
    env.execute(f"INSERT INTO t VALUES (7{', 1' * len(names)})")
    env.execute(f"INSERT INTO t ({listed}, id) VALUES ({'2, ' * len(names)}8)")
    env.execute("INSERT INTO t SELECT * FROM t WHERE id = 3")
    env.execute(f"UPDATE t SET {', '.join(f'{quote(name)} = 9' for name in names)} WHERE {first} = 1")
    env.execute(f"DELETE FROM t WHERE {' AND '.join(f'{quote(name)} = {row(0, names)[name]}' for name in names)}")
    env.tick()
    rows = [*(row(number, names) for number in (1, 2, 3, 3)), {"id": 8} | dict.fromkeys(names, 2)]
    rows.append({"id": 7} | dict.fromkeys(names, 1))
    return [{**each, **dict.fromkeys(names, 9)} if each[names[0]] == 1 else each for each in rows]


def kept(env: Environment, wanted: Sequence[str]) -> None:
    """Hold the views for what Spark computes anew."""
    assert [problem for problem in env.progress()["problems"].items() if problem[1]] == []
    for name in wanted:
        found = env.verify(name)
        assert (found.missing, found.extra) == (0, 0), name


def looked_up(env: Environment, names: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Look rows up by an index over odd names, and by all columns without one."""
    wanted = next(each for each in rows if each["id"] == 2)
    half = names[: (len(names) + 1) // 2]
    env.execute(f"CREATE INDEX by_odd ON t ({', '.join(map(quote, half))})")
    env.tick()
    for some in (half, tuple(names)):
        found = env.peek("t", {name: wanted[name] for name in some}).to_pylist()
        assert wanted in found
        assert all(each[name] == wanted[name] for each in found for name in some)


def followed(env: Environment, names: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Subscribe to the table."""
    found: list[dict[str, Any]] = []
    with closing(env.subscribe("t")) as events:
        while len(found) < len(rows):
            match next(events):
                case Updates(some):
                    for each in some.select(["id", *names, DIFF]).to_pylist():
                        found += [each] * each.pop(DIFF)
    assert multiset(found) == multiset(rows)


def chosen(env: Environment, names: Sequence[str], location: str, spark: SparkSession) -> None:
    """Read some of the columns and rows by the data source."""
    session = spark.newSession()
    strandline.register(session)
    some = [*names[::-1], "id"]
    columns, where = ",".join(map(quote, some)), f"{quote(names[0])} <> 9"
    found = session.read.format("strandline").options(location=location, collection="t", columns=columns, where=where)
    frame = found.load()
    assert frame.columns == some
    right = env.query(f"SELECT {', '.join(map(quote, some))} FROM t WHERE {where}")
    assert sorted(frame.collect()) == sorted(right.collect())


def served(env: Environment, names: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Ask over Flight SQL by two clients, with parameters, and by keys."""
    wanted = next(each for each in rows if each["id"] == 2)
    with (
        ticking(env) as serving,
        strandline.connect(serving.flight_sql[0]) as remote,
        adbc.connect(serving.flight_sql[0], autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        equal = " AND ".join(f"{quote(name)} = ?" for name in names)
        cursor.execute(f"SELECT * FROM t WHERE id = ? AND {equal}", (2, *(wanted[name] for name in names)))
        assert [column[0] for column in cursor.description] == ["id", *names]
        assert cursor.fetchall() == [tuple(wanted.values())]
        cursor.execute("DESCRIBE t")
        assert [each[0] for each in cursor.fetchall()] == ["id", *names]
        remote.insert("t", [row(20, names)])
        assert remote.peek("t", row(20, names)).to_pylist() == [row(20, names)]


def blamed(check: Callable[[Sequence[str]], object], names: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Make ``check`` of all names; where it fails, yield the fewest of them that fail together, and how."""
    try:
        check(names)
    except Exception as error:  # noqa: BLE001 - whatever it is, a name is to blame
        half = len(names) // 2
        parts = [names[:half], names[half:]] if len(names) >= 2 * FEWEST else []
        found = [each for part in parts for each in blamed(check, part)]
        yield from found or [(tuple(name[:20] for name in names), f"{type(error).__name__}: {str(error)[:500]}")]


FEWEST: Final = 3
"""So many names a table of the tests has at least."""
