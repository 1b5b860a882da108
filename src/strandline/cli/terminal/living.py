"""The living lines of `strandline run` on a terminal: what it does, and a bar for each first load and first result.

A first snapshot may take hours, in one tick.  Its bar moves while that goes on: what is shown is asked for from memory,
several times a second, on the thread that draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from strandline.cli.terminal.output import printable
from strandline.instance.beginnings import Beginning

BAR_WIDTH: Final = 30
FRAMES_PER_S: Final = 4


class Living:
    """Lines that are drawn again and again while the context lasts, and then are gone."""

    def __init__(self, console: Console, text: Text, beginnings: Callable[[], Sequence[Beginning]]) -> None:
        self._spinner = Spinner("dots", text)
        self._beginnings = beginnings
        self._live = Live(
            console=console,
            get_renderable=self.shown,
            refresh_per_second=FRAMES_PER_S,
            transient=True,
            redirect_stdout=False,
        )

    def update(self, text: Text) -> None:
        """Say what is done now."""
        self._spinner.update(text=text)

    def shown(self) -> RenderableType:
        """Return the lines as they are now."""
        begun = [each for each in self._beginnings() if each.since_ms is not None]
        return Group(self._spinner, bars(begun)) if begun else self._spinner

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._live.stop()


def bars(beginnings: Sequence[Beginning]) -> Table:
    """Return a bar for each: one that moves to and fro where it is not known how many rows there are."""
    shown = Table.grid(padding=(0, 1))
    for each in beginnings:
        total = max(each.about, each.rows, 1) if each.about is not None and each.rows else None
        about = "" if each.about is None else f" of about {each.about:,}"
        bar = ProgressBar(total=total, completed=each.rows, width=BAR_WIDTH, pulse=total is None)
        name = Text(printable(each.name, lines=False))
        shown.add_row(Text(f"  {each.verb}"), name, bar, Text(f"{each.rows:,}{about} rows"))
    return shown
