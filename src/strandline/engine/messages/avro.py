"""Avro: the bytes of a message as Python's values, by the writer's schema.

The writer's schema is the format's, or, of framed bytes, the one that the frame names.  If a reader's schema is given
besides, Avro's own rules resolve one to the other: aliases, defaults, promotions.

Source: design page "sources" (Confluent framing); the Avro specification, "schema resolution".
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException

from strandline.algebra.messages import FRAME_BYTES, Coding, framed_id
from strandline.engine.files.values import Refused
from strandline.errors import DefinitionError


def reader(coding: Coding, schemas: Mapping[int, str]) -> Callable[[bytes], Any]:
    """Return the function that decodes bytes, or raises `Refused`.

    Raises `DefinitionError` if a schema is none.
    """
    own = None if coding.avro_schema is None else _understood(coding.avro_schema)
    if not coding.framed:
        assert own is not None, "the format was checked"
        return lambda data: _read(io.BytesIO(data), own, None)
    known: dict[int, Any] = {}

    def framed(data: bytes) -> Any:
        number = framed_id(data)
        if number is None:
            raise Refused("it does not begin with a schema's id")
        if number not in known:
            if number not in schemas:
                raise Refused(f"the registry has no schema {number}")
            known[number] = _understood(schemas[number])
        return _read(io.BytesIO(data[FRAME_BYTES:]), known[number], own)

    return framed


def _understood(text: str) -> Any:
    try:
        return fastavro.parse_schema(json.loads(text))
    except (ValueError, SchemaParseException, TypeError, KeyError) as error:
        raise DefinitionError(f"this is no Avro schema ({error}): {text[:200]}") from error


def _read(data: io.BytesIO, written: Any, wanted: Any) -> Any:
    try:
        found = fastavro.schemaless_reader(data, written, wanted)
    except Exception as error:  # damaged bytes can make it raise any exception
        raise Refused(f"it is not Avro of this schema: {_told(error)}") from error
    left = len(data.getbuffer()) - data.tell()
    if left:
        raise Refused(f"{left} bytes follow the Avro value")
    return found


def _told(error: Exception) -> str:
    """Say what is wrong, the same at each read: some of its texts have the address of an object in them."""
    return "it ends too early" if isinstance(error, EOFError) else type(error).__name__
