"""Asking Spark about a plan: where its questions run, how few they are, and how large a plan may become.

A plan asks Spark dozens of questions, and each may take seconds.  So they run in another thread than the loop that
ticks, answers and statements share (`answered`).

Spark's analysis of a text takes longer the more columns pass through it, copies what the text names several times, and
starts again with each question.  But the types of a node follow from those of its inputs, and a column that is only
passed on needs no question.  So `Pieces` finds the columns of a plan an expression at a time, and Spark never sees the
layers between them.

`shared_parts` keeps the steps of a view small: it finds the parts that are stored by themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import count, groupby
from typing import Final, Protocol, TypeAlias, TypeVar

from strandline.algebra.nodes import (
    Constant,
    Filter,
    Get,
    Join,
    Negate,
    Node,
    Opaque,
    Project,
    Reduce,
    UnionAll,
    children,
    rebuilt,
)
from strandline.algebra.scalar import Scalar
from strandline.algebra.schema import DIFF, RESERVED, TIME, Column, Schema, quote
from strandline.engine.sql.rendering import render
from strandline.errors import DefinitionError
from strandline.store.clock import Aside

STEP_NODES_STORED: Final = 300
"""In a view with a step of more nodes parts are stored by themselves."""
STEP_NODES_MAX: Final = 1_500
"""A view with a step of more nodes is recomputed: Spark takes seconds to plan so many."""


def nodes_of(node: Node) -> int:
    """Return how many nodes ``node`` has, one that is read twice being two."""
    return _Sizes(()).whole(node)


def step_nodes(plan: Node, parts: Collection[Node] = ()) -> int:
    """Return how many nodes the largest step of one of the stages of ``plan`` has, if all of its inputs change.

    ``parts``: nodes of it that are stored by themselves.

    >>> from strandline.algebra.nodes import joined
    >>> from strandline.algebra.scalar import scalar
    >>> t, u = Get("t", (("a", "a"),)), Get("u", (("b", "b"),))
    >>> step_nodes(t), step_nodes(joined((t, u), (scalar("a = b"),)))
    (1, 7)
    """
    return max(_Sizes(parts).steps(plan))


def shared_parts(plan: Node, storable: Callable[[Node], bool]) -> tuple[Node, ...]:
    """Return nodes of ``plan`` that are to be stored by themselves, so that its steps are small: none if they are.

    Each joins something, is read several times, and is ``storable``; and none other would make the largest step
    smaller, or else the sum of all steps.

    The size of a step is its number of nodes once each is written out wherever it is read.  A step of a join has a
    term for each input, and an outer join reads its left side twice; Spark copies what a query names several times.
    So if outer joins and scalar subqueries are stacked in layers, a step doubles with each of them, and Spark plans it
    for minutes.  A node with several readers is then stored: to each of them it is one leaf.  If even that leaves a
    step too large, the view is recomputed.
    """
    parts: list[Node] = []
    left = list(_shared(plan))

    def steps(stored: Collection[Node]) -> tuple[int, int]:
        found = _Sizes(stored).steps(plan)
        return max(found), sum(found)

    now = steps(parts)
    while left and now[0] > STEP_NODES_STORED:
        after, best = min((steps([*parts, each]), n) for n, each in enumerate(left))
        if after >= now:
            break
        chosen = left.pop(best)
        if storable(chosen):
            parts.append(chosen)
            now = after
    return tuple(parts)


def _shared(plan: Node) -> Iterator[Node]:
    """Yield each node that has several readers and joins something, after those in it."""
    readers: dict[int, int] = {}
    joins: dict[int, bool] = {}
    order: list[Node] = []

    def visit(node: Node) -> None:
        readers[id(node)] = readers.get(id(node), 0) + 1
        if readers[id(node)] > 1:
            return
        below = children(node)
        for each in below:
            visit(each)
        reads = any(joins[id(each)] for each in below)
        joins[id(node)] = isinstance(node, Join) or (reads and not _has_state(node))
        order.append(node)

    visit(plan)
    yield from (each for each in order if readers[id(each)] > 1 and joins[id(each)])


def _has_state(node: Node) -> bool:
    return isinstance(node, Reduce | Opaque)


class _Sizes:
    """Sizes of the nodes of one plan, each found once.  A node that is stored is a leaf of what reads it."""

    def __init__(self, parts: Collection[Node]) -> None:
        self._parts = {id(each) for each in parts}
        self._whole: dict[int, int] = {}
        self._contents: dict[int, int] = {}
        self._step: dict[int, int] = {}

    def whole(self, node: Node) -> int:
        """Return how many nodes there are down to the leaves."""
        if id(node) not in self._whole:
            self._whole[id(node)] = 1 + sum(map(self.whole, children(node)))
        return self._whole[id(node)]

    def steps(self, plan: Node) -> list[int]:
        """Return how many nodes give the updates of each stage of ``plan``."""
        found: list[int] = []
        visited: set[int] = set()

        def visit(node: Node) -> None:
            if id(node) in visited:
                return
            visited.add(id(node))
            for each in children(node):
                visit(each)
            if _has_state(node):
                found.append(1 + sum(self._updates(each) + self._held(each) for each in children(node)))
            elif id(node) in self._parts:
                found.append(self._own_updates(node))

        visit(plan)
        return [*found, self._updates(plan)]

    def _is_leaf(self, node: Node) -> bool:
        return _has_state(node) or id(node) in self._parts

    def _held(self, node: Node) -> int:
        """Return how many nodes give what ``node`` holds."""
        if self._is_leaf(node):
            return 1
        if id(node) not in self._contents:
            self._contents[id(node)] = 1 + sum(map(self._held, children(node)))
        return self._contents[id(node)]

    def _updates(self, node: Node) -> int:
        """Return how many nodes give the updates of ``node``."""
        if self._is_leaf(node) or isinstance(node, Get):
            return 1
        if id(node) not in self._step:
            self._step[id(node)] = self._own_updates(node)
        return self._step[id(node)]

    def _own_updates(self, node: Node) -> int:
        below = children(node)
        if not isinstance(node, Join):
            return 1 + sum(map(self._updates, below))
        all_of_them = sum(map(self._held, below))
        return 1 + sum(1 + self._updates(each) + all_of_them - self._held(each) for each in below)


T = TypeVar("T")


class Unanswered(BaseException):
    """Spark would have to be asked, and may not be asked here.  No code may take it for a failure."""


class GivenUp(BaseException):
    """The caller was cancelled, and takes no answer."""


_from_memory: Final[ContextVar[bool]] = ContextVar("from_memory", default=False)
_given_up: Final[ContextVar[threading.Event | None]] = ContextVar("given_up", default=None)


async def answered(call: Callable[[], T], aside: Aside | None) -> T:
    """Return what ``call`` returns, or raise what it raises; it awaits nothing, and may be called several times.

    ``aside``: where Spark may be asked; None: here.  Where this is cancelled, Spark is asked no further question.

    ``call`` is made twice: first aside, where it asks Spark and its answers are remembered, then by its caller, from
    remembered answers alone.  Only the second result counts.  It was made without a pause, of the catalog at that
    time; if the catalog changed meanwhile so that there is a new question, both are done again.
    """
    if aside is None:
        return call()
    while True:
        try:
            return _remembered(call)
        except Unanswered:
            over = threading.Event()
            try:
                await aside(partial(_asked, call, over))
            finally:
                over.set()


def require_asking() -> None:
    """Return if Spark may be asked here.  Raises `Unanswered` or `GivenUp`."""
    if _from_memory.get():
        raise Unanswered
    over = _given_up.get()
    if over is not None and over.is_set():
        raise GivenUp


def _remembered(call: Callable[[], T]) -> T:
    before = _from_memory.set(True)
    try:
        return call()
    finally:
        _from_memory.reset(before)


def _asked(call: Callable[[], object], over: threading.Event) -> None:
    """Make ``call`` for its questions.  Its errors are raised; its result is of a moment that is over."""
    before = _given_up.set(over)
    try:
        call()
    finally:
        _given_up.reset(before)


WHOLE_NODES_MAX: Final = 30
"""A plan of so many nodes is asked for as a whole: that is one question, in the text that would run."""
LEVELS_MAX: Final = 12
"""So many expressions, each over the one before, are one question."""


def is_large(node: Node) -> bool:
    """Return whether ``node`` is to be asked for in pieces."""
    return nodes_of(node) > WHOLE_NODES_MAX


class Types(Protocol):
    """What tells the columns of a text: an `Analyst` does."""

    def schema_of(self, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
        """See `Analyst.schema_of`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """An expression that is being asked for, with the types of the columns that it reads, as far as they are known."""

    value: Scalar
    read: _Read
    level: int


_Read: TypeAlias = tuple[tuple[str, str | _Asked], ...]
_Told: TypeAlias = str | _Asked | None
"""A type; what it will be the type of; None: what can only be asked for after that."""


@dataclass(slots=True)
class _Question:
    """One question about expressions: a relation without rows, expressions over it, others over these, and so on.

    A name stands for one column in all of it; what reads another one of that name waits for the next question.
    """

    told: dict[tuple[int, str], _Told] = field(default_factory=dict)
    _columns: dict[str, tuple[str, str | _Asked]] = field(default_factory=dict)
    _asked: dict[tuple[Scalar, _Read], _Asked] = field(default_factory=dict)

    def add(self, value: Scalar, read: _Read) -> _Asked | None:
        """Ask for an expression, too; None: not in this question."""
        if (value, read) in self._asked:
            return self._asked[value, read]
        level = 1 + max((each.level for _, each in read if isinstance(each, _Asked)), default=0)
        fits = all(self._columns.get(name.lower(), (name, each))[1] == each for name, each in read)
        several = value.generates or any(each.value.generates for each in self._asked.values())
        if level > LEVELS_MAX or not fits or (several and self._asked):  # what gives several rows stands alone
            return None
        self._columns.update((name.lower(), (name, each)) for name, each in read)
        self._asked[value, read] = asked = _Asked(value, read, level)
        return asked

    def answers(self, analyst: Types) -> Iterator[tuple[_Asked, str]]:
        """Yield the type of each expression, each after those that it reads."""
        asked = sorted(self._asked.values(), key=lambda each: each.level)
        read = [(name, each) for name, each in self._columns.values() if isinstance(each, _Asked)]
        names = {each: name for name, each in read}
        free = (name for n in count() if (name := f"value_{n}") not in self._columns)
        for each in asked:
            names.setdefault(each, next(free))
        relation = Schema(tuple(Column(name, each) for name, each in self._columns.values() if isinstance(each, str)))
        text = _nothing(relation)
        for _, level in groupby(asked, key=lambda each: each.level):
            computed = {names[each]: each for each in level}
            computed |= {name: each for name, each in read if each in computed.values()}
            listed = ", ".join(f"{each.value.sql} AS {quote(name)}" for name, each in computed.items())
            text = f"SELECT *, {listed} FROM ({text})"
        listed = ", ".join(quote(names[each]) for each in asked)
        found = analyst.schema_of(f"SELECT {listed} FROM ({text})", {}, ours=True)
        yield from zip(asked, (each.type for each in found), strict=True)

    def __bool__(self) -> bool:
        return bool(self._asked)


class Pieces:
    """The columns of nodes over ``relations``, which are the frames that they read; each found once.

    Expressions are asked for together, many in one question, over a relation without rows that has the columns they
    read and no others (`_Question`).  What is more than expressions (a group, a query of Spark's own) is one question,
    over relations without rows in place of its inputs.
    """

    def __init__(self, analyst: Types, relations: Mapping[str, Schema]) -> None:
        self._analyst = analyst
        self._relations = relations
        self._known: dict[int, tuple[Node, dict[str, str]]] = {}  # a node is kept, so that its id stays its own
        self._accepted: dict[int, Node] = {}
        self._values: dict[tuple[Scalar, _Read], str] = {}

    def types(self, node: Node) -> Schema:
        """Return the columns of ``node``.  What they do not depend on is not asked for: it may be refused later.

        Raises `DefinitionError` if Spark refuses a piece, which it might accept as part of the whole: a column inside
        may have a type that no relation can have.
        """
        found = self._settled(lambda now: {name: self._type(node, name, now) for name in node.names})
        return Schema(tuple(Column(name, str(type_)) for name, type_ in found.items()))

    def schema(self, node: Node) -> Schema:
        """As `types`; Spark accepts each expression in ``node``, too."""
        return self.schemas((node,))[0]

    def schemas(self, nodes: Collection[Node]) -> list[Schema]:
        """Return the `schema` of each of ``nodes``, in as few questions."""
        new = list(self._new(nodes))
        self._settled(lambda now: self._accept(new, now))
        self._accepted.update((id(each), each) for each in new)
        return [self.types(node) for node in nodes]

    def _settled(self, tell: Callable[[_Question], T]) -> T:
        """Return what ``tell`` returns when it has nothing more to ask."""
        while True:
            now = _Question()
            told = tell(now)
            if not now:
                return told
            types: dict[_Asked, str] = {}
            for asked, type_ in now.answers(self._analyst):
                types[asked] = type_
                read = tuple((name, each if isinstance(each, str) else types[each]) for name, each in asked.read)
                self._values[asked.value, read] = type_

    def _new(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Yield what was not accepted yet of ``nodes`` and the nodes below, each once."""
        seen = set(self._accepted)
        left = list(nodes)
        while left:
            node = left.pop()
            if id(node) not in seen:
                seen.add(id(node))
                left += children(node)
                yield node

    def _accept(self, nodes: Iterable[Node], now: _Question) -> None:
        """Raise `DefinitionError` if Spark refuses what one of ``nodes`` itself does; or ask for more ``now``."""
        for node in nodes:
            match node:
                case Get() | Negate():
                    pass
                case Project():
                    for _, value in node.columns:
                        self._value(node.input, value, now)
                case Filter():
                    self._condition(node.input, node.predicate, now)
                case Join():
                    for each in node.conditions:
                        self._condition(node, each, now)
                case _:
                    for name in node.names:
                        self._type(node, name, now)

    def _condition(self, below: Node, condition: Scalar, now: _Question) -> None:
        found = self._value(below, condition, now)
        if isinstance(found, str) and found != "boolean":
            raise DefinitionError(f"the condition {condition.sql} is of type {found}")

    def _type(self, node: Node, name: str, now: _Question) -> _Told:
        """Return the type of a column of ``node``, as far as this question comes."""
        known = self._known.setdefault(id(node), (node, {}))[1]
        if name in known:
            return known[name]
        if (id(node), name) not in now.told:
            now.told[id(node), name] = found = self._followed(node, name, now)
            if isinstance(found, str):
                known[name] = found
        return now.told[id(node), name]

    def _followed(self, node: Node, name: str, now: _Question) -> _Told:
        match node:
            case Get():
                own = dict(node.columns)[name]
                return next(each.type for each in self._relations[node.frame] if each.name == own)
            case Filter(input=below) | Negate(input=below):
                return self._type(below, name, now)
            case Join(inputs=inputs):
                return self._type(next(each for each in inputs if name in each.names), name, now)
            case Project(input=below, columns=columns):
                return self._value(below, dict(columns)[name], now)
            case UnionAll(inputs=inputs):
                place = node.names.index(name)
                found = [self._type(each, each.names[place], now) for each in inputs]
                if not all(isinstance(each, str) for each in found):
                    return None
                return found[0] if len(set(found)) == 1 else self._whole(node, name, now)
            case _:
                return self._whole(node, name, now)

    def _value(self, below: Node, value: Scalar, now: _Question) -> _Told:
        """Return the type of an expression over the columns of ``below``, as far as this question comes."""
        if value.column is not None:
            return self._type(below, value.column, now)
        told = [(name, self._type(below, name, now)) for name in sorted(value.columns - {TIME, DIFF})]
        read = tuple((name, each) for name, each in told if each is not None)
        if len(read) < len(told):
            return None
        return self._values.get((value, read)) or now.add(value, read)

    def _whole(self, node: Node, name: str, now: _Question) -> str | None:
        """Ask Spark for a node over what it reads, as soon as the columns of that are known; learn all its columns."""
        leaves: dict[int, tuple[Get, Schema]] = {}
        for below in children(node):
            if isinstance(below, Constant):
                continue
            types = [(each, self._type(below, each, now)) for each in below.names if each in _read(node, below)]
            known = Schema(tuple(Column(each, type_) for each, type_ in types if isinstance(type_, str)))
            if len(known.names) < len(types):
                return None
            leaves.setdefault(id(below), (Get.of(f"{RESERVED}frame_{len(leaves)}", known.names), known))
        piece = rebuilt(node, lambda below: leaves[id(below)][0] if id(below) in leaves else below)
        text = render(piece, {leaf.frame: leaf.frame for leaf, _ in leaves.values()})
        defined = ", ".join(f"{leaf.frame} AS ({_nothing(schema)})" for leaf, schema in leaves.values())
        columns = ", ".join(map(quote, node.names))
        asked = f"{f'WITH {defined} ' if defined else ''}SELECT {columns} FROM ({text})"
        found = self._analyst.schema_of(asked, {}, ours=True)
        self._known[id(node)][1].update((each.name, each.type) for each in found)
        return self._known[id(node)][1][name]


def _read(node: Node, below: Node) -> frozenset[str]:
    """Return the columns of ``below`` that ``node`` reads."""
    if isinstance(node, Reduce):
        arguments = [each.argument for each in node.aggregates if each.argument is not None]
        return frozenset(name for value in (*(value for _, value in node.keys), *arguments) for name in value.columns)
    return frozenset(below.names)


def _nothing(schema: Schema) -> str:
    """Return a query with the columns of updates of ``schema``."""
    columns = [f"CAST(NULL AS {each.type}) AS {quote(each.name)}" for each in schema]
    return f"SELECT {', '.join([*columns, f'0L AS {TIME}', f'1L AS {DIFF}'])}"
