"""A project in a directory of its own, and the `strandline run` that keeps it up to date."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli.shell.terminal import Terminal, terminal

from strandline.serving import writer

COMMAND = (sys.executable, "-m", "strandline")
PATIENT = (sys.executable, "-P", str(Path(__file__).with_name("patient.py")))
SETTINGS = (
    "location: data\ndeployment: shop\ntick_ms: 200\n"
    "spark: {spark.master: 'local[2]', spark.sql.shuffle.partitions: 1}\n"
)


@dataclass
class Shop:
    """A project, and the process that keeps it up to date."""

    root: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def location(self) -> str:
        """Where its collections are."""
        return f"file://{self.root}/data"

    def write(self, files: Mapping[str, str]) -> None:
        """Write files of the project, by their paths."""
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    def start(self, shown: Callable[[], object]) -> None:
        """Start `strandline run`, and return once it serves; ``shown`` is looked at meanwhile."""
        with (self.root / "run.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "run", "--project", str(self.root)], stdout=log, stderr=log, start_new_session=True
            )
        while writer(self.location) != self.process.pid:
            assert self.process.poll() is None, (self.root / "run.log").read_text()
            shown()

    def kill(self) -> None:
        """End it as a machine does."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    @contextmanager
    def terminal(self, size: tuple[int, int], *command: str) -> Iterator[Terminal]:
        """Have a terminal in which a command of Strandline runs at the project."""
        with terminal(self.root) as opened:
            environment = {"XDG_STATE_HOME": str(self.root / "state"), "TERM": "screen-256color"}
            environment |= {name: os.environ[name] for name in ("PYTHONPATH", "PATH") if name in os.environ}
            opened.start([*PATIENT, *command], self.root, size, environment)
            yield opened


@contextmanager
def shop(files: Mapping[str, str]) -> Iterator[Shop]:
    """A project of these files; its process is ended in the end."""
    with tempfile.TemporaryDirectory(prefix="shop-") as directory:
        made = Shop(Path(directory))
        made.write({"strandline.yml": SETTINGS, **files})
        yield made
        made.kill()


def recorded(page: Path, shown: Sequence[str]) -> list[str]:
    """Return the screens that a page shows; with ``STRANDLINE_RECORD=1`` these are written into it before."""
    text, block = page.read_text(), re.compile(r"```text\n(.*?)```", re.DOTALL)
    if os.environ.get("STRANDLINE_RECORD"):
        blocks = iter(shown)
        text = block.sub(lambda _: f"```text\n{next(blocks)}```", text)
        page.write_text(text)
    return block.findall(text)
