"""What comes in at a steady rate: `paced`, and files in a folder, which are durable when they have their names.

Beside them the *events*, rows that several benchmarks feed, and the views that follow these.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FILE_ROWS: Final = 100
HEADER: Final = "n,kind,amount"
"""The first line of a file of events."""
FOLLOWING: Final = (
    "SELECT kind, count(*) AS n, sum(amount) AS s FROM events WHERE n % {n} = 0 GROUP BY kind",
    "SELECT n, kind, amount FROM events WHERE amount % {n} = 1",
    "SELECT kind, max(amount) AS m FROM events WHERE n % {n} = 0 GROUP BY kind",
)
"""The kinds of views that follow events."""


def event(n: int) -> str:
    """Return event number ``n`` as a line of a file."""
    return f"{n},kind {n % 7},{n % 1000}"


def events(folder: Path) -> str:
    """Return the statement that makes the source of the events in ``folder``."""
    options = f"path '{folder}/*.csv', header 'true', settle '0'"
    return f"CREATE SOURCE events (n BIGINT, kind STRING, amount BIGINT) USING files OPTIONS ({options})"


def following(views: int, kinds: Sequence[str] = FOLLOWING) -> Iterator[tuple[str, str]]:
    """Yield the names and the queries of so many views, of each kind by turns."""
    for number in range(views):
        yield f"v{number}", kinds[number % len(kinds)].format(n=2 + number)


@dataclass
class Feed:
    """``text`` makes the CSV text of a range of rows; ``rate``: rows per second, for so many ``seconds``.

    ``durable``: when each file was, in seconds of `time.perf_counter`.
    """

    folder: Path
    header: str
    text: Callable[[int], str]
    rate: int
    seconds: float
    durable: list[float] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def files(self) -> int:
        """How many files come in all."""
        return round(self.rate * self.seconds / FILE_ROWS)

    @property
    def rows(self) -> int:
        """How many rows come in all."""
        return self.files * FILE_ROWS

    def run(self) -> None:
        """Write the files, each at its time."""
        paced(self.files, FILE_ROWS / self.rate, self._write, self.durable, self._stopped)

    def stop(self) -> None:
        """Write no more files."""
        self._stopped.set()

    def _write(self, number: int) -> None:
        lines = map(self.text, range(number * FILE_ROWS, (number + 1) * FILE_ROWS))
        hidden = self.folder / f".{number}"
        with hidden.open("w") as file:
            file.writelines(f"{line}\n" for line in (self.header, *lines))
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(self.folder / f"{number:06}.csv")


def paced(
    count: int,
    every_s: float,
    put: Callable[[int], object],
    durable: list[float],
    stopped: threading.Event | None = None,
) -> None:
    """Call ``put`` with each number at its time, and note in ``durable`` when it returned; until ``stopped``.

    A call that is late does not make others late.
    """
    pause, begun = stopped or threading.Event(), time.perf_counter()
    for number in range(count):
        if pause.wait(max(0.0, begun + number * every_s - time.perf_counter())):
            return
        put(number)
        durable.append(time.perf_counter())
