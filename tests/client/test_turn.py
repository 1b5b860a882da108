"""Callers take turns in the order in which they asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from strandline.client.access import Turn


@pytest.fixture
def turn() -> Iterator[Turn]:
    """A turn that is free at the end."""
    made = Turn()
    yield made
    with made, made:
        pass


def in_threads(turn: Turn, names: str, said: list[str]) -> list[Any]:
    """Have threads ask for a turn, one after the other; return them."""
    threads = []
    for place, name in enumerate(names, start=1):

        def asks(name: str = name) -> None:
            with turn, turn:
                said.append(name)

        threads.append(threading.Thread(target=asks))  # noqa: TID251 - callers
        threads[-1].start()
        while len(turn._waiting) < place:
            pass
    return threads


def test_who_asked_first_has_the_turn_first(turn: Turn) -> None:
    """Damage: a program that inserts one row waits for ever behind a loop that makes ticks."""
    said: list[str] = []
    with turn:
        threads = in_threads(turn, "abc", said)
        said.append("me")
    with turn:  # asked for after them
        said.append("me again")
    for thread in threads:
        thread.join()
    assert said == ["me", "a", "b", "c", "me again"]


def test_an_error_inside_gives_the_turn_back(turn: Turn) -> None:
    """Damage: one call that fails blocks all others."""
    said: list[str] = []
    with pytest.raises(ValueError, match="inside"), turn, turn:
        threads = in_threads(turn, "a", said)
        raise ValueError("inside")
    for thread in threads:
        thread.join()
    assert said == ["a"]


def test_a_wait_that_is_interrupted_leaves_the_turn_to_others(turn: Turn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: Ctrl-C in a call that waits blocks the environment for ever."""
    said: list[str] = []

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            monkeypatch.undo()
            raise KeyboardInterrupt

    def asks() -> None:
        monkeypatch.setattr("strandline.client.access.threading.Event", Interrupted)
        with pytest.raises(KeyboardInterrupt), turn:
            said.append("never")

    with turn:
        asking = threading.Thread(target=asks)  # noqa: TID251 - a caller
        asking.start()
        asking.join()
        threads = in_threads(turn, "a", said)
    for thread in threads:
        thread.join()
    assert said == ["a"]
