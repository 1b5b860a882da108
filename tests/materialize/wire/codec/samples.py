"""A sample of every message, with every field set, and of messages that are nearly empty."""

from __future__ import annotations

from typing import Any

from strandline.materialize.wire.codec import Request, Response

LABELS = {"labels": [{"name": "app", "value": "x"}]}
JOURNAL = {
    "name": "a/b",
    "replication": 1,
    "labels": LABELS,
    "fragment": {
        "length": 1 << 34,
        "compression_codec": "GZIP_OFFLOAD_DECOMPRESSION",
        "stores": ["s3://b/"],
        "refresh_interval": {"seconds": 300},
        "retention": {"seconds": 1, "nanos": 500_000_000},
        "flush_interval": {"nanos": 1},
        "path_postfix_template": "p",
    },
    "flags": 4,
    "max_append_rate": 7,
}
SHARD = {
    "id": "s/1",
    "recovery_log_prefix": "recovery",
    "hint_prefix": "/hints",
    "hint_backups": 2,
    "max_txn_duration": {"seconds": 300},
    "min_txn_duration": {"seconds": -1, "nanos": -5_000},
    "disable": True,
    "hot_standbys": 1,
    "labels": LABELS,
    "disable_wait_for_ack": True,
    "ring_buffer_size": 8192,
    "read_channel_size": 4096,
}
PROJECTION = {
    "ptr": "/a~1b",
    "field": "a/b",
    "explicit": True,
    "is_partition_key": True,
    "is_primary_key": True,
    "inference": {
        "types": ["integer", "string"],
        "string": {"content_type": "t", "format": "integer", "max_length": 9, "content_encoding": "base64"},
        "title": "A",
        "description": "d",
        "default_json": b"null",
        "secret": True,
        "exists": "MUST",
        "numeric": {"has_minimum": True, "minimum": -0.5, "has_maximum": True, "maximum": float("inf")},
    },
}
COLLECTION = {
    "name": "c",
    "key": ["/a~1b"],
    "uuid_ptr": "/_meta/uuid",
    "partition_fields": ["a/b"],
    "projections": [PROJECTION],
    "ack_template_json": b'{"_meta":{"ack":true}}',
    "write_schema_json": b'{"type":"object"}',
    "partition_template": JOURNAL,
    "read_schema_json": b"{}",
}
BINDING = {
    "resource_config_json": b'{"table":"t"}',
    "resource_path": ["main", "t"],
    "collection": COLLECTION,
    "field_selection": {
        "keys": ["a/b"],
        "values": ["v"],
        "document": "flow_document",
        "field_config_json_map": {"v": b'{"x":1}', "a/b": b"null"},
    },
    "delta_updates": True,
    "partition_selector": {"include": LABELS, "exclude": {}},
    "journal_read_suffix": "materialize/m/t",
    "priority": 3,
    "not_before": {"seconds": 1_704_067_200},
    "not_after": {"seconds": -62_135_596_800, "nanos": 1_000},
    "backfill": 2,
    "state_key": "t.v2",
}
SPEC = {
    "name": "m",
    "connector_type": "LOCAL",
    "config_json": b'{"path":"x","n":12345678901234567890123}',
    "bindings": [BINDING],
    "shard_template": SHARD,
    "recovery_log_template": JOURNAL,
    "inactive_bindings": [{"state_key": "old.v1"}],
}
CHECKPOINT = {
    "sources": {
        "b;s": {
            "read_through": 2**63 - 1,
            "producers": [{"id": b"\x01\xff", "state": {"last_ack": 2**64 - 1, "begin": -1}}],
        },
        "a;s": {},
    },
    "ack_intents": {"j": b"\x00intent"},
}
STATE = {"updated_json": b'{"a":null}', "merge_patch": True}
CONSTRAINT = {"type": "INCOMPATIBLE", "reason": "it is an int", "folded_field": "V"}
ROW = {"binding": 4_294_967_295, "key_json": b'[1,"a"]', "key_packed": b"\x15\x01\x02a\x00"}

SAMPLES: list[tuple[str, Any, dict[str, Any]]] = [
    ("spec", Request, {"spec": {"connector_type": "IMAGE", "config_json": b"{}"}}),
    (
        "validate",
        Request,
        {
            "validate": {
                "name": "m",
                "connector_type": "DEKAF",
                "config_json": b"{}",
                "bindings": [
                    {
                        "resource_config_json": b"{}",
                        "collection": COLLECTION,
                        "field_config_json_map": {"f": b"{}"},
                        "backfill": 1,
                        "group_by": ["a/b"],
                    }
                ],
                "last_materialization": SPEC,
                "last_version": "v0",
            }
        },
    ),
    (
        "apply",
        Request,
        {
            "apply": {
                "materialization": SPEC,
                "version": "v1",
                "last_materialization": {"name": "m"},
                "last_version": "v0",
                "state_json": b"{}",
            }
        },
    ),
    (
        "open",
        Request,
        {
            "open": {
                "materialization": SPEC,
                "version": "v1",
                "range": {"key_begin": 1, "key_end": 4_294_967_295, "r_clock_begin": 2, "r_clock_end": 3},
                "state_json": b'{"s":[1.0]}',
            }
        },
    ),
    ("load", Request, {"load": ROW}),
    ("flush", Request, {"flush": {"state_patches_json": b"[{}]"}}),
    ("flush, empty", Request, {"flush": {}}),
    (
        "store",
        Request,
        {
            "store": {
                **ROW,
                "values_json": b"[null,1.5]",
                "values_packed": b"\x00\x21\xbf\xf8\x00\x00\x00\x00\x00\x00",
                "doc_json": b'{"a":"\\u0000"}',
                "exists": True,
                "delete": True,
            }
        },
    ),
    ("store, the first binding", Request, {"store": {"key_json": b"[null]", "key_packed": b"\x00", "doc_json": b"{}"}}),
    ("start commit", Request, {"start_commit": {"runtime_checkpoint": CHECKPOINT, "state_patches_json": b"[]"}}),
    ("start commit, from zero", Request, {"start_commit": {"runtime_checkpoint": {}}}),
    ("acknowledge", Request, {"acknowledge": {"state_patches_json": b"[{}]"}}),
    ("acknowledge, empty", Request, {"acknowledge": {}}),
    (
        "spec'",
        Response,
        {
            "spec": {
                "protocol": 3_032_023,
                "config_schema_json": b'{"type":"object"}',
                "resource_config_schema_json": b'{"x-collection-name":true}',
                "documentation_url": "https://example.org/é",
            }
        },
    ),
    (
        "validated",
        Response,
        {
            "validated": {
                "bindings": [
                    {
                        "constraints": {"v": CONSTRAINT, "k": {"type": "FIELD_REQUIRED"}},
                        "resource_path": ["t"],
                        "delta_updates": True,
                        "case_insensitive_fields": True,
                        "projection_constraints": [{"field": "v", "constraint": CONSTRAINT}],
                    }
                ]
            }
        },
    ),
    ("applied", Response, {"applied": {"action_description": "created", "state": STATE}}),
    ("opened", Response, {"opened": {"runtime_checkpoint": CHECKPOINT, "disable_load_optimization": True}}),
    ("opened, the log has the checkpoint", Response, {"opened": {}}),
    ("opened, from zero", Response, {"opened": {"runtime_checkpoint": {}}}),
    ("loaded", Response, {"loaded": {"binding": 1, "doc_json": b'{"k":1}'}}),
    ("loaded, a document that is null", Response, {"loaded": {"doc_json": b"null"}}),
    ("flushed", Response, {"flushed": {"state": STATE}}),
    ("flushed, a state that is there and says nothing", Response, {"flushed": {"state": {}}}),
    ("started commit", Response, {"started_commit": {"state": {"updated_json": b"{}"}}}),
    ("acknowledged", Response, {"acknowledged": {"state": STATE}}),
    ("acknowledged, empty", Response, {"acknowledged": {}}),
]
