"""A result may be larger than memory: what does not fit waits in a file, in order, and is gone with the result."""

from __future__ import annotations

import io
import os
import struct
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pytest

from strandline.engine.session import collecting
from strandline.engine.session.collecting import Gathered, InOrder, collected
from strandline.errors import InvalidUsage

MIB = 1 << 20


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


def sent(order: list[int]) -> IO[bytes]:
    """What the JVM sends of three batches: as tasks end, and then the order of the result."""
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, batch(0).schema) as writer:
        for n in range(3):
            writer.write_batch(batch(n))
    stream.write(struct.pack(f">{1 + len(order)}i", len(order), *order))
    stream.seek(0)
    return stream


def test_batches_are_taken_as_they_come_and_numbered_in_the_order_of_the_result() -> None:
    """Damage: ORDER BY is lost where a later task ends first; or all batches are held until the last has come."""
    taken: list[Any] = []
    numbers = list(InOrder(taken.append).load_stream(sent([2, 0, 1])))
    assert (numbers, taken) == ([2, 0, 1], [batch(n) for n in range(3)])


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
