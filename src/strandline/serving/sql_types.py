"""SQL types: what columns can be, as tools ask for it before they make a table (``XdbcTypeInfo``).

Source: https://arrow.apache.org/docs/format/FlightSql.html, and the Java API of java.sql.Types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

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
