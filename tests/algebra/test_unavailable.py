"""Debezium's placeholder differs from values, in each form that Debezium gives it."""

from __future__ import annotations

import json
from base64 import b64encode
from decimal import Decimal
from uuid import UUID

import pytest

from strandline.algebra.unavailable import PLACEHOLDER, Sent, sent

P, BYTES = PLACEHOLDER, PLACEHOLDER.encode()
IN_BASE64, IN_HEX = b64encode(BYTES).decode(), BYTES.hex()
ID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
NOWHERE = "0101000020E6100000000000FC83D797C1000000FC83D797C1"
ONES = [bytes([each]) for each in BYTES]
IN_JSON = {
    "text": P,
    "bytes": IN_BASE64,
    "bytes in hex": IN_HEX,
    "texts": [P],
    "several bytes": [IN_BASE64],
    "UUIDs": [ID],
    "numbers": [*BYTES],
    "fractions": [float(each) for each in BYTES],
    "decimals": [b64encode(each).decode() for each in ONES],
    "decimals with their scale": [{"scale": 0, "value": b64encode(each).decode()} for each in ONES],
    "map": {P: P},
    "entries": [{"key": P, "value": P}],
    "pairs": [[P, P]],
    "map as text": json.dumps({P: P}, separators=(",", ":")),
    "geometry": {"wkb": b64encode(bytes.fromhex(NOWHERE)).decode(), "srid": 4326},
}
"""What a JSON converter writes."""
IN_AVRO = {
    "bytes": BYTES,
    "several bytes": [BYTES],
    "UUIDs": [UUID(ID)],
    "decimals": [Decimal(each).scaleb(-2) for each in BYTES],
    "whole decimals": [Decimal(each) for each in BYTES],
    "decimals with their scale": [{"scale": 0, "value": each} for each in ONES],
    "geometry": {"wkb": bytes.fromhex(NOWHERE), "srid": 4326},
}
VALUES = [
    None, "", "a", P + " ", "see " + P, P[1:], f'"{P}"', 95, 95.0, True, b"", BYTES + b"a", [], {}, [None], [P, "a"],
    ["a", P], [[]], [*BYTES][1:], [*BYTES, 1], [*BYTES][::-1], [0] * 28, [None] * 28, [True] * 27, [True] * 29,
    [*[True] * 27, False], {"a": 1}, {P: "a"}, {"a": P}, {"wkb": "AQEAAA==", "srid": 4326}, [Decimal("NaN")] * 28,
]  # fmt: skip


@pytest.mark.parametrize("form", [*IN_JSON.values(), *IN_AVRO.values()], ids=repr)
def test_each_form_is_a_placeholder(form):
    """Damage: the placeholder is a value of the collection."""
    assert sent(form) is Sent.NO


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_no_placeholder(value):
    """Damage: a value of upstream is replaced by an older one."""
    assert sent(value) is Sent.YES


def test_what_may_be_either_is_left_open():
    """Damage: a list of booleans that upstream wrote is taken for none, or the placeholder for a list."""
    assert sent([True] * 28) is Sent.UNKNOWN
