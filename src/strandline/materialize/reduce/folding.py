"""The reducer: combines the documents of one key, by a fold in place, as the annotations of a JSON Schema say.

    combined = reducer.combine(documents)        associative: before what the endpoint holds is known, and for deltas
    reducer.finish(loaded, combined)             full: what the endpoint shall hold

`combine` may be called again with its own result, with later documents, or with some of them: the full reduction is the
same.

`spec`, the reference model, copies its result at every document.  A `Fold` owns its result and changes it: n documents
that each append an item, add a property or add a member to a set cost as much as their sizes, not n times the size of
the result.  A step that is not associative may be noticed when a part of the document is already reduced.  The fold is
of no more use then: the caller folds the documents before that one anew.

For ``jsonSchemaMerge``, `union` returns the union of two inferred JSON Schemas.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from strandline.errors import DefinitionError, InvalidUsage
from strandline.materialize.protocol.refusals import IRREDUCIBLE
from strandline.materialize.reduce.annotations import TYPES, Annotation, Strategy, irreducible, is_type, types_of
from strandline.materialize.reduce.locations import Annotated, Location, Resolved
from strandline.materialize.reduce.schemas import (
    DELETED,
    MISSING,
    Deleted,
    Document,
    Key,
    NotAssociativeError,
    NotReducibleError,
    Value,
    add,
    at,
    fresh,
    is_number,
    keys_of,
    order,
    parse_pointer,
    pointer,
    shown,
)

Shape = dict[str, Any]
"""A schema in normal form: `_TYPES` has its types, and other keywords limit values of these types only."""

_TYPES: Final = "types"
_STRING: Final = frozenset({"string"})
_NUMBER: Final = frozenset({"integer", "number"})
_ARRAY: Final = frozenset({"array"})
_OBJECT: Final = frozenset({"object"})
_LIMITS: Final[Mapping[str, tuple[frozenset[str], Callable[[Any, Any], Any] | None]]] = {
    "minLength": (_STRING, min),
    "maxLength": (_STRING, max),
    "format": (_STRING, None),
    "pattern": (_STRING, None),
    "minimum": (_NUMBER, min),
    "maximum": (_NUMBER, max),
    "exclusiveMinimum": (_NUMBER, min),
    "exclusiveMaximum": (_NUMBER, max),
    "multipleOf": (_NUMBER, None),
    "minItems": (_ARRAY, min),
    "maxItems": (_ARRAY, max),
    "uniqueItems": (_ARRAY, None),
    "minProperties": (_OBJECT, min),
    "maxProperties": (_OBJECT, max),
}
"""Keyword → the types that it limits, and how two limits are joined; None: it is kept if both are equal."""
_SAID: Final = frozenset({"$comment", "$id", "$schema", "default", "description", "examples", "title"})
"""Keywords that limit nothing."""
_NO_VALUE: Final[Shape] = {_TYPES: frozenset()}
_OWN: Final = frozenset({"type", "enum", "const", "items", "properties", "required", "additionalProperties"})


def union(left: object, right: object) -> dict[str, Any]:
    """Return the schema of all values that fit ``left`` or ``right``.

    >>> union({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 8, "format": "date"})
    {'type': 'string', 'maxLength': 8}
    >>> union({"type": "string", "maxLength": 5}, {"type": "integer"})
    {'type': ['integer', 'string'], 'maxLength': 5}

    Raises:
        NotReducibleError: a side is no schema, or refers to another one.

    A value that fits either schema fits the union.  The union is the least such schema that the keywords of `_LIMITS`,
    types, properties, items and ``enum`` can express; it depends neither on order nor on grouping.  A keyword that is
    unknown here (also a title or the like) is kept only if both sides have it with the same value.
    """
    for side in (left, right):
        if not isinstance(side, Mapping):
            raise NotReducibleError(f"{shown(side)} is not the object of a JSON Schema")
    joined = _render(_join(shape(left), shape(right)))
    return joined if isinstance(joined, dict) else {"not": {}}


def shape(schema: object) -> Shape:
    """Return the normal form of ``schema``.  Raises `NotReducibleError` if it is no schema, or has a reference."""
    if isinstance(schema, bool):
        return {_TYPES: TYPES if schema else frozenset()}
    if not isinstance(schema, Mapping):
        raise NotReducibleError(f"{shown(schema)} is not a JSON Schema")
    if "not" in schema and schema["not"] in ({}, True):
        return _NO_VALUE
    if schema.keys() & {"$ref", "$dynamicRef", "$recursiveRef"}:
        raise NotReducibleError("an inferred schema has no references: write what it refers to in its place")
    try:
        types = types_of(schema, "")
    except DefinitionError as error:
        raise NotReducibleError(str(error)) from error
    found: Shape = {}
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if listed is not None:
        fitting = [each for each in _list(listed, "enum") if any(is_type(each, name) for name in sorted(types))]
        types = frozenset(name for name in types if any(is_type(each, name) for each in fitting))
        found["enum"] = _sorted(fitting)
    found[_TYPES] = types
    found.update({name: schema[name] for name, (limited, _) in _LIMITS.items() if name in schema and types & limited})
    if schema.get("uniqueItems") is False:
        found.pop("uniqueItems", None)
    others = {name: each for name, each in schema.items() if name not in _OWN and name not in _LIMITS}
    found["said"] = {name: each for name, each in others.items() if name in _SAID}
    found["others"] = {name: each for name, each in others.items() if name not in _SAID}
    for name, kind in (("items", "array"), ("additionalProperties", "object")):
        if kind in types and (part := _limiting(shape(schema.get(name, True)))) is not None:
            found[name] = part
    if "object" in types:
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise NotReducibleError(f"`properties` is {shown(properties)}, not an object")
        found["properties"] = _known({name: _limiting(shape(each)) for name, each in properties.items()}, found)
        found["required"] = frozenset(_list(schema.get("required", []), "required"))
    return found


def _limiting(found: Shape) -> Shape | None:
    """Return a shape that says something; None, in the place of one that every value fits and that says nothing."""
    limits = found.keys() & {*_LIMITS, "enum", "items", "additionalProperties"}
    says = any(found.get(name) for name in ("said", "others", "properties", "required"))
    return found if limits or says or found[_TYPES] != TYPES else None


def _known(properties: dict[str, Shape | None], of: Shape) -> dict[str, Shape | None]:
    """Return the properties that say something: any value is allowed for the others if no name is refused."""
    return {name: part for name, part in properties.items() if part is not None or "additionalProperties" in of}


def _list(raw: Any, keyword: str) -> list[Any]:
    if not isinstance(raw, list):
        raise NotReducibleError(f"`{keyword}` is {shown(raw)}, not a list")
    return raw


def _sorted(values: list[Any]) -> list[Any]:
    return [values[at] for at in _first_of_each([order(each) for each in values])]


def _first_of_each(orders: list[Any]) -> list[int]:
    places = sorted(range(len(orders)), key=lambda at: orders[at])
    return [
        at
        for before, at in zip([None, *places], places, strict=False)
        if before is None or orders[before] != orders[at]
    ]


def _join(left: Shape, right: Shape) -> Shape:
    if not left[_TYPES] or not right[_TYPES]:  # no value fits one side
        return left if left[_TYPES] else right
    joined: Shape = {_TYPES: left[_TYPES] | right[_TYPES]}
    if "enum" in left and "enum" in right:
        joined["enum"] = _sorted(left["enum"] + right["enum"])
    for name, (limited, join) in _LIMITS.items():
        sides = [side[name] for side in (left, right) if name in side]
        if len(sides) < sum(1 for side in (left, right) if side[_TYPES] & limited):
            continue  # one side allows such values without the limit
        if len(sides) == 1 or (sides and sides[0] == sides[1]):
            joined[name] = sides[0]
        elif sides and join is not None:
            joined[name] = join(*sides)
    said = left.get("said", {}), right.get("said", {})
    joined["said"] = {name: each for name, each in said[0].items() if name in said[1] and said[1][name] == each}
    others = left.get("others", {})
    joined["others"] = others if others == right.get("others", {}) else {}
    for name, kind in (("items", "array"), ("additionalProperties", "object")):
        parts = [side.get(name) for side in (left, right) if kind in side[_TYPES]]
        part = _join_any(*parts) if parts else None
        if part is not None:
            joined[name] = part
    objects = [side for side in (left, right) if "object" in side[_TYPES]]
    if len(objects) == 1:
        joined.update({name: objects[0][name] for name in ("properties", "required") if name in objects[0]})
    elif objects:
        joined["required"] = left.get("required", frozenset()) & right.get("required", frozenset())
        joined["properties"] = _known(_properties(left, right), joined)
    return joined


def _join_any(left: Shape | None, right: Shape | None = _NO_VALUE) -> Shape | None:
    """Return the union of two shapes, of which None is that of every value."""
    return None if left is None or right is None else _limiting(_join(left, right))


def _properties(left: Shape, right: Shape) -> dict[str, Shape | None]:
    first, second = left.get("properties", {}), right.get("properties", {})
    rest, other_rest = left.get("additionalProperties"), right.get("additionalProperties")
    return {
        name: _join_any(first.get(name, rest), second.get(name, other_rest))
        for name in sorted(first.keys() | second.keys())
    }


def _render(found: Shape) -> dict[str, Any] | bool:
    """Return a shape as a schema: an object, or false if no value fits."""
    types = found[_TYPES]
    if not types:
        return False
    names = sorted(types - ({"integer"} if "number" in types else set()))
    schema: dict[str, Any] = {**found.get("said", {}), **found.get("others", {})}
    if types != TYPES:
        schema["type"] = names[0] if len(names) == 1 else names
    schema.update({name: found[name] for name in ("enum", *_LIMITS) if name in found})
    schema.update({name: _render(found[name]) for name in ("items", "additionalProperties") if name in found})
    if found.get("properties"):
        schema["properties"] = {
            name: {} if part is None else _render(part) for name, part in found["properties"].items()
        }
    if found.get("required"):
        schema["required"] = sorted(found["required"])
    return schema


_Steps = tuple[str | int, ...]
_PARTS: Final = frozenset({"add", "remove", "intersect"})


class Fold:
    """The reduction of some documents, from left to right; ``held`` is what they are reduced to so far.

    ``full``: what is on the left of them is known, and is ``held``.
    """

    def __init__(self, root: Location, *, full: bool, held: Value = MISSING) -> None:
        self._root = root
        self._full = full
        self._sorted: dict[int, tuple[list[Value], Key]] = {}
        """Arrays of ``held`` that are known to be sorted; they are kept, so that no other array has their identity."""
        self.held = fresh(held)

    def add(self, document: Value) -> None:
        """Reduce ``document`` into ``held``; ``document`` is not changed.

        Raises:
            NotAssociativeError: it cannot be; the fold must not be used any further.
            DefinitionError: a strategy met values that it is not for; neither must it.
        """
        held = MISSING if self.held is DELETED else self.held
        before = None if self._full or held is MISSING else self._root
        self.held = self._into(before, held, self._root, document, ())
        if self._full or not self._root.resolved(document).annotation.delete:
            return
        if not self._root.resolved(self.held).annotation.delete:
            raise NotAssociativeError  # the condition that deletes does not hold of the combined document

    def _into(self, before: Location | None, held: Value, here: Location, value: Value, steps: _Steps) -> Value:
        resolved = here.resolved(value)
        found = resolved.annotation
        was = None if before is None or held is MISSING else before.resolved(held)
        if held is not MISSING and not self._full:
            gone = was is not None and was.annotation.delete and not found.delete
            if not found.associative or (gone and found.strategy is not Strategy.LAST):
                raise NotAssociativeError
        try:
            reduced = self._reduce(found, was, held, resolved, value, steps)
        except NotReducibleError as error:
            raise irreducible(found, steps, held, value, error) from error
        return DELETED if self._full and found.delete else reduced

    def _reduce(
        self, found: Annotation, was: Resolved | None, held: Value, resolved: Resolved, value: Value, steps: _Steps
    ) -> Value:
        match found.strategy:
            case Strategy.LAST:
                return fresh(value)
            case Strategy.FIRST:
                return fresh(value) if held is MISSING else held
            case Strategy.SUM:
                return _sum(held, value)
            case Strategy.APPEND:
                return _append(held, value)
            case Strategy.SCHEMA:
                return union(value if held is MISSING else held, value)
            case Strategy.MERGE:
                return self._merge(found.key, was, held, resolved, value, steps)
            case Strategy.SET:
                return self._set(found.key, was, held, resolved, value, steps)
        return self._extreme(found, was, held, resolved, value, steps)

    def _extreme(
        self, found: Annotation, was: Resolved | None, held: Value, resolved: Resolved, value: Value, steps: _Steps
    ) -> Value:
        key = found.key or ((),)
        if found.key and not all(each is MISSING or isinstance(each, Mapping | list) for each in (held, value)):
            raise NotReducibleError("with a key, only objects and arrays are compared")
        if held is not MISSING:
            left, right = keys_of(held, key), keys_of(value, key)
            if left == right:
                return self._merge((), was, held, resolved, value, steps) if found.key else held
            if (left < right) == (found.strategy is Strategy.MINIMIZE):
                return held
        return self._merge((), None, MISSING, resolved, value, steps) if found.key else fresh(value)

    def _merge(
        self, key: Key, was: Resolved | None, held: Value, resolved: Resolved, value: Value, steps: _Steps
    ) -> Value:
        if not isinstance(value, Mapping | list):
            raise NotReducibleError("only objects and arrays are merged")
        if isinstance(held, list) != isinstance(value, list) or not isinstance(held, Mapping | list):
            if held is not MISSING and not self._full:
                raise NotAssociativeError  # it would replace the value on its left, but not the one left of that
            was, held = None, [] if isinstance(value, list) else {}
        if isinstance(value, Mapping):
            return self._properties(was, held, resolved, value, steps)
        return (
            self._by_key(key, was, held, resolved, value, steps)
            if key
            else self._by_position(was, held, resolved, value, steps)
        )

    def _properties(
        self,
        was: Resolved | None,
        held: dict[str, Value],
        resolved: Resolved,
        value: Mapping[str, Value],
        steps: _Steps,
    ) -> dict[str, Value]:
        for name, right in value.items():
            left = held.get(name, MISSING)
            before = was.property(name) if was is not None and left is not MISSING else None
            reduced = self._into(before, left, resolved.property(name), right, (*steps, name))
            if reduced is not DELETED:
                held[name] = reduced
            elif left is not MISSING:
                del held[name]
        return held

    def _by_position(
        self, was: Resolved | None, held: list[Value], resolved: Resolved, value: list[Value], steps: _Steps
    ) -> list[Value]:
        for position, right in enumerate(value):
            there = position < len(held)
            before = was.item(position) if was is not None and there else None
            reduced = self._into(
                before, held[position] if there else MISSING, resolved.item(position), right, (*steps, position)
            )
            if reduced is DELETED:
                raise NotReducibleError(
                    "an item of an array that is merged by position cannot be deleted: give merge a key"
                )
            held[position : position + 1] = [reduced]
        return held

    def _by_key(
        self, key: Key, was: Resolved | None, held: list[Value], resolved: Resolved, value: list[Value], steps: _Steps
    ) -> list[Value]:
        keys = _sorted_keys(value, key)
        self._require_sorted(held, key)
        begin = 0
        for position, (each, right) in enumerate(zip(keys, value, strict=True)):
            begin = bisect_left(held, each, begin, key=lambda item: keys_of(item, key))
            there = begin < len(held) and keys_of(held[begin], key) == each
            before = was.item(begin) if was is not None and there else None
            reduced = self._into(
                before, held[begin] if there else MISSING, resolved.item(position), right, (*steps, position)
            )
            if reduced is DELETED:
                del held[begin : begin + there]
                continue
            if keys_of(reduced, key) != each:
                raise NotReducibleError("the reduction of an item changes its key")
            held[begin : begin + there] = [reduced]
            begin += 1
        return held

    def _require_sorted(self, held: list[Value], key: Key) -> None:
        if self._sorted.get(id(held)) != (held, key):
            _sorted_keys(held, key)
            self._sorted[id(held)] = (held, key)

    def _set(
        self, key: Key, was: Resolved | None, held: Value, resolved: Resolved, value: Value, steps: _Steps
    ) -> dict[str, Value]:
        held = {} if held is MISSING else held
        kind = _kind_of_set(held, value)
        for each in value.values():
            if kind is list:
                _sorted_keys(each, key)
        for each in held.values():
            if kind is list:
                self._require_sorted(each, key)
        if "add" in held:
            held["add"] = _restricted(held["add"], value, key)
        if "add" in held or "add" in value:
            added = value.get("add", kind())
            before = was.property("add").resolved(held["add"]) if was is not None and "add" in held else None
            there = resolved.property("add").resolved(added)
            base = held.get("add", kind())
            held["add"] = (
                self._by_key(key, before, base, there, added, (*steps, "add"))
                if kind is list
                else self._properties(before, base, there, added, (*steps, "add"))
            )
        if self._full:
            return {"add": held["add"]} if "add" in held else {}
        _remember(held, value, key)
        updates: dict[str, Value] = held
        return updates


def _sum(held: Value, value: Value) -> Value:
    if isinstance(value, Mapping) and (held is MISSING or isinstance(held, dict)):
        total = {} if held is MISSING else held
        for name, right in value.items():
            total[name] = _sum(total.get(name, MISSING), right)
        return total
    if not is_number(value) or not (held is MISSING or is_number(held)):
        raise NotReducibleError("only numbers, or objects of numbers, are summed")
    return value if held is MISSING else add(held, value)


def _append(held: Value, value: Value) -> Value:
    if not isinstance(value, list) or not (held is MISSING or held is None or isinstance(held, list)):
        raise NotReducibleError("only an array is appended, to an array or to null")
    if held is None:
        return None
    items: list[Value] = [] if held is MISSING else held
    items += (fresh(item) for item in value)
    return items


def _sorted_keys(items: list[Value], key: Key) -> list[Any]:
    keys = [keys_of(item, key) for item in items]
    if not all(left < right for left, right in pairwise(keys)):
        raise NotReducibleError("an array is not sorted by the key, or has an item twice")
    return keys


def _kind_of_set(held: Value, value: Value) -> type[Any]:
    for side in (held, value):
        if not isinstance(side, Mapping) or not side.keys() <= _PARTS:
            raise NotReducibleError("a set is an object with add, remove or intersect, and nothing else")
        if {"remove", "intersect"} <= side.keys():
            raise NotReducibleError("remove and intersect cannot be in one document: write two documents")
    parts = [*held.values(), *value.values()]
    kinds = {list if isinstance(part, list) else dict if isinstance(part, Mapping) else None for part in parts}
    if len(kinds) > 1 or None in kinds:
        raise NotReducibleError("the parts of a set are either all arrays or all objects")
    return list if list in kinds else dict


def _restricted(part: Value, by: Mapping[str, Value], key: Key) -> Value:
    """Return the members of ``part`` that the update ``by`` of a set neither removes nor leaves out."""
    if not by.keys() & {"remove", "intersect"}:
        return part
    keep = "intersect" in by
    other = by["intersect"] if keep else by["remove"]
    if isinstance(part, Mapping):
        return {name: member for name, member in part.items() if (name in other) == keep}
    named = {keys_of(item, key) for item in other}
    return [item for item in part if (keys_of(item, key) in named) == keep]


def _remember(held: dict[str, Value], value: Mapping[str, Value], key: Key) -> None:
    """Join what ``value`` removes or leaves out to what ``held`` does, for a value on the left of both."""
    if "intersect" in value:
        wanted = _restricted(value["intersect"], held, key)
        held.pop("remove", None)
        held["intersect"] = fresh(wanted)
    elif "intersect" in held:
        held["intersect"] = _restricted(held["intersect"], value, key)
    elif "remove" in value and "remove" in held:
        gone, also = held["remove"], value["remove"]
        if isinstance(gone, dict):
            gone.update({name: fresh(member) for name, member in also.items() if name not in gone})
        else:
            named = {keys_of(item, key) for item in gone}
            gone += [fresh(item) for item in also if keys_of(item, key) not in named]
            gone.sort(key=lambda item: keys_of(item, key))
    elif "remove" in value:
        held["remove"] = fresh(value["remove"])


class Reducer:
    """Combines documents as the annotations of a JSON Schema say.

    >>> counts = Reducer.of({"reduce": {"strategy": "merge"}, "properties": {"n": {"reduce": {"strategy": "sum"}}}})
    >>> counts.combine([{"n": 6}, {"n": -7}, {"n": -1}])
    [{'n': -2}]
    >>> counts.finish({"n": 4}, [{"n": -2}])
    {'n': 2}
    """

    def __init__(self, schema: Annotated, key: Sequence[tuple[str, ...]], item: str = "") -> None:
        self.schema = schema
        self._key = key
        self._item = item

    @classmethod
    def of(cls, schema: Mapping[str, Any], key: Sequence[str] = (), item: str = "") -> Reducer:
        """Return the reducer of ``schema``.

        Args:
            schema: a JSON Schema with annotations.
            key: the pointers of the collection's key, by which messages name a document.
            item: the materialization, by which messages name it.

        Raises:
            DefinitionError: the schema has a fault, whose place is named; or a pointer is none.
        """
        steps = [parse_pointer(each) for each in key]
        for text, each in zip(key, steps, strict=True):
            if each is None:
                raise DefinitionError(f'the key {shown(text)} is not a JSON pointer: write "/name"')
        return cls(Annotated(schema), [each for each in steps if each is not None], item)

    def combine(self, documents: Sequence[Document]) -> list[Document]:
        """Return documents with the same full reduction, in order: one if they can be combined to one.

        ``documents`` have one key, are in order, and are not changed.

        Raises:
            DefinitionError: a strategy met values that it is not for.  The message names key, location and values.
        """
        combined: list[Document] = []
        begin = 0
        fold = Fold(self.schema.root, full=False)
        for end, document in enumerate(documents):
            try:
                self._add(fold, document)
            except NotAssociativeError:
                combined.append(self._fold(documents[begin:end]).held)
                begin, fold = end, self._fold([document])
        return [*combined, fold.held] if documents else []

    def finish(self, loaded: Document | None, combined: Sequence[Document]) -> Document | Deleted:
        """Return the full reduction of ``combined`` into ``loaded``, which is None if the endpoint has no document.

        Raises:
            DefinitionError: as `combine`.
            InvalidUsage: there is nothing to reduce.
        """
        if not combined:
            raise InvalidUsage("no document to reduce: a key without new documents needs no reduction")
        fold = Fold(self.schema.root, full=True, held=MISSING if loaded is None else loaded)
        for document in combined:
            self._add(fold, document)
        reduced: Document | Deleted = fold.held
        return reduced

    def _fold(self, documents: Sequence[Document]) -> Fold:
        """Fold documents that are known to be associative."""
        fold = Fold(self.schema.root, full=False)
        for document in documents:
            self._add(fold, document)
        return fold

    def _add(self, fold: Fold, document: Document) -> None:
        try:
            fold.add(document)
        except DefinitionError as error:
            raise self._named(document, error) from error
        except RecursionError as error:
            raise self._named(document, DefinitionError("it is nested too deeply to be reduced")) from error

    def _named(self, document: Document, error: DefinitionError) -> DefinitionError:
        if not self._key:
            return error
        named = ", ".join(f"{pointer(steps)[1:]} = {shown(at(document, steps))}" for steps in self._key)
        return DefinitionError(IRREDUCIBLE.said(key=named, why=error, item=self._item))
