"""Which annotation applies at which location of a document.

Several schemas may speak of one location: that of ``properties``, what it refers to, the branches of ``allOf``, and of
``anyOf``, ``oneOf`` and ``if`` those that the value there fits.  The *nearest* annotation applies: a schema's own one
before those of the schemas in it.  If two equally near ones differ, the schema is refused, or the document is if only
its value shows it.  Without an annotation a location is ``lastWriteWins``.

Annotations are found for a *value*.  A reduction asks for those of the value on its right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from strandline.errors import DefinitionError
from strandline.materialize.reduce.annotations import DEFAULT, DEMANDED, TYPES, Annotation, annotation, types_of
from strandline.materialize.reduce.checks import check, closed
from strandline.materialize.reduce.conditions import item_parts, property_parts, taken, valid
from strandline.materialize.reduce.schemas import Part, References, fields, listed, named
from strandline.materialize.reduce.values import Value

_Ranked = tuple[int, Part]
_CONDITIONAL: Final = ("anyOf", "oneOf", "if")


class Applied:
    """What applies at a location for a value: its annotation, and the schemas that speak of the locations below."""

    def __init__(self, schema: Annotated, found: Annotation, parts: tuple[_Ranked, ...]) -> None:
        self.annotation = found
        self.parts = parts
        self._schema = schema
        self._declared = frozenset(name for _, part in parts for name in named(part, "properties"))
        self._named: dict[str, Location] = {}

    def property(self, name: str) -> Location:
        """Return the location of the property ``name``."""
        if name in self._named:
            return self._named[name]
        found = [(rank, each) for rank, part in self.parts for each in property_parts(part, name)]
        location = self._schema.location(tuple(found))
        if name in self._declared:  # the names of a map have no end
            self._named[name] = location
        return location

    def item(self, index: int) -> Location:
        """Return the location of the item at ``index``."""
        found = [(rank, each) for rank, part in self.parts for each in item_parts(part, index)]
        return self._schema.location(tuple(found))


class Location:
    """A location of documents, as the schemas see it that speak of it."""

    def __init__(self, schema: Annotated, parts: tuple[_Ranked, ...]) -> None:
        self._schema = schema
        self._parts = parts
        self._fixed = tuple(each for _, part in parts for each in schema.closed(part))
        self._known: dict[tuple[tuple[int, str], ...], Applied] = {}
        self.conditional = any(keyword in fields(part) for part in self._fixed for keyword in _CONDITIONAL)
        self._always = None if self.conditional else self._apply(None)

    def applied(self, value: Value) -> Applied:
        """Return what applies if ``value`` is here.

        Raises:
            DefinitionError: two equally near annotations differ.
        """
        return self._always or self._apply(value)

    def admits_null(self) -> bool:
        """Tell whether null may be here: not if a type forbids it, or the strategy is for other types."""
        return "null" in self.types() and self.applied(None).annotation.strategy not in DEMANDED

    def types(self) -> frozenset[str]:
        """Return the types that may be here, whatever the conditions say."""
        found = TYPES
        for part in self._fixed:
            found &= types_of(fields(part), part.place)
        return found

    def _apply(self, value: Value) -> Applied:
        parts = tuple(each for rank, part in self._parts for each in self._schema.expanded(part, rank, value))
        known = tuple((rank, part.place) for rank, part in parts)
        if known not in self._known:
            self._known[known] = Applied(self._schema, self._nearest(parts), parts)
        return self._known[known]

    def _nearest(self, parts: tuple[_Ranked, ...]) -> Annotation:
        found = [(rank, self._schema.annotation(part)) for rank, part in parts if "reduce" in fields(part)]
        least = min((rank for rank, _ in found), default=0)
        nearest = [each for rank, each in found if rank == least]
        for each in nearest[1:]:
            if each != nearest[0]:
                raise DefinitionError(f"{nearest[0].place} and {each.place} both apply, and differ: remove one of them")
        return nearest[0] if nearest else DEFAULT


class Annotated:
    """A JSON Schema whose annotations were read and checked.

    >>> schema = Annotated({"reduce": {"strategy": "merge"}, "properties": {"n": {"reduce": {"strategy": "sum"}}}})
    >>> schema.root.applied({"n": 1}).property("n").applied(1).annotation.strategy.value
    'sum'

    Raises:
        DefinitionError: the schema, an annotation or a reference has a fault; the message names its place.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._references = References(schema)
        self._annotations: dict[str, Annotation] = {}
        self._locations: dict[tuple[tuple[int, str], ...], Location] = {}
        check(self._references, self.annotation)
        self.root = self.location(((0, self._references.root),))
        self._resolve(self.root, set())

    @property
    def annotations(self) -> list[Annotation]:
        """Every annotation of the schema that may apply, by place."""
        return [self._annotations[place] for place in sorted(self._annotations)]

    def location(self, parts: tuple[_Ranked, ...]) -> Location:
        """Return the location that ``parts`` speak of.

        Their distances are numbered anew, in their order: a schema that refers to itself has finitely many locations.
        """
        ranks = sorted({rank for rank, _ in parts})
        parts = tuple((ranks.index(rank), part) for rank, part in parts)
        known = tuple((rank, part.place) for rank, part in parts)
        if known not in self._locations:
            self._locations[known] = Location(self, parts)
        return self._locations[known]

    def annotation(self, part: Part) -> Annotation:
        """Return the annotation of the schema ``part``, which has one."""
        if part.place not in self._annotations:
            self._annotations[part.place] = annotation(fields(part)["reduce"], f"{part.place}/reduce")
        return self._annotations[part.place]

    def closed(self, part: Part) -> Iterator[Part]:
        """Yield ``part`` and the schemas in it that apply whatever the value is."""
        return closed(part, self._references)

    def expanded(self, part: Part, rank: int, value: Value) -> Iterator[_Ranked]:
        """Yield ``part`` and the schemas in it that apply to ``value``, each with how far it is."""
        yield rank, part
        target = self._references.target(part)
        branches = [] if target is None else [target]
        branches += listed(part, "allOf")
        for keyword in ("anyOf", "oneOf"):
            branches += (each for each in listed(part, keyword) if valid(each, value, self._references))
        branch = taken(part, value, self._references)
        for each in branches if branch is None else [*branches, branch]:
            yield from self.expanded(each, rank + 1, value)

    def _resolve(self, location: Location, seen: set[int]) -> None:
        """Find the annotations of all locations that depend on no value, so that contradictions show at once."""
        if location.conditional or id(location) in seen:
            return
        seen.add(id(location))
        applied = location.applied(None)
        for _, part in applied.parts:
            for name in named(part, "properties"):
                self._resolve(applied.property(name), seen)
            for index in range(len(list(listed(part, "prefixItems"))) + 1):
                self._resolve(applied.item(index), seen)
