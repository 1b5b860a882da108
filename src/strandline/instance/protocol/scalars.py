"""Scalar expressions as plain values: Spark SQL text where the text reads back as the same tree, else the tree itself.

A rule looks at an expression's tree, and certificates name the text of a plan.  So what is read must be the same tree,
and not only another one with the same text.  Spark's text alone does not say which tree it was written from:

- `HasValue` and `Known` are written as what Spark computes for them.  Here they are calls of reserved names.
- A cast that the planner composes (`algebra.scalar.cast`) holds its type as it was given; one that is read holds a
  parsed type, which is written in capitals.  Here the former is a call of a reserved name, too.
- ``DATE '2020-01-01'`` is read as a cast, and written as one that is read as another kind of cast.  Here it is written
  as it was.
- A function's name is written in capitals.  Here it is written as it was.

`packed` compares the tree that its text reads back as with the original.  If they differ (an author calls a function
by a reserved name), or reading would need a deep stack, the value is the list of the tree's nodes, each after those
below it.  No difference that counts is lost; comments, positions and inferred types are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.generators.spark import SparkGenerator

from strandline.algebra.scalar import Faithful, HasValue, Known, Scalar, scalar

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
