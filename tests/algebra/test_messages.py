"""A message format is refused before anything is stored, if it cannot make rows."""

from __future__ import annotations

import pytest

from strandline.algebra.messages import MessageEncoding, MessageFormat, Metadata, Shape, check
from strandline.algebra.schema import Column, Schema
from strandline.errors import DefinitionError

PAIR = Schema((Column("k", "int"), Column("v", "string")))
JSON, CSV, TEXT = MessageEncoding.JSON, MessageEncoding.CSV, MessageEncoding.TEXT


@pytest.mark.parametrize(
    ("form", "told"),
    [
        (MessageFormat(JSON, Shape.UPSERT), "needs a key"),
        (MessageFormat(JSON, Shape.UPSERT, ("k",)), "KEY FORMAT"),
        (MessageFormat(JSON, Shape.UPSERT, ("z",), JSON), "there is no column 'z'"),
        (MessageFormat(TEXT), "a value is one column"),
        (MessageFormat(JSON, included={"v": Metadata.OFFSET}), "the message's offset is bigint"),
        (MessageFormat(JSON, included={"z": Metadata.OFFSET}), "there is no column 'z'"),
        (MessageFormat(CSV, Shape.DEBEZIUM, ("k",)), "no before and after"),
        (MessageFormat(MessageEncoding.AVRO), "needs the schema"),
        (MessageFormat(MessageEncoding.PROTOBUF), "needs a descriptor set"),
    ],
)
def test_a_format_that_cannot_make_the_rows_is_refused(form: MessageFormat, told: str) -> None:
    """Damage: a source is created whose every message is an error."""
    with pytest.raises(DefinitionError, match=told):
        check(form, PAIR)


def test_each_column_is_held_by_one_part() -> None:
    """Damage: a column is decoded twice, or never."""
    form = MessageFormat(JSON, Shape.UPSERT, ("k",), TEXT, {"o": Metadata.OFFSET})
    schema = Schema((*PAIR, Column("o", "bigint")))
    check(form, schema)
    assert form.held_by_key(schema).names == ("k",)
    assert form.held_by_value(schema).names == ("v",)


def test_without_a_format_of_keys_the_value_holds_the_key() -> None:
    """Damage: the key of a change is taken from nowhere."""
    form = MessageFormat(JSON, Shape.DEBEZIUM, ("k",))
    check(form, PAIR)
    assert form.held_by_value(PAIR) == PAIR
