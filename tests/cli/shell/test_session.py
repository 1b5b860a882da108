"""A person's session in a real terminal, with a real `strandline run`: docs/shell.md shows it as it was.

``STRANDLINE_RECORD=1`` writes what the terminal shows into the page; the diff is the review.  Times, processes and the
place of the location differ from run to run, so others of the same length stand in for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.cli.shell.project import Shop, recorded
from tests.cli.shell.project import shop as project
from tests.cli.shell.terminal import Terminal

import strandline

pytestmark = pytest.mark.server

PAGE = Path(__file__).parents[3] / "docs" / "shell.md"
FILES = {
    "tables/sales.sql": "CREATE TABLE sales (city STRING, amount DECIMAL(10,2), note STRING)",
    "views/by_city.sql": "CREATE MATERIALIZED VIEW by_city AS\n"
    "SELECT city, count(*) AS sales, sum(amount) AS amount\nFROM sales GROUP BY city",
}
ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE hash(a.id, b.id) = 7;"


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    """A project with a table and a view."""
    with project(FILES) as made:
        yield made


def masked(shop: Shop, lines: Sequence[str]) -> str:
    """Return lines of the screen with other times, processes and places."""
    text = "\n".join(lines)
    text = text.replace(shop.location, "file:///data/shop")
    text = re.sub(r"process \d+", "process 4711", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "2026-01-31T12:00:00.000Z", text)
    return re.sub(r"took [\d.]+ m?s", "took 12 ms", text) + "\n"


def said(opened: Terminal, *typed: str) -> list[str]:
    """Type statements, each once the one before is answered; return all that is shown, but the last prompt."""
    for each in typed:
        opened.ask(each)
    return opened.screen()[:-1]


def scenes(shop: Shop) -> Iterator[list[str]]:
    """Yield what each part of the page shows."""
    with shop.terminal((100, 50), "sql") as opened:
        opened.answered()
        insert = "INSERT INTO sales VALUES ('Delft', 12.50, NULL), ('Bern', 8.00, ''), ('Delft', 3.25, 'by card');"
        yield said(opened, "SHOW COLLECTIONS;", insert, "SELECT city, amount, note\nFROM sales\nORDER BY city, amount;")
        opened.mark()
        yield said(opened, r"\d by_city")
        opened.mark()
        yield said(opened, "SELECT city, amont\nFROM by_city;")
        opened.mark()
        yield said(opened, r"\limit 2", "SELECT * FROM range(5) ORDER BY id;")
        opened.mark()
        yield said(
            opened,
            "BEGIN;",
            "INSERT INTO sales VALUES ('Gent', 7.00, NULL);",
            "DELETE FROM sales WHERE note = '';",
            "COMMIT;",
            "SELECT * FROM by_city ORDER BY city;",
        )
        opened.mark()
        yield said(opened, r"\x", "SELECT * FROM by_city WHERE city = 'Delft';", r"\x")
        opened.mark()
        opened.type("SELECT b. FROM by_city b")
        opened.press(*["Left"] * len(" FROM by_city b"))
        opened.press("Tab")
        yield opened.until(lambda lines: any("decimal" in line for line in lines))
        opened.press("C-c")
        opened.until(lambda lines: lines[-1] == "strandline>")
        opened.mark()
        yield followed(shop, opened)
        opened.mark()
        opened.type(f"{ENDLESS}\n")
        opened.until(lambda lines: "Ctrl-C cancels it" in lines[-1])
        opened.press("C-c")
        yield opened.answered()[:-1]
        opened.mark()
        yield come_back(shop, opened)
        opened.type("\\q\n")
        assert opened.left() == 0


def followed(shop: Shop, opened: Terminal) -> list[str]:
    """Follow a view while another client changes what it reads."""
    opened.type("SUBSCRIBE by_city;\n")
    opened.until(lambda lines: sum("+1" in line for line in lines) == 2)
    with strandline.connect(shop.location) as env:
        env.execute("INSERT INTO sales VALUES ('Gent', 3.00, 'by card')")
    opened.until(lambda lines: any("-1" in line for line in lines) and sum("+1" in line for line in lines) == 3)
    opened.press("C-c")
    return in_order(opened.answered()[:-1])


def in_order(lines: list[str]) -> list[str]:
    """Return what a SUBSCRIBE showed with the rows that were there first in the order of their text: they have none."""
    first = next(at for at, line in enumerate(lines) if "+1" in line)
    return [*lines[:first], *sorted(lines[first : first + 2]), *lines[first + 2 :]]


def come_back(shop: Shop, opened: Terminal) -> list[str]:
    """Kill the process that writes under the shell, and start the next one."""
    shop.kill()
    opened.type("SELECT sum(amount) AS amount FROM sales;\n")
    opened.until(lambda lines: "waiting for it to come back" in lines[-1])
    shop.start(opened.screen)
    return opened.answered()[:-1]


def test_the_page_shows_what_a_session_shows(shop: Shop) -> None:
    """Damage: a reader types what the page shows, and sees something else; or the shell does not work at a terminal."""
    shop.start(lambda: None)
    shown = [masked(shop, lines) for lines in scenes(shop)]
    assert recorded(PAGE, shown) == shown
