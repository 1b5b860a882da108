"""What of a replica runs on, when a controller has said everything again."""

from __future__ import annotations

from dataclasses import replace

from strandline.algebra.schema import Column, Schema
from strandline.frontier import EMPTY, MINIMUM, Frontier
from strandline.instance.commands import Collection, RunDataflow
from strandline.instance.protocol.messages import Create, Frontiers, RunIndex, Status
from strandline.instance.reconcile import reconcile
from strandline.instance.replica import Reporter, Standing

ROWS = Schema((Column("a", "int"),))


def view(name: str, reads: str = "t", conf: str = "1") -> Create:
    """A view, as a replica is to run it."""
    output, read = Collection(name, f"shard-{name}", ROWS), Collection(reads, f"shard-{reads}", ROWS)
    what = RunDataflow(output, (), {}, {reads: read}, {"conf": conf}, frozenset())
    return Create(name, (name,), what)


def index(as_of: int) -> Create:
    """An index that can be read from ``as_of`` on."""
    return Create("i", ("i",), RunIndex(Collection("t", "shard-t", ROWS), ("a",)), as_of)


def by_id(*created: Create) -> dict[str, Create]:
    """Return creations by their ids."""
    return {each.id: each for each in created}


def test_what_is_commanded_as_it_runs_is_kept() -> None:
    """Damage: a restart of the controller computes everything anew."""
    running = by_id(view("v"), view("w"), index(5))
    found = reconcile(running, by_id(view("w"), index(5), view("v")), epoch_over=False)
    assert (found.keep, found.replace, found.drop, found.create) == (("v", "w", "i"), {}, (), ())
    assert (found.counted.reused, found.counted.replaced) == (3, {})


def test_what_is_commanded_otherwise_is_replaced_and_the_reason_is_counted() -> None:
    """Damage: a changed view goes on as it was, or it stays unknown why all of them were computed anew."""
    moved = view("moved")
    assert isinstance(moved.what, RunDataflow)
    elsewhere = replace(moved, what=replace(moved.what, output=Collection("moved", "shard-new", ROWS)))
    running = by_id(moved, view("reads"), view("plan"), index(5))
    found = reconcile(
        running, by_id(elsewhere, view("reads", reads="u"), view("plan", conf="2"), index(4)), epoch_over=False
    )
    assert found.replace == {"moved": "exports", "reads": "imports", "plan": "plan", "i": "as_of"}
    assert found.counted.replaced == {"as_of": 1, "exports": 1, "imports": 1, "plan": 1}


def test_an_index_is_kept_only_if_it_can_be_read_from_where_it_is_wanted() -> None:
    """Damage: a kept dataflow whose as_of is ahead answers for times at which it knows nothing."""
    assert reconcile(by_id(index(5)), by_id(index(5)), epoch_over=False).keep == ("i",)
    assert reconcile(by_id(index(5)), by_id(index(7)), epoch_over=False).keep == ("i",)
    assert reconcile(by_id(index(5)), by_id(index(4)), epoch_over=False).replace == {"i": "as_of"}


def test_what_is_not_mentioned_is_dropped_and_what_is_new_is_made() -> None:
    """Damage: a view that was dropped while the controller was away runs for ever."""
    found = reconcile(by_id(view("old"), view("both")), by_id(view("both"), view("new")), epoch_over=False)
    assert (found.keep, found.drop, found.create) == (("both",), ("old",), ("new",))


def test_nothing_is_kept_whose_epoch_of_writes_is_over() -> None:
    """Damage: after a promotion a replica goes on as one whose writes are refused."""
    assert reconcile(by_id(view("v")), by_id(view("v")), epoch_over=True).replace == {"v": "epoch"}


def test_a_report_says_what_has_changed_and_nothing_twice() -> None:
    """Damage: a report for each view at each tick, or a change that the controller never hears of."""
    reporter = Reporter()
    first = Standing({"v": Frontier(3)}, {"s": Frontier(1)}, 1, {"w": "it waits"}, {"v": 7}, {"n": 1})
    assert reporter.changes(first) == [
        Status({"w": "it waits"}, {"v": 7}, {"n": 1}),
        Frontiers({"v": Frontier(3)}, {"s": Frontier(1)}, 1),
    ]
    assert reporter.changes(first) == []
    assert reporter.changes(replace(first, advanced=2)) == [Frontiers({}, {}, 2)]
    later = Standing({"v": Frontier(4)}, {}, 2, {}, {}, {"n": 2})
    assert reporter.changes(later) == [
        Status({"w": ""}, {"v": None}, {"n": 2}),
        Frontiers({"v": Frontier(4)}, {"s": EMPTY}),
    ]


def test_what_was_dropped_is_not_reported_as_complete_for_ever() -> None:
    """Damage: a dataflow that reconciliation dropped seals what reads it (false seal)."""
    reporter = Reporter()
    reporter.changes(Standing(writes={"v": Frontier(3), "w": MINIMUM}))
    assert reporter.changes(Standing(writes={"w": MINIMUM})) == [Frontiers(gone=("v",))]
