"""Parsed messages: what stands between the bytes of messages and the rows that their shape makes of them.

A frame of parsed messages has the columns of raw ones, ``headers`` only where they are wanted, and for each of the
value (`VALUE`), the key (`KEY`) and the key as metadata (`AS_METADATA`) that is wanted a struct and a sentence:

- the struct has the columns that it holds; under `Shape.DEBEZIUM` the value's has ``op``, ``after`` and, where the key
  is taken from it, ``before``.  It is NULL where the bytes are, and where they cannot be decoded.
- the sentence (`wrong`) is NULL, or says why the bytes cannot be decoded.

A frame of changes has `UNSENT` besides: the names of the columns that Debezium did not send, which are NULL in the
struct, or NULL if it sent all (and a sentence that says why that is not known).

Two ways lead here: Spark's expressions (`texts`), for what Spark can parse, and a Python function (`records`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from strandline.algebra.messages import Coding, Encoding, FileFormat, MessageEncoding, MessageFormat, Metadata, Shape
from strandline.algebra.schema import TIME, Column, Schema, struct

VALUE: Final = "__value"
KEY: Final = "__key"
AS_METADATA: Final = "__key_value"
UNSENT: Final = "__unsent"
OP: Final = "op"
AFTER: Final = "after"
BEFORE: Final = "before"
PLACE: Final = ("topic", "partition", "offset", "timestamp", TIME)
UNLOCATED: Final = "not located"
"""Stands for the reason where the caller does not ask for it."""
NOT_UTF8: Final = "it is not UTF-8"
NULL_VALUE: Final = "its value is null"


def wrong(part: str) -> str:
    """Return the column that says why a part cannot be decoded."""
    return f"{part}_wrong"


_NOTHING: Final = Schema(())


@dataclass(frozen=True, slots=True)
class Part:
    """One part of messages that is decoded: from the raw column ``source`` into the column ``name``.

    ``fields``: what its struct has.  ``held``: the columns that it holds, which under Debezium are one level deeper.
    ``change``: whether it is a change as Debezium writes it.  ``wrapped``: whether the struct may be the ``payload``
    of another one.  ``alone``: the bytes may be the value of the one field, without its name.
    """

    name: str
    source: str
    coding: Coding
    held: Schema
    before: Schema = _NOTHING
    change: bool = False
    wrapped: bool = False
    alone: bool = False

    @property
    def sendable(self) -> tuple[str, ...]:
        """The columns of a change that Debezium may not send: those of no key."""
        return tuple(name for name in self.held.names if name not in self.before.names) if self.change else ()

    @property
    def fields(self) -> Schema:
        """What its struct has."""
        if not self.change:
            return self.held
        before = (Column(BEFORE, struct(self.before)),) if self.before.columns else ()
        return Schema((Column(OP, "string"), Column(AFTER, struct(self.held)), *before))


def parts(form: MessageFormat, schema: Schema) -> Iterator[Part]:
    """Yield what of messages is decoded."""
    change = form.shape is Shape.DEBEZIUM
    held, key = form.held_by_value(schema), form.held_by_key(schema)
    if held.columns or change:
        before = Schema(tuple(column for column in held if column.name in form.key)) if change else Schema(())
        yield Part(VALUE, "value", form.of_value, held, before, change=change, wrapped=change)
    if key.columns and (coding := form.of_key) is not None:
        wrapped = change and "payload" not in key.names
        yield Part(KEY, "key", coding, key, wrapped=wrapped, alone=len(key.columns) == 1)
    as_metadata = [name for name, metadata in form.included.items() if metadata is Metadata.KEY]
    if as_metadata:
        held = Schema(tuple(column for column in schema if column.name in as_metadata))
        yield Part(AS_METADATA, "key", form.of_key or _bytes_as(held), held, alone=True)


def _bytes_as(held: Schema) -> Coding:
    binary = held.columns[0].type == "binary"
    return Coding(MessageEncoding.BYTES if binary else MessageEncoding.TEXT)


def as_file(form: MessageFormat, encoding: Encoding) -> FileFormat:
    """Return the format of a file whose records are decoded as these messages are."""
    return FileFormat(
        encoding,
        header=False,
        delimiter=form.delimiter,
        quote=form.quote,
        escape=form.escape,
        null=form.null,
        timestamp_format=form.timestamp_format,
        date_format=form.date_format,
    )
