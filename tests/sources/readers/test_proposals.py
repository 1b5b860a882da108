"""Every proposal of `strandline discover` runs as it is, of every connector that can say what there is to read."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import uuid
from decimal import Decimal

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from iceberg_lake import IcebergLake
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.types import NestedField

import registry_server
import strandline
from strandline.sources.readers.kafka import client
from strandline.sources.readers.postgres import psycopg_server
from strandline.sources.readers.postgres.pgoutput import Identity
from strandline.testing.contracts.discovery_contract import CANARY, DiscoveryContract, DiscoveryPlace
from strandline.testing.postgres.list_postgres import ListDatabase, ListServer, insert
from strandline.testing.upstreams.memory_broker import MemoryBroker, MemoryTopic

pytestmark = pytest.mark.spark

AT = dt.datetime(2024, 2, 29, 12, 30, 0, 123000, tzinfo=dt.UTC)
UUID = uuid.UUID(int=7)


@pytest.fixture(scope="module")
def env(spark, tmp_path_factory):
    """An environment of all proposals."""
    with strandline.open(f"file://{tmp_path_factory.mktemp('here')}", spark=spark) as opened:
        yield opened


STORED = {
    "null": pa.nulls(2),
    **{f"u{bits}": pa.array([1, 2**bits - 1], getattr(pa, f"uint{bits}")()) for bits in (8, 16, 32, 64)},
    "half": pa.array([np.float16(1.5), None]),
    "naive": pa.array([AT.replace(tzinfo=None), None], pa.timestamp("us")),
    "nano": pa.array([AT, None], pa.timestamp("ns", "UTC")),
    "naive nano": pa.array([AT.replace(tzinfo=None), None], pa.timestamp("ns")),
    "milli": pa.array([AT, None], pa.timestamp("ms", "Europe/Paris")),
    "clock": pa.array([dt.time(1, 2, 3), None]),
    "map": pa.array([[("b", 1), ("a", None)], None], pa.map_(pa.string(), pa.uint64())),
    "uuid": pa.array([UUID.bytes, None], pa.uuid()),
    "long": pa.array([1, None], pa.duration("us")),
    "wide": pa.array([Decimal(1), None], pa.decimal256(60, 0)),
    "nested": pa.StructArray.from_arrays(
        [
            pa.array([[UUID.bytes], None], pa.list_(pa.binary(16))).cast(pa.list_(pa.uuid())),
            pa.array([dt.time(1), None]),
        ],
        names=["a b", "`"],
    ),
    "no names": pa.array([{"": 1, "x": 2}, None]),
    "dictionary": pa.array(["a", None]).dictionary_encode(),
    "bytes": pa.array([b"1234", None], pa.binary(4)),
    "a.b": pa.array([1, 2]),
    "semi;colon -- `quoted'": pa.array([1, 2]),
    "_metadata": pa.array(["x", "y"]),
    "select": pa.array([1, 2]),
    "": pa.array([1, 2]),
    "__time": pa.array([1, 2]),
    "same": pa.array([1, 2]),
    "SAME": pa.array([1, 2]),
}
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "suit", "type": {"type": "enum", "name": "suit", "symbols": ["A", "B"]}},
        {"name": "four", "type": {"type": "fixed", "name": "four", "size": 4}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "float"}}},
        {"name": "inner", "type": {"type": "record", "name": "i", "fields": [{"name": "suit", "type": "suit"}]}},
        {"name": "none", "type": "null"},
        {"name": "either", "type": ["int", "string"]},
        {"name": "tree", "type": ["null", "r"], "default": None},
        {"name": "__t", "type": "int"},
    ],
}
RECORD = {
    "id": 1, "at": AT, "local": AT.replace(tzinfo=None), "clock": dt.time(1, 2, 3), "amount": Decimal("1.25"),
    "uuid": UUID, "suit": "B", "four": b"1234", "tags": {"x": [1.5]}, "inner": {"suit": "A"}, "none": None,
    "either": 1, "tree": None, "__t": 1,
}  # fmt: skip
OF_AVRO = {
    "at": "timestamp", "local": "timestamp_ntz", "clock": "string", "amount": "decimal(9,2)", "uuid": "string",
    "suit": "string", "four": "binary", "none": "string", "either": None, "tree": None, "__t": None,
}  # fmt: skip
CHANGED = [
    {
        "id": pa.array([1, 2], pa.int32()),
        "none": pa.nulls(2),
        "n": pa.array([1, 2]),
        "amount": pa.array([1, 2], pa.int32()),
        "x": pa.array([1, 2], pa.int16()),
    },
    {
        "id": pa.array([2**40]),
        "none": pa.array([1]),
        "n": pa.array([1.5]),
        "amount": pa.array([Decimal("1.25")]),
        "x": pa.array([1.5], pa.float32()),
    },
]
"""Parquet files of one name for each column, and not of one type."""
CHANGED_AVRO = [{"id": "int", "n": "int"}, {"id": "long", "n": "double"}]
CSV = (
    'id,"a `b`",,x,X,n,zip,at,naive,day,clock,b,empty\n'
    "1,x,1,1,1,NA,007,2024-02-29T12:00:00Z,2024-02-29 12:00:00,2024-02-29,12:30,true,\n"
    "2.5,y,1,1,1,7,1,2024-02-29 12:00:00.5+01:00,2024-02-29T12:00:00.123456,0001-01-01,,false,\n"
)
JSON = [
    {
        "id": 1,
        "at": "2024-02-29T12:00:00Z",
        "naive": "2024-02-29T12:00:00",
        "day": "2024-02-29",
        "s": {"a b": [1], "": 1},
    },
    {"id": 2.5, "huge": 12345678901234567890, "l": [{"x": 1}, {"y": None}], "": 1, "__t": 1, "either": 1, "e": {}},
    {"id": None, "either": "text", "a `b`": True, "A `B`": 1, "m": [[1.5]], "day": "2024-02-29"},
]


class TestFilesProposals(DiscoveryContract):
    @pytest.fixture
    def place(self, tmp_path):
        root = tmp_path / "it's"
        for name in ("parquet", "times", "csv", "bare", "json", "avro", "changed", "grown"):
            (root / name).mkdir(parents=True)
        arrays = [array.slice(0, 2) for array in STORED.values()]
        pq.write_table(pa.Table.from_arrays(arrays, names=list(STORED)), root / "parquet" / "a.parquet")
        times = pa.table({"at": pa.array([AT, None], pa.timestamp("us"))})
        pq.write_table(times, root / "times" / "a.parquet", use_deprecated_int96_timestamps=True)
        (root / "csv" / "a.csv").write_text(CSV)
        (root / "bare" / "x").write_text("not a file of any format\n")
        (root / "json" / "a.json").write_text("".join(json.dumps(each) + "\n" for each in JSON))
        with (root / "avro" / "a.avro").open("wb") as data:
            fastavro.writer(data, fastavro.parse_schema(AVRO), [RECORD, RECORD])
        for number, (columns, fields) in enumerate(zip(CHANGED, CHANGED_AVRO, strict=True)):
            pq.write_table(pa.table(columns), root / "changed" / f"{number}.parquet")
            schema = {"type": "record", "name": "r", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
            with (root / "grown" / f"{number}.avro").open("wb") as data:
                fastavro.writer(data, fastavro.parse_schema(schema), [dict.fromkeys(fields, 1)])
        for path in root.rglob("*"):  # they have settled long ago
            os.utime(path, (1_700_000_000, 1_700_000_000))
        left = dict.fromkeys(["wide", "no names", "", "__time", "same", "SAME"])
        return DiscoveryPlace(
            "files",
            {"path": str(root)},
            {"parquet": 2, "times": 2, "csv": 2, "json": 3, "avro": 2, "changed": 3, "grown": 2},
            {
                "parquet": {"u64": "decimal(20,0)", "naive": "timestamp_ntz", "nano": "timestamp", **left},
                "times": {"at": "timestamp"},
                "csv": {"id": "double", "n": "bigint", "zip": "string", "": None, "x": None, "X": None},
                "json": {"id": "double", "either": "string", "a `b`": "boolean", "A `B`": None, "": None, "__t": None},
                "avro": OF_AVRO,
                "changed": {"id": "bigint", "none": "bigint", "n": None, "amount": "decimal(12,2)", "x": "double"},
                "grown": {"id": "bigint", "n": "double"},
            },
        )


class TestDeltaProposals(DiscoveryContract):
    @pytest.fixture
    def place(self, tmp_path):
        kept = {
            name: STORED[name] for name in ("naive", "half", "dictionary", "bytes", "a.b", "semi;colon -- `quoted'")
        }
        kept["half"] = kept["half"].cast(pa.float32())
        kept |= {"at": pa.array([AT, None]), "map": pa.array([[("b", 1)], None], pa.map_(pa.string(), pa.int32()))}
        kept["select"] = pa.array([{"x y": [1]}, None])
        write_deltalake(str(tmp_path / "a table"), pa.table(kept))
        types = {"map": "array<struct<key:string,value:int>>", "naive": "timestamp_ntz"}
        return DiscoveryPlace("delta", {"path": f"{tmp_path}/a table"}, {"a table": 2}, {"a table": types})


class TestIcebergProposals(DiscoveryContract):
    @pytest.fixture
    def place(self, tmp_path):
        plain = {
            "id": (iceberg.LongType(), pa.array([1, 2])),
            "clock": (iceberg.TimeType(), STORED["clock"]),
            "uuid": (iceberg.UUIDType(), STORED["uuid"]),
            "naive": (iceberg.TimestampType(), STORED["naive"]),
            "at": (iceberg.TimestamptzType(), pa.array([AT, None], pa.timestamp("us", "UTC"))),
            "four": (iceberg.FixedType(4), STORED["bytes"]),
            "map": (
                iceberg.MapType(90, iceberg.StringType(), 91, iceberg.IntegerType(), value_required=False),
                pa.array([[("b", 1), ("a", None)], None], pa.map_(pa.string(), pa.int32())),
            ),
            "same": (iceberg.IntegerType(), pa.array([1, 2], pa.int32())),
            "SAME": (iceberg.IntegerType(), pa.array([1, 2], pa.int32())),
            "__t": (iceberg.IntegerType(), pa.array([1, 2], pa.int32())),
        }
        schema = IcebergSchema(
            *(NestedField(n, name, stored) for n, (name, (stored, _)) in enumerate(plain.items(), 1))
        )
        rows = pa.Table.from_arrays([rows for _, rows in plain.values()], names=list(plain))
        IcebergLake(tmp_path / "sales").create(rows, schema=schema)
        path = f"{tmp_path}/sales"
        types = {"clock": "string", "uuid": "string", "at": "timestamp", "same": None, "SAME": None, "__t": None}
        return DiscoveryPlace("iceberg", {"path": path}, {path: 2}, {path: types})


class TestKafkaProposals(DiscoveryContract):
    @pytest.fixture
    def place(self, monkeypatch):
        topics = {name: MemoryTopic(id=name) for name in ("k-json", "k-avro", "text", "bytes", "empty")}
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, fastavro.parse_schema(AVRO), RECORD)
        topics["k-json"].produce(0, *(json.dumps(each).encode() for each in JSON))
        topics["k-avro"].produce(0, b"\0\0\0\0\1" + sink.getvalue())
        topics["text"].produce(0, b"a line", b"another")
        topics["bytes"].produce(0, b"\xff")
        topics["empty"].produce(0)

        async def listed(_):
            return sorted(topics)

        monkeypatch.setattr(client, "topics", listed)
        monkeypatch.setattr(client, "KafkaBroker", lambda options, group: MemoryBroker(topics[options.topic]))
        monkeypatch.setenv("KAFKA_PASSWORD", "x")
        rows = {"k-json": 3, "k-avro": 1, "text": 2, "bytes": 1, "empty": 0}
        types = {"k-json": {"id": "double", "a `b`": "boolean", "A `B`": None}, "k-avro": OF_AVRO}
        login = {"sasl": "plain", "user": "me", "password": CANARY}
        with registry_server.running() as registry:
            registry.register("k-avro-value", json.dumps(AVRO))
            yield DiscoveryPlace("kafka", {"servers": "k:1", "registry_url": registry.url, **login}, rows, types)


class TestPostgresProposals(DiscoveryContract):
    @pytest.fixture
    def place(self, monkeypatch):
        database = ListDatabase()
        columns = {
            "id": ("integer", b"1"), "n": ("numeric(10,2)", b"1.25"), "any": ("numeric", b"1e400"),
            "odd": ("numeric(3,5)", b"0.00123"), "at": ("timestamp with time zone", b"2024-02-29 12:00:00.5+00"),
            "naive": ("timestamp(3) without time zone", b"2024-02-29 12:00:00"),
            "clock": ("time with time zone", b"12:00+01"),
            "uuid": ("uuid", str(UUID).encode()), "b": ("boolean", b"t"), "raw": ("bytea", b"\\x01"),
            "day": ("date", b"2024-02-29"), "a `b`": ("text[]", b'{"a,b",NULL}'), "span": ("interval", b"1 day"),
            "json": ("jsonb", b"{}"), "same": ("text", b"x"), "SAME": ("text", b"x"), "__t": ("text", b"x"),
        }  # fmt: skip
        kinds = {name: kind for name, (kind, _) in columns.items()}
        database.create("order", Identity.DEFAULT, **(kinds | {"id": "*integer"}))
        database.create("free", Identity.NOTHING, **kinds)
        database.create("hidden", Identity.DEFAULT, __key="*integer", v="text")
        for name in ("order", "free"):
            database.commit(insert(name, tuple(text for _, text in columns.values())))
        database.commit(insert("hidden", (b"1", b"x")))
        monkeypatch.setattr(psycopg_server, "PsycopgServer", lambda options, publication, name: ListServer(database))
        monkeypatch.setenv("POSTGRES_PASSWORD", "x")
        rows = {"public.order": 1, "public.free": 1, "public.hidden": None}
        left = {
            "same": "string",
            "SAME": None,
            "__t": None,
            "odd": "string",
            "at": "timestamp",
            "naive": "timestamp_ntz",
        }
        asked = {"host": "h", "user": "u", "database": "d", "publication": "p", "password": CANARY}
        return DiscoveryPlace("postgres", asked, rows, {"public.order": left, "public.free": left})
