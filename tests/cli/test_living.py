"""A first load shows how far it is."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from strandline.cli.terminal.reporting import Living, bars
from strandline.instance.beginnings import HYDRATING, SNAPSHOTTING, Beginning


def drawn(*beginnings: Beginning) -> list[str]:
    """Return the bars as a terminal shows them."""
    console = Console(file=io.StringIO(), width=120)
    console.print(bars(beginnings))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_a_bar_says_how_many_rows_of_about_how_many_are_there() -> None:
    """Damage: an operator does not know whether the first snapshot takes a minute or a day."""
    (known,) = drawn(Beginning("accounts", SNAPSHOTTING, 2_500, 10_000, 1))
    (unknown,) = drawn(Beginning("v\n", HYDRATING, 0, None, 1))
    (late,) = drawn(Beginning("accounts", SNAPSHOTTING, 20_000, 10_000, 1))
    assert "snapshotting accounts" in known
    assert known.endswith("2,500 of about 10,000 rows") or "2,500 of about 10,000 rows" in known
    assert "hydrating v\\n" in unknown
    assert "20,000 of about 10,000 rows" in late


def test_only_what_is_under_way_has_a_bar() -> None:
    """Damage: a table whose source waits seems to be read."""
    begun = [Beginning("a", SNAPSHOTTING, 1, 2, None)]
    living = Living(Console(file=io.StringIO()), Text("running"), lambda: begun)
    with living:
        living.update(Text("a tick"))
        alone = living.shown()
        begun.append(Beginning("b", SNAPSHOTTING, 1, 2, 5))
        both = living.shown()
    assert alone is not both
