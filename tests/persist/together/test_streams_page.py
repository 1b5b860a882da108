"""The examples of docs/streams.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from strandline.testing.simulation.kernel import run_sync

PAGE = Path(__file__).resolve().parents[3] / "docs" / "streams.md"


def shown(containing: str) -> dict:
    """Run the page's examples up to the one that contains a word; return what they define."""
    found: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, found)  # our own text
        if containing in block:
            return found
    raise AssertionError(f"no example of {PAGE.name} contains {containing!r}")


def test_the_stream_of_the_page_reads_what_it_says(place):
    """Damage: the first thing that a program tries does something else."""
    page = shown("count_orders")
    assert run_sync(page["follow_orders"](place.client())) == ["coffee"]
    assert run_sync(page["count_orders"](place.client(), 7)) == 1


def test_the_payment_of_the_page_is_one_commit(place):
    """Damage: the example that people copy pays twice."""
    pay = shown("def pay")["pay"]
    client = place.client()
    assert run_sync(pay(client)) == 3
    assert run_sync(pay(client)) == 3
