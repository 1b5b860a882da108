"""Conditions over values that may be missing because an expression failed: what is surely so, and what may be.

Spark evaluates the terms of a condition in an order of its own, and leaves terms out once the outcome is known.  So a
condition is judged without an order: AND is false if any term is false, OR is true if any term is true, whatever the
other terms raise.  A row is *in* if the condition is surely true, *out* if it cannot be true, and else an error.

`HasValue` is the one primitive: whether an expression has a value for a row (NULL is one).  Its operand is evaluated
under a guard, so it never fails itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sqlglot import exp

from strandline.algebra.scalar import HasValue, Scalar, binary, call, case, conjunction, operand

_NEVER_FAILS: Final = (exp.Boolean, exp.Column, exp.Literal, exp.Null)


def certain(tree: exp.Expr) -> bool:
    """Tell whether an expression has a value for every row: columns, literals, and logic over them.

    A comparison is not certain: its operands may have two types, and Spark's cast of one of them may fail.

    >>> from strandline.algebra.scalar import scalar
    >>> [certain(scalar(sql).tree) for sql in ("a", "NOT (a AND b IS NULL)", "a = b", "1 / a")]
    [True, True, False, False]
    """
    match tree:
        case exp.Paren(this=inner) | exp.Not(this=inner):
            return certain(inner)
        case exp.And() | exp.Or():
            return certain(tree.this) and certain(tree.expression)
        case exp.Is(this=inner, expression=exp.Null()):
            return certain(inner)
        case _:
            return isinstance(tree, _NEVER_FAILS)


def terms(tree: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the terms that must all be true for ``tree`` to be true.

    >>> from strandline.algebra.scalar import scalar, text
    >>> [text(each) for each in terms(scalar("(a AND NOT (b OR c)) AND d BETWEEN e AND f").tree)]
    ['a', 'NOT b', 'NOT c', 'd >= e', 'd <= f']
    >>> [text(each) for each in terms(scalar("CASE WHEN a THEN b ELSE false END").tree)]
    ['a', 'b']
    """
    parts = _all_of(tree)
    if parts is None:
        yield tree
    else:
        for part in parts:
            yield from terms(part)


def _all_of(tree: exp.Expr) -> tuple[exp.Expr, ...] | None:
    """Return what must all be true for ``tree`` to be true, one level down; None if it is one term."""
    match tree:
        case exp.Paren(this=inner):
            return (inner,)
        case exp.And(this=left, expression=right):
            return left, right
        case exp.Between(this=value) if not tree.args.get("symmetric"):
            return binary(exp.GTE, value, tree.args["low"]), binary(exp.LTE, value, tree.args["high"])
        case exp.Not(this=inner):
            return _none_of(inner)
        case exp.If(this=condition, args={"true": then}) if _never(tree.args.get("false")):
            return condition, then
        case exp.Case(args={"ifs": [branch]}) if tree.args.get("this") is None and _never(tree.args.get("default")):
            return branch.this, branch.args["true"]
        case exp.Anonymous(expressions=[value, otherwise]) if tree.name.lower() == "coalesce" and _never(otherwise):
            return (value,)
        case _:
            return None


def _none_of(tree: exp.Expr) -> tuple[exp.Expr, ...] | None:
    """Return what must all be true for ``tree`` to be false, one level down; None if only ``NOT tree`` says it."""
    match tree:
        case exp.Paren(this=inner):
            return _none_of(inner)
        case exp.Not(this=inner):
            return (inner,)
        case exp.Or(this=left, expression=right):
            return exp.Not(this=operand(left)), exp.Not(this=operand(right))
        case _:
            return None


def _never(otherwise: exp.Expr | None) -> bool:
    """Tell whether a branch is never true."""
    return (
        otherwise is None
        or isinstance(otherwise, exp.Null)
        or (isinstance(otherwise, exp.Boolean) and not otherwise.this)
    )


def surely(conditions: Iterable[Scalar]) -> Scalar:
    """Return the condition that all ``conditions`` are true, whatever is missing."""
    return Scalar(conjunction(_judged(each.tree, truth=True, sure=True) for each in conditions))


def possibly(conditions: Iterable[Scalar]) -> Scalar:
    """Return the condition that none of ``conditions`` is known not to be true."""
    return Scalar(conjunction(_judged(each.tree, truth=True, sure=False) for each in conditions))


def _judged(tree: exp.Expr, *, truth: bool, sure: bool) -> exp.Expr:
    """Return whether ``tree`` is surely (or possibly) true (or false, for ``truth`` False): never NULL, never failing.

    >>> from strandline.algebra.scalar import scalar, text
    >>> text(_judged(scalar("NOT (a AND b)").tree, truth=True, sure=True))
    'COALESCE(NOT a, FALSE) OR COALESCE(NOT b, FALSE)'
    """
    parts = _all_of(tree) if truth else _none_of(tree)
    if parts is not None:
        return conjunction(_judged(part, truth=True, sure=sure) for part in parts)
    match tree:
        case exp.Paren(this=inner):
            return _judged(inner, truth=truth, sure=sure)
        case exp.Not(this=inner):
            return _judged(inner, truth=not truth, sure=sure)
        case exp.Or(this=left, expression=right) | exp.And(this=left, expression=right):
            either = (_judged(each, truth=truth, sure=sure) for each in (left, right))
            return binary(exp.Or, *either)
        case _:
            said = tree if truth else exp.Not(this=operand(tree))
            holds = call("COALESCE", said, exp.false())
            return (
                holds if certain(tree) else case(HasValue(this=tree.copy()), holds, exp.false() if sure else exp.true())
            )


def tried(conditions: Iterable[Scalar]) -> tuple[Scalar, ...]:
    """Return the parts of conditions that may fail: the leaves of their logic."""
    return tuple(dict.fromkeys(Scalar(leaf) for each in conditions for leaf in _leaves(each.tree)))


def _leaves(tree: exp.Expr) -> Iterator[exp.Expr]:
    if certain(tree):
        return
    parts = _all_of(tree)
    match tree:
        case _ if parts is not None:
            for part in parts:
                yield from _leaves(part)
        case exp.Not(this=inner):
            yield from _leaves(inner)
        case exp.And(this=left, expression=right) | exp.Or(this=left, expression=right):
            yield from _leaves(left)
            yield from _leaves(right)
        case _:
            yield tree


def have_values(expressions: Iterable[Scalar]) -> Scalar:
    """Return the condition that each of ``expressions`` has a value."""
    return Scalar(conjunction(HasValue(this=each.tree.copy()) for each in expressions))
