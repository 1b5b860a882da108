"""Parquet files whose columns Spark does not read as declared are rows, or errors of their own, and stop nothing."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.algebra.messages import DatedFile, Encoding, FileFormat
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.engine.files import decoder, parquet_files
from strandline.engine.files.decoder import SparkFiles
from strandline.engine.frames.rows import dataframe, unwrap

pytestmark = pytest.mark.spark

PARQUET = FileFormat(Encoding.PARQUET)
UUID = uuid.UUID(int=7)
AT = dt.datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=dt.UTC)
FAR = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)


def parquet(columns, **options):
    """The bytes of a file."""
    sink = pa.BufferOutputStream()
    arrays = [array for _, array in columns]
    pq.write_table(pa.Table.from_arrays(arrays, names=[name for name, _ in columns]), sink, **options)
    return sink.getvalue().to_pybytes()


@pytest.fixture(params=[True, False], ids=["here", "job"])
def decode(request, spark, tmp_path, monkeypatch):
    """Decode files in this process or by a job; return the good rows, and the errors by file."""
    if not request.param:
        monkeypatch.setattr(decoder, "is_small", lambda files, form: False)

    def run(contents, schema, locate):
        dated = []
        for number, (name, content) in enumerate(contents.items()):
            path = tmp_path / name
            path.write_bytes(content)
            dated.append(DatedFile(str(path), name, len(content), 7 + number, withdrawn=name.startswith("minus")))
        rows = asyncio.run(SparkFiles(spark).decode(dated, schema, PARQUET, locate=locate))
        updates = dataframe(unwrap(rows), spark).toArrow().to_pylist()
        good = [(*(row[name] for name in schema.names), row[TIME], row[DIFF]) for row in updates if row[ERROR] is None]
        errors = {}
        for row in updates:
            if row[ERROR] is not None:
                assert row[DIFF] == 1
                assert all(row[name] is None for name in schema.names)
                said = json.loads(row[ERROR])
                errors.setdefault(said["file"], []).append((said.get("record"), said["reason"]))
        return good, errors

    def both(contents, schema):
        found = [run(contents, schema, locate) for locate in (False, True)]
        assert sorted(map(repr, found[0][0])) == sorted(map(repr, found[1][0]))
        assert list(found[0][1]) == list(found[1][1])
        return found[1]

    return both


def schema(**kinds):
    """Columns of these types."""
    return Schema(tuple(Column(name, kind) for name, kind in kinds.items()))


READ = {
    "null": ("string", pa.nulls(1), None),
    "null_array": ("array<int>", pa.nulls(1), None),
    "unsigned": ("bigint", pa.array([2**63 - 1], pa.uint64()), 2**63 - 1),
    "unsigned_all": ("decimal(20,0)", pa.array([2**64 - 1], pa.uint64()), Decimal(2**64 - 1)),
    "half": ("float", pa.array([np.float16(1.5)]), 1.5),
    "nano": ("timestamp", pa.array([AT], pa.timestamp("ns", "UTC")), AT),
    "naive": ("timestamp_ntz", pa.array([AT.replace(tzinfo=None)], pa.timestamp("ns")), AT.replace(tzinfo=None)),
    "milli": (
        "timestamp",
        pa.array([1_000], pa.timestamp("ms", "UTC")),
        dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC),
    ),
    "clock": ("string", pa.array([dt.time(1, 2, 3)]), "01:02:03"),
    "map": (
        "array<struct<k:string,v:int>>",
        pa.array([[("b", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32())),
        [{"k": "a", "v": 2}, {"k": "b", "v": 1}],
    ),
    "uuid": ("string", pa.array([UUID.bytes], pa.uuid()), str(UUID)),
    "dotted.name": ("bigint", pa.array([5], pa.uint64()), 5),
    "digits": ("decimal(12,2)", pa.array([7], pa.int32()), Decimal("7.00")),
    "_metadata": ("string", pa.array(["mine"]), "mine"),
    "zero": ("double", pa.array([-0.0], pa.float32()), 0.0),
}


def test_what_spark_does_not_read_as_declared_is_read_where_it_fits(decode):
    """Damage: one file as pandas writes it stops its source: later good files are not read, and views wait."""
    declared = schema(**{name: kind for name, (kind, _, _) in READ.items()})
    content = parquet([(name, array) for name, (_, array, _) in READ.items()] + [("more", pa.nulls(1))])
    good, errors = decode({"a.parquet": content, "minus.parquet": content}, declared)
    wanted = tuple(value for _, _, value in READ.values())
    assert errors == {}
    assert sorted(good, key=lambda row: row[-2]) == [(*wanted, 7, 1), (*wanted, 8, -1)]
    assert not any(str(row[declared.names.index("zero")]).startswith("-") for row in good)


def test_each_way_in_which_columns_fail_is_an_error_of_that_file(decode):
    """Damage: one file stops its source, and nothing names it."""
    declared, k = schema(k="bigint"), pa.array([1], pa.int64())
    refused = {
        "twice.parquet": ([("k", k), ("K", k)], {}, "column `k` 2 times"),
        "same.parquet": ([("k", k), ("k", k)], {}, "column `k` 2 times"),
        "map.parquet": ([("k", pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())))], {}, "which bigint does not hold"),
        "interval.parquet": ([("k", pa.array([dt.time(1)]))], {}, "which bigint does not hold"),
        "narrow.parquet": ([("k", pa.array([1.0]))], {}, "column `k` is double there, which bigint does not hold"),
        "none.parquet": ([("x", k)], {}, "no column `k`; it has x"),
    }
    files = {name: parquet(columns, **options) for name, (columns, options, _) in refused.items()}
    files |= {
        "case.parquet": parquet([("K", k), ("x", k), ("X", k)]),
        "brotli.parquet": parquet([("k", k)], compression="brotli"),
        "split.parquet": parquet([("k", k)], use_dictionary=False, column_encoding={"k": "BYTE_STREAM_SPLIT"}),
        "good.parquet": parquet([("k", k)]),
    }
    good, errors = decode(files, declared)
    assert sorted(good) == [(1, 7 + n, 1) for n in range(len(refused), len(files))]
    assert sorted(errors) == sorted(refused)
    for name, (_, _, said) in refused.items():
        ((_, reason),) = errors[name]
        assert said in reason, name


def test_a_value_that_does_not_fit_is_an_error_of_its_row(decode):
    """Damage: digits of a time are cut off in silence, a number wraps, or one value hides a file of good rows."""
    declared = schema(n="bigint", at="timestamp")
    stored = [
        ("n", pa.array([1, 2**64 - 1, 3, None], pa.uint64())),
        ("at", pa.array([1_000, 2_000, 3_001, None], pa.timestamp("ns", "UTC"))),
    ]
    good, errors = decode({"a.parquet": parquet(stored), "minus.parquet": parquet(stored)}, declared)
    at = dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)
    assert sorted(good, key=lambda row: (row[2], row[0] is None)) == [
        (1, at, 7, 1),
        (None, None, 7, 1),
        (1, at, 8, -1),
        (None, None, 8, -1),
    ]
    assert errors["a.parquet"] == [
        (2, f"column `n`: '{2**64 - 1}' is not a valid bigint"),
        (3, "column `at`: '1970-01-01 00:00:00.000003001Z' is not a valid timestamp"),
    ]
    assert [number for number, _ in errors["minus.parquet"]] == [2, 3]
    assert all("takes back" in reason for _, reason in errors["minus.parquet"])


def test_an_object_comes_to_its_task_through_spark(decode, monkeypatch):
    """Damage: a file that is read from a directory stops its source when it lies in a bucket."""
    monkeypatch.setattr(parquet_files, "S3A", "/")  # every path is taken for an object's
    k = ("k", pa.array([1, 2**64 - 1], pa.uint64()))
    good, errors = decode({"a b.parquet": parquet([k]), "é.parquet": parquet([k])}, schema(k="bigint"))
    assert sorted(good) == [(1, 7, 1), (1, 8, 1)]
    assert {name: [number for number, _ in those] for name, those in errors.items()} == {
        "a b.parquet": [2],
        "é.parquet": [2],
    }


def test_a_column_may_have_the_name_of_sparks_metadata(decode):
    """Damage: a file that Spark reads has no path, so its source stops."""
    files = {name: parquet([("_metadata", pa.array(["mine"]))]) for name in ("a.parquet", "b.parquet")}
    good, errors = decode(files, schema(_metadata="string"))
    assert (sorted(good), errors) == ([("mine", 7, 1), ("mine", 8, 1)], {})


def test_times_of_96_bits_are_read_with_all_their_digits(decode, spark, tmp_path):
    """Damage: files that Spark itself writes are refused; or nanoseconds of another writer are cut off in silence."""
    declared = schema(at="timestamp")
    times = [AT, FAR, dt.datetime(1, 1, 1, tzinfo=dt.UTC), None]
    by_arrow = parquet([("at", pa.array(times, pa.timestamp("us")))], use_deprecated_int96_timestamps=True)
    nanos = pa.array([1_000, 1_001], pa.timestamp("ns"))
    cut = parquet([("at", nanos)], use_deprecated_int96_timestamps=True)
    inside = parquet([("at", pa.array([[1]], pa.list_(pa.timestamp("ns"))))], use_deprecated_int96_timestamps=True)
    rows = spark.createDataFrame(pa.table({"at": pa.array(times, pa.timestamp("us", "UTC"))}))
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        rows.coalesce(1).write.parquet(str(tmp_path / "spark"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    (by_spark,) = (tmp_path / "spark").glob("*.parquet")
    assert pq.ParquetFile(by_spark).schema.column(0).physical_type == "INT96"
    files = {"arrow.parquet": by_arrow, "spark.parquet": by_spark.read_bytes(), "cut.parquet": cut}
    good, errors = decode(files, declared)
    assert sorted(good, key=repr) == sorted(
        [*((at, time, 1) for time in (7, 8) for at in times), (AT.fromtimestamp(1e-6, dt.UTC), 9, 1)], key=repr
    )
    assert errors == {"cut.parquet": [(2, "column `at`: '1970-01-01 00:00:00.000001001Z' is not a valid timestamp")]}
    good, errors = decode({"inside.parquet": inside}, schema(at="array<timestamp>"))
    assert not good
    ((_, reason),) = errors["inside.parquet"]
    assert "column `at` has times of 96 bits inside" in reason
