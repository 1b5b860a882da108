"""What the shell asks beside the terminal never keeps it from going on, or from ending."""

from __future__ import annotations

import threading

import pytest

from strandline.cli.shell.running import within
from strandline.errors import Unavailable


def test_a_call_that_does_not_return_is_left_alone() -> None:
    """Damage: a server that was killed in the middle of a completion keeps the shell from ending."""
    never = threading.Event()
    with pytest.raises(Unavailable, match="no answer within"):
        within(0.05, never.wait)
    assert [thread for thread in threading.enumerate() if thread.name == "shell" and not thread.daemon] == []
    never.set()


def test_what_a_call_returns_or_raises_comes_through() -> None:
    """Damage: names that were found in time are not completed."""
    assert within(120, lambda: 7) == 7
    with pytest.raises(KeyError):
        within(120, lambda: {}["nothing"])
