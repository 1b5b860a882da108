"""The opener: how commands open the environment of a project, for reading or for writing, without Spark's output.

A command that only reads opens the location read-only: it takes nothing over and works while `strandline run` is
running.

The JVM that Spark starts inherits this process's streams and writes warnings to both.  `keep_apart` redirects the JVM's
output to nowhere, so that standard output holds only documents.

An option of a command may name a moment (`moment_option`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias, TypeVar

import typer

import strandline
from strandline import client, serving
from strandline.cli.terminal.exits import wants_traceback
from strandline.controller.defining.project.settings import Project, settings
from strandline.controller.location.config import Mode
from strandline.errors import ConfigError, Determinate, Held, InvalidUsage, Silent, Unavailable
from strandline.frontier import moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.client import Environment, ListeningReplica, NextVersion
    from strandline.serving import RemoteEnvironment


Asked: TypeAlias = "Environment | RemoteEnvironment"
"""What a command asks: an environment that it opened, or that of the process that writes."""
STANDARD_OUTPUT: Final = 1
STANDARD_ERROR: Final = 2
ANSWER_S: Final = 2.0
"""How long the process that writes may take to answer that it is there."""
WAIT_S: Final = 60.0
"""How long a change waits for a process that holds the location, or opens it, and does not answer."""
LOOK_S: Final = 0.25
T = TypeVar("T")


@dataclass(frozen=True)
class Opener:
    """Opens environments for commands.

    ``spark``: a session to share; None: each environment builds its own.  ``wait_s``: see `WAIT_S`.
    """

    spark: SparkSession | None = None
    wait_s: float = WAIT_S

    def project(self, root: Path, *, whole: bool = True) -> Project:
        """Return the project in ``root``; see `strandline.controller.defining.project.files.load`."""
        from strandline.controller.defining.project.files import load  # it understands SQL: no question needs that

        return load(root, whole=whole)

    def place(self, root: Path) -> Project:
        """Return the project in ``root`` by its settings alone: to ask its location, whatever its files define now."""
        return settings(root)

    def reading(self, project: Project, note: Callable[[str], object]) -> Asked:
        """Connect to the process that writes the project's location; if none serves there, open it as `beside` does.

        So it does if that process does not answer, and ``note`` says so.
        """
        return self.answering(project, note) or self.beside(project, note)

    def answering(self, project: Project, note: Callable[[str], object]) -> RemoteEnvironment | None:
        """Connect to the process that writes the project's location; None: none serves there, or answers.

        ``note`` reports a process that is there and does not answer.
        """
        try:
            return self.living(project)
        except Silent as error:
            note(f"strandline: {error}; reading what the location holds")
            return None

    def beside(self, project: Project, note: Callable[[str], object]) -> Environment:
        """Open the project's location for reading only, whatever becomes of the process that writes it.

        If the store takes no writes now, not even leases, this reads without holds; ``note`` reports that.
        """
        try:
            return self._open(project, Mode.READ)
        except Determinate as error:
            note(f"strandline: {error}; reading without holding what is read")
            return self.looking(project)

    def changing(self, project: Project, note: Callable[[str], object], *, whole: bool = True) -> Asked:
        """Connect to the process that writes the project's location; if none serves there, open it for writing.

        Only then it matters what the project's files define.  ``whole``: all of them must be understood.  It waits for
        a process as `awaited` does, and raises as that.
        """
        return self.awaited(lambda: self.living(project) or self.writing(self.project(project.root, whole=whole)), note)

    def awaited(self, connect: Callable[[], T], note: Callable[[str], object]) -> T:
        """Return what ``connect`` returns, once the process that holds the location answers, or has ended.

        ``note`` reports the wait.  Raises `Silent` or `Held` once that has taken `wait_s` seconds.
        """
        begun, waits = time.monotonic(), False
        while True:
            try:
                return connect()
            except (Silent, Held) as error:
                left = self.wait_s - (time.monotonic() - begun)
                if left <= 0:
                    raise
                if not waits:
                    note(f"strandline: {error}; waiting for it, for {left:.0f} s at most")
                waits = True
            threading.Event().wait(min(left, LOOK_S))

    def living(self, project: Project) -> RemoteEnvironment | None:
        """Connect to the process that writes the project's location; None: none serves there.

        Raises `Silent` if a process serves there and does not answer within `ANSWER_S`.
        """
        try:
            found = strandline.connect(project.location)
        except ConfigError:
            return None
        try:
            found.written_by(timeout=ANSWER_S)
        except Silent as error:
            found.close()
            pid = serving.writer(project.location)
            raise Silent(
                f"process {pid} writes {project.location} and has not answered within {ANSWER_S:g} seconds: it is "
                f"stopped (`kill -CONT {pid}` lets it go on), or its machine is busy"
            ) from error
        except (Unavailable, ConfigError):  # it was killed, or has just ended
            found.close()
            return None
        return found

    def imagining(self, project: Project) -> Environment:
        """Open an empty location in memory, as the project's is while nothing was stored there."""
        return self._open(replace(project, location="memory://", consensus=None), Mode.FULL)

    def writing(self, project: Project, **settings: object) -> Environment:
        """Open the project's location for writing, with ``settings`` in place of the project's; see `strandline.open`.

        The project is not applied yet.
        """
        return self._open(project, Mode.FULL, **settings)

    def preparing(self, project: Project, **settings: object) -> NextVersion:
        """Prepare what the project has otherwise than its location, with ``settings`` in place of the project's."""
        if self.spark is None:
            keep_apart()
        return client.prepare(
            project.location,
            project,
            spark=self.spark,
            consensus=project.consensus,
            config={**project.config, **settings},
        )

    def replicating(self, project: Project, listen: str) -> ListeningReplica:
        """Begin a replica of the project's location that listens at ``listen``."""
        if self.spark is None:
            keep_apart()
        return client.replicate(
            project.location, listen, spark=self.spark, consensus=project.consensus, config=dict(project.config)
        )

    def looking(self, project: Project) -> Environment:
        """Open the project's location independently, without writes, and read the store itself, not a cache."""
        return self._open(project, Mode.INDEPENDENT, cache_bytes=0)

    def keeping(self, project: Project) -> Environment:
        """Open the project's location to compact and collect beside the running writer."""
        return self._open(project, Mode.READ, cache_bytes=0)

    def _open(self, project: Project, mode: Mode, **settings: object) -> Environment:
        if self.spark is None:
            keep_apart()
        return strandline.open(
            project.location,
            spark=self.spark,
            consensus=project.consensus,
            mode=mode.value,
            config={**project.config, **settings},
            project=project,
        )


def keep_apart() -> None:
    """Redirect the output of child processes to nowhere, and keep the streams of this process.

    Standard error is not redirected if tracebacks are requested.
    """
    sys.stdout = _apart(sys.stdout, sys.__stdout__, STANDARD_OUTPUT)
    if not wants_traceback():
        sys.stderr = _apart(sys.stderr, sys.__stderr__, STANDARD_ERROR)


def _apart(stream: TextIO, original: TextIO | None, descriptor: int) -> TextIO:
    """Return a stream to the target of ``stream``; later output to ``descriptor`` is lost."""
    if stream is not original or stream.fileno() != descriptor:
        return stream  # it is redirected already, or a test captures it
    stream.flush()
    own = os.dup(descriptor)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return os.fdopen(own, "w", buffering=1, encoding=stream.encoding, errors=stream.errors)


def moment_option(text: str) -> int:
    """As `moment`, for an option of a command, whose refusal is one of usage."""
    try:
        return moment(text)
    except InvalidUsage as error:
        raise typer.BadParameter(str(error)) from error
