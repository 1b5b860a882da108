"""What the topic of checkpoints says of a task: where its ranges are, and who has taken over."""

from __future__ import annotations

import pytest

from strandline.errors import CorruptionError, DefinitionError
from strandline.materialize.drivers.kafka.client import (
    CHECKPOINT,
    OPENED,
    Beginning,
    Held,
    Progress,
    Record,
    key_of,
    value_of,
)
from strandline.materialize.protocol.task import NOTHING, WHOLE, Checkpoint, KeyRange

HALF, REST, STRADDLING = KeyRange(0, 2**31 - 1), KeyRange(2**31, 2**32 - 1), KeyRange(2**30, 2**31 + 2**30)
KEYS = ("t.v0",)
FIVE, NINE = Checkpoint((("t.v0", 5),)), Checkpoint((("t.v0", 9),))


def held(range_: KeyRange, task: str = "m") -> Held:
    """Return a range of a task."""
    return Held(task, range_)


def records(*said: tuple[Held, str, bytes]) -> list[Record]:
    """Return records in order."""
    return [Record(offset, key_of(of, kind), value) for offset, (of, kind, value) in enumerate(said)]


def test_a_range_goes_on_from_where_its_keys_are() -> None:
    """Damage: a split repeats, or skips, what its parent did."""
    parent = (held(WHOLE), CHECKPOINT, value_of(3, FIVE))
    found = Progress.of("m", records(parent)).begin(held(HALF), KEYS)
    assert (found.transaction, found.checkpoint) == (3, FIVE)
    assert found.changes == {held(WHOLE): None, held(HALF): (3, FIVE), held(REST): (3, FIVE)}
    own = (held(HALF), CHECKPOINT, value_of(7, NINE))
    assert Progress.of("m", records(own)).begin(held(HALF), KEYS) == Beginning(7, NINE)
    assert Progress.of("m", records(own)).begin(held(REST), KEYS) == Beginning(0, NOTHING)
    assert Progress.of("other", records(own, parent)).begin(held(WHOLE, "other"), KEYS) == Beginning(0, NOTHING)


def test_ranges_that_were_joined_are_forgotten() -> None:
    """Damage: a task that is split again goes on from where its splits were the last time."""
    halves = ((held(HALF), CHECKPOINT, value_of(4, NINE)), (held(REST), CHECKPOINT, value_of(6, NINE)))
    found = Progress.of("m", records(*halves)).begin(held(WHOLE), KEYS)
    assert (found.transaction, found.checkpoint) == (6, NINE)
    assert found.changes == {held(HALF): None, held(REST): None, held(WHOLE): (6, NINE)}
    said = records(*halves)
    gone = [Record(9, key_of(range_, CHECKPOINT), None) for range_, last in found.changes.items() if last is None]
    whole = Record(10, key_of(held(WHOLE), CHECKPOINT), value_of(6, NINE))
    assert Progress.of("m", [*said, *gone, whole]).committed == {held(WHOLE): (6, NINE)}


def test_ranges_that_are_at_other_checkpoints_cannot_be_one() -> None:
    """Damage: two splits become one, and what one of them pushed is pushed again, or never."""
    halves = records((held(HALF), CHECKPOINT, value_of(1, FIVE)), (held(REST), CHECKPOINT, value_of(1, NINE)))
    with pytest.raises(DefinitionError, match=r"key range \[00000000-ffffffff\] has no single checkpoint"):
        Progress.of("m", halves).begin(held(WHOLE), KEYS)
    assert Progress.of("m", halves).begin(held(WHOLE), ()).checkpoint == NOTHING  # these bindings are gone


def test_every_range_that_overlaps_is_fenced_and_no_other() -> None:
    """Damage: two processes push the same keys; or the splits of a task fence each other for ever."""
    opened = [(held(range_), OPENED, b"{}") for range_ in (WHOLE, HALF, REST)]
    found = Progress.of("m", records(*opened, (held(HALF, "other"), OPENED, b"{}")))
    assert found.overlapping(held(STRADDLING)) == {held(WHOLE), held(HALF), held(REST)}
    assert found.overlapping(held(HALF)) == {held(WHOLE)}
    assert found.taken_over(held(WHOLE), 0)
    assert found.taken_over(held(WHOLE), 1)
    assert not found.taken_over(held(HALF), 1)
    assert not found.taken_over(held(REST), 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b"{}"),
        (b"a key", b"{}"),
        (b'{"task":"m","begin":5,"end":2,"kind":"opened"}', b"{}"),
        (key_of(held(WHOLE), CHECKPOINT), b"a value"),
        (key_of(held(WHOLE), CHECKPOINT), b'{"transaction":1}'),
    ],
)
def test_what_another_program_wrote_is_named(key: bytes, value: bytes) -> None:
    """Damage: a task begins from nothing, and pushes everything again, because it cannot read where it is."""
    with pytest.raises(CorruptionError, match="the topic of checkpoints has record 3 of another program"):
        Progress.of("m", [Record(3, key, value)])


def test_a_key_that_was_deleted_says_nothing() -> None:
    """Damage: an operator who makes a task forget where it is breaks all tasks."""
    assert Progress.of("m", [Record(3, key_of(held(WHOLE), CHECKPOINT), None)]).begin(held(WHOLE), KEYS) == Beginning(
        0, NOTHING
    )
