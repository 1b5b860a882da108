"""A materialization in Flow's terms: names, schemas, the choice of fields, checkpoints, and whole specifications.

A task and a collection have *tokens* for names there (`token`).  A column becomes a field with a JSON Schema; a
*pointer* (RFC 6901) names the field in a document, and projections list the fields by name, with one more field for the
whole document under a name that no column has.  A connector answers Validate with a constraint for each field.  All
columns are stored, or the collection is not materialized (`driver.require_all`).  The whole document is stored only if
the connector asks for it: many rebuild documents from their columns.

A connector refuses a specification in which templates of journals and shards are missing or invalid.  Strandline has
neither, so these are the plainest valid ones.

Source: JSON Schema 2020-12; Estuary Flow's formats of numbers in strings.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

import xxhash
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from strandline.algebra.schema import DIFF, TIME, Column
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type, parse
from strandline.errors import ConfigError, CorruptionError, DefinitionError, ProtocolViolation
from strandline.materialize.driver import REFUSALS, Constraint, ConstraintKind, Validated
from strandline.materialize.protocol.refusals import FILLED_THERE
from strandline.materialize.protocol.task import NOTHING, Binding
from strandline.materialize.protocol.task import Checkpoint as Times
from strandline.materialize.protocol.task import MaterializationSpec as Task
from strandline.materialize.wire.codec import LOCAL, Checkpoint, CollectionSpec, Inference, MaterializationSpec, Message
from strandline.materialize.wire.values import compact

PART_MAX: Final = 160
_HASH_DIGITS: Final = 16


def token(name: str) -> str:
    """Return a name as a token.

    >>> token("acme/orders"), token("'; --~")
    ('acme/orders', '%27%3B%20--%7E')

    A token has letters, digits, and a few signs.  Our names may be anything, so every other byte is written as ``%``
    and two hexadecimal digits; `untoken` turns a name back.
    """
    return quote(name, safe="/+=-_.").replace("~", "%7E")


def untoken(text: str) -> str:
    """Return the name that a token stands for.

    >>> untoken(token("50% of 'é'"))
    "50% of 'é'"
    """
    return unquote(text, errors="surrogateescape")


def part(name: str) -> str:
    """Return a name as one component of a path, different for different names.

    >>> part("../a"), len(part("x" * 1000))
    ('%2E%2E%2Fa', 160)
    """
    whole = quote(name, safe="").replace("~", "%7E").replace(".", "%2E")
    if len(whole) <= PART_MAX:
        return whole
    return f"{whole[: PART_MAX - _HASH_DIGITS - 1]}-{xxhash.xxh3_64_hexdigest(name.encode('utf-8', 'surrogatepass'))}"


def pointer(*path: str) -> str:
    """Return the pointer to a field of a document; of no path, to the document itself.

    >>> pointer("a/b", "~"), pointer()
    ('/a~1b/~0', '')
    """
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)


def path_of(text: str) -> tuple[str, ...]:
    """Return what `pointer` was given.

    >>> path_of("/a~1b/~0"), path_of("")
    (('a/b', '~'), ())
    """
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in text.split("/")[1:])


TYPE: Final = "x-strandline-type"
KEY: Final = "x-strandline-key"
"""The columns of the binding's key, among the properties that make a key."""
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32}
_FORMATS: Final = {"date": "date", "timestamp": "date-time"}
_SCALARS: Final[Mapping[tuple[tuple[str, ...], str], str]] = {
    (("boolean",), ""): "boolean",
    (("integer",), ""): "bigint",
    (("number",), ""): "double",
    (("integer", "number"), ""): "double",
    (("number", "string"), "number"): "double",
    (("integer", "string"), "integer"): "decimal(38,0)",
    (("string",), "integer"): "decimal(38,0)",
    (("string",), "date"): "date",
    (("string",), "date-time"): "timestamp",
    (("string",), ""): "string",
}
"""The column for what another runtime infers; a format that is not here is a string's."""


def column_schema(kind: Type) -> dict[str, Any]:
    """Return the schema of a column's values.

    >>> column_schema(Atom("tinyint"))
    {'type': ['integer', 'null'], 'minimum': -128, 'maximum': 127}
    >>> column_schema(Decimal(10, 2))
    {'type': ['string', 'null'], 'format': 'number'}

    Every column may be NULL, and is in every document.  What a connector needs to choose its own type is in the usual
    keywords: ``type``, ``format``, ``contentEncoding``, ``minimum`` and ``maximum``.  Our own type is in `TYPE`, which
    other programs skip, so a driver of ours behind the wire gets exactly the column that it would get without it.

    | column | schema |
    | --- | --- |
    | tinyint, smallint, int | integer with bounds |
    | bigint | integer |
    | float, double | number, or a string of the format number (NaN, Infinity) |
    | decimal | a string of the format integer, or number if it has digits after the point |
    | binary | a string in base64 |
    | date, timestamp | a string of the format date, date-time |
    | timestamp_ntz | a string: a format for a time without a zone is not known |
    | array, struct | array, object |
    """
    match kind:
        case Atom("boolean"):
            return {"type": ["boolean", "null"]}
        case Atom("bigint"):
            return {"type": ["integer", "null"]}
        case Atom("tinyint" | "smallint" | "int" as name):
            bound = 1 << (_BITS[name] - 1)
            return {"type": ["integer", "null"], "minimum": -bound, "maximum": bound - 1}
        case Atom("float" | "double"):
            return {"type": ["number", "string", "null"], "format": "number"}
        case Atom("binary"):
            return {"type": ["string", "null"], "contentEncoding": "base64"}
        case Atom(name):
            return {"type": ["string", "null"], **({"format": _FORMATS[name]} if name in _FORMATS else {})}
        case Decimal(_, scale):
            return {"type": ["string", "null"], "format": "number" if scale else "integer"}
        case Array(element):
            return {"type": ["array", "null"], "items": column_schema(element)}
        case Struct(fields):
            inner = {name: column_schema(field) for name, field in fields}
            return {"type": ["object", "null"], "properties": inner, "required": list(inner)}


def row_schema(columns: Sequence[Column], key: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a collection's documents."""
    properties = {c.name: {**column_schema(parse(c.name, c.type)), TYPE: c.type} for c in columns}
    return {"type": "object", "properties": properties, "required": list(properties), KEY: list(key)}


def inference(schema: Mapping[str, Any]) -> Message:
    """Return what a specification says of a column's values.

    >>> list(inference(column_schema(Atom("double"))).types)
    ['null', 'number', 'string']
    """
    types = sorted(schema["type"])
    found = Inference(types=types, exists=Inference.Exists.Value("MUST"))
    if "string" in types:
        found.string.SetInParent()
        found.string.format = schema.get("format", "")
        found.string.content_encoding = schema.get("contentEncoding", "")
    if "minimum" in schema:
        found.numeric.has_minimum, found.numeric.minimum = True, schema["minimum"]
        found.numeric.has_maximum, found.numeric.maximum = True, schema["maximum"]
    return found


def document_inference() -> Message:
    """Return what a specification says of whole documents."""
    return Inference(types=["object"], exists=Inference.Exists.Value("MUST"))


def column_type(name: str, schema: Mapping[str, Any], inferred: Message) -> str | None:
    """Return the type of the column for a field; None for values of several types, which are kept as JSON text.

    Raises `DefinitionError` for a type of ours that is none.
    """
    declared = schema.get(TYPE)
    if isinstance(declared, str):
        parse(name, declared)
        return declared
    if declared is not None:
        raise DefinitionError(f"field {name!r}: its {TYPE} is no text")
    types = tuple(sorted({*inferred.types} - {"null"}))
    if types == ("string",) and inferred.string.content_encoding == "base64":
        return "binary"
    found = _SCALARS.get((types, inferred.string.format))
    return found or ("string" if types == ("string",) else None)


_NAME: Final = "x-collection-name"
_DELTA: Final = "x-delta-updates"
_HARD_DELETE: Final = "hardDelete"


def resource_config(schema: Mapping[str, Any], given: Mapping[str, Any], binding: Binding) -> dict[str, Any]:
    """Return the configuration of a binding's resource.

    >>> from strandline.algebra.schema import Column, Schema
    >>> b = Binding("c", "T", ("k",), Schema((Column("k", "int"),)))
    >>> resource_config({"properties": {"table": {"type": "string", "x-collection-name": True}}}, {"schema": "s"}, b)
    {'schema': 's', 'table': 'T'}

    Raises:
        ConfigError: the schema does not say where the name stands.

    A connector's schema marks the place of the table's or topic's name by ``x-collection-name: true``, and the switch
    for changes by ``x-delta-updates: true``.  Other options of the user are set before these.
    """
    places = dict(_marked(schema))
    if _NAME not in places:
        raise ConfigError(
            f"the connector does not say where in its resource's configuration a name stands ({_NAME}): "
            "it cannot be used without Flow"
        )
    config = _set(given, places[_NAME], binding.resource)
    return _set(config, places[_DELTA], True) if binding.delta and _DELTA in places else config


def endpoint_config(schema: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the endpoint: what is given, and that deleted rows are to be gone.

    Many connectors keep a deleted row and mark it, unless an option says otherwise; then the resource would not equal
    the collection.

    >>> endpoint_config({"properties": {"hardDelete": {"type": "boolean"}}}, {"a": 1})
    {'a': 1, 'hardDelete': True}
    """
    switch = schema.get("properties", {}).get(_HARD_DELETE, {})
    return {**given, _HARD_DELETE: True} if switch.get("type") == "boolean" and _HARD_DELETE not in given else {**given}


def _marked(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, inner in schema.get("properties", {}).items():
        if isinstance(inner, Mapping):
            yield from ((mark, (*path, name)) for mark in (_NAME, _DELTA) if inner.get(mark) is True)
            yield from _marked(inner, (*path, name))


def _set(config: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    name, *rest = path
    inner = config.get(name)
    return {**config, name: _set(inner if isinstance(inner, Mapping) else {}, tuple(rest), value) if rest else value}


_OURS: Final = "strandline;"
_WHOLE: Final = "flow;"
EXPLICIT_ZERO: Final = bytes.fromhex("f8ffffff0f01")
"""The checkpoint that is there, and before everything."""
_BEGUN: Final = 1
"""The time of a binding that another runtime has committed to: our drivers only ask whether it has one."""


def to_wire(checkpoint: Times) -> Message:
    """Return one of our checkpoints as the wire's.

    >>> to_wire(Times((("t.v0", 5),))).sources["strandline;t.v0"].read_through
    5

    The wire's checkpoint has a number for each journal that is read.  Ours has a time for each state key, so a state
    key becomes a journal named ``strandline;`` + key.  Another runtime's checkpoint is kept unchanged, as one entry
    whose key is its bytes: our drivers, when they are served, keep it beside the bindings that it is about.

    An endpoint whose checkpoint is of nothing says so by a field that no message has: in Protobuf not every program can
    tell a message without fields from no message.
    """
    message = Checkpoint()
    if not checkpoint.times:
        message.MergeFromString(EXPLICIT_ZERO)
    for key, time in checkpoint.times:
        message.sources[_OURS + token(key)].read_through = time
    return message


def from_wire(message: Message) -> Times:
    """Return the checkpoint that `to_wire` wrote.

    Raises:
        ConfigError: another runtime has committed to the endpoint.
    """
    if not message.sources:
        return NOTHING
    for journal in sorted(message.sources):
        if not journal.startswith(_OURS):
            whom, what = f"another program, which has read {journal!r},", "the endpoint"
            raise ConfigError(FILLED_THERE.said(whom=whom, what=what, rest="that program's checkpoint"))
    times = ((untoken(journal.removeprefix(_OURS)), each.read_through) for journal, each in message.sources.items())
    return Times(tuple(sorted(times)))


# --- where one of our drivers is served to any runtime ----------------------------------------------------------------
def kept(message: Message, state_keys: Sequence[str]) -> Times:
    """Return what a driver of ours keeps for a runtime that commits to the bindings ``state_keys``."""
    if all(journal.startswith(_OURS) for journal in message.sources) and message.sources:
        return from_wire(message)
    whole = _WHOLE + base64.urlsafe_b64encode(message.SerializeToString(deterministic=True)).decode()
    return Times(tuple(sorted({**dict.fromkeys(state_keys, _BEGUN), whole: 0}.items())))


def returned(checkpoint: Times) -> Message:
    """Return, for the wire, what a driver of ours has kept.

    Raises:
        CorruptionError: the endpoint's checkpoint was damaged.
    """
    found = [key for key, _ in checkpoint.times if key.startswith(_WHOLE)]
    if not found:
        return to_wire(checkpoint)
    message = Checkpoint()
    try:
        message.ParseFromString(base64.urlsafe_b64decode(found[0].removeprefix(_WHOLE)))
    except (DecodeError, binascii.Error) as error:
        raise CorruptionError(f"the checkpoint that the endpoint keeps is damaged: {error}") from error
    return message


_FRAGMENT_BYTES: Final = 1 << 28
_SECONDS: Final = 300


def journal(room: str, name: str) -> dict[str, Any]:
    """Return the fields of a journal's specification.

    >>> journal("recovery", "a/b")["name"]
    'recovery/strandline/a%2Fb'
    """
    return {
        "name": f"{room}/strandline/{part(name)}",
        "replication": 1,
        "labels": {},
        "fragment": {
            "length": _FRAGMENT_BYTES,
            "compression_codec": "GZIP",
            "refresh_interval": {"seconds": _SECONDS},
            "retention": {},
            "flush_interval": {},
        },
    }


def shard(name: str) -> dict[str, Any]:
    """Return the fields of a shard's specification."""
    return {
        "id": f"materialize/strandline/{part(name)}",
        "recovery_log_prefix": "recovery",
        "hint_prefix": "/strandline/hints",
        "hint_backups": 2,
        "max_txn_duration": {"seconds": _SECONDS},
        "min_txn_duration": {},
        "labels": {},
    }


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
        partition_template=journal("collection", binding.collection),
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


_UNSATISFIABLE: Final = 7
_WANTED: Final = (
    ConstraintKind.FIELD_REQUIRED,
    ConstraintKind.LOCATION_REQUIRED,
    ConstraintKind.LOCATION_RECOMMENDED,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """What one binding stores where: the connector's answer, and the fields chosen by it.

    ``document`` is empty if documents are not stored.  ``verdicts`` has an entry per column.  ``reasons`` says for each
    field, the document's too, whether it is stored and why.
    """

    resource_path: tuple[str, ...]
    keys: tuple[str, ...]
    values: tuple[str, ...]
    document: str
    verdicts: Mapping[str, Constraint]
    reasons: tuple[str, ...]

    @property
    def validated(self) -> Validated:
        """The verdicts as a driver returns them."""
        return Validated(self.verdicts, empties=False)  # it knows what was applied last, and not what was before that

    @property
    def fields(self) -> dict[str, Sequence[str] | str]:
        """The fields of the wire's FieldSelection."""
        return {"keys": self.keys, "values": self.values, "document": self.document}


def select(binding: Binding, answer: Message) -> Selection:
    """Return the fields that a binding stores, given the connector's answer about it.

    Raises:
        DefinitionError: the connector needs a field that there is not, or stores only changes, or only rows.
        ProtocolViolation: the answer names no resource, or a constraint that there is not.
    """
    if not answer.resource_path or not all(answer.resource_path):
        raise ProtocolViolation(f"{binding.collection!r}: the connector names no path of its resource")
    if answer.delta_updates != binding.delta:
        raise DefinitionError(_other_mode(binding))
    document = document_field(binding)
    said = {name: _constraint(name, each) for name, each in _constraints(answer).items()}
    verdicts = _distinct({c.name: said.get(c.name, _UNMENTIONED) for c in binding.columns}, _folded(answer))
    for name in sorted(said.keys() - verdicts.keys() - {document}):
        if said[name].kind is ConstraintKind.FIELD_REQUIRED:
            raise DefinitionError(
                f"{binding.collection!r} into {binding.resource!r}: the connector needs a column {name!r}, "
                f"which there is not: {said[name].reason}"
            )
    of_document = said.get(document, _UNMENTIONED)
    stored = of_document.kind in _WANTED
    keys = key_columns(binding)
    return Selection(
        tuple(answer.resource_path),
        keys,
        tuple(sorted(c.name for c in binding.columns if c.name not in keys)),
        document if stored else "",
        verdicts,
        (
            *(_why(name, each, stored=each.kind not in REFUSALS) for name, each in verdicts.items()),
            _why(document, of_document, stored=stored),
        ),
    )


_UNMENTIONED: Final = Constraint(ConstraintKind.FIELD_FORBIDDEN, "the connector does not mention it")


def _constraints(answer: Message) -> dict[str, Message]:
    """Return the constraints of an answer by field, whichever of the two ways it has them in."""
    return {**answer.constraints, **{each.field: each.constraint for each in answer.projection_constraints}}


def _constraint(name: str, message: Message) -> Constraint:
    number = ConstraintKind.INCOMPATIBLE if message.type == _UNSATISFIABLE else message.type
    try:
        return Constraint(ConstraintKind(number), message.reason)
    except ValueError as error:
        raise ProtocolViolation(f"field {name!r}: {message.type} is no constraint") from error


def _folded(answer: Message) -> dict[str, str]:
    """Return the names under which fields are stored, where they differ from the fields' own."""
    return {name: each.folded_field for name, each in _constraints(answer).items() if each.folded_field}


def _distinct(verdicts: dict[str, Constraint], folded: Mapping[str, str]) -> dict[str, Constraint]:
    """Return the verdicts; of two columns that are stored under one name, the second is forbidden."""
    found: dict[str, Constraint] = {}
    taken: dict[str, str] = {}
    for name, each in verdicts.items():
        stored = folded.get(name, name)
        found[name] = each
        if stored in taken:
            reason = f"it would be stored as {stored!r}, like column {taken[stored]!r}: rename one of them"
            found[name] = Constraint(ConstraintKind.FIELD_FORBIDDEN, reason)
        taken.setdefault(stored, name)
    return found


def _why(name: str, constraint: Constraint, *, stored: bool) -> str:
    because = f": {constraint.reason}" if constraint.reason else ""
    return f"{name!r} is {'stored' if stored else 'not stored'}, {constraint.kind.name}{because}"


def _other_mode(binding: Binding) -> str:
    head = f"{binding.collection!r} into {binding.resource!r}"
    if binding.delta:
        return f"{head}: the connector keeps rows by key, and cannot be given changes; materialize it without DELTA"
    return f"{head}: the connector only takes changes, and keeps no row by its key; materialize it as DELTA"


def proposed(binding: Binding, resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a binding that a connector is asked to validate."""
    return {
        "resource_config_json": compact(resource),
        "collection": collection_spec(binding),
        "backfill": binding.backfill,
        "group_by": key_columns(binding),
    }


def task_spec(
    task: Task, config: bytes, resources: Sequence[Mapping[str, Any]], chosen: Sequence[Selection]
) -> Message:
    """Return the specification that a connector applies and opens.

    ``config`` is the connector's configuration as JSON, secrets included: the result must not be kept or shown.
    """
    bindings = [
        {
            "resource_config_json": compact(resource),
            "resource_path": selection.resource_path,
            "collection": collection_spec(binding),
            "field_selection": selection.fields,
            "delta_updates": binding.delta,
            "partition_selector": {"include": {}, "exclude": {}},
            "journal_read_suffix": f"materialize/{part(task.name)}/{part(binding.resource)}",
            "backfill": binding.backfill,
            "state_key": binding.state_key,
        }
        for binding, resource, selection in zip(task.bindings, resources, chosen, strict=True)
    ]
    return MaterializationSpec(
        name=token(task.name),
        connector_type=LOCAL,
        config_json=config,
        bindings=bindings,
        shard_template=shard(task.name),
        recovery_log_template=journal("recovery", task.name),
    )


def version(spec: Message) -> str:
    """Return the version of a specification: a text that is another one where anything but the configuration is."""
    shown = MaterializationSpec()
    shown.CopyFrom(spec)
    shown.config_json = b""
    return xxhash.xxh3_128_hexdigest(shown.SerializeToString(deterministic=True))
