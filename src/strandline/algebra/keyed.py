"""Keyed records: each says what its key has from then on, and the newest one counts.

A source whose records are *keyed* (upsert, Debezium, CDC without full images) returns them with the columns of its
collection, ``__time``, ``__diff`` (always 1) and these:

- `ORDER`, a bigint: the records of one key at one time count in this order.  Two with the same order are one record
  that came twice.
- `GONE`, a boolean: true, the key has no row from here on, and all columns but the key's are NULL; false, it has this
  row, or this error; NULL, the record has no key that is known, and is an error that stands for itself.
- `KEPT`, an array of column names, or no such column: what upstream did not send because it stays as it was.  NULL is
  none.  Names are those of the schema.
- ``__error``, or no such column: the record is an error.  *If its key is known (`GONE` is false) the key's columns hold
  it*, in a row of the err half too, and all other columns are NULL.

At each time a key has one row, or one error, or nothing: what its last record says.  So a key whose value cannot be
decoded loses its row, and the error stands in its place until the next record of the key.  An error without a key
(a NULL key among them) stays until the operator dismisses it.  A record with `KEPT` where the key has no row is an
error of the key, with `NOTHING_KEPT`: what it left out is nowhere, and no value is invented.

In a collection's err half an error of a known key begins with ``{"key":{…},``, which the engine puts there: the key's
columns and their values as texts (`with_key`, `key_of`).  The texts are the engine's own, and two keys have the same
ones iff they are equal.  So decoders neither write it nor agree on how.

Trap: "last" is by time and then by order, never by the order of rows in a frame.

The naive truth: `strandline.sources.envelopes.keyed_spec`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from strandline.algebra import types
from strandline.algebra.schema import ERROR, Schema
from strandline.errors import DefinitionError

ORDER: Final = "__order"
GONE: Final = "__gone"
KEPT: Final = "__kept"
RECORD: Final = (ORDER, GONE, KEPT, ERROR)
"""The columns of a record besides those of its collection, ``__time`` and ``__diff``; the last two may lack."""
KEY: Final = "key"
"""The name of the key in an error's JSON."""
NOTHING_KEPT: Final = "it leaves out columns that stay as they were, and its key has no row"


def with_key(error: str, key: Mapping[str, str | None]) -> str:
    """Return ``error`` as the error of a known key, whose values are given as texts.

    An error is a JSON object without a key, or a plain text, which becomes the reason.

    >>> with_key('{"place":"t[0]@7","reason":"no JSON"}', {"id": "1"})
    '{"key":{"id":"1"},"place":"t[0]@7","reason":"no JSON"}'
    >>> with_key("somewhere", {"id": "1", "part": None})
    '{"key":{"id":"1","part":null},"reason":"somewhere"}'
    """
    body = error if error.startswith("{") else json.dumps({"reason": error}, separators=(",", ":"), ensure_ascii=False)
    written = json.dumps(dict(key), separators=(",", ":"), ensure_ascii=False)
    return f'{{"{KEY}":{written},{body[1:]}'


def key_of(error: str) -> dict[str, str | None] | None:
    """Return the key, as texts, of an error that has a known one.

    >>> key_of('{"key":{"id":"1"},"reason":"no JSON"}'), key_of('{"reason":"no key"}'), key_of("somewhere")
    ({'id': '1'}, None, None)
    """
    try:
        found = json.loads(error)
    except ValueError:
        return None
    key = found.get(KEY) if isinstance(found, dict) else None
    return key if isinstance(key, dict) else None


def check_key(schema: Schema, key: Sequence[str]) -> None:
    """Raise `DefinitionError` if records of ``schema`` cannot be told apart by the columns ``key``.

    >>> from strandline.algebra.schema import Column
    >>> check_key(Schema((Column("id", "int"), Column("tags", "array<string>"))), ["tags"])
    Traceback (most recent call last):
        ...
    strandline.errors.DefinitionError: key column 'tags' has type array<string>; a key has columns of plain types
    """
    if not key:
        raise DefinitionError("a source of keyed records needs a key: name its columns")
    columns = {column.name: column.type for column in schema}
    for name in key:
        if name not in columns:
            raise DefinitionError(f"key column {name!r} is not a column; these are: {', '.join(schema.names)}")
        if isinstance(types.parse(name, columns[name]), types.Array | types.Struct):
            raise DefinitionError(f"key column {name!r} has type {columns[name]}; a key has columns of plain types")
    if len(set(key)) < len(key):
        raise DefinitionError(f"a column occurs twice in the key {', '.join(key)}")
