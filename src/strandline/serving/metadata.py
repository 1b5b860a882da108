"""Metadata, as Flight SQL describes it to tools: tables, their types, and what this server can do.

Collections have no catalog and no schema; introspection relations are in the schema ``strandline``.  A pattern is one
of SQL's LIKE.

``SqlInfo`` says what the server is and can do, by the numbers that Flight SQL gives to such questions.  Everything that
a JDBC driver asks for is here: it takes a question without an answer for an error of its own.  Limits are 0 where there
is none, or none is known.  ``XdbcTypeInfo`` says which types columns can have, as tools ask before they make a table.

Source: https://arrow.apache.org/docs/format/FlightSql.html, and the Java API of java.sql.DatabaseMetaData and
java.sql.Types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import pyarrow as pa

from strandline.algebra.arrow_types import arrow_schema
from strandline.algebra.schema import Schema
from strandline.controller.introspection.naming import SCHEMA
from strandline.controller.introspection.relations import RELATIONS
from strandline.serving.messages import Message, kind_of

_LIMITS: Final = range(541, 562)
_SERIALIZABLE: Final = 4

FACTS: Final[dict[int, Any]] = {
    0: "Strandline",  # the server's name
    1: version("strandline"),
    2: pa.__version__,
    3: False,  # it is not read-only
    4: True,  # it takes SQL
    5: False,  # and no Substrait
    9: False,  # a query is cancelled by ending its call
    10: True,  # rows come in bulk
    11: True,  # also in a transaction
    500: False,  # there are no catalogs to create
    501: False,  # and no schemas
    502: True,  # there are tables
    504: "`",  # what quotes a name
    506: True,  # every table can be read
    508: [],  # further words that are reserved
    509: [],  # functions: those of Spark, too many to list
    510: [],
    511: [],
    512: [],
    513: "\\",  # what escapes a character of a pattern
    514: "",  # a name without quotes has no other characters
    515: True,  # columns may have aliases
    516: True,  # NULL + 1 is NULL
    517: {},  # there is no CONVERT
    518: True,  # tables may have aliases
    519: False,  # which need not differ from their names
    520: True,  # ORDER BY takes expressions
    521: True,  # and columns that are not shown
    523: True,  # LIKE … ESCAPE
    524: False,  # every column may be NULL
    527: False,  # there are no constraints
    529: "schema",
    530: "procedure",
    531: "catalog",
    532: False,
    536: False,  # there is no SELECT … FOR UPDATE
    537: False,  # and no procedure
    539: True,  # subqueries may be correlated
    **dict.fromkeys(_LIMITS, 0),
    556: False,
    562: _SERIALIZABLE,
    563: True,  # there are transactions
    565: False,  # a definition commits none
    566: False,  # and is refused in one
    572: True,  # several rows of parameters at once
    573: False,  # no savepoints
    574: False,  # parameters are question marks
    575: False,
    576: False,
}
"""Texts, booleans, whole numbers, lists of texts and (empty) maps."""

CHOICES: Final[dict[int, int]] = {
    8: 1,  # transactions, without savepoints
    100: 0,
    101: 600_000,  # milliseconds that a transaction may rest
    503: 1,  # names are compared without case
    505: 1,  # also those in quotes
    507: 1,  # NULL is the least
    522: 0b11,  # GROUP BY what is not shown, and with further columns
    525: 0b11,  # core grammar
    526: 0b1,  # the entry level of SQL-92
    528: 0b110,  # full outer joins
    533: 0,
    534: 0,
    535: 0,
    538: 0b111,  # subqueries in comparisons, EXISTS and IN
    540: 0b11,  # UNION, UNION ALL
    564: 1 << _SERIALIZABLE,
    567: 0b10,  # a result is read forward
    568: 0,
    569: 0,
    570: 0,
    571: 0,
}
"""Choices, and sets of them."""


_SHAPE: Final = pa.schema(
    [
        pa.field("type_name", pa.string(), nullable=False),
        pa.field("data_type", pa.int32(), nullable=False),
        ("column_size", pa.int32()),
        ("literal_prefix", pa.string()),
        ("literal_suffix", pa.string()),
        ("create_params", pa.list_(pa.field("item", pa.string(), nullable=False))),
        pa.field("nullable", pa.int32(), nullable=False),
        pa.field("case_sensitive", pa.bool_(), nullable=False),
        pa.field("searchable", pa.int32(), nullable=False),
        ("unsigned_attribute", pa.bool_()),
        pa.field("fixed_prec_scale", pa.bool_(), nullable=False),
        ("auto_increment", pa.bool_()),
        ("local_type_name", pa.string()),
        ("minimum_scale", pa.int32()),
        ("maximum_scale", pa.int32()),
        pa.field("sql_data_type", pa.int32(), nullable=False),
        ("datetime_subcode", pa.int32()),
        ("num_prec_radix", pa.int32()),
        ("interval_precision", pa.int32()),
    ]
)
_DATETIME: Final = 9
_SUBCODES: Final = {91: 1, 93: 3}


@dataclass(frozen=True, slots=True)
class _Type:
    """A type: its name, its number, how many digits or characters it has (None: no bound), and what a literal is in.

    ``radix``: of the digits of a number; None: it is none.
    """

    name: str
    number: int
    size: int | None = None
    prefix: str | None = None
    radix: int | None = None
    scale: int = 0


_TYPES: Final = (
    _Type("BOOLEAN", -7, 1),
    _Type("TINYINT", -6, 3, radix=10),
    _Type("SMALLINT", 5, 5, radix=10),
    _Type("INT", 4, 10, radix=10),
    _Type("BIGINT", -5, 19, radix=10),
    _Type("FLOAT", 7, 24, radix=2),
    _Type("DOUBLE", 8, 53, radix=2),
    _Type("DECIMAL", 3, 38, radix=10, scale=38),
    _Type("STRING", 12, prefix="'"),
    _Type("BINARY", -3, prefix="X'"),
    _Type("DATE", 91, 10, "DATE '"),
    _Type("TIMESTAMP", 93, 26, "TIMESTAMP '", scale=6),
    _Type("TIMESTAMP_NTZ", 93, 26, "TIMESTAMP_NTZ '", scale=6),
)


def type_info(number: int | None) -> pa.Table:
    """Return what is known of the types with this number (of java.sql.Types); None: of all of them.

    >>> type_info(93)["type_name"].to_pylist()
    ['TIMESTAMP', 'TIMESTAMP_NTZ']
    """
    found = [each for each in _TYPES if number in (None, each.number)]
    rows = [_row(each) for each in sorted(found, key=lambda each: each.number)]
    return pa.Table.from_pylist(rows, schema=_SHAPE)


def _row(kind: _Type) -> dict[str, object]:
    subcode = _SUBCODES.get(kind.number)
    return {
        "type_name": kind.name,
        "data_type": kind.number,
        "column_size": kind.size,
        "literal_prefix": kind.prefix,
        "literal_suffix": None if kind.prefix is None else "'",
        "create_params": ["precision", "scale"] if kind.name == "DECIMAL" else [],
        "nullable": 1,  # every column may be NULL
        "case_sensitive": kind.name == "STRING",
        "searchable": 3 if kind.name == "STRING" else 2,  # 2: in comparisons, 3: also with LIKE
        "unsigned_attribute": None if kind.radix is None else False,
        "fixed_prec_scale": False,
        "auto_increment": False,
        "local_type_name": kind.name,
        "minimum_scale": None if kind.radix is None and not kind.scale else 0,
        "maximum_scale": None if kind.radix is None and not kind.scale else kind.scale,
        "sql_data_type": kind.number if subcode is None else _DATETIME,
        "datetime_subcode": subcode,
        "num_prec_radix": kind.radix,
        "interval_precision": None,
    }


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
