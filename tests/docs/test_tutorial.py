"""docs/tutorial.md, as a new user follows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.walk import DOCS, Reader, blocks, masked

PAGE = (DOCS / "tutorial.md").read_text()
RUN_MIN = 20
SHOWN_MIN = 15


@pytest.mark.demo
@pytest.mark.time_limit(1200)
def test_the_tutorial_works_from_the_page_alone(tmp_path: Path) -> None:
    """Damage: the first ten minutes of a new user end in an error that the page does not know."""
    done = list(Reader(tmp_path).follow(PAGE))
    assert len(done) >= RUN_MIN
    assert len([block for block in done if block.shown is not None]) >= SHOWN_MIN


def test_a_page_that_shows_something_else_is_caught(tmp_path: Path) -> None:
    """Damage: the page could promise anything, and its test would pass."""
    right = "```sh\necho at 1795804142450\n```\n\n```text\nat 1700000000000\n```\n"
    assert [block.shown for block in Reader(tmp_path).follow(right)] == ["at 1700000000000\n"]
    with pytest.raises(AssertionError, match="line 1"):
        list(Reader(tmp_path).follow(right.replace("at 1700", "on 1700")))
    with pytest.raises(AssertionError, match="status 3"):
        list(Reader(tmp_path).follow("```sh\nexit 3\n```\n"))


def test_blocks_are_read_with_what_stands_before_them() -> None:
    """Damage: a block that the page runs in a second terminal, or not at all, is run as any other."""
    page = '<!-- not run: why -->\n```sh\nfalse\n```\n\n```yaml title="a/b.yml"\nx: 1\n```\n'
    first, second = blocks(page)
    assert (first.notes, first.is_file, second.title, second.is_file) == (("not run: why",), False, "a/b.yml", True)
    assert masked("took 1.25 s at 2026-11-27T12:00:00.5Z  ") == "took <duration> at <time>"
