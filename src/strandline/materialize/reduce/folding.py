"""A fold of the documents of one key, in place.

`spec` copies what it has reduced so far at every document.  A fold owns it, and changes it: n documents that each
append an item, add a property or add a member to a set cost as much as their sizes, not n times the size of the result.

A step that is not associative may be noticed when a part of the document is already reduced.  The fold is of no more
use then: the caller folds the documents before that one anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from strandline.materialize.reduce import inferred
from strandline.materialize.reduce.annotations import Annotation, Strategy, irreducible
from strandline.materialize.reduce.locations import Location, Resolved
from strandline.materialize.reduce.values import (
    DELETED,
    MISSING,
    Key,
    NotAssociativeError,
    NotReducibleError,
    Value,
    add,
    fresh,
    is_number,
    keys_of,
)

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
                return inferred.union(value if held is MISSING else held, value)
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
        for at, right in enumerate(value):
            there = at < len(held)
            before = was.item(at) if was is not None and there else None
            reduced = self._into(before, held[at] if there else MISSING, resolved.item(at), right, (*steps, at))
            if reduced is DELETED:
                raise NotReducibleError(
                    "an item of an array that is merged by position cannot be deleted: give merge a key"
                )
            held[at : at + 1] = [reduced]
        return held

    def _by_key(
        self, key: Key, was: Resolved | None, held: list[Value], resolved: Resolved, value: list[Value], steps: _Steps
    ) -> list[Value]:
        keys = _sorted_keys(value, key)
        self._require_sorted(held, key)
        begin = 0
        for at, (each, right) in enumerate(zip(keys, value, strict=True)):
            begin = bisect_left(held, each, begin, key=lambda item: keys_of(item, key))
            there = begin < len(held) and keys_of(held[begin], key) == each
            before = was.item(begin) if was is not None and there else None
            reduced = self._into(before, held[begin] if there else MISSING, resolved.item(at), right, (*steps, at))
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
