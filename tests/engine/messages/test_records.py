"""What Python decodes of messages: Avro and Protobuf, framed and not, exactly or not at all."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st
from tests.algebra.test_unavailable import IN_AVRO, IN_JSON

from strandline.algebra.messages import RAW, MessageEncoding, MessageFormat, Shape
from strandline.algebra.schema import Column, Schema
from strandline.algebra.unavailable import LEFT_OPEN
from strandline.engine.messages.parsed import KEY, UNSENT, VALUE, wrong
from strandline.engine.messages.records import decoding
from strandline.errors import DefinitionError

AVRO, PROTOBUF = MessageEncoding.AVRO, MessageEncoding.PROTOBUF
PAIR = Schema((Column("k", "int"), Column("v", "string")))
WRITTEN = {"type": "record", "name": "r", "fields": [{"name": "k", "type": "int"}, {"name": "v", "type": "string"}]}
LATER = {**WRITTEN, "fields": [*WRITTEN["fields"], {"name": "more", "type": ["null", "long"]}]}


def avro(schema, value):
    """Return the bytes of a value, without a frame."""
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    return data.getvalue()


def framed(number, data):
    """Return bytes with Confluent's frame."""
    return b"\0" + number.to_bytes(4, "big") + data


def decode(values, schema, form, part=VALUE):
    """Return what Python decodes of a part of messages, and what is wrong with it."""
    own = decoding(schema, form)
    columns = {name: pa.nulls(len(values), pa.binary()) for name in RAW if name != "headers"}
    columns["value" if part == VALUE else "key"] = pa.array(values, pa.binary())
    found = own.table(pa.table(columns))
    return found[part].to_pylist(), found[wrong(part)].to_pylist()


def test_avro_is_decoded_by_the_schema_that_is_given():
    """Damage: a field is read as another."""
    form = MessageFormat(AVRO, avro_schema=json.dumps(WRITTEN))
    good = avro(WRITTEN, {"k": 1, "v": "a"})
    values, told = decode([good, good[:-1], good + b"x", b"", None], PAIR, form)
    assert values == [{"k": 1, "v": "a"}, None, None, None, None]
    assert told[0] is told[4] is None
    assert told[2] == "1 bytes follow the Avro value"
    assert told[1] == told[3] == "it is not Avro of this schema: it ends too early"


def test_a_frame_names_the_schema_that_wrote_the_value():
    """Damage: a value that an older program wrote is read by the newer schema."""
    form = MessageFormat(AVRO, framed=True, schemas={1: json.dumps(WRITTEN), 258: json.dumps(LATER)})
    values, told = decode(
        [
            framed(1, avro(WRITTEN, {"k": 1, "v": "a"})),
            framed(258, avro(LATER, {"k": 2, "v": "b", "more": 5})),
            framed(3, b""),
            avro(WRITTEN, {"k": 1, "v": "a"}),
        ],
        PAIR,
        form,
    )
    assert values == [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}, None, None]
    assert told == [None, None, "the registry has no schema 3", "it does not begin with a schema's id"]


def test_a_schema_of_ours_resolves_what_others_wrote():
    """Damage: a renamed field is lost."""
    own = {**WRITTEN, "fields": [{"name": "k", "type": "long"}, {"name": "w", "aliases": ["v"], "type": "string"}]}
    form = MessageFormat(AVRO, framed=True, schemas={1: json.dumps(WRITTEN)}, avro_schema=json.dumps(own))
    schema = Schema((Column("k", "bigint"), Column("w", "string")))
    assert decode([framed(1, avro(WRITTEN, {"k": 1, "v": "a"}))], schema, form) == ([{"k": 1, "w": "a"}], [None])


DAY = {"type": "int", "logicalType": "date"}
HUNDREDTHS = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


@pytest.mark.parametrize(
    ("kind", "default", "column", "value"),
    [
        ("bytes", "\u00ff\u0001", "binary", b"\xff\x01"),
        ({"type": "fixed", "name": "f", "size": 2}, "\u0000\u00fe", "binary", b"\0\xfe"),
        (DAY, 1, "date", dt.date(1970, 1, 2)),
        ([DAY, "null"], 1, "date", dt.date(1970, 1, 2)),
        (["null", DAY], None, "date", None),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            -1,
            "timestamp",
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC),
        ),
        (HUNDREDTHS, "\u00ff", "decimal(4,2)", Decimal("-0.01")),
        ("float", 1, "float", 1.0),
        ({"type": "array", "items": DAY}, [0, 1], "array<date>", [dt.date(1970, 1, 1), dt.date(1970, 1, 2)]),
        (
            {"type": "map", "values": "bytes"},
            {"a": "\u00fe"},
            "array<struct<key:string,value:binary>>",
            [{"key": "a", "value": b"\xfe"}],
        ),
        (
            {
                "type": "record",
                "name": "i",
                "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": DAY, "default": 3}],
            },
            {"x": 1},
            "struct<x:int,y:date>",
            {"x": 1, "y": dt.date(1970, 1, 4)},
        ),
    ],
)
def test_a_field_that_the_writer_did_not_know_has_its_default(kind, default, column, value):
    """Damage: once a field was added with a default, every older message is an error, or lacks a part of it."""
    own = {**WRITTEN, "fields": [*WRITTEN["fields"], {"name": "new", "type": kind, "default": default}]}
    form = MessageFormat(AVRO, framed=True, schemas={1: json.dumps(WRITTEN)}, avro_schema=json.dumps(own))
    found = decode([framed(1, avro(WRITTEN, {"k": 1, "v": "a"}))], Schema((Column("new", column),)), form)
    assert found == ([{"new": value}], [None])


def test_a_schema_that_does_not_resolve_names_the_field():
    """Damage: the author sees that nothing can be read, and not which default is missing."""
    own = {**WRITTEN, "fields": [*WRITTEN["fields"], {"name": "new", "type": ["null", "int"]}]}
    form = MessageFormat(AVRO, framed=True, schemas={1: json.dumps(WRITTEN)}, avro_schema=json.dumps(own))
    _, told = decode([framed(1, avro(WRITTEN, {"k": 1, "v": "a"}))], PAIR, form)
    assert told == ["it is not Avro of this schema: No default value for field new in r"]


def test_a_decimal_keeps_digits_beyond_its_precision():
    """Damage: 123.45 that was written under a precision of 4 is read as 123.4 or 123.5, without an error."""
    written = {"type": "record", "name": "r", "fields": [{"name": "d", "type": HUNDREDTHS}]}
    form = MessageFormat(AVRO, avro_schema=json.dumps(written))
    data = b"\x04" + (12345).to_bytes(2, "big")
    assert decode([data], Schema((Column("d", "decimal(6,2)"),)), form) == ([{"d": Decimal("123.45")}], [None])
    assert decode([data], Schema((Column("d", "decimal(4,2)"),)), form)[1] == [
        "column `d`: '123.45' is not a valid decimal(4,2)"
    ]


def test_a_value_that_is_nested_without_end_does_not_end_the_process():
    """Damage: one message of some kilobytes kills the process, at each start anew."""
    fields = [{"name": "k", "type": "int"}, {"name": "next", "type": ["null", {"type": "array", "items": "r"}]}]
    written = {"type": "record", "name": "r", "fields": fields}
    form = MessageFormat(AVRO, avro_schema=json.dumps(written))
    chain = avro(written, {"k": 7, "next": [{"k": 8, "next": None}]})
    values, told = decode([chain, b"\x02\x02\x02" * 100_000, chain], Schema((Column("k", "int"),)), form)
    assert values == [{"k": 7}, None, {"k": 7}]
    assert told == [None, "it is not Avro of this schema: it is nested too deeply", None]


def test_a_frame_that_names_a_schema_of_another_kind_is_an_error_of_its_message():
    """Damage: one message that another program wrote stops the source for ever."""
    schemas = {1: json.dumps(WRITTEN), 2: 'syntax = "proto3"; message M {}', 3: '{"type": "object", "properties": {}}'}
    form = MessageFormat(AVRO, framed=True, schemas=schemas)
    good = framed(1, avro(WRITTEN, {"k": 1, "v": "a"}))
    values, told = decode([framed(2, b"\x08\x01"), framed(3, b"{}"), good], PAIR, form)
    assert values == [None, None, {"k": 1, "v": "a"}]
    assert told == ["the registry's schema 2 is no Avro schema", "the registry's schema 3 is no Avro schema", None]


def test_a_value_that_its_column_cannot_hold_is_refused():
    """Damage: a number is rounded or cut without a word."""
    written = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "a", "type": ["null", "long"]},
            {"name": "f", "type": ["null", "double"]},
            {"name": "d", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}]},
        ],
    }
    schema = Schema((Column("a", "smallint"), Column("f", "float"), Column("d", "decimal(6,2)")))
    given_rows = [
        {"a": 1, "f": 0.5, "d": Decimal("1234.5600")},
        {"a": 40000},
        {"f": 0.1},
        {"d": Decimal("0.001")},
        {"d": Decimal("12345.1")},
    ]
    values, told = decode(
        [avro(written, row) for row in given_rows], schema, MessageFormat(AVRO, avro_schema=json.dumps(written))
    )
    assert values[0] == {"a": 1, "f": 0.5, "d": Decimal("1234.56")}
    assert told == [
        None,
        "column `a`: '40000' is not a valid smallint",
        "column `f`: '0.1' is not a valid float",
        "column `d`: '0.0010' is not a valid decimal(6,2)",
        "column `d`: '12345.1000' is not a valid decimal(6,2)",
    ]


def test_a_key_may_be_a_bare_value():
    """Damage: keys that are no records cannot be read."""
    form = MessageFormat(MessageEncoding.JSON, Shape.UPSERT, ("k",), AVRO, key_avro_schema='"int"', key_framed=False)
    assert decode([avro("int", 5)], PAIR, form, KEY) == ([{"k": 5}], [None])


def test_a_change_has_its_halves():
    """Damage: a change that Debezium wrote as Avro loses its row."""
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", {**WRITTEN, "name": "Value"}]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "op", "type": "string"},
        ],
    }
    form = MessageFormat(AVRO, Shape.DEBEZIUM, ("k",), avro_schema=json.dumps(envelope))
    values, told = decode(
        [avro(envelope, {"op": "u", "before": {"k": 1, "v": "a"}, "after": {"k": 1, "v": "b"}})], PAIR, form
    )
    assert (values, told) == ([{"op": "u", "after": {"k": 1, "v": "b"}, "before": {"k": 1}}], [None])


def test_a_placeholder_of_a_change_is_no_value():
    """Damage: what Debezium writes as Avro for a long value that stayed takes its place."""
    kinds = {
        "text": "string", "bytes": "bytes", "texts": {"type": "array", "items": "string"},
        "numbers": {"type": "array", "items": "int"}, "map": {"type": "map", "values": "string"},
        "decimals": {
            "type": "array",
            "items": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        "truths": {"type": "array", "items": "boolean"},
    }  # fmt: skip
    columns = {
        "text": "string", "bytes": "binary", "texts": "array<string>", "numbers": "array<int>",
        "map": "array<struct<key:string,value:string>>", "decimals": "array<decimal(9,2)>", "truths": "array<boolean>",
    }  # fmt: skip
    fields = [{"name": "k", "type": "int"}, *({"name": n, "type": ["null", kind]} for n, kind in kinds.items())]
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "after", "type": ["null", {"type": "record", "name": "Value", "fields": fields}]},
            {"name": "op", "type": "string"},
        ],
    }
    schema = Schema((Column("k", "int"), *(Column(name, kind) for name, kind in columns.items())))
    form = MessageFormat(AVRO, Shape.DEBEZIUM, ("k",), avro_schema=json.dumps(envelope))
    forms = {**IN_JSON, **IN_AVRO, "truths": [True] * 28}
    nothing = dict.fromkeys(kinds)
    changes = [{"k": n, **nothing, name: forms[name]} for n, name in enumerate(kinds)]
    own = decoding(schema, form)
    table = own.table(pa.table({"value": [avro(envelope, {"op": "u", "after": after}) for after in changes]}))
    *found, last = table.to_pylist()
    for n, (row, name) in enumerate(zip(found, kinds, strict=False)):
        assert (row[wrong(VALUE)], row[UNSENT], row[VALUE]["after"]) == (None, [name], {"k": n, **nothing})
    assert (last[UNSENT], last[wrong(VALUE)]) == (None, f"in `after`: column `truths`: {LEFT_OPEN}")


def test_a_schema_that_is_none_is_refused():
    """Damage: a source is created whose every message is an error."""
    with pytest.raises(DefinitionError, match="no Avro schema"):
        decoding(PAIR, MessageFormat(AVRO, avro_schema="{"))


@pytest.fixture(scope="module")
def files():
    """Return a descriptor set, those that it imports behind those that import them, and the class of its message."""
    field = descriptor_pb2.FieldDescriptorProto
    own = descriptor_pb2.FileDescriptorProto(name="own.proto", package="p", syntax="proto3")
    own.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    own.message_type.add(name="First")
    kind = own.message_type.add(name="Row")
    entry = kind.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    kind.enum_type.add(name="E").value.add(name="ZERO", number=0)
    kind.oneof_decl.add(name="_o")
    optional = {"oneof_index": 0, "proto3_optional": True}
    for number, (name, type_, more) in enumerate(
        [
            ("k", field.TYPE_UINT64, {}),
            ("o", field.TYPE_STRING, optional),
            ("at", field.TYPE_MESSAGE, {"type_name": ".google.protobuf.Timestamp"}),
            ("w", field.TYPE_MESSAGE, {"type_name": ".google.protobuf.DoubleValue"}),
            ("m", field.TYPE_MESSAGE, {"type_name": ".p.Row.MEntry", "label": field.LABEL_REPEATED}),
            ("e", field.TYPE_ENUM, {"type_name": ".p.Row.E"}),
            ("l", field.TYPE_BYTES, {"label": field.LABEL_REPEATED}),
            ("inner", field.TYPE_MESSAGE, {"type_name": ".p.Row"}),
            ("of", field.TYPE_MESSAGE, {"type_name": ".p.Row", "label": field.LABEL_REPEATED}),
        ],
        1,
    ):
        kind.field.add(name=name, number=number, type=type_, **{"label": field.LABEL_OPTIONAL, **more})
    found = descriptor_pb2.FileDescriptorSet()
    found.file.append(own)
    for module in (timestamp_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(found.file.add())
    pool = descriptor_pool.DescriptorPool()
    for file in reversed(found.file):
        pool.Add(file)
    return found.SerializeToString(), message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Row"))


PROTO = Schema(
    (
        Column("k", "bigint"),
        Column("o", "string"),
        Column("at", "timestamp"),
        Column("w", "double"),
        Column("m", "array<struct<key:string,value:int>>"),
        Column("e", "string"),
        Column("l", "array<binary>"),
    )
)


def test_protobuf_is_decoded_by_descriptors(files):
    """Damage: what is not set cannot be told from what is empty."""
    descriptor, kind = files
    whole = kind(k=1, o="", w={"value": 0.0}, m={"b": 2, "a": 1}, e=0, l=[b"x"])
    whole.at.FromDatetime(dt.datetime(2024, 1, 2, 3, 4, 5, 6))  # noqa: DTZ001 - it takes UTC
    form = MessageFormat(PROTOBUF, descriptor=descriptor, message="p.Row")
    values, told = decode([whole.SerializeToString(), b"", kind(k=1 << 63).SerializeToString(), b"\x08"], PROTO, form)
    entries = [{"key": "a", "value": 1}, {"key": "b", "value": 2}]
    at = dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC)
    assert values[0] == {"k": 1, "o": "", "at": at, "w": 0.0, "m": entries, "e": "ZERO", "l": [b"x"]}
    assert values[1] == {"k": 0, "o": None, "at": None, "w": None, "m": [], "e": "ZERO", "l": []}
    assert told[:2] == [None, None]
    assert told[2] == f"column `k`: '{1 << 63}' is not a valid bigint"
    assert told[3].startswith("it is not a Protobuf message p.Row")


def test_the_entries_of_a_map_may_have_other_names(files):
    """Damage: every key and every value of a map is NULL, as those of an Avro map never were."""
    descriptor, kind = files
    form = MessageFormat(PROTOBUF, descriptor=descriptor, message="p.Row")
    schema = Schema((Column("m", "array<struct<name:string,n:int>>"),))
    found = decode([kind(m={"b": 2, "a": 1}).SerializeToString()], schema, form)
    assert found == ([{"m": [{"name": "a", "n": 1}, {"name": "b", "n": 2}]}], [None])


def test_a_frame_says_which_message_of_its_file_it_is(files):
    """Damage: a message of one type is read as another, field by field."""
    descriptor, kind = files
    form = MessageFormat(PROTOBUF, framed=True, descriptor=descriptor, message="p.Row")
    data = kind(k=1).SerializeToString()
    values, told = decode(
        [framed(7, b"\x02\x02" + data), framed(7, b"\0" + data), data], Schema(PROTO.columns[:1]), form
    )
    assert values == [{"k": 1}, None, None]
    assert told == [None, "it is message [0] of its file; p.Row is [1]", "it does not begin with a schema's id"]


def test_descriptors_that_lack_something_are_refused(files):
    """Damage: a source is created whose every message is an error."""
    descriptor, _ = files
    form = MessageFormat(PROTOBUF, descriptor=descriptor, message="p.Row")
    with pytest.raises(DefinitionError, match="no field 'v'"):
        decoding(PAIR, form)
    with pytest.raises(DefinitionError, match=r"no message 'p\.None'"):
        decoding(PROTO, MessageFormat(PROTOBUF, descriptor=descriptor, message="p.None"))
    for column in ("struct<k:bigint,none:int>", "struct<of:array<struct<none:int>>>"):
        with pytest.raises(DefinitionError, match=r"message p\.Row has no field 'none'"):
            decoding(Schema((Column("inner", column),)), form)
    with pytest.raises(DefinitionError, match="descriptor set"):
        decoding(PROTO, MessageFormat(PROTOBUF, descriptor=b"\x08", message="p.Row"))


@given(st.binary(max_size=60))
@pytest.mark.property
def test_no_bytes_stop_the_read(data):
    """Damage: one damaged message fails the step of all messages, for ever."""
    kinds = [
        "int",
        "string",
        {"type": "array", "items": "string"},
        {"type": "bytes", "logicalType": "decimal", "precision": 5},
    ]
    written = {"type": "record", "name": "r", "fields": [{"name": f"f{n}", "type": k} for n, k in enumerate(kinds)]}
    schema = Schema(
        (Column("f0", "int"), Column("f1", "string"), Column("f2", "array<string>"), Column("f3", "decimal(5,0)"))
    )
    values, told = decode([data], schema, MessageFormat(AVRO, avro_schema=json.dumps(written)))
    assert (values[0] is None) is (told[0] is not None)
