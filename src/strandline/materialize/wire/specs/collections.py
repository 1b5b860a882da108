"""A binding's collection in Flow's words: which fields a document has, and which of them make the key.

A document has a field for each column.  Projections name the fields, in the order of their names; one more stands for
the whole document, under a name that no column has.
"""

from __future__ import annotations

from typing import Any, Final

from strandline.algebra.schema import DIFF, TIME
from strandline.errors import DefinitionError
from strandline.materialize.protocol.task import Binding
from strandline.materialize.wire.codec.messages import CollectionSpec, Message
from strandline.materialize.wire.specs import templates
from strandline.materialize.wire.specs.names import pointer, token
from strandline.materialize.wire.specs.schemas import document_inference, inference, row_schema
from strandline.materialize.wire.values import compact

_DOCUMENT: Final = "flow_document"
_UUID: Final = "/_meta/uuid"
_ACK: Final = b'{"_meta":{"ack":true,"uuid":"DocUUIDPlaceholder-329Bb50aa48EAa9ef"}}'


def key_columns(binding: Binding) -> tuple[str, ...]:
    """Return the columns of which no two documents of a transaction have the same values.

    Of a binding without a key these are all of them; where times or diffs are kept, they are part of it.
    """
    further = [c.name for c in binding.columns if c.name in {TIME, DIFF}]
    return (*(binding.key or binding.schema.names), *further)


def document_field(binding: Binding) -> str:
    """Return the name of the field that is the whole document.

    >>> from strandline.algebra.schema import Column, Schema
    >>> document_field(Binding("c", "t", ("k",), Schema((Column("k", "int"), Column("Flow_Document", "int")))))
    'flow_document_'
    """
    taken = {c.name.casefold() for c in binding.columns}
    name = _DOCUMENT
    while name in taken:
        name += "_"
    return name


def collection_spec(binding: Binding) -> Message:
    """Return the collection of a binding.

    Raises:
        DefinitionError: a column has no name, or a type that no collection can hold.
    """
    keys = key_columns(binding)
    schema = row_schema(binding.columns, binding.key)
    projections = [_projection(name, values, keys) for name, values in schema["properties"].items()]
    projections.append({"ptr": "", "field": document_field(binding), "inference": document_inference()})
    return CollectionSpec(
        name=token(binding.collection),
        key=[pointer(name) for name in keys],
        uuid_ptr=_UUID,
        projections=sorted(projections, key=lambda each: each["field"]),
        ack_template_json=_ACK,
        write_schema_json=compact_in_order(schema),
        partition_template=templates.journal("collection", binding.collection),
    )


def _projection(name: str, values: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    if not name:
        raise DefinitionError("the name of a column is empty: a connector needs one; give it one with AS")
    return {
        "ptr": pointer(name),
        "field": name,
        "explicit": True,
        "is_primary_key": name in keys,
        "inference": inference(values),
    }


def compact_in_order(schema: dict[str, Any]) -> bytes:
    """Return a schema as JSON in which the properties stand in the order of the columns."""
    text = {name: value for name, value in schema.items() if name != "properties"}
    properties = b",".join(compact(name) + b":" + compact(values) for name, values in schema["properties"].items())
    return compact(text)[:-1] + b',"properties":{' + properties + b"}}"
