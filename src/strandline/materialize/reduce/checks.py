"""What a schema with annotations must keep to, checked before the first document is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from strandline.errors import DefinitionError
from strandline.materialize.reduce.annotations import (
    DEFAULT,
    DESCENDS,
    TYPES,
    Annotation,
    Strategy,
    check_types,
    types_of,
)
from strandline.materialize.reduce.conditions import property_parts
from strandline.materialize.reduce.schemas import (
    REFUSED,
    Part,
    References,
    below,
    conditions,
    fields,
    in_place,
    listed,
    named,
    pattern,
)
from strandline.materialize.reduce.values import is_number, pointer, shown

_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS: Final = tuple(
    f"{bound}{name}" for bound in ("min", "max") for name in ("Length", "Items", "Properties", "Contains")
)
_LISTS: Final = ("enum", "required")


def check(references: References, read: Callable[[Part], Annotation]) -> None:
    """Check the root of ``references`` and all schemas in it; ``read`` returns the annotation of a schema.

    Raises:
        DefinitionError: there is a fault; the message names its place.
    """
    _Check(references, read).location((references.root,))


def closed(part: Part, references: References, *, branches: bool = False) -> Iterator[Part]:
    """Yield ``part`` and the schemas that apply with it: always, or, with ``branches``, for some value."""
    yield part
    target = references.target(part)
    if target is not None:
        yield from closed(target, references, branches=branches)
    for each in in_place(part) if branches else listed(part, "allOf"):
        yield from closed(each, references, branches=branches)


class _Check:
    def __init__(self, references: References, read: Callable[[Part], Annotation]) -> None:
        self._references = references
        self._read = read
        self._seen: dict[tuple[str, ...], bool] = {}
        self._conditions: set[str] = set()

    def location(self, parts: tuple[Part, ...], *, of_set: bool = False) -> bool:
        """Check the schemas of a location and of all below; tell whether one of them is annotated.

        ``of_set``: the location is ``add`` (or the like) of a set, whose items are reduced without an annotation of
        its own.
        """
        known = tuple(part.place for part in parts)
        if known in self._seen:
            return self._seen[known]
        self._seen[known] = False
        for part in parts:
            self._no_circle(part, ())
        every = [each for part in parts for each in closed(part, self._references, branches=True)]
        strategies = [found.strategy for each in every if (found := self._schema(each)) is not None]
        is_set = Strategy.SET in strategies
        annotated = [lower for lower in _beneath(every) if self.location(lower, of_set=is_set)]
        if annotated and not DESCENDS.intersection(strategies) and not of_set:
            above = known[0] or "the root of the schema"
            raise DefinitionError(
                f"{annotated[0][0].place}: the annotations here never apply: {above} is "
                f"{min(strategies, default=DEFAULT.strategy)}, which does not look at its parts; "
                f'give it `"reduce": {{"strategy": "merge"}}`'
            )
        self._seen[known] = bool(strategies or annotated)
        return self._seen[known]

    def _schema(self, part: Part) -> Annotation | None:
        self._keywords(part)
        for condition in conditions(part):
            self._condition(condition)
        if "reduce" not in fields(part):
            return None
        found = self._read(part)
        types = TYPES
        for each in closed(part, self._references):
            types &= types_of(fields(each), each.place)
        check_types(found, types)
        return found

    def _condition(self, part: Part) -> None:
        if part.place in self._conditions:
            return
        self._conditions.add(part.place)
        self._no_circle(part, ())
        for each in closed(part, self._references, branches=True):
            self._keywords(each)
            for lower in (*below(each), *conditions(each)):
                self._condition(lower)

    def _no_circle(self, part: Part, way: tuple[str, ...]) -> None:
        if part.place in way:
            raise DefinitionError(f"{part.place or 'the root of the schema'}: refers to itself at one location")
        target = self._references.target(part)
        found = fields(part)
        deciding = [Part(f"{part.place}/{keyword}", found[keyword]) for keyword in ("if", "not") if keyword in found]
        for each in (*([] if target is None else [target]), *in_place(part), *deciding):
            self._no_circle(each, (*way, part.place))

    def _keywords(self, part: Part) -> None:
        found = fields(part)
        for keyword in REFUSED:
            if keyword in found:
                raise DefinitionError(f"{part.place}/{keyword}: not understood in a schema with reductions: remove it")
        types_of(found, part.place)
        named(part, "patternProperties")
        if "pattern" in found:
            pattern(found["pattern"], f"{part.place}/pattern")
        for keywords, fits, what in (
            (_NUMBERS, is_number, "a number"),
            (_COUNTS, _is_count, "a number of 0 or more"),
            (_LISTS, _is_list, "a list"),
            (("dependentRequired",), _is_object, "an object"),
        ):
            for keyword in keywords:
                if keyword in found and not fits(found[keyword]):
                    raise DefinitionError(f"{part.place}/{keyword}: must be {what}, not {shown(found[keyword])}")
        if found.get("multipleOf") == 0:
            raise DefinitionError(f"{part.place}/multipleOf: must not be 0")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _beneath(every: list[Part]) -> Iterator[tuple[Part, ...]]:
    """Yield the schemas of each location below: of a named property all that speak of it, of others each alone."""
    for name in dict.fromkeys(name for part in every for name in named(part, "properties")):
        yield tuple(each for part in every for each in property_parts(part, name))
    properties = {part.place + pointer(("properties", name)) for part in every for name in named(part, "properties")}
    yield from ((each,) for part in every for each in below(part) if each.place not in properties)
