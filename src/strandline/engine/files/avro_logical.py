"""Avro's logical types: what values of plain types stand for, by fastavro, and decimals with all their digits.

fastavro rounds a decimal that has more digits than the precision of its schema, to which no writer is bound.  Avro's
own library for Java gives the number as it was written, and so does this; whether a column holds it is for the column
to say.  What reads Avro by fastavro imports this module first.

Source: the Avro specification, "decimal"; https://fastavro.readthedocs.io/en/latest/logical_types.html (custom types).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from fastavro.read import LOGICAL_READERS


def decimal(data: bytes, schema: Any, _: Any = None) -> Decimal:
    """Return the number that the bytes of a decimal hold.

    >>> decimal(bytes([0x30, 0x39]), {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1})
    Decimal('1234.5')
    """
    digits = Decimal(int.from_bytes(data, "big", signed=True)).as_tuple()
    return Decimal((digits.sign, digits.digits, -schema.get("scale", 0)))


def meant(value: Any, schema: Any) -> Any:
    """Return what a value of this type stands for: the value itself, if its type is no logical one.

    >>> meant(1, {"type": "int", "logicalType": "date"}), meant(1, {"type": "int"})
    (datetime.date(1970, 1, 2), 1)
    """
    read = LOGICAL_READERS.get(f"{schema['type']}-{schema.get('logicalType')}")
    return value if read is None else read(value, schema, None)


LOGICAL_READERS["bytes-decimal"] = LOGICAL_READERS["fixed-decimal"] = decimal
