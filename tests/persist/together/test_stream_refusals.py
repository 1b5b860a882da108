"""A refused call of a stream changes nothing, and does not affect later calls."""

from __future__ import annotations

import numpy as np
import pytest

from strandline.errors import AsOfError, DefinitionError, FencedError, InvalidUsage
from strandline.persist.handles.updates import ValueCodec
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.simulation.kernel import run_sync
from streams_in_use import as_rows, client, opened, read, resolved, rows, words


def test_a_write_at_a_sealed_time_is_refused_whole_and_later_calls_go_on(place):
    """Damage: a complete time changes, half a write is stored, or one mistake blocks a client for ever."""
    write, reader = opened(place, "n")
    resolved(write.seal(5))
    late, good = write.write([("late", 4, 1), ("also", 9, 1)]), write.write([("good", 5, 1)])
    resolved(write.seal(10))
    with pytest.raises(InvalidUsage, match=r"cannot write at \[4\]: the collection is sealed up to \[5\]"):
        resolved(late)
    resolved(good)
    assert read(reader, 9) == [("good", 1)]


class Cursed:
    """A value whose every method raises."""

    def __arrow_array__(self, **_):
        raise KeyError("k")


def numbers(place):
    """A codec of small numbers, whose functions raise errors of different types."""
    raised = {"key": KeyError("no such thing"), "own": RuntimeError("not today")}

    def encode(n):
        if n in raised:
            raise raised[n]
        return n if isinstance(n, str) else bytearray(n.to_bytes(4, "big"))

    return ValueCodec(place.blob, "number", encode, lambda data: int.from_bytes(data, "big"))


@pytest.mark.parametrize("bad", [2**40, -1, "key", "own", None, "text"])
def test_a_value_that_the_codec_refuses_is_refused_and_later_calls_go_on(place, bad):
    """Damage: one bad value blocks a client for ever, or is stored and cannot be read."""
    process = client(place)
    write, reader = opened(place, "n", codec=numbers, process=process)
    call = write.write([(1, 1, 1), (bad, 1, 1)])
    write.write([(7, 1, 1)])
    resolved(write.seal(2))
    with pytest.raises(InvalidUsage, match="codec 'value:number'"):
        resolved(call)
    assert read(reader, 1) == [(7, 1)]


@pytest.mark.parametrize(
    "bad",
    [{"nonsense": 1}, {1: "a"}, {"k": 2**70}, {"k": 1}, {"k": Cursed()}, {"k": "\ud800"}, "k", None, {"k": object()}],
)
def test_a_malformed_row_is_refused_and_later_calls_go_on(place, bad):
    """Damage: one bad row blocks a client for ever, all its collections, and its end."""
    process = client(place)
    write, reader = opened(place, "n", codec=rows, process=process)
    call = write.write([({"k": "beside"}, 1, 1), (bad, 1, 1)])
    write.write([({"k": "good"}, 1, 1)])
    resolved(write.seal(2))
    with pytest.raises(InvalidUsage, match="column|row"):
        resolved(call)
    assert read(reader, 1) == [({"k": "good"}, 1)]


@pytest.mark.parametrize("codec", [words, rows])
@pytest.mark.parametrize(
    ("time", "diff"),
    [(-1, 1), (2**63 - 1, 1), (5.0, 1), ("5", 1), (None, 1), (True, 1), (5, 1.5), (5, None), (5, False), (5, 2**41)],
)
def test_an_invalid_time_or_diff_is_refused_at_once_and_never_stored(place, codec, time, diff):
    """Damage: an acknowledged write makes the collection unreadable for all readers, for ever."""
    write, reader = opened(place, "n", codec=codec)
    good, bad = ("good", "bad") if codec is words else as_rows("good", "bad")
    with pytest.raises(InvalidUsage, match=f"'n': (time|diff) {time if diff == 1 else diff!r}|'n': time '5'"):
        write.write([(good, 5, 1), (bad, time, diff)])
    resolved(write.write([(good, 5, 1)]))
    for step in (write.seal, write.allow_compaction):
        with pytest.raises(InvalidUsage, match="'n': time 7.5"):
            step(7.5)
    resolved(write.seal(8))
    assert read(reader, 7) == [(good, 1)]


@pytest.mark.parametrize("codec", [words, rows])
def test_numbers_of_other_types_are_times_and_diffs_if_they_are_whole(place, codec):
    """Damage: numbers from a data frame cannot be written, or make the collection unreadable."""
    write, reader = opened(place, "n", codec=codec)
    (a,) = ("a",) if codec is words else as_rows("a")
    resolved(write.write([(a, np.int64(5), np.int32(2))]))
    resolved(write.seal(np.int64(6)))
    assert read(reader, np.int64(5)) == [(a, 2)]
    with pytest.raises(AsOfError, match="no whole number"):
        read(reader, 5.5)


def test_a_schema_that_cannot_be_stored_is_refused_and_later_calls_go_on(place, monkeypatch):
    """Damage: one collection with a type that has no order blocks all collections of a client."""
    process = client(place)
    write, _, text, reader = *opened(place, "n", codec=rows, process=process), *opened(place, "text", process=process)

    async def refuse(*_, **__):
        raise DefinitionError("column 'k': a map has no order")

    monkeypatch.setattr(ListEngine, "local", refuse)
    call = write.write([({"k": "a"}, 1, 1)])
    text.write([("a", 1, 1)])
    resolved(text.seal(2))
    with pytest.raises(DefinitionError, match="column 'k'"):
        resolved(call)
    assert read(reader, 1) == [("a", 1)]


def test_a_collection_is_opened_as_what_it_was_created(place):
    """Damage: a codec reads bytes that another codec wrote."""
    opened(place, "n")
    with pytest.raises(InvalidUsage, match="'n' holds"):
        opened(place, "n", codec=rows)


def test_a_stream_is_not_appended_to_and_an_appended_shard_is_no_stream(place):
    """Damage: an append passes unsealed updates, which no read ever shows."""
    write, _ = opened(place, "n")
    with pytest.raises(InvalidUsage, match="owner 'stream'"):
        place.writer(write._writer.shard, schema="")
    plain = place.writer("plain")
    with pytest.raises(InvalidUsage, match="cannot be opened"):
        run_sync(place.client().writer(plain.shard, 1, schema=place.schema.ddl, owner="stream"))


def test_an_older_epoch_is_fenced_and_does_nothing(place):
    """Damage: an environment that was succeeded goes on writing."""
    old, _ = opened(place, "n")
    new, reader = opened(place, "n", process=client(place, epoch=2))
    calls = [old.write([("a", 1, 1)]), old.seal(2)]
    for call in calls:
        with pytest.raises(FencedError, match="epoch 2"):
            resolved(call)
    resolved(new.seal(3))
    assert read(reader, 2) == []
