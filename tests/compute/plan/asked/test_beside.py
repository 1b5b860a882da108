"""Spark is asked beside the loop, and of a large plan in pieces; what makes its steps large is stored."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pytest

from strandline.algebra.nodes import Filter, Get, Node, Project, Reduce, UnionAll, joined
from strandline.algebra.scalar import scalar
from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.asked import (
    LEVELS_MAX,
    STEP_NODES_MAX,
    STEP_NODES_STORED,
    WHOLE_NODES_MAX,
    Pieces,
    answered,
    nodes_of,
    shared_parts,
    step_nodes,
)
from strandline.compute.plan.scalars.remembered import MADE_MAX, Answers, RememberedAnalyst
from strandline.compute.plan.view import PlannedView
from strandline.compute.stage import rehearse, split
from strandline.errors import DefinitionError, RepeatedColumn
from strandline.testing.lists.list_assembly import ListAnalyst
from strandline.wiring.loop import Threads

T = TypeVar("T")
ORDERS = {"orders": Schema((Column("id", "bigint"),))}


class Noting(ListAnalyst):
    """Notes the threads in which it is asked; ``then`` is called with each question."""

    def __init__(self, then: Callable[[str], object] = lambda _: None) -> None:
        self.threads: list[int] = []
        self.texts: list[str] = []
        self.then = then

    def schema_of(self, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
        self.threads.append(threading.get_ident())
        self.texts.append(sql)
        self.then(sql)
        if "twice" in sql:
            raise RepeatedColumn("id", 1)
        return ORDERS["orders"]


def beside(call: Callable[[], T]) -> T:
    """Return what `answered` returns of ``call`` in a loop of its own."""

    async def all_of_it() -> T:
        threads = Threads(1, "asking")
        try:
            return await answered(call, threads)
        finally:
            threads.close()

    return asyncio.run(all_of_it())


def test_spark_is_asked_in_another_thread_and_once() -> None:
    """Damage: every tick and every answer waits for as long as Spark plans."""
    inner = Noting()
    analyst = RememberedAnalyst(inner, Answers())
    assert beside(lambda: analyst.schema_of("SELECT id FROM orders", ORDERS)) == ORDERS["orders"]
    assert len(inner.threads) == 1
    assert inner.threads[0] != threading.get_ident()


def test_an_error_that_the_call_handles_is_an_answer() -> None:
    """Damage: what looks at several definitions, some of them wrong, asks for the wrong one for ever."""
    inner = Noting()
    analyst = RememberedAnalyst(inner, Answers())

    def call() -> str:
        try:
            analyst.schema_of("twice", ORDERS)
        except RepeatedColumn as error:
            return error.name
        return ""

    assert beside(call) == "id"
    assert inner.texts == ["twice"]
    with pytest.raises(DefinitionError, match="id"):
        beside(lambda: analyst.schema_of("twice", ORDERS))


def test_what_changed_meanwhile_is_asked_for_too() -> None:
    """Damage: a view is planned over the columns that a table had before another statement changed them."""
    wanted = ["before"]
    inner = Noting(lambda _: wanted.__setitem__(0, "after"))
    analyst = RememberedAnalyst(inner, Answers())

    def call() -> str:
        analyst.schema_of(wanted[0], ORDERS)
        return wanted[0]

    assert beside(call) == "after"
    assert inner.texts == ["before", "after"]


def test_what_is_made_of_answers_beside_the_loop_is_not_made_again_on_it() -> None:
    """Damage: every tick and every answer waits for as long as a large view is planned of what Spark has answered."""
    analyst = RememberedAnalyst(Noting(), Answers())
    made_in: list[int] = []

    def make() -> Schema:
        found = analyst.schema_of("SELECT id FROM orders", ORDERS)
        made_in.append(threading.get_ident())
        return found

    assert beside(lambda: analyst.made(("one",), make)) == ORDERS["orders"]
    assert len(made_in) == 1
    assert made_in[0] != threading.get_ident()
    assert analyst.made(("another",), make) == ORDERS["orders"]
    assert len(made_in) == 2


def test_of_what_is_made_the_last_few_are_remembered() -> None:
    """Damage: plans of all views that ever were fill the memory; or one that is used is made anew each time."""
    analyst = RememberedAnalyst(Noting(), Answers())
    made: list[int] = []

    def ask(n: int) -> int:
        def make() -> int:
            made.append(n)
            return n

        return analyst.made((n,), make)

    for n in range(MADE_MAX):
        ask(n)
    assert [ask(0), ask(MADE_MAX), ask(0)] == [0, MADE_MAX, 0]
    assert made == list(range(MADE_MAX + 1))
    ask(1)
    assert made[-1] == 1


def test_a_call_that_is_cancelled_asks_nothing_more() -> None:
    """Damage: after Ctrl-C Spark goes on planning a view for a caller that is gone."""
    begun, may_go_on = threading.Event(), threading.Event()

    def then(_: str) -> None:
        begun.set()
        assert may_go_on.wait(120)

    inner = Noting(then)
    analyst = RememberedAnalyst(inner, Answers())

    def call() -> None:
        analyst.schema_of("one", ORDERS)
        analyst.schema_of("two", ORDERS)

    async def cancelled() -> None:
        threads = Threads(1, "asking")
        task = asyncio.create_task(answered(call, threads))  # noqa: TID251 - a caller that is interrupted
        await asyncio.to_thread(begun.wait, 120)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()
        await asyncio.to_thread(threads.close)

    asyncio.run(cancelled())
    assert inner.texts == ["one"]


class Recorded(ListAnalyst):
    """Notes the texts that it is asked about, and the steps that it rehearses."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.rehearsed: list[Node] = []

    def schema_of(self, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
        self.texts.append(sql)
        return super().schema_of(sql, relations, ours=ours)

    def rehearse(self, steps: Sequence[Node], frames: Mapping[str, Schema], stored: Schema) -> None:
        self.rehearsed += steps


def chain(many: int) -> Node:
    """Return so many layers, each of which computes a column of the one before."""
    node: Node = Get("orders", (("c0", "id"),))
    for n in range(many):
        node = Project(Filter(node, scalar(f"`c{n}` > {n}")), ((f"c{n + 1}", scalar(f"`c{n}` + 1")),))
    return node


def test_a_large_plan_is_asked_for_in_few_questions_each_once() -> None:
    """Damage: Spark analyses all layers of a view again for each layer, and CREATE takes a minute."""
    inner, node = Recorded(), chain(40)
    pieces = Pieces(inner, ORDERS)
    assert pieces.schema(node) == Schema((Column("c40", "bigint"),))
    assert len(inner.texts) <= 40 / LEVELS_MAX + 1
    assert sum(sql.count("`c7` + 1") for sql in inner.texts) == 1
    before = len(inner.texts)
    assert pieces.schema(Project(node, (("last", scalar("`c40`")),))).names == ("last",)
    assert len(inner.texts) == before


def test_two_columns_may_have_one_name() -> None:
    """Damage: a view is planned by the type of another column, and its rows are cast to it."""
    read = {"t": Schema((Column("a", "bigint"), Column("b", "string"))), "u": Schema((Column("a", "string"),))}
    one = Project(Get("t", (("a", "a"),)), (("x", scalar("coalesce(`a`)")),))
    other = Project(Get("u", (("a", "a"),)), (("y", scalar("coalesce(`a`)")),))
    above = Project(Project(Get("t", (("a", "b"),)), (("x", scalar("coalesce(`a`)")),)), (("z", scalar("concat(x)")),))
    found = Pieces(ListAnalyst(), read).schemas((joined((one, other), ()), above))
    types = [(each.name, each.type) for each in (*found[0], *found[1])]
    assert types == [("x", "bigint"), ("y", "string"), ("z", "string")]


def test_a_condition_that_is_none_is_refused() -> None:
    """Damage: CREATE accepts a view of which every tick fails."""
    with pytest.raises(DefinitionError, match="bigint"):
        Pieces(ListAnalyst(), ORDERS).schema(Filter(Get("orders", (("a", "id"),)), scalar("a + 1")))


def test_of_a_large_view_a_step_is_rehearsed_without_its_layers() -> None:
    """Damage: Spark plans each layer of a view in all the steps above it, and CREATE takes a minute."""
    plan = Reduce(chain(20), (("key", scalar("`c20`")),), ())
    inner, schema = Recorded(), Schema((Column("key", "bigint"),))
    rehearse(split(PlannedView(plan, schema, ("orders",), "", {"key": "bigint"}), "view"), ORDERS, inner)
    assert inner.rehearsed
    assert all(nodes_of(step) < 10 for step in inner.rehearsed)
    assert sum(sql.count("`c7` + 1") for sql in inner.texts) == 1


def layers(many: int) -> Node:
    """Return so many outer joins, each over the one before, which it reads twice."""
    node: Node = Get("t", (("a", "a"),))
    for n in range(many):
        other = Get("u", ((f"b{n}", "b"),))
        pairs = Project(joined((node, other), (scalar(f"a = b{n}"),)), (("a", scalar("a")),))
        node = UnionAll((node, pairs))
    return node


def test_steps_double_with_every_layer_unless_parts_are_stored() -> None:
    """Damage: Spark plans the steps of a layered view for minutes, at CREATE and in each tick."""
    sizes = [step_nodes(layers(many)) for many in range(1, 20)]
    assert all(later > 1.9 * earlier for earlier, later in itertools.pairwise(sizes))
    assert sizes[-1] > STEP_NODES_MAX
    plan = layers(19)
    parts = shared_parts(plan, lambda _: True)
    assert step_nodes(plan, parts) <= STEP_NODES_STORED
    assert parts == shared_parts(layers(19), lambda _: True)
    assert len(parts) <= 19 / 3


def test_a_view_of_small_steps_stores_no_parts() -> None:
    """Damage: each outer join costs a stored collection, which every tick writes."""
    assert step_nodes(layers(3)) <= STEP_NODES_STORED
    assert shared_parts(layers(3), lambda _: True) == ()


def test_parts_that_cannot_be_stored_are_not() -> None:
    """Damage: a view is refused because a column inside it has a type that no collection holds."""
    plan = layers(19)
    asked: list[Node] = []

    def storable(node: Node) -> bool:
        asked.append(node)
        return len(asked) % 2 == 0

    parts = shared_parts(plan, storable)
    assert parts == tuple(asked[1::2])
    assert step_nodes(plan, parts) <= STEP_NODES_STORED


def test_types_that_follow_from_those_below_are_not_asked_for() -> None:
    """Damage: Spark is asked dozens of questions about columns that are only passed on."""
    inner = Recorded()
    pieces = Pieces(inner, ORDERS)
    one, two = (Get("orders", ((name, "id"),)) for name in ("a", "b"))
    node = Project(Filter(joined((one, two), (scalar("a = b"),)), scalar("a > 1")), (("c", scalar("b")),))
    assert pieces.types(UnionAll((node, one))) == Schema((Column("c", "bigint"),))
    assert inner.texts == []
    pieces.schema(node)
    assert inner.texts != []


def test_a_step_of_which_spark_refuses_a_piece_is_rehearsed_as_a_whole() -> None:
    """Damage: a view is refused because a column inside its steps has a type that no collection holds."""
    rehearsed: list[Node] = []

    class Refusing(ListAnalyst):
        def schema_of(self, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
            raise DefinitionError("a collection cannot hold void")

        def rehearse(self, steps: Sequence[Node], frames: Mapping[str, Schema], stored: Schema) -> None:
            rehearsed.extend(steps)

    view = PlannedView(layers(5), Schema((Column("a", "bigint"),)), ("t", "u"), "", {"a": "bigint"})
    read = {"t": Schema((Column("a", "bigint"),)), "u": Schema((Column("b", "bigint"),))}
    rehearse(split(view, "view"), read, Refusing())
    assert [nodes_of(step) > WHOLE_NODES_MAX for step in rehearsed] == [True]


def test_steps_that_spark_refuses_together_are_rehearsed_one_by_one() -> None:
    """Damage: a view is refused because its steps, each of which runs, do not stand in one question."""
    asked: list[int] = []

    class RefusingTwo(ListAnalyst):
        def rehearse(self, steps: Sequence[Node], frames: Mapping[str, Schema], stored: Schema) -> None:
            asked.append(len(steps))
            if len(steps) > 1:
                raise DefinitionError("too many columns")

    distinct = Reduce(Get("t", (("a", "a"),)), (("a", scalar("a")),), ())
    schema = Schema((Column("a", "bigint"),))
    rehearse(split(PlannedView(distinct, schema, ("t",), "", {"a": "bigint"}), "view"), {"t": schema}, RefusingTwo())
    assert asked[0] > 1
    assert asked[1 : 1 + asked[0]] == [1] * asked[0]
