"""The TPC-H-derived views are right after every change, and a wrong one would be seen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strandline.bench.ivm import Load, maintain
from strandline.bench.tpch.contents import Contents, Spread
from strandline.bench.tpch.peer import Peer, differences
from strandline.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

SCALE = 0.002
SHARE = 0.02


def rows_of(table: pa.Table) -> Counter[tuple]:
    """The rows as a multiset."""
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> Path:
    """A directory with the generated tables, which no test changes."""
    directory = tmp_path_factory.mktemp("generated")
    Contents(directory, SCALE, Spread.UNIFORM)
    return directory


@pytest.mark.parametrize("spread", list(Spread))
def test_a_change_is_what_differs(generated: Path, spread: Spread) -> None:
    """Damage: plain Spark answers over other rows than our views, and a right view looks wrong."""
    contents = Contents(generated, SCALE, spread)
    for _ in range(2):
        before = {name: rows_of(rows) for name, rows in contents.rows.items()}
        edits = contents.change(SHARE)
        assert {edit.table for edit in edits} == {"orders", "lineitem", "customer", "part", "partsupp"}
        for edit in edits:
            deleted, inserted = rows_of(edit.deleted), rows_of(edit.inserted)
            assert before[edit.table] >= deleted
            assert before[edit.table] - deleted + inserted == rows_of(contents.rows[edit.table])
            assert deleted != inserted


@pytest.mark.parametrize("spread", list(Spread))
def test_orders_keep_keys_of_their_own_and_their_lines(generated: Path, spread: Spread) -> None:
    """Damage: joins of the views lose their meaning, and top-k has ties."""
    contents = Contents(generated, SCALE, spread)
    for _ in range(4):
        contents.change(SHARE)
    keys = contents.rows["orders"]["o_orderkey"].to_numpy()
    assert len(np.unique(keys)) == len(keys)
    assert set(contents.rows["lineitem"]["l_orderkey"].to_numpy()) <= set(keys)


def test_clustered_keys_lie_side_by_side(generated: Path) -> None:
    """Damage: both kinds of keys are measured as one."""
    spans = {}
    for spread in Spread:
        contents = Contents(generated, SCALE, spread)
        keys = np.sort(contents.rows["orders"]["o_orderkey"].to_numpy())
        edit = next(edit for edit in contents.change(SHARE) if edit.table == "orders")
        gone = np.sort(np.searchsorted(keys, edit.deleted["o_orderkey"].to_numpy()))
        spans[spread] = int((np.diff(gone) > 1).sum())
    assert spans[Spread.CLUSTERED] <= 1 < spans[Spread.UNIFORM]


def test_the_same_arguments_give_the_same_changes(generated: Path) -> None:
    """Damage: a wrong view cannot be found again."""
    one, other = (Contents(generated, SCALE, Spread.UNIFORM).change(SHARE) for _ in range(2))
    assert [edit.inserted for edit in one] == [edit.inserted for edit in other]


@pytest.mark.parametrize("views", ["q23", "q1,", "Q1"])
def test_views_that_are_not_there_are_refused(views: str, capsys) -> None:
    """Damage: a run takes an hour to say that it measured nothing."""
    assert main(["bench", "ivm", "--views", views]) == 2
    assert "there is no view" in capsys.readouterr().err


@pytest.mark.spark
def test_views_are_equal_to_plain_spark_after_every_change(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: TPC-H-derived views are wrong, or the figures are those of wrong answers."""
    load = Load(("q4", "q5", "q13"), scale=0.01, change=0.01, ticks=2, warm=0, one_by_one=False)
    found = maintain(spark, tmp_path, load)["together"]
    assert found["wrong"] == []
    assert found["rows"] > 0
    assert found["recompute_ms"] > 0


@pytest.mark.spark
def test_plain_spark_follows_the_contents(spark: SparkSession, tmp_path: Path, generated: Path) -> None:
    """Damage: a view that does not follow is compared with rows as old as its own."""
    contents = Contents(generated, SCALE, Spread.UNIFORM)
    peer = Peer(spark, tmp_path)
    peer.follow(contents)
    query = "SELECT * FROM orders"
    before, _ = peer.answer(query)
    edits = contents.change(SHARE)
    peer.follow(contents, [edit.table for edit in edits])
    after, _ = peer.answer(query)
    assert differences(after, contents.rows["orders"]) == (0, 0)
    assert all(differences(before, after))
