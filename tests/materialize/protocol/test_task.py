"""What a materialization may be, and what its checkpoint remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.algebra.schema import Column, Schema
from strandline.errors import CorruptionError, DefinitionError, InvalidUsage
from strandline.materialize.protocol.task import (
    NOTHING,
    Binding,
    Checkpoint,
    KeyRange,
    MaterializationSpec,
    resource_of,
)

SCHEMA = Schema((Column("a", "int"), Column("b", "int")))


@pytest.mark.parametrize(
    ("key", "said"),
    [((), r"'v' .*'t'.*KEY \(column"), (("z",), "no column 'z'.*a, b"), (("a", "a"), "twice")],
)
def test_a_key_must_be_one(key: tuple[str, ...], said: str) -> None:
    """Damage: rows without a key overwrite each other."""
    with pytest.raises(DefinitionError, match=said):
        Binding("v", "t", key, SCHEMA)


def test_two_bindings_never_fill_one_table() -> None:
    """Damage: two collections overwrite each other's rows."""
    with pytest.raises(DefinitionError, match="'T' and 't' are one"):
        MaterializationSpec("m", (Binding("v", "T", ("a",), SCHEMA), Binding("w", "t", ("a",), SCHEMA)))


def test_a_task_without_bindings_is_none() -> None:
    """Damage: the meet of no uppers is the empty frontier, so the task counts as finished."""
    with pytest.raises(DefinitionError, match="no bindings"):
        MaterializationSpec("m", ())


@given(st.dictionaries(st.text(), st.integers(0, 2**63 - 1)))
def test_a_checkpoint_survives_its_encoding(times: dict[str, int]) -> None:
    """Damage: a task begins somewhere else after a restart."""
    checkpoint = Checkpoint(tuple(sorted(times.items())))
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": "b"}', "null", '{"a": 1.5}'])
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    """Damage: a checkpoint that a person edited counts as empty, and the table is emptied."""
    with pytest.raises(CorruptionError):
        Checkpoint.decode(text)


WHICH = st.tuples(st.text("v.0-", max_size=4), st.integers(0, 11), st.sampled_from(["", "0", "1-0", "v0", "shard-7"]))


@given(WHICH, WHICH)
def test_state_keys_are_distinct(one: tuple[str, int, str], other: tuple[str, int, str]) -> None:
    """Damage: a new table takes over another's progress."""
    keys = [Binding("v", name, ("a",), SCHEMA, counter, data).state_key for name, counter, data in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)
    assert resource_of(keys[0]) == one[0]


@pytest.mark.parametrize("incarnation", ["a.v1", "A", "-", "a-", " "])
def test_an_incarnation_cannot_look_like_a_resource(incarnation: str) -> None:
    """Damage: the progress of one table is found under another's name."""
    with pytest.raises(InvalidUsage):
        Binding("v", "t", ("a",), SCHEMA, incarnation=incarnation)


def test_a_removed_binding_is_remembered_and_a_bumped_one_forgets() -> None:
    """Damage: a table that is bound again counts as another program's; or old rows count as new."""
    checkpoint = NOTHING.advance(("a.v0", "b.v0"), 3).advance(("b.v1",), 9)
    assert checkpoint.times == (("a.v0", 3), ("b.v1", 9))
    assert checkpoint.mentions(Binding("v", "a", ("a",), SCHEMA))
    assert not checkpoint.mentions(Binding("v", "a.v0", ("a",), SCHEMA))


@pytest.mark.parametrize(("begin", "end"), [(-1, 3), (4, 3), (0, 2**32)])
def test_a_key_range_is_within_32_bits(begin: int, end: int) -> None:
    """Damage: two splits leave a gap between them."""
    with pytest.raises(ValueError, match="key range"):
        KeyRange(begin, end)
