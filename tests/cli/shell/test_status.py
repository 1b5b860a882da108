"""`strandline status --watch` in a real terminal of 80 columns, beside `strandline run`: docs/status.md shows it.

``STRANDLINE_RECORD=1`` writes what the terminal shows into the page; the diff is the review.  Ages, rates, costs and
processes differ from run to run, so others stand in for them, on the page and in the comparison.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.cli.shell.project import Shop, recorded, shop
from tests.cli.shell.terminal import Terminal

pytestmark = pytest.mark.server

PAGE = Path(__file__).parents[3] / "docs" / "status.md"
SIZE = (80, 24)
LONG_AGO = 1_000_000_000
FILES = {
    "sources/visits.sql": "CREATE SOURCE visits (id BIGINT, page STRING) FROM FILES (path = 'in', format = 'csv')",
    "sources/ticks.sql": "CREATE SOURCE ticks (n BIGINT) FROM COUNTER (every = '10ms', keep = '1000')",
    "views/per_page.sql": "CREATE MATERIALIZED VIEW per_page AS\n"
    "SELECT page, count(*) AS visits FROM visits GROUP BY page",
    "views/by_digit.sql": "CREATE MATERIALIZED VIEW by_digit AS\n"
    "SELECT n % 10 AS digit, sum(n) AS total FROM ticks GROUP BY n % 10",
    "materializations/pages.sql": "CREATE MATERIALIZATION pages INTO duckdb OPTIONS (path 'pages.duckdb')\n"
    "AS per_page KEY (page)",
    "in/monday.csv": "id,page\n1,home\n2,cart\n",
}
AWAY = {
    "materializations/digits.sql": "CREATE MATERIALIZATION digits INTO postgres\n"
    "OPTIONS (host '127.0.0.1', port 1, database 'shop', user 'shop') AS by_digit KEY (digit)",
    "in/tuesday.csv": "id,page\n3,home",
}
COUNTS = "compactions 14, gc runs 2"
STANDS_IN: dict[str, Callable[[str], str]] = {
    "lag": lambda cell: "0.2 s" if re.match(r"[0-5]\.", cell) else "8.0 s",
    "rate": lambda cell: "200 rows/s" if _number(cell) > 20 else "0 rows/s",
    "last step": lambda _: "40 ms, 80 rows",
    "transactions": lambda cell: min(cell, "1"),
    "updates": lambda cell: "8,000" if _number(cell) > 20 else cell,
    "parts": lambda cell: "9" if _number(cell) > 1 else cell,
    "position": lambda _: "2026-01-31T12:00:00.000Z (1769860800000)",
}
"""What is shown in place of a cell that is not empty, by its column."""


def _number(cell: str) -> int:
    return int(cell.split(maxsplit=1)[0].replace(",", ""))


def masked(lines: Sequence[str]) -> str:
    """Return lines of the screen with other ages, rates, costs, counts and processes; tables are laid out anew."""
    shown, table = list[str](), list[str]()
    for line in [*lines, ""]:
        if line.startswith(("collection ", "materialization ")) or (table and line and not line.startswith("(")):
            table.append(line)
            continue
        shown += laid_out(table)
        table = []
        shown.append(line)
    text = "\n".join(shown).rstrip()
    text = re.sub(r"process \d+\s+on\s+host\s+'[^']*'", "process 4711 on host 'shop'", text)
    text = re.sub(r",\s+which\s+has\s+ended", ", which\nhas ended", text)
    return re.sub(r"(store counters of .*): .*", rf"\1: {COUNTS}", text) + "\n"


def laid_out(table: Sequence[str]) -> list[str]:
    """Return the lines of a table with what stands in for its cells."""
    if not table:
        return []
    names = [(found.start(), found.group()) for found in re.finditer(r"\S+(?: \S+)*", table[0])]
    ends = [start for start, _ in names[1:]] + [None]
    rows = [[line[start:end].strip() for (start, _), end in zip(names, ends, strict=True)] for line in table[1:]]
    columns = [
        [name, *(STANDS_IN.get(name, str)(row[n]) if row[n] else "" for row in rows)]
        for n, (_, name) in enumerate(names)
    ]
    wide = [max(map(len, column)) for column in columns]
    return ["  ".join(map(str.ljust, line, wide)).rstrip() for line in zip(*columns, strict=True)]


def holds(*wanted: str) -> Callable[[list[str]], bool]:
    """Return a test of a screen: each expression is found in it."""
    return lambda lines: all(re.search(each, "\n".join(lines), re.MULTILINE) for each in wanted)


FAST, SLOW = r"(?:[2-9]\d|[\d,]{3,})", r"1?\d"
"""Rates on either side of what `STANDS_IN` tells apart: a look between two steps sees a rate of none."""
RATES = {"ticks": FAST, "visits": SLOW, "by_digit": FAST, "per_page": SLOW}
OLD = r"(?:[6-9]|\d{2,})\.\d s"


def scenes(project: Shop, watched: Terminal) -> Iterator[list[str]]:
    """Yield the screen while all is well, while something waits, and after the process that writes has ended."""
    busy = [rf"^{name} .* following +[0-5]\.\d s.*  {rate} rows/s" for name, rate in RATES.items()]
    busy += [r"^pages +idle +[0-5]\.\d s +0 rows/s +2 ", *(rf"^{name} .* rows$" for name in ("by_digit", "per_page"))]
    yield watched.until(holds(*busy, "gc runs"))
    project.write(AWAY)
    yield watched.until(holds(*busy, "^problem: digits", "^waiting: visits", "^digits +failed +0 rows/s"))
    project.kill()
    yield watched.until(holds(r"has\s+ended", *(rf"^{name} .*  {OLD}" for name in (*RATES, "pages"))))


@pytest.fixture
def project() -> Iterator[Shop]:
    """A project with two sources, two views and an endpoint."""
    with shop(FILES) as made:
        os.utime(made.root / "in" / "monday.csv", (LONG_AGO, LONG_AGO))
        yield made


def test_the_page_shows_what_the_screen_shows(project: Shop) -> None:
    """Damage: on a terminal of the usual size the screen is folded into fragments, or cuts off why something waits."""
    project.start(lambda: None)
    with project.terminal(SIZE, "status", "--watch") as watched:
        shown = [masked(lines) for lines in scenes(project, watched)]
        watched.press("C-c")
        assert watched.left() == 0
    assert all(len(line) <= SIZE[0] for scene in shown for line in scene.split("\n"))
    for page, screen in zip(recorded(PAGE, shown), shown, strict=True):
        assert page == screen, f"the page shows\n{page}\nand the screen\n{screen}"
