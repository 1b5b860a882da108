"""Checkpoints go through the wire as they are, Flow's and ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.materialize.wire.codec.samples import CHECKPOINT
from tests.materialize.wire.specs.bindings import NAMES

from strandline.errors import ConfigError, CorruptionError
from strandline.frontier import TIME_MAX
from strandline.materialize.protocol.task import NOTHING
from strandline.materialize.protocol.task import Checkpoint as Times
from strandline.materialize.wire.codec import Checkpoint, JsonCodec, ProtoCodec, Request, Response
from strandline.materialize.wire.specs import EXPLICIT_ZERO, from_wire, kept, returned, to_wire

CODECS = (ProtoCodec(), JsonCodec())
TIMES = st.dictionaries(NAMES, st.integers(0, TIME_MAX), max_size=4).map(
    lambda each: Times(tuple(sorted(each.items())))
)


@given(TIMES)
def test_our_checkpoints_come_back(times: Times) -> None:
    """Damage: a task starts from the beginning, or from where another binding is."""
    for codec in CODECS:
        sent = Request(start_commit={"runtime_checkpoint": to_wire(times)})
        (read,) = codec.reader(Request).feed(codec.encode(sent))
        held = kept(read.start_commit.runtime_checkpoint, ["t.v0"])
        answer = Response(opened={"runtime_checkpoint": returned(held)})
        (found,) = codec.reader(Response).feed(codec.encode(answer))
        assert found.opened.HasField("runtime_checkpoint")
        assert times == NOTHING or from_wire(found.opened.runtime_checkpoint) == times


def test_a_checkpoint_of_nothing_is_there() -> None:
    """Damage: an endpoint that was emptied is continued from the log's checkpoint, and stays without its rows."""
    opened = Response(opened={"runtime_checkpoint": to_wire(NOTHING)})
    assert EXPLICIT_ZERO in ProtoCodec().encode(opened)
    assert JsonCodec().encode(opened) == b'{"opened":{"runtimeCheckpoint":{}}}\n'
    for codec in CODECS:
        (found,) = codec.reader(Response).feed(codec.encode(opened))
        assert from_wire(found.opened.runtime_checkpoint) == NOTHING
        (none,) = codec.reader(Response).feed(codec.encode(Response(opened={})))
        assert not none.opened.HasField("runtime_checkpoint")


def test_a_checkpoint_of_another_runtime_is_kept_whole() -> None:
    """Damage: Flow reads everything again, or skips documents, after a restart with a driver of ours."""
    theirs = Checkpoint(**CHECKPOINT)
    held = kept(theirs, ["t.v0", "u.v1"])
    assert held.of("t.v0") is not None
    assert held.of("u.v1") is not None
    assert Times.decode(held.encode()) == held
    assert returned(held) == theirs
    assert returned(kept(Checkpoint(), ["t.v0"])) == Checkpoint()


def test_an_endpoint_of_another_runtime_is_not_taken_over() -> None:
    """Damage: two programs write one table, each from its own checkpoint."""
    with pytest.raises(
        ConfigError, match="another program, which has read 'a;s', fills the endpoint; drop the materialization"
    ):
        from_wire(Checkpoint(**CHECKPOINT))


def test_a_damaged_checkpoint_is_named() -> None:
    """Damage: a damaged checkpoint is taken for that of an empty endpoint."""
    with pytest.raises(CorruptionError, match="damaged"):
        returned(Times((("flow;////", 0),)))
