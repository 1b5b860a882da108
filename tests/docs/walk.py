"""A page as its reader follows it: its blocks in order, and what they print held against what it shows.

A block with a title that is a path (``title="views/sales.sql"``) is a file that the reader writes.  ``sh`` and
``python`` blocks run; a ``text`` block is what the one before it prints, but for times, numbers of processes and
seconds (`masked`).  Comments that a browser does not show say what else the reader does:

    <!-- second terminal -->            the next block goes on beside the others
    <!-- Ctrl-C -->                     ends it
    <!-- not run: why -->               the next block is only read
    <!-- again until it says so -->     the next block may be run too early: its reader runs it again
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
SECONDS_MAX: Final = 300.0
SILENT: Final = "has not answered within"
"""So a command ends that asks a process which a busy machine holds up: its reader asks once more."""
STEP: Final = re.compile(
    r"^<!-- (?P<note>.*?) -->$|^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]*)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MASKS: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z?"), "<time>"),
    (re.compile(r"\b\d{13}\b"), "<time>"),
    (re.compile(r"grpc\+unix://\S+"), "<socket>"),
    (re.compile(r"http://127\.0\.0\.1:\d+"), "<console>"),
    (re.compile(r"\bseconds=[\d.]+|\b\d+(?:\.\d+)? (?:s|ms)\b"), "<duration>"),
    (re.compile(r"\bprocess \d+ on host '[^']*'"), "<process>"),
    (re.compile(r" +$", re.MULTILINE), ""),
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page; ``notes`` are the comments since the one before, ``shown`` is what it should print."""

    line: int
    language: str
    title: str | None
    text: str
    notes: tuple[str, ...]
    shown: str | None = None

    @property
    def is_file(self) -> bool:
        """Whether the reader writes it as a file."""
        return self.title is not None


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order, each with the text that it should print."""
    found: list[Block] = []
    notes: list[str] = []
    for step in STEP.finditer(page):
        if step["note"] is not None:
            notes.append(step["note"])
            continue
        block = Block(
            page.count("\n", 0, step.start()) + 1, step["language"], step["title"], step["text"], tuple(notes)
        )
        notes = []
        if block.language == "text" and block.title is None and found and found[-1].shown is None:
            last = found.pop()
            found.append(Block(last.line, last.language, last.title, last.text, last.notes, block.text))
        else:
            found.append(block)
    return found


def masked(text: str) -> str:
    """Return a text without what differs from run to run."""
    for pattern, instead in MASKS:
        text = pattern.sub(instead, text)
    return text.strip()


@dataclass
class Reader:
    """Who follows a page from its text alone, in a directory that was empty."""

    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    beside: subprocess.Popen[str] | None = None
    printed: list[str] = field(default_factory=list)

    def follow(self, page: str) -> Iterator[Block]:
        """Do what a page says; yield each block that was run or written."""
        try:
            for block in blocks(page):
                if "Ctrl-C" in block.notes:
                    self.interrupt()
                if any(note.startswith("not run: ") for note in block.notes):
                    continue
                self.do(block)
                yield block
            if page.rstrip().endswith("<!-- Ctrl-C -->"):
                self.interrupt()
        finally:
            if self.beside is not None:
                self.beside.kill()
                self.beside.wait()

    def do(self, block: Block) -> None:
        """Do what a block says; raise `AssertionError`, with its line, if it fails or prints something else."""
        if block.is_file:
            self.write(block)
        elif "second terminal" in block.notes:
            self.begin(block)
        elif block.language in {"sh", "python"}:
            self.run(block)

    def write(self, block: Block) -> None:
        """Write a block as the file that its title names."""
        path = self.directory / str(block.title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)

    def run(self, block: Block) -> None:
        """Run a block, again if its reader would, until it prints what the page shows."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            status, said = self.execute(block)
            right = block.shown is None or masked(said) == masked(block.shown)
            failing = "strandline: " in (block.shown or "")  # the page shows an error
            if right and (status == 0) is not failing:
                return
            again = SILENT in said or "again until it says so" in block.notes
            early = again and time.monotonic() < deadline
            assert early, f"line {block.line}: status {status}\n{block.text}\nsaid\n{said}\nand not\n{block.shown}"
            threading.Event().wait(0.5)

    def execute(self, block: Block) -> tuple[int, str]:
        """Run a block in the directory where the one before ended; return its status, and all that it printed."""
        where = self.directory.parent / f"{self.directory.name}.cwd"
        command = (
            [sys.executable, "-c", block.text]
            if block.language == "python"
            else ["bash", "-c", f"set -e\ntrap 'pwd >{where}' EXIT\n{block.text}"]
        )
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=self._env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        if block.language == "sh":
            self.directory = Path(where.read_text().strip())
        return done.returncode, done.stdout

    def begin(self, block: Block) -> None:
        """Begin a block beside the others; return when it has printed what the page shows, line by line."""
        self.printed = []
        self.beside = subprocess.Popen(
            ["bash", "-c", f"exec {block.text.strip()}"],
            cwd=self.directory,
            env=self._env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        listener = threading.Thread(target=self._listen, args=(self.beside,), daemon=True)  # noqa: TID251 - a reader's eyes
        listener.start()
        self.await_printed(block.shown or "", block.line)

    def await_printed(self, shown: str, line: int) -> None:
        """Return when what runs beside has printed these lines in this order."""
        wanted = masked(shown).splitlines()
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            seen = iter(masked("".join(self.printed)).splitlines())
            if all(each in seen for each in wanted):
                return
            alive = self.beside is not None and self.beside.poll() is None and time.monotonic() < deadline
            assert alive, f"line {line}: {''.join(self.printed)}\nand not\n{shown}"
            threading.Event().wait(0.1)

    def interrupt(self) -> None:
        """Press Ctrl-C in the second terminal, and wait for its end."""
        assert self.beside is not None, "nothing runs in a second terminal"
        self.beside.send_signal(signal.SIGINT)
        assert self.beside.wait(SECONDS_MAX) == 0, "".join(self.printed)
        self.beside = None

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.printed.append(line)

    def _env(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "PATH": path, "COLUMNS": "120", "PYTHONUNBUFFERED": "1", **self.environment}
