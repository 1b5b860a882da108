"""Records of Avro files become rows; what cannot be decoded says which record of which file it is."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import json
import uuid
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest

from strandline.algebra.messages import TAKES_BACK, DatedFile, Encoding, FileFormat
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.engine.files.avro import AvroFiles
from strandline.engine.files.decoder import SparkFiles
from strandline.engine.frames.rows import dataframe, unwrap

pytestmark = pytest.mark.spark

PAIR = Schema((Column("k", "int"), Column("v", "string")))
WRITTEN = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "K", "type": "long"}, {"name": "v", "type": ["null", "string"]}],
}


def avro(schema, records):
    """Return the bytes of a file."""
    data = io.BytesIO()
    fastavro.writer(data, fastavro.parse_schema(schema), records)
    return data.getvalue()


def _logical(of, name, **more):
    return {"type": of, "logicalType": name, **more}


@pytest.fixture
def decode(spark, tmp_path):
    """Decode files; return the good rows and the errors."""

    def run(named, schema=PAIR, *, withdrawn=False):
        dated = []
        for name, content in named.items():
            (tmp_path / name).write_bytes(content)
            dated.append(DatedFile(str(tmp_path / name), name, len(content), 7, withdrawn))
        rows = asyncio.run(SparkFiles(spark).decode(dated, schema, FileFormat(Encoding.AVRO), locate=True))
        found = dataframe(unwrap(rows), spark).toArrow().to_pylist()
        assert all(row[TIME] == 7 for row in found)
        assert all(row[DIFF] == (-1 if withdrawn and row[ERROR] is None else 1) for row in found)
        errors = [json.loads(row[ERROR]) for row in found if row[ERROR] is not None]
        return [tuple(row[n] for n in schema.names) for row in found if row[ERROR] is None], errors

    return run


def test_records_are_read_by_name_and_those_that_do_not_fit_are_errors(decode):
    """Damage: a number is cut to fit its column."""
    rows, errors = decode({"a.avro": avro(WRITTEN, [{"K": 1, "v": "a"}, {"K": 1 << 40}, {"K": 2, "v": None}])})
    assert sorted(rows) == [(1, "a"), (2, None)]
    reason = "column `k`: '1099511627776' is not a valid int"
    raw = '{"K": 1099511627776, "v": null}'
    assert errors == [{"file": "a.avro", "record": 2, "reason": reason, "raw": raw}]


def test_a_damaged_file_gives_the_rows_before_the_damage_and_one_error(decode):
    """Damage: one file's damage fails the read of all others."""
    whole = avro(WRITTEN, [{"K": n, "v": "x" * 100} for n in range(5000)])
    rows, errors = decode(
        {"a.avro": whole[:-5000], "b.avro": avro(WRITTEN, [{"K": 9, "v": None}]), "c.avro": b"Obj\x02", "d.avro": b""}
    )
    assert (9, None) in rows
    assert 0 < len(rows) < 5000
    assert [(e["file"], e.get("record")) for e in sorted(errors, key=lambda e: e["file"])] == [
        ("a.avro", len(rows)),
        ("c.avro", None),
        ("d.avro", None),
    ]


def test_a_file_without_a_column_is_one_error(decode):
    """Damage: a column is NULL in all rows because its name was misspelt."""
    rows, errors = decode({"a.avro": avro({**WRITTEN, "fields": WRITTEN["fields"][:1]}, [{"K": 1}])})
    assert (rows, [e["reason"] for e in errors]) == ([], ["it has no column `v`; it has K"])


def test_records_of_a_withdrawn_file_are_taken_back(decode):
    """Damage: a correction adds the rows that it should take away."""
    rows, errors = decode({"a.avro": avro(WRITTEN, [{"K": 1, "v": "a"}, {"K": 1 << 40}])}, withdrawn=True)
    assert rows == [(1, "a")]
    assert errors[0]["reason"].startswith(TAKES_BACK)


def test_a_decimal_keeps_digits_beyond_its_precision(tmp_path):
    """Damage: 1234.5 that was written under a precision of 3 is read as 1230, without an error."""
    kind = _logical("bytes", "decimal", precision=3, scale=1)
    written = {"type": "record", "name": "r", "fields": [{"name": "d", "type": kind}]}
    by_hand(tmp_path / "a.avro", written, b"\x04" + (12345).to_bytes(2, "big"))
    assert here(tmp_path / "a.avro", Column("d", "decimal(6,2)")) == [(Decimal("1234.50"), None)]


def test_records_that_are_nested_without_end_do_not_end_the_process(tmp_path):
    """Damage: a file of some kilobytes kills each worker that reads it, and its source stands still."""
    fields = [{"name": "k", "type": "int"}, {"name": "next", "type": ["null", "r"]}]
    written = {"type": "record", "name": "r", "fields": fields}
    by_hand(tmp_path / "a.avro", written, b"\x02\x02\x04\x00", b"\x02\x02" * 100_000)
    one, other = here(tmp_path / "a.avro", Column("k", "int"))
    assert one == (1, None)
    assert json.loads(other[1])["reason"] == "from here on the file is damaged (RecursionError)"


def by_hand(path, written, *records):
    """Write a file with these bytes as its records."""
    header = avro(written, [])
    block = io.BytesIO()
    fastavro.schemaless_writer(block, "long", len(records))
    fastavro.schemaless_writer(block, "bytes", b"".join(records))
    path.write_bytes(header + block.getvalue() + header[-16:])


def here(path, column):
    """Decode a file in this process; return the values of a column, and the errors."""
    files = pa.RecordBatch.from_pylist([{"path": str(path), "name": "a", "prefix": "", TIME: 7, DIFF: 1}])
    rows = [row for batch in AvroFiles(Schema((column,))).batches([files]) for row in batch.to_pylist()]
    return [(row[column.name], row[ERROR]) for row in rows]


def test_logical_types_are_what_they_mean(decode):
    """Damage: a date becomes a number of days, an amount its digits without the point."""
    kinds = {
        "d": (_logical("bytes", "decimal", precision=10, scale=2), "decimal(12,3)", Decimal("1.50")),
        "day": (_logical("int", "date"), "date", dt.date(2024, 1, 2)),
        "ms": (_logical("long", "timestamp-millis"), "timestamp", dt.datetime(2024, 1, 2, 3, tzinfo=dt.UTC)),
        "us": (_logical("long", "timestamp-micros"), "timestamp", dt.datetime(2024, 1, 2, 3, 4, 5, 678901, dt.UTC)),
        "u": (_logical("string", "uuid"), "string", uuid.UUID(int=5)),
        "e": ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "string", "B"),
        "m": ({"type": "map", "values": "int"}, "array<struct<key:string,value:int>>", {"b": 2, "a": 1}),
        "n": (
            ["null", {"type": "record", "name": "n", "fields": [{"name": "x", "type": "double"}]}],
            "struct<x:double>",
            {"x": -0.0},
        ),
    }
    written = {"type": "record", "name": "r", "fields": [{"name": n, "type": k[0]} for n, k in kinds.items()]}
    schema = Schema(tuple(Column(n, k[1]) for n, k in kinds.items()))
    rows, errors = decode({"a.avro": avro(written, [{n: k[2] for n, k in kinds.items()}])}, schema)
    entries = [{"key": "a", "value": 1}, {"key": "b", "value": 2}]
    assert errors == []
    same = [k[2] for n, k in kinds.items() if n in {"d", "day", "ms", "us"}]
    (row,) = rows
    assert [*row[:4]] == same
    assert row[4:7] == (str(uuid.UUID(int=5)), "B", entries)
    assert repr(row[7]) == "{'x': 0.0}"
