"""A real terminal: a window of tmux, in which a person's keys are typed and whose screen is read."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

WAIT_S = 300.0
LOOK_S = 0.1
_PROMPT = re.compile(r"strandline\*?>")


class Terminal:
    """A window: what is typed, and what it shows."""

    def __init__(self, socket: Path) -> None:
        self._tmux = ("tmux", "-S", str(socket), "-f", os.devnull)
        self._begin = 0

    def start(self, command: Sequence[str], at: Path, size: tuple[int, int], environment: Mapping[str, str]) -> None:
        """Run a command in a new window."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        size_of = ("-x", str(size[0]), "-y", str(size[1]))
        self._do("new-session", "-d", *size_of, "-c", str(at), "-s", "it", "env", *variables, *command)
        self._do("set-option", "-t", "it", "remain-on-exit", "on")

    def type(self, text: str) -> None:
        """Type a text; a line break is Enter."""
        for n, line in enumerate(text.split("\n")):
            if n:
                self.press("Enter")
            if line:
                self._do("send-keys", "-t", "it", "-l", "--", f"{line[:-1]}\\;" if line.endswith(";") else line)

    def press(self, *keys: str) -> None:
        """Press keys by their names, as tmux has them."""
        self._do("send-keys", "-t", "it", *keys)

    def screen(self) -> list[str]:
        """Return the lines that were shown since `mark`, without blank ones at the end."""
        shown = self._do("capture-pane", "-p", "-J", "-S", "-", "-t", "it").split("\n")
        lines = [line.rstrip() for line in shown]
        while lines and not lines[-1]:
            lines.pop()
        return lines[self._begin :]

    def mark(self) -> None:
        """Have `screen` begin at the prompt that the shell shows now."""
        self._begin += len(self.answered()) - 1

    def clear(self) -> None:
        """Have an empty screen with a prompt, and forget what was shown before."""
        self.answered()
        self.press("C-l")
        self._begin = 0
        self.until(lambda lines: self._do("clear-history", "-t", "it") == "" and len(lines) == 1)

    def until(self, shown: Callable[[list[str]], bool]) -> list[str]:
        """Return the screen once it is as wanted."""
        wait = threading.Event().wait
        for _ in range(int(WAIT_S / LOOK_S)):
            if shown(lines := self.screen()):
                return lines
            wait(LOOK_S)
        pytest.fail("the screen stays at\n" + "\n".join(self.screen()))

    def answered(self) -> list[str]:
        """Return the screen once the shell waits for the next statement."""
        return self.until(lambda lines: bool(lines) and _PROMPT.fullmatch(lines[-1]) is not None)

    def ask(self, text: str) -> list[str]:
        """Type a statement, at a prompt, and return the screen once the shell waits for the next one."""
        before = len(self.answered())
        self.type(f"{text}\n")
        return self.until(lambda lines: len(lines) > before and _PROMPT.fullmatch(lines[-1]) is not None)

    def left(self) -> int:
        """Return the exit status of the command, once it has ended."""

        def status() -> str:
            server, _, found = (
                self._do("list-panes", "-t", "it", "-F", "#{pid} #{pane_dead_status}").strip().partition(" ")
            )
            if not found:
                os.kill(int(server), signal.SIGCHLD)  # now and then tmux does not notice that the command has ended
            return found

        self.until(lambda _: status() != "")
        return int(status())

    def end(self) -> None:
        """Close the window, and end tmux."""
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)

    def _do(self, *arguments: str) -> str:
        done = subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def terminal(directory: Path) -> Iterator[Terminal]:
    """Have a terminal; skip the test where there is no tmux."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed (as root, `tools/setup --servers` installs it)")
    made = Terminal(directory / "tmux")
    try:
        yield made
    finally:
        made.end()
