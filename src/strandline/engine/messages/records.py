"""Parts of messages that Python decodes: Avro and Protobuf.

One function makes a table of raw messages one of parsed messages.  Spark calls it for batches of a large read, and the
decoder for the few messages that are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.messages import MessageEncoding, MessageFormat
from strandline.algebra.schema import Schema, struct
from strandline.engine.files.values import Refused, named, sent_of
from strandline.engine.messages import avro, protobuf
from strandline.engine.messages.parsed import AFTER, BEFORE, OP, UNSENT, VALUE, Part, parts, wrong

_Read = Callable[[bytes], Any]
_NAMES: Final = pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class Decoding:
    """What Python decodes of messages; plain data, so that Spark can send it to its workers."""

    schema: Schema
    form: MessageFormat

    @property
    def parts(self) -> list[Part]:
        """The parts that it decodes."""
        return [part for part in parts(self.form, self.schema) if part.coding.encoding.binary]

    def table(self, raw: pa.Table) -> pa.Table:
        """Return parsed messages."""
        batches = list(self.batches(raw.to_batches()))
        return pa.Table.from_batches(batches, self.target(raw.schema))

    def frame(self, raw: DataFrame) -> DataFrame:
        """Return parsed messages (lazy)."""
        target = from_arrow_schema(self.target(to_arrow_schema(raw.schema, timezone="UTC")))
        return raw.mapInArrow(self.batches, target)

    def target(self, raw: pa.Schema) -> pa.Schema:
        """Return the schema of the parsed messages of raw ones."""
        for part in self.parts:
            raw = raw.append(pa.field(part.name, arrow(types.parse(part.name, struct(part.fields)))))
            raw = raw.append(pa.field(wrong(part.name), pa.string()))
            if part.sendable:
                raw = raw.append(pa.field(UNSENT, _NAMES))
        return raw

    def batches(self, raw: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield parsed messages; this is what runs in Spark's workers."""
        readers = [(part, _reader(part, self.form)) for part in self.parts]
        for batch in raw:
            arrays, fields = list(batch.columns), list(batch.schema)
            for part, read in readers:
                kind = arrow(types.parse(part.name, struct(part.fields)))
                values, told = _decoded(batch.column(part.source), read)
                arrays += [pa.array(values, kind), pa.array(told, pa.string())]
                fields += [pa.field(part.name, kind), pa.field(wrong(part.name), pa.string())]
                if part.sendable:
                    unsent = [None if value is None else value[UNSENT] for value in values]
                    arrays.append(pa.array(unsent, _NAMES))
                    fields.append(pa.field(UNSENT, _NAMES))
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def decoding(schema: Schema, form: MessageFormat) -> Decoding | None:
    """Return what Python decodes; None if it is nothing.

    Raises `DefinitionError` if the format's schemas cannot be understood or lack a column.
    """
    found = Decoding(schema, form)
    for part in found.parts:
        _reader(part, form)
    return found if found.parts else None


def _decoded(source: pa.Array, read: _Read) -> tuple[list[Any], list[str | None]]:
    values: list[Any] = []
    told: list[str | None] = []
    for data in source.to_pylist():
        value, reason = None, None
        if data is not None:
            try:
                value = read(data)
            except Refused as refused:
                reason = str(refused)
        values.append(value)
        told.append(reason)
    return values, told


def _reader(part: Part, form: MessageFormat) -> _Read:
    """Return the function that decodes bytes as the struct of a part, or raises `Refused`."""
    if part.coding.encoding is MessageEncoding.AVRO:
        read = avro.reader(part.coding, form.schemas)
    else:
        assert form.descriptor is not None, "the format was checked"
        read = protobuf.reader(part.coding, form.descriptor, part.fields)
    return _change(read, part) if part.change else _row(read, part)


def _row(read: _Read, part: Part) -> _Read:
    kinds = {column.name: column.type for column in part.held}
    converters = [(name, named(name, kind, kinds[name])) for name, kind in types.columns(part.held)]
    alone = converters[0] if len(converters) == 1 else None

    def row(data: bytes) -> Any:
        found = read(data)
        if isinstance(found, dict):
            return {name: convert(found.get(name)) for name, convert in converters}
        if found is not None and alone is not None:
            return {alone[0]: alone[1](found)}
        raise Refused("it is null" if found is None else "it is not a record")

    return row


def _change(read: _Read, part: Part) -> _Read:
    halves = {AFTER: part.held} | ({BEFORE: part.before} if part.before.columns else {})
    inner = {name: _row(lambda found: found, Part(VALUE, "", part.coding, held)) for name, held in halves.items()}

    def change(data: bytes) -> Any:
        found = read(data)
        if not isinstance(found, dict):
            raise Refused("it is not a record")
        op = found.get(OP)
        made: dict[str, Any] = {OP: op if isinstance(op, str) else None, UNSENT: None}
        for name, row in inner.items():
            half = found.get(name)
            try:
                if name == AFTER and isinstance(half, dict):
                    half, made[UNSENT] = sent_of(half, part.sendable)
                made[name] = None if half is None else row(half)
            except Refused as refused:
                raise Refused(f"in `{name}`: {refused}") from refused
        return made

    return change
