"""Stateless plans as sums of products, judged although expressions may fail.

Spark evaluates the terms of a condition in any order, and skips terms once the outcome is known.  So a condition is
judged without an order: AND is false if any term is false, OR is true if any term is true, whatever the other terms
raise.  A row is *in* if the condition is surely true, *out* if it cannot be true, and otherwise an error (`careful`).
The one primitive is `HasValue`: whether an expression has a value for a row (NULL is one).

`Products.of` moves all expressions up: conditions and projected values become expressions over the columns of the
leaves, and a union becomes one product for each branch.  So an expression is evaluated only once everything that may
drop its row, or its pair of rows, is known: as lazily as any plan of Spark's can be.

Two things must be computed below: how many rows a generator makes, and a side of a join that has too many branches
(`PRODUCTS_MAX`).  A failure there is passed on.  A row that may or may not be in becomes a row of a second product,
with its error in a column.  A value that fails is marked (`algebra.scalar.Known`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final, TypeAlias

from sqlglot import exp

from strandline.algebra.nodes import (
    Constant,
    Failing,
    Filter,
    Get,
    Join,
    Negate,
    Node,
    Project,
    UnionAll,
    joined,
    reads_only,
)
from strandline.algebra.scalar import HasValue, Known, Scalar, binary, call, case, column, columns, conjunction, operand
from strandline.algebra.schema import ERROR, RESERVED

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


Values: TypeAlias = tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Pairs of rows of ``leaves`` (rows, where there is one leaf) that fulfil ``conditions``, and ``values`` of them.

    The columns of all leaves have distinct names.  ``negative``: its rows are taken away from those of other products.
    ``error``: a column of a leaf with the error that each pair is.  It is not known whether such a pair would be in if
    nothing had failed: so the conditions can only leave it out, and it counts wherever it may be, ``negative`` or not.
    A value that a generator makes is not known of it.
    """

    leaves: tuple[Node, ...]
    conditions: tuple[Scalar, ...]
    values: Values
    negative: bool = False
    error: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of all leaves."""
        return tuple(name for leaf in self.leaves for name in leaf.names)

    def over(self, expression: Scalar) -> Scalar:
        """Return an expression over the values as one over the columns of the leaves."""
        return substituted(expression, dict(self.values))

    def projected(self, columns: Values) -> Product:
        """Return it with other values: ``columns``, expressions over those that it has."""
        return replace(self, values=tuple((name, self.over(value)) for name, value in columns))

    def filtered(self, predicate: Scalar) -> Product:
        """Return the rows that also fulfil ``predicate``, an expression over the values."""
        found = [Scalar(each) for each in terms(self.over(predicate).tree)]
        known = [each for each in found if not (self.error and each.generates)]
        return replace(self, conditions=tuple(dict.fromkeys((*self.conditions, *known))))


def substituted(expression: Scalar, values: Mapping[str, Scalar]) -> Scalar:
    """Return ``expression`` with the values in place of the columns that it names.

    >>> from strandline.algebra.scalar import scalar
    >>> substituted(scalar("a * b"), {"a": scalar("x + 1"), "b": scalar("y")}).sql
    '(x + 1) * y'
    """

    def put(node: exp.Expr) -> exp.Expr:
        found = values.get(node.name) if isinstance(node, exp.Column) else None
        if found is None or found.column == node.name:
            return node
        value = found.tree.copy()
        return value if node.parent is None else operand(value)

    return Scalar(expression.tree.copy().transform(put, copy=False))


_OPERAND: Final = f"{RESERVED}operand"


@dataclass(slots=True)
class Pairs:
    """Judges pairs.  ``where``: the collection named in the errors; ``shown``: how people know a leaf's column."""

    where: str
    shown: dict[str, str] = field(default_factory=dict)

    def split(self, product: Product) -> tuple[Node, list[Failing]]:
        """Return the pairs that are surely in, with all columns of the leaves, and those of which that is unknown."""
        if len(product.leaves) == 1:
            return self._certain(product.leaves[0], product.conditions, product.leaves)
        split = joined(product.leaves, product.conditions)
        own = [[each for each in split.on if reads_only(each, [leaf]) == 0] for leaf in product.leaves]
        leaves = [Filter(leaf, possibly(on)) if on else leaf for leaf, on in zip(product.leaves, own, strict=True)]
        computed: list[dict[Scalar, str]] = [{} for _ in leaves]
        equal = tuple(
            replace(each, left=_keyed(each.left, leaves, computed), right=_keyed(each.right, leaves, computed))
            for each in split.equal
        )
        pairs = Join(tuple(map(_with, leaves, computed)), equal)
        asked = {each for on in own for each in on if not tried([each])}  # of the leaves alone, and known of each row
        rows, unknown = self._certain(pairs, [each for each in split.on if each not in asked], product.leaves)
        for position, values in enumerate(computed):
            if values:
                unknown.append(self._unmatched(product, leaves, computed, position))
        return rows, unknown

    def tried(self, rows: Node, values: Sequence[Scalar], leaves: Sequence[Node]) -> tuple[Node, list[Failing]]:
        """Return the rows for which all ``values`` have a value, and the others, if one of them may have none."""
        doubtful = tuple(dict.fromkeys(value for value in values if not certain(value.tree)))
        if not doubtful:
            return rows, []
        failed = self.failing(Filter(rows, negated(have_values(doubtful))), doubtful, leaves)
        return Filter(rows, have_values(doubtful)), [failed]

    def failing(self, rows: Node, expressions: Sequence[Scalar], leaves: Sequence[Node]) -> Failing:
        """Return the errors of ``rows``: of those leaves that the expressions read."""
        read = frozenset(name for each in expressions for name in each.columns)
        owners = [leaf for leaf in leaves if read & frozenset(leaf.names)]
        names = [name for leaf in owners for name in leaf.names if name in self.shown]
        shown = [self.shown[name] for name in names]
        known = {n: Scalar(column(s)) for n, s in zip(names, shown, strict=True) if shown.count(s) == 1}
        row = tuple((known[name].column or name if name in known else name, name) for name in names)
        texts = tuple(substituted(_unmarked(each), known).sql for each in expressions)
        return Failing(rows, tuple(expressions), texts, row, self.where)

    def _certain(self, rows: Node, conditions: Sequence[Scalar], leaves: Sequence[Node]) -> tuple[Node, list[Failing]]:
        """Return the rows for which ``conditions`` are true, and those for which that is not known."""
        if not conditions:
            return rows, []
        unknown: list[Failing] = []
        if leaves_of := tried(conditions):
            either = Filter(rows, _both(possibly(conditions), negated(surely(conditions))))
            unknown.append(self.failing(either, leaves_of, leaves))
        return Filter(rows, surely(conditions)), unknown

    def _unmatched(
        self,
        product: Product,
        leaves: Sequence[Node],
        computed: Sequence[dict[Scalar, str]],
        position: int,
    ) -> Failing:
        """Return the pairs of rows of one leaf of which a key fails: each with all rows that it may meet."""
        sides = list(leaves)
        for before in range(position):
            if computed[before]:
                sides[before] = Filter(sides[before], have_values(computed[before]))
        sides[position] = Filter(sides[position], negated(have_values(computed[position])))
        return self.failing(possible(sides, product.conditions), tuple(computed[position]), product.leaves)


def possible(leaves: Sequence[Node], conditions: Iterable[Scalar]) -> Node:
    """Return the pairs of rows of ``leaves`` that may be in, whatever fails: only keys that are columns join them."""
    split = joined(leaves, conditions)
    plain = tuple(each for each in split.equal if each.left.column and each.right.column)
    others = (*(each.condition for each in split.equal if each not in plain), *split.on)
    rows = Join(split.inputs, plain) if len(leaves) > 1 else leaves[0]
    return Filter(rows, possibly(others)) if others else rows


def negated(condition: Scalar) -> Scalar:
    """Return the condition that ``condition`` is false."""
    return Scalar(exp.Not(this=exp.Paren(this=condition.tree.copy())))


def _both(left: Scalar, right: Scalar) -> Scalar:
    return Scalar(exp.And(this=exp.Paren(this=left.tree.copy()), expression=exp.Paren(this=right.tree.copy())))


def _unmarked(expression: Scalar) -> Scalar:
    """Return an expression as people read it: a value that was computed below by its name alone."""
    return Scalar(expression.tree.copy().transform(lambda node: node.this if isinstance(node, Known) else node))


def _keyed(value: Scalar, leaves: Sequence[Node], computed: Sequence[dict[Scalar, str]]) -> Scalar:
    """Return one side of a key as a column of its leaf; if it is none yet, it becomes one."""
    if value.column is not None:
        return value
    place = reads_only(value, leaves)
    assert place is not None, "each side of a key reads one input"
    name = computed[place].setdefault(value, f"{_OPERAND}_{place}_{len(computed[place])}")
    return Scalar(column(name))


def _with(leaf: Node, computed: dict[Scalar, str]) -> Node:
    """Return the rows of a leaf for which all of ``computed`` have values, with these as columns."""
    if not computed:
        return leaf
    below = Filter(leaf, have_values(computed))
    return Project(below, (*columns(leaf.names), *((name, value) for value, name in computed.items())))


PRODUCTS_MAX: Final = 64
"""A join of unions with more combinations of branches is not taken apart: the sides that make it more are computed."""


@dataclass(slots=True)
class Products:
    """Takes plans apart; ``pairs`` judges what must be computed below."""

    pairs: Pairs
    hidden: int = field(default=0, init=False)

    def of(self, node: Node) -> tuple[Product, ...]:
        """Return the products whose sum is ``node``."""
        match node:
            case Get():
                names = [(self._fresh(out, stored), stored) for out, stored in node.columns]
                values = tuple((out, Scalar(column(name))) for (name, _), out in zip(names, node.names, strict=True))
                return (Product((replace(node, columns=tuple(names)),), (), values),)
            case Project() if any(value.generates for _, value in node.columns):
                return tuple(made for each in self.of(node.input) for made in self._generated(node, each))
            case Project():
                return tuple(each.projected(node.columns) for each in self.of(node.input))
            case Filter(input=Project() as below) if any(value.generates for _, value in below.columns):
                return self._around(node, below)
            case Filter():
                return tuple(each.filtered(node.predicate) for each in self.of(node.input))
            case Negate():
                return tuple(replace(each, negative=not each.negative) for each in self.of(node.input))
            case UnionAll():
                return tuple(_named(each, node.names) for below in node.inputs for each in self.of(below))
            case Join():
                return self._joined(node)
            case _:
                assert isinstance(node, Constant), f"{type(node).__name__} ends a stage, it is not inside one"
                return (self._given(node),)

    def _joined(self, node: Join) -> tuple[Product, ...]:
        sides = [self.of(below) for below in node.inputs]
        count = 1
        for position, side in enumerate(sides):
            if count * len(side) > PRODUCTS_MAX:
                sides[position] = self._computed(side)
            count *= len(sides[position])
        return tuple(_paired(combined, node.conditions) for combined in product(*sides))

    def _around(self, node: Filter, below: Project) -> tuple[Product, ...]:
        """Return the rows of a projection that makes rows: what does not read the made ones is asked before."""
        made = {name for name, value in below.columns if value.generates}
        split = list(terms(node.predicate.tree))
        before = [each for each in map(Scalar, split) if not each.columns & made]
        inner = below.input
        for each in before:
            inner = Filter(inner, substituted(each, dict(below.columns)))
        found = self.of(replace(below, input=inner))
        for each in map(Scalar, split):
            if each not in before:
                found = tuple(one.filtered(each) for one in found)
        return found

    def _generated(self, node: Project, below: Product) -> tuple[Product, ...]:
        """Return the rows that ``node`` makes of those of ``below``: their number is a value too."""
        values = below.projected(node.columns)
        if below.error:
            return (values,)
        made = [(name, value) for name, value in values.values if value.generates]
        arguments = [Scalar(each) for _, value in made for each in value.tree.expressions]
        rows, unknown = self.pairs.split(below)
        rows, failed = self.pairs.tried(rows, arguments, below.leaves)
        names = below.columns
        fresh = {name: self._fresh(name) for name, _ in made}
        leaf = Project(rows, (*columns(names), *((fresh[name], value) for name, value in made)))
        own = tuple((name, Scalar(column(fresh[name])) if name in fresh else value) for name, value in values.values)
        found = Product((leaf,), (), own, below.negative)
        unknown += failed
        if not unknown:
            return (found,)
        error = self._hidden("error")
        erring = _union([replace(each, kept=names) for each in unknown])
        held = Project(erring, ((error, Scalar(column(ERROR))), *columns(names)))
        return (found, Product((held,), (), values.values, error=error))

    def _computed(self, side: Sequence[Product]) -> tuple[Product, ...]:
        """Return the sum of ``side`` as a product over one leaf, and as another what of it is not known to be in."""
        every = [pair for each in side for pair in each.values]
        lost = {name: value for name, value in every if value.generates}
        out = {name: self._fresh(name) for name, _ in side[0].values}
        kept = {name: own for name, own in out.items() if name not in lost}
        doubtful = {name for name, value in every if not (value.generates or certain(value.tree))}
        marks = {name: self._hidden("mark") for name in out if name in doubtful}
        values = {name: _read(own, marks.get(name)) for name, own in out.items()}
        known: list[Node] = []
        unknown: list[Node] = []
        error = self._hidden("error")
        for each in side:
            erring: list[Node]
            if each.error:
                erring = [possible(each.leaves, each.conditions)]
            else:
                rows, failed = self.pairs.split(each)
                ok = Project(rows, tuple(_marked(each, out, marks)))
                known.append(Negate(ok) if each.negative else ok)
                erring = [replace(one, kept=each.columns) for one in failed]
            columns_of = ((error, Scalar(column(each.error or ERROR))), *_marked(each, kept, marks))
            unknown += [Project(rows, columns_of) for rows in erring]
        found = Product((_union(known),), (), tuple(values.items()))
        if not unknown:
            return (found,)
        return (found, Product((_union(unknown),), (), tuple((values | lost).items()), error=error))

    def _given(self, leaf: Node) -> Product:
        names = [(self._fresh(name), name) for name in leaf.names]
        if any(fresh != name for fresh, name in names):
            leaf = Project(leaf, tuple((fresh, Scalar(column(name))) for fresh, name in names))
        return Product((leaf,), (), tuple((name, Scalar(column(fresh))) for fresh, name in names))

    def _fresh(self, name: str, shown: str | None = None) -> str:
        """Return a name for a column of a leaf that no other leaf has; ``shown``: as people know it."""
        fresh, n = name, 2
        while fresh in self.pairs.shown:
            fresh, n = f"{name}_{n}", n + 1
        self.pairs.shown[fresh] = shown or name
        return fresh

    def _hidden(self, what: str) -> str:
        """Return a name for a column of a leaf that no other leaf has and that people never see."""
        self.hidden += 1
        return f"{RESERVED}{what}_{self.hidden}"


def _paired(sides: Sequence[Product], conditions: Iterable[Scalar]) -> Product:
    """Return the join of ``sides`` under ``conditions`` over the values of all of them."""
    both = Product(
        tuple(leaf for side in sides for leaf in side.leaves),
        tuple(each for side in sides for each in side.conditions),
        tuple(value for side in sides for value in side.values),
        sum(side.negative for side in sides) % 2 == 1,
        next((side.error for side in sides if side.error), None),
    )
    for condition in conditions:
        both = both.filtered(condition)
    return both


def _named(each: Product, names: Sequence[str]) -> Product:
    return replace(each, values=tuple((out, value) for out, (_, value) in zip(names, each.values, strict=True)))


def _marked(of: Product, out: Mapping[str, str], marks: Mapping[str, str]) -> Iterator[tuple[str, Scalar]]:
    """Yield the values as columns ``out``, which cannot fail, and ``marks`` that say whether they are values at all."""
    for name, value in of.values:
        if name in out:
            held = HasValue(this=value.tree.copy())
            yield out[name], value if certain(value.tree) else Scalar(case(held, value.tree))
            if name in marks:
                yield marks[name], Scalar(exp.true() if certain(value.tree) else held)


def _read(name: str, mark: str | None) -> Scalar:
    """Return the expression that reads a value as `_marked` gives it."""
    return Scalar(column(name) if mark is None else Known(this=column(name), mark=column(mark)))


def _union(nodes: Sequence[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else UnionAll(tuple(nodes))
