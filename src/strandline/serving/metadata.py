"""Metadata: what there is, as Flight SQL tells it to tools: tables, their types, and what this server can do.

Collections have no catalog and no schema; introspection relations are in the schema ``strandline``.  A pattern is one
of SQL's LIKE.

Source: https://arrow.apache.org/docs/format/FlightSql.html.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from strandline.algebra.arrow_types import arrow_schema
from strandline.algebra.schema import Schema
from strandline.controller.introspection.naming import SCHEMA
from strandline.controller.introspection.relations import RELATIONS
from strandline.serving.facts import CHOICES, FACTS
from strandline.serving.messages import Message, kind_of
from strandline.serving.sql_types import type_info

TABLE_TYPES: Final = {"table": "TABLE", "view": "VIEW", "source": "SOURCE TABLE", "source_table": "SOURCE TABLE"}
"""What a kind of collection is called; an introspection relation is a SYSTEM TABLE."""
SYSTEM: Final = "SYSTEM TABLE"

_NAMES: Final = pa.schema([("catalog_name", pa.string()), ("db_schema_name", pa.string())])
_TABLES: Final = pa.schema([*_NAMES, pa.field("table_name", pa.string(), nullable=False)]).append(
    pa.field("table_type", pa.string(), nullable=False)
)
_KEYS: Final = pa.schema(
    [
        *_NAMES,
        ("table_name", pa.string()),
        ("column_name", pa.string()),
        ("key_name", pa.string()),
        ("key_sequence", pa.int32()),
    ]
)
_SIDE: Final = ("catalog_name", "db_schema_name", "table_name", "column_name")
_REFERENCES: Final = pa.schema(
    [
        *((f"pk_{name}", pa.string()) for name in _SIDE),
        *((f"fk_{name}", pa.string()) for name in _SIDE),
        ("key_sequence", pa.int32()),
        ("fk_key_name", pa.string()),
        ("pk_key_name", pa.string()),
        ("update_rule", pa.uint8()),
        ("delete_rule", pa.uint8()),
    ]
)
_NOTHING: Final[Mapping[str, pa.Schema]] = {
    "CommandGetPrimaryKeys": _KEYS,
    "CommandGetExportedKeys": _REFERENCES,
    "CommandGetImportedKeys": _REFERENCES,
    "CommandGetCrossReference": _REFERENCES,
}
"""What tools ask for and no collection has: a collection is a multiset of rows, and no key of it is declared."""
_PLACES: Final[Mapping[type, int]] = {str: 0, bool: 1, int: 2, list: 4, dict: 5}
"""Where a value of a kind stands in the union of all kinds; a choice stands at `_CHOICE`."""
_CHOICE: Final = 3


@dataclass(frozen=True, slots=True)
class _Table:
    """A table as tools see it; ``schema``: in which schema of the database, None: in none."""

    db_schema: str | None
    name: str
    type: str
    columns: Schema


def told(command: Message, collections: Callable[[], Mapping[str, tuple[str, Schema]]]) -> pa.Table | None:
    """Return the answer to a question about what there is; None: ``command`` asks for something else."""
    match kind_of(command):
        case "CommandGetTables":
            found = [each for each in _tables(collections()) if _wanted(command, each)]
            return _listed(found, with_schema=command.include_schema)
        case "CommandGetDbSchemas":
            fits = _like(command.db_schema_filter_pattern)
            return pa.Table.from_pylist(
                [{"catalog_name": None, "db_schema_name": name} for name in ("", SCHEMA) if fits(name)],
                schema=pa.schema([_NAMES.field(0), pa.field("db_schema_name", pa.string(), nullable=False)]),
            )
        case "CommandGetCatalogs":
            return pa.schema([pa.field("catalog_name", pa.string(), nullable=False)]).empty_table()
        case "CommandGetTableTypes":
            types = sorted({*TABLE_TYPES.values(), SYSTEM})
            return pa.table([types], schema=pa.schema([pa.field("table_type", pa.string(), nullable=False)]))
        case "CommandGetXdbcTypeInfo":
            return type_info(command.data_type or None)
        case "CommandGetSqlInfo":
            return _server(set(command.info))
        case kind if kind in _NOTHING:
            return _NOTHING[kind].empty_table()
    return None


def _tables(collections: Mapping[str, tuple[str, Schema]]) -> Iterator[_Table]:
    for name, (kind, schema) in sorted(collections.items()):
        yield _Table(None, name, TABLE_TYPES.get(kind, kind.upper()), schema)
    for name, relation in sorted(RELATIONS.items()):
        yield _Table(SCHEMA, name, SYSTEM, relation.schema)


def _wanted(command: Message, table: _Table) -> bool:
    types = list(command.table_types)
    return (
        not command.catalog
        and _like(command.db_schema_filter_pattern)(table.db_schema or "")
        and _like(command.table_name_filter_pattern)(table.name)
        and (not types or table.type in types)
    )


def _listed(found: list[_Table], *, with_schema: bool) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {
            "catalog_name": None,
            "db_schema_name": each.db_schema,
            "table_name": each.name,
            "table_type": each.type,
            **({"table_schema": arrow_schema(each.columns).serialize().to_pybytes()} if with_schema else {}),
        }
        for each in found
    ]
    shape = _TABLES
    if with_schema:
        shape = shape.append(pa.field("table_schema", pa.binary(), nullable=False))
    return pa.Table.from_pylist(rows, schema=shape)


def _like(pattern: str) -> Callable[[str], bool]:
    """Return whether a name fits a pattern of LIKE, without case; empty: every name does.

    >>> [name for name in ("orders", "orders_2", "Order") if _like("order_")(name)]
    ['orders']
    """
    if not pattern:
        return lambda _: True
    expression = re.sub(
        r"\\(.)|(%)|(_)|(.)",
        lambda m: ".*" if m[2] else "." if m[3] else re.escape(m[1] or m[4]),
        pattern,
        flags=re.DOTALL,
    )
    fits = re.compile(expression, re.IGNORECASE | re.DOTALL)
    return lambda name: fits.fullmatch(name) is not None


def _server(asked: set[int]) -> pa.Table:
    facts = {number: value for number, value in {**FACTS, **CHOICES}.items() if not asked or number in asked}
    kinds = (
        ("string_value", pa.string()),
        ("bool_value", pa.bool_()),
        ("bigint_value", pa.int64()),
        ("int32_bitmask", pa.int32()),
        ("string_list", pa.list_(pa.string())),
        ("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
    )
    children: list[list[Any]] = [[] for _ in kinds]
    types, offsets = [], []
    for number, value in facts.items():
        place = _CHOICE if number in CHOICES else _PLACES[type(value)]
        types.append(place)
        offsets.append(len(children[place]))
        children[place].append(value)
    values = pa.UnionArray.from_dense(
        pa.array(types, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(each, kind) for each, (_, kind) in zip(children, kinds, strict=True)],
        [name for name, _ in kinds],
    )
    names = pa.array(list(facts), pa.uint32())
    shape = pa.schema(
        [pa.field("info_name", pa.uint32(), nullable=False), pa.field("value", values.type, nullable=False)]
    )
    return pa.Table.from_arrays([names, values], schema=shape)
