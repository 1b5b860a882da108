"""The door: opens the environment of a project, for reading or for writing, without Spark's noise.

Whatever only asks opens the location read-only: it takes nothing over and works while `strandline run` lives.

The JVM that Spark starts writes warnings to the standard error that it inherits.  `keep_apart` gives it another one
(none), and keeps ours for us.

Source: design page "the public face" (command line).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import strandline
from strandline.cli.exits import wants_traceback
from strandline.client import Environment
from strandline.environment.project import Project, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STANDARD_ERROR: Final = 2


@dataclass(frozen=True)
class Door:
    """How this process comes by environments.  ``spark``: a session to work beside; None: each builds its own."""

    spark: SparkSession | None = None

    def project(self, root: Path) -> Project:
        """Return the project in ``root``; see `strandline.environment.project.load`."""
        return load(root)

    def reading(self, project: Project) -> Environment:
        """Open the project's location for reading only."""
        return self._open(project, read_only=True, take_over=False)

    def writing(self, project: Project, *, take_over: bool = False) -> Environment:
        """Open the project's location for writing; see `strandline.open`.  The project is not applied yet."""
        return self._open(project, read_only=False, take_over=take_over)

    def _open(self, project: Project, *, read_only: bool, take_over: bool) -> Environment:
        if self.spark is None and not wants_traceback():
            keep_apart()
        return strandline.open(
            project.location,
            spark=self.spark,
            consensus=project.consensus,
            read_only=read_only,
            config={**project.config, "take_over": take_over},
        )


def keep_apart() -> None:
    """Let what this process starts write its standard error to nowhere, and this process's own Python where it did."""
    if sys.stderr is not sys.__stderr__ or sys.stderr is None or sys.stderr.fileno() != STANDARD_ERROR:
        return  # it is apart already, or somebody catches it
    own = os.dup(STANDARD_ERROR)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STANDARD_ERROR)
    os.close(nowhere)
    sys.stderr = os.fdopen(own, "w", buffering=1, errors="backslashreplace")
