"""Small files are decoded without a Spark job, to the rows that a job decodes them to."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
from collections import Counter
from decimal import Decimal
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.algebra.messages import DatedFile, Encoding, FileFormat
from strandline.algebra.schema import Column, Schema
from strandline.engine.files import decoder, small
from strandline.engine.files.decoder import SparkFiles
from strandline.engine.frames.rows import Distributed, Local, dataframe, unwrap

pytestmark = [pytest.mark.spark, pytest.mark.property]

CSV, JSON = FileFormat(Encoding.CSV), FileFormat(Encoding.JSON)
FLAT = Schema(
    tuple(
        Column(name, kind)
        for name, kind in {
            "k": "int",
            "v": "string",
            "d": "double",
            "m": "decimal(6,2)",
            "b": "boolean",
            "at": "timestamp",
            "day": "date",
        }.items()
    )
)
NESTED = Schema((*FLAT.columns, Column("xs", "array<int>"), Column("s", "struct<a:int,b:string>")))
VALUES = {
    "k": ["1", "-7", "2147483648", "1.5", "x", "", " 3", "0x1", "+4"],
    "v": ["a", "", "é", "a\u2028b", "日本", "\u0000", "a\tb", " x ", "NULL", "NA"],
    "d": ["1.5", "-0.0", "NaN", "Infinity", "1e400", "-1e-400", "x", "1d", ""],
    "m": ["1.25", "1.255", "99999.9", "x", "-0"],
    "b": ["true", "FALSE", "1", "yes", ""],
    "at": ["2020-01-02 03:04:05", "2020-01-02T03:04:05.123456Z", "1600-02-30", "now", "2020-13-01", ""],
    "day": ["2020-01-02", "2020-1-2", "0001-01-01", "x", "20200102"],
}
ODD = {
    Encoding.CSV: ['"', '"a', 'a"b', '"a""b"', ",", ",,,,,,", ",,,,,,,", "\u00a0", "k,v,d,m,b,at,day", "#", "\\", "'"],
    Encoding.JSON: [
        *("{", "{}", "[]", "null", '{"k":1} {"k":2}', '{"k":1}x', '{"k":1,"k":2}', "{'k':1}", '{"K":1}', "[{}]"),
        *("\u00a0", "\x0b", '{"k":"\\ud800"}', '{"v":{"a":[1]}}', '{"xs":[1,"a"]}', '{"s":{"a":"x"}}', '{"v":01}'),
    ],
}


def csv_line(random):
    """A record, now and then of another length."""
    fields = [VALUES[name][0] if random.random() < 0.5 else random.choice(VALUES[name]) for name in FLAT.names]
    if random.random() < 0.15:
        fields = fields[: random.randrange(8)] + ["x"] * random.randrange(3)
    return ",".join(f'"{field}"' if random.random() < 0.2 else field for field in fields)


def json_line(random):
    """An object, now and then with a value of another type."""

    def value(name):
        if name == "xs":
            return random.choice(["[1,2]", "[]", "null", '["a"]', "1"])
        if name == "s":
            return random.choice(['{"a":1,"b":"x"}', "{}", "null", '{"a":"x"}', "[1]"])
        text = random.choice(VALUES[name])
        bare = random.choice(["1", "1.5", "true", "null", "-0.0", "1e5", "NaN"])
        escaped = text.replace("\t", "\\t").replace("\u0000", "\\u0000")
        return bare if random.random() < 0.3 else f'"{escaped}"'

    chosen = [name for name in NESTED.names if random.random() < 0.7]
    return "{" + ", ".join(f'"{name}": {value(name)}' for name in chosen) + "}"


def text_file(random, form):
    """The bytes of a file, of good and bad records."""
    line = csv_line if form.encoding is Encoding.CSV else json_line
    rows = [random.choice(ODD[form.encoding]) if random.random() < 0.2 else line(random) for _ in range(60)]
    rows += random.choices(["", " ", "\t"], k=3)
    random.shuffle(rows)
    if form.encoding is Encoding.CSV and form.header:
        rows = ["", "day,K,extra,v,d,m,b,at", *rows] if random.random() < 0.3 else ["k,v,d,m,b,at,day", *rows]
    text = "".join(row + random.choice(["\n", "\r\n", "\n", "\r"]) for row in rows)
    return random.choice(["", "\ufeff"]).encode() + random.choice([text, text.rstrip("\r\n")]).encode()


class Both:
    """Decodes files here and by a job, and compares."""

    def __init__(self, spark, root, monkeypatch):
        self.spark, self.root, self.monkeypatch = spark, root, monkeypatch
        self.files = SparkFiles(spark)
        self.here = 0

    def rows(self, dated, schema, form):
        rows = unwrap(asyncio.run(self.files.decode(dated, schema, form, locate=False)))
        self.here += isinstance(rows, Local)
        table = dataframe(rows, self.spark).toArrow()
        for number, field in enumerate(table.schema):
            if pa.types.is_date(field.type) or pa.types.is_timestamp(
                field.type
            ):  # Spark's years are more than Python's
                whole = pa.int32() if pa.types.is_date(field.type) else pa.int64()
                table = table.set_column(number, field.name, table[field.name].cast(whole))
        found = table.to_pylist()
        return Counter(tuple(sorted((name, repr(value)) for name, value in row.items())) for row in found)

    def compare(self, contents, schema, form):
        dated = []
        for number, content in enumerate(contents):
            path = self.root / f"{number}.{form.encoding.value}"
            path.write_bytes(content)
            dated.append(DatedFile(str(path), path.name, len(content), 7 + number % 2, withdrawn=number % 3 == 2))
        found = self.rows(dated, schema, form)
        with self.monkeypatch.context() as patch:
            patch.setattr(decoder, "is_small", lambda files, form: False)
            wanted = self.rows(dated, schema, form)
        missing, extra = wanted - found, found - wanted
        assert not missing, f"missing: {list(missing)[:3]} extra: {list(extra)[:3]}"
        assert not extra
        return found


@pytest.fixture
def both(spark, tmp_path, monkeypatch):
    """Two ways of one session."""
    return Both(spark, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "form",
    [
        CSV,
        FileFormat(Encoding.CSV, header=False, null="NA"),
        FileFormat(Encoding.CSV, escape="\\", timestamp_format="yyyy-MM-dd HH:mm:ss", date_format="yyyy-M-d"),
        FileFormat(Encoding.CSV, delimiter="\t", quote="'"),
    ],
    ids=["csv", "no header", "formats", "tabs"],
)
def test_csv_is_decoded_alike(both, form):
    """Damage: what a file's rows are depends on its size."""
    for seed in range(4):
        random = Random(seed)
        texts = [text_file(random, form) for _ in range(6)]
        if form.delimiter != ",":
            texts = [text.replace(b",", b"\t").replace(b'"', b"'") for text in texts]
        found = both.compare(texts, FLAT, form)
        assert any(("__error", "'not located'") in row for row in found)
        assert any(("__error", "None") in row for row in found)
    assert both.here == 4


@pytest.mark.parametrize("form", [JSON, FileFormat(Encoding.JSON, timestamp_format="yyyy-MM-dd HH:mm:ss")])
def test_json_lines_are_decoded_alike(both, form):
    """Damage: what a file's rows are depends on its size."""
    for seed in range(4):
        random = Random(seed)
        found = both.compare([text_file(random, form) for _ in range(6)], NESTED, form)
        assert any(("__error", "'not located'") in row for row in found)
    assert both.here == 4


def test_parquet_is_decoded_alike(both):
    """Damage: what a file's rows are depends on its size."""
    random = Random(7)

    values = {
        "k": (pa.int32(), [None, 1, -(2**31)]),
        "V": (pa.string(), [None, "", "é", "a\u0000"]),
        "d": (pa.float64(), [None, -0.0, math.nan, math.inf, 5e-324]),
        "m": (pa.decimal128(6, 2), [None, Decimal("1.25"), Decimal("-0.01")]),
        "b": (pa.bool_(), [None, True, False]),
        "at": (pa.timestamp("us", "UTC"), [None, dt.datetime(2020, 1, 2, 3, 4, 5, 678901, dt.UTC)]),
        "day": (pa.date32(), [None, dt.date(2020, 1, 2), dt.date(1900, 1, 1)]),
        "extra": (pa.int64(), [1]),
    }

    def stored(rows):
        columns = {name: pa.array(random.choices(those, k=rows), kind) for name, (kind, those) in values.items()}
        names = list(columns)
        random.shuffle(names)
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({name: columns[name] for name in names}), sink, row_group_size=7)
        return sink.getvalue().to_pybytes()

    found = both.compare([stored(20), stored(0), stored(33), b"PAR1 no PAR1"], FLAT, FileFormat(Encoding.PARQUET))
    assert found.total() == 54
    assert both.here == 1


@pytest.mark.parametrize("day", [dt.date(1582, 10, 4), dt.date(1899, 12, 31)])
def test_what_arrow_and_spark_may_read_differently_is_left_to_a_job(both, day):
    """Damage: an old date moves by ten days when its file grows."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"day": pa.array([day])}), sink)
    both.compare([sink.getvalue().to_pybytes()], Schema((Column("day", "date"),)), FileFormat(Encoding.PARQUET))
    both.compare([b'{"v":"\xff"}\n{"v":"a"}\n'], Schema((Column("v", "string"),)), JSON)
    assert both.here == 0


def test_a_step_of_small_files_runs_no_job(spark, both):
    """Damage: each tick with one new file of ten lines waits for a Spark job."""

    def jobs():
        return spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()

    contents = {
        CSV: b"k,v,d,m,b,at,day\n1,a,1.5,1.25,true,2020-01-02 03:04:05,2020-01-02\nx\n",
        JSON: b'{"k":1,"v":"a"}\n{\n',
    }
    for form, content in contents.items():
        path = both.root / f"a.{form.encoding.value}"
        path.write_bytes(content)
        dated = [DatedFile(str(path), path.name, len(content), 7)]
        for again in (False, True):
            before = jobs()
            rows = unwrap(asyncio.run(both.files.decode(dated, FLAT, form, locate=False)))
            assert isinstance(rows, Local)
            assert rows.table.num_rows == 2
            assert jobs() == before, f"{form.encoding}, {again}"
    assert both.files._here.failed == 0


def test_large_files_are_sparks(both, monkeypatch):
    """Damage: a large file is read into the driver."""
    monkeypatch.setattr(small, "SMALL_BYTES_MAX", 10)
    path = both.root / "a.json"
    path.write_bytes(b'{"k":1}\n' * 2)
    rows = asyncio.run(both.files.decode([DatedFile(str(path), "a", 16, 7)], FLAT, JSON, locate=False))
    assert isinstance(unwrap(rows), Distributed)
