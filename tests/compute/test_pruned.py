"""A pruned plan reads what it needs, and what it gives stays the same."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.algebra.nodes import (
    NOTHING,
    Accumulate,
    Accumulator,
    Aggregate,
    Failing,
    Filter,
    First,
    Get,
    Node,
    Order,
    Project,
    Regroup,
    Replay,
    Restrict,
    UnionAll,
    children,
    joined,
    stored_columns,
)
from strandline.algebra.scalar import Scalar, column, columns, scalar
from strandline.compute.lookups import pruned


def nodes(node: Node) -> Iterator[Node]:
    """Return a plan's nodes."""
    yield node
    for child in children(node):
        yield from nodes(child)


def get(frame: str, *names: str) -> Get:
    """Return a leaf whose frame has its columns under names of its own."""
    return Get(frame, tuple((name, f"own_{name}") for name in names))


def read(node: Node) -> dict[str, str]:
    """Return the columns that the pruned plan reads of each frame; it must give what ``node`` gives."""
    found = pruned(node)
    assert found.names == node.names
    return {frame: "".join(sorted(each[-1] for each in own)) for frame, own in stored_columns(found).items()}


def only(node: Node, *names: str) -> Project:
    """Return some of the columns of ``node``."""
    return Project(node, columns(names))


A, B = get("a", "k", "l", "m", "n"), get("b", "p", "q", "r")
N = Scalar(column("n"))


def test_what_conditions_read_is_kept_below_them() -> None:
    """Damage: a step fails for a column that is not there."""
    pairs = joined((Filter(A, scalar("`m` > 0")), B), [scalar("`k` = `p`"), scalar("`l` < `q`")])
    assert read(only(pairs, "n")) == {"a": "klmn", "b": "pq"}
    assert read(only(pairs, "r")) == {"a": "klm", "b": "pqr"}


def test_inputs_of_a_union_stay_aligned() -> None:
    """Damage: a column takes the values of its neighbour."""
    union = UnionAll((Filter(A, scalar("`n` > 0")), get("b", "p", "q", "r", "s")))
    found = pruned(only(union, "l"))
    assert isinstance(found, Project)
    assert isinstance(found.input, UnionAll)
    assert [each.names for each in found.input.inputs] == [("l",), ("q",)]
    assert read(only(union, "l")) == {"a": "ln", "b": "q"}


def test_groups_keep_their_keys_and_arguments() -> None:
    """Damage: groups run together, or an aggregate is of other values."""
    keys = (("key", scalar("`k` + `l`")),)
    accumulate = Accumulate(A, NOTHING, keys, (Accumulator("total", N, "bigint"),), "total")
    assert read(only(accumulate, "total")) == {"a": "kln"}
    greatest = (Aggregate("top", "max", N, False, "int", "int"),)
    regroup = Regroup(A, get("new", "k", "l", "m", "n"), NOTHING, keys, greatest, first=First((Order("m"),), 1))
    assert read(only(regroup, "top")) == {"a": "klmn", "new": "klmn"}


def test_what_rows_are_restricted_by_is_kept() -> None:
    """Damage: all rows are read, or the wrong ones are left out."""
    some = Restrict(A, ("k",), only(B, "q"), first=First((Order("l"),), 1))
    assert read(only(some, "n")) == {"a": "kln", "b": "q"}


def test_queries_of_sparks_own_and_errors_see_whole_rows() -> None:
    """Damage: two rows that differ in a column that a query counts by become one."""
    assert read(Replay((A,), ("a",), "SELECT count(DISTINCT *) AS c FROM a", ("c",), NOTHING)) == {"a": "klmn"}
    assert read(Failing(A, (N,), ("n",), (("n", "n"),), "v")) == {"a": "klmn"}


def test_what_makes_rows_stays_though_nothing_reads_it() -> None:
    """Damage: a count of rows that a function makes counts the rows that it makes them of."""
    rows = Project(A, (("k", Scalar(column("k"))), ("made", scalar("explode(`m`)")), ("l", Scalar(column("l")))))
    assert read(only(rows, "k")) == {"a": "km"}


def test_a_plan_that_only_counts_rows_reads_one_column() -> None:
    """Damage: a leaf without columns is no table."""
    accumulate = Accumulate(A, NOTHING, (), (Accumulator("rows", scalar("1"), "bigint"),), "rows")
    assert read(accumulate) == {"a": "k"}
    for below in (
        only(A, "l", "m"),
        Filter(only(A, "l", "m"), scalar("`m` > 0")),
        UnionAll((only(A, "l"), only(A, "m"))),
    ):
        counted = pruned(Accumulate(below, NOTHING, (), (Accumulator("rows", scalar("1"), "bigint"),), "rows"))
        assert all(each.names for each in nodes(counted) if each is not NOTHING)
