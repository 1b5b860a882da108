"""Spark's declarative pipeline beside our views: what it wrote is compared, and what stands in its way is named."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.bench.ivm import Load, maintain
from strandline.bench.tpch.pipeline import Pipeline, Refreshes
from strandline.bench.tpch.pipeline_runner import Answer, require_connect, written
from strandline.cli import main
from strandline.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

READY = Answer()
ROWS = pa.table({"n": [1, 2, 2]})


def saying(*answers: Answer) -> tuple[str, ...]:
    """A process that gives these answers, the first at once and each other one when it is asked, and then ends."""
    first, *others = (msgspec.json.encode(answer).decode() for answer in answers)
    script = (
        f"print({first!r}, flush=True)\nimport sys\nfor each, _ in zip({others!r}, sys.stdin): print(each, flush=True)"
    )
    return (sys.executable, "-c", script)


@pytest.fixture
def wrote(tmp_path: Path) -> Path:
    """A directory in which a pipeline has written the view `v`."""
    place = written(tmp_path, "v")
    place.mkdir(parents=True)
    pq.write_table(ROWS, place / "part-0.parquet")
    return tmp_path


def test_what_a_pipeline_wrote_is_compared_with_our_rows(wrote: Path) -> None:
    """Damage: a pipeline is said to be fast, and its rows are others."""
    with Pipeline({}, wrote, 2, saying(READY, Answer(9.0), Answer(5.0), Answer(7.0))) as pipeline:
        runs = Refreshes(pipeline, "v", "SELECT 1")
        runs.follow("first", ROWS, counts=False)
        assert runs.wrong == []
        runs.follow("then", pa.table({"n": [1, 2, 3]}), counts=True)
        runs.follow("at last", None, counts=True)
    assert runs.wrong == ["then it lacks 1 of our rows and has 1 others"]
    assert runs.figures(2.0)["pipeline_ms"] == 6.0


def test_a_run_that_fails_is_named_and_does_not_count(wrote: Path) -> None:
    """Damage: the median is that of runs that did nothing, or one failure ends the benchmark."""
    with Pipeline({}, wrote, 2, saying(READY, Answer(error="no memory"), Answer(5.0))) as pipeline:
        runs = Refreshes(pipeline, "v", "SELECT 1")
        for when in ("first", "then", "at last"):
            runs.follow(when, ROWS, counts=True)
    failed, ended = runs.wrong
    assert failed == "first its run failed: no memory"
    assert ended.startswith("at last its run failed: its process has ended with status 0")
    assert runs.figures(2.5)["pipeline_ratio"] == 2.0


def test_a_pipeline_that_cannot_be_had_says_why(tmp_path: Path) -> None:
    """Damage: a report without the second peer looks as if there were none to show."""
    with Pipeline({}, tmp_path, 2, saying(Answer(error="grpcio is missing"))) as pipeline:
        assert pipeline.left_out == "grpcio is missing"
    with Pipeline({}, tmp_path, 2, (sys.executable, "-c", "raise SystemExit(3)")) as pipeline:
        assert pipeline.left_out == f"its process has ended with status 3; {pipeline.log} shows why"


def test_a_package_that_is_missing_is_named(monkeypatch) -> None:
    """Damage: a person reads that there is no pipeline, and not what to install."""
    for loaded in [name for name in sys.modules if name.partition(".connect")[0] == "pyspark.sql" != name]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ConfigError, match=r"pip install 'strandline\[bench\]'\): .*grpcio"):
        require_connect()


@pytest.mark.parametrize(
    "arguments", [["--views", "q1", "--pipeline", "q3"], ["--pipeline", "q3", "--no-one-by-one"], ["--pipeline", "q3,"]]
)
def test_a_pipeline_of_a_view_that_is_not_measured_alone_is_refused(arguments: list[str], capsys) -> None:
    """Damage: a run takes an hour, and its report says nothing of the pipeline that was asked for."""
    assert main(["bench", "ivm", *arguments]) == 2
    assert "is not among the views measured alone" in " ".join(capsys.readouterr().err.split())


@pytest.mark.spark
def test_a_pipeline_follows_every_change(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: the pipeline is measured over old rows, or as it does nothing."""
    load = Load(("q6",), scale=0.01, change=0.01, ticks=2, warm=0, together=False, pipeline=("q6",))
    found = maintain(spark, tmp_path, load)
    assert "pipeline_left_out" not in found, found["pipeline_left_out"]
    for view in found["views"].values():
        assert (view["wrong"], view["pipeline_wrong"]) == ([], [])
        assert 0 < view["pipeline_ms"] <= view["pipeline_run_ms"]
        assert view["pipeline_ratio"] == pytest.approx(view["pipeline_ms"] / view["tick_ms"], rel=0.1)
