"""Messages that are decoded here, and those that a Spark job decodes, give the same rows for the same bytes."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter

import fastavro
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.engine.messages.test_decoder import raw

from strandline.algebra.messages import (
    GONE,
    KEPT,
    DatedFile,
    Encoding,
    FileFormat,
    MessageEncoding,
    MessageFormat,
    Metadata,
    Shape,
)
from strandline.algebra.schema import ERROR, Column, Schema
from strandline.engine.files.decoder import SparkFiles
from strandline.engine.frames.rows import Local, dataframe, unwrap
from strandline.engine.messages.decoder import SparkMessages, conformed, decoded
from strandline.testing.lists.list_engine import listed
from strandline.testing.lists.list_messages import ListMessages

pytestmark = [pytest.mark.spark, pytest.mark.property]

SCHEMA = Schema(
    (
        Column("k", "int"),
        Column("v", "string"),
        Column("d", "decimal(12,3)"),
        Column("f", "double"),
        Column("s", "struct<a:int,b:array<string>>"),
    )
)
FLAT = Schema(SCHEMA.columns[:4])
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "k", "type": ["null", "long"]},
        {"name": "v", "type": ["null", "string"]},
        {"name": "f", "type": "double"},
    ],
}
_numbers = st.integers(-(2**33), 2**33) | st.floats() | st.decimals(allow_nan=False, allow_infinity=False).map(str)
_values = st.none() | st.booleans() | _numbers | st.text(max_size=5) | st.just({"a": 1, "b": ["x", None]})
_objects = st.dictionaries(st.sampled_from([*SCHEMA.names, "other"]), _values, max_size=4)
_jsons = _objects.map(json.dumps).map(str.encode)
_fields = st.sampled_from(["1", "", '"a,b"', '"a\nb"', "x", "-0.0", "NaN", "é", '"', "1.5", "12345678901.5", " 1"])
_csvs = st.lists(_fields, min_size=1, max_size=6).map(",".join).map(str.encode)


def _avro(row):
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(AVRO), row)
    return data.getvalue()


_avros = st.fixed_dictionaries(
    {"k": st.none() | st.integers(-(2**33), 2**33), "v": st.none() | st.text(max_size=5), "f": st.floats()}
).map(_avro)


@st.composite
def _damaged(draw, sound):
    """Draw bytes that are sound, or cut, longer, changed, or something else."""
    data = bytearray(draw(sound))
    match draw(st.integers(0, 6)):
        case 0:
            return bytes(data[: draw(st.integers(0, len(data)))])
        case 1:
            return bytes(data) + draw(st.sampled_from([b" ", b"\n", b"}", b"x", b"\n1", bytes(data)]))
        case 2 if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
            return bytes(data)
        case 3:
            return draw(st.none() | st.binary(max_size=8))
        case _:
            return bytes(data)


def _batches(sound):
    return st.lists(st.tuples(_damaged(sound), _damaged(_keys)), min_size=10, max_size=60)


_keys = st.sampled_from([b'{"k":1}', b"2", b'{"k":null}', b'"x"', b"{}", b'{"k":1}{'])
_changes = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["c", "u", "r", "d", "t", "?", None]),
        "before": st.none() | _objects,
        "after": st.none() | _objects,
    }
).map(lambda change: json.dumps(change).encode())


def _counted(rows):
    """Return rows as a multiset, without columns that no row has."""
    idle = {ERROR: None, KEPT: None}
    return Counter(repr(sorted({**idle, **row}.items())) for row in rows)


@pytest.fixture(scope="module")
def both(spark):
    """Return the rows that a batch gives here, which are those that a job gives."""
    decoder = SparkMessages(spark)

    def run(batch, schema, form):
        table = raw([value for value, _ in batch], [key for _, key in batch])
        here = unwrap(asyncio.run(decoder.messages(table, schema, form, locate=True)))
        assert isinstance(here, Local)
        assert decoder._here.failed == 0, "a plan could not be prepared"
        frame = dataframe(Local(conformed(table, form), plain=True), spark).repartition(2)
        job = dataframe(unwrap(decoded(frame, schema, form, locate=True)), spark).toArrow().to_pylist()
        rows = here.table.to_pylist()
        assert _counted(rows) == _counted(job)
        return rows

    return run


SETTINGS = settings(
    max_examples=8,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink takes a job an example
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)


@SETTINGS
@given(_batches(_jsons))
def test_json(both, batch):
    """Damage: a row depends on whether few or many messages were read with it."""
    rows = both(batch, SCHEMA, MessageFormat(MessageEncoding.JSON))
    assert len(rows) == len(batch), "each message is a row or an error"


@SETTINGS
@given(_batches(_csvs))
def test_csv(both, batch):
    """Damage: see `test_json`."""
    assert len(both(batch, FLAT, MessageFormat(MessageEncoding.CSV))) == len(batch)


@SETTINGS
@given(_batches(_avros))
def test_avro(both, batch):
    """Damage: see `test_json`."""
    schema = Schema((Column("k", "int"), Column("v", "string"), Column("f", "double"), Column("o", "bigint")))
    included = {"o": Metadata.OFFSET}
    form = MessageFormat(MessageEncoding.AVRO, avro_schema=json.dumps(AVRO), included=included)
    assert len(both(batch, schema, form)) == len(batch)


@SETTINGS
@given(_batches(_jsons))
def test_upserts(both, batch):
    """Damage: see `test_json`."""
    form = MessageFormat(MessageEncoding.JSON, Shape.UPSERT, ("k",), MessageEncoding.JSON)
    assert len(both(batch, SCHEMA, form)) == len(batch)


@SETTINGS
@given(_batches(_changes), st.booleans())
def test_changes(both, batch, keyed):
    """Damage: see `test_json`."""
    key = MessageEncoding.JSON if keyed else None
    rows = both(batch, SCHEMA, MessageFormat(MessageEncoding.JSON, Shape.DEBEZIUM, ("k",), key))
    left = sum(row[ERROR] is None and row[GONE] for row in ({ERROR: None, **row} for row in rows)) if not keyed else 0
    changes = sum(value is not None for value, _ in batch)
    assert changes <= len(rows) <= changes + left


@SETTINGS
@given(st.lists(_damaged(_jsons), min_size=1, max_size=40))
def test_a_json_record_means_the_same_in_a_file(both, spark, tmp_path_factory, batch):
    """Damage: the rows of a topic change when they are read from an archive of it."""
    lines = [value for value in batch if value is not None and not {*b"\r\n"} & {*value} and value.strip()]
    path = tmp_path_factory.mktemp("lines") / "a.json"
    path.write_bytes(b"\n".join(lines) + b"\n")
    dated = [DatedFile(str(path), "a.json", path.stat().st_size, 7)]
    read = asyncio.run(SparkFiles(spark).decode(dated, SCHEMA, FileFormat(Encoding.JSON), locate=False))
    of_file = dataframe(unwrap(read), spark).toArrow().to_pylist()
    rows = both([(line, None) for line in lines], SCHEMA, MessageFormat(MessageEncoding.JSON)) if lines else []
    assert _good(of_file) == _good(rows)


@SETTINGS
@given(_batches(st.sampled_from([b'{"k":1,"v":"a"}', b'{"k":2}', b"{}", b'{"k":"x"}'])), st.sampled_from([*Shape]))
def test_lists_say_the_same(both, batch, shape):
    """Damage: what a simulation shows of messages is not so on Spark."""
    schema = Schema(SCHEMA.columns[:2])
    if shape is Shape.DEBEZIUM:
        batch = [(None if v is None else b'{"op":"c","after":' + v + b"}", k) for v, k in batch]
    form = MessageFormat(MessageEncoding.JSON, shape, *([(("k",)), MessageEncoding.JSON] if shape.keyed else []))
    table = raw([value for value, _ in batch], [key for _, key in batch])
    rows = listed(asyncio.run(ListMessages().messages(table, schema, form, locate=True))).rows
    assert _counted({**row, ERROR: row[ERROR] is not None} for row in rows) == _counted(
        {**row, ERROR: row.get(ERROR) is not None} for row in both(batch, schema, form)
    )


def _good(rows):
    return Counter(repr(sorted((n, row[n]) for n in SCHEMA.names)) for row in rows if row.get(ERROR) is None)
