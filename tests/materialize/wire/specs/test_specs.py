"""A task in Flow's words is what an unmodified connector accepts, and comes back as it was."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from tests.materialize.wire.specs.bindings import bindings, tasks

from strandline.algebra.schema import Column, Schema
from strandline.errors import ConfigError, DefinitionError, ProtocolViolation
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.materialize.wire.codec import JsonCodec, Message, ProtoCodec, Request, Response
from strandline.materialize.wire.served import proposed_binding, task_of
from strandline.materialize.wire.specs import (
    Selection,
    collection_spec,
    column_type,
    endpoint_config,
    proposed,
    resource_config,
    select,
    task_spec,
    version,
)

TOKEN = re.compile(r"[A-Za-z0-9\-_+/.=%]{1,512}")
SMALL = Binding(
    "orders", "Orders", ("k",), Schema((Column("v", "decimal(10,2)"), Column("k", "int"), Column("at", "timestamp")))
)
TASK = MaterializationSpec("m", (SMALL,))


def answer(binding: Binding, **constraints: int) -> Message:
    """Return the answer of a connector that stores every column, and the document as it likes."""
    said = {name: {"type": 4} for name in (each.name for each in binding.columns)}
    said |= {name: {"type": kind, "reason": f"of {name}"} for name, kind in constraints.items()}
    made = Response(validated={"bindings": [{"constraints": said, "resource_path": [binding.resource]}]})
    made.validated.bindings[0].delta_updates = binding.delta
    return made.validated.bindings[0]


def spec_of(task: MaterializationSpec) -> Message:
    """Return a task's specification, as a connector that stores every column gets it."""
    chosen = [select(each, answer(each)) for each in task.bindings]
    return task_spec(task, b'{"a":1}', [{"table": each.resource} for each in task.bindings], chosen)


def check_path(name: str) -> None:
    """Raise unless connectors accept the name of a journal."""
    assert TOKEN.fullmatch(name)
    assert len(name) >= 4
    assert all(part not in {"", ".", ".."} for part in name.split("/"))


def check_journal(journal: Message) -> None:
    """Raise unless connectors accept a journal's template."""
    check_path(journal.name)
    assert 1 <= journal.replication <= 5
    assert 1 << 10 <= journal.fragment.length <= 1 << 34
    assert journal.fragment.compression_codec > 0
    assert 1 <= journal.fragment.refresh_interval.seconds <= 86_400
    assert not journal.labels.labels


def check_collection(collection: Message) -> None:
    """Raise unless connectors accept a collection."""
    assert TOKEN.fullmatch(collection.name)
    fields = [each.field for each in collection.projections]
    assert all(fields)
    assert fields == sorted(set(fields), key=str.encode)
    keyed = {each.ptr for each in collection.projections if each.is_primary_key}
    assert collection.key
    assert keyed == {*collection.key}
    check_journal(collection.partition_template)
    json.loads(collection.write_schema_json)
    json.loads(collection.ack_template_json)
    assert [each.field for each in collection.projections if not each.ptr] != []


def check_spec(spec: Message) -> None:
    """Raise unless connectors accept a specification."""
    assert TOKEN.fullmatch(spec.name)
    assert spec.config_json
    for binding in spec.bindings:
        check_collection(binding.collection)
        assert binding.resource_config_json
        assert all(binding.resource_path)
        assert len(binding.resource_path) > 0
        chosen = binding.field_selection
        assert list(chosen.values) == sorted(chosen.values, key=str.encode)
        known = {each.field: each.ptr for each in binding.collection.projections}
        assert [known[name] for name in chosen.keys] == list(binding.collection.key)
        assert {*chosen.values} <= known.keys() - {*chosen.keys}
        assert not chosen.document or known[chosen.document] == ""
    check_journal(spec.recovery_log_template)
    shard = spec.shard_template
    check_path(shard.id)
    check_path(f"{shard.recovery_log_prefix}/{shard.id}")
    assert shard.hint_prefix.startswith("/")
    assert not shard.hint_prefix.endswith("/")
    assert shard.max_txn_duration.seconds > 0


@given(tasks())
def test_connectors_accept_the_specification_of_any_task(task: MaterializationSpec) -> None:
    """Damage: an unmodified connector refuses a task because of the names in it."""
    check_spec(spec_of(task))


@given(tasks())
def test_a_task_comes_back_as_it_was_in_both_codecs(task: MaterializationSpec) -> None:
    """Damage: a served driver makes a table of other columns, types or keys than without the wire."""
    request = Request(open={"materialization": spec_of(task)})
    for codec in (ProtoCodec(), JsonCodec()):
        (read,) = codec.reader(Request).feed(codec.encode(request))
        found, incoming = task_of(read.open.materialization)
        assert found == task
        named = {each.task for each in (*found.bindings, *(each.binding for each in incoming))}
        assert named == {task.name}, "which messages advise something for"


@given(bindings())
def test_a_binding_that_is_validated_is_the_one_that_is_opened(binding: Binding) -> None:
    """Damage: a driver's verdict is about other columns than it is given."""
    request = Request(validate={"bindings": [proposed(binding, {"table": binding.resource})]})
    check_collection(request.validate.bindings[0].collection)
    made = proposed_binding(request.validate.bindings[0], binding.resource, delta=binding.delta, task="m")
    own = {"incarnation": "", "task": "m"}
    assert vars_of(made.binding) | own == vars_of(binding) | own
    assert made.binding.task == "m"


def vars_of(binding: Binding) -> dict[str, Any]:
    """Return a binding's fields."""
    return {name: getattr(binding, name) for name in Binding.__slots__}


def test_a_collection_reads_like_any_other_of_flow() -> None:
    """Damage: a connector makes a column of the wrong type, or none."""
    found = json.loads(JsonCodec().encode(collection_spec(SMALL)))
    assert json.loads(json.dumps(found["writeSchema"]["properties"])) == {
        "v": {"type": ["string", "null"], "format": "number", "x-strandline-type": "decimal(10,2)"},
        "k": {
            "type": ["integer", "null"],
            "minimum": -(2**31),
            "maximum": 2**31 - 1,
            "x-strandline-type": "int",
        },
        "at": {"type": ["string", "null"], "format": "date-time", "x-strandline-type": "timestamp"},
    }
    assert list(found["writeSchema"]["properties"]) == ["v", "k", "at"]
    assert found["writeSchema"]["required"] == ["v", "k", "at"]
    assert found["key"] == ["/k"]
    by_field = {each["field"]: each for each in found["projections"]}
    assert list(by_field) == ["at", "flow_document", "k", "v"]
    assert by_field["flow_document"] == {
        "field": "flow_document",
        "inference": {"types": ["object"], "exists": "MUST"},
    }
    assert by_field["k"] == {
        "ptr": "/k",
        "field": "k",
        "explicit": True,
        "isPrimaryKey": True,
        "inference": {
            "types": ["integer", "null"],
            "exists": "MUST",
            "numeric": {"hasMinimum": True, "minimum": -(2.0**31), "hasMaximum": True, "maximum": 2.0**31 - 1},
        },
    }
    assert by_field["at"]["inference"]["string"] == {"format": "date-time"}


def test_a_version_is_another_one_where_the_specification_is_but_not_the_password() -> None:
    """Damage: a connector is opened for what it did not apply; or a rotated password rebuilds every table."""
    first = spec_of(TASK)
    again = task_spec(TASK, b'{"a":2}', [{"table": "Orders"}], [select(SMALL, answer(SMALL))])
    assert version(first) == version(again)
    assert version(
        spec_of(MaterializationSpec("m", (Binding("orders", "Orders", ("k",), SMALL.schema, 1),)))
    ) != version(first)


# --- the choice of fields ---------------------------------------------------------------------------------------------
def test_columns_are_chosen_and_each_choice_is_explained() -> None:
    """Damage: a user does not learn why a column is missing at the endpoint."""
    found = select(SMALL, answer(SMALL, k=2, flow_document=4))
    assert (found.keys, found.values, found.document) == (("k",), ("at", "v"), "")
    assert found.reasons == (
        "'v' is stored, FIELD_OPTIONAL",
        "'k' is stored, LOCATION_REQUIRED: of k",
        "'at' is stored, FIELD_OPTIONAL",
        "'flow_document' is not stored, FIELD_OPTIONAL: of flow_document",
    )


@pytest.mark.parametrize(("kind", "stored"), [(1, True), (2, True), (3, True), (4, False), (5, False), (6, False)])
def test_documents_are_stored_where_a_connector_wants_them(kind: int, stored: bool) -> None:
    """Damage: a connector cannot load what it did not store; or each row is stored twice."""
    assert bool(select(SMALL, answer(SMALL, flow_document=kind)).document) is stored


def test_what_a_connector_forbids_or_does_not_mention_is_refused() -> None:
    """Damage: a column is lost without a word."""
    said = answer(SMALL, v=6)
    del said.constraints["at"]
    found: Selection = select(SMALL, said)
    assert {name: each.kind.name for name, each in found.verdicts.items()} == {
        "v": "INCOMPATIBLE",
        "k": "FIELD_OPTIONAL",
        "at": "FIELD_FORBIDDEN",
    }
    assert "does not mention it" in found.verdicts["at"].reason
    said.constraints["v"].type = 7
    assert select(SMALL, said).verdicts["v"].kind.name == "INCOMPATIBLE"


def test_constraints_may_come_as_a_list() -> None:
    """Damage: a newer connector's columns are all refused."""
    said = answer(SMALL)
    entries = [{"field": name, "constraint": each} for name, each in said.constraints.items()]
    listed = Response(validated={"bindings": [{"resource_path": ["Orders"], "projection_constraints": entries}]})
    assert select(SMALL, listed.validated.bindings[0]) == select(SMALL, said)


def test_two_columns_under_one_name_are_refused() -> None:
    """Damage: one column overwrites another one at the endpoint."""
    said = answer(SMALL)
    said.constraints["v"].folded_field = said.constraints["at"].folded_field = "x"
    found = select(SMALL, said)
    assert found.verdicts["at"].reason == "it would be stored as 'x', like column 'v': rename one of them"


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda said: said.ClearField("resource_path"), ProtocolViolation, "no path"),
        (lambda said: setattr(said, "delta_updates", True), DefinitionError, "only takes changes"),
        (lambda said: setattr(said.constraints["text"], "type", 1), DefinitionError, "needs a column 'text'"),
        (lambda said: setattr(said.constraints["v"], "type", 0), ProtocolViolation, "no constraint"),
        (lambda said: setattr(said.constraints["v"], "type", 99), ProtocolViolation, "no constraint"),
    ],
)
def test_other_answers_are_refused_by_name(change: Any, error: type[Exception], text: str) -> None:
    """Damage: rows go to a connector that cannot keep them."""
    said = answer(SMALL)
    change(said)
    with pytest.raises(error, match=text):
        select(SMALL, said)


def test_a_column_without_a_name_is_refused() -> None:
    """Damage: a connector refuses the task in words that name nothing of it."""
    with pytest.raises(DefinitionError, match="the name of a column is empty"):
        collection_spec(Binding("c", "t", ("",), Schema((Column("", "int"),))))


# --- configurations ---------------------------------------------------------------------------------------------------
def test_a_resource_is_configured_where_its_connector_says() -> None:
    """Damage: a table gets the name of another option."""
    schema = {
        "properties": {
            "place": {"properties": {"name": {"x-collection-name": True}, "other": {"type": "string"}}},
            "delta": {"type": "boolean", "x-delta-updates": True},
        }
    }
    pushed = Binding("c", "t", (), SMALL.schema, delta=True, diffs=True)
    assert resource_config(schema, {"place": {"other": "x"}}, SMALL) == {"place": {"other": "x", "name": "Orders"}}
    assert resource_config(schema, {}, pushed) == {"place": {"name": "t"}, "delta": True}
    with pytest.raises(ConfigError, match="x-collection-name"):
        resource_config({"properties": {"table": {"type": "string"}}}, {}, SMALL)


def test_deleted_rows_are_deleted_unless_the_user_says_otherwise() -> None:
    """Damage: rows that are gone from the view stay at the endpoint."""
    schema = {"properties": {"hardDelete": {"type": "boolean"}}}
    assert endpoint_config(schema, {}) == {"hardDelete": True}
    assert endpoint_config(schema, {"hardDelete": False}) == {"hardDelete": False}
    assert endpoint_config({}, {"a": 1}) == {"a": 1}


# --- specifications of other runtimes ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("types", "string", "kind"),
    [
        (["boolean", "null"], {}, "boolean"),
        (["integer"], {}, "bigint"),
        (["number"], {}, "double"),
        (["number", "string"], {"format": "number"}, "double"),
        (["string"], {"format": "integer"}, "decimal(38,0)"),
        (["string"], {"format": "number"}, "string"),
        (["string"], {"format": "date"}, "date"),
        (["string"], {"format": "date-time"}, "timestamp"),
        (["string"], {"format": "uuid"}, "string"),
        (["string"], {"content_encoding": "base64"}, "binary"),
        (["string"], {}, "string"),
        (["object"], {}, None),
        (["array", "null"], {}, None),
        (["integer", "string"], {}, None),
        ([], {}, None),
    ],
)
def test_fields_of_other_runtimes_get_a_column_that_holds_them(types: list[str], string: Any, kind: str | None) -> None:
    """Damage: a value of a Flow collection does not fit its column, or loses digits."""
    projection = Request(
        validate={"bindings": [{"collection": {"projections": [{"inference": {"types": types, "string": string}}]}}]}
    ).validate.bindings[0]
    assert column_type("f", {}, projection.collection.projections[0].inference) == kind


def test_a_type_of_ours_that_is_none_is_refused() -> None:
    """Damage: a damaged specification makes a table of another type."""
    empty = collection_spec(SMALL).projections[0].inference
    with pytest.raises(DefinitionError, match="column 'f'"):
        column_type("f", {"x-strandline-type": "map<int,int>"}, empty)
    with pytest.raises(DefinitionError, match="no text"):
        column_type("f", {"x-strandline-type": 1}, empty)


def test_a_field_without_a_projection_is_a_violation() -> None:
    """Damage: a driver stores a column that no value is ever in."""
    spec = spec_of(TASK)
    spec.bindings[0].field_selection.values.append("zzz")
    with pytest.raises(ProtocolViolation, match="no projection 'zzz'"):
        task_of(spec)
    del spec.bindings[0].field_selection.values[-1]
    spec.bindings[0].collection.write_schema_json = b"{"
    with pytest.raises(ProtocolViolation, match="is not JSON"):
        task_of(spec)
