"""What a Delta table must be for this reader to read it right, and where its columns are in its files.

A feature of the protocol that is not known here is refused by name: a reader that ignores one reads wrong rows.

Source: the Delta transaction log protocol: "Table features", "Column mapping", "Partition value serialization".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from deltalake import Schema as DeltaSchema

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import Schema
from strandline.algebra.stored import located
from strandline.sources.readers.delta.log import Metadata, Protocol

FEATURES: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""The features of readers that are understood here."""
FEATURES_VERSION: Final = 3
"""From this version of readers on, a table names its features."""
_MODE: Final = "delta.columnMapping.mode"
_PHYSICAL: Final = "delta.columnMapping.physicalName"


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the declared columns are: for each, its name in files and partition values, and its type upstream.

    One that the table lacks has no name there.
    """

    physical: Mapping[str, str]
    kinds: Mapping[str, pa.DataType]
    mapped: bool
    """Whether names in files are others than the table's."""

    @property
    def whole(self) -> bool:
        """Whether the table has all of them."""
        return self.physical.keys() == self.kinds.keys()

    def without(self, names: Collection[str]) -> Columns:
        """Return the same, as if the table lacked some of them."""
        return replace(self, physical={name: own for name, own in self.physical.items() if name not in names})


def refusal(protocol: Protocol) -> str:
    """Say what of ``protocol`` is not understood; empty if nothing.

    >>> refusal(Protocol(3, ["timestampNtz", "catalogManaged"]))
    "its protocol has the feature 'catalogManaged', which this reader does not understand"
    """
    if protocol.min_reader_version > FEATURES_VERSION:
        return (
            f"its protocol needs a reader of version {protocol.min_reader_version}; this one is of {FEATURES_VERSION}"
        )
    unknown = sorted(set(protocol.reader_features or ()) - FEATURES)
    if unknown:
        s = "s" if len(unknown) > 1 else ""
        return f"its protocol has the feature{s} {', '.join(map(repr, unknown))}, which this reader does not understand"
    return ""


def physical_names(metadata: Metadata) -> dict[str, str]:
    """Return the name that each column has in files, by its name in the table."""
    fields: list[dict[str, Any]] = json.loads(metadata.schema_string)["fields"]
    mapped = metadata.configuration.get(_MODE, "none") != "none"
    return {each["name"]: each["metadata"].get(_PHYSICAL, each["name"]) if mapped else each["name"] for each in fields}


def columns_of(schema: Schema, metadata: Metadata, absent: Collection[str] = ()) -> Columns:
    """Return where the columns of ``schema`` are in a table of ``metadata``, which may lack those ``absent``.

    Raises `ValueError` saying why they cannot be read from it.
    """
    mode = metadata.configuration.get(_MODE, "none")
    if mode not in {"none", "name"}:
        raise ValueError(f"its columns are mapped by {mode}, which this reader does not understand")
    there = pa.schema(DeltaSchema.from_json(metadata.schema_string).to_arrow())
    known = {name.lower() for name in there.names}
    names = located(Schema(tuple(c for c in schema if c.name not in absent or c.name.lower() in known)), there)
    if mode == "name":
        for name, kind in types.columns(schema):
            if _has_struct(kind):
                raise ValueError(
                    f"column `{name}` has fields, and columns are mapped: it cannot be read by this reader"
                )
    physical = physical_names(metadata)
    return Columns(
        {name: physical[own] for name, own in names.items()},
        {name: there.field(names[name]).type if name in names else arrow(kind) for name, kind in types.columns(schema)},
        mapped=mode == "name",
    )


def _has_struct(kind: types.Type) -> bool:
    match kind:
        case types.Array(element):
            return _has_struct(element)
        case types.Struct():
            return True
        case _:
            return False


def constant(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a partition value as a value of its column: of the text that the log has, or of deltalake's value.

    >>> [constant(*given).as_py() for given in (("2024", pa.int32()), ("", pa.int32()), ("7.50", pa.decimal128(5, 2)))]
    [2024, None, Decimal('7.50')]
    """
    if value is None or value == "":
        return pa.scalar(None, kind)
    if not isinstance(value, str) or pa.types.is_string(kind):
        return pa.scalar(value, kind)
    text = pa.array([value], pa.string())
    if pa.types.is_timestamp(kind):
        zoned = value.endswith("Z") or value[10:].count("+") > 0
        read = text.cast(pa.timestamp("us", "UTC" if zoned else None))  # without a zone it is meant as UTC
        return read.cast(kind)[0]
    return text.cast(kind)[0]
