"""Tables: rows as lines that fit a terminal, and the updates of SUBSCRIBE, one per line.

A value that is cut ends with ``…``.  Numbers are aligned right and are never cut.  NULL is a word, and a text that is
empty or reads NULL is in quotes, so that the two differ without colours.  Rows that do not fit, however much is cut,
are shown one value per line, and so is everything where the user asks for that.

An update has its time, and + for an inserted row or - for a deleted one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from strandline.algebra.notation import readable
from strandline.algebra.schema import DIFF, TIME
from strandline.cli.terminal.output import printable
from strandline.client import Progress, Updates
from strandline.frontier import clock

NULL: Final = "NULL"
CUT: Final = "…"
COLUMN_MIN: Final = 8
"""A column of texts is cut to so many signs at the least."""
HEAD: Final = "bold"
FAINT: Final = "dim"
_GAP: Final = 3  # between two values: a space, a line, a space


@dataclass(frozen=True, slots=True)
class Look:
    """How rows are shown: in how many columns of the terminal, how many of them (None: all), and one value a line."""

    width: int
    limit: int | None = None
    expanded: bool = False


def lines(rows: pa.Table, look: Look) -> Iterator[Text]:
    """Yield the lines that show ``rows``, without what is said below them."""
    shown = rows if look.limit is None else rows.slice(0, look.limit)
    right = [numeric(kind) for kind in shown.schema.types]
    names = [printable(name, lines=False) for name in shown.column_names]
    cells = [[cell(value) for value in column.to_pylist()] for column in readable(shown).columns]
    widths = [max(map(cell_len, (name, *column))) for name, column in zip(names, cells, strict=True)]
    fitted = fit(widths, [*map(cell_len, names)], right, look.width)
    values = list(zip(*cells, strict=True)) if cells else []
    if look.expanded or fitted is None:
        yield from _expanded(names, values, look.width)
        return
    yield _line([Text(name, HEAD) for name in names], fitted, right)
    yield Text("┼".join("─" * (width + 2) for width in fitted), FAINT)
    for row in values:
        yield _line([styled(each) for each in row], fitted, right)


def fit(widths: Sequence[int], names: Sequence[int], fixed: Sequence[bool], width: int) -> list[int] | None:
    """Return how wide each column is shown, so that all are within ``width``; None: they do not fit.

    The widest columns are cut first, to one width.  ``fixed``: those that are not cut.

    >>> fit([4, 50, 30], [4, 4, 4], [True, False, False], 50), fit([9, 9], [4, 4], [True, True], 12)
    ([4, 19, 19], None)
    """
    found, room = [*widths], width - _GAP * (len(widths) - 1) - 2
    least = [w if f else min(w, max(COLUMN_MIN, n)) for w, n, f in zip(widths, names, fixed, strict=True)]
    if sum(least) > room:
        least = [w if f else min(w, COLUMN_MIN) for w, f in zip(widths, fixed, strict=True)]
    if sum(least) > room:
        return None
    while (over := sum(found) - room) > 0:
        loose = [n for n in range(len(found)) if found[n] > least[n]]
        widest = max(found[n] for n in loose)
        level = [n for n in loose if found[n] == widest]
        below = max([found[n] for n in loose if found[n] < widest] + [least[n] for n in level])
        step = min(widest - below, -(-over // len(level)))
        for n in reversed(level):
            take = min(step, found[n] - least[n], over)
            found[n] -= take
            over -= take
    return found


def cell(value: Any) -> str:
    r"""Return a value as one line of printable signs.

    >>> cell(None), cell(""), cell("NULL"), cell("a\n\x1b"), cell(True), cell(b"a"), cell(1.5)
    ('NULL', "''", "'NULL'", 'a\\n\\x1b', 'true', "X'61'", '1.5')
    >>> cell({"a": [1, None]}), cell(dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)), cell(dt.date(2026, 1, 2))
    ('{"a":[1,null]}', '2026-01-02 03:00:00Z', '2026-01-02')
    """
    match value:
        case None:
            return NULL
        case "" | "NULL":
            return f"'{value}'"
        case str():
            return printable(value, lines=False)
        case bool():
            return str(value).lower()
        case bytes():
            return f"X'{value.hex().upper()}'"
        case dt.datetime():
            return value.isoformat(" ").replace("+00:00", "Z")
        case dict() | list() | tuple():
            return printable(msgspec.json.encode(value, enc_hook=str).decode(), lines=False)
    return printable(str(value), lines=False)


def styled(shown: str) -> Text:
    """Return a cell with the style of its value."""
    return Text(shown, FAINT if shown in {NULL, "''"} else "")


def sized(shown: Text, width: int, *, right: bool = False) -> Text:
    """Return a cell of just ``width`` columns, cut with a mark if it is longer."""
    plain = shown.plain
    if (size := cell_len(plain)) > width:
        return Text(set_cell_size(plain, width - 1) + CUT, shown.style)
    blank = Text(" " * (width - size))
    return Text.assemble(blank, shown) if right else Text.assemble(shown, blank)


def counted(rows: pa.Table, look: Look) -> str:
    r"""Return what is said below rows: how many there are, and how to see those that are not shown.

    >>> counted(pa.table({"n": [1]}), Look(80)), counted(pa.table({"n": range(2000)}), Look(80, 100))
    ('1 row', '100 of 2,000 rows; the others are shown after \\limit off, or written by \\o FILE')
    """
    count = rows.num_rows
    if look.limit is not None and count > look.limit:
        return f"{look.limit:,} of {count:,} rows; the others are shown after \\limit off, or written by \\o FILE"
    return f"{count:,} row{'' if count == 1 else 's'}"


def _line(row: Sequence[Text], widths: Sequence[int], right: Sequence[bool]) -> Text:
    shown = [sized(each, width, right=aligned) for each, width, aligned in zip(row, widths, right, strict=True)]
    line = Text(" │ ", FAINT).join(shown)
    line.rstrip()
    return Text.assemble(" ", line)


def _expanded(names: Sequence[str], values: Sequence[Sequence[str]], width: int) -> Iterator[Text]:
    """Yield one value a line."""
    head = min(max(map(cell_len, names), default=0), max(COLUMN_MIN, width // 3))
    room = max(COLUMN_MIN, width - head - _GAP - 1)
    for number, row in enumerate(values, start=1):
        title = f"─[ {number} ]"
        yield Text(title + "─" * max(0, min(width, head + _GAP + 20) - len(title)), FAINT)
        for name, value in zip(names, row, strict=True):
            shown = sized(styled(value), min(room, cell_len(value)))
            yield Text.assemble(" ", sized(Text(name, HEAD), head), Text(" │ ", FAINT), shown)


def numeric(kind: pa.DataType) -> bool:
    """Return whether values of this type are numbers, which stand at the right."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


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
