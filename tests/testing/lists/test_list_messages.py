"""Messages over lists say what Spark says of them (`tests/engine/messages/test_both_ways.py` compares the two)."""

from __future__ import annotations

import asyncio
import json

import pyarrow as pa
import pytest

from strandline.algebra.messages import (
    GONE,
    KEPT,
    ORDER,
    MessageEncoding,
    MessageFormat,
    Metadata,
    Shape,
    TopicRanges,
    order,
)
from strandline.algebra.schema import ERROR, TIME, Column, Schema
from strandline.errors import InvalidUsage
from strandline.testing.lists.list_engine import listed
from strandline.testing.lists.list_messages import ListMessages

JSON, TEXT = MessageEncoding.JSON, MessageEncoding.TEXT
PAIR = Schema((Column("k", "int"), Column("v", "string")))


def decode(messages, form, schema=PAIR):
    """Return the rows of messages, given as (key, value)."""
    raw = pa.table(
        {
            "topic": ["t"] * len(messages),
            "partition": ["3"] * len(messages),
            "offset": list(range(len(messages))),
            "timestamp": pa.nulls(len(messages), pa.timestamp("us", "UTC")),
            "key": pa.array([key for key, _ in messages], pa.binary()),
            "value": pa.array([value for _, value in messages], pa.binary()),
            TIME: [7] * len(messages),
        }
    )
    return listed(asyncio.run(ListMessages().messages(raw, schema, form, locate=True))).rows


def test_values_are_rows_and_what_is_none_is_an_error():
    """Damage: a simulation passes over a message."""
    form = MessageFormat(JSON, included={"p": Metadata.PARTITION})
    rows = decode([(None, b'{"k":1,"v":"a"}'), (None, b"{"), (None, None)], form, Schema((*PAIR, Column("p", "int"))))
    assert (rows[0]["k"], rows[0]["v"], rows[0]["p"], rows[0][ERROR]) == (1, "a", 3, None)
    assert [json.loads(row[ERROR]) for row in rows[1:]] == [
        {"place": "t[3]@1", "reason": "it is not a JSON object", "raw": "{"},
        {"place": "t[3]@2", "reason": "its value is null"},
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (f'{{"k":{"9" * 1_200}}}', "it holds a number of more than 1000 digits"),
        (f'{{"x":-0.{"9" * 1_200}}}', "it holds a number of more than 1000 digits"),
        (f'{{"x":{"[" * 200_000}{"]" * 200_000}}}', "it is nested too deep"),
    ],
)
def test_what_the_parser_does_not_take_is_said(value, reason):
    """Damage: an author looks for a brace that is missing, in an object that has all of them."""
    (row,) = decode([(None, value.encode())], MessageFormat(JSON))
    assert json.loads(row[ERROR])["reason"] == reason


def test_upserts_have_their_key():
    """Damage: an error has no key that could take it back."""
    form = MessageFormat(JSON, Shape.UPSERT, ("k",), TEXT)
    rows = decode([(b"1", b'{"v":"a"}'), (b"1", None), (b"2", b"{"), (None, b"{}")], form)
    found = [(row["k"], row["v"], row[ORDER] - order("3", 0), row[GONE], row[ERROR] is not None) for row in rows]
    assert found == [
        (1, "a", 0, False, False),
        (1, None, 1, True, False),
        (2, None, 2, False, True),
        (None, None, 3, None, True),
    ]


def test_changes_say_what_a_row_is_now():
    """Damage: a change is applied to another row."""
    form = MessageFormat(JSON, Shape.DEBEZIUM, ("k",))
    rows = decode(
        [
            (None, b'{"op":"c","after":{"k":1,"v":"__debezium_unavailable_value"}}'),
            (None, b'{"payload":{"op":"d","before":{"k":1}}}'),
            (None, None),
            (None, b'{"op":"t"}'),
        ],
        form,
    )
    assert [(row["k"], row[GONE], row[KEPT], row[ERROR] is not None) for row in rows] == [
        (1, False, ["v"], False),
        (1, True, None, False),
        (None, None, None, True),
    ]


def test_lists_have_no_broker():
    """Damage: a simulation believes that it read a range."""
    with pytest.raises(InvalidUsage, match="no connector"):
        asyncio.run(ListMessages().ranges(TopicRanges("t", (), {}), PAIR, MessageFormat(JSON), locate=False))
