"""A peek answers what the query answers for the same value, whatever the types of the key and of the column."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.errors import InvalidUsage
from strandline.serving import calls

UTC: Final = dt.UTC
EAST: Final = dt.timezone(dt.timedelta(hours=2))


@dataclass(frozen=True)
class Key:
    """A value of a key, and a literal of Spark's with just this value."""

    value: Any
    literal: str


def _text(value: str) -> str:
    return f"decode(X'{value.encode().hex()}', 'utf-8')"


def _double(value: float) -> str:
    return f"CAST('{value!r}' AS DOUBLE)"


def _moment(value: dt.datetime) -> str:
    return f"TIMESTAMP '{value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=' ')}Z'"


DOUBLES: Final = (0.0, -0.0, 0.1, 1.5, -2.0, 16777216.0, 16777217.0, 9007199254740992.0, 1e300, 5e-324, float("inf"))
KEYS: Final = (
    Key(None, "NULL"),
    *(Key(value, _double(value)) for value in (*DOUBLES, float("nan"), 0.10000000149011612)),
    *(Key(np.float32(value), f"CAST('{value!r}' AS FLOAT)") for value in (0.1, 16777216.0)),
    *(Key(value, f"{value}BD") for value in (0, 1, -1, 3, 127, 300, 2147483648, 16777217, 9007199254740993, 2**63)),
    Key(np.int64(3), "3L"),
    *(Key(Decimal(value), f"{value}BD") for value in ("1.5", "1.50", "1.505", "0.1", "-0.00", "3", "99999999.99")),
    *(
        Key(value, _text(value))
        for value in ("", "a", "A", "a ", "1", "1.5", "true", "2024-01-01", "é", "e\u0301", "\0")
    ),
    *(Key(value, str(value)) for value in (True, False)),
    *(Key(value, f"DATE '{value}'") for value in (dt.date(2024, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31))),
    *(
        Key(value, _moment(value))
        for value in (
            dt.datetime(2024, 1, 1, tzinfo=UTC),
            dt.datetime(2024, 1, 1, 2, tzinfo=EAST),
            dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        )
    ),
    Key(dt.datetime(2024, 1, 1), "TIMESTAMP_NTZ '2024-01-01 00:00:00'"),  # noqa: DTZ001 - the type without a zone
    Key(pd.Timestamp("2024-01-01 00:00:00.000000001", tz="UTC"), "NULL"),
    Key(dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(microseconds=1))), "NULL"),
)
COLUMNS: Final = {
    "a": ("TINYINT", ("0", "1", "3", "127", "NULL")),
    "b": ("INT", ("0", "1", "300", "2147483647", "NULL")),
    "c": ("BIGINT", ("0", "3", "16777217", "9007199254740993", "NULL")),
    "d": ("FLOAT", ("0.1F", "16777216F", "float('NaN')", "-0.0F", "float('inf')", "NULL")),
    "e": ("DOUBLE", ("0.1D", "16777217D", "double('NaN')", "-0.0D", "9007199254740992D", "1e300D", "5e-324D", "NULL")),
    "f": ("DECIMAL(10,2)", ("1.5", "0.1", "0", "3", "99999999.99", "NULL")),
    "g": ("DECIMAL(38,0)", ("3", "9223372036854775808", "0", "NULL")),
    "h": ("STRING", ("''", "'a'", "'A'", "'a '", "'1'", "'1.5'", "'true'", "'2024-01-01'", "'é'", "NULL")),
    "i": ("BOOLEAN", ("true", "false", "NULL")),
    "j": ("DATE", ("DATE'2024-01-01'", "DATE'0001-01-01'", "DATE'9999-12-31'", "NULL")),
    "k": ("TIMESTAMP", ("TIMESTAMP'2024-01-01 00:00:00Z'", "TIMESTAMP'2024-01-01 00:00:00.000001Z'", "NULL")),
    "l": ("TIMESTAMP_NTZ", ("TIMESTAMP_NTZ'2024-01-01 00:00:00'", "NULL")),
}
ROWS: Final = max(len(values) for _, values in COLUMNS.values())


@pytest.fixture(scope="module")
def env(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[strandline.Environment]:
    """A table with a column of each type."""
    with strandline.open(str(tmp_path_factory.mktemp("peeked") / "data"), spark=spark) as found:
        kinds = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
        found.execute(f"CREATE TABLE t (id INT, {kinds})")
        rows = (
            ", ".join(f"CAST({values[row % len(values)]} AS {kind})" for kind, values in COLUMNS.values())
            for row in range(ROWS)
        )
        found.execute("INSERT INTO t VALUES " + ", ".join(f"({number}, {row})" for number, row in enumerate(rows)))
        found.tick()
        yield found


def sent(keys: list[dict[str, Any]]) -> Any:
    """Return keys as a server has them that a program elsewhere sent."""
    return calls._read(msgspec.json.decode(msgspec.json.encode(calls.written(keys))))


def answer(env: strandline.Environment, keys: list[dict[str, Any]]) -> Counter[int] | None:
    """Return the numbers of the rows that a peek finds; None: it is refused."""
    try:
        return Counter(env.peek("t", keys)["id"].to_pylist())
    except InvalidUsage:
        return None


@pytest.mark.spark
def test_a_peek_finds_what_a_query_finds_or_is_refused(env: strandline.Environment) -> None:
    """Damage: a look-up gives rows that have another value, the nearest that their column holds, or misses some."""
    seed = random.Random().randrange(2**32)
    chance = random.Random(seed)
    every = [(column, key) for column in COLUMNS for key in KEYS]
    scanned = {pair: answer(env, [{pair[0]: pair[1].value}]) for pair in chance.sample(every, 12)}
    taken: dict[str, list[Key]] = {column: [] for column in COLUMNS}
    for column in COLUMNS:
        env.execute(f"CREATE INDEX by_{column} ON t ({column})")
    env.tick()
    found = {(column, key): answer(env, [{column: key.value}]) for column, key in every}
    for (column, key), rows in found.items():
        if rows is not None:
            taken[column].append(key)
    tests = [(column, key) for column, keys in taken.items() for key in keys]
    assert len(tests) > len(COLUMNS) * 2
    texts = [f"{column} <=> {key.literal} AS `{place}`" for place, (column, key) in enumerate(tests)]
    met = env.query(f"SELECT id, {', '.join(texts)} FROM t").collect()
    right = {pair: Counter(row.id for row in met if row[str(place)]) for place, pair in enumerate(tests)}
    for pair in every:
        assert found[pair] == right.get(pair), (pair, "by an index")
        if pair in right:
            assert answer(env, sent([{pair[0]: pair[1].value}])) == right[pair], (pair, "sent")
        if pair in scanned:
            assert scanned[pair] == right.get(pair), (seed, pair, "without an index")
    for column, keys in taken.items():
        some = chance.sample(keys, min(4, len(keys)))
        whole: Counter[int] = Counter()
        for key in some:
            whole |= right[column, key]
        given = [{column: key.value} for key in some]
        assert answer(env, given) == whole, (seed, column, some)
        assert answer(env, sent(given)) == whole, (seed, column, some, "sent")
    for one, other in (("d", "h"), ("e", "f"), ("i", "j")):
        env.execute(f"CREATE INDEX by_{one}_{other} ON t ({one}, {other})")
        for first in chance.sample(taken[one], 3):
            for second in chance.sample(taken[other], 3):
                both = right[one, first] & right[other, second]
                assert answer(env, [{other: second.value, one: first.value}]) == both, (seed, first, second)


def test_a_value_that_a_program_elsewhere_sends_is_the_one_that_it_gave() -> None:
    """Damage: JSON has null for NaN, so a look-up of NaN from elsewhere finds the rows with NULL."""
    for key in KEYS:
        try:
            (given,) = sent([{"x": key.value}])
        except InvalidUsage:
            continue
        back = given["x"]
        assert back == key.value or (back != back and key.value != key.value), key  # noqa: PLR0124
        assert (back is None) == (key.value is None), key


def test_what_is_no_table_of_one_value_is_refused() -> None:
    """Damage: a client that sends something else gets an error of the server's, or takes it down."""
    for wrong in (
        "",
        "AAAA",
        "no base64!",
        calls.rows_text(pa.table({"x": []})),
        calls.rows_text(pa.table({"x": [1, 2]})),
    ):
        with pytest.raises(InvalidUsage, match="no table of one value"):
            calls._read([{"x": {"arrow": wrong}}])
    for other in ([{"x": {"arrow": 1}}], [1], "x", {"x": 3}):
        assert calls._read(other) == ([other] if isinstance(other, dict) else other)
