"""Which annotation applies at which location of a document.

Several schemas may speak of one location: that of ``properties``, what it refers to, the branches of ``allOf``, and of
``anyOf``, ``oneOf`` and ``if`` those that the value there fits.  The *nearest* annotation applies: a schema's own one
before those of the schemas in it.  If two equally near ones differ, the schema is refused, or the document is if only
its value shows it.  Without an annotation a location is ``lastWriteWins``.

Annotations are found for a *value*.  A reduction asks for those of the value on its right.
"""

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
    annotation,
    check_types,
    demands,
    item_parts,
    property_parts,
    taken,
    types_of,
    valid,
)
from strandline.materialize.reduce.schemas import (
    REFUSED,
    Part,
    References,
    Value,
    below,
    conditions,
    fields,
    in_place,
    is_number,
    listed,
    named,
    pattern,
    pointer,
    shown,
)

_Ranked = tuple[int, Part]
_SAMPLES: Final[Mapping[str, Value]] = {"null": None, "string": ""}
_CONDITIONAL: Final = ("anyOf", "oneOf", "if")
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS: Final = tuple(
    f"{bound}{name}" for bound in ("min", "max") for name in ("Length", "Items", "Properties", "Contains")
)


class Resolved:
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
        self._known: dict[tuple[tuple[int, str], ...], Resolved] = {}
        self.conditional = any(keyword in fields(part) for part in self._fixed for keyword in _CONDITIONAL)
        self._always = None if self.conditional else self._apply(None)

    def resolved(self, value: Value) -> Resolved:
        """Return what applies if ``value`` is here.

        Raises:
            DefinitionError: two equally near annotations differ.
        """
        return self._always or self._apply(value)

    def admits(self, name: str) -> bool:
        """Tell whether a value of the type ``name`` may be here: its types and its strategy allow it."""
        return name in self.types() and name in demands(self.resolved(_SAMPLES[name]).annotation)

    def always(self) -> Resolved:
        """Return what applies whatever the value is."""
        if self._always is not None:
            return self._always
        parts = tuple(enumerate(self._fixed))
        return Resolved(self._schema, self._nearest(parts), parts)

    def types(self) -> frozenset[str]:
        """Return the types that may be here, whatever the conditions say."""
        found = TYPES
        for part in self._fixed:
            found &= types_of(fields(part), part.place)
        return found

    def _apply(self, value: Value) -> Resolved:
        parts = tuple(each for rank, part in self._parts for each in self._schema.expanded(part, rank, value))
        known = tuple((rank, part.place) for rank, part in parts)
        if known not in self._known:
            self._known[known] = Resolved(self._schema, self._nearest(parts), parts)
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
    >>> schema.root.resolved({"n": 1}).property("n").resolved(1).annotation.strategy.value
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
        resolved = location.resolved(None)
        for _, part in resolved.parts:
            for name in named(part, "properties"):
                self._resolve(resolved.property(name), seen)
            for index in range(len(list(listed(part, "prefixItems"))) + 1):
                self._resolve(resolved.item(index), seen)


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
            (("enum",), _is_list, "a list"),
            (("required",), _is_names, "a list of names"),
            (("dependentRequired",), _is_names_of_names, "an object of lists of names"),
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


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_names_of_names(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_names(each) for each in value.values())


def _beneath(every: list[Part]) -> Iterator[tuple[Part, ...]]:
    """Yield the schemas of each location below: of a named property all that speak of it, of others each alone."""
    for name in dict.fromkeys(name for part in every for name in named(part, "properties")):
        yield tuple(each for part in every for each in property_parts(part, name))
    properties = {part.place + pointer(("properties", name)) for part in every for name in named(part, "properties")}
    yield from ((each,) for part in every for each in below(part) if each.place not in properties)
