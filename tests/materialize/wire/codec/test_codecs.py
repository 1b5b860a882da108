"""Messages are written byte for byte as the protocol says, and whatever bytes come are read or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.materialize.wire.codec.samples import SAMPLES

from strandline.errors import ProtocolViolation
from strandline.materialize.wire import codec as codec_module
from strandline.materialize.wire.codec import Checkpoint, Codec, JsonCodec, ProtoCodec, Request, Response, said

CODECS: list[Codec] = [ProtoCodec(), JsonCodec()]
GOLDEN = {
    each["name"]: each
    for each in json.loads((Path(__file__).parents[3] / "cases" / "wire_messages.json").read_text())["frames"]
}
JSON_TEXT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab\n"'), inner, max_size=3),
    max_leaves=4,
).map(lambda value: json.dumps(value).encode())
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=20),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_FIXED32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
}


@pytest.fixture(params=CODECS, ids=lambda codec: codec.name)
def codec(request: pytest.FixtureRequest) -> Any:
    """Each codec."""
    return request.param


@st.composite
def fields(draw: st.DrawFn, kind: Any, depth: int = 4) -> dict[str, Any]:
    """Return some fields of a class of messages."""
    if kind.name == "Duration":
        return {"seconds": draw(st.integers(0, 10**11)), "nanos": draw(st.integers(0, 10**9 - 1))}
    if kind.name == "Timestamp":
        return {
            "seconds": draw(st.integers(-62_135_596_800, 253_402_300_799)),
            "nanos": draw(st.integers(0, 10**9 - 1)),
        }
    chosen = draw(st.lists(st.sampled_from(list(kind.fields)), max_size=3, unique_by=lambda field: field.number))
    found = {}
    for field in chosen:
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            key, value = message.fields_by_name["key"], message.fields_by_name["value"]
            entries = st.dictionaries(one(key, depth, ""), one(value, depth, field.name), max_size=2)
            found[field.name] = draw(entries)
        elif field.is_repeated:
            found[field.name] = draw(st.lists(one(field, depth, field.name), max_size=2))
        else:
            found[field.name] = draw(one(field, depth, field.name))
    return found


def one(field: Any, depth: int, name: str) -> st.SearchStrategy[Any]:
    """Return values of a field."""
    if name.endswith(("_json", "_json_map")):
        return JSON_TEXT
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return fields(field.message_type, depth - 1) if depth else st.just({})
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return SCALARS[field.type]


MESSAGES = st.sampled_from([Request, Response]).flatmap(lambda kind: fields(kind.DESCRIPTOR).map(lambda f: kind(**f)))


def read(codec: Codec, kind: Any, data: bytes, cut: int | None = None) -> list[Any]:
    """Return the messages in ``data``, given at once, or in pieces of ``cut`` bytes."""
    reader = codec.reader(kind)
    step = cut or max(1, len(data))
    found = [message for at in range(0, len(data), step) for message in reader.feed(data[at : at + step])]
    reader.end()
    return found


@pytest.mark.parametrize(("name", "kind", "given_fields"), SAMPLES, ids=[name for name, *_ in SAMPLES])
def test_every_message_is_written_and_read_byte_for_byte(name: str, kind: Any, given_fields: dict[str, Any]) -> None:
    """Damage: a connector of another author does not understand us."""
    message = kind(**given_fields)
    golden = {"proto": bytes.fromhex(GOLDEN[name]["proto"]), "json": GOLDEN[name]["json"].encode()}
    for codec in CODECS:
        assert codec.encode(message) == golden[codec.name]
        assert read(codec, kind, golden[codec.name]) == [message]


def test_every_message_has_a_sample() -> None:
    """Damage: a message is written in a way that no test has seen."""
    for kind in (Request, Response):
        assert {said(k(**f)) for _, k, f in SAMPLES if k is kind} == {field.name for field in kind.DESCRIPTOR.fields}
    assert sorted(GOLDEN) == sorted(name for name, *_ in SAMPLES)


@given(MESSAGES, st.integers(1, 40))
def test_messages_come_back_in_whatever_pieces_they_arrive(message: Any, cut: int) -> None:
    """Damage: what a connector gets differs from what was sent, or depends on how the pipe cuts it."""
    for codec in CODECS:
        assert read(codec, type(message), codec.encode(message) * 2, cut) == [message, message]


@given(fields(Checkpoint.DESCRIPTOR))
def test_json_is_that_of_the_protobuf_library(given_fields: dict[str, Any]) -> None:
    """Damage: our JSON is another one than everybody's.  (The library has no fields that hold JSON text.)"""
    message = Checkpoint(**given_fields)
    ours = JsonCodec().encode(message).decode()
    assert json.loads(ours) == json_format.MessageToDict(message)
    assert read(JsonCodec(), Checkpoint, (json_format.MessageToJson(message, indent=None) + "\n").encode()) == [message]


@settings(max_examples=300)
@given(MESSAGES, st.data())
def test_damaged_and_truncated_frames_are_a_violation_or_a_message(message: Any, data: st.DataObject) -> None:
    """Damage: a connector that dies inside a message ends us by an error that no caller expects."""
    for codec in CODECS:
        frame = bytearray(codec.encode(message) * 2)
        if data.draw(st.booleans()):
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        del frame[data.draw(st.integers(0, len(frame))) :]
        try:
            read(codec, type(message), bytes(frame))
        except ProtocolViolation as error:
            assert "byte" in str(error)  # noqa: PT017


@given(st.binary(max_size=60))
def test_any_bytes_are_a_violation_or_messages(data: bytes) -> None:
    """Damage: a program that is no connector ends us by an error that no caller expects."""
    for codec in CODECS:
        try:
            read(codec, Response, data + b"\n")
        except ProtocolViolation as error:
            assert "byte" in str(error)  # noqa: PT017


def test_the_position_of_a_damaged_frame_is_said(codec: Codec) -> None:
    """Damage: an author of a connector has to search for the message that is wrong."""
    good = codec.encode(Response(flushed={}))
    bad = b"\x02\x00\x00\x00\xff\xff" if codec.name == "proto" else b'{"flushed":7}\n'
    reader = codec.reader(Response)
    assert [said(each) for each in reader.feed(good)] == ["flushed"]
    stream = reader.feed(good + bad)
    assert said(next(stream)) == "flushed"
    with pytest.raises(ProtocolViolation, match=f"the frame at byte {2 * len(good)} is damaged"):
        next(stream)


def test_messages_that_were_not_taken_are_still_there(codec: Codec) -> None:
    """Damage: an answer that came together with another one is never received."""
    good = codec.encode(Response(flushed={}))
    reader = codec.reader(Response)
    first = reader.feed(good * 2)
    assert said(next(first)) == "flushed"
    first.close()
    assert len(list(reader.feed(good[:1]))) + len(list(reader.feed(good[1:]))) == 2
    reader.end()


def test_a_stream_that_ends_inside_a_frame_is_a_violation(codec: Codec) -> None:
    """Damage: the half of a message that a dying connector wrote is taken for nothing."""
    good = codec.encode(Response(applied={"action_description": "x"}))
    reader = codec.reader(Response)
    assert len(list(reader.feed(good + good[:5]))) == 1
    with pytest.raises(ProtocolViolation, match=f"ends inside the frame at byte {len(good)}, after 5 bytes"):
        reader.end()


@pytest.mark.parametrize("kind", [ProtoCodec, JsonCodec])
def test_a_frame_has_a_longest_length(kind: type[Any]) -> None:
    """Damage: four damaged bytes make us wait for, or keep, gigabytes."""
    short = kind(100)
    fits = Response(applied={"action_description": "x" * 40})
    long = Response(applied={"action_description": "x" * 200})
    assert read(short, Response, short.encode(fits)) == [fits]
    with pytest.raises(ProtocolViolation, match="longer than a frame may be, 100"):
        short.encode(long)
    frame = kind().encode(long)
    for part in (frame, frame[:150]):
        with pytest.raises(ProtocolViolation, match="at byte 0 .* at most 100 are allowed"):
            list(short.reader(Response).feed(part))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ('{"flushed":{},"later":{"x":[1]},"$internal":"AA=="}', {"flushed": {}}),
        ('{"opened":{"runtimeCheckpoint":null,"unknown":1}}', {"opened": {}}),
        ('{"opened":null,"flushed":{"state":null}}', {"flushed": {}}),
        (
            ' { "loaded" : { "binding" : 1 , "doc" : {"a" : null} } } ',
            {"loaded": {"binding": 1, "doc_json": b'{"a" : null}'}},
        ),
        ('{"loaded":{"doc":null}}', {"loaded": {"doc_json": b"null"}}),
        (
            '{"started_commit":{"state":{"updated_json":{},"merge_patch":false}}}',
            {"started_commit": {"state": {"updated_json": b"{}"}}},
        ),
        (
            '{"opened":{"runtimeCheckpoint":{"sources":{"a":{"readThrough":5}}}}}',
            {"opened": {"runtime_checkpoint": {"sources": {"a": {"read_through": 5}}}}},
        ),
        ('{"spec":{"protocol":"3032023"}}', {"spec": {"protocol": 3_032_023}}),
        ('{"spec":{"protocol":3032023.0}}', {"spec": {"protocol": 3_032_023}}),
        (
            '{"validated":{"bindings":[{"constraints":{"k":{"type":6}}}]}}',
            {"validated": {"bindings": [{"constraints": {"k": {"type": 6}}}]}},
        ),
        (
            '{"opened":{"runtimeCheckpoint":{"ackIntents":{"j":"_-8"}}}}',
            {"opened": {"runtime_checkpoint": {"ack_intents": {"j": b"\xff\xef"}}}},
        ),
    ],
)
def test_json_of_other_writers_is_understood(text: str, fields: dict[str, Any]) -> None:
    """Damage: a connector that writes JSON in another lawful way cannot be used."""
    assert read(JsonCodec(), Response, f"{text}\n".encode()) == [Response(**fields)]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "1",
        "nothing",
        '{"flushed":[]}',
        '{"loaded":{"binding":-1}}',
        '{"loaded":{"binding":"x"}}',
        '{"loaded":{"binding":true}}',
        '{"loaded":{"binding":4294967296}}',
        '{"applied":{"actionDescription":7}}',
        '{"opened":{"disableLoadOptimization":"true"}}',
        '{"opened":{"runtimeCheckpoint":{"ackIntents":{"j":"*"}}}}',
        '{"opened":{"runtimeCheckpoint":{"sources":{"j":{"readThrough":"9223372036854775808"}}}}}',
        '{"validated":{"bindings":[{"constraints":{"k":{"type":"NEVER_HEARD"}}}]}}',
        '{"validated":{"bindings":{}}}',
        '{"loaded":{"doc":{]}}',
        '{"flushed":{}} {"flushed":{}}',
        '{"loaded":{"doc":' + "[" * 10_000 + "]" * 10_000 + "}",
        "\ud800",
    ],
)
def test_wrong_json_is_a_violation(text: str) -> None:
    """Damage: a wrong value is taken for another one, or ends us by an error that no caller expects."""
    with pytest.raises(ProtocolViolation, match="the frame at byte 0 is damaged"):
        read(JsonCodec(), Response, text.encode("utf-8", "surrogatepass") + b"\n")


def test_fields_that_a_proto_reader_does_not_know_are_skipped() -> None:
    """Damage: a newer connector cannot be used."""
    body = Response(flushed={}).SerializeToString() + bytes.fromhex("a2060161") + bytes.fromhex("f8ffffff0f01")
    (found,) = read(ProtoCodec(), Response, len(body).to_bytes(4, "little") + body)
    assert said(found) == "flushed"


def test_json_text_never_breaks_its_line() -> None:
    """Damage: a document with spaces between its lines ends the message in its middle."""
    frame = JsonCodec().encode(Response(loaded={"doc_json": b'{\n "a": "x\\ny"\r\n}'}))
    assert frame == b'{"loaded":{"doc":{"a":"x\\ny"}}}\n'
    with pytest.raises(ProtocolViolation, match="no JSON form"):
        JsonCodec().encode(Response(loaded={"doc_json": b"{\n"}))


def test_a_message_says_one_thing() -> None:
    """Damage: the second half of a message is lost without a word."""
    with pytest.raises(ProtocolViolation, match="both flushed and started_commit"):
        said(Response(flushed={}, started_commit={}))
    with pytest.raises(ProtocolViolation, match="none of spec, validate"):
        said(Request())


@pytest.mark.parametrize("text", ["1", "1.5", "-3s.", "1.1234567890s", "", "s"])
def test_other_durations_are_refused(text: str) -> None:
    """Damage: a template's interval becomes another one."""
    kind = Request.DESCRIPTOR.file.pool.FindMessageTypeByName("strandline.flow.Duration")
    with pytest.raises(codec_module.Unreadable):
        codec_module.read(message_factory.GetMessageClass(kind)(), json.dumps(text).encode())
