"""A schema changes only if every stored part can still be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from strandline.algebra.schema import Column, Schema
from strandline.errors import DefinitionError, InvalidUsage
from strandline.frontier import EMPTY, MINIMUM
from strandline.persist.shard.batch import NOTHING
from strandline.persist.shard.evolution import evolve, parse_schema
from strandline.persist.shard.state import Certificate, ShardState

SHARD = ShardState("s", schema="`k` int, `v` string", certificate=Certificate("c", MINIMUM, NOTHING))

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=4)
kinds = st.sampled_from(["int", "decimal(10,2)", "array<struct<x:int,`a,b`:string>>", "timestamp"])


@given(st.lists(st.builds(Column, names, kinds), min_size=1, max_size=4))
def test_a_schema_is_read_as_it_was_written(columns):
    """Damage: a shard of strangely named columns can never be compacted or evolved."""
    try:
        schema = Schema(tuple(columns))
    except DefinitionError:
        return
    assert parse_schema(schema.ddl) == schema


def test_a_text_that_is_no_schema_is_recognised():
    """Damage: a record shard counts as a shard of rows."""
    for text in ("records", "", "a,b", "`a"):
        assert parse_schema(text) is None


@pytest.mark.parametrize(
    "schema",
    [
        "`k` int, `v` string, `new` double",
        "`new` double, `k` bigint",
        "`v` string",
        "`K` bigint, `v` string",
    ],
)
def test_columns_are_added_widened_dropped(schema):
    """Damage: a new column means a new collection."""
    after, _ = evolve(SHARD, schema)
    assert (after.schema, after.schemas, after.certificate) == (schema, (SHARD.schema,), None)
    assert evolve(after, schema) == (after, None)


@pytest.mark.parametrize(
    ("old", "new"),
    [("int", "bigint"), ("tinyint", "int"), ("float", "double"), ("decimal(10,2)", "decimal(20,2)")],
)
def test_numbers_are_widened(old, new):
    """Damage: a number that outgrows its column stops the pipeline."""
    state = replace(SHARD, schema=f"`k` {old}")
    assert evolve(state, f"`k` {new}")[0].schema == f"`k` {new}"
    with pytest.raises(InvalidUsage, match=f"cannot become {old.replace('(', '.').replace(')', '.')}"):
        evolve(replace(SHARD, schema=f"`k` {new}"), f"`k` {old}")


@pytest.mark.parametrize(
    ("old", "new"),
    [("int", "string"), ("bigint", "double"), ("decimal(10,2)", "decimal(20,4)"), ("string", "binary")],
)
def test_values_that_would_change_are_refused(old, new):
    """Damage: old rows are read as other values."""
    with pytest.raises(InvalidUsage, match="'k' is .* and cannot become"):
        evolve(replace(SHARD, schema=f"`k` {old}"), f"`k` {new}")


def test_a_dropped_name_does_not_come_back():
    """Damage: the values of a column that was dropped show up in a new one of that name."""
    state, _ = evolve(SHARD, "`k` int")
    with pytest.raises(InvalidUsage, match="'V' was dropped before"):
        evolve(state, "`k` int, `V` string")


def test_a_schema_that_cannot_evolve_is_refused():
    """Damage: records become rows."""
    with pytest.raises(InvalidUsage, match="cannot become"):
        evolve(replace(SHARD, schema="records"), "`k` int")
    gone = replace(SHARD, since=EMPTY, upper=EMPTY)
    assert evolve(gone, "`k` bigint") == (gone, None)
