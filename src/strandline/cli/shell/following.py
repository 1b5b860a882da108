"""Following: what SUBSCRIBE shows: each update on a line, with its time and whether the row came (+) or went (-)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from strandline.algebra.readable import readable
from strandline.algebra.schema import DIFF, TIME
from strandline.cli.shell.tables import FAINT, HEAD, cell, fit, numeric, sized, styled
from strandline.cli.terminal.output import printable
from strandline.client import Progress, Updates
from strandline.frontier.moments import clock

CAME: Final = "green"
WENT: Final = "red"
_TIME: Final = len("2026-01-31T12:00:00.000Z")
_DIFF: Final = 4
_VALUE_MIN: Final = 12
"""A column is so wide at least: later values may be longer than the first ones."""


class Scroll:
    """The lines of one subscription; its columns are as wide as the first updates need.

    At one time, what went stands before what came.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._widths: list[int] | None = None
        self._right: list[bool] = []

    def lines(self, event: Updates | Progress) -> Iterator[Text]:
        """Yield the lines for what has come."""
        match event:
            case Progress(None):
                yield Text("it is closed: nothing more comes", FAINT)
            case Updates(rows):
                names = [name for name in rows.schema.names if name not in {TIME, DIFF}]
                shown = readable(rows)
                cells = [[cell(value) for value in shown.column(name).to_pylist()] for name in names]
                if self._widths is None:
                    self._widths = self._fitted(names, cells)
                    self._right = [numeric(rows.schema.field(name).type) for name in names]
                    heads = (Text(printable(name, lines=False), HEAD) for name in names)
                    yield self._line(Text("time", HEAD), Text("diff", HEAD), heads)
                times, diffs = rows.column(TIME).to_pylist(), rows.column(DIFF).to_pylist()
                for time, diff, n in sorted(zip(times, diffs, range(len(times)), strict=True)):
                    sign = Text(f"{diff:+}", CAME if diff > 0 else WENT)
                    yield self._line(Text(clock(time), FAINT), sign, (styled(column[n]) for column in cells))

    def _fitted(self, names: list[str], cells: list[list[str]]) -> list[int]:
        wanted = [max(_VALUE_MIN, *map(cell_len, (name, *column))) for name, column in zip(names, cells, strict=True)]
        room = self._width - _TIME - _DIFF - 6
        found = fit(wanted, [0] * len(wanted), [False] * len(wanted), room)
        return wanted if found is None else found

    def _line(self, time: Text, diff: Text, values: Iterator[Text]) -> Text:
        assert self._widths is not None, "the first updates have said it"
        shown = [sized(time, _TIME), sized(diff, _DIFF, right=True)]
        columns = zip(values, self._widths, self._right, strict=True)
        shown += [sized(value, width, right=right) for value, width, right in columns]
        line = Text("  ").join(shown)
        line.rstrip()
        return line
