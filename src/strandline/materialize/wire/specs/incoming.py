"""Flow's specification in our words, for a driver of ours that is served.

A column stands for a field.  A specification that came from us says our own types (`schemas.TYPE`) and is turned back
exactly.  In any other one a column gets the type that its values are known to have, and a field whose values may be of
several types, or are objects or arrays, is kept as JSON text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.errors import ProtocolViolation
from strandline.materialize.protocol.task import Binding
from strandline.materialize.protocol.task import MaterializationSpec as Task
from strandline.materialize.wire.codec.messages import Message
from strandline.materialize.wire.specs.names import path_of, untoken
from strandline.materialize.wire.specs.schemas import KEY, column_type

_STATE_KEY: Final = re.compile(r".*\.v(?P<backfill>\d+)(?:-(?P<incarnation>[a-z0-9@-]*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A binding of ours that was made from Flow's.

    ``fields``: where in a document each column is, in the order of the columns.  ``texts``: the columns that are JSON
    text.  ``key``: the fields of a message's key, ``values`` those of its values.
    """

    binding: Binding
    fields: Mapping[str, tuple[str, ...]]
    texts: frozenset[str]
    key: tuple[str, ...]
    values: tuple[str, ...]


def task_of(spec: Message) -> tuple[Task, tuple[Incoming, ...]]:
    """Return the task that a specification describes.

    Raises:
        DefinitionError: a field cannot be a column of ours.
        ProtocolViolation: the specification contradicts itself.
    """
    name = untoken(spec.name)
    found = tuple(_binding(each, name) for each in spec.bindings)
    return Task(name, tuple(each.binding for each in found)), found


def _binding(spec: Message, task: str) -> Incoming:
    chosen = spec.field_selection
    said = _STATE_KEY.fullmatch(spec.state_key)
    return _made(
        spec.collection,
        resource=".".join(spec.resource_path),
        fields=(*chosen.keys, *chosen.values),
        keys=tuple(chosen.keys),
        delta=spec.delta_updates,
        backfill=spec.backfill,
        incarnation=(said["incarnation"] or "") if said is not None else "",
        task=task,
    )


def proposed_binding(proposed: Message, resource: str, *, delta: bool, task: str) -> Incoming:
    """Return a binding that is to be validated: it has all fields except the whole document.

    Raises as `task_of`.
    """
    collection = proposed.collection
    fields = tuple(each.field for each in collection.projections if each.ptr)
    by_pointer = {each.ptr: each.field for each in reversed(collection.projections) if each.is_primary_key}
    keys = tuple(proposed.group_by) or tuple(by_pointer.get(pointer, "") for pointer in collection.key)
    return _made(collection, resource, fields, keys, delta=delta, backfill=proposed.backfill, incarnation="", task=task)


def _made(
    collection: Message,
    resource: str,
    fields: Sequence[str],
    keys: tuple[str, ...],
    *,
    delta: bool,
    backfill: int,
    incarnation: str,
    task: str,
) -> Incoming:
    projections = {each.field: each for each in collection.projections}
    for name in (*fields, *keys):
        if name not in projections:
            raise ProtocolViolation(f"collection {collection.name!r} has no projection {name!r}")
    schema = _schema(collection)
    properties = schema.get("properties", {})
    order = {name: place for place, name in enumerate(properties)}
    ordered = sorted(fields, key=lambda name: order.get(name, len(order)))
    columns, texts = [], []
    for name in ordered:
        own = properties.get(name, {}) if path_of(projections[name].ptr) == (name,) else {}
        kind = column_type(name, own, projections[name].inference)
        texts += [name] if kind is None else []
        columns.append(Column(name, kind or "string"))
    further = {TIME, DIFF} & {*ordered}
    declared = schema.get(KEY)
    binding = Binding(
        untoken(collection.name),
        resource,
        tuple(declared) if isinstance(declared, list) else keys,
        Schema(tuple(column for column in columns if column.name not in further)),
        backfill,
        incarnation,
        delta=delta,
        times=TIME in further,
        diffs=DIFF in further,
        task=task,
    )
    return Incoming(
        binding,
        {name: path_of(projections[name].ptr) for name in ordered},
        frozenset(texts),
        keys,
        tuple(name for name in fields if name not in keys),
    )


def _schema(collection: Message) -> dict[str, Any]:
    text = collection.read_schema_json or collection.write_schema_json or b"{}"
    try:
        found = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"collection {collection.name!r}: its schema is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}
