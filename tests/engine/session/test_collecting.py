"""A result may be larger than memory: what does not fit waits in a file, in order, and is gone with the result."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.engine.session import collecting
from strandline.engine.session.collecting import Gathered, collected
from strandline.engine.session.start import RESULT_SIZE_KEY
from strandline.errors import Determinate, InvalidUsage

MIB = 1 << 20
LOOKS_MAX = 100
"""So often Spark is asked whether a job has ended, twenty times a second."""


def batch(n: int) -> pa.RecordBatch:
    """A batch of 8 KB, whose numbers begin at ``n``."""
    return pa.record_batch({"n": pa.array(range(n, n + 1_000))})


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def mapped(directory: Path) -> int:
    """Return how many files of a directory this process has mapped or open, with a name or without."""
    maps = {line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines() if str(directory) in line}
    opened = [each for each in Path("/proc/self/fd").iterdir() if str(directory) in os.path.realpath(each)]
    return len(maps) + len(opened)


def gather(directory: Path) -> None:
    """Gather more than is held, read it, and let it go; see that nothing stays."""
    gathered = Gathered(held_bytes_max=20_000)
    for n in range(10):
        gathered.add(batch(n))
    found = gathered.batches()
    assert found == [batch(n) for n in range(10)]
    gathered.close()
    assert found[9] == batch(9), "what was returned stays"
    assert mapped(directory) == 1
    assert list(directory.iterdir()) == [], "a process that dies now leaves nothing behind"
    del found
    assert mapped(directory) == 0


def test_what_does_not_fit_is_in_a_file_without_a_name(directory: Path) -> None:
    """Damage: each large query leaves a file behind, until the disk is full."""
    gather(directory)


def test_a_file_that_is_left_behind_is_caught(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the test above sees nothing."""
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(tempfile.NamedTemporaryFile, delete=False))
    with pytest.raises(AssertionError, match="leaves nothing behind"):
        gather(directory)


def test_a_small_result_needs_no_file(directory: Path) -> None:
    """Damage: every answer costs a file."""
    gathered = Gathered()
    gathered.add(batch(0))
    found = gathered.batches()
    assert (found, mapped(directory)) == ([batch(0)], 0)


def test_a_full_disk_is_said_when_the_file_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a query fails with an OSError that names neither the result nor the directory."""
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "wb", 1 << 20))
    gathered = Gathered(held_bytes_max=0)
    gathered.add(batch(0))
    with pytest.raises(Determinate, match="a result of 8000 bytes has no room in"):
        gathered.batches()
    gathered.close()


@pytest.mark.spark
def test_a_full_disk_is_said_while_the_result_comes(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: what the operator reads is a stack of the JVM's, of a socket that was closed."""
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "wb"))
    monkeypatch.setattr(collecting.Gathered.__init__, "__defaults__", (10_000,))
    with pytest.raises(Determinate, match="has no room in"):
        collected(spark.range(0, 1_000_000, 1, 40).selectExpr("repeat(id, 9) AS t"), spark, "full")


@pytest.mark.spark
def test_a_result_is_whole_and_in_order(spark: Any, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: rows are missing, twice, or in another order once a result is in a file; or an empty one is an error."""
    monkeypatch.setattr(collecting.Gathered.__init__, "__defaults__", (10_000,))
    rows = spark.range(0, 100_000, 1, 7).selectExpr("id", "repeat(id, 3) AS t")
    found = collected(rows, spark, "whole")
    assert found.equals(rows.toArrow())
    assert mapped(directory) == 1
    nothing = rows.where("id < 0")
    assert collected(nothing, spark, "nothing").equals(nothing.toArrow())


@pytest.mark.spark
def test_a_result_that_is_too_large_ends_its_jobs(spark: Any, directory: Path) -> None:
    """Damage: one careless query fills the disk; or Spark goes on computing what no client gets."""
    endless = spark.range(0, 10**9, 1, 100_000).selectExpr("repeat(id, 50) AS t")
    with pytest.raises(InvalidUsage, match="the result has more than 50000000 bytes"):
        collected(endless, spark, "too-large", 50_000_000)
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []
    assert mapped(directory) == 0


@pytest.mark.spark
def test_the_last_batch_counts_too(spark: Any) -> None:
    """Damage: a result of one batch has no bound."""
    with pytest.raises(InvalidUsage, match="the result has more than 1000 bytes"):
        collected(spark.range(0, 2_000, 1, 1), spark, "last", 1_000)


def jobs(spark: Any, tag: str) -> list[int]:
    """Return the jobs that carried a tag."""
    return list(spark.sparkContext._jsc.sc().statusTracker().getJobIdsForTag(tag))


@pytest.mark.spark
def test_spark_computes_no_more_than_is_taken(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: where Python writes slower than tasks end, what they gave fills the heap, and the engine's JVM ends."""
    seen: list[list[int]] = []
    add = Gathered.add

    def slow(self: Gathered, rows: pa.RecordBatch) -> None:
        if not seen:
            threading.Event().wait(0.3)
        seen.append(under_way())
        add(self, rows)

    def under_way() -> list[int]:
        """Return the jobs that do not end while we take nothing; one that has given all is listed a moment longer."""
        active = list(spark.sparkContext.statusTracker().getActiveJobsIds())
        for _ in range(LOOKS_MAX):
            if not active:
                break
            threading.Event().wait(0.05)
            active = list(spark.sparkContext.statusTracker().getActiveJobsIds())
        return active

    monkeypatch.setattr(Gathered, "add", slow)
    rows = spark.range(0, 100_000, 1, 100).selectExpr("repeat(id, 50) AS t")  # more than sockets buffer
    assert collected(rows, spark, "slow").equals(rows.toArrow())
    assert (len(seen), any(seen)) == (100, False), "a job is under way while nobody takes what it gives"
    assert len(jobs(spark, "slow")) < 7, "partitions that give little are asked for together"


@pytest.mark.spark
def test_a_small_result_is_one_job(spark: Any) -> None:
    """Damage: each question costs the time of several jobs."""
    collected(spark.range(0, 100, 1, spark.sparkContext.defaultParallelism), spark, "one")
    assert len(jobs(spark, "one")) == 1


@pytest.fixture
def handed_over(spark: Any) -> Iterator[Callable[[str], None]]:
    """Says how much a job may hand over; it is as before afterwards."""
    conf = spark.sparkContext._jsc.sc().conf()
    before = conf.get(RESULT_SIZE_KEY)
    yield lambda size: conf.set(RESULT_SIZE_KEY, size)
    conf.set(RESULT_SIZE_KEY, before)


@pytest.mark.spark
def test_partitions_that_are_too_large_together_come_one_by_one(
    spark: Any, handed_over: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a result is refused, or fills the heap, whose partitions differ in size."""
    monkeypatch.setattr(collecting, "following", lambda *_: 6)
    rows = spark.range(0, 20_000, 1, 8).selectExpr("id", "repeat('x', 100) AS t")
    whole = rows.toArrow()
    handed_over("500k")
    assert collected(rows, spark, "differ").equals(whole)
    handed_over("100k")
    with pytest.raises(InvalidUsage, match=r"a partition of the result is larger than .* give Spark more memory"):
        collected(rows, spark, "differ")


def grown(collect: Callable[[], pa.Table]) -> tuple[int, pa.Table]:
    """Return by how many bytes the memory grew that no file backs, and a result."""
    before = anonymous()
    found = collect()
    return anonymous() - before, found


def anonymous() -> int:
    """Return the bytes of this process's memory that no file backs."""
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


@pytest.mark.spark
def test_a_large_result_is_not_in_memory(spark: Any, directory: Path) -> None:
    """Damage: a query of some gigabytes ends the process that writes."""
    rows = spark.range(0, 400_000, 1, 40).selectExpr("id", "repeat('x', 500) AS t")
    held, found = grown(lambda: collected(rows, spark, "large"))
    assert found.nbytes > 190 * MIB
    assert held < 64 * MIB, held
    whole, found = grown(rows.toArrow)
    assert whole > 150 * MIB, "what is measured shows it"
