"""Annotations: the keyword ``reduce`` of a JSON Schema, read and checked.

    "reduce": {"strategy": "merge", "key": ["/id"], "associative": true, "delete": false}

Every fault is a `DefinitionError` that names its place in the schema as a JSON pointer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from strandline.errors import DefinitionError
from strandline.materialize.reduce.values import Key, Value, parse_pointer, pointer, shown


class Strategy(StrEnum):
    """How the value on the right is combined with the one on the left; `docs/reductions.md` shows each."""

    APPEND = "append"
    FIRST = "firstWriteWins"
    LAST = "lastWriteWins"
    MAXIMIZE = "maximize"
    MERGE = "merge"
    MINIMIZE = "minimize"
    SCHEMA = "jsonSchemaMerge"
    SET = "set"
    SUM = "sum"


TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
"""The types of JSON Schema."""

_DEMANDED: Final[Mapping[Strategy, frozenset[str]]] = {
    Strategy.APPEND: frozenset({"array"}),
    Strategy.MERGE: frozenset({"array", "object"}),
    Strategy.SCHEMA: frozenset({"object"}),
    Strategy.SET: frozenset({"object"}),
    Strategy.SUM: frozenset({"integer", "number", "object"}),
}
"""The types that a strategy is for, if not for all."""
_WITH_PARTS: Final = frozenset({"array", "object"})

KEYED: Final = frozenset({Strategy.MAXIMIZE, Strategy.MERGE, Strategy.MINIMIZE, Strategy.SET})
DELETING: Final = frozenset({Strategy.LAST, Strategy.MERGE})
DESCENDS: Final = frozenset({Strategy.MAXIMIZE, Strategy.MERGE, Strategy.MINIMIZE, Strategy.SET})
"""The strategies that reduce parts of a value by the annotations of these parts."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """One ``reduce``; ``place`` is where the schema has it, empty if it is the default."""

    strategy: Strategy
    key: Key = ()
    associative: bool = True
    delete: bool = False
    place: str = field(default="", compare=False)


DEFAULT: Final = Annotation(Strategy.LAST)


def annotation(raw: Any, place: str) -> Annotation:
    """Return the annotation ``raw``, which the schema has at ``place``.

    >>> annotation({"strategy": "merge", "key": ["/id"]}, "/reduce").key
    (('id',),)

    Raises:
        DefinitionError: it is not one.
    """
    if not isinstance(raw, Mapping):
        raise DefinitionError(f"{place}: an annotation is an object with a `strategy`, not {shown(raw)}")
    unknown = sorted(raw.keys() - {"strategy", "key", "associative", "delete"})
    if unknown:
        raise DefinitionError(f"{place}/{unknown[0]}: unknown; known are strategy, key, associative, delete")
    strategy = _strategy(raw.get("strategy"), place)
    for name in ("associative", "delete"):
        if not isinstance(raw.get(name, False), bool):
            raise DefinitionError(f"{place}/{name}: must be true or false, not {shown(raw[name])}")
    if raw.get("delete", False) and strategy not in DELETING:
        raise DefinitionError(f"{place}/delete: {strategy} does not delete; lastWriteWins and merge do")
    key = _key(raw["key"], f"{place}/key", strategy) if "key" in raw else ()
    if strategy is Strategy.SET and not key:
        key = ((),)
    return Annotation(strategy, key, raw.get("associative", True), raw.get("delete", False), place)


def _strategy(raw: object, place: str) -> Strategy:
    try:
        return Strategy(str(raw))
    except ValueError as error:
        known = ", ".join(Strategy)
        raise DefinitionError(f"{place}/strategy: {shown(raw)} is not a strategy; known are {known}") from error


def _key(raw: object, place: str, strategy: Strategy) -> Key:
    if strategy not in KEYED:
        raise DefinitionError(f"{place}: {strategy} takes no key; {', '.join(sorted(KEYED))} do")
    if not isinstance(raw, list) or not raw:
        raise DefinitionError(f"{place}: must be a list of one or more JSON pointers, not {shown(raw)}")
    steps = []
    for index, text in enumerate(raw):
        parsed = parse_pointer(text) if isinstance(text, str) else None
        if parsed is None:
            raise DefinitionError(f'{place}/{index}: {shown(text)} is not a JSON pointer: write "" or "/name"')
        steps.append(parsed)
    return tuple(steps)


def types_of(schema: Mapping[str, Any], place: str) -> frozenset[str]:
    """Return the types that ``schema`` itself allows: those of its ``type``, or all.  A number may be an integer.

    Raises:
        DefinitionError: a type is unknown.
    """
    raw = schema.get("type", sorted(TYPES))
    named = [raw] if isinstance(raw, str) else raw
    if not isinstance(named, list) or not all(isinstance(each, str) and each in TYPES for each in named):
        raise DefinitionError(
            f"{place}/type: {shown(raw)} is not a type or a list of types ({', '.join(sorted(TYPES))})"
        )
    return frozenset(named) | ({"integer"} if "number" in named else frozenset())


def demands(found: Annotation) -> frozenset[str]:
    """Return the types that a strategy is for.  With a key, values are compared by their parts."""
    if found.strategy in {Strategy.MAXIMIZE, Strategy.MINIMIZE} and found.key:
        return _WITH_PARTS
    return _DEMANDED.get(found.strategy, TYPES)


def check_types(found: Annotation, types: frozenset[str]) -> None:
    """Require that a location that allows ``types`` fits the strategy.

    Raises:
        DefinitionError: it allows another type too.
    """
    demanded = demands(found)
    others = sorted(types - demanded) if types != TYPES else []
    if others:
        raise DefinitionError(
            f"{found.place}: {found.strategy} is for {' or '.join(sorted(demanded))}, and {others[0]} is allowed here"
        )


def irreducible(
    found: Annotation, steps: Sequence[str | int], held: Value, value: Value, why: object
) -> DefinitionError:
    """Return the error for two values at ``steps`` of documents that the annotation there cannot combine."""
    source = f" (by {found.place})" if found.place else ""
    where = pointer(steps) or "the root"
    return DefinitionError(
        f"at {where}, {found.strategy}{source} cannot combine {shown(held)} with {shown(value)}: {why}"
    )
