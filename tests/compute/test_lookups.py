"""A step looks up, side by side and in order, what its changes can meet; and what it cannot look up it reads whole."""

from __future__ import annotations

from strandline.algebra.nodes import (
    Aggregate,
    Filter,
    First,
    Get,
    Key,
    Node,
    Opaque,
    Order,
    Project,
    Reduce,
    UnionAll,
    frames,
    joined,
)
from strandline.algebra.scalar import Comparison, Condition, Scalar, column, scalar
from strandline.compute.lookups import Lookup, Place, planned
from strandline.compute.rules.accumulate import accumulate
from strandline.compute.rules.keyed import keyed
from strandline.compute.rules.linear import updates
from strandline.compute.rules.regroup import regroup
from strandline.compute.rules.rule import Phase, Window, frame


def get(name: str, *names: str) -> Get:
    """Return a leaf whose columns are called ``NAME_COLUMN`` in the plan and ``COLUMN`` in the collection."""
    return Get(name, tuple((f"{name}_{each}", each) for each in names))


ORDERS, LINES, PEOPLE = get("o", "id", "who", "at"), get("l", "id", "price"), get("p", "id", "city")
SALES = joined((LINES, ORDERS, PEOPLE), [scalar("`l_id` = `o_id`"), scalar("`o_who` = `p_id`")])


def step(node: Node, *changed: str) -> tuple[Node, tuple[Lookup, ...]]:
    """Return the look-ups of the updates of ``node`` in a window in which ``changed`` change."""
    plan = updates(node, Window(frozenset(changed), (0, 3)))
    assert plan is not None
    return planned(plan)


def shown(lookups: tuple[Lookup, ...]) -> list[str]:
    """Return look-ups as text: side(columns) by the places of their keys."""
    names = {each.frame: f"{each.of}!" for each in lookups}

    def at(place: Place) -> str:
        return f"{names.get(place.frame, place.frame)}({', '.join(place.columns)})"

    return [f"{each.of}({', '.join(each.columns)}) by {' '.join(map(at, each.keys))}" for each in lookups]


def test_a_term_of_a_join_goes_from_its_change_to_each_next_input() -> None:
    """Damage: a change of three lines scans all orders and all people."""
    plan, lookups = step(SALES, "l")
    assert shown(lookups) == ["o:old(id) by l:delta(id)", "p:old(id) by o:old!(who)"]
    assert frames(plan) == {"l:delta", *(each.frame for each in lookups)}
    assert shown(step(SALES, "p")[1]) == ["o:old(who) by p:delta(id)", "l:old(id) by o:old!(id)"]


def test_a_look_up_hands_on_what_the_plan_and_later_look_ups_read() -> None:
    """Damage: a step fails as it lacks a column, or carries every column of a wide table."""
    wide = Project(SALES, (("price", scalar("`l_price`")),))
    _, lookups = step(wide, "l")
    assert {each.of: each.read for each in lookups} == {"o:old": ("id", "who"), "p:old": ("id",)}
    _, lookups = step(Project(joined((get("l", "price", "id"), get("o", "id")), [scalar("`l_id` = `o_id`")]), ()), "l")
    assert {each.of: each.read for each in lookups} == {"o:old": ("id",)}


def test_each_term_has_look_ups_of_its_own() -> None:
    """Damage: rows that one term needs are looked up by the keys of another."""
    plan, lookups = step(SALES, "l", "p")
    assert shown(lookups) == [
        "o:old(id) by l:delta(id)",
        "p:old(id) by o:old!(who)",
        "o:old(who) by p:delta(id)",
        "l:new(id) by o:old!(id)",
    ]
    assert len(frames(plan)) == len(lookups) + 2


def test_a_condition_that_is_no_equal_key_is_read_whole() -> None:
    """Damage: rows are missed whose key is an expression; or that meet by another condition."""
    for condition in ("`l_id` < `o_id`", "`l_id` = `o_id` + 1", "upper(`l_id`) = `o_id`"):
        plan, lookups = step(joined((LINES, ORDERS), [scalar(condition)]), "l")
        assert lookups == ()
        assert frames(plan) == {"l:delta", "o:old"}


def test_keys_are_followed_through_projections_filters_and_unions() -> None:
    """Damage: a key that was renamed on the way is another collection's."""
    renamed = Project(ORDERS, (("x", Scalar(column("o_id"))), ("y", scalar("`o_at` + 1"))))
    both = UnionAll((Filter(renamed, scalar("`y` > 1")), get("q", "a", "b")))
    assert shown(step(joined((LINES, both), [scalar("`l_id` = `x`")]), "l")[1]) == [
        "o:old(id) by l:delta(id)",
        "q:old(a) by l:delta(id)",
    ]
    assert step(joined((LINES, both), [scalar("`l_id` = `y`")]), "l")[1] == ()
    assert shown(step(joined((both, LINES), [scalar("`l_id` = `x`")]), "o", "q")[1]) == [
        "l:old(id) by o:delta(id) q:delta(a)"
    ]


def test_several_keys_are_one_look_up_if_they_are_in_one_place() -> None:
    """Damage: a look-up by half of a key finds far too much."""
    other = get("q", "id", "who")
    same = [scalar("`q_id` = `o_id`"), scalar("`q_who` <=> `o_who`")]
    (lookup,) = step(joined((ORDERS, other), same), "o")[1]
    assert (lookup.columns, lookup.keys, lookup.nulls) == (("id", "who"), (Place("o:delta", ("id", "who")),), True)
    apart = [scalar("`q_id` = `o_id`"), scalar("`q_who` = `p_id`")]
    found = shown(step(joined((joined((ORDERS, PEOPLE), [scalar("`o_who` = `p_id`")]), other), apart), "o")[1])
    assert found == ["p:old(id) by o:delta(who)", "q:old(id) by o:delta(id)"]


def test_of_groups_only_those_that_the_changes_touch_are_read() -> None:
    """Damage: one new row reads all groups, or all rows of all of them."""
    total = Aggregate("n", "count", None, distinct=False, type="bigint", argument_type="")
    least = Aggregate("m", "min", Scalar(column("l_price")), distinct=False, type="int", argument_type="int")
    keys = (("city", Scalar(column("p_city"))), ("big", scalar("`l_price` > 9")))
    window = Window(frozenset({"l"}), (0,))
    counted = accumulate(Reduce(SALES, keys, (total,)), _prior("city", "big"), window)
    assert counted is not None
    assert shown(planned(counted)[1])[2:] == ["v:old(city) by p:old!(city)"]
    lowest = regroup(Reduce(LINES, (("id", Scalar(column("l_id"))),), (least,)), _prior("id"), window)
    assert lowest is not None
    plan, lookups = planned(lowest)
    assert shown(lookups) == ["v:old(id) by l:delta(id)", "l:new(id) by l:delta(id)"]
    assert all(each.nulls for each in lookups), "NULL is a group"
    assert frames(plan) == {"l:delta", *(each.frame for each in lookups)}
    everything = regroup(Reduce(LINES, (), (least,)), _prior(), window)
    assert everything is not None
    (asked,) = planned(everything)[1]
    assert (asked.of, asked.columns, asked.keys) == ("l:new", (), ())
    assert asked.first == First((Order("price", nulls_first=False),), 1)


def test_the_first_rows_are_not_enough_where_a_row_may_give_none() -> None:
    """Damage: the least value is that of a row that has no elements, though it gives no row."""
    columns = (*((name, Scalar(column(name))) for name in LINES.names), ("made", scalar("explode(array(`l_id`))")))
    least = Aggregate("least", "min", Scalar(column("l_price")), False, "int", "int")
    plan = regroup(Reduce(Project(LINES, columns), (), (least,)), _prior(), Window(frozenset("l"), (0,)))
    assert plan is not None
    assert planned(plan)[1] == ()


def test_of_a_query_with_a_key_only_the_touched_keys_are_read() -> None:
    """Damage: one new row reads all that a window, or a difference of two inputs, looks at."""
    key = Key((("l_id",), ("o_id",)), ("id",))
    node = Opaque((LINES, ORDERS), ("l", "o"), "…", ("id", "price"), "", key=key)
    plan = keyed(node, Get(frame("v", Phase.OLD), (("id", "id"), ("price", "p"))), Window(frozenset("lo"), (0, 3)))
    assert plan is not None
    plan, lookups = planned(plan)
    by = "by l:delta(id) o:delta(id)"
    assert shown(lookups) == [f"l:new(id) {by}", f"o:new(id) {by}", f"v:old(id) {by}"]
    assert all(each.nulls for each in lookups), "NULL is a key"
    assert frames(plan) == {"l:delta", "o:delta", *(each.frame for each in lookups)}


def test_equal_look_ups_are_made_once() -> None:
    """Damage: a view that reads one side in two terms looks it up twice."""
    twice = UnionAll((joined((LINES, ORDERS), [scalar("`l_id` = `o_id`")]),) * 2)
    plan, lookups = step(twice, "l")
    assert shown(lookups) == ["o:old(id) by l:delta(id)"]
    assert frames(plan) == {"l:delta", lookups[0].frame}


def _prior(*names: str) -> Get:
    return Get(frame("v", Phase.OLD), tuple((name, name) for name in (*names, "n")))


def wheres(lookups: tuple[Lookup, ...]) -> dict[str, tuple[list[str], list[str]]]:
    """Return for each side that is looked up what is said of its keys, and of its rows."""

    def text(where: tuple[Condition, ...]) -> list[str]:
        return [f"{each.column} {each.comparison.value} {each.values}" for each in where]

    return {each.of: (text(tuple(c for place in each.keys for c in place.where)), text(each.where)) for each in lookups}


def test_what_a_predicate_says_of_a_side_is_said_of_its_look_up_and_of_its_keys() -> None:
    """Damage: all lines of all orders of a city are fetched, to be thrown away."""
    city, price = scalar("`p_city` = 'Rome'"), scalar("`l_price` > 3")
    above = Filter(Filter(SALES, city), price)
    below = joined(
        (Filter(LINES, price), ORDERS, Filter(PEOPLE, city)), [scalar("`l_id` = `o_id`"), scalar("`o_who` = `p_id`")]
    )
    within = joined((LINES, ORDERS, PEOPLE), [scalar("`l_id` = `o_id`"), scalar("`o_who` = `p_id`"), city, price])
    rome, dear = "city in ('Rome',)", "price > (3,)"
    for plan in (above, below, within):
        assert wheres(step(plan, "l")[1]) == {"o:old": ([dear], []), "p:old": ([], [rome])}
        assert wheres(step(plan, "p")[1]) == {"o:old": ([rome], []), "l:old": ([], [dear])}


def test_a_predicate_says_nothing_of_what_is_beside_it() -> None:
    """Damage: a side loses rows that another term, a group, or another column of the same name needs."""
    price = scalar("`l_price` > 3")
    narrow = Filter(LINES, price)
    same = scalar("`l_id` = `o_id`")
    beside = UnionAll((joined((narrow, ORDERS), [same]), joined((LINES, ORDERS), [same])))
    found = step(beside, "o")[1]
    assert [each.where for each in found if each.of == "l:old"] == [(Condition("price", Comparison.MORE, (3,)),), ()]
    computed = Filter(Project(LINES, (("l_price", scalar("`l_price` + 1")), ("l_id", Scalar(column("l_id"))))), price)
    assert wheres(step(joined((computed, ORDERS), [same]), "o")[1]) == {"l:old": ([], [])}
