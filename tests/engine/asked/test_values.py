"""Parameters are values: a statement with question marks answers as plain Spark does with literals written by hand.

The literals of the other side are casts of texts, with blanks around them.  What a client sends is drawn with Arrow's
types; statements are drawn of parts in which question marks touch what stands beside them.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.algebra.notation import Excerpt
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.engine.parts.part_store import PartStore
from strandline.engine.session.start import adopt
from strandline.engine.spark import SparkEngine
from strandline.errors import InvalidUsage, Position, StrandlineError
from strandline.plane import Edit

pytestmark = pytest.mark.spark

T = Schema(
    tuple(
        Column(*each.split())
        for each in ("id int", "n bigint", "s string", "x double", "m decimal(10,2)", "d date", "z timestamp")
    )
)
U = Schema((Column("k", "int"), Column("v", "string")))
UTC = dt.UTC
ROWS = {
    "t": pa.table(
        {
            "id": pa.array([1, 2, 3, 4], pa.int32()),
            "n": [-3, 0, None, 2**40],
            "s": ["a", "it's", None, "?"],
            "x": [1.5, -0.0, None, float("nan")],
            "m": pa.array([Decimal("1.50"), None, Decimal("-7.25"), Decimal(0)], pa.decimal128(10, 2)),
            "d": [dt.date(2024, 2, 29), None, dt.date(1969, 12, 31), dt.date(2030, 1, 1)],
            "z": pa.array([dt.datetime(2024, 1, 1, tzinfo=UTC), None, dt.datetime(1960, 1, 1, tzinfo=UTC), None]),
        }
    ),
    "u": pa.table({"k": pa.array([1, 2, 2, None], pa.int32()), "v": ["a", "b", "it's", "a"]}),
}


@dataclass(frozen=True)
class Value:
    """A value as Arrow has it, and as a literal of SQL written by hand."""

    sent: pa.Scalar
    written: str


Draw = Callable[[random.Random], Value]


def _value(kind: pa.DataType, sql: str, values: list[Any], text: Callable[[Any], str] = str) -> Draw:
    def draw(chance: random.Random) -> Value:
        value = chance.choice([*values, None])
        if value is None:
            return Value(pa.scalar(None, kind), f"CAST(NULL AS {sql})")
        return Value(pa.scalar(value, kind), f"CAST('{text(value)}' AS {sql})")

    return draw


def _text(value: str) -> Value:
    return Value(pa.scalar(value), f"CAST(X'{value.encode().hex()}' AS STRING)")


def text(chance: random.Random) -> Value:
    """A text that would mean something, were it read as SQL."""
    known = ["a", "it's", "?", "'; DROP TABLE t; --", "\\", "a\\'b", "${x}", "\n\0", "🙂", "", "/* ", "`"]
    return _text(chance.choice(known))


whole = _value(pa.int32(), "INT", [-3, 0, 1, 2, 7])
long = _value(pa.int64(), "BIGINT", [-3, 0, 1, 2**40, -(2**63)])
double = _value(pa.float64(), "DOUBLE", [-1.5, 0.0, 1e300, float("nan"), float("inf")], repr)
exact = _value(pa.decimal128(10, 2), "DECIMAL(10,2)", [Decimal("-7.25"), Decimal("1.50"), Decimal(3)])
fine = _value(pa.decimal128(20, 11), "DECIMAL(20,11)", [Decimal("0.00000000001"), Decimal(-1)])
day = _value(pa.date32(), "DATE", [dt.date(2024, 2, 29), dt.date(1969, 12, 31), dt.date(9999, 12, 31)])


def count(chance: random.Random) -> Value:
    """A whole number as programs send it, for a place where Spark takes an INT alone."""
    value = chance.randrange(3)
    return Value(pa.scalar(value), f"CAST('{value}' AS INT)")


def moment(chance: random.Random) -> Value:
    """A point in time, of any unit, with a zone or none."""
    unit, seconds = chance.choice(["s", "ms", "us", "ns"]), chance.choice([0, -1, 1_704_067_200, 4_000_000_000])
    zone = chance.choice([None, "UTC", "America/New_York"])
    ticks = seconds * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    written = f"timestamp_micros({seconds * 10**6})"
    written = written if zone else f"CAST({written} AS TIMESTAMP_NTZ)"
    return Value(pa.scalar(ticks, pa.timestamp(unit, zone)), written)


def raw(chance: random.Random) -> Value:
    """Bytes."""
    value = bytes(chance.randrange(256) for _ in range(chance.randrange(4)))
    return Value(pa.scalar(value), f"X'{value.hex()}'")


def small(chance: random.Random) -> Value:
    """Numbers of the types between."""
    kind, sql, value = chance.choice(
        [
            (pa.int8(), "TINYINT", -128),
            (pa.int16(), "SMALLINT", 300),
            (pa.uint8(), "SMALLINT", 255),
            (pa.uint32(), "BIGINT", 2**32 - 1),
            (pa.uint64(), "DECIMAL(20,0)", 2**64 - 1),
            (pa.float32(), "FLOAT", 1.5),
            (pa.bool_(), "BOOLEAN", True),
            (pa.decimal128(5, -2), "DECIMAL(7,0)", Decimal(12300)),
        ]
    )
    return Value(pa.scalar(value, kind), f"CAST('{value}' AS {sql})")


def nested(chance: random.Random) -> Value:
    """Lists, structs, and lists of structs."""
    n, s = chance.randrange(5), text(chance)
    struct = Value(
        pa.scalar({"a": n, "b c": s.sent.as_py()}, pa.struct([("a", pa.int32()), ("b c", pa.string())])),
        f"named_struct('a', {n}, 'b c', {s.written})",
    )
    listed = Value(pa.scalar([n, None], pa.list_(pa.int64())), f"array(CAST({n} AS BIGINT), CAST(NULL AS BIGINT))")
    both = Value(pa.scalar([struct.sent.as_py()], pa.list_(struct.sent.type)), f"array({struct.written})")
    return chance.choice([struct, listed, both])


def atom(chance: random.Random) -> Value:
    """Any value that is not nested."""
    return chance.choice([text, whole, long, double, exact, fine, day, moment, raw, small])(chance)


def anything(chance: random.Random) -> Value:
    """Any value."""
    return chance.choice([atom, nested])(chance)


EXPRESSIONS: list[tuple[str, list[Draw]]] = [
    ("?", [anything]),
    ("?AS x", [anything]),
    ("5 -?", [whole]),
    ("n -?", [whole]),
    ("-?", [whole]),
    ("CASE WHEN n >?THEN ?ELSE ?END", [long, text, text]),
    ("s ||?", [text]),
    ("coalesce(d,?)", [day]),
    ("coalesce(m,?)", [fine]),
    ("get(array(?,?),?)", [whole, whole, count]),
    ("substring(s,?,?)", [count, count]),
    ("date_add(d,?)", [count]),
    ("?::STRING", [atom]),
    ("CAST(?AS STRING)", [nested]),
    ("x*?", [double]),
    ("m+?", [exact]),
    ("m*?", [fine]),
    ("struct(?,s)", [anything]),
    ("transform(array(1,2),e->e+?)", [whole]),
    ("(SELECT max(u.v) FROM u WHERE u.k=?AND u.k=t.id)", [long]),
    ("typeof(?)", [anything]),
    ("z-?", [moment]),
    ("map(?,s)", [day]),
]
CONDITIONS: list[tuple[str, list[Draw]]] = [
    ("id<-?", [whole]),
    ("id>=?", [long]),
    ("n<=>?", [long]),
    ("s=?", [text]),
    ("s IN(?,?,'q')", [text, text]),
    ("NOT(id IN(?,?))", [whole, long]),
    ("n BETWEEN ?AND ?", [whole, long]),
    ("x>?", [double]),
    ("m<?", [fine]),
    ("d=?", [day]),
    ("z<?", [moment]),
    ("contains(s,?)", [text]),
    ("EXISTS(SELECT 1 FROM u WHERE u.k=t.id AND u.v=?)", [text]),
    ("id IN(SELECT k+?FROM u)", [whole]),
    ("?", [_value(pa.bool_(), "BOOLEAN", [True, False], lambda value: str(value).lower())]),
    ("(id,s)=(?,?)", [whole, text]),
]
COLUMNS: dict[str, Draw] = {"n": long, "s": text, "x": double, "m": exact, "d": day, "z": moment}


@dataclass(frozen=True)
class Said:
    """A piece of SQL with question marks, and their values."""

    text: str
    values: tuple[Value, ...] = ()

    @property
    def given(self) -> tuple[pa.Scalar, ...]:
        """The values as they are sent."""
        return tuple(value.sent for value in self.values)

    @property
    def written(self) -> str:
        """The text with the values written by hand."""
        parts = self.text.split("?")
        return parts[0] + "".join(f" {v.written} {part}" for v, part in zip(self.values, parts[1:], strict=True))

    @property
    def excerpt(self) -> Excerpt:
        """It as a part of a statement."""
        return Excerpt(self.text, Position(1, 1), self.given)


def _said(chance: random.Random, known: list[tuple[str, list[Draw]]]) -> Said:
    made, draws = chance.choice(known)
    return Said(made, tuple(draw(chance) for draw in draws))


def joined(between: str, parts: list[Said]) -> Said:
    """Pieces one after the other."""
    return Said(between.join(each.text for each in parts), tuple(value for each in parts for value in each.values))


def query(chance: random.Random) -> Said:
    """Draw a query."""
    columns = joined(", ", [Said("t.id AS o"), *(_said(chance, EXPRESSIONS) for _ in range(chance.randint(1, 3)))])
    where = joined(" AND ", [_said(chance, CONDITIONS) for _ in range(chance.randint(0, 2))])
    body = joined("", [Said("SELECT "), columns, Said(" FROM t")])
    if where.text:
        body = joined(" WHERE ", [body, where])
    match chance.randrange(5):
        case 0:
            body = joined("", [Said("WITH c AS ("), body, Said(") SELECT * FROM c ORDER BY o")])
        case 1:
            limit = Said("LIMIT ?OFFSET ?", (count(chance), count(chance)))
            body = joined(" ", [body, Said("ORDER BY o"), limit])
        case 2:
            values = joined("", [Said("VALUES (0, ?)", (text(chance),)), Said(", (1, ?)", (text(chance),))])
            body = joined(" ", [Said("SELECT * FROM ("), values, Said(") ORDER BY 1")])
        case _:
            body = joined(" ", [body, Said("ORDER BY o")])
    return body


class Both:
    """Our engine and plain Spark over the same tables."""

    def __init__(self, engine: SparkEngine, plain: SparkSession) -> None:
        self.engine = engine
        self.plain = plain
        for name, rows in ROWS.items():
            plain.createDataFrame(rows).createOrReplaceTempView(name)
        self.relations = {
            name: (schema, asyncio.run(engine.multiset(asyncio.run(engine.local(ROWS[name], schema, time=0, diff=1)))))
            for name, schema in (("t", T), ("u", U))
        }

    def asked(self, said: Said) -> object:
        """What our engine answers."""
        return _outcome(lambda: asyncio.run(self._collected(said)))

    async def _collected(self, said: Said) -> pa.Table:
        _, rows = await self.engine.answer(said.text, self.relations, said.given)
        return await self.engine.collect(rows)

    def expected(self, sql: str) -> object:
        """What plain Spark answers."""
        return _outcome(lambda: self.plain.sql(sql).toArrow())

    def edited(self, edit: Edit) -> object:
        """What an edit removes and inserts, with how many rows."""

        async def rows() -> pa.Table:
            found = await self.engine.edited("t", edit, self.relations)
            return await self.engine.collect(found)

        return _outcome(lambda: asyncio.run(rows()).drop_columns([TIME]), ordered=False)


def _outcome(ask: Callable[[], pa.Table], *, ordered: bool = True) -> object:
    """Return rows and types; of an answer that is an error, that."""
    try:
        table = ask()
    except (PySparkException, StrandlineError):
        return "an error"
    rows = [repr(row) for row in zip(*map(_listed, table.columns), strict=True)]
    kinds = [_plain(field.type) for field in table.schema]
    return kinds, rows if ordered else sorted(Counter(rows).items())


def _listed(column: pa.ChunkedArray) -> list[Any]:
    """Return its values; of a text its bytes, since Spark casts any bytes to a text."""
    return (column.cast(pa.binary()) if pa.types.is_string(column.type) else column).to_pylist()


def _plain(kind: pa.DataType) -> str:
    """Return a type as text, without what of it may be NULL: a value that is no literal is known to be none."""
    return str(kind).replace(" not null", "")


@pytest.fixture(scope="module")
def both(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Our engine and plain Spark."""
    engine = SparkEngine(adopt(spark), PartStore(tmp_path_factory.mktemp("parts")))
    yield Both(engine, adopt(spark))
    engine.close()


def compared(both: Both, seed: int) -> tuple[str, object, object]:
    """Return a random statement as it is written by hand, what our engine answers, and what plain Spark does."""
    chance = random.Random(seed)
    kind = chance.randrange(6)
    if kind < 4:
        said = query(chance)
        return said.written, both.asked(said), both.expected(said.written)
    where = _said(chance, CONDITIONS)
    shown = f"SELECT {', '.join(T.names)}, -1L AS {DIFF} FROM t WHERE {where.written}"
    if kind == 4:
        ours = both.edited(Edit("t", where.excerpt, {}))
    else:
        name, draw = chance.choice(sorted(COLUMNS.items()))
        value = Said("?", (draw(chance),))
        ours = both.edited(Edit("t", where.excerpt, {name: value.excerpt}))
        kinds = {column.name: column.type for column in T}
        cells = [f"CAST({value.written} AS {kinds[name]}) AS {each}" if each == name else each for each in T.names]
        shown = f"{shown} UNION ALL SELECT {', '.join(cells)}, 1L AS {DIFF} FROM t WHERE {where.written}"
    return shown, ours, _outcome(lambda: both.plain.sql(shown).toArrow(), ordered=False)


def differences(both: Both, seed: int) -> list[str]:
    """Return what is wrong with the answer to a random statement, if anything is."""
    return _wrong(seed, *compared(both, seed))


def _wrong(seed: int, shown: str, ours: object, plain: object) -> list[str]:
    return [] if ours == plain else [f"{seed}: {shown!r}\n  ours  {ours}\n  plain {plain}"]


def _played(both: Both, seeds: range) -> list[str]:
    """Return what differs."""
    wrong, errors = list[str](), 0
    for seed in seeds:
        shown, ours, plain = compared(both, seed)
        errors += plain == "an error"
        wrong += _wrong(seed, shown, ours, plain)
    assert errors * 3 < len(seeds), f"{errors} of {len(seeds)} statements are errors, so little was compared"
    return wrong


def test_statements_with_parameters_answer_as_with_literals(both: Both) -> None:
    """Damage: `5 -?` with −3 is a comment, `?AS x` a name, and a value another one than was sent."""
    assert not _played(both, range(40))


@pytest.mark.slow
def test_two_thousand_statements_with_parameters_answer_as_with_literals(both: Both) -> None:
    """Damage: as above, where the short campaign does not look."""
    assert not _played(both, range(1_000, 3_000))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (pa.scalar(1, pa.timestamp("ns")), "it has nanoseconds"),
        (pa.scalar(2**62, pa.timestamp("s")), "it is beyond the times of Spark"),
        (pa.scalar(Decimal(1), pa.decimal256(60, 2)), "has 38 digits at most, and this one 60"),
    ],
    ids=["nanoseconds", "beyond", "digits"],
)
def test_what_spark_has_no_value_for_is_refused(both: Both, value: pa.Scalar, why: str) -> None:
    """Damage: a row is compared with another value than the one that was sent."""
    with pytest.raises(InvalidUsage, match=f"parameter 2 .*{why}"):
        asyncio.run(both.engine.answer("SELECT ?, ?", {}, [pa.scalar(1), value]))


@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.int64(), pa.float64(), pa.string()], ids=str)
def test_a_whole_number_is_compared_with_a_null_of_any_type(both: Both, kind: pa.DataType) -> None:
    """Damage: a query of a client that sends NULL for a price fails with a bug of Spark's."""
    sql = "SELECT id FROM t WHERE id > ? OR ? = id OR id BETWEEN ? AND 2 OR id IN (?)"
    none = both.expected("SELECT id FROM t WHERE false")
    assert both.asked(Said(sql, (Value(pa.scalar(None, kind), "NULL"),) * 4)) == none != "an error"


TOLD = [
    ("SELECT t.id FROM t JOIN u ON t.id = u.k WHERE u.v = ? AND t.s = ?", [pa.string(), pa.string()]),
    ("SELECT ? FROM t WHERE d >= ? AND id IN (?, 2)", [pa.string(), pa.date32(), pa.int32()]),
    ("SELECT n + ? AS a FROM t WHERE m BETWEEN ? AND ?", [pa.int64(), pa.decimal128(10, 2), pa.decimal128(10, 2)]),
    ("SELECT s FROM t ORDER BY id LIMIT ? OFFSET ?", [pa.int32(), pa.int32()]),
    ("SELECT date_add(d, ?), CAST(? AS DATE), s LIKE ? FROM t", [pa.int32(), pa.date32(), pa.string()]),
    ("SELECT * FROM (SELECT k AS id, v AS d FROM u) q WHERE q.d = ? AND q.id < ?", [pa.string(), pa.int32()]),
    ("SELECT ntile(?) OVER (ORDER BY id), (SELECT max(k) FROM u WHERE v > ?) FROM t", [pa.int32(), pa.string()]),
    ("WITH c AS (SELECT z AS a FROM t) SELECT * FROM c WHERE a > ?", [pa.timestamp("us", "UTC")]),
    (
        "SELECT id FROM t WHERE array(id) = ? AND named_struct('a', s) IN (?)",
        [pa.list_(pa.int32()), pa.struct([("a", pa.string())])],
    ),
    ("SELECT element_at(?, id), ?.x FROM t LATERAL VIEW explode(?) AS e WHERE id = ?", [pa.null()] * 4),
]


@pytest.mark.parametrize(("sql", "kinds"), TOLD, ids=range(len(TOLD)))
def test_a_parameter_has_the_type_of_what_it_is_compared_with(both: Both, sql: str, kinds: list[pa.DataType]) -> None:
    """Damage: a driver refuses a text where a text is meant, since a column of that name is a number elsewhere."""
    limits = {0, 1} if "LIMIT" in sql else set()
    found = asyncio.run(both.engine.described(sql, both.relations, len(kinds), limits))
    assert list(found.parameters) == kinds
