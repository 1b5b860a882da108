"""Which annotations are refused, and which one applies where."""

from __future__ import annotations

from typing import Any

import pytest
from tests.materialize.reduce.documents import annotated

from strandline.errors import DefinitionError
from strandline.materialize.reduce.locations import Annotated

MERGE = annotated("merge")


def below(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    """Return a schema that merges, with one property."""
    return {**MERGE, **more, "properties": {name: schema}}


REFUSED = {
    "no object": (below("n", {"reduce": "sum"}), r"^/properties/n/reduce: an annotation is an object"),
    "no strategy": ({"reduce": {}}, r"^/reduce/strategy: None is not a strategy; known are append, firstWriteWins"),
    "unknown strategy": (below("a/b", annotated("add")), r"^/properties/a~1b/reduce/strategy: 'add' is not a strategy"),
    "unknown word": (annotated("sum", keys=["/a"]), r"^/reduce/keys: unknown; known are strategy, key"),
    "no truth": (annotated("merge", associative="no"), r"^/reduce/associative: must be true or false, not 'no'"),
    "sum that deletes": (annotated("sum", delete=True), r"^/reduce/delete: sum does not delete"),
    "sum by key": (annotated("sum", key=["/a"]), r"^/reduce/key: sum takes no key"),
    "empty key": (annotated("merge", key=[]), r"^/reduce/key: must be a list of one or more"),
    "key without slash": (annotated("merge", key=["/a", "b"]), r"^/reduce/key/1: 'b' is not a JSON pointer"),
    "key of numbers": (annotated("merge", key=[0]), r"^/reduce/key/0: 0 is not a JSON pointer"),
    "sum of text": (below("n", annotated("sum") | {"type": "string"}), r"^/properties/n/reduce: sum is for .*string"),
    "sum of null": (annotated("sum") | {"type": ["integer", "null"]}, r"^/reduce: sum is for .*null is allowed"),
    "append to text": (annotated("append") | {"type": ["array", "string"]}, r"^/reduce: append is for array"),
    "merge of numbers": (annotated("merge") | {"allOf": [{"type": "number"}]}, r"^/reduce: merge is for array or obj"),
    "compared by key": (annotated("minimize", key=["/k"]) | {"type": ["object", "null"]}, r"minimize is for .*null is"),
    "type": (MERGE | {"type": "float"}, r"^/type: 'float' is not a type"),
    "two at once": ({"allOf": [annotated("sum"), annotated("append")]}, r"/allOf/0/reduce and /allOf/1/reduce both"),
    "dead": ({"properties": {"n": annotated("sum")}}, r"^/properties/n: the annotations here never apply: the root"),
    "dead below": (below("o", {"properties": {"n": annotated("sum")}}), r"/properties/n: .* /properties/o is lastWri"),
    "elsewhere": (below("n", {"$ref": "http://a/b"}), r"^/properties/n/\$ref: 'http://a/b' is outside"),
    "nowhere": (below("n", {"$ref": "#/$defs/n"}), r"^/properties/n/\$ref: there is nothing at"),
    "no anchor": (below("n", {"$ref": "#n"}), r"^/properties/n/\$ref: no schema has the anchor"),
    "circle": ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, r"refers to itself"),
    "circle of conditions": ({"not": {"$ref": "#"}}, r"^the root of the schema: refers to itself"),
    "not understood": (MERGE | {"if": {"dependentSchemas": {}}, "then": MERGE}, r"^/if/dependentSchemas: not underst"),
    "pattern": (MERGE | {"patternProperties": {"(": {}}}, r"^/patternProperties/\(: '\(' is not a regular expression"),
    "bound": (MERGE | {"if": {"minimum": "0"}}, r"^/if/minimum: must be a number, not '0'"),
    "names": (MERGE | {"if": {"required": [["a"]]}}, r"^/if/required: must be a list of names"),
    "names of names": (
        MERGE | {"if": {"dependentRequired": {"a": 1}}},
        r"^/if/dependentRequired: must be an object of",
    ),
    "size": (MERGE | {"if": {"items": {"minLength": -1}}}, r"^/if/items/minLength: must be a number of 0 or more"),
    "schema": (MERGE | {"properties": {"n": 1}}, r"^/properties/n: a schema is an object, true or false, not 1"),
    "schemas": (MERGE | {"anyOf": {}}, r"^/anyOf: must be a list of schemas"),
}


@pytest.mark.parametrize(("schema", "message"), REFUSED.values(), ids=REFUSED)
def test_a_fault_of_the_schema_is_refused_with_its_place(schema: dict[str, Any], message: str) -> None:
    """Damage: an annotation with a typing error does nothing, and the first sign is a wrong number."""
    with pytest.raises(DefinitionError, match=message):
        Annotated(schema)


def strategy_at(schema: dict[str, Any], document: Any, *steps: str | int) -> str:
    """Return the strategy that applies at ``steps`` of ``document``."""
    location, value = Annotated(schema).root, document
    for step in steps:
        resolved = location.resolved(value)
        location = resolved.item(step) if isinstance(step, int) else resolved.property(step)
        value = value[step]
    return location.resolved(value).annotation.strategy.value


SUM, FIRST, LAST = annotated("sum"), annotated("firstWriteWins"), annotated("lastWriteWins")
OR = {"if": {"type": "string"}, "then": FIRST, "else": SUM}
FOUND = {
    "nothing said": ({}, 1, (), "lastWriteWins"),
    "property": (below("n", SUM), {"n": 1}, ("n",), "sum"),
    "other property": (below("n", SUM), {"m": 1}, ("m",), "lastWriteWins"),
    "additional": (below("n", FIRST, additionalProperties=SUM), {"m": 1}, ("m",), "sum"),
    "not additional": (below("n", FIRST, additionalProperties=SUM), {"n": 1}, ("n",), "firstWriteWins"),
    "pattern": (MERGE | {"patternProperties": {"^n_": SUM}}, {"n_1": 1}, ("n_1",), "sum"),
    "item": (MERGE | {"items": SUM}, [1, 1], (1,), "sum"),
    "first item": (MERGE | {"prefixItems": [FIRST], "items": SUM}, [1, 1], (0,), "firstWriteWins"),
    "rest": (MERGE | {"prefixItems": [FIRST], "items": SUM}, [1, 1], (1,), "sum"),
    "old list of items": (MERGE | {"items": [{}, SUM], "additionalItems": FIRST}, [1, 1, 1], (1,), "sum"),
    "rest of the old list": (MERGE | {"items": [SUM], "additionalItems": FIRST}, [1, 1], (1,), "firstWriteWins"),
    "reference": (below("n", {"$ref": "#/$defs/n"}) | {"$defs": {"n": SUM}}, {"n": 1}, ("n",), "sum"),
    "anchor": (below("n", {"$ref": "#n"}) | {"$defs": {"x": SUM | {"$anchor": "n"}}}, {"n": 1}, ("n",), "sum"),
    "nearer than a reference": (
        below("n", FIRST | {"$ref": "#/$defs/n"}, **{"$defs": {"n": SUM}}),
        {"n": 1},
        ("n",),
        "firstWriteWins",
    ),
    "all": (below("n", {"allOf": [{"type": "number"}, SUM]}), {"n": 1}, ("n",), "sum"),
    "the same twice": (below("n", {"allOf": [SUM, SUM]}), {"n": 1}, ("n",), "sum"),
    "then": (below("n", OR), {"n": ""}, ("n",), "firstWriteWins"),
    "else": (below("n", OR), {"n": 1}, ("n",), "sum"),
    "any": (below("n", {"anyOf": [FIRST | {"type": "string"}, {"type": "number", **SUM}]}), {"n": 1}, ("n",), "sum"),
    "none of one": (below("n", {"oneOf": [FIRST | {"type": "string"}]}), {"n": 1}, ("n",), "lastWriteWins"),
    "two places": (
        below("n", {"type": "number"}, oneOf=[{"required": ["n"], "properties": {"n": SUM}}]),
        {"n": 1},
        ("n",),
        "sum",
    ),
    "recursion": (
        below("next", {"$ref": "#"}, additionalProperties=SUM),
        {"next": {"next": {"n": 1}}},
        ("next", "next", "n"),
        "sum",
    ),
    "add of a set": (annotated("set") | {"properties": {"add": {"items": SUM}}}, {"add": [1]}, ("add", 0), "sum"),
}


@pytest.mark.parametrize(("schema", "document", "steps", "strategy"), FOUND.values(), ids=FOUND)
def test_the_nearest_annotation_applies(schema: Any, document: Any, steps: Any, strategy: str) -> None:
    """Damage: a location is reduced by the annotation of another one, or by none."""
    assert strategy_at(schema, document, *steps) == strategy


def test_a_contradiction_that_only_a_value_shows_is_an_error() -> None:
    """Damage: which of two annotations applies depends on the order in which they are written."""
    schema = Annotated({"anyOf": [SUM | {"type": "number"}, FIRST | {"type": ["number", "string"]}]})
    assert schema.root.resolved("").annotation.strategy == "firstWriteWins"
    with pytest.raises(DefinitionError, match=r"/anyOf/0/reduce and /anyOf/1/reduce both apply"):
        schema.root.resolved(1)


@pytest.mark.parametrize(
    ("schema", "admits"),
    [
        ({}, True),
        ({"type": "integer"}, False),
        ({"type": ["integer", "null"]}, True),
        ({"allOf": [{"type": "integer"}]}, False),
        (SUM, False),
        (annotated("maximize"), True),
        ({"if": {"type": "null"}, "then": LAST, "else": SUM}, True),
    ],
)
def test_where_null_may_be(schema: dict[str, Any], admits: bool) -> None:
    """Damage: a NULL of SQL is summed, or is taken for a value that was never written."""
    assert Annotated(schema).root.admits("null") == admits
