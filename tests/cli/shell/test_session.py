"""A person's session in a real terminal, with a real `strandline run`: docs/shell.md shows it as it was.

``STRANDLINE_RECORD=1`` writes what the terminal shows into the page; the diff is the review.  Times, processes and the
place of the location differ from run to run, so others of the same length stand in for them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cli.shell.terminal import Terminal, terminal

import strandline
from strandline.serving import writer

pytestmark = pytest.mark.server

PAGE = Path(__file__).parents[3] / "docs" / "shell.md"
BLOCK = re.compile(r"```text\n(.*?)```", re.DOTALL)
COMMAND = (sys.executable, "-m", "strandline")
FILES = {
    "strandline.yml": "location: data\ndeployment: shop\ntick_ms: 200\n"
    "spark: {spark.master: 'local[2]', spark.sql.shuffle.partitions: 1}\n",
    "tables/sales.sql": "CREATE TABLE sales (city STRING, amount DECIMAL(10,2), note STRING)",
    "views/by_city.sql": "CREATE MATERIALIZED VIEW by_city AS\n"
    "SELECT city, count(*) AS sales, sum(amount) AS amount\nFROM sales GROUP BY city",
}
ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE hash(a.id, b.id) = 7;"


@dataclass
class Shop:
    """A project, and the process that keeps it up to date."""

    root: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def location(self) -> str:
        """Where its collections are."""
        return f"file://{self.root}/data"

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

    def masked(self, lines: Sequence[str]) -> str:
        """Return lines of the screen with other times, processes and places."""
        text = "\n".join(lines)
        text = text.replace(self.location, "file:///data/shop")
        text = re.sub(r"process \d+", "process 4711", text)
        text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "2026-01-31T12:00:00.000Z", text)
        return re.sub(r"took [\d.]+ m?s", "took 12 ms", text) + "\n"


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    """A project with a table and a view."""
    with tempfile.TemporaryDirectory(prefix="shop-") as directory:
        made = Shop(Path(directory))
        for name, text in FILES.items():
            path = made.root / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        yield made
        made.kill()


@contextmanager
def shell(shop: Shop) -> Iterator[Terminal]:
    """A shell at the project, in a terminal."""
    with terminal(shop.root) as opened:
        environment = {"XDG_STATE_HOME": str(shop.root / "state"), "TERM": "screen-256color"}
        environment |= {name: os.environ[name] for name in ("PYTHONPATH", "PATH") if name in os.environ}
        opened.start([*COMMAND, "sql"], shop.root, (100, 50), environment)
        yield opened


def said(opened: Terminal, *typed: str) -> list[str]:
    """Type statements, each once the one before is answered; return all that is shown, but the last prompt."""
    for each in typed:
        opened.ask(each)
    return opened.screen()[:-1]


def scenes(shop: Shop) -> Iterator[list[str]]:
    """Yield what each part of the page shows."""
    with shell(shop) as opened:
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
    return opened.answered()[:-1]


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
    shown = [shop.masked(lines) for lines in scenes(shop)]
    page = PAGE.read_text()
    if os.environ.get("STRANDLINE_RECORD"):
        blocks = iter(shown)
        page = BLOCK.sub(lambda _: f"```text\n{next(blocks)}```", page)
        PAGE.write_text(page)
    assert BLOCK.findall(page) == shown
