"""Plan nodes: what a view means, and what a maintenance step computes.

Two vocabularies, both frozen data.  *Relational* nodes (`Get` … `Opaque`) say what a relation is: a function from the
multisets of its inputs to a multiset.  *Maintenance* nodes (`Accumulate`, `Regroup`, `Replay`, `Restrict`, and in
plans of sources `Newest`) say how updates are found; they occur only in step plans.  `Failing` turns the rows that an
expression fails on into errors (`careful`).

Under a step plan every node yields *updates*: its columns, ``__time`` and ``__diff``.  Every relational node acts on
updates as differential dataflow defines it: `Project` and `Filter` keep time and diff, `Join` multiplies diffs and
takes the greatest time, `UnionAll` concatenates.

Scalar expressions are trees (`scalar.Scalar`) over the *output column names of the input*.  Column names are unique
within a node (the planner renames), so no expression needs a qualifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, TypeAlias

from sqlglot import exp

from strandline.algebra.messages import KEPT
from strandline.algebra.scalar import Scalar, binary
from strandline.algebra.schema import ERROR, Schema


@dataclass(frozen=True, slots=True)
class Order:
    """By the values of ``column``, as Spark compares them."""

    column: str
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, slots=True)
class First:
    """Only those rows matter that are among the first ``rows`` in one of ``orders``, or tie with the last of these."""

    orders: tuple[Order, ...]
    rows: int

    def renamed(self, names: Mapping[str, str | None]) -> First | None:
        """Return the same of columns called otherwise; None if one of them has no name there.

        >>> First((Order("x"),), 3).renamed({"x": "y"})
        First(orders=(Order(column='y', descending=False, nulls_first=True),), rows=3)
        """
        orders = [
            Order(own, each.descending, each.nulls_first) for each in self.orders if (own := names.get(each.column))
        ]
        return First(tuple(orders), self.rows) if len(orders) == len(self.orders) else None


@dataclass(frozen=True, slots=True)
class Get:
    """A leaf: the frame called ``frame``, its columns renamed.

    In a view's plan ``frame`` is the name of an imported collection or internal stage; in a step plan it is that name
    with a suffix for the phase (``Δ`` updates of the window, ``old`` contents before it, ``new`` both).
    ``columns`` maps each output column to the frame's own: ``((output, stored), …)``.
    """

    frame: str
    columns: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, frame: str, names: Iterable[str]) -> Get:
        """Return the leaf in which the columns ``names`` are called as in the frame."""
        return cls(frame, tuple((name, name) for name in names))

    @property
    def names(self) -> tuple[str, ...]:
        """Output columns."""
        return tuple(out for out, _ in self.columns)


@dataclass(frozen=True, slots=True)
class Constant:
    """Rows of literals: ``rows[i][j]`` is the value of column j, which reads no column.

    Each row exists from ``time`` on with diff 1.  In a view's plan ``time`` is 0; in a step plan it is the time of the
    view's first step.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[Scalar, ...], ...]
    time: int = 0


@dataclass(frozen=True, slots=True)
class Project:
    """Output columns as expressions over the input's: ``((name, expression), …)``."""

    input: Node
    columns: tuple[tuple[str, Scalar], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Output columns."""
        return tuple(out for out, _ in self.columns)


@dataclass(frozen=True, slots=True)
class Filter:
    """The input's rows for which ``predicate`` is true (not null, not false)."""

    input: Node
    predicate: Scalar

    @property
    def names(self) -> tuple[str, ...]:
        """Output columns."""
        return self.input.names


@dataclass(frozen=True, slots=True)
class Equal:
    """A key of a `Join`: ``left`` and ``right`` read one input each, not the same; ``nulls``: NULL equals NULL."""

    left: Scalar
    right: Scalar
    nulls: bool = False

    @property
    def condition(self) -> Scalar:
        """The same as an expression."""
        return Scalar(binary(exp.NullSafeEQ if self.nulls else exp.EQ, self.left.tree, self.right.tree))


@dataclass(frozen=True, slots=True)
class Join:
    """Inner join of all inputs on ``equal`` keys and the conditions ``on``; `joined` makes one.

    Output columns are the inputs' in order, all distinct.  ``small`` (step plans) is the position of an input that is
    known to be small: the join starts there and broadcasts it.
    """

    inputs: tuple[Node, ...]
    equal: tuple[Equal, ...] = ()
    on: tuple[Scalar, ...] = ()
    small: int | None = None

    @property
    def conditions(self) -> tuple[Scalar, ...]:
        """All that pairs must fulfil, keys first."""
        return (*(each.condition for each in self.equal), *self.on)

    @property
    def names(self) -> tuple[str, ...]:
        """Output columns."""
        return tuple(name for node in self.inputs for name in node.names)


@dataclass(frozen=True, slots=True)
class UnionAll:
    """UNION ALL of inputs with the same columns (by position; names are the first input's)."""

    inputs: tuple[Node, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Output columns."""
        return self.inputs[0].names


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of a `Reduce`.

    ``function`` is lower-case: ``count`` (``argument`` None: ``count(*)``), ``sum``, ``avg``, ``min``, ``max``.
    ``type`` is Spark's type of the result, ``argument_type`` of the argument.
    """

    name: str
    function: str
    argument: Scalar | None
    distinct: bool
    type: str
    argument_type: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """GROUP BY: one row per distinct value of ``keys`` ``((name, expression), …)`` with the aggregates.

    Without keys there is one row always (a global aggregate), even over no input.  DISTINCT is a Reduce over all
    columns without aggregates.  Over update frames a plain Reduce (and an `Opaque`) reads all updates as of one time,
    the latest in them: in step plans `Accumulate`, `Regroup` and `Replay` take its place.
    """

    input: Node
    keys: tuple[tuple[str, Scalar], ...]
    aggregates: tuple[Aggregate, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Output columns: keys, then aggregates."""
        return tuple(name for name, _ in self.keys) + tuple(a.name for a in self.aggregates)

    @property
    def described(self) -> str:
        """What it computes, for people."""
        computed = [f"{a.function}({'*' if a.argument is None else a.argument.sql})" for a in self.aggregates]
        return f"{', '.join(computed)} BY {', '.join(value.sql for _, value in self.keys) or '()'}"


@dataclass(frozen=True, slots=True)
class Key:
    """How an `Opaque` falls into parts: the rows of each input and of the output that agree in these columns.

    The output's rows with some values are the query over the inputs' rows with the same values, NULL being one.
    ``inputs``: for each input as many columns as ``output`` has, in the same order.
    """

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """A query that Spark alone can answer: ``sql`` over its inputs, which it names by ``aliases``.

    ``sql`` is a whole Spark SELECT in which each relation ``aliases[i]`` is the multiset ``inputs[i]``.  It is
    recomputed at each time its inputs change, and diffed: with a ``key``, for what touches these keys, else as a whole.
    ``reason`` says why no other rule maintains it, for people (`explain` shows it).
    ``picks``: each output row is a row of the one input, taken at most as often as it is there, perhaps with fewer
    columns.  It is no part of the text of a plan, because stored collections are named after that text.
    ``top``: it is the first so many rows of the one input, in an order of all its columns.
    ``first``: of the rows of the one input with each key, without one of all rows, only the first matter.
    """

    inputs: tuple[Node, ...]
    aliases: tuple[str, ...]
    sql: str
    names: tuple[str, ...]
    reason: str
    picks: bool = field(default=False, repr=False)
    key: Key | None = None
    top: bool = False
    first: First | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Negate:
    """The input's rows, each counted as often less: a term of a `UnionAll` that has these rows elsewhere.

    >>> Negate(Get("a", (("x", "x"),))).names
    ('x',)
    """

    input: Node

    @property
    def names(self) -> tuple[str, ...]:
        """Output columns."""
        return self.input.names


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One stored accumulator: the running Σ diff × ``contribution`` of a group.

    ``contribution`` is an expression over the input that is never null and of exact ``type`` (bigint or decimal),
    so that the sum does not depend on the order of rows (law D).
    """

    name: str
    contribution: Scalar
    type: str


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Updates of the accumulator collection of a `Reduce` (maintenance; rule "Reduce, invertible").

    ``delta`` yields the updates of the Reduce's input in the window, ``prior`` the stored accumulators (columns =
    ``names``, one row per key, all at times <= the window's lower).  Output columns: keys, then accumulators;
    ``rows`` names the accumulator that counts the group's rows: a group whose count is 0 has no row.  Without keys
    the one group always has a row, from ``start`` on (the time of the view's first step; None in every other step).
    ``times``, ``small``:
    see `Regroup`.
    """

    delta: Node
    prior: Node
    keys: tuple[tuple[str, Scalar], ...]
    accumulators: tuple[Accumulator, ...]
    rows: str
    times: tuple[int, ...] = ()
    start: int | None = None
    small: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Output columns."""
        return tuple(name for name, _ in self.keys) + tuple(a.name for a in self.accumulators)


@dataclass(frozen=True, slots=True)
class Regroup:
    """Updates of a `Reduce` found by recomputing each touched (key, time) (maintenance; rule "Reduce, other").

    ``delta``: the updates of the Reduce's input in the window; ``new``: all its updates before the window's upper;
    ``prior``: the stored output rows.  For float sums and averages the fold is over the sorted values (law D).
    ``times`` are the times that ``delta`` may have, where they are known (empty: not known); with one only, the SQL
    is simpler.  ``start``: see `Accumulate`.
    ``small``: the touched keys are few enough to be broadcast.
    ``first``: of the rows of each group only the first matter, at each time.
    """

    delta: Node
    new: Node
    prior: Node
    keys: tuple[tuple[str, Scalar], ...]
    aggregates: tuple[Aggregate, ...]
    times: tuple[int, ...] = ()
    start: int | None = None
    small: bool = True
    first: First | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Output columns."""
        return tuple(name for name, _ in self.keys) + tuple(a.name for a in self.aggregates)


@dataclass(frozen=True, slots=True)
class Replay:
    """Updates of an `Opaque`: its query at each of ``times``, diffed with the one before (maintenance; "Recompute").

    ``inputs`` yield all updates before the window's upper; ``prior`` the stored output.  At ``times[0]`` the stored
    rows are withdrawn and the recomputed ones inserted (equal ones cancel); at each later time likewise against the
    time before.  ``partial``: the inputs lack rows that do not matter, and of such a row the count may be negative: it
    is not there.
    """

    inputs: tuple[Node, ...]
    aliases: tuple[str, ...]
    sql: str
    names: tuple[str, ...]
    prior: Node
    times: tuple[int, ...] = ()
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Restrict:
    """The input's updates whose ``columns`` have the values of a row of ``keys``, whatever its time (maintenance).

    ``columns`` are in the order of the columns of ``keys``; without any, it is all of the input if ``keys`` has a row,
    and else nothing.  NULL equals NULL.  ``small``: the keys are few enough to be broadcast.
    ``first``: of the input's rows with one key, without columns of all, only the first matter, when the updates of the
    window have been added.  Trap: a row that was left out and goes has a negative count above.
    """

    input: Node
    columns: tuple[str, ...]
    keys: Node
    small: bool = True
    first: First | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Output columns."""
        return self.input.names


@dataclass(frozen=True, slots=True)
class Failing:
    """The input's rows as errors, in a column `ERROR`: of each, some of ``expressions`` have no value.

    An error is a JSON object: ``collection`` is ``where``, ``expression`` the ``texts`` of those that fail, ``row``
    columns of the input under the names ``((shown, column), …)``.  It depends on the row alone, so that withdrawing the
    row also withdraws the error.  ``kept``: columns of the input beside it.
    """

    input: Node
    expressions: tuple[Scalar, ...]
    texts: tuple[str, ...]
    row: tuple[tuple[str, str], ...]
    where: str
    kept: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Output columns."""
        return (ERROR, *self.kept)


@dataclass(frozen=True, slots=True)
class Newest:
    """The updates that keyed records make (`algebra.messages`; maintenance of a source's collection).

    ``records`` yield the records: ``schema``'s columns and those of a record, of which `KEPT` and `ERROR` may lack.
    ``held``: the updates before them, of these keys and perhaps others; ``errors``: those of the err half, in one
    column `ERROR`; `NOTHING` for neither.  Their times do not matter.  ``once``: no key has two records.
    """

    records: Node
    held: Node
    errors: Node
    schema: Schema
    key: tuple[str, ...]
    once: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Output columns: `ERROR` is the last of them if there may be errors."""
        erring = {ERROR, KEPT} & {*self.records.names, *self.errors.names}
        return (*self.schema.names, *((ERROR,) if erring else ()))


Node: TypeAlias = (
    Get
    | Constant
    | Project
    | Filter
    | Join
    | UnionAll
    | Reduce
    | Opaque
    | Negate
    | Accumulate
    | Regroup
    | Replay
    | Restrict
    | Failing
    | Newest
)


NOTHING: Final = Constant((), ())
"""The relation without rows and columns: the ``prior`` of a view's first step."""


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes that ``node`` reads, in the order of its fields."""
    found: list[Node] = []
    for each in fields(node):
        value = getattr(node, each.name)
        found += [value] if isinstance(value, Node) else value if each.name == "inputs" else []
    return tuple(found)


def rebuilt(node: Node, below: Callable[[Node], Node]) -> Node:
    """Return ``node`` over what ``below`` makes of each node that it reads.

    >>> rebuilt(Negate(Get("a", ())), lambda get: Get("b", ()))
    Negate(input=Get(frame='b', columns=()))
    """
    changed: dict[str, object] = {}
    for each in fields(node):
        value = getattr(node, each.name)
        if isinstance(value, Node):
            changed[each.name] = below(value)
        elif each.name == "inputs":
            changed[each.name] = tuple(map(below, value))
    return replace(node, **changed) if changed else node  # type: ignore[arg-type]


def frames(node: Node) -> frozenset[str]:
    """Return the names of the frames that ``node`` reads.

    >>> sorted(frames(UnionAll((Get("a", (("x", "x"),)), Get("b", (("x", "y"),))))))
    ['a', 'b']
    """
    if isinstance(node, Get):
        return frozenset((node.frame,))
    return frozenset(name for child in children(node) for name in frames(child))


def has_join(node: Node) -> bool:
    """Tell whether ``node`` joins anything."""
    return isinstance(node, Join) or any(map(has_join, children(node)))


def has_constant(node: Node) -> bool:
    """Tell whether ``node`` reads rows that come to be in the first step alone."""
    return isinstance(node, Constant) or any(map(has_constant, children(node)))


def stored_columns(node: Node) -> dict[str, frozenset[str]]:
    """Return for each frame that ``node`` reads the columns that it reads of it, by the frame's own names.

    >>> {k: sorted(v) for k, v in stored_columns(UnionAll((Get("a", (("x", "y"),)), Get("a", (("x", "z"),))))).items()}
    {'a': ['y', 'z']}
    """
    if isinstance(node, Get):
        return {node.frame: frozenset(own for _, own in node.columns)}
    found: dict[str, frozenset[str]] = {}
    for child in children(node):
        for name, own in stored_columns(child).items():
            found[name] = found.get(name, frozenset()) | own
    return found


def with_frames(node: Node, rename: Callable[[str], str]) -> Node:
    """Return ``node`` with its frames renamed.

    >>> with_frames(Negate(Get("a", (("x", "x"),))), str.upper)
    Negate(input=Get(frame='A', columns=(('x', 'x'),)))
    """
    if isinstance(node, Get):
        return replace(node, frame=rename(node.frame))
    return rebuilt(node, lambda below: with_frames(below, rename))


def renaming(node: Node) -> Get | None:
    """Return the one leaf that ``node`` comes to, if all it does is give each column of a frame once, under some name.

    >>> from strandline.algebra.scalar import column
    >>> below = Get("a", (("x", "kept"),))
    >>> renaming(Project(below, (("y", Scalar(column("x"))),)))
    Get(frame='a', columns=(('y', 'kept'),))
    """
    if isinstance(node, Get):
        return node
    if not isinstance(node, Project) or not isinstance(node.input, Get):
        return None
    below = dict(node.input.columns)
    taken = [expression.column for _, expression in node.columns]
    if None in taken or sorted(map(str, taken)) != sorted(below):
        return None
    columns = tuple((name, below[str(own)]) for (name, _), own in zip(node.columns, taken, strict=True))
    return Get(node.input.frame, columns)


def joined(inputs: Sequence[Node], conditions: Iterable[Scalar], *, small: int | None = None) -> Join:
    """Return the inner join of ``inputs`` under the conjunction of ``conditions``.

    Equalities that read one input on each side become keys, by which the rows that meet a row can be looked up.  Any
    other condition can only be tried on pairs.

    >>> from strandline.algebra.nodes import Get
    >>> from strandline.algebra.scalar import scalar
    >>> t, u = Get("t", (("a", "a"),)), Get("u", (("b", "b"), ("c", "c")))
    >>> node = joined((t, u), (scalar("a = b + 1"), scalar("a < c"), scalar("b = c")))
    >>> [(each.left.sql, each.right.sql) for each in node.equal], [each.sql for each in node.on]
    ([('a', 'b + 1')], ['a < c', 'b = c'])
    """
    equal: list[Equal] = []
    on: list[Scalar] = []
    for condition in conditions:
        key = _key(condition, inputs)
        if key is None:
            on.append(condition)
        else:
            equal.append(key)
    return Join(tuple(inputs), tuple(equal), tuple(on), small)


def _key(condition: Scalar, inputs: Sequence[Node]) -> Equal | None:
    tree = condition.tree.unnest()
    if not isinstance(tree, exp.EQ | exp.NullSafeEQ):
        return None
    left, right = (Scalar(side.unnest().copy()) for side in (tree.this, tree.expression))
    places = [reads_only(side, inputs) for side in (left, right)]
    if None in places or places[0] == places[1]:
        return None
    return Equal(left, right, isinstance(tree, exp.NullSafeEQ))


def reads_only(value: Scalar, inputs: Sequence[Node]) -> int | None:
    """Return the position of the only input that ``value`` reads; None if it reads none, or several."""
    places = [i for i, below in enumerate(inputs) if value.columns and value.columns <= frozenset(below.names)]
    return places[0] if places else None
