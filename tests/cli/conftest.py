"""The command line in this process, beside the shared Spark application; and as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from strandline.cli import main
from strandline.cli.terminal import opening

COMMAND = (sys.executable, "-m", "strandline")


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    status: int
    out: str
    err: str

    @property
    def documents(self) -> list[Any]:
        """Standard output, a JSON document a line."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


@dataclass
class Place:
    """A project in a directory, and the command line on it."""

    root: Path
    spark: SparkSession
    caught: pytest.CaptureFixture[str]

    def write(self, files: Mapping[str, str]) -> None:
        """Write files of the project."""
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def run(self, command: str, *arguments: str) -> Said:
        """Run a command on the project in this process."""
        self.caught.readouterr()
        status = main([command, *arguments, "--project", str(self.root)], spark=self.spark)
        return Said(status, *self.caught.readouterr())

    def sql(self, text: str) -> Said:
        """Run statements on the project in this process."""
        self.write({"script.sql": text})
        return self.run("sql", "--json", "-f", str(self.root / "script.sql"))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``strandline run`` as a process of its own, in a session of its own."""
        command = [*COMMAND, "run", "--json", "--tick-ms", "100", *arguments, "--project", str(self.root)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )


def ticked(process: subprocess.Popen[str]) -> None:
    """Wait until ``strandline run --json`` has said that it has ticked, and that nothing is in the way.

    On a busy machine the first tick does not wait for its source to the end, or it says before what it waits for.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        told = json.loads(line)
        if told.get("problems") == {} and told["waiting"] == {}:
            return
    raise AssertionError(process.stderr.read())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a command in this process ask the one that writes for long: on a busy machine that answers late."""
    monkeypatch.setattr(opening, "ANSWER_S", 120.0)


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Place:
    """A project with a location and nothing else."""
    root = tmp_path / "project"
    place = Place(root, spark, capsys)
    place.write({"strandline.yml": "location: data\n"})
    return place


@pytest.fixture
def alone() -> Callable[..., Said]:
    """Run the command line as a process of its own, with another environment."""

    def run(arguments: Sequence[str], **environment: str) -> Said:
        done = subprocess.run(
            [*COMMAND, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False
        )
        return Said(done.returncode, done.stdout, done.stderr)

    return run
