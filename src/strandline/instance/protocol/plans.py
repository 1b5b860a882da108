"""Plans as plain values: how each record and expression in a message becomes maps, lists and texts, and comes back.

A record is a map of its fields by their names.  Where a field may hold records of several kinds, the map also says
which one, under ``is``.  The kinds are those of `RECORDS` and no others: a name that a peer sends is looked up there,
and nothing is imported or called by it.  The form of a field's value follows from the field's annotation, and is
checked both ways.  Every field is sent, also those that are no part of a comparison or of a text (`Opaque.first`,
`RunDataflow.seed`).

A reader skips unknown fields, and takes the default for a missing field.  So a later version may add a field that has a
default.  It must raise `codec.FORMAT` if an older reader that skips the field would do something else than is asked.

A scalar expression is Spark SQL text where the text reads back as the same tree, else the tree itself (`packed`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.generators.spark import SparkGenerator

from strandline.algebra.nodes import (
    Accumulate,
    Accumulator,
    Aggregate,
    Constant,
    Equal,
    Failing,
    Filter,
    First,
    Get,
    Join,
    Key,
    Negate,
    Newest,
    Opaque,
    Order,
    Project,
    Reduce,
    Regroup,
    Replay,
    Restrict,
    UnionAll,
)
from strandline.algebra.scalar import Faithful, HasValue, Known, Scalar, scalar
from strandline.algebra.schema import Column, Schema
from strandline.compute.sink.correction import Disagreement
from strandline.compute.stage import LINEAR, Stage
from strandline.frontier import Every, Frontier, Refresh
from strandline.instance.commands import (
    Collection,
    Output,
    RunDataflow,
    RunIndex,
    RunIngestion,
    RunMaterialization,
)
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.persist.shard.batch import Digest
from strandline.problem import Case, Way

DEPTH_MAX: Final = 24
"""A deeper tree is not sent as text: sqlglot takes 20 frames of Python's stack for a level, of 1000 that there are."""
_HAS_VALUE: Final = "__has_value"
_KNOWN: Final = "__known"
_CAST: Final = "__cast"
_RESERVED: Final = "__"

_KINDS: Final[Mapping[str, type[exp.Expr]]] = {
    kind.__name__: kind
    for kind in (*vars(exp).values(), HasValue, Known)
    if isinstance(kind, type) and issubclass(kind, exp.Expr)
}
"""The kinds of nodes that a tree may have: no other class is ever made of a value."""
_OF_THE_DIALECT: Final = frozenset({"safe", "typed"})
"""What a parser notes at a division of its dialect, and the planner does not: the same for all of ours."""


def packed(expression: Scalar) -> str | list[Any]:
    """Return ``expression`` as a plain value.

    >>> from strandline.algebra.scalar import cast, column
    >>> packed(scalar("Upper(`a`) > DATE '2020-01-01'")), packed(Scalar(HasValue(this=cast(column("a"), "int"))))
    ("Upper(`a`) > DATE '2020-01-01'", "__has_value(__cast(`a`, 'int'))")
    >>> packed(scalar("__has_value(1)"))
    [['Literal', {'is_string': False, 'this': '1'}], ['Anonymous', {'expressions': [{'at': 0}], 'this': '__has_value'}]]

    Raises `ValueError` if the tree holds what no tree of SQL does.

    A rule looks at an expression's tree, and certificates name the text of a plan.  So the tree that is read must be
    the same one, and not only another one with the same text.  Spark's text alone does not say which tree it was
    written from:

    - `HasValue` and `Known` are written as what Spark computes for them.  Here they are calls of reserved names.
    - A cast that the planner composes (`algebra.scalar.cast`) holds its type as it was given; one that is read holds a
      parsed type, which is written in capitals.  Here the former is a call of a reserved name, too.
    - ``DATE '2020-01-01'`` is read as a cast, and written as one that is read as another kind of cast.  Here it is
      written unchanged.
    - A function's name is written in capitals.  Here it is written unchanged.

    The tree that the text reads back as is compared with the original.  If they differ (an author calls a function by a
    reserved name), or reading would need a deep stack, the value is the list of the tree's nodes, each after those
    below it.  Only comments, positions and inferred types are lost.
    """
    nodes, depth = _flattened(expression.tree)
    if depth <= DEPTH_MAX:
        written = expression.tree.sql(dialect=_Carried, comments=False, normalize_functions=False)
        try:
            if _significant(_flattened(_read(written))[0]) == _significant(nodes):
                return written
        except SqlglotError:
            pass  # what is not read is not sent
    return nodes


def unpacked(value: object) -> Scalar:
    """Return the expression that `packed` gave.

    Any error may be raised for another value, which is what a parser makes of it.

    >>> unpacked("__has_value(`a`)").sql == Scalar(HasValue(this=scalar("`a`").tree)).sql
    True
    """
    match value:
        case str():
            found = Scalar(_read(value))
        case list():
            found = Scalar(_built(value))
        case _:
            raise ValueError(f"a {type(value).__name__} stands where an expression is due")
    found.sql  # noqa: B018 - writes it: what cannot be written fails here, and not in a step
    return found


# ---- as text ---------------------------------------------------------------------------------------------------------


def _as_call(name: str, *arguments: str) -> Callable[[SparkGenerator, exp.Expr], str]:
    """Return how a node is written as a call of a reserved name, with these of its arguments."""

    def write(generator: SparkGenerator, tree: exp.Expr) -> str:
        return generator.func(name, *(tree.args[each] for each in arguments), normalize=False)

    return write


def _cast(generator: SparkGenerator, tree: exp.Cast) -> str:
    if isinstance(tree.to, exp.Var):
        return generator.func(_CAST, tree.this, exp.Literal.string(tree.to.name), normalize=False)
    if tree.this.is_string:
        return f"{generator.sql(tree, 'to')} {generator.sql(tree, 'this')}"
    return generator.cast_sql(tree)


class _Carried(Faithful):
    """`Faithful`, but what reads back as another tree is written so that it does not."""

    class Generator(Faithful.Generator):
        """Writes the nodes that have no text of their own as calls."""

        TRANSFORMS: ClassVar[dict[Any, Any]] = {
            **Faithful.Generator.TRANSFORMS,
            HasValue: _as_call(_HAS_VALUE, "this"),
            Known: _as_call(_KNOWN, "this", "mark"),
            exp.Cast: _cast,
        }


def _read(text: str) -> exp.Expr:
    """Return the tree of a text, the calls of reserved names in it as the nodes that they stand for."""
    root = scalar(text).tree
    if _RESERVED not in text:
        return root
    for call in reversed(list(root.find_all(exp.Anonymous))):  # from below: a call may hold others
        found = _special(call)
        if call is root:
            return found
        if found is not call:
            call.replace(found)
    return root


def _special(call: exp.Anonymous) -> exp.Expr:
    """Return the node that a call stands for: itself, if its name is not reserved."""
    match call.name, call.expressions:
        case "__has_value", [value]:
            return HasValue(this=value.pop())
        case "__known", [value, mark]:
            return Known(this=value.pop(), mark=mark.pop())
        case "__cast", [value, exp.Literal(is_string=True) as type_]:
            return exp.Cast(this=value.pop(), to=exp.Var(this=type_.name))
        case _:
            return call


# ---- as a list of nodes ----------------------------------------------------------------------------------------------


def _flattened(tree: exp.Expr) -> tuple[list[Any], int]:
    """Return the nodes of ``tree``, each as ``[kind, arguments]`` after those below it, and how deep the tree is."""
    order = list(tree.walk())[::-1]
    place = {id(node): at for at, node in enumerate(order)}
    if len(place) < len(order):  # one node is in two places
        return _flattened(tree.copy())
    depths: list[int] = []
    nodes: list[Any] = []
    for node in order:
        left_out = _OF_THE_DIALECT if isinstance(node, exp.Div) else ()
        held = sorted(name for name, value in node.args.items() if value is not None and name not in left_out)
        depths.append(1 + max((depths[place[id(each)]] for each in node.iter_expressions()), default=0))
        nodes.append([_kind(node), {name: _argument(node.args[name], place) for name in held}])
    return nodes, depths[-1]


def _significant(nodes: list[Any]) -> list[Any]:
    """Return ``nodes`` without arguments that are false or empty: sqlglot means the same by an absent one."""
    return [
        [kind, {name: each for name, each in arguments.items() if each is not False and each != []}]
        for kind, arguments in nodes
    ]


def _kind(node: exp.Expr) -> str:
    name = type(node).__name__
    if _KINDS.get(name) is not type(node):
        raise ValueError(f"an expression holds a {name}, which is no node that can be sent")
    return name


def _argument(value: Any, place: Mapping[int, int]) -> Any:
    match value:
        case exp.Expr():
            return {"at": place[id(value)]}
        case exp.DType():
            return {"type": value.value}
        case list():
            return [_argument(each, place) for each in value]
        case str() | int():
            return value
        case _:
            raise ValueError(f"an expression holds a {type(value).__name__}, which no text of SQL does")


def _built(nodes: list[Any]) -> exp.Expr:
    """Return the tree of a list of nodes, each of which but the last is in one place of it."""
    free: dict[int, exp.Expr] = {}
    for at, (kind, arguments) in enumerate(nodes):
        free[at] = _KINDS[kind](**{name: _value(each, free) for name, each in arguments.items()})
    (root,) = free.values()
    return root


def _value(value: Any, free: dict[int, exp.Expr]) -> Any:
    match value:
        case {"at": int(at)}:
            return free.pop(at)
        case {"type": str(type_)}:
            return exp.DType(type_)
        case list():
            return [_value(each, free) for each in value]
        case _:
            return value


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
        return packed(value)

    def unpacked(self, value: Any) -> Any:
        return unpacked(value)


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
