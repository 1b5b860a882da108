"""A message is the same on both ends of a connection, and whatever else arrives is refused as the sender's fault.

Long because all claims about single frames stand in one place.
"""

from __future__ import annotations

import random
import sys
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp
from tests.instance.protocol.samples import (
    DATAFLOW,
    DEEP,
    EXAMPLES,
    EXPRESSIONS,
    GET,
    NODES,
    deep,
    random_expression,
    random_value,
    told,
)

from strandline.algebra.nodes import Node, Opaque
from strandline.algebra.scalar import Scalar, column
from strandline.errors import InvalidUsage, ProtocolViolation
from strandline.instance.commands import Advance, Collection, RunTable
from strandline.instance.protocol import codec, plans
from strandline.instance.protocol.carrier import FRAME_BYTES_MAX
from strandline.instance.protocol.messages import (
    CancelPeeks,
    Command,
    Create,
    Hello,
    Peek,
    PeekResponse,
    Response,
    Schedule,
    Unknown,
)

NAMED: Final = frozenset(
    (
        *("shards", "conf", "options", "settings", "replaced", "hurried"),
        *("writes", "needs", "problems", "under_way", "counters", "disagreements", "writers", "notices", "vanished"),
        *("added", "cases", "notice_cases"),
    )
)
"""The fields that hold values by name: there each name counts."""


def plain(frame: bytes) -> Any:
    """Return the plain value of a frame."""
    return msgspec.msgpack.decode(frame)


def frame(kind: str, /, **held: Any) -> bytes:
    """Return a frame as another version might send it."""
    return msgspec.msgpack.encode({"format": codec.FORMAT, "kind": kind, "fields": held})


def reachable(annotation: Any, found: set[type]) -> set[type]:
    """Return the records that a value of an annotation may hold, at any depth."""
    for each in get_args(annotation) or [annotation]:
        if get_args(each):
            reachable(each, found)
        elif each not in found and each is not Scalar and (is_dataclass(each) or hasattr(each, "__struct_fields__")):
            found.add(each)
            for hint in get_type_hints(each).values():
                reachable(hint, found)
    return found


# ---- both ends have the same -----------------------------------------------------------------------------------------


def test_every_kind_of_message_and_of_node_is_registered() -> None:
    """Damage: a view with a new kind of node runs in the controller's process, and in no replica."""
    assert set(codec.MESSAGES.values()) == {*get_args(Command), *get_args(Response)}
    assert set(get_args(Node)) <= set(plans.RECORDS.values())
    held = reachable(Command | Response, set()) - set(codec.MESSAGES.values())
    assert held == set(plans.RECORDS.values())
    assert {type(each) for each in NODES} == set(get_args(Node)), "the examples lack a kind of node"
    assert {type(each) for each in EXAMPLES.values()} == set(codec.MESSAGES.values()), "they lack a kind of message"


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_message_is_the_same_at_the_other_end(name: str) -> None:
    """Damage: a replica obeys another command than the one that was given."""
    found = codec.decode(codec.encode(EXAMPLES[name]))
    assert found == EXAMPLES[name]
    assert told(found) == told(EXAMPLES[name])


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_any_message_is_the_same_at_the_other_end(seed: int) -> None:
    """Damage: some value of some field arrives as another one, and two ends disagree for ever."""
    message = random_value(Command | Response, random.Random(seed))
    found = codec.decode(codec.encode(message))
    assert found == message
    assert told(found) == told(message)


def test_every_node_keeps_the_text_that_certificates_are_made_of() -> None:
    """Damage: each start of a replica looks like another meaning of the view, and all of it is audited."""
    found = codec.decode(codec.encode(Create("v", ("v",), DATAFLOW)))
    assert repr(found.what.stages) == repr(DATAFLOW.stages)


def test_what_no_comparison_shows_is_carried() -> None:
    """Damage: a step reads all of an input where a few rows would do, or a prepared view begins from nothing."""
    found = codec.decode(codec.encode(Create("v", ("v",), DATAFLOW))).what
    [first, *_] = [each for each in found.stages[0].plan.inputs if isinstance(each, Opaque)]
    assert (first.picks, first.first) == (True, next(each for each in NODES if isinstance(each, Opaque)).first)
    assert (found.seed, found.output.kept, found.inputs["orders"].kept) == ("shard-3", "1 day", "1 day")


# ---- expressions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_is_the_same_tree_at_the_other_end(name: str) -> None:
    """Damage: a rule that looks at the tree decides otherwise in a replica, though the text is the same."""
    found = plans.unpacked(plans.packed(EXPRESSIONS[name]))
    assert told(found) == told(EXPRESSIONS[name])


@settings(max_examples=400)
@given(st.integers(0, 2**32))
def test_any_expression_is_the_same_tree_at_the_other_end(seed: int) -> None:
    """Damage: as above, for what no author of this test thought of."""
    chance = random.Random(seed)
    expression = random_expression(chance, chance.randint(0, 5))
    assert told(plans.unpacked(plans.packed(expression))) == told(expression)


def test_expressions_travel_as_text_but_for_a_few() -> None:
    """Damage: no person can read a frame, and another version of sqlglot has other trees."""
    as_tree = {name for name, each in EXPRESSIONS.items() if not isinstance(plans.packed(each), str)}
    assert as_tree == {"call of a reserved name", "deep"}


def test_a_deep_expression_is_sent_alike_from_a_deep_stack() -> None:
    """Damage: whether a plan can be sent, and as which bytes, depends on who sends it."""

    def under(frames: int, expression: Scalar) -> Any:
        return plans.packed(expression) if frames == 0 else under(frames - 1, expression)

    for levels in (5, DEEP // 4, DEEP // 2, DEEP):
        expression = deep(levels)
        assert under(sys.getrecursionlimit() // 5, expression) == plans.packed(expression)


def test_a_node_that_a_tree_holds_twice_is_sent_twice() -> None:
    """Damage: a tree that was composed without copies cannot be sent."""
    one = column("k")
    tree = exp.Add(this=one, expression=exp.Paren(this=one))
    for expression in (Scalar(tree), Scalar(exp.Sub(this=deep().tree, expression=tree))):
        assert told(plans.unpacked(plans.packed(expression))) == told(expression)


# ---- other versions --------------------------------------------------------------------------------------------------


def later(value: Any, *, record: bool = True) -> Any:
    """Return the plain value of a message with one more field in each record."""
    match value:
        case [[str(), dict()], *_]:
            return value  # the nodes of an expression are no records
        case list():
            return [later(each) for each in value]
        case dict():
            more = {"of a later version": [1, {"x": b"y"}]} if record else {}
            by_name = {
                name for name, each in value.items() if name in NAMED or (name == "inputs" and "output" in value)
            }
            return {
                name: each if name == "config" else later(each, record=name not in by_name)
                for name, each in value.items()
            } | more
        case _:
            return value


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_field_that_is_not_known_is_skipped(name: str) -> None:
    """Damage: a controller can never be upgraded before its replicas."""
    sent = plain(codec.encode(EXAMPLES[name]))
    sent = {**sent, "fields": later(sent["fields"]), "of a later version": 1}
    assert told(codec.decode(msgspec.msgpack.encode(sent))) == told(EXAMPLES[name])


def test_a_field_that_an_older_version_does_not_send_has_its_default() -> None:
    """Damage: a replica can never be upgraded before its controller."""
    assert codec.decode(frame("Advance", time=3)) == Advance(3)
    with pytest.raises(ProtocolViolation, match="Advance has no 'time'"):
        codec.decode(frame("Advance", step=True))


def test_a_message_of_an_unknown_kind_is_named() -> None:
    """Damage: one command of a later version ends the connection, and all that runs on it."""
    assert codec.decode(frame("Dance", steps=3)) == Unknown("Dance", {"steps": 3})
    assert codec.decode(codec.encode(Unknown("Dance"))) == Unknown("Dance")


@pytest.mark.parametrize(("format_", "who"), [(1, "the other process"), (3, "this process"), (99, "this process")])
def test_another_format_is_refused_with_what_to_do(format_: int, who: str) -> None:
    """Damage: a replica of another release does something else than what it is asked."""
    sent = {"format": format_, "kind": "Schedule", "fields": {"id": "v"}}
    for each in (sent, {"format": format_}, {"format": format_, "kind": ["of another shape"]}):
        with pytest.raises(ProtocolViolation, match=f"format {format_} .* this end format 2: {who} .* upgrade it"):
            codec.decode(msgspec.msgpack.encode(each))


def test_a_stage_with_an_unknown_rule_is_refused() -> None:
    """Damage: a replica takes a rule of a later version for none at all, and keeps wrong rows."""
    stage = replace(DATAFLOW.stages[1], kind="clairvoyant")
    with pytest.raises(ProtocolViolation, match="'clairvoyant'"):
        codec.decode(codec.encode(Create("v", ("v",), replace(DATAFLOW, stages=(stage,)))))


def test_a_node_of_an_unknown_kind_is_refused_by_name() -> None:
    """Damage: a class is looked for by a name that a peer sent."""
    sent = plain(codec.encode(EXAMPLES["Create-RunDataflow"]))
    sent["fields"]["what"]["stages"][1]["plan"]["is"] = "os.system"
    with pytest.raises(ProtocolViolation, match=r"'os\.system'"):
        codec.decode(msgspec.msgpack.encode(sent))


# ---- what is refused -------------------------------------------------------------------------------------------------

MALFORMED: Final = {
    "nothing": b"",
    "no frame": b"\xc1\xc1",
    "no map": msgspec.msgpack.encode([1, "Schedule", {"id": "v"}]),
    "no format": msgspec.msgpack.encode({"kind": "Schedule", "fields": {"id": "v"}}),
    "no kind": msgspec.msgpack.encode({"format": codec.FORMAT, "fields": {"id": "v"}}),
    "a format that is no number": msgspec.msgpack.encode({"format": "1", "kind": "Schedule", "fields": {"id": "v"}}),
    "more than a frame": codec.encode(Schedule("v")) + b"\x00",
    "a nest": b"\x91" * 100_000,
    "a number for a text": frame("Schedule", id=3),
    "a text for a number": frame("Advance", time="3"),
    "true for a number": frame("Advance", time=True),
    "a frontier before all time": frame("AllowCompaction", id="v", frontier={"at": -1}),
    "a list for a map": frame("UpdateConfiguration", settings=["a"]),
    "a map for a list": frame("CancelPeeks", uuids={"a": "b"}),
    "a text for a list": frame("CancelPeeks", uuids="ab"),
    "a schema with a column twice": frame(
        "Create",
        **{
            **plain(codec.encode(EXAMPLES["Create-RunIndex"]))["fields"],
            "what": {
                "is": "RunIndex",
                "key": [],
                "of": {"name": "x", "shard": "s", "schema": {"columns": [{"name": "a", "type": "int"}] * 2}},
            },
        },
    ),
    "a message where what is run is due": frame("Create", id="v", exports=[], what={"is": "Schedule", "id": "v"}),
    "an unhashable kind": frame("Create", id="v", exports=[], what={"is": ["Get"]}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_message_is_the_senders_fault(name: str) -> None:
    """Damage: bytes from outside end a process with an error that says nothing of a peer."""
    with pytest.raises(ProtocolViolation):
        codec.decode(MALFORMED[name])


@pytest.mark.parametrize(
    "value",
    [
        "1 +", "", "'", "a b c", "__cast(a", "(" * 5_000, 3, None, {}, [], [["Column"]], [["Nothing", {}]],
        [["Column", {"this": {"at": 0}}]], [["Null", {}], ["Null", {}]], [["Column", {"that": {"at": -1}}]],
        [["Null", {}], ["Add", {"this": {"at": 0}, "expression": {"at": 0}}]], [["DataType", {"this": {"type": "x"}}]],
        [["Literal", {}]], [["__class__", {}]], [["Cast", {"this": 1}]],
    ],
)  # fmt: skip
def test_what_is_no_expression_is_the_senders_fault(value: Any) -> None:
    """Damage: a parser's own error, or a tree that fails in some later step, for bytes that a peer sent."""
    sent = plain(codec.encode(EXAMPLES["Create-RunDataflow"]))
    sent["fields"]["what"]["stages"][0]["plan"] = {"is": "Filter", "input": {"is": "Get", "frame": "a", "columns": []}}
    sent["fields"]["what"]["stages"][0]["plan"]["predicate"] = value
    with pytest.raises(ProtocolViolation):
        codec.decode(msgspec.msgpack.encode(sent))


def damaged(sent: bytes, chance: random.Random) -> bytes:
    """Return a frame with some bytes changed, cut off, left out or doubled."""
    found = bytearray(sent)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(5):
            case 0:
                del found[at:]
            case 1:
                del found[at : at + chance.randint(1, 4)]
            case 2:
                found[at:at] = found[at : at + chance.randint(1, 9)]
            case _ if found:
                found[min(at, len(found) - 1)] ^= 1 << chance.randrange(8)
    return bytes(found)


@pytest.mark.fuzz
@settings(max_examples=3_000)
@given(st.sampled_from(sorted(EXAMPLES)), st.integers(0, 2**32))
def test_a_damaged_frame_is_a_message_or_is_refused(name: str, seed: int) -> None:
    """Damage: a peer's bug or a broken network ends this process with an error of some library."""
    try:
        found = codec.decode(damaged(codec.encode(EXAMPLES[name]), random.Random(seed)))
    except ProtocolViolation:
        return
    assert isinstance(found, (*codec.MESSAGES.values(), Unknown))


def test_a_frame_that_is_too_long_is_refused_by_both_ends() -> None:
    """Damage: one message takes the memory of both processes."""
    assert codec.decode(codec.encode(PeekResponse("u", bytes(FRAME_BYTES_MAX // 2)))).rows == bytes(
        FRAME_BYTES_MAX // 2
    )
    with pytest.raises(ProtocolViolation, match="too long"):
        codec.encode(PeekResponse("u", bytes(FRAME_BYTES_MAX)))
    with pytest.raises(ProtocolViolation, match="too long"):
        codec.decode(bytes(FRAME_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "message",
    [
        RunTable(Collection("t", "s", DATAFLOW.output.schema)),
        GET,
        "Hello",
        Hello(1, 2, None),
        Peek("u", "i", "text", 1, 1),
        CancelPeeks((1,)),
        Advance(True),
        Advance(2**70),
        Create("v", ("v",), RunTable(DATAFLOW.output)),
        Create("v", ("v",), replace(DATAFLOW, stages=(replace(DATAFLOW.stages[0], plan="SELECT 1"),))),
        Unknown("Dance", {"with": object()}),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_the_other_end_would_refuse_is_not_sent(message: Any) -> None:
    """Damage: a mistake of the caller ends the connection, and is found in another process."""
    with pytest.raises(InvalidUsage):
        codec.encode(message)


def test_no_field_has_the_name_that_says_which_kind_it_is() -> None:
    """Damage: a field hides which kind of record it is of."""
    for kind in plans.RECORDS.values():
        names = kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else [each.name for each in fields(kind)]
        assert "is" not in names
