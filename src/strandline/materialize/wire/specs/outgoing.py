"""Our specification of a task in Flow's words, for a connector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import xxhash

from strandline.materialize.protocol.task import Binding
from strandline.materialize.protocol.task import MaterializationSpec as Task
from strandline.materialize.wire.codec.messages import LOCAL, MaterializationSpec, Message
from strandline.materialize.wire.specs import templates
from strandline.materialize.wire.specs.collections import collection_spec, key_columns
from strandline.materialize.wire.specs.names import part, token
from strandline.materialize.wire.specs.selection import Selection
from strandline.materialize.wire.values import compact


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
        shard_template=templates.shard(task.name),
        recovery_log_template=templates.journal("recovery", task.name),
    )


def version(spec: Message) -> str:
    """Return the version of a specification: a text that is another one where anything but the configuration is."""
    shown = MaterializationSpec()
    shown.CopyFrom(spec)
    shown.config_json = b""
    return xxhash.xxh3_128_hexdigest(shown.SerializeToString(deterministic=True))
