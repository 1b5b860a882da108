"""Spark's own declarative pipeline, which refreshes a view after each change: a second peer, for a few views.

A pipeline holds the view as ``CREATE MATERIALIZED VIEW`` over the Parquet files that plain Spark reads (`peer`), and
writes the view's rows as Parquet.  It is run once after each change, in a JVM of its own that stays warm
(`pipeline_runner`) and has the configuration, the cores and the heap of plain Spark's.

What is counted: from the call that starts the run until the event that says that the view's flow is completed, which
is when its rows can be read.  Not counted: starting the process, making the graph of its SQL, reading anew which files
the tables have.  Nor is it counted that the run is over up to a second later, because Spark looks only once a second
whether it is: that is in ``pipeline_run_ms``.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.bench.tpch.contents import differences
from strandline.bench.tpch.pipeline_runner import Answer, Request, written
from strandline.errors import Unavailable

RUNNER: Final = (sys.executable, "-m", "strandline.bench.tpch.pipeline_runner")
END_S_MAX: Final = 30.0
"""How long its process may take to end before it is killed."""


class Pipeline:
    """The process that runs pipelines.  Use as a context.

    ``files``: where the contents of each table are; it is read anew at each run.
    ``left_out``: why there is none; empty if it is there.  ``log`` has what Spark prints.
    """

    def __init__(self, files: Mapping[str, Path], directory: Path, cores: int, runner: Sequence[str] = RUNNER) -> None:
        self._files = files
        self._directory = directory
        self._command = [*runner, str(directory), str(cores)]
        self._process: subprocess.Popen[str] | None = None
        self.log = directory / "log"
        self.left_out = ""

    def __enter__(self) -> Self:
        """Start it, and wait until it is ready or says why it cannot be."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            self._answer()
        except Unavailable as error:
            self.left_out = str(error)
        return self

    def __exit__(self, *_: object) -> None:
        """Let it end; what of it has not ended then is killed, its JVM too."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S_MAX)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def run(self, view: str, query: str) -> tuple[Answer, pa.Table]:
        """Run the pipeline that holds ``view``, and return what it took and the rows that are there then.

        Raises `Unavailable` if the run fails, or if the process has ended.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            request = Request(view, query, {name: path.as_uri() for name, path in self._files.items()})
            self._process.stdin.write(msgspec.json.encode(request).decode() + "\n")
            self._process.stdin.flush()
        return self._answer(), pq.read_table(written(self._directory, view))

    def _answer(self) -> Answer:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable(f"its process has ended with status {self._process.wait()}; {self.log} shows why")
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error:
            raise Unavailable(answer.error)
        return answer


@dataclass
class Refreshes:
    """What was measured of the runs of one view's pipeline that count."""

    pipeline: Pipeline
    view: str
    query: str
    answers: list[Answer] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def follow(self, when: str, ours: pa.Table | None, *, counts: bool) -> str:
        """Run the pipeline, compare what it wrote with our rows if these could be read, and return what it took."""
        try:
            answer, theirs = self.pipeline.run(self.view, self.query)
        except Unavailable as error:
            self.wrong.append(f"{when} its run failed: {error}")
            return "the pipeline's run failed"
        if counts:
            self.answers.append(answer)
        if ours is not None and any(found := differences(theirs, ours)):
            self.wrong.append(f"{when} it lacks {found[0]} of our rows and has {found[1]} others")
        return f"pipeline {answer.ms:.0f} ms"

    def figures(self, tick_ms: float) -> dict[str, Any]:
        """Return what the document says of it beside a tick that took so long.

        >>> seen = Refreshes(Pipeline({}, Path(), 2), "q6", "SELECT 1")
        >>> seen.answers += [Answer(900.0, 1500.0), Answer(500.0, 1010.0), Answer(600.0, 1040.0)]
        >>> seen.figures(200.0)
        {'pipeline_ms': 600.0, 'pipeline_ratio': 3.0, 'pipeline_run_ms': 1040.0, 'pipeline_wrong': []}
        """
        if not self.answers:
            return {"pipeline_wrong": self.wrong}
        ms = statistics.median(answer.ms for answer in self.answers)
        return {
            "pipeline_ms": round(ms, 1),
            "pipeline_ratio": round(ms / tick_ms, 2),
            "pipeline_run_ms": round(statistics.median(answer.run_ms for answer in self.answers), 1),
            "pipeline_wrong": self.wrong,
        }
