"""The fields that the values of messages have and a schema lacks: in JSON by looking at them, in Avro by the schemas.

Of a change as Debezium writes it they are those of ``after``.  A field that is null, or not sent, says nothing yet: its
column would be NULL, and its type is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from strandline.algebra.messages import FRAME_BYTES, MessageFormat, Shape
from strandline.algebra.schema import Column, Schema
from strandline.algebra.unavailable import PLACEHOLDER
from strandline.sources.readers.avro_columns import columns_of
from strandline.sources.readers.new_columns import new_columns
from strandline.sources.readers.sampled import JsonSample, of_objects

_AFTER: Final = "after"


class JsonFields:
    """What the values of some messages have besides the columns of a schema."""

    def __init__(self, schema: Schema, form: MessageFormat) -> None:
        self._schema = schema
        self._known = frozenset(schema.names)
        self._form = form
        self._sample = JsonSample({})

    def see(self, values: Iterable[bytes | None]) -> None:
        """Take note of values; one that is no object says nothing."""
        self._sample = self._sample.joined(of_objects(self._unknown(values)))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The fields that were seen, as columns that the schema could have."""
        return new_columns(self._schema, self._sample.held)

    def _unknown(self, values: Iterable[bytes | None]) -> Iterator[dict[str, Any]]:
        for value in values:
            row = _row(value, self._form)
            if not row.keys() <= self._known:  # most often they are known
                yield {name: row[name] for name in row if name not in self._known and row[name] != PLACEHOLDER}


def _row(value: bytes | None, form: MessageFormat) -> Mapping[str, Any]:
    if value is None:
        return {}
    try:
        found = json.loads(value[FRAME_BYTES:] if form.framed else value)
    except (ValueError, RecursionError):
        return {}
    if form.shape is Shape.DEBEZIUM and isinstance(found, dict):
        found = found["payload"] if isinstance(found.get("payload"), dict) else found
        found = found.get(_AFTER)
    return found if isinstance(found, dict) else {}


def in_schemas(texts: Iterable[str], schema: Schema, form: MessageFormat) -> tuple[Column, ...]:
    """Return the columns that ``schema`` lacks and could have of Avro schemas, the newest last.

    Where the format has a schema to read them all as, its fields alone count.
    """
    fields: dict[str, str | None] = {}
    within = _AFTER if form.shape is Shape.DEBEZIUM else None
    for text in [form.avro_schema] if form.avro_schema is not None else texts:
        fields |= columns_of(text, within) or ()
    return new_columns(schema, fields.items())
