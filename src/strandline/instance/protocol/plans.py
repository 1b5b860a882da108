"""Plans as plain values: how each kind of record that a message holds becomes maps, lists and texts, and comes back.

A record is a map of its fields by their names.  Where a field may hold records of several kinds, the map also says
which one, under ``is``.  The kinds are those of `RECORDS` and no others: a name that a peer sends is looked up there,
and nothing is imported or called by it.  What a field holds follows from its annotation, and is checked both ways.

A reader skips fields that it does not know, and takes the default for a field that is missing.  So a later version may
add a field that has a default.  It must raise `codec.FORMAT` if an older reader that skips the field would do
something else than what is asked.

Every field is sent, also those that are no part of a comparison or of a text (`Opaque.first`, `RunDataflow.seed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec

from strandline.algebra.first import First, Order
from strandline.algebra.nodes import (
    Accumulate,
    Accumulator,
    Aggregate,
    Constant,
    Equal,
    Failing,
    Filter,
    Get,
    Join,
    Key,
    Negate,
    Newest,
    Opaque,
    Project,
    Reduce,
    Regroup,
    Replay,
    Restrict,
    UnionAll,
)
from strandline.algebra.scalar import Scalar
from strandline.algebra.schema import Column, Schema
from strandline.compute.sink.disagreement import Disagreement
from strandline.compute.stage import LINEAR, Stage
from strandline.frontier.antichain import Frontier
from strandline.frontier.refresh import Every, Refresh
from strandline.instance.commands import (
    Collection,
    Output,
    RunDataflow,
    RunIndex,
    RunIngestion,
    RunMaterialization,
)
from strandline.instance.protocol import scalars
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.persist.shard.batch import Digest
from strandline.problem import Case, Way

RECORDS: Final[Mapping[str, type]] = {
    "Get": Get,
    "Constant": Constant,
    "Project": Project,
    "Filter": Filter,
    "Join": Join,
    "UnionAll": UnionAll,
    "Reduce": Reduce,
    "Opaque": Opaque,
    "Negate": Negate,
    "Accumulate": Accumulate,
    "Regroup": Regroup,
    "Replay": Replay,
    "Restrict": Restrict,
    "Failing": Failing,
    "Newest": Newest,
    # what nodes hold
    "Equal": Equal,
    "Aggregate": Aggregate,
    "Accumulator": Accumulator,
    "Key": Key,
    "First": First,
    "Order": Order,
    "Schema": Schema,
    "Column": Column,
    # what is run
    "RunIngestion": RunIngestion,
    "RunDataflow": RunDataflow,
    "RunMaterialization": RunMaterialization,
    "RunIndex": RunIndex,
    # what that holds
    "Collection": Collection,
    "Output": Output,
    "Stage": Stage,
    "Refresh": Refresh,
    "Every": Every,
    "MaterializationSpec": MaterializationSpec,
    "Binding": Binding,
    "Frontier": Frontier,
    # what is reported
    "Disagreement": Disagreement,
    "Digest": Digest,
    "Case": Case,
    "Way": Way,
}
"""Every kind of record that a message may hold, by its name in frames.  Renaming a class must not change the name."""

_NAMES: Final = {kind: name for name, kind in RECORDS.items()}
_KIND: Final = "is"
"""Where a map says which kind of record it is.  It is a keyword of Python, so that no field has this name."""
_ATOMS: Final = (bool, bytes, int, str)


class Form(Protocol):
    """How the values of one annotation become plain values, and come back."""

    def packed(self, value: Any) -> Any:
        """Return ``value`` as a plain value.  Raises `ValueError` if it is not what the annotation says."""
        ...

    def unpacked(self, value: Any) -> Any:
        """Return what `packed` gave it for.  May raise any error if that gave it for nothing."""
        ...


@cache
def form(annotation: Any) -> Form:
    """Return the form of an annotation.

    >>> form(tuple[int, ...]).packed((1, 2)), form(frozenset[str]).packed(frozenset("ba"))
    ([1, 2], ['a', 'b'])
    >>> form(Frontier | None).unpacked({"at": 3, "from a later version": 4})
    Frontier(at=3)
    >>> form(str).unpacked(3)
    Traceback (most recent call last):
        ...
    ValueError: str is due, and not int

    Raises `TypeError` for an annotation that no message may have.
    """
    arguments = get_args(annotation)
    match get_origin(annotation):
        case None if annotation in _ATOMS:
            return _Atom(annotation)
        case None if annotation is Any:
            return _Whatever()
        case None if annotation is Scalar:
            return _Expression()
        case None if annotation in _NAMES:
            return Record(annotation)
        case origin if origin is tuple:
            return _Series(arguments[0]) if arguments[1:] == (...,) else _Row(arguments)
        case origin if origin in (dict, Mapping) and arguments[0] is str:
            return _Named(arguments[1])
        case origin if origin is frozenset:
            return _Sorted(arguments[0])
        case origin if origin in (Union, UnionType):
            others = tuple(each for each in arguments if each is not NoneType)
            inner: Form = form(others[0]) if len(others) == 1 else _OneOf(others)
            return _Optional(inner) if len(others) < len(arguments) else inner
        case _:
            raise TypeError(f"no message may hold a {annotation}: name its kind in `RECORDS`")


@dataclass(frozen=True, slots=True)
class _Atom:
    """A number, a text, bytes, or true and false."""

    kind: type

    def packed(self, value: Any) -> Any:
        if not isinstance(value, self.kind) or (isinstance(value, bool) and self.kind is int):
            raise ValueError(f"{self.kind.__name__} is due, and not {type(value).__name__}")
        return value

    unpacked = packed


@dataclass(frozen=True, slots=True)
class _Whatever:
    """What an endpoint's options hold: values of JSON."""

    def packed(self, value: Any) -> Any:
        return value

    unpacked = packed


@dataclass(frozen=True, slots=True)
class _Expression:
    """A scalar expression."""

    def packed(self, value: Any) -> Any:
        return scalars.packed(value)

    def unpacked(self, value: Any) -> Any:
        return scalars.unpacked(value)


@dataclass(frozen=True, slots=True)
class _Optional:
    """Something, or None."""

    inner: Form

    def packed(self, value: Any) -> Any:
        return None if value is None else self.inner.packed(value)

    def unpacked(self, value: Any) -> Any:
        return None if value is None else self.inner.unpacked(value)


@dataclass(frozen=True, slots=True)
class _Series:
    """A tuple of any length."""

    of: Any

    def packed(self, value: Any) -> Any:
        inner = form(self.of)
        return [inner.packed(each) for each in value]

    def unpacked(self, value: Any) -> Any:
        inner = form(self.of)
        return tuple([inner.unpacked(each) for each in _list(value)])


@dataclass(frozen=True, slots=True)
class _Row:
    """A tuple of as many values as there are annotations."""

    of: tuple[Any, ...]

    def packed(self, value: Any) -> Any:
        return [form(kind).packed(each) for kind, each in zip(self.of, value, strict=True)]

    def unpacked(self, value: Any) -> Any:
        return tuple([form(kind).unpacked(each) for kind, each in zip(self.of, _list(value), strict=True)])


@dataclass(frozen=True, slots=True)
class _Sorted:
    """A set, as a list in order: equal sets have equal bytes."""

    of: Any

    def packed(self, value: Any) -> Any:
        return sorted(map(form(self.of).packed, value))

    def unpacked(self, value: Any) -> Any:
        return frozenset(map(form(self.of).unpacked, _list(value)))


@dataclass(frozen=True, slots=True)
class _Named:
    """Values by name, in their order."""

    of: Any

    def packed(self, value: Any) -> Any:
        inner = form(self.of)
        return {_NAME.packed(name): inner.packed(each) for name, each in value.items()}

    def unpacked(self, value: Any) -> Any:
        inner = form(self.of)
        return {_NAME.unpacked(name): inner.unpacked(each) for name, each in _map(value).items()}


_NAME: Final = _Atom(str)


@dataclass(frozen=True, slots=True)
class _OneOf:
    """A record of one of several kinds."""

    kinds: tuple[type, ...]

    def packed(self, value: Any) -> Any:
        kind = type(value)
        if kind not in self.kinds:
            raise ValueError(f"one of {self._due} is due, and not {kind.__name__}")
        return {_KIND: _NAMES[kind], **Record(kind).packed(value)}

    def unpacked(self, value: Any) -> Any:
        name = _map(value).get(_KIND)
        for kind in self.kinds:
            if _NAMES[kind] == name:
                return Record(kind).unpacked(value)
        raise ValueError(f"one of {self._due} is due, and not {str(name)[:80]!r}")

    @property
    def _due(self) -> str:
        return ", ".join(_NAMES[kind] for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass or a struct of msgspec, by the names of its fields."""

    kind: type

    def packed(self, value: Any) -> dict[str, Any]:
        """See `Form.packed`."""
        return {name: form(annotation).packed(getattr(value, name)) for name, annotation, _ in _fields(self.kind)}

    def unpacked(self, value: Any) -> Any:
        """See `Form.unpacked`."""
        found = {}
        for name, annotation, needed in _fields(self.kind):
            if name in _map(value):
                found[name] = form(annotation).unpacked(value[name])
            elif needed:
                raise ValueError(f"a {self.kind.__name__} has no {name!r}")
        made = self.kind(**found)
        if isinstance(made, Stage) and made.rule is None and made.kind != LINEAR:
            raise ValueError(f"the stage {made.name!r} is maintained by a rule that is not known here: {made.kind!r}")
        return made


@cache
def _fields(kind: type) -> tuple[tuple[str, Any, bool], ...]:
    """Return of each field of a record its name, its annotation, and whether it has no default."""
    hints = get_type_hints(kind)
    if issubclass(kind, msgspec.Struct):
        return tuple((each.name, hints[each.name], each.required) for each in msgspec.structs.fields(kind))
    return tuple(
        (each.name, hints[each.name], each.default is MISSING and each.default_factory is MISSING)
        for each in fields(kind)  # type: ignore[arg-type]  # what is no struct is a dataclass
    )


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"list is due, and not {type(value).__name__}")
    return value


def _map(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"map is due, and not {type(value).__name__}")
    return value
