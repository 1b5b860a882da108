"""Every field has the tag that the protocol gives it, and the file is read as Protobuf's own compiler reads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from strandline.materialize.wire.codec import FILE, Request, Response
from strandline.protofile import parse

COMPILED = Path(__file__).parents[3] / "cases" / "flow.descriptor"
#: The protocol as it is written down for people: a message, its fields' tags and names.
TAGS = """
Request: 1 spec 2 validate 3 apply 4 open 5 load 6 flush 7 store 8 start_commit 9 acknowledge
Request.Spec: 1 connector_type 2 config_json
Request.Validate: 1 name 2 connector_type 3 config_json 4 bindings 5 last_materialization 6 last_version
Request.Validate.Binding: 1 resource_config_json 2 collection 3 field_config_json_map 4 backfill 5 group_by
Request.Apply: 1 materialization 2 version 4 last_materialization 5 last_version 6 state_json
Request.Open: 1 materialization 2 version 3 range 4 state_json
Request.Load: 1 binding 2 key_json 3 key_packed
Request.Flush: 1 state_patches_json
Request.Store: 1 binding 2 key_json 3 key_packed 4 values_json 5 values_packed 6 doc_json 7 exists 8 delete
Request.StartCommit: 1 runtime_checkpoint 2 state_patches_json
Request.Acknowledge: 1 state_patches_json
Response: 1 spec 2 validated 3 applied 4 opened 5 loaded 6 flushed 7 started_commit 8 acknowledged
Response.Spec: 1 protocol 2 config_schema_json 3 resource_config_schema_json 4 documentation_url
Response.Validated: 1 bindings
Response.Validated.Binding: 1 constraints 2 resource_path 3 delta_updates 5 case_insensitive_fields
  6 projection_constraints
Response.Validated.ProjectionConstraint: 1 field 2 constraint
Response.Validated.Constraint: 2 type 3 reason 4 folded_field
Response.Applied: 1 action_description 2 state
Response.Opened: 1 runtime_checkpoint 2 disable_load_optimization
Response.Loaded: 1 binding 2 doc_json
Response.Flushed: 1 state
Response.StartedCommit: 1 state
Response.Acknowledged: 1 state
ConnectorState: 1 updated_json 2 merge_patch
RangeSpec: 2 key_begin 3 key_end 4 r_clock_begin 5 r_clock_end
MaterializationSpec: 1 name 2 connector_type 3 config_json 4 bindings 5 shard_template 6 recovery_log_template
  9 inactive_bindings
MaterializationSpec.Binding: 1 resource_config_json 2 resource_path 3 collection 4 field_selection 5 delta_updates
  7 partition_selector 8 journal_read_suffix 9 priority 10 not_before 11 not_after 12 backfill 13 state_key
FieldSelection: 1 keys 2 values 3 document 4 field_config_json_map
CollectionSpec: 1 name 3 key 4 uuid_ptr 5 partition_fields 6 projections 7 ack_template_json 8 write_schema_json
  9 partition_template 11 read_schema_json
Projection: 1 ptr 2 field 3 explicit 4 is_partition_key 5 is_primary_key 6 inference
Inference: 1 types 3 string 4 title 5 description 6 default_json 7 secret 8 exists 9 numeric
Inference.String: 3 content_type 4 format 6 max_length 7 content_encoding
Inference.Numeric: 1 has_minimum 2 minimum 3 has_maximum 4 maximum
Checkpoint: 1 sources 2 ack_intents
Checkpoint.Source: 1 read_through 2 producers
Checkpoint.ProducerEntry: 1 id 2 state
Checkpoint.ProducerState: 1 last_ack 2 begin
"""
SYMBOLS = {
    "Response.Validated.Constraint.Type": "0 INVALID 1 FIELD_REQUIRED 2 LOCATION_REQUIRED 3 LOCATION_RECOMMENDED "
    "4 FIELD_OPTIONAL 5 FIELD_FORBIDDEN 6 INCOMPATIBLE 7 UNSATISFIABLE",
    "MaterializationSpec.ConnectorType": "0 INVALID 8 IMAGE 9 LOCAL 10 DEKAF",
    "Inference.Exists": "0 INVALID 1 MUST 2 MAY 3 IMPLICIT 4 CANNOT",
}
POOL = Request.DESCRIPTOR.file.pool


@pytest.mark.parametrize(
    "line", re.sub(r"\n  ", " ", TAGS).strip().splitlines(), ids=lambda line: line.partition(":")[0]
)
def test_each_field_has_its_tag(line: str) -> None:
    """Damage: a connector reads one field as another one, or skips it."""
    name, _, fields = line.partition(": ")
    message = POOL.FindMessageTypeByName(f"{FILE.package}.{name}")
    assert " ".join(f"{field.number} {field.name}" for field in message.fields) == fields


@pytest.mark.parametrize("name", SYMBOLS)
def test_each_symbol_has_its_number(name: str) -> None:
    """Damage: a column that an endpoint forbids is stored."""
    enum = POOL.FindEnumTypeByName(f"{FILE.package}.{name}")
    assert " ".join(f"{value.number} {value.name}" for value in enum.values) == SYMBOLS[name]


def test_key_ranges_are_fixed_and_checkpoints_signed() -> None:
    """Damage: an unmodified connector refuses the range that it is opened with."""
    kinds = {field.name: field.type for field in POOL.FindMessageTypeByName(f"{FILE.package}.RangeSpec").fields}
    assert set(kinds.values()) == {Request.DESCRIPTOR.fields[0].TYPE_FIXED32}
    source = POOL.FindMessageTypeByName(f"{FILE.package}.Checkpoint.Source")
    assert source.fields_by_name["read_through"].type == Response.DESCRIPTOR.fields[0].TYPE_INT64


def test_the_file_is_read_as_its_compiler_reads_it() -> None:
    """Damage: a field of the file is not in the messages.  `protoc --descriptor_set_out` writes the compared file."""
    compiled = FileDescriptorSet.FromString(COMPILED.read_bytes())
    assert list(compiled.file) == [FILE]


@pytest.mark.parametrize(
    "body",
    [
        "message M { oneof x { int32 a = 1; } }",
        "message M { int32 a = 1 }",
        "message M { int32 a = 1;",
        "message M { Other a = 1; }",
        "enum E { A = x; }",
        "int32 a = 1;",
        "message M { int32 a = 1; } }",
        "message M { ; }",
    ],
)
def test_what_is_not_understood_of_a_file_is_refused(body: str) -> None:
    """Damage: a field is left out without a word."""
    with pytest.raises(ValueError):
        parse("x.proto", f'syntax = "proto3"; package p; {body}')
    with pytest.raises(ValueError):
        parse("x.proto", 'syntax = "proto2"; package p;')
