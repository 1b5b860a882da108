"""Connection: whom the shell asks: the process that writes the location, or an environment that it opened itself.

A process that writes is asked wherever there is one.  If it ends, the shell waits for the next one, and does not open
the location for writing in its place: then the next one could not begin.  Where none was there, the shell reads the
location itself, until a process that writes begins, or until something is to be changed: then it becomes that process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strandline.cli.terminal.opening import ANSWER_S, Asked, Opener
from strandline.controller.defining.project.settings import Project
from strandline.errors import ConfigError, Silent, StrandlineError, Unavailable
from strandline.serving import RemoteEnvironment, writer

BACK_S: Final = 60.0
"""For so long the shell waits for a process that ended to come back."""
LOOK_S: Final = 0.25
_CONNECTED: Final = "a process writes the location now: connected to it"

Wait = Callable[[float], object]
"""Waits for so many seconds; Ctrl-C ends it."""


class Connection:
    """See the module.  ``say`` tells the user what changed."""

    def __init__(self, opener: Opener, project: Project, say: Callable[[str], object], wait: Wait) -> None:
        self.project = project
        self._opener = opener
        self._say = say
        self._wait = wait
        self._env: Asked | None = None
        self._process: int | None = None
        self._met = False
        """Whether a process that writes was met: then this shell does not become one."""

    @property
    def env(self) -> Asked:
        """What is asked."""
        assert self._env is not None, "it was opened"
        return self._env

    @property
    def writes(self) -> bool:
        """Whether this shell is the process that writes."""
        return self._env is not None and not isinstance(self._env, RemoteEnvironment) and self._env.writes

    def open(self) -> str:
        """Connect, or open the location for reading; return what to say of it."""
        self._env = self._opener.answering(self.project, self._say)
        if self._env is not None:
            self._process, self._met = self._writer(), True
            return f"connected to the process that writes {self.project.location} (process {self._process})"
        self._env = self._opener.beside(self.project, self._say)
        return f"no process writes {self.project.location}, so this shell reads it itself (`strandline run` writes it)"

    def ready(self, *, changes: bool) -> Asked:
        """Return what is to be asked now; ``changes``: by a statement that changes something.

        Raises `Unavailable` if there is no process that could do it.
        """
        if isinstance(self._env, RemoteEnvironment):
            if self._writer() not in {self._process, None}:
                self._join(self._opener.living(self.project), "the process that writes was started again")
            return self.env
        if self._env is None:
            self.come_back()
        elif not self.writes and (found := self._needed() if changes else self._living()) is not None:
            self._join(found, _CONNECTED)
        elif not self.writes and changes:
            self._become_writer()
        return self.env

    def lost(self, error: StrandlineError) -> bool:
        """Return whether ``error`` came because the process that writes has ended, and say so."""
        if not isinstance(self._env, RemoteEnvironment) or not isinstance(error, Unavailable | ConfigError):
            return False
        try:
            self._env.written_by(timeout=ANSWER_S)
        except Silent:
            return False  # it is there, and what failed is raised where it was asked
        except (Unavailable, ConfigError):
            self._env.close()
            self._env = None
            self._say("the process that writes has ended")
            return True
        return False

    def come_back(self) -> None:
        """Wait for a process that writes.  Raises `Unavailable` if none is there for long."""
        self._say("waiting for it to come back (Ctrl-C ends the wait)")
        waited = 0.0
        while (found := self._living()) is None:
            if waited >= BACK_S:
                raise Unavailable(
                    f"no process writes {self.project.location}: start `strandline run`, or start this shell again, "
                    "which then opens the location itself"
                )
            self._wait(LOOK_S)
            waited += LOOK_S
        self._join(found, "it is back: connected")

    def _living(self) -> RemoteEnvironment | None:
        """Return the process that writes, if there is one that answers."""
        try:
            return self._opener.living(self.project)
        except Silent:
            return None

    def _needed(self) -> RemoteEnvironment | None:
        """Return the process that writes, if there is one, once it answers.  Raises as `Opener.awaited`."""
        return self._opener.awaited(lambda: self._opener.living(self.project), self._say)

    def close(self) -> None:
        """End the connection, or close what was opened."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _join(self, found: RemoteEnvironment | None, why: str) -> None:
        if found is None:
            return
        if self._env is not None:
            self._env.close()
        self._env, self._process, self._met = found, self._writer(), True
        self._say(f"{why} (process {self._process})")

    def _become_writer(self) -> None:
        if self._met:
            raise Unavailable("no process writes the location now, so nothing can be changed: start `strandline run`")
        self.close()
        self._say(
            "no process writes the location, so this shell does until it ends: `strandline run` cannot start meanwhile"
        )
        try:
            found = self._opener.changing(self.project, self._say)
        except StrandlineError:
            self._env = self._opener.beside(self.project, self._say)
            raise
        if isinstance(found, RemoteEnvironment):  # one has begun meanwhile
            self._join(found, _CONNECTED)
        else:
            self._env = found

    def _writer(self) -> int | None:
        return writer(self.project.location)
