"""The TPC-H-derived views are right after every change, and a wrong one would be seen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.bench.ivm import Load, maintain
from strandline.bench.tpch import contents as tpch
from strandline.bench.tpch.contents import Contents, Peer, differences
from strandline.bench.tpch.spread import Spread
from strandline.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SCALE = 0.002
SHARE = 0.02


def rows_of(table: pa.Table) -> Counter[tuple]:
    """The rows as a multiset."""
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def held(contents: Contents, table: str) -> pa.Table:
    """What a table holds now."""
    return pq.read_table(contents.files[table])


@pytest.fixture(autouse=True)
def _batches(monkeypatch) -> None:
    """A table is read in several batches, though it is small."""
    monkeypatch.setattr(tpch, "BATCH_ROWS", 500)


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> Path:
    """A directory with the generated tables, which no test changes."""
    directory = tmp_path_factory.mktemp("generated")
    Contents(directory, directory, SCALE, Spread.UNIFORM)
    return directory


@pytest.mark.parametrize("spread", list(Spread))
def test_a_change_is_what_differs(generated: Path, tmp_path: Path, spread: Spread) -> None:
    """Damage: plain Spark answers over other rows than our views, and a right view looks wrong."""
    contents = Contents(generated, tmp_path, SCALE, spread)
    for _ in range(2):
        before = {name: rows_of(held(contents, name)) for name in contents.files}
        edits = contents.change(SHARE)
        assert {edit.table for edit in edits} == {"orders", "lineitem", "customer", "part", "partsupp"}
        for edit in edits:
            deleted, inserted = rows_of(edit.deleted), rows_of(edit.inserted)
            assert before[edit.table] >= deleted
            assert before[edit.table] - deleted + inserted == rows_of(held(contents, edit.table))
            assert deleted != inserted


@pytest.mark.parametrize("spread", list(Spread))
def test_orders_keep_keys_of_their_own_and_their_lines(generated: Path, tmp_path: Path, spread: Spread) -> None:
    """Damage: joins of the views lose their meaning, and top-k has ties."""
    contents = Contents(generated, tmp_path, SCALE, spread)
    for _ in range(4):
        contents.change(SHARE)
    keys = held(contents, "orders")["o_orderkey"].to_numpy()
    assert len(np.unique(keys)) == len(keys)
    assert set(held(contents, "lineitem")["l_orderkey"].to_numpy()) <= set(keys)


def test_clustered_keys_lie_side_by_side(generated: Path, tmp_path: Path) -> None:
    """Damage: both kinds of keys are measured as one."""
    spans = {}
    for spread in Spread:
        contents = Contents(generated, tmp_path, SCALE, spread)
        keys = np.sort(held(contents, "orders")["o_orderkey"].to_numpy())
        edit = next(edit for edit in contents.change(SHARE) if edit.table == "orders")
        gone = np.sort(np.searchsorted(keys, edit.deleted["o_orderkey"].to_numpy()))
        spans[spread] = int((np.diff(gone) > 1).sum())
    assert spans[Spread.CLUSTERED] <= 1 < spans[Spread.UNIFORM]


def test_the_same_arguments_give_the_same_changes(generated: Path, tmp_path: Path) -> None:
    """Damage: a wrong view cannot be found again."""
    runs = [Contents(generated, tmp_path / str(number), SCALE, Spread.UNIFORM) for number in range(2)]
    for _ in range(2):
        one, other = (contents.change(SHARE) for contents in runs)
        assert [edit.inserted for edit in one] == [edit.inserted for edit in other]


def test_what_changes_does_not_depend_on_the_other_tables(generated: Path, tmp_path: Path) -> None:
    """Damage: a view that is wrong beside others is measured alone over other changes."""
    whole = Contents(generated, tmp_path / "whole", SCALE, Spread.UNIFORM)
    few = Contents(generated, tmp_path / "few", SCALE, Spread.UNIFORM, ["part", "nation"])
    assert list(few.files) == ["nation", "part", "orders"]
    for _ in range(2):
        all_edits = {edit.table: edit for edit in whole.change(SHARE)}
        edits = few.change(SHARE)
        assert [edit.table for edit in edits] == ["orders", "part"]
        assert edits == [all_edits[edit.table] for edit in edits]


def test_a_change_holds_no_table_in_memory(tmp_path: Path, monkeypatch) -> None:
    """Damage: a scale is out of reach whose tables are larger than the machine's memory."""
    contents = Contents(tmp_path / "generated", tmp_path, 0.01, Spread.UNIFORM, ["lineitem"])
    contents.change(SHARE)  # the generator's own row groups are large
    write, before, peak = pq.ParquetWriter.write_table, pa.total_allocated_bytes(), 0

    def measured(*arguments) -> None:
        nonlocal peak
        peak = max(peak, pa.total_allocated_bytes() - before)
        write(*arguments)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", measured)
    contents.change(SHARE)
    assert 0 < peak < held(contents, "lineitem").nbytes / 5


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
    contents = Contents(generated, tmp_path, SCALE, Spread.UNIFORM)
    peer = Peer(spark)
    peer.follow(contents, contents.files)
    query = "SELECT * FROM orders"
    before, _ = peer.answer(query)
    edits = contents.change(SHARE)
    peer.follow(contents, [edit.table for edit in edits])
    after, _ = peer.answer(query)
    assert differences(after, held(contents, "orders")) == (0, 0)
    assert all(differences(before, after))
