"""Which values fit a schema."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from strandline.materialize.reduce.annotations import valid
from strandline.materialize.reduce.schemas import Part, References

NAN, INFINITE = float("nan"), float("inf")
CASES: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "integer"}, [1, 2**70, 1.0, Decimal("2.00")], [True, 1.5, "1", None, NAN, INFINITE]),
    ({"type": ["number", "null"]}, [1, 1.5, Decimal("0.1"), None], [False, "", [], {}]),
    ({"type": "boolean"}, [True, False], [0, 1, None]),
    ({"type": "string"}, ["", b""], [None, 1]),
    ({"const": {"a": [1]}}, [{"a": [1.0]}], [{"a": [True]}, {}, None]),
    ({"enum": [1, None]}, [1, None, Decimal("1.0")], [2, False]),
    ({"minimum": 1, "exclusiveMaximum": 3}, [1, 2.5, "0"], [0.5, 3, NAN]),
    ({"maximum": 1, "exclusiveMinimum": 0}, [0.5, 1], [0, 2]),
    ({"multipleOf": 0.1}, [0.3, Decimal("0.5"), 2], [0.25, INFINITE, NAN]),
    ({"minLength": 1, "maxLength": 2}, ["a", "ab", 1], ["", "abc"]),
    ({"pattern": "^a"}, ["ab", 1], ["ba"]),
    ({"required": ["a"]}, [{"a": None}, 1], [{}, {"b": 1}]),
    ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 1}]),
    ({"properties": {"a": {"type": "null"}}}, [{}, {"a": None}, {"b": 1}], [{"a": 1}]),
    ({"patternProperties": {"^a": False}, "additionalProperties": {"const": 1}}, [{"b": 1}], [{"a": 1}, {"b": 2}]),
    ({"propertyNames": {"maxLength": 1}}, [{"a": 1}], [{"ab": 1}]),
    ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 1}, {"b": 1}], [{"a": 1}]),
    ({"items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [""], [1, 2, 3]]),
    ({"prefixItems": [{"const": 1}], "items": False}, [[], [1]], [[2], [1, 1]]),
    ({"items": [{"const": 1}], "additionalItems": {"const": 2}}, [[1, 2]], [[2], [1, 1]]),
    ({"uniqueItems": True}, [[1, True]], [[1, 1.0], [{}, {}]]),
    ({"contains": {"const": 1}, "maxContains": 1}, [[1, 2]], [[], [2], [1, 1]]),
    ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1], [0, 3]),
    ({"anyOf": [{"const": 1}, {"const": 2}]}, [1, 2], [3]),
    ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, [1], [0, 2]),
    ({"not": {"const": 1}}, [2], [1]),
    ({"if": {"minimum": 10}, "then": {"multipleOf": 10}, "else": {"multipleOf": 3}}, [20, 3], [25, 4]),
    ({"$defs": {"one": {"const": 1}}, "$ref": "#/$defs/one"}, [1], [2]),
    ({"format": "date", "title": ""}, ["no date"], []),
]


@pytest.mark.parametrize(("schema", "fitting", "others"), CASES, ids=[" ".join(schema) for schema, _, _ in CASES])
def test_what_fits(schema: dict[str, Any], fitting: list[Any], others: list[Any]) -> None:
    """Damage: a document takes the wrong branch, and is added where it should replace."""
    part, references = Part("", schema), References(schema)
    assert [each for each in fitting if not valid(part, each, references)] == []
    assert [each for each in others if valid(part, each, references)] == []
