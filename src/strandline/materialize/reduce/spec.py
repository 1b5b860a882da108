"""The reference model of reductions: documents reduced from left to right, by plain recursion.

It is never optimised: tests compare `reducer` and `rows` with it.

A reduction is *full* if what is on the left of all documents is known: a document of the endpoint, or that there is
none.  It is *associative* otherwise.  The law, for documents ``a, b, c …``:

    full(a, b, c)  ==  full(b, c, loaded=full(a))  ==  full(a, *associative(b, c))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from strandline.materialize.reduce import folding
from strandline.materialize.reduce.annotations import Strategy, irreducible
from strandline.materialize.reduce.locations import Annotated, Location, Resolved
from strandline.materialize.reduce.schemas import (
    DELETED,
    MISSING,
    Key,
    NotAssociativeError,
    NotReducibleError,
    Value,
    add,
    is_number,
    keys_of,
)

ADD: Final = "add"
REMOVE: Final = "remove"
INTERSECT: Final = "intersect"


def full(schema: Annotated, documents: Sequence[Value], loaded: Value = MISSING) -> Value:
    """Return the full reduction of ``documents`` into ``loaded``; `DELETED` if the last step removes the document.

    >>> schema = Annotated({"reduce": {"strategy": "sum"}})
    >>> full(schema, [-1, 3, 2]), full(schema, [6, -7, -1], loaded=4)
    (4, 2)
    """
    held = loaded
    for document in documents:
        held = _step(None, MISSING if held is DELETED else held, schema.root, document, (), full=True)
    return held


def associative(schema: Annotated, documents: Sequence[Value]) -> list[Value]:
    """Return documents with the same full reduction, in order: one if they can be combined to one.

    >>> associative(Annotated({"reduce": {"strategy": "sum"}}), [6, -7, -1])
    [-2]
    """
    combined: list[Value] = []
    for document in documents:
        try:
            combined[-1:] = [_together(schema, combined[-1] if combined else MISSING, document)]
        except NotAssociativeError:
            combined.append(_together(schema, MISSING, document))
    return combined


def _together(schema: Annotated, held: Value, document: Value) -> Value:
    found = _step(schema.root, held, schema.root, document, (), full=False)
    if schema.root.resolved(document).annotation.delete and not schema.root.resolved(found).annotation.delete:
        raise NotAssociativeError  # the condition that deletes does not hold of the combined document
    return found


class _Pair(NamedTuple):
    """The two values of one step.  ``was`` is what applies for ``held``; a full reduction has no need of it."""

    was: Resolved | None
    held: Value
    here: Resolved
    value: Value
    steps: tuple[str | int, ...]
    full: bool


def _step(
    before: Location | None, held: Value, here: Location, value: Value, steps: tuple[str | int, ...], *, full: bool
) -> Value:
    """Reduce ``value``, at the location ``here``, into ``held``."""
    was = None if before is None or held is MISSING else before.resolved(held)
    pair = _Pair(was, held, here.resolved(value), value, steps, full)
    annotation = pair.here.annotation
    if held is not MISSING and not full:
        kept_apart = was is not None and was.annotation.delete and not annotation.delete
        if not annotation.associative or (kept_apart and annotation.strategy is not Strategy.LAST):
            raise NotAssociativeError
    try:
        found = _combine(pair)
    except NotReducibleError as error:
        raise irreducible(annotation, steps, held, value, error) from error
    return DELETED if full and annotation.delete else found


def _combine(pair: _Pair) -> Value:
    annotation = pair.here.annotation
    match annotation.strategy:
        case Strategy.LAST:
            return pair.value
        case Strategy.FIRST:
            return pair.value if pair.held is MISSING else pair.held
        case Strategy.SUM:
            return _sum(pair.held, pair.value)
        case Strategy.APPEND:
            return _append(pair.held, pair.value)
        case Strategy.SCHEMA:
            return folding.union(pair.value if pair.held is MISSING else pair.held, pair.value)
        case Strategy.MINIMIZE | Strategy.MAXIMIZE:
            return _extreme(pair)
        case Strategy.MERGE:
            return _merge(pair, annotation.key)
        case Strategy.SET:
            return _set(pair)


def _sum(held: Value, value: Value) -> Value:
    if isinstance(value, Mapping) and (held is MISSING or isinstance(held, Mapping)):
        left = {} if held is MISSING else held
        return {**left, **{name: _sum(left.get(name, MISSING), value[name]) for name in value}}
    if is_number(value) and (held is MISSING or is_number(held)):
        return value if held is MISSING else add(held, value)
    raise NotReducibleError("only numbers, or objects of numbers, are summed")


def _append(held: Value, value: Value) -> Value:
    if not isinstance(value, list) or not (held is MISSING or held is None or isinstance(held, list)):
        raise NotReducibleError("only an array is appended, to an array or to null")
    return None if held is None else ([] if held is MISSING else held) + value


def _extreme(pair: _Pair) -> Value:
    annotation = pair.here.annotation
    if annotation.key and any(not isinstance(each, Mapping | list | type(MISSING)) for each in (pair.held, pair.value)):
        raise NotReducibleError("with a key, only objects and arrays are compared")
    if pair.held is not MISSING:
        key = annotation.key or ((),)
        left, right = keys_of(pair.held, key), keys_of(pair.value, key)
        if left == right and annotation.key:
            return _merge(pair, ())
        if left == right or (left < right) == (annotation.strategy is Strategy.MINIMIZE):
            return pair.held
    return _merge(pair._replace(was=None, held=MISSING), ()) if annotation.key else pair.value


def _merge(pair: _Pair, key: Key) -> Value:
    if not isinstance(pair.value, Mapping | list):
        raise NotReducibleError("only objects and arrays are merged")
    if not isinstance(pair.held, Mapping if isinstance(pair.value, Mapping) else list):
        if pair.held is not MISSING and not pair.full:
            raise NotAssociativeError  # it would replace the value on its left, but not the one on the left of that
        pair = pair._replace(was=None, held={} if isinstance(pair.value, Mapping) else [])
    if isinstance(pair.value, Mapping):
        return _properties(pair)
    return _by_key(pair, key) if key else _by_position(pair)


def _properties(pair: _Pair) -> Value:
    merged = dict(pair.held)
    for name, value in pair.value.items():
        before = pair.was.property(name) if pair.was else None
        lower, steps = pair.held.get(name, MISSING), (*pair.steps, name)
        merged[name] = _step(before, lower, pair.here.property(name), value, steps, full=pair.full)
    return {name: each for name, each in merged.items() if each is not DELETED}


def _by_position(pair: _Pair) -> Value:
    merged = list(pair.held)
    for at, value in enumerate(pair.value):
        before = pair.was.item(at) if pair.was else None
        lower, steps = merged[at] if at < len(merged) else MISSING, (*pair.steps, at)
        merged[at : at + 1] = [_step(before, lower, pair.here.item(at), value, steps, full=pair.full)]
    if any(each is DELETED for each in merged):
        raise NotReducibleError("an item of an array that is merged by position cannot be deleted: give merge a key")
    return merged


def _by_key(pair: _Pair, key: Key) -> Value:
    left, right = _places(pair.held, key), _places(pair.value, key)
    merged = []
    for each in sorted(left.keys() | right.keys()):
        lower = pair.held[left[each]] if each in left else MISSING
        if each in right:
            at = right[each]
            before = pair.was.item(left[each]) if pair.was and each in left else None
            found = _step(before, lower, pair.here.item(at), pair.value[at], (*pair.steps, at), full=pair.full)
            if found is not DELETED and keys_of(found, key) != each:
                raise NotReducibleError("the reduction of an item changes its key")
            lower = found
        merged.append(lower)
    return [each for each in merged if each is not DELETED]


def _places(items: list[Value], key: Key) -> dict[Any, int]:
    keys = [keys_of(item, key) for item in items]
    if not all(left < right for left, right in pairwise(keys)):
        raise NotReducibleError("an array is not sorted by the key, or has an item twice")
    return {each: at for at, each in enumerate(keys)}


def _set(pair: _Pair) -> Value:
    key = pair.here.annotation.key
    left: Mapping[str, Value] = {} if pair.held is MISSING else pair.held
    right: Mapping[str, Value] = pair.value
    _check_set(left, right, key)
    found: dict[str, Value] = {}
    if ADD in left or ADD in right:
        nothing = type(right[ADD] if ADD in right else left[ADD])()
        below = _Pair(
            pair.was.property(ADD).resolved(left[ADD]) if pair.was and ADD in left else None,
            _restricted(left.get(ADD, nothing), right, key),
            pair.here.property(ADD).resolved(right.get(ADD, nothing)),
            right.get(ADD, nothing),
            (*pair.steps, ADD),
            pair.full,
        )
        found[ADD] = _properties(below) if isinstance(below.value, Mapping) else _by_key(below, key)
    if pair.full:
        return found  # what is removed is gone
    if INTERSECT in right and INTERSECT in left:
        found[INTERSECT] = _restricted(right[INTERSECT], {INTERSECT: left[INTERSECT]}, key)
    elif INTERSECT in right:
        found[INTERSECT] = _restricted(right[INTERSECT], left, key)
    elif INTERSECT in left:
        found[INTERSECT] = _restricted(left[INTERSECT], right, key)
    elif REMOVE in left and REMOVE in right:
        found[REMOVE] = _either(left[REMOVE], right[REMOVE], key)
    elif REMOVE in left or REMOVE in right:
        found[REMOVE] = left[REMOVE] if REMOVE in left else right[REMOVE]
    return found


def _check_set(left: Value, right: Value, key: Key) -> None:
    parts: list[Value] = []
    for side in (left, right):
        if not isinstance(side, Mapping) or not side.keys() <= {ADD, REMOVE, INTERSECT}:
            raise NotReducibleError("a set is an object with add, remove or intersect, and nothing else")
        if REMOVE in side and INTERSECT in side:
            raise NotReducibleError("remove and intersect cannot be in one document: write two documents")
        parts += side.values()
    if not (all(isinstance(part, Mapping) for part in parts) or all(isinstance(part, list) for part in parts)):
        raise NotReducibleError("the parts of a set are either all arrays or all objects")
    for part in parts:
        if isinstance(part, list):
            _places(part, key)


def _members(part: Value, key: Key) -> set[Any]:
    return set(part) if isinstance(part, Mapping) else {keys_of(item, key) for item in part}


def _kept(part: Value, members: set[Any], key: Key) -> Value:
    if isinstance(part, Mapping):
        return {name: part[name] for name in part if name in members}
    return [item for item in part if keys_of(item, key) in members]


def _restricted(part: Value, by: Mapping[str, Value], key: Key) -> Value:
    """Return the members of ``part`` that the set update ``by`` neither removes nor leaves out."""
    members = _members(part, key)
    if INTERSECT in by:
        members &= _members(by[INTERSECT], key)
    if REMOVE in by:
        members -= _members(by[REMOVE], key)
    return _kept(part, members, key)


def _either(left: Value, right: Value, key: Key) -> Value:
    if isinstance(left, Mapping):
        return {**right, **left}
    others = _kept(right, _members(right, key) - _members(left, key), key)
    return sorted([*left, *others], key=lambda item: keys_of(item, key))
