"""Avro: the bytes of a message as Python's values, by the writer's schema.

The writer's schema is the format's, or, of framed bytes, the one that the frame names.  If a reader's schema is given
besides, Avro's own rules resolve one to the other: aliases, defaults, promotions.

Source: the Avro specification, "schema resolution".
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
from fastavro import _read_py as plain
from fastavro.read import SchemaResolutionError

from strandline.algebra.messages import FRAME_BYTES, Coding, framed_id
from strandline.engine.files.values import Refused
from strandline.engine.messages.avro_schemas import AvroSchema, understood
from strandline.errors import DefinitionError


def reader(coding: Coding, schemas: Mapping[int, str]) -> Callable[[bytes], Any]:
    """Return the function that decodes bytes, or raises `Refused`.

    Raises `DefinitionError` if a schema is none.
    """
    own = None if coding.avro_schema is None else understood(coding.avro_schema, defaults=True)
    if not coding.framed:
        assert own is not None, "the format was checked"
        return lambda data: _read(io.BytesIO(data), own, None)
    known: dict[int, AvroSchema] = {}

    def framed(data: bytes) -> Any:
        number = framed_id(data)
        if number is None:
            raise Refused("it does not begin with a schema's id")
        if number not in known:
            if number not in schemas:
                raise Refused(f"the registry has no schema {number}")
            known[number] = _of_registry(number, schemas[number])
        return _read(io.BytesIO(data[FRAME_BYTES:]), known[number], own)

    return framed


def _of_registry(number: int, text: str) -> AvroSchema:
    """Return a writer's schema.  A registry has schemas of other kinds, too, and bytes may name one by mistake."""
    try:
        return understood(text)
    except DefinitionError:
        raise Refused(f"the registry's schema {number} is no Avro schema") from None


def _read(data: io.BytesIO, written: AvroSchema, wanted: AvroSchema | None) -> Any:
    # The reader that is not compiled is slow; it refuses what is nested too deeply, instead of ending the process.
    read = plain.schemaless_reader if written.nests else fastavro.schemaless_reader
    try:
        found = read(data, written.parsed, None if wanted is None else wanted.parsed)
    except Exception as error:  # damaged bytes can make it raise any exception
        raise Refused(f"it is not Avro of this schema: {_told(error)}") from error
    left = len(data.getbuffer()) - data.tell()
    if left:
        raise Refused(f"{left} bytes follow the Avro value")
    return found


def _told(error: Exception) -> str:
    """Say what is wrong, the same at each read: some of its texts have the address of an object in them."""
    if isinstance(error, EOFError):
        return "it ends too early"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, SchemaResolutionError) and "{" not in str(error):  # a text with a whole schema says nothing
        return str(error)
    return type(error).__name__
